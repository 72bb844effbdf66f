r"""The law of a token along two tilts, as sums over listed tokens or nodes of Gaussian parts.

With $e_1=e^{s^1+u}$, $e_2=e^{s^2+v}$ and $K=e^{-e_1-e_2}$ as in `_pairs`, means over listed tokens
on the grid of u and v are products of two matrices, with rows for tokens and columns for u or v.

In a Gaussian part $N(m,\Gamma)$ the scores are $\mu_1+ag$ and $\mu_2+bg+cf$ with independent
standard normals g and f. Functions of the second score are averaged over f once for each value of
$v+bg$. A mean over (g, f) is then a product of two matrices, with rows for nodes g and columns for
u or v. The step in g is chosen such that all $v+bg$ are on one grid. If all $bg$ are small, the
averages are interpolated instead.

Let $t_h$ be the tilt of head h, $p_h=\Gamma t_h$ and $\zeta_h=z-m-p_h$. By Stein's lemma, means
that involve $\zeta_h$ follow from $F_{jk}=E[e_1^je_2^kK]$, which are sums of positive terms:

    E e_1 zeta_1 K           = -p_1 F_20 - p_2 F_11,      E e_2 zeta_2 K = -p_1 F_11 - p_2 F_02
    E e_1 e_2 zeta_1 K       = p_2 (F_11 - F_12) - p_1 F_21
    E e_1 e_2 zeta_2 K       = p_1 (F_11 - F_21) - p_2 F_12
    E e_1 e_2 zeta_1zeta_2'K = Gamma F_11 + p_1p_1' (F_31 - 2 F_21) + p_2p_2' (F_13 - 2 F_12)
                               + p_1p_2' F_22 + p_2p_1' (F_11 - F_21 - F_12 + F_22).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import logsumexp

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.measures import GaussianParts, sqrtm_psd
from promptlimit.weights._gaussian_score import mixture_window
from promptlimit.weights._pairs import (
    NEGLIGIBLE_SHARE,
    AbstractPairLaw,
    AbstractPairTransforms,
    HeadPair,
    Spacing,
    Window,
)
from promptlimit.weights._score_law import LARGEST_EXPONENT, blocks, log_from

_ENTRIES_AT_ONCE = 2**22
_MOST_PRODUCTS = 2.0**33
"""The largest number of multiplications in one product of matrices."""

_FARTHEST = 36.0
"""The largest distance of a node from zero, in standard deviations. Above it, weights underflow."""

_SAME_AXIS = 1e-12
_COST = 32.0
"""The cost of evaluating all kernels at one point, in multiplications."""

_DEGREE = 31
_CHEBYSHEV = np.cos(np.pi * (np.arange(_DEGREE + 1) + 0.5) / (_DEGREE + 1))
_VANDERMONDE_INVERSE = np.linalg.inv(chebyshev.chebvander(_CHEBYSHEV, _DEGREE))
"""Chebyshev nodes, and the matrix that turns values at the nodes into coefficients.

The nodes interpolate kernels over two units of u to 1e-16 of their peak."""

_POWERS = ((1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2))
"""The indices (j, k) of the $F_{jk}$ that second moments of a Gaussian part need."""


def listed_pairs(
    parts: GaussianParts, pair: HeadPair, spacing: Spacing, *, by_values: bool = False
) -> "ListedPairs | GaussianPairs":
    r"""Return the law of a token from a list, or from a mixture of Gaussians, along two tilts.

    Args:
        parts: the law of a token.
        pair: two heads.
        spacing: the steps and ranges of the nodes.
        by_values: whether features must be values, as prompts with known tokens require. If not,
            the function may use fewer features: the coordinates of a listed token, or for one
            Gaussian the coefficients of $\Gamma t_1$ and $\Gamma t_2$.

    Raises:
        AccuracyError: the scores are too sharp for the nodes.
    """
    outputs, dim = len(pair.values[0]), parts.means.shape[1]
    means = parts.means - parts.weights @ parts.means
    scores = np.stack([means @ tilt for tilt in pair.tilts])
    if parts.covs is None:
        # With 16 outputs, features that are coordinates take a quarter of the time of values.
        by_tokens = dim < outputs and not by_values
        read = [means if by_tokens else means @ value.T for value in pair.values]
        maps = [value.T if by_tokens else np.eye(outputs) for value in pair.values]
        scores, levels = _centred(parts.weights, scores, np.stack(read))
        return ListedPairs(np.stack(maps), parts.weights, scores, levels)
    roots = sqrtm_psd(parts.covs)
    seen = np.stack([roots @ tilt for tilt in pair.tilts])  # [2, k, d]
    _require_mild(seen)
    pulls = np.stack([np.einsum("kij,kj->ki", roots, own) for own in seen])
    tops = scores + 0.5 * (seen**2).sum(axis=2)
    if len(means) == 1 and not by_values:
        maps = [pulls[:, 0] @ value.T for value in pair.values]
        read, drawn = np.zeros((2, 1, 2)), np.stack([np.eye(2)[:, None]] * 2)
    else:
        maps = [np.eye(outputs)] * 2
        both = list(zip(pulls, pair.values, strict=True))
        read = np.stack([(means + pull) @ value.T for pull, value in both])
        drawn = np.stack([pulls @ value.T for value in pair.values])
    tops, levels = _centred(parts.weights, tops, read)
    scores = tops - 0.5 * (seen**2).sum(axis=2)
    left, right = (value @ roots for value in pair.values)
    within = left @ right.swapaxes(1, 2)
    columns = parts.weights, scores, seen, levels, drawn, within
    return GaussianPairs(np.stack(maps), *columns, spacing)


def _centred(weights: Array, scores: Array, read: Array) -> tuple[Array, Array]:
    """Return the scores shifted such that E exp(s) = 1, and `read` minus its tilted means."""
    scores = scores - logsumexp(scores, axis=1, b=weights, keepdims=True)
    return scores, read - ((weights * np.exp(scores))[:, None] @ read)


def _require_mild(seen: Array) -> None:
    """Raise AccuracyError if weights of nodes underflow; `seen` as in `GaussianPairs`."""
    sizes = np.linalg.norm(np.concatenate([seen, seen.sum(axis=0, keepdims=True)]), axis=2)
    if not sizes.max() <= _FARTHEST:
        raise _too_sharp(seen)


def _too_sharp(seen: Array) -> AccuracyError:
    """Return the error for the tilts `seen` of `GaussianPairs`."""
    sharpness = float(np.linalg.norm(seen, axis=2).max())
    return AccuracyError(
        "scores must be less sharp if two heads read one prompt at different tilts, got a "
        f"standard deviation of {sharpness:.3g}. Scale the attention down.",
        argument="attention",
    )


def _end(scores: Array, masses: Array, shortest: float) -> float:
    r"""Return the u at which $\varphi^L\approx e^{-36}$ for one head, with L = `shortest`."""
    low, high = 0.0, math.log(NEGLIGIBLE_SHARE) - float(scores.min())
    for _ in range(16):
        middle = 0.5 * (low + high)
        rates = np.exp(np.minimum(scores + middle, LARGEST_EXPONENT))
        kept = float(masses @ np.exp(-rates))
        is_negligible = kept <= 0.0 or shortest * math.log(kept) < -NEGLIGIBLE_SHARE
        low, high = (low, middle) if is_negligible else (middle, high)
    return high


# ---------------------------------------------------------------- kernels


class _Kernel(NamedTuple):
    r"""Functions of $x=e^{s+u}$ for tokens j, or means of these functions over f for nodes j.

    Attributes:
        powers: $x^ke^{-x}$ for k = 0, 1, ..., [j, u] each.
        complement: $1-e^{-x}$ at the nodes $u\le0$, [j, near].
        lost: $x(1-e^{-x})$ at the nodes $u\le0$, [j, near].
    """

    powers: list[Array]
    complement: Array
    lost: Array

    @staticmethod
    def at(exponents: Array, highest: int, near: int) -> "_Kernel":
        """Return the functions.

        Args:
            exponents: s + u, [j, u].
            highest: the largest k.
            near: the number of nodes u that are at most 0.
        """
        rate = np.exp(np.minimum(exponents, LARGEST_EXPONENT))
        powers = [np.exp(-rate)]
        for _ in range(highest):
            powers.append(rate * powers[-1])
        small = rate[:, :near]
        complement = -np.expm1(-small)  # five times slower than an exponential
        return _Kernel(powers, complement, small * complement)


def _complement(one: _Kernel, two: _Kernel, masses: Array) -> Array:
    r"""Return $1-\varphi$ where u and v are at most 0, and 1 elsewhere.

    $1-\varphi=E[(1-K_1)+K_1(1-K_2)]$ with $K_h=e^{-e_h}$.
    """
    (a, b), (heads, tails) = _near(one, two), (one.powers[0], two.powers[0])
    found = np.ones((heads.shape[1], tails.shape[1]))
    found[:a, :b] = (masses @ one.complement)[:, None]
    found[:a, :b] += (heads[:, :a].T * masses) @ two.complement
    return found


def _drift(own: _Kernel, other: _Kernel, masses: Array) -> Array:
    r"""Return $E[e_hyK]$ for head h, [nodes of head h, nodes of the other head].

    y is a function of a token with $E\,e_hy=0$, so the mean is equal to $-E[e_hy(1-K)]$. This form
    has smaller terms where u and v are at most 0, and is used there.

    Args:
        own: the functions of head h.
        other: the functions of the other head.
        masses: the probabilities of tokens times y, [j].
    """
    a, b = _near(own, other)
    heat = own.powers[1].T * masses
    found = heat @ other.powers[0]
    found[:a, :b] = -(masses @ own.lost)[:, None] - heat[:a] @ other.complement
    return found


def _near(one: _Kernel, two: _Kernel) -> tuple[int, int]:
    """Return the numbers of nodes u and v that are at most 0."""
    return one.complement.shape[1], two.complement.shape[1]


# ---------------------------------------------------------------- lists


@dataclasses.dataclass(frozen=True)
class ListedPairs(AbstractPairLaw):
    r"""The law of a token from a list, along two tilts.

    Attributes:
        weights: the probabilities of the tokens, [j].
        scores: the scores for each head, [2, j].
        features: q functions of a token for each head, with mean zero under the law tilted by the
            tilt of this head, [2, j, q].
    """

    weights: Array
    scores: Array
    features: Array

    def windows(self, left: float, shortest: float) -> tuple[Window, Window]:
        first, second = ((-left, _end(row, self.weights, shortest)) for row in self.scores)
        return first, second

    def at(self, u: Array, v: Array, count: int) -> "ListedTransforms":
        return ListedTransforms(self, u, v, count)

    def blocks(self, u: Array, v: Array) -> Iterator[tuple[slice, _Kernel, _Kernel]]:
        """Yield blocks of tokens with the kernels of both heads."""
        for part in blocks(self.weights.size, max(u.size, v.size), _ENTRIES_AT_ONCE):
            one, two = (
                _Kernel.at(scores[part, None] + places, 1, int((places <= 0.0).sum()))
                for scores, places in zip(self.scores, (u, v), strict=True)
            )
            yield part, one, two


class ListedTransforms(AbstractPairTransforms):
    """Transforms of a token from a list."""

    def __init__(self, law: ListedPairs, u: Array, v: Array, count: int):
        self.law, self.u, self.v = law, u, v
        found = law.blocks(u, v)
        self._only = list(found) if law.weights.size * u.size <= _ENTRIES_AT_ONCE else None
        self.log_phi, self._means = self._summed()
        # `_by_features` computes (q + 1)^2 products of matrices, `_by_tokens` 2 per length.
        is_short = (law.features.shape[2] + 1) ** 2 < 2 * count
        self._products = self._by_features() if is_short else None

    def _blocks(self) -> Iterator[tuple[slice, _Kernel, _Kernel]]:
        return iter(self._only or self.law.blocks(self.u, self.v))

    def first(self, head: int) -> Array:
        return self._means[head]

    def _summed(self) -> tuple[Array, tuple[Array, Array]]:
        r"""Return $\log\varphi$, and $E[e_hy_hK]$ of both heads."""
        shape = self.u.size, self.v.size
        count = self.law.features.shape[2]
        phi, complement = np.zeros((2, *shape))
        sums = np.zeros((2, count + 1, *shape))
        for part, one, two in self._blocks():
            masses, (left, right) = self.law.weights[part], self.law.features[:, part]
            kept, heat = (power.T * masses for power in one.powers)
            phi += kept @ two.powers[0]
            complement += _complement(one, two, masses)
            sums[0, count] += heat @ two.powers[0]
            sums[1, count] += kept @ two.powers[1]
            for q in range(count):
                sums[0, q] += _drift(one, two, masses * left[:, q])
                sums[1, q] += _drift(two, one, masses * right[:, q]).T
        return log_from(phi, complement), (sums[0], sums[1])

    def second(self, weights: Array) -> tuple[Array, Array, Array]:
        if self._products is None:
            total = self._by_tokens(weights)
        else:
            total = np.einsum("ruv,ijuv->rij", weights, self._products, optimize=True)
        outputs = self.law.maps.shape[2]
        return total, np.zeros((len(weights), outputs, outputs)), total[:, -1, -1].copy()

    def _with_one(self, part: slice) -> list[Array]:
        """Return the features of each head and 1 for some tokens, [j, q + 1] each."""
        return [np.column_stack([own[part], np.ones(len(own[part]))]) for own in self.law.features]

    def _by_features(self) -> Array:
        r"""Return $E[e_1e_2f_1f_2'K]$ with the features and 1 in f, [q + 1, q + 1, u, v]."""
        count = self.law.features.shape[2]
        total = np.zeros((count + 1, count + 1, self.u.size, self.v.size))
        for part, one, two in self._blocks():
            left, right = self._with_one(part)
            for i, j in np.ndindex(count + 1, count + 1):
                masses = self.law.weights[part] * left[:, i] * right[:, j]
                total[i, j] += (one.powers[1].T * masses) @ two.powers[1]
        return total

    def _by_tokens(self, weights: Array) -> Array:
        """Return the first result of `second` as sums over tokens, [r, q + 1, q + 1]."""
        count = self.law.features.shape[2]
        total = np.zeros((len(weights), count + 1, count + 1))
        for part, one, two in self._blocks():
            left, right = self._with_one(part)
            for m, w in enumerate(weights):
                rows, columns = _support(w)
                read = one.powers[1][:, rows] @ w[rows, columns]
                shares = self.law.weights[part] * (read * two.powers[1][:, columns]).sum(axis=1)
                total[m] += (left * shares[:, None]).T @ right
        return total


def _support(weights: Array) -> tuple[slice, slice]:
    """Return the smallest ranges of rows and columns that contain all nonzero weights."""
    spans = []
    for axis in (1, 0):
        some = np.flatnonzero(weights.any(axis=axis))
        spans.append(slice(int(some[0]), int(some[-1]) + 1) if some.size else slice(0, 0))
    return spans[0], spans[1]


# ---------------------------------------------------------------- Gaussian parts


@dataclasses.dataclass(frozen=True)
class GaussianPairs(AbstractPairLaw):
    r"""The law of a token from a mixture of Gaussians, along two tilts.

    Attributes:
        weights: the probabilities of the parts, [k].
        scores: $\mu_h$, [2, k].
        seen: the whitened tilts $\Gamma^{1/2}t_h$, [2, k, d].
        levels: for each head, the features of $m+\Gamma t_h$ minus their tilted mean, [2, k, q].
        pulls: for each head, the features of $\Gamma t_1$ and $\Gamma t_2$, [2, 2, k, q].
        within: $V_1\Gamma V_2'$, [k, e, e].
        spacing: the steps and ranges of the nodes.
    """

    weights: Array
    scores: Array
    seen: Array
    levels: Array
    pulls: Array
    within: Array
    spacing: Spacing

    def windows(self, left: float, shortest: float) -> tuple[Window, Window]:
        sharpness = np.linalg.norm(self.seen, axis=2)
        first, second = (
            (-left, mixture_window(*columns, 2.0, shortest)[1])
            for columns in zip(self.scores, sharpness, strict=True)
        )
        return first, second

    def at(self, u: Array, v: Array, count: int) -> "GaussianTransforms":  # noqa: ARG002
        return GaussianTransforms(self, u, v)

    def kernels(self, part: int, u: Array, v: Array) -> tuple[Array, _Kernel, _Kernel]:
        """Return the probabilities of the part and its nodes g, [j], and kernels of both heads."""
        spacing, (first, second) = self.spacing, self.scores[:, part]
        a, b, c = _plane(*self.seen[:, part])
        g, masses = _normal_nodes([a, b, a + b], max(abs(a), abs(b)), spacing)
        # All v + bg are on one grid if |b| times the step in g divides the step in v.
        reach, step = max(float(np.abs(g).max()), 1.0), np.ptp(g) / max(g.size - 1, 1)
        ratio = spacing.laplace / max(abs(b) * step, 1e-300)
        if ratio <= _DEGREE or abs(b) * reach > 1.0:
            fine = spacing.laplace / math.ceil(ratio)
            g, masses = _normal_nodes([a, b, a + b], max(abs(a), abs(b)), spacing, fine / abs(b))
            numbers = np.rint((v[:, None] + b * g) / fine).astype(np.int64)
            line = fine * np.arange(numbers.min(), numbers.max() + 1)
            places = numbers - numbers.min()

            def spread(means: Array) -> Array:
                return means[places]

        else:  # bg is small: interpolate kernels between a few values of v + bg
            line = (v[:, None] + b * reach * _CHEBYSHEV).ravel()
            basis = _VANDERMONDE_INVERSE.T @ chebyshev.chebvander(g / reach, _DEGREE).T

            def spread(means: Array) -> Array:
                return means.reshape(v.size, -1) @ basis

        f, shares = _normal_nodes([c], c, spacing)
        if max(g.size * u.size * v.size, _COST * line.size * f.size) > _MOST_PRODUCTS:
            raise _too_sharp(self.seen)
        one = _Kernel.at((first + a * g)[:, None] + u, 3, int((u <= 0.0).sum()))
        means = np.empty((6, line.size))
        for some in blocks(line.size, f.size, _ENTRIES_AT_ONCE):
            every = _Kernel.at((second + line[some])[:, None] + c * f, 3, f.size)
            for row, values in zip(means, (*every.powers, *every[1:]), strict=True):
                row[some] = values @ shares
        *powers, complement, lost = (spread(row).T for row in means)
        near = int((v <= 0.0).sum())
        two = _Kernel(powers, complement[:, :near], lost[:, :near])
        return self.weights[part] * masses, one, two


def _plane(one: Array, two: Array) -> tuple[float, float, float]:
    """Return a, b and c, with g the coordinate along the first whitened tilt that is not zero."""
    a, whole = float(np.linalg.norm(one)), float(np.linalg.norm(two))
    if a <= _SAME_AXIS * whole:
        return 0.0, whole, 0.0
    b = float(one @ two) / a
    c = float(np.linalg.norm(two - (b / a) * one))
    return a, b, c if c > _SAME_AXIS * whole else 0.0


def _normal_nodes(
    tilts: list[float], sharpness: float, spacing: Spacing, step: float | None = None
) -> tuple[Array, Array]:
    """Return nodes and weights for means of functions f(g) with g standard normal.

    Args:
        tilts: the a for which the nodes must also cover N(a, 1).
        sharpness: the factor of g in a score, which determines the step.
        spacing: the steps and ranges of the nodes.
        step: the step; by default, `spacing` and `sharpness` determine it.
    """
    if not sharpness > 0.0:
        return np.zeros(1), np.ones(1)
    if step is None:
        step = min(spacing.widest, spacing.nodes / sharpness)
    low, high = min(0.0, *tilts) - spacing.deviations, max(0.0, *tilts) + spacing.deviations
    numbers = np.arange(math.floor(low / step), math.ceil(high / step) + 1)
    nodes = np.multiply(step, numbers, dtype=np.float64)
    return nodes, step / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * nodes**2)


class GaussianTransforms(AbstractPairTransforms):
    """Transforms of a token from a mixture of Gaussians."""

    def __init__(self, law: GaussianPairs, u: Array, v: Array):
        self.law = law
        shape, parts, count = (u.size, v.size), law.weights.size, law.maps.shape[1]
        phi, complement = np.zeros((2, *shape))
        self._means = np.zeros((2, count + 1, *shape))
        self._products = np.empty((parts, len(_POWERS), *shape))
        for part, products in enumerate(self._products):
            masses, one, two = law.kernels(part, u, v)
            rows = [power.T * masses for power in one.powers]
            for (j, k), product in zip(_POWERS, products, strict=True):
                np.matmul(rows[j], two.powers[k], out=product)
            phi += rows[0] @ two.powers[0]
            complement += _complement(one, two, masses)
            singles = rows[1] @ two.powers[0], rows[0] @ two.powers[1]
            squares = (
                (rows[2] @ two.powers[0], products[0]),
                (products[0], rows[0] @ two.powers[2]),
            )
            for head, means in enumerate(self._means):
                means[-1] += singles[head]
                for square, pull in zip(squares[head], law.pulls[head, :, part], strict=True):
                    means[:-1] -= pull[:, None, None] * square
            levels = law.levels[:, part]
            if levels.any():
                drifts = _drift(one, two, masses), _drift(two, one, masses).T
                for means, drift, level in zip(self._means, drifts, levels, strict=True):
                    means[:-1] += level[:, None, None] * drift
        self.log_phi = log_from(phi, complement)

    def first(self, head: int) -> Array:
        return self._means[head]

    def second(self, weights: Array) -> tuple[Array, Array, Array]:
        (l1, l2), (one, two) = self.law.levels, self.law.pulls
        rules, shape = len(weights), self._products.shape
        sums = weights.reshape(rules, -1) @ self._products.reshape(shape[0] * shape[1], -1).T
        f11, f21, f12, f31, f13, f22 = np.moveaxis(sums.reshape(rules, *shape[:2]), 2, 0)[..., None]
        left = one[1] * (f11 - f12) - one[0] * f21  # the means of zeta_1, [r, k, q]
        right = two[0] * (f11 - f21) - two[1] * f12
        by_one = one[0] * (f31 - 2.0 * f21) + one[1] * (f11 - f21 - f12 + f22)
        by_two = one[0] * f22 + one[1] * (f13 - 2.0 * f12)
        total = np.empty((rules, *(size + 1 for size in self.law.maps.shape[1:2] * 2)))
        total[:, :-1, :-1] = (
            (left + l1 * f11).swapaxes(1, 2) @ l2
            + l1.T @ right
            + by_one.swapaxes(1, 2) @ two[0]
            + by_two.swapaxes(1, 2) @ two[1]
        )
        total[:, :-1, -1] = (left + l1 * f11).sum(axis=1)
        total[:, -1, :-1] = (right + l2 * f11).sum(axis=1)
        mass = total[:, -1, -1] = f11[..., 0].sum(axis=1)
        return total, np.tensordot(f11[..., 0], self.law.within, axes=1), mass.copy()
