r"""How light the tails of a measure are: the constant that every bound asks for.

A matrix $P$ is a *variance proxy* of $\mu$ with mean $m$ when
$\log E e^{\langle a,z-m\rangle}\le a^\top Pa/2$ for every $a$. Proxies, unlike their norms, pass
through products and affine maps without loss (proofs in docs/bounds.md).
"""

import math
from functools import singledispatch

import numpy as np
from scipy.linalg import block_diag
from scipy.spatial.distance import pdist

from promptlimit.finite._array_types import Array, doubles
from promptlimit.measures import (
    AbstractMeasure,
    Affine,
    Empirical,
    Gaussian,
    Mixture,
    Product,
    Rademacher,
    UniformCube,
    UniformSphere,
    require_measure,
)

_MOST_PAIRED = 2000
"""Up to this many points all distances are looked at; beyond, only those from the mean."""


def sub_gaussian_constant(measure: AbstractMeasure) -> float | None:
    r"""Return $s$ with $E e^{\langle a,z-m\rangle}\le e^{s^2|a|^2/2}$ for every $a$, or None.

    The smallest that we can prove, and the smallest there is for Gaussians, cubes, their corners
    and spheres, where $s^2$ is the largest variance in any direction. It is zero for one atom.

    | measure | variance proxy |
    |---|---|
    | `Gaussian` | $\Gamma$ |
    | `Rademacher`, `UniformCube` | $\mathrm{diag}(a_i^2)$, $\mathrm{diag}(a_i^2/3)$ |
    | `UniformSphere` | $r^2/d$ |
    | `Empirical` | $D^2/4$, $D$ the diameter of the tokens |
    | `Mixture` | the largest of its components', and $D^2/4$, $D$ the diameter of their means |
    | `Product`, `Affine` | block diagonal, $APA^\top$ |

    A user's own measure, alone or as a part of another, has none that we know.

    >>> import promptlimit as pl
    >>> sub_gaussian_constant(pl.Gaussian([1.0, 0.0], [[4.0, 0.0], [0.0, 1.0]]))
    2.0
    >>> sub_gaussian_constant(pl.Empirical([[0.0], [3.0], [1.0]]))
    1.5
    """
    require_measure("measure", measure)
    law = _law(measure)
    if law is None:
        return None
    return math.sqrt(max(_largest(law[1]), 0.0))


# The mean of a measure and a variance proxy.
_Law = tuple[Array, Array]


@singledispatch
def _law(_measure: AbstractMeasure) -> _Law | None:
    """Return the mean of a measure and a variance proxy, or None where we know none."""
    return None


@_law.register
def _(measure: Gaussian) -> _Law | None:
    return doubles(measure.location), doubles(measure.covariance)


@_law.register
def _(measure: Rademacher) -> _Law | None:
    r"""Return $a_i^2$: $\log\cosh y\le y^2/2$."""
    return np.zeros(measure.dim), np.diag(doubles(measure.half_widths) ** 2)


@_law.register
def _(measure: UniformCube) -> _Law | None:
    r"""Return $a_i^2/3$: $\log(\sinh y/y)\le y^2/6$."""
    return np.zeros(measure.dim), np.diag(doubles(measure.half_widths) ** 2 / 3)


@_law.register
def _(measure: UniformSphere) -> _Law | None:
    r"""Return $r^2/d$: ${}_0F_1(;d/2;y^2/4)\le e^{y^2/2d}$, since $(d/2)_k\ge(d/2)^k$."""
    return np.zeros(measure.dim), np.eye(measure.dim) * float(measure.radius) ** 2 / measure.dim


@_law.register
def _(measure: Empirical) -> _Law | None:
    """Return $D^2/4$, by Hoeffding's lemma in every direction."""
    tokens = doubles(measure.tokens)
    size = measure.length
    weights = np.full(size, 1 / size) if measure.weights is None else doubles(measure.weights)
    return weights @ tokens, np.eye(measure.dim) * _half_diameter(tokens, weights) ** 2


@_law.register
def _(measure: Mixture) -> _Law | None:
    """Return the largest proxy of a component, and $D^2/4$ for the choice of the component."""
    weights = doubles(measure.weights)
    laws = [_law(part) for part, w in zip(measure.components, weights, strict=True) if w > 0]
    known = [law for law in laws if law is not None]
    if len(known) < len(laws):
        return None
    if len(known) == 1:
        return known[0]
    means, chosen = np.stack([mean for mean, _ in known]), weights[weights > 0]
    within = max(_largest(proxy) for _, proxy in known)
    return chosen @ means, np.eye(measure.dim) * (within + _half_diameter(means, chosen) ** 2)


@_law.register
def _(measure: Product) -> _Law | None:
    laws = [_law(part) for part in measure.components]
    known = [law for law in laws if law is not None]
    if len(known) < len(laws):
        return None
    return np.concatenate([mean for mean, _ in known]), doubles(
        block_diag(*(proxy for _, proxy in known))
    )


@_law.register
def _(measure: Affine) -> _Law | None:
    law = _law(measure.measure)
    if law is None:
        return None
    matrix = doubles(measure.matrix)
    return matrix @ law[0] + doubles(measure.shift), matrix @ law[1] @ matrix.T


def _largest(proxy: Array) -> float:
    return float(np.linalg.eigvalsh(proxy)[-1])


def _half_diameter(points: Array, weights: Array) -> float:
    """Return half the largest distance of two points that have weight, or a little more.

    Hoeffding's lemma asks for the width in a direction, which no ball around the points exceeds:
    for many points, the one around their mean.
    """
    support = points[weights > 0]
    if support.shape[0] == 1:
        return 0.0
    if support.shape[0] <= _MOST_PAIRED:
        return float(pdist(support).max()) / 2
    return float(np.linalg.norm(support - weights @ points, axis=1).max())
