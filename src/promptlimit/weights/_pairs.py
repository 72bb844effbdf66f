r"""Exact moments of two softmax heads on one prompt, as integrals over two variables u and v.

For head h = 1, 2 a token l has the score $s^h_l$ and the value $y^h_l=V_hz_l-T_h$, measured from
the limit $T_h$. Let $e_1=e^{s^1+u}$ and $e_2=e^{s^2+v}$; their index l is omitted. The Laplace
functional of a prompt and its derivatives at a = b = 0 are

    Psi(u, v; a, b) = E exp(-sum_l e_1 (1 - <a, y^1_l>) - sum_l e_2 (1 - <b, y^2_l>)),
    k_00 = log Psi,   k_10, k_01 = its gradients in a and b,   k_11 = its mixed second derivative.

Let $p^h_l$ be the weights of head h, $\varepsilon_h=\sum_lp^h_ly^h_l$ the deviation of its output
from $T_h$, and $o=E[\sum_le_1e_2\exp(-\sum_l(e_1+e_2))]/\Psi$ at a = b = 0. Then

    E eps_1 eps_2'      = iint (k_11 + k_10 k_01') e^{k_00} du dv,
    E sum_l p^1_l p^2_l = iint o e^{k_00} du dv.

If the values of both heads are replaced by 1, the first integral is one. The code calls this
integral the mass, and uses its distance from one as a measure of the error. For independent parts
of a prompt, the functions k and o add.

Values may be linear functions $M_h'f$ of q features f of a token, with a matrix $M_h$ per head,
[q, e] (`maps`). Sums over u and v are then computed for features. Brackets give shapes of arrays.

The integrals are computed with the trapezoidal rule of step $\delta$ on a square grid. Like a
checkerboard, the grid is divided into points of two colours, and each colour forms a rule. The
errors of these two rules and of the whole rule have about the same size, $e^{-\pi^2/\delta}$, so
half the difference of the two rules measures the error.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from promptlimit._arrays import Array
from promptlimit.weights._functional import total_of
from promptlimit.weights._score_law import EPSILON, LARGEST_EXPONENT

NEGLIGIBLE_SHARE = 36.0
r"""Minus the logarithm of the size below which $\Psi$ is dropped at large u and v."""

_ROUNDING = 32.0 * EPSILON


class Spacing(NamedTuple):
    """Steps and ranges of the quadrature rules.

    Attributes:
        laplace: the step in u and v.
        nodes: the step in the score of a Gaussian token.
        widest: the largest step in a standard normal coordinate of a Gaussian token.
        deviations: the range of nodes in this coordinate, in standard deviations on each side.
        left: the distance from -log L down to the start of the integrals over u and v.
        accuracy: a bound for the error of the moment, relative to the square root of the product of
            the mean squares of both heads. Measured errors do not include nodes beyond the range.
    """

    laplace: float
    nodes: float
    widest: float
    deviations: float
    left: float
    accuracy: float = 0.0


SPACINGS = {
    "fine": Spacing(0.3, 0.2, 0.6, 8.2, 30.0, 1e-11),
    "coarse": Spacing(0.6, 0.4, 0.8, 5.6, 14.0, 1e-5),
    "rough": Spacing(0.8, 0.6, 1.0, 5.0, 11.0, 1e-3),
}

Window = tuple[float, float]


class HeadPair(NamedTuple):
    r"""Two heads at one query: tilts $t_h$, [d] each, and value matrices $V_h$, [e, d] each."""

    tilts: tuple[Array, Array]
    values: tuple[Array, Array]


# ---------------------------------------------------------------- parts of a prompt


class Seconds(NamedTuple):
    r"""Sums over the grid, for r arrays of weights w.

    $\sum w\,k_{11}$ is $M_1'FM_2$ + `within` with F = `features[:, :-1, :-1]`.

    Attributes:
        features: $\sum w\,k_{11}$ with the q features and 1 in place of y, [r, q + 1, q + 1].
        within: the terms of $\sum w\,k_{11}$ that the features do not determine, [r, e, e].
        overlap: $\sum w\,o$, [r].
    """

    features: Array
    within: Array
    overlap: Array


class PairNodes(NamedTuple):
    r"""A part of a prompt on a grid of u and v.

    Attributes:
        log_psi: a function of n that returns $k_{00}$ at the n-th length, [u, v].
        first: a function of n and the head that returns $k_{10}$ (head 0) or $k_{01}$ (head 1) with
            the q features and 1 in place of y, [q + 1, u, v].
        second: a function of n and weights w, [r, u, v], that returns $\sum w\,k_{11}$ and
            $\sum w\,o$.
    """

    log_psi: Callable[[int], Array]
    first: Callable[[int, int], Array]
    second: Callable[[int, Array], Seconds]


class AbstractPairPart(abc.ABC):
    """A part of a prompt to which two heads are applied, for one or several lengths."""

    @abc.abstractmethod
    def windows(self, left: float) -> tuple[Window, Window]:
        r"""Return the ranges of u and of v in which neither $1-\Psi$ nor $\Psi$ is negligible.

        Args:
            left: the distance from -log L down to the start of the ranges.
        """

    @abc.abstractmethod
    def at(self, u: Array, v: Array) -> PairNodes:
        """Return the functions of the part on the grid of u and v."""


@dataclasses.dataclass(frozen=True)
class KnownPairs(AbstractPairPart):
    r"""Tokens that are in every prompt.

    For one such token, $k_{00}=-e_1-e_2$, $k_{10}=e_1y_1$, $k_{01}=e_2y_2$, $k_{11}=0$ and
    $o=e_1e_2$.

    Attributes:
        scores: the scores of each head minus $\Lambda(t_h)$ of the law of the other tokens, [2, f].
        values: $y_f$ of each head, [2, f, e]. Features of the other tokens must be their values.
    """

    scores: Array
    values: Array

    def windows(self, left: float) -> tuple[Window, Window]:
        tops = (float(row.max()) for row in self.scores)
        first, second = ((-left - top, math.log(NEGLIGIBLE_SHARE) + 0.5 - top) for top in tops)
        return first, second

    def at(self, u: Array, v: Array) -> PairNodes:
        rates = [
            np.exp(np.minimum(places[:, None] + scores, LARGEST_EXPONENT))
            for places, scores in zip((u, v), self.scores, strict=True)
        ]

        def log_psi(n: int) -> Array:  # noqa: ARG001  # independent of the length
            return -rates[0].sum(axis=1)[:, None] - rates[1].sum(axis=1)

        def first(n: int, head: int) -> Array:  # noqa: ARG001
            with_one = np.column_stack([self.values[head], np.ones(len(self.values[head]))])
            row = (rates[head] @ with_one).T
            row = row[:, :, None] if head == 0 else row[:, None, :]
            return np.broadcast_to(row, (len(row), u.size, v.size))

        def second(n: int, weights: Array) -> Seconds:  # noqa: ARG001
            outputs = self.values.shape[2]
            zeros = np.zeros((len(weights), outputs + 1, outputs + 1))
            overlap = np.einsum("ruv,uf,vf->r", weights, *rates, optimize=True)
            return Seconds(zeros, zeros[..., 1:, 1:], overlap)

        return PairNodes(log_psi, first, second)


@dataclasses.dataclass(frozen=True)
class PairTokens(AbstractPairPart):
    r"""L independent tokens from one law, for several L.

    With $K=e^{-e_1-e_2}$, $\varphi=E\,K$ and $B_h=E[e_hy_hK]$ for one token, the functions are

        k_00 = L log(phi),    k_10 = L B_1 / phi,    o = L E[e_1 e_2 K] / phi,
        k_11 = L (E[e_1 e_2 y_1 y_2' K] / phi - B_1 B_2' / phi^2).

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
        token = self.law.at(u, v, self.lengths.size)
        phi, lengths = np.exp(token.log_phi), self.lengths
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            means = [np.where(phi > 0.0, token.first(head) / phi, 0.0) for head in (0, 1)]

        def second(n: int, weights: Array) -> Seconds:
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                shares = np.where(weights > 0.0, lengths[n] * weights / phi, 0.0)
            total, within, overlap = token.second(shares)
            return Seconds(total - lengths[n] * _products(*means, weights), within, overlap)

        return PairNodes(
            lambda n: lengths[n] * token.log_phi, lambda n, head: lengths[n] * means[head], second
        )


# ---------------------------------------------------------------- the law of one token


class AbstractPairTransforms(abc.ABC):
    r"""Means over one token on a grid of u and v, with $K=e^{-e_1-e_2}$ and $\varphi=E\,K$."""

    log_phi: Array
    r"""$\log\varphi$, [u, v]."""

    @abc.abstractmethod
    def first(self, head: int) -> Array:
        r"""Return $E[e_hf_hK]$ for the q features $f_h$ and for 1, [q + 1, u, v]."""

    @abc.abstractmethod
    def second(self, weights: Array) -> tuple[Array, Array, Array]:
        r"""Return sums of $w\,E[e_1e_2fK]$ over the grid for weights w, [r, u, v].

        Returns:
            The sums for f = $f_1f_2'$, where $f_h$ contains the features of head h and 1,
            [r, q + 1, q + 1]; the terms of the sums for f = $y_1y_2'$ that the features do not
            determine, [r, e, e]; and the sums for f = 1, [r].
        """


@dataclasses.dataclass(frozen=True)
class AbstractPairLaw(abc.ABC):
    r"""The law of one token along two tilts, with scores shifted such that $E\,e^{s^h}=1$.

    Attributes:
        maps: the matrices $M_h$ that turn features into values, [2, q, e].
    """

    maps: Array

    @abc.abstractmethod
    def windows(self, left: float, shortest: float) -> tuple[Window, Window]:
        r"""Return the ranges of u and of v.

        They start at -`left` and end where $\varphi^L$ is negligible for L = `shortest`.
        """

    @abc.abstractmethod
    def at(self, u: Array, v: Array, count: int) -> AbstractPairTransforms:
        """Return the transforms on the grid of u and v; `count` is the number of lengths."""

    def rounding(self, lengths: Array) -> Array:
        """Return an estimate of the relative rounding error of moments at each length."""
        return np.full(lengths.size, _ROUNDING)


# ---------------------------------------------------------------- the integrals


@dataclasses.dataclass(frozen=True)
class PairIntegrals:
    r"""Moments of two heads on one prompt, for n lengths.

    Attributes:
        moment: $E\,\varepsilon_1\varepsilon_2'$, [n, e, e].
        features: the same moment with features in place of values, [n, q, q], without the terms
            that the features do not determine.
        overlap: $E\sum_lp^1_lp^2_l$, [n].
        error: the error of the trace and of the entries of `moment`, from the two rules, [n].
        overlap_error: the error of `overlap`, [n].
        mass_error: the distance of the mass from one, which measures a relative error, [n].
    """

    moment: Array
    features: Array
    overlap: Array
    error: Array
    overlap_error: Array
    mass_error: Array


def pair_integrals(
    parts: Sequence[AbstractPairPart], maps: Array, count: int, spacing: Spacing
) -> PairIntegrals:
    """Return the moments of two heads over prompts that consist of independent parts.

    Args:
        parts: the parts of the prompt. All parts must have the same features.
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
        rows = [_at_length(n, grids, rules) for n in range(count)]
    total, within, overlaps = (np.stack(column) for column in zip(*rows, strict=True))
    moments = maps[0].T @ total[..., :-1, :-1] @ maps[1] + within
    apart = 0.5 * (moments[:, 0] - moments[:, 1])
    error = np.maximum(
        np.abs(np.trace(apart, axis1=1, axis2=2)), np.linalg.norm(apart, axis=(1, 2))
    )
    mass_error = np.abs(total[..., -1, -1].mean(axis=1) - 1.0)
    overlap = overlaps.mean(axis=1)
    overlap_error = 0.5 * np.abs(overlaps[:, 0] - overlaps[:, 1])
    overlap_error += (mass_error + spacing.accuracy) * overlap
    features = total[..., :-1, :-1].mean(axis=1)
    return PairIntegrals(moments.mean(axis=1), features, overlap, error, overlap_error, mass_error)


def _at_length(n: int, grids: Sequence[PairNodes], rules: Array) -> Seconds:
    """Return the integrals for the whole prompt at the n-th length, by the two rules."""
    weights = rules * np.exp(total_of(grid.log_psi(n) for grid in grids))
    weights[weights < math.exp(-4.0 * NEGLIGIBLE_SHARE)] = 0.0
    features, within, overlap = (
        total_of(column)
        for column in zip(*(grid.second(n, weights) for grid in grids), strict=True)
    )
    left, right = (total_of(grid.first(n, head) for grid in grids) for head in (0, 1))
    return Seconds(features + _products(left, right, weights), within, overlap)


def _products(left: Array, right: Array, weights: Array) -> Array:
    r"""Return $\sum_{uv}w\,ab'$ for functions a and b, [q, u, v], and weights w, [r, u, v]."""
    left, right = (part.reshape(len(part), -1) for part in (left, right))
    return np.stack([(left * own.ravel()) @ right.T for own in weights])


def _places(windows: Sequence[Window], step: float) -> Array:
    """Return the nodes on one axis, from the lowest start of a window to the lowest end."""
    lows, highs = zip(*windows, strict=True)
    high = min(highs)
    first, last = math.floor(min(*lows, high) / step), math.ceil(high / step)
    return step * np.arange(first, last + 1)
