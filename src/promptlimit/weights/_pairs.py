r"""Exact moments of two softmax heads on one prompt: a double integral over its Laplace functional.

Head h has scores $s^h_l$ and values $y^h_l=V_hz_l-T_h$. With $e_1=e^{s^1+u}$, $e_2=e^{s^2+v}$ the
functional and its derivatives at $a=b=0$ are

    Psi(u, v; a, b) = E exp(-sum_l e_1 (1 - <a, y^1_l>) - sum_l e_2 (1 - <b, y^2_l>))
    k_00 = log Psi,   k_10 = its gradient in a,   k_01 = its gradient in b,   k_11 = its mixed Hessian

and, with $\varepsilon_h=\sum_lp^h_ly^h_l$ the distance of head h from its limit (derived here),

    E eps_1 eps_2'      = iint (k_11 + k_10 k_01') e^{k_00} du dv
    E sum_l p^1_l p^2_l = iint o e^{k_00} du dv

With 1 in place of both values the first integral is one: the mass. Independent parts of a prompt
add their functions, with $K=e^{-e_1-e_2}$ and $\phi=E\,K$:

| part | $k_{00}$ | $k_{10}$ | $k_{11}$ | o |
|---|---|---|---|---|
| L tokens from a law | $L\log\phi$ | $LB_1/\phi$, $B_1=E[e_1y_1K]$ | $L(E[e_1e_2y_1y_2'K]/\phi-B_1B_2'/\phi^2)$ | $L\,E[e_1e_2K]/\phi$ |
| a known token | $-e_1-e_2$ | $e_1y_1$ | 0 | $e_1e_2$ |

The integral is a trapezoidal rule on a square grid. Its even and its odd places, as on a
checkerboard, are rules of their own whose aliases have the size $e^{-\pi^2/h}$ of those of the whole
rule, h its step: their distance measures the error.
"""  # noqa: E501  # a formula stays on one line

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.measures import GaussianParts, sqrtm_psd
from promptlimit.weights._functional import total_of
from promptlimit.weights._score_law import EPSILON, LARGEST_EXPONENT, blocks, log_from

_NEGLIGIBLE = 36.0
"""Minus the logarithm of the share of a prompt that is dropped at large u and v."""

_MOST_NODES = 2**17
_ENTRIES_AT_ONCE = 2**22
_FARTHEST = 36.0
"""The largest distance of a node in standard deviations: beyond it weights underflow."""

_SAME_AXIS = 1e-12
_ROUNDING = 32.0 * EPSILON


class Spacing(NamedTuple):
    """Steps and ranges of the rules.

    Attributes:
        laplace: the step in u and v.
        nodes: the step in a coordinate of a token, times the sharpness along it.
        widest: the largest step in a coordinate.
        deviations: the number of standard deviations that the nodes cover.
        left: the distance from -log L down to the start of the integrals.
    """

    laplace: float
    nodes: float
    widest: float
    deviations: float
    left: float


SPACINGS = {
    "fine": Spacing(0.3, 0.35, 0.6, 8.2, 30.0),
    "coarse": Spacing(0.6, 0.6, 0.8, 5.6, 14.0),
    "rough": Spacing(0.8, 0.9, 1.0, 5.0, 11.0),
}
"""Relative errors below about 1e-11, 1e-3 and 1e-2."""

Window = tuple[float, float]


class HeadPair(NamedTuple):
    r"""Two heads at one query: $t_1$ and $t_2$, [d] each, and $V_1$ and $V_2$, [e, d] each."""

    tilts: tuple[Array, Array]
    values: tuple[Array, Array]


# ---------------------------------------------------------------- parts of a prompt


class Seconds(NamedTuple):
    r"""Weighted sums over the grid.

    Attributes:
        features: $\sum w\,k_{11}$ of the q features and of 1, [n, r, q + 1, q + 1].
        within: the part of $\sum w\,k_{11}$ from the covariance of the values given the features,
            [n, r, e, e].
        overlap: $\sum w\,o$, [n, r].
    """

    features: Array
    within: Array
    overlap: Array


class PairNodes(NamedTuple):
    r"""A part of a prompt on a grid of u and v.

    Attributes:
        log_psi: returns $k_{00}$ at length number n, [u, v].
        first: returns $k_{10}$ (head 0) or $k_{01}$ (head 1) of the q features and of 1,
            [q + 1, u, v], at length number n.
        second: returns $\sum w\,k_{11}$ and $\sum w\,o$ for weights w, [n, r, u, v] for r rules.
    """

    log_psi: Callable[[int], Array]
    first: Callable[[int, int], Array]
    second: Callable[[Array], Seconds]


class AbstractPairPart(abc.ABC):
    """A part of a prompt with two heads, for one or several lengths."""

    @abc.abstractmethod
    def windows(self, left: float) -> tuple[Window, Window]:
        r"""Return the u, and the v, between which neither $1-\Psi$ nor $\Psi$ is negligible."""

    @abc.abstractmethod
    def at(self, u: Array, v: Array) -> PairNodes:
        """Return the part on a grid."""


@dataclasses.dataclass(frozen=True)
class KnownPairs(AbstractPairPart):
    """Tokens that are in every prompt.

    Attributes:
        scores: the scores of each head minus its log-mean score, [2, f].
        values: $y_f$ of each head, [2, f, e]; the features of the prompt must be values.
    """

    scores: Array
    values: Array

    def windows(self, left: float) -> tuple[Window, Window]:
        tops = (float(row.max()) for row in self.scores)
        first, second = ((-left - top, math.log(_NEGLIGIBLE) + 0.5 - top) for top in tops)
        return first, second

    def at(self, u: Array, v: Array) -> PairNodes:
        rates = [
            np.exp(np.minimum(places[:, None] + scores, LARGEST_EXPONENT))
            for places, scores in zip((u, v), self.scores, strict=True)
        ]

        def log_psi(n: int) -> Array:  # noqa: ARG001  # the same at all lengths
            return -rates[0].sum(axis=1)[:, None] - rates[1].sum(axis=1)

        def first(n: int, head: int) -> Array:  # noqa: ARG001
            with_one = np.column_stack([self.values[head], np.ones(len(self.values[head]))])
            row = (rates[head] @ with_one).T
            row = row[:, :, None] if head == 0 else row[:, None, :]
            return np.broadcast_to(row, (len(row), u.size, v.size))

        def second(weights: Array) -> Seconds:
            outputs = self.values.shape[2]
            zeros = np.zeros((*weights.shape[:2], outputs + 1, outputs + 1))
            overlap = np.einsum("nruv,uf,vf->nr", weights, *rates, optimize=True)
            return Seconds(zeros, zeros[..., 1:, 1:], overlap)

        return PairNodes(log_psi, first, second)


@dataclasses.dataclass(frozen=True)
class PairTokens(AbstractPairPart):
    """L independent tokens from one law, for several L.

    Attributes:
        law: the law of a token along both tilts.
        lengths: L, finite, [n].
    """

    law: "AbstractPairLaw"
    lengths: Array

    def windows(self, left: float) -> tuple[Window, Window]:
        longest, shortest = float(self.lengths.max()), float(self.lengths.min())
        return self.law.windows(left + math.log(longest), max(shortest - 1.0, 1.0))

    def at(self, u: Array, v: Array) -> PairNodes:
        token = self.law.at(u, v)
        phi, lengths = np.exp(token.log_phi), self.lengths
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            means = [np.where(phi > 0.0, token.first(head) / phi, 0.0) for head in (0, 1)]

        def second(weights: Array) -> Seconds:
            shape = weights.shape[:2]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                shares = lengths[:, None, None, None] * weights / phi
                shares = np.where(weights > 0.0, shares, 0.0)
            found = token.second(shares.reshape(-1, *phi.shape))
            total, within, overlap = (row.reshape(*shape, *row.shape[1:]) for row in found)
            left, right = (mean.reshape(len(mean), -1) for mean in means)
            for n, rule in np.ndindex(*shape):
                total[n, rule] -= lengths[n] * (left * weights[n, rule].ravel()) @ right.T
            return Seconds(total, within, overlap)

        return PairNodes(
            lambda n: lengths[n] * token.log_phi, lambda n, head: lengths[n] * means[head], second
        )


# ---------------------------------------------------------------- the law of one token


class AbstractPairTransforms(abc.ABC):
    r"""Means over one token on a grid of u and v."""

    log_phi: Array
    r"""$\log\phi$, [u, v]."""

    @abc.abstractmethod
    def first(self, head: int) -> Array:
        r"""Return $E[e_hf_hK]$ of the q features $f_h$ and of 1, [q + 1, u, v]."""

    @abc.abstractmethod
    def second(self, weights: Array) -> tuple[Array, Array, Array]:
        r"""Return sums of $w\,E[e_1e_2fK]$ over the grid, w of shape [m, u, v].

        Returns:
            Those of products of features, [m, q + 1, q + 1], of covariances of values given the
            features, [m, e, e], and of 1, [m].
        """


@dataclasses.dataclass(frozen=True)
class AbstractPairLaw(abc.ABC):
    """The law of one token along two tilts, with scores of log-mean zero.

    Attributes:
        maps: the matrices of values as functions of a few features, [2, q, e].
    """

    maps: Array

    @abc.abstractmethod
    def windows(self, left: float, shortest: float) -> tuple[Window, Window]:
        r"""Return -`left`, and where $\phi^L$ is negligible for L = `shortest`, per head."""

    @abc.abstractmethod
    def at(self, u: Array, v: Array) -> AbstractPairTransforms:
        """Return the transforms on a grid."""

    def rounding(self, lengths: Array) -> Array:
        """Return about the relative rounding error of moments at each length."""
        return np.full(lengths.size, _ROUNDING)


@dataclasses.dataclass(frozen=True)
class ListedPairs(AbstractPairLaw):
    r"""A law as a list of nodes: tokens, or those of rules for Gaussian parts.

    The scores depend on two coordinates of a Gaussian token, those in the span of the whitened
    tilts, over which a trapezoidal rule has a negligible error. Given these, the other coordinates
    are independent of the weights and add a covariance to the products of values.

    Attributes:
        weights: the probabilities of the nodes, [j].
        scores: the scores of the nodes for each head, [2, j].
        features: for each head, functions of a node of mean zero under its tilt, [2, j, q].
        part: the part of the law that each node belongs to, [j].
        within: the covariance of the values within each part, [parts, e, e].
    """

    weights: Array
    scores: Array
    features: Array
    part: NDArray[np.int64]
    within: Array

    def windows(self, left: float, shortest: float) -> tuple[Window, Window]:
        first, second = ((-left, self._end(scores, shortest)) for scores in self.scores)
        return first, second

    def _end(self, scores: Array, shortest: float) -> float:
        r"""Return u with $\phi^L\approx e^{-36}$ for one head, by bisection."""
        low, high = 0.0, math.log(_NEGLIGIBLE) - float(scores.min())
        for _ in range(16):
            middle = 0.5 * (low + high)
            rates = np.exp(np.minimum(scores + middle, LARGEST_EXPONENT))
            kept = float(self.weights @ np.exp(-rates))
            is_negligible = kept <= 0.0 or shortest * math.log(kept) < -_NEGLIGIBLE
            low, high = (low, middle) if is_negligible else (middle, high)
        return high

    def at(self, u: Array, v: Array) -> "ListedTransforms":
        return ListedTransforms(self, u, v)

    def blocks(self, u: Array, v: Array) -> Iterator[tuple[slice, "_Kernel", "_Kernel"]]:
        """Yield some nodes at a time, with the kernels of both heads."""
        for part in blocks(self.weights.size, max(u.size, v.size), _ENTRIES_AT_ONCE):
            yield part, _Kernel(self.scores[0, part], u), _Kernel(self.scores[1, part], v)


class _Kernel:
    r"""Functions of the scores of nodes and of u, [j, u] each.

    Attributes:
        rate: $e^{s+u}$.
        complement: $1-e^{-e^{s+u}}$.
        phi: $e^{-e^{s+u}}$.
        heat: $e^{s+u}e^{-e^{s+u}}$.
    """

    def __init__(self, scores: Array, places: Array):
        self.rate = np.exp(np.minimum(scores[:, None] + places, LARGEST_EXPONENT))
        self.complement = -np.expm1(-self.rate)
        self.phi = np.exp(-self.rate)
        self.heat = self.rate * self.phi


class ListedTransforms(AbstractPairTransforms):
    """Means over listed nodes: products of matrices, nodes by u and nodes by v."""

    def __init__(self, law: ListedPairs, u: Array, v: Array):
        self.law, self.u, self.v = law, u, v
        self._near = int((u <= 0.0).sum()), int((v <= 0.0).sum())
        blocks = law.blocks(u, v)
        self._only = list(blocks) if law.weights.size * u.size <= _ENTRIES_AT_ONCE else None
        self.log_phi, self._means = self._summed()

    def _blocks(self) -> Iterator[tuple[slice, _Kernel, _Kernel]]:
        return iter(self._only or self.law.blocks(self.u, self.v))

    def first(self, head: int) -> Array:
        return self._means[head]

    def _summed(self) -> tuple[Array, tuple[Array, Array]]:
        r"""Return $\log\phi$, and $E[e_hy_hK]$ of both heads.

        Where u and v are at most 0 they are sums of small terms: $1-K=(1-K_1)+K_1(1-K_2)$, and
        $E[e_1y_1K]=-E[e_1y_1(1-K)]$ since $E\,e_1y_1=0$.
        """
        shape, (a, b) = (self.u.size, self.v.size), self._near
        count = self.law.features.shape[2]
        phi, complement = np.zeros(shape), np.ones(shape)
        complement[:a, :b] = 0.0
        sums = [np.zeros((count + 1, *shape)) for _ in (0, 1)]
        for part, one, two in self._blocks():
            weights, (left, right) = self.law.weights[part, None], self.law.features[:, part]
            left_phi = (one.phi * weights).T
            phi += left_phi @ two.phi
            complement[:a, :b] += (one.complement[:, :a] * weights).sum(axis=0)[:, None]
            complement[:a, :b] += left_phi[:a] @ two.complement[:, :b]
            sums[0][count] += (one.heat * weights).T @ two.phi
            sums[1][count] += left_phi @ two.heat
            for q in range(count):
                _add_drift(sums[0][q], one, two, weights * left[:, q, None], (a, b))
                _add_drift(sums[1][q].T, two, one, weights * right[:, q, None], (b, a))
        return log_from(phi, complement), (sums[0], sums[1])

    def second(self, weights: Array) -> tuple[Array, Array, Array]:
        law, count = self.law, self.law.features.shape[2]
        # The first form needs (q + 1)^2 products of matrices, the second one per length and rule.
        is_short = len(law.within) == 1 and (count + 1) ** 2 < len(weights)
        total, parts = self._by_features(weights) if is_short else self._by_nodes(weights)
        return total, np.tensordot(parts, law.within, axes=1), parts.sum(axis=1)

    def _by_features(self, weights: Array) -> tuple[Array, Array]:
        """Return weighted sums of products of features, one product at a time."""
        count = self.law.features.shape[2]
        total = np.zeros((len(weights), count + 1, count + 1))
        flat = weights.reshape(len(weights), -1)
        for part, one, two in self._blocks():
            left, right = (
                np.column_stack([own[part], np.ones(len(own[part]))]) for own in self.law.features
            )
            for i, j in np.ndindex(count + 1, count + 1):
                mass = self.law.weights[part] * left[:, i] * right[:, j]
                total[:, i, j] += flat @ ((one.heat * mass[:, None]).T @ two.heat).ravel()
        return total, total[:, -1:, -1]

    def _by_nodes(self, weights: Array) -> tuple[Array, Array]:
        """Return weighted sums of products of features, by the share of each node."""
        law, count = self.law, self.law.features.shape[2]
        total = np.zeros((len(weights), count + 1, count + 1))
        parts = np.zeros((len(weights), len(law.within)))
        for part, one, two in self._blocks():
            left, right = (
                np.column_stack([own[part], np.ones(len(own[part]))]) for own in law.features
            )
            for m, w in enumerate(weights):
                rows, columns = _support(w)
                read = one.heat[:, rows] @ w[rows, columns]
                shares = law.weights[part] * (read * two.heat[:, columns]).sum(axis=1)
                total[m] += (left * shares[:, None]).T @ right
                parts[m] += np.bincount(law.part[part], shares, parts.shape[1])
        return total, parts


def _support(weights: Array) -> tuple[slice, slice]:
    """Return the rows and columns between which weights are positive."""
    spans = []
    for axis in (1, 0):
        some = np.flatnonzero(weights.any(axis=axis))
        spans.append(slice(int(some[0]), int(some[-1]) + 1) if some.size else slice(0, 0))
    return spans[0], spans[1]


def _add_drift(
    total: Array, own: _Kernel, other: _Kernel, mass: Array, near: tuple[int, int]
) -> None:
    """Add sums of e y K, own places by the other's, for mass = weight times y, [j, 1]."""
    a, b = near
    heat = (own.heat * mass).T
    total[a:] += heat[a:] @ other.phi
    total[:a, b:] += heat[:a] @ other.phi[:, b:]
    rate = own.rate[:, :a] * mass
    total[:a, :b] -= (rate * own.complement[:, :a]).sum(axis=0)[:, None]
    total[:a, :b] -= heat[:a] @ other.complement[:, :b]


# ---------------------------------------------------------------- nodes


class _Piece(NamedTuple):
    """Nodes of one Gaussian part, or a list of tokens.

    Attributes:
        coordinates: the coordinates of the nodes, [j, q].
        frame: the tokens at the unit vectors of the coordinates, less `shift`, [q, d].
        shift: the token at coordinates zero, [d].
        masses: the probabilities of the nodes, [j].
        within: the covariance of the two values given a node, [e, e].
    """

    coordinates: Array
    frame: Array
    shift: Array
    masses: Array
    within: Array

    @property
    def tokens(self) -> Array:
        """The nodes as tokens, [j, d]."""
        return self.shift + self.coordinates @ self.frame


def listed_pairs(
    parts: GaussianParts, pair: HeadPair, spacing: Spacing, *, by_values: bool = False
) -> ListedPairs:
    """Return a law made of Gaussian parts and tokens as a list of nodes.

    Args:
        parts: the law.
        pair: two heads.
        spacing: the steps and ranges of the nodes.
        by_values: whether features are values, as other parts of a prompt need.

    Raises:
        AccuracyError: the scores are too sharp for the nodes.
    """
    pieces = _pieces(parts, pair, spacing)
    tokens = np.concatenate([piece.tokens for piece in pieces])
    masses = np.concatenate([piece.masses for piece in pieces])
    outputs, only = len(pair.values[0]), pieces[0]
    # Coordinates as features take a quarter of the time of values for 16 outputs.
    if len(pieces) == 1 and only.coordinates.shape[1] < outputs and not by_values:
        read = [only.coordinates] * 2
        maps = [only.frame @ value.T for value in pair.values]
    else:
        read, maps = [tokens @ value.T for value in pair.values], [np.eye(outputs)] * 2
    scores = [tokens @ tilt for tilt in pair.tilts]
    scores = np.stack([own - logsumexp(own, b=masses) for own in scores])
    shares = masses * np.exp(scores)
    features = [own - share @ own for own, share in zip(read, shares, strict=True)]
    part = np.repeat(np.arange(len(pieces)), [piece.masses.size for piece in pieces])
    within = np.stack([piece.within for piece in pieces])
    return ListedPairs(np.stack(maps), masses, scores, np.stack(features), part, within)


def _pieces(parts: GaussianParts, pair: HeadPair, spacing: Spacing) -> list[_Piece]:
    """Return the nodes of each part, as tokens measured from the mean of the law."""
    dim, outputs = parts.means.shape[1], len(pair.values[0])
    means = parts.means - parts.weights @ parts.means
    if parts.covs is None:
        still = np.zeros((outputs, outputs))
        return [_Piece(means, np.eye(dim), np.zeros(dim), parts.weights, still)]
    pieces = []
    for weight, mean, root in zip(parts.weights, means, sqrtm_psd(parts.covs), strict=True):
        grid, masses, basis = _plane_nodes(root, pair.tilts, spacing)
        left, right = (value @ root for value in pair.values)
        within = left @ right.T - (left @ basis.T) @ (right @ basis.T).T
        pieces.append(_Piece(grid, basis @ root, mean, weight * masses, within))
    return pieces


def _plane_nodes(
    root: Array, tilts: tuple[Array, Array], spacing: Spacing
) -> tuple[Array, Array, Array]:
    r"""Return nodes for N(0, I) in the span of the whitened tilts: coordinates, masses, basis.

    The rows of the basis are the principal axes of the two tilts: the step is large along an axis
    on which scores hardly depend, and parallel tilts need one axis.
    """
    both = np.stack([root @ tilt for tilt in tilts])
    _, sizes, axes = np.linalg.svd(both, full_matrices=False)
    seen_axes = int((sizes > _SAME_AXIS * max(sizes[0], 1e-300)).sum())
    basis = axes[: max(1, seen_axes)]
    if not sizes[0] > 0.0:
        return np.zeros((1, 1)), np.ones(1), np.zeros((1, root.shape[0]))
    seen = np.stack([np.zeros(both.shape[1]), *both, both.sum(axis=0)]) @ basis.T
    steps = np.minimum(spacing.widest, spacing.nodes / np.abs(seen[1:3]).max(axis=0))
    low, high = seen.min(axis=0) - spacing.deviations, seen.max(axis=0) + spacing.deviations
    sharpness = float(np.linalg.norm(both, axis=1).max())
    if (
        not np.prod((high - low) / steps) <= _MOST_NODES
        or np.linalg.norm(seen, axis=1).max() > _FARTHEST
    ):
        raise AccuracyError(
            "scores must be milder where two heads read one prompt at different tilts, got a "
            f"standard deviation of {sharpness:.3g}. Scale the attention down.",
            argument="attention",
        )
    ends = zip(low, high, steps, strict=True)
    lines = [step * np.arange(math.floor(a / step), math.ceil(b / step) + 1) for a, b, step in ends]
    grid = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(-1, len(lines))
    near = ((grid[:, None] - seen) ** 2).sum(axis=2).min(axis=1) < spacing.deviations**2
    grid = grid[near]
    volume = np.prod(steps) / math.sqrt(2.0 * math.pi) ** len(lines)
    return grid, volume * np.exp(-0.5 * (grid**2).sum(axis=1)), basis


# ---------------------------------------------------------------- the integrals


@dataclasses.dataclass(frozen=True)
class PairIntegrals:
    r"""Moments of two heads on one prompt, for n lengths.

    Attributes:
        moment: $E\,\varepsilon_1\varepsilon_2'$, [n, e, e].
        overlap: $E\sum_lp^1_lp^2_l$, [n].
        error: the error of the trace of `moment` and of its entries, by the two rules, [n].
        overlap_error: the error of `overlap`, [n].
        mass_error: the distance of the mass from one, a relative error, [n].
    """

    moment: Array
    overlap: Array
    error: Array
    overlap_error: Array
    mass_error: Array


def pair_integrals(
    parts: Sequence[AbstractPairPart], maps: Array, count: int, spacing: Spacing
) -> PairIntegrals:
    """Return the moments of two heads over prompts made of independent parts.

    Args:
        parts: the parts of the prompt, which have the same features.
        maps: matrices that turn features into values, [2, q, e].
        count: the number of lengths.
        spacing: the steps and ranges of the rules.
    """
    step = spacing.laplace
    with np.errstate(over="ignore", under="ignore"):
        u, v = (
            _places(windows, step)
            for windows in zip(*(part.windows(spacing.left) for part in parts), strict=True)
        )
        grids = [part.at(u, v) for part in parts]
        is_even = (np.arange(u.size)[:, None] + np.arange(v.size)) % 2 == 0
        rules = 2.0 * step**2 * np.stack([is_even, ~is_even])
        weights = np.stack(
            [rules * np.exp(total_of(grid.log_psi(n) for grid in grids)) for n in range(count)]
        )
        weights[weights < math.exp(-4.0 * _NEGLIGIBLE)] = 0.0
        seconds = [grid.second(weights) for grid in grids]
        total = total_of(second.features for second in seconds)
        overlaps = total_of(second.overlap for second in seconds)
        for n in range(count):
            left, right = (
                total_of(grid.first(n, head) for grid in grids).reshape(-1, u.size * v.size)
                for head in (0, 1)
            )
            for rule in (0, 1):
                total[n, rule] += (left * weights[n, rule].ravel()) @ right.T
    moments = maps[0].T @ total[..., :-1, :-1] @ maps[1]
    moments = total_of([moments, *(second.within for second in seconds)])
    apart = 0.5 * (moments[:, 0] - moments[:, 1])
    error = np.maximum(
        np.abs(np.trace(apart, axis1=1, axis2=2)), np.linalg.norm(apart, axis=(1, 2))
    )
    mass_error = np.abs(total[..., -1, -1].mean(axis=1) - 1.0)
    overlap = overlaps.mean(axis=1)
    overlap_error = 0.5 * np.abs(overlaps[:, 0] - overlaps[:, 1]) + mass_error * overlap
    return PairIntegrals(moments.mean(axis=1), overlap, error, overlap_error, mass_error)


def _places(windows: Sequence[Window], step: float) -> Array:
    """Return the places on one axis, from the lowest window to the end of the shortest one."""
    lows, highs = zip(*windows, strict=True)
    high = min(highs)
    first, last = math.floor(min(*lows, high) / step), math.ceil(high / step)
    return step * np.arange(first, last + 1)
