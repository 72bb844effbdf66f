r"""Variance proxies of measures, on which the proved bounds are based.

A matrix $P$ is a *variance proxy* of $\mu$ with mean $m$ if
$\log E e^{\langle a,z-m\rangle}\le a^\top Pa/2$ for every $a$. Proofs: docs/bounds.md.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array

_MOST_PAIRED = 2000
"""The largest number of points for which all pairwise distances are computed."""


@dataclasses.dataclass(frozen=True)
class VarianceProxy:
    r"""A variance proxy: $\log Ee^{\langle a,z-m\rangle}\le a^\top Pa/2$ for every $a$.

    Attributes:
        mean: $m$, [d].
        matrix: $P$, [d, d].
    """

    mean: Array
    matrix: Array

    @property
    def constant(self) -> float:
        r"""The smallest $s$ with $P\preceq s^2I$: tokens are $s$-sub-Gaussian."""
        return math.sqrt(max(self.largest, 0.0))

    @property
    def largest(self) -> float:
        """The largest eigenvalue of $P$."""
        return float(np.linalg.eigvalsh(self.matrix)[-1])

    def affine(self, matrix: Array, shift: Array) -> "VarianceProxy":
        r"""Return the proxy of $Az+b$: $APA^\top$."""
        return VarianceProxy(matrix @ self.mean + shift, matrix @ self.matrix @ matrix.T)


def of_points(points: Array, weights: Array) -> VarianceProxy:
    """Return $(D^2/4)I$ by Hoeffding's lemma, with D/2 the result of `_half_diameter`."""
    size = _half_diameter(points, weights) ** 2
    return VarianceProxy(weights @ points, size * np.eye(points.shape[1]))


def of_mixture(weights: Array, proxies: Sequence[VarianceProxy | None]) -> VarianceProxy | None:
    """Return $(p+D^2/4)I$; None if a component of nonzero weight has no proxy.

    $p$ is the largest eigenvalue of the proxies. $D$ is the diameter of the components' means, and
    $D^2/4$ bounds the effect of the random choice of a component. If only one component has nonzero
    weight, the result is its proxy.
    """
    kept = [(w, proxy) for w, proxy in zip(weights, proxies, strict=True) if w > 0]
    known = [(w, proxy) for w, proxy in kept if proxy is not None]
    if len(known) < len(kept):
        return None
    if len(known) == 1:
        return known[0][1]
    means = np.stack([proxy.mean for _, proxy in known])
    chosen = np.array([w for w, _ in known])
    within = max(proxy.largest for _, proxy in known)
    size = within + _half_diameter(means, chosen) ** 2
    return VarianceProxy(chosen @ means, size * np.eye(means.shape[1]))


def of_product(proxies: Sequence[VarianceProxy | None]) -> VarianceProxy | None:
    """Return the block-diagonal proxy of a product; None if a proxy is None."""
    from scipy.linalg import block_diag  # noqa: PLC0415  # scipy loads slowly

    known = [proxy for proxy in proxies if proxy is not None]
    if len(known) < len(proxies):
        return None
    mean = np.concatenate([proxy.mean for proxy in known])
    return VarianceProxy(mean, np.asarray(block_diag(*(proxy.matrix for proxy in known))))


def _half_diameter(points: Array, weights: Array) -> float:
    """Return half the diameter of the points of nonzero weight, or an upper bound for many points.

    The upper bound is the radius of a ball that contains the points. It suffices for Hoeffding's
    lemma, which requires a bound on half the width of the points in every direction.
    """
    from scipy.spatial.distance import pdist  # noqa: PLC0415  # scipy loads slowly

    support = points[weights > 0]
    if support.shape[0] == 1:
        return 0.0
    if support.shape[0] <= _MOST_PAIRED:
        return float(pdist(support).max()) / 2
    return float(np.linalg.norm(support - weights @ points, axis=1).max())
