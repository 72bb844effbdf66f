r"""Quadrature rules, and the standard error of a mean over independent sets of points.

A rule is a pair of nodes $x_i$ and weights $w_i$ such that $\sum_iw_ih(x_i)$ approximates an
expectation $E\,h$ or an integral of $h$.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from promptlimit._arrays import Array

Rule: TypeAlias = tuple[Array, Array]
"""Nodes, [n] or [n, dim], and weights, [n]."""

REPLICATES = 8
"""The number of independent sets of points from which an error is computed."""

NORMAL_REACH = 8.5
"""The number of standard deviations beyond which a normal law is negligible in double precision."""

_LATTICE_DIM = 2
_LATTICE_SHIFTS = ((math.sqrt(5) - 1) / 2, math.sqrt(2) - 1)
LATTICE_RADIUS = 8.0
"""The radius of lattices in standard deviations; N(0, I) in 2D has mass $e^{-32}$ outside it."""

_SEED = 20_261_001
_RADIAL_STRETCH = 1.4


# ---------------------------------------------------------------- Gauss and Fejer


def normal_gauss(count: int) -> Rule:
    """Return the Gauss-Hermite rule for a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / weights.sum()


def legendre_gauss(low: float, high: float, count: int) -> Rule:
    """Return the Gauss-Legendre rule for integrals from `low` to `high`."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = 0.5 * (high - low)
    return low + half * (nodes + 1.0), half * weights


def chi2_gauss(freedom: float, count: int) -> Rule:
    r"""Return the Gauss rule for $(\chi^2_f-f)/\sqrt{2f}$, for $f>0$ degrees of freedom.

    The rule follows from the Jacobi matrix of generalised Laguerre polynomials in this variable,
    with $2k/\sqrt{f/2}$ on the diagonal, $k\ge0$, and $\sqrt{k(k+f/2-1)/(f/2)}$ next to it,
    $k\ge1$. These entries stay bounded as f grows.
    """
    half, k = freedom / 2.0, np.arange(count)
    off = np.sqrt(k[1:] * (k[1:] - 1.0 + half) / half)
    matrix = np.diag(2.0 * k / math.sqrt(half)) + np.diag(off, 1) + np.diag(off, -1)
    nodes, vectors = np.linalg.eigh(matrix)
    return nodes, vectors[0] ** 2


def radius_gauss(dim: int, count: int) -> Rule:
    """Return a rule for the norm r of a standard normal vector, from the Gauss rule for r^2."""
    nodes, weights = chi2_gauss(float(dim), count)
    return np.sqrt(np.maximum(dim + math.sqrt(2.0 * dim) * nodes, 0.0)), weights


def product_rule(rules: Sequence[Rule]) -> Rule:
    """Return the product of `dim` rules in one variable each: nodes [n, dim] and weights [n]."""
    weights = functools.reduce(np.multiply.outer, (rule[1] for rule in rules))
    return _grid([rule[0] for rule in rules]), weights.ravel()


@functools.lru_cache(maxsize=16)
def fejer_weights(level: int) -> Array:
    r"""Return the weights of Fejér's second rule on [-1, 1] with n = `level`.

    At the nodes $\cos\theta_k$ with $\theta_k=k\pi/n$, $0<k<n$, they are
    $w_k=\frac{4\sin\theta_k}{n}\sum_{j=1}^{\lfloor n/2\rfloor}\frac{\sin((2j-1)\theta_k)}{2j-1}$.
    """
    angles = np.pi * np.arange(1, level) / level
    odd = np.arange(1, level, 2)
    return 4.0 * np.sin(angles) / level * (np.sin(np.outer(angles, odd)) @ (1.0 / odd))


# ---------------------------------------------------------------- lattices and Sobol' points


def normal_rule(
    dim: int, count: int, *, replicate: int = 0, radius: float = LATTICE_RADIUS
) -> Rule:
    """Return `count` nodes [n, dim] and their weights for means over N(0, I).

    In one and two dimensions the nodes form a lattice, because the trapezoidal rule then converges
    faster than any power of its step. In more dimensions they are scrambled Sobol' points.

    Args:
        dim: the dimension of the normal vector.
        count: the number of nodes.
        replicate: the index of a shift of the lattice, or of an independent scrambling.
        radius: the radius of the lattice, in standard deviations.
    """
    if dim == 0:
        return np.zeros((1, 0)), np.ones(1)
    if dim > _LATTICE_DIM:
        points = sobol_normals(dim, 2 ** math.ceil(math.log2(count)), _SEED, replicate)
        return points[:count], np.full(count, 1.0 / count)
    volume = {1: 2 * radius, 2: math.pi * radius**2}[dim]
    step = (volume / count) ** (1 / dim)
    steps = np.arange(-math.ceil(radius / step) - 1, math.ceil(radius / step) + 2)
    axes = [step * (steps + replicate * shift % 1.0) for shift in _LATTICE_SHIFTS[:dim]]
    nodes = _grid(axes)
    squares = np.sum(nodes**2, axis=1)
    nearest = np.sort(np.argsort(squares, kind="stable")[:count])
    masses = np.exp(-0.5 * squares[nearest])
    return nodes[nearest], masses / masses.sum()


class Lattice(NamedTuple):
    """The nodes of a lattice, in two interleaved halves.

    Attributes:
        nodes: the nodes, [n, dim].
        masses: the weights of the nodes, [n], which approximately sum to one.
        half: 0 or 1, the half to which each node belongs, [n].
    """

    nodes: Array
    masses: Array
    half: Array


def mixture_lattice(
    centres: Array,
    weights: Array,
    steps: Sequence[float],
    reach: float,
) -> Lattice:
    r"""Return a lattice for means over $\sum_kw_kN(m_k,I)$, in two interleaved halves.

    Args:
        centres: $m_k$, [components, dim].
        weights: $w_k$.
        steps: the step of the lattice in each dimension.
        reach: the distance by which the lattice extends beyond the $m_k$ along each axis.
    """
    ends = zip(centres.min(axis=0), centres.max(axis=0), steps, strict=True)
    index = [
        np.arange(math.floor((low - reach) / step), math.ceil((high + reach) / step) + 1)
        for low, high, step in ends
    ]
    places = _grid(index)
    nodes = places * np.asarray(steps)
    squares = ((nodes[:, None] - centres) ** 2).sum(axis=2)
    cell = math.prod(step / math.sqrt(2 * math.pi) for step in steps)
    return Lattice(nodes, cell * np.exp(-squares / 2) @ weights, places.sum(axis=1) % 2)


def _grid(axes: Sequence[np.ndarray]) -> np.ndarray:
    """Return all combinations of the coordinates of several axes, one per row."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def sobol_sets(dim: int, points: int, *seed: int) -> Iterator[Array]:
    """Yield consecutive sets of points of one scrambled Sobol' sequence in the open unit cube.

    Args:
        dim: the dimension of the cube.
        points: the number of points of a set, a power of two.
        *seed: one or several numbers that determine the scrambling; scramblings that differ in the
            last number are independent.
    """
    # Loading scipy.stats takes longer than the rest of the library.
    from scipy.stats import qmc  # noqa: PLC0415  # scipy loads slowly

    sequence = qmc.Sobol(dim, rng=np.random.default_rng(seed))
    while True:
        yield np.clip(sequence.random(points), 2.0**-53, 1 - 2.0**-53)


def sobol_normals(dim: int, points: int, *seed: int) -> Array:
    """Return the first set of `sobol_sets` as standard normals, [points, dim]."""
    from scipy.special import ndtri  # noqa: PLC0415  # scipy loads slowly

    return ndtri(next(sobol_sets(dim, points, *seed)))


def haar_rotations(normals: Array, dim: int) -> Array:
    r"""Return uniform random orthogonal matrices, [n, d, d], from $d^2$ standard normals each."""
    rotations, triangles = np.linalg.qr(normals.reshape(-1, dim, dim))
    return rotations * np.sign(np.diagonal(triangles, axis1=1, axis2=2))[:, None, :]


def stretched_radii(dim: int, uniform: Array, place: float) -> Rule:
    r"""Return n radii r and masses w such that $\frac1n\sum_iw_ih(r_i)$ approximates $E\,h(|x|)$.

    Here x is a standard normal vector. Let p be the density of its norm. The radii have the density
    q proportional to $p^{1/\lambda^2}$ with $\lambda=1.4$, which is about $\lambda$ times as wide
    as p around the mode, and w = p/q. Each of n strata of equal probability under q contains one
    radius, at the quantile `place` of even strata and 1 - `place` of odd strata. Since the weighted
    integrand vanishes at both ends, this is far more accurate than random radii.

    Args:
        dim: the dimension of x.
        uniform: one number in each interval [i/n, (i+1)/n], in any order, which selects a stratum.
        place: a number from 0 to 1.
    """
    from scipy.special import gammaincinv, gammaln  # noqa: PLC0415  # scipy loads slowly

    count, power = uniform.size, _RADIAL_STRETCH**-2
    stratum = np.minimum((uniform * count).astype(int), count - 1)
    level = (stratum + np.where(stratum % 2 == 0, place, 1.0 - place)) / count
    shape = 0.5 * (power * (dim - 1) + 1.0)
    half_square = gammaincinv(shape, level) / power
    radius = np.sqrt(2.0 * half_square)
    log_mass = (1.0 - power) * ((dim - 1) * np.log(radius) - half_square)
    log_mass += shape * math.log(2.0 / power) + gammaln(shape)
    log_mass -= 0.5 * dim * math.log(2.0) + gammaln(0.5 * dim)
    return radius, np.exp(log_mass)


# ---------------------------------------------------------------- replicates


def standard_error(values: Array) -> Array:
    """Return the standard error of a mean over the first axis, times `student_factor`."""
    count = values.shape[0]
    return np.asarray(student_factor(count) * values.std(axis=0, ddof=1) / math.sqrt(count))


@functools.cache
def student_factor(count: int) -> float:
    r"""Return the factor by which a standard error from `count` values is multiplied.

    A standard error from few values is itself uncertain. With this factor, the true mean is within
    four errors of the sample mean with the same probability as for many values. The factor is
    $t/4$, with t the quantile of Student's law at this probability. It is 2.12 for eight values and
    close to 1 for many.
    """
    from scipy.special import ndtr, stdtrit  # noqa: PLC0415  # scipy loads slowly

    return -float(stdtrit(count - 1, ndtr(-4.0))) / 4.0
