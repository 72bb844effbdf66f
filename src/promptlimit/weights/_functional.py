r"""Exact moments of softmax attention: one integral over the Laplace functional of a prompt.

Tokens have scores $s_l$ and values $y_l=Vz_l-T$. With $x_l=e^{s_l+u}$ the functional and its
derivatives at $a=0$ are

    Psi(u; a) = E exp(-sum_l x_l (1 - <a, y_l>)),   k_0 = log Psi,   k_1 = its gradient,   k_2 = its Hessian.

The integral $Z^{-k}=\frac1{\Gamma(k)}\int e^{ku}e^{-e^uZ}du$ with $Z=\sum_le^{s_l}$ gives

    E(T_L - T)             = int k_1 e^{k_0} du
    E(T_L - T)(T_L - T)'   = int (k_2 + k_1 k_1') e^{k_0} du.

With 1 in place of y, $k_1e^{k_0}$ integrates to one, the mass of the weights; with x in place of y,
to $E\,S_2=E\sum_lp_l^2$. Independent parts of a prompt multiply $\Psi$, so that their $k_0$, $k_1$ and $k_2$ add:

| part | $k_0$ | $k_1$ | $k_2$ |
|---|---|---|---|
| L tokens from a law | $L\log\phi$ | $LB/\phi$, $B=F_1[y]$ | $L(F_2[yy']/\phi-BB'/\phi^2)$ |
| a known token $(s_f,y_f)$ | $-x_f$ | $x_fy_f$ | 0 |

Laws of other prompts state the three functions themselves (`Cumulants`).

The integral over u is a trapezoidal rule. Integrands are analytic for $|\mathrm{Im}\,u|<\pi/2$. If
the rules over even nodes and over odd nodes each have a relative error of about $\epsilon$, their
mean has one of about $\epsilon^2$. Half their difference estimates $\epsilon$.
"""  # noqa: E501  # a formula stays on one line

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.special import gamma

from promptlimit._arrays import Array, as_float64
from promptlimit.errors import AccuracyError
from promptlimit.weights._score_law import (
    EPSILON,
    LARGEST_EXPONENT,
    NEGLIGIBLE,
    STEP,
    AbstractProducts,
    AbstractScoreLaw,
    Numbers,
    Scores,
    require_near,
)

_UNDERFLOW = 1e-280


@dataclasses.dataclass(frozen=True)
class AbstractTerms(abc.ABC):
    r"""$k_1$ and $k_2$ of a part at the nodes.

    Attributes:
        mass: $k_1$ with 1 in place of y, [n, u].
        squares: $k_1$ with x in place of y, [n, u].
        first: $k_1$, [n, u, e].
        rounding: the rounding error that this part causes in the trace of second moments, [n].
    """

    mass: Array
    squares: Array
    first: Array
    rounding: Array

    def about(self, centre: Array) -> Array:
        r"""Return $k_1$ of values measured from $T+$ `centre`, [n, u, e], for centres [n, e]."""
        return self.first - self.mass[..., None] * centre[:, None]

    @abc.abstractmethod
    def second(self, rule: int, centre: Array) -> Array:
        r"""Return $\sum_uw\,k_2$ over the even (0) or the odd (1) nodes, [n, e, e].

        Values are measured from $T+$ `centre`, [n, e].
        """


class AbstractPart(abc.ABC):
    """A part of a prompt, for one or several lengths: independent of the other parts."""

    @property
    def step(self) -> float:
        """The largest distance of nodes that the part accepts."""
        return STEP

    @abc.abstractmethod
    def window(self) -> tuple[float, float]:
        r"""Return the u between which neither $1-e^{k_0}$ nor $e^{k_0}$ is negligible."""

    @abc.abstractmethod
    def at(self, u: Array) -> "AbstractNodes":
        """Return the part at evenly spaced nodes."""


@dataclasses.dataclass(frozen=True)
class AbstractNodes(abc.ABC):
    r"""A part of a prompt at the nodes u.

    Attributes:
        u: the nodes, [u].
        log_psi: $k_0$, [n, u].
        rounding: its rounding error, [n, u].
    """

    u: Array
    log_psi: Array
    rounding: Array

    @abc.abstractmethod
    def terms(self, weights: Array) -> AbstractTerms:
        r"""Return $k_1$, and $k_2$ summed over the first nodes.

        Args:
            weights: $2he^{k_0}$ of the whole prompt, h the step, at an even number of u, [n, u].
        """


# ---------------------------------------------------------------- the kinds of parts


@dataclasses.dataclass(frozen=True)
class KnownTokens(AbstractPart):
    """Tokens that are in every prompt, such as the query.

    Attributes:
        scores: $s_f$, measured from the offset of the law of the other tokens, [f].
        values: $y_f$, [f, e].
    """

    scores: Array
    values: Array

    def window(self) -> tuple[float, float]:
        top = float(self.scores.max())
        return -NEGLIGIBLE - top, math.log(NEGLIGIBLE) + 0.5 - top

    def at(self, u: Array) -> "KnownNodes":
        x = np.exp(np.minimum(u[:, None] + self.scores, LARGEST_EXPONENT))
        log_psi = -x.sum(axis=1)[None]
        return KnownNodes(u, log_psi, np.zeros_like(log_psi), self.values, x)


@dataclasses.dataclass(frozen=True)
class KnownNodes(AbstractNodes):
    r"""Known tokens at the nodes: their $y_f$, [f, e], and $x_f$, [u, f]."""

    values: Array
    x: Array

    def terms(self, weights: Array) -> "KnownTerms":
        x = self.x[: weights.shape[1]]
        rows = x.sum(axis=1)[None], (x**2).sum(axis=1)[None], (x @ self.values)[None]
        mean_weights = 0.5 * weights @ x
        return KnownTerms(*rows, np.zeros(len(weights)), x, self.values, mean_weights)


@dataclasses.dataclass(frozen=True)
class KnownTerms(AbstractTerms):
    r"""$k_1$ of known tokens; their $k_2$ is zero.

    Attributes:
        x: $x_f$, [u, f].
        values: $y_f$, [f, e].
        attention: the mean weight of each token, $\int x_fe^{k_0}du$, [n, f].
    """

    x: Array
    values: Array
    attention: Array

    def about(self, centre: Array) -> Array:
        apart = self.values - centre[:, None]  # exactly zero for a token at the centre
        return np.einsum("uf,nfe->nue", self.x, apart)

    def second(self, rule: int, centre: Array) -> Array:  # noqa: ARG002  # zero for both rules
        outputs = centre.shape[1]
        return np.zeros((len(centre), outputs, outputs))

    def dominant(self) -> Array:
        r"""Return $y_f$ of the token with more than half of the weight, or zero, [n, e]."""
        return np.where(self.attention > 0.5, 1.0, 0.0) @ self.values


@dataclasses.dataclass(frozen=True)
class IndependentTokens(AbstractPart):
    r"""L independent tokens from one law, for several L.

    Attributes:
        law: of a token, along the tilt.
        lengths: L, finite, [n]; at least 2, or 1 with known tokens.
        value: V, [e, d].
        limit: $T=V\nabla\Lambda(t)$, [e].
    """

    law: AbstractScoreLaw
    lengths: Array
    value: Array
    limit: Array

    def window(self) -> tuple[float, float]:
        longest, shortest = float(self.lengths.max()), float(self.lengths.min())
        return self.law.window(longest, max(shortest - 1.0, 0.25))

    def at(self, u: Array) -> "AbstractNodes":
        scores, lengths = self.law.scores(u), self.lengths[:, None]
        return TokenNodes(u, lengths * scores.log_phi, lengths * scores.rounding, self, scores)


@dataclasses.dataclass(frozen=True)
class TokenNodes(AbstractNodes):
    """Independent tokens at the nodes, with the transforms of their scores."""

    tokens: IndependentTokens
    scores: Scores

    def terms(self, weights: Array) -> "TokenTerms":
        scores, tokens = self.scores.first(weights.shape[1]), self.tokens
        products = tokens.law.products(2, scores.u)
        phi, lengths = np.exp(scores.log_phi), tokens.lengths[:, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            one = np.where(weights > 0.0, lengths * weights / phi, 0.0)
            two = np.where(weights > 0.0, lengths * weights / phi**2, 0.0)
        shares, blurred = products.shares(one)
        read = _Readings.of(tokens, products, shares)
        drift, lost = products.lower(read.centred, read.blur)
        rounding = read.rounding(shares, blurred)
        pairs = two * (lengths - 1.0)
        rounding += pairs @ (2.0 * lost * np.linalg.norm(drift, axis=1) + lost**2)
        return TokenTerms(
            mass=lengths * (scores.mass / phi),
            squares=lengths * (products.density / phi),
            first=lengths[..., None] * (drift / phi[:, None]),
            rounding=rounding,
            scores=scores,
            drift=drift,
            lost=lost,
            one=one,
            two=two,
            shares=shares,
            masses=products.masses,
            centred=read.centred,
            within=read.within,
        )


@dataclasses.dataclass(frozen=True)
class _Readings:
    """Means of values at the places of a law, and sums over them.

    Attributes:
        centred: the mean value at each place, [j, e].
        within: sums of the covariances at the places, [2, n, e, e].
        blur: the rounding error of the means, [j].
        shake: that of the trace of the second moments, [j].
        spread: the trace of the covariance, [j].
        square: the trace of the second moment, [j].
    """

    centred: Numbers
    within: Array
    blur: Array
    shake: Array
    spread: Array
    square: Array

    @staticmethod
    def of(tokens: IndependentTokens, products: AbstractProducts, shares: Numbers) -> "_Readings":
        """Read values at all places, with the shares of the places, [2, n, j]."""
        outputs, places = tokens.limit.size, shares.shape[2]
        centred = np.empty((places, outputs), dtype=shares.dtype)
        spread, square, blur, shake = np.empty((4, places))
        within = np.zeros((2, shares.shape[1], outputs, outputs))
        found = tokens.law.readings(tokens.value, tokens.limit, products)
        for part, slopes, curvatures, *errors in found:
            centred[part] = slopes
            blur[part], shake[part] = errors
            within += np.real(np.tensordot(shares[:, :, part], curvatures, axes=1))
            trace = np.trace(curvatures, axis1=1, axis2=2)
            spread[part] = np.abs(trace)
            square[part] = np.abs(trace + (slopes**2).sum(axis=1))
        return _Readings(centred, within, blur, shake, spread, square)

    def rounding(self, shares: Numbers, blurred: Array) -> Array:
        """Return the rounding error of the sums of second moments, [n]."""
        distance = np.linalg.norm(self.centred, axis=1)
        sizes = self.shake + EPSILON * (self.spread + distance**2)
        return blurred @ self.square + np.abs(shares).sum(axis=0) @ sizes


@dataclasses.dataclass(frozen=True)
class TokenTerms(AbstractTerms):
    r"""$k_1$ and $k_2$ of independent tokens.

    Attributes:
        scores: $\log\phi$ and $F_1[1]$.
        drift: $B=F_1[y]$, [u, e].
        lost: the rounding error of B, [u].
        one: $wL/\phi$, [n, u].
        two: $wL/\phi^2$, [n, u].
        shares: $\sum_uwLF_2/\phi$ over the places, [2, n, j].
        masses: the mean of 1 at each place, [j].
        centred: the mean value at each place, [j, e].
        within: $\sum_uwLF_2/\phi$ of the covariances at the places, [2, n, e, e].
    """

    scores: Scores
    drift: Array
    lost: Array
    one: Array
    two: Array
    shares: Numbers
    masses: Array
    centred: Numbers
    within: Array

    def second(self, rule: int, centre: Array) -> Array:
        total = self.within[rule].copy()
        missing = np.real(self.shares[rule] @ (self.masses - 1.0))
        at, weights = self.nodes_of_rule(rule)
        for n, c in enumerate(centre):
            apart = self.centred - c
            total[n] += missing[n] * np.outer(c, c)
            moved = self.drift[at] - self.scores.mass[at, None] * c
            total[n] += np.real((self.shares[rule, n][:, None] * apart).T @ apart)
            total[n] -= (weights[n][:, None] * moved).T @ moved
        return total

    def nodes_of_rule(self, rule: int) -> tuple[slice, Array]:
        r"""Return the nodes that a rule uses, and $wL/\phi^2$ there, [n, nodes]."""
        at = slice(rule, None, 2)
        return at, self.two[:, at]


@dataclasses.dataclass(frozen=True)
class SlopedTokens(IndependentTokens):
    r"""Independent tokens whose scores fall by a slope m per position, counted from the end.

    $k_0=\sum_{j<L}\log\phi(u-mj)$, and $k_1$ and $k_2$ likewise. Nodes u and shifts mj lie on one
    fine grid, so that the sums over positions of all lengths are differences of cumulative sums.

    Attributes:
        slope: m, positive.
    """

    slope: float

    @property
    def _fine(self) -> int:
        """The number of fine steps between nodes."""
        return max(1, math.floor(STEP / self.slope))

    @property
    def _stride(self) -> int:
        """The number of fine steps between positions."""
        return max(1, math.ceil(self.slope / STEP))

    @property
    def step(self) -> float:
        return self.slope * self._fine / self._stride

    def window(self) -> tuple[float, float]:
        return self.law.window(float(self.lengths.max()), 0.5)

    def at(self, u: Array) -> "AbstractNodes":
        before = self._stride * (int(self.lengths.max()) - 1)
        count = self._fine * (u.size - 1) + 1
        fine = self.slope / self._stride
        first = round(float(u[0]) / fine)
        v = as_float64(fine * np.arange(first - before, first + count))
        scores = self.law.scores(v)
        positions = Positions(self.lengths, self._fine, self._stride, before)
        log_psi, rounding = (positions.summed(f) for f in (scores.log_phi, scores.rounding))
        return SlopedNodes(u, log_psi, rounding, self, scores, positions)


@dataclasses.dataclass(frozen=True)
class Positions:
    """Sums over the positions of a prompt on a fine grid.

    Attributes:
        lengths: L, [n].
        fine: grid steps between nodes.
        stride: grid steps between positions.
        before: the place of the first node on the grid.
    """

    lengths: Array
    fine: int
    stride: int
    before: int

    def summed(self, function: Array) -> Array:
        r"""Return $\sum_{j<L}f(u-mj)$, [n, u, ...], of a function on the grid, [v, ...]."""
        total = _strided(function, self.stride)
        ends = np.arange(self.before, len(function), self.fine)
        rows = []
        for length in self.lengths:
            starts = ends - self.stride * int(length)
            earlier = np.where(starts >= 0, starts, 0)
            known = (starts >= 0).reshape(-1, *[1] * (function.ndim - 1))
            rows.append(total[ends] - np.where(known, total[earlier], 0.0))
        return np.stack(rows)

    def gathered(self, weights: Array) -> Array:
        """Return the sums over nodes u of w(u) f(u - mj) as weights of f on the grid, [n, v]."""
        size = self.before + self.fine * (weights.shape[1] - 1) + 1
        placed = np.zeros((len(weights), size))
        placed[:, self.before :: self.fine] = weights
        rows = []
        for row, length in zip(placed, self.lengths, strict=True):
            total = _strided(row[::-1], self.stride)[::-1]
            shift = min(self.stride * int(length), size)
            rows.append(total - np.concatenate([total[shift:], np.zeros(shift)]))
        return np.stack(rows)


def _strided(function: Array, stride: int) -> Array:
    """Return cumulative sums over every stride-th entry."""
    size = -(-len(function) // stride) * stride
    padded = np.zeros((size, *function.shape[1:]))
    padded[: len(function)] = function
    rows = padded.reshape(size // stride, stride, *function.shape[1:])
    return np.cumsum(rows, axis=0).reshape(padded.shape)[: len(function)]


@dataclasses.dataclass(frozen=True)
class SlopedNodes(AbstractNodes):
    """Tokens under a slope at the nodes, with the transforms of their scores on the grid."""

    tokens: SlopedTokens
    scores: Scores
    positions: Positions

    def terms(self, weights: Array) -> "SlopedTerms":
        kept = self.positions.before + self.positions.fine * (weights.shape[1] - 1) + 1
        scores, tokens = self.scores.first(kept), self.tokens
        products = tokens.law.products(2, scores.u)
        phi, count = np.exp(scores.log_phi), len(weights)
        even = np.arange(weights.shape[1]) % 2 == 0
        rules = np.concatenate([np.where(even, weights, 0.0), np.where(even, 0.0, weights)])
        rules = Positions(np.tile(tokens.lengths, 2), *self._grid).gathered(rules)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            one = np.where(rules > 0.0, rules / phi, 0.0)
            two = np.where(rules > 0.0, rules / phi**2, 0.0)
        shares, blurred = products.shares(one)
        shares = shares.sum(axis=0).reshape(2, count, -1)
        read = _Readings.of(tokens, products, shares)
        drift, lost = products.lower(read.centred, read.blur)
        first = self.positions.summed(drift / phi[:, None])
        blur = self.positions.summed(lost / phi)
        size = 2.0 * np.linalg.norm(first, axis=2) + blur
        rounding = read.rounding(shares, blurred.reshape(2, count, -1).sum(axis=0))
        return SlopedTerms(
            mass=self.positions.summed(scores.mass / phi),
            squares=self.positions.summed(products.density / phi),
            first=first,
            rounding=rounding + np.sum(weights * size * blur, axis=1),
            scores=scores,
            drift=drift,
            lost=lost,
            one=one,
            two=two,
            shares=shares,
            masses=products.masses,
            centred=read.centred,
            within=read.within,
        )

    @property
    def _grid(self) -> tuple[int, int, int]:
        return self.positions.fine, self.positions.stride, self.positions.before


@dataclasses.dataclass(frozen=True)
class SlopedTerms(TokenTerms):
    """Terms whose weights on the grid are separate for the two rules, [2 n, v]."""

    def nodes_of_rule(self, rule: int) -> tuple[slice, Array]:
        count = len(self.two) // 2
        return slice(None), self.two[rule * count : (rule + 1) * count]


@dataclasses.dataclass(frozen=True)
class Cumulants:
    r"""$k_0$, $k_1$ and $k_2$ of a law of prompts, for n lengths.

    Attributes:
        log_psi: $k_0$, [n, u].
        first: $k_1$ of the e values y, of 1 and of x, [n, u, e + 2].
        second: $k_2$ of the e values y and of 1, [n, u, e + 1, e + 1].
        rounding: the relative rounding error of `first` and `second`, [n].
    """

    log_psi: Array
    first: Array
    second: Array
    rounding: Array


@dataclasses.dataclass(frozen=True)
class DependentTokens(AbstractPart):
    r"""Dependent tokens, given by their cumulants.

    Attributes:
        cumulants: a function of the nodes.
        ends: the window.
    """

    cumulants: Callable[[Array], Cumulants]
    ends: tuple[float, float]

    def window(self) -> tuple[float, float]:
        return require_near(*self.ends)

    def at(self, u: Array) -> "DependentNodes":
        found = self.cumulants(u)
        return DependentNodes(u, found.log_psi, found.rounding[:, None] + 0.0 * u, found)


@dataclasses.dataclass(frozen=True)
class DependentNodes(AbstractNodes):
    """Dependent tokens at the nodes."""

    cumulants: Cumulants

    def terms(self, weights: Array) -> "DependentTerms":
        kept, found = weights.shape[1], self.cumulants
        first, second = found.first[:, :kept], found.second[:, :kept]
        outputs = first.shape[2] - 2
        rules = [
            np.einsum("nu,nuij->nij", weights[:, rule::2], second[:, rule::2]) for rule in (0, 1)
        ]
        trace = np.trace(sum(rules)[:, :outputs, :outputs], axis1=1, axis2=2)
        return DependentTerms(
            mass=first[..., outputs],
            squares=first[..., outputs + 1],
            first=first[..., :outputs],
            rounding=(found.rounding + 8.0 * EPSILON) * np.abs(trace),
            sums=np.stack(rules),
        )


@dataclasses.dataclass(frozen=True)
class DependentTerms(AbstractTerms):
    r"""$k_1$ and $k_2$ of dependent tokens.

    Attributes:
        sums: $\sum_uw\,k_2$ of the values and of 1, [2, n, e + 1, e + 1].
    """

    sums: Array

    def second(self, rule: int, centre: Array) -> Array:
        found = self.sums[rule]
        values, mixed, mass = found[:, :-1, :-1], found[:, :-1, -1], found[:, -1, -1]
        crossed = mixed[:, :, None] * centre[:, None, :]
        squared = mass[:, None, None] * centre[:, :, None] * centre[:, None, :]
        return values - crossed - crossed.transpose(0, 2, 1) + squared


# ---------------------------------------------------------------- the integral


@dataclasses.dataclass(frozen=True)
class PromptIntegrals:
    r"""Moments of the output over prompts, for n lengths.

    Attributes:
        u: the nodes.
        terms: of each part.
        first: $k_1$ of the whole prompt, [n, u, e].
        bias: $E\,T_L-T$, [n, e].
        cov: the covariance of $T_L$, [n, e, e].
        mse: $E|T_L-T|^2$, [n].
        participation: $E\,S_2$, [n].
        error: of `mse`, as measured, [n].
        attention: mean weights of the known tokens, [n, f].
    """

    u: Array
    terms: list[AbstractTerms]
    first: Array
    bias: Array
    cov: Array
    mse: Array
    participation: Array
    error: Array
    attention: Array


def prompt_integrals(parts: Sequence[AbstractPart]) -> PromptIntegrals:
    """Return the moments over prompts made of independent parts.

    Values are centred before they are squared, so the bias costs no digits of the covariance.

    Raises:
        AccuracyError: no node carries any weight.
    """
    with np.errstate(over="ignore", under="ignore"):
        step = min(part.step for part in parts)
        nodes = _nodes(parts, step)
        log_psi = total_of(part.log_psi for part in nodes)
        kept = _last_that_counts(log_psi)
        weights = 2.0 * step * np.exp(log_psi[:, :kept])
        blur = total_of(part.rounding for part in nodes)[:, :kept]
        terms = [part.terms(weights) for part in nodes]
        mass, squares, first = (
            total_of(getattr(term, name) for term in terms) for name in ("mass", "squares", "first")
        )

        def second(origin: Array, away: Array) -> Array:
            """Return the second moment of values measured from `origin` + `away`."""
            moved = total_of(term.about(origin) for term in terms) - mass[..., None] * away[:, None]
            rules = []
            for rule in (0, 1):
                at = slice(rule, None, 2)
                rows = zip(weights[:, at], moved[:, at], strict=True)
                pairs = np.stack([(w[:, None] * m).T @ m for w, m in rows])
                rules.append(pairs + total_of(term.second(rule, origin + away) for term in terms))
            return np.stack(rules)

        masses, participations, biases = (by_rules(weights, f) for f in (mass, squares, first))
        bias, participation = biases.mean(axis=0), participations.mean(axis=0)
        seconds = second(np.zeros_like(bias), np.zeros_like(bias))
        # Where a known token has most of the weight, the output hardly differs from its value.
        known = [term for term in terms if isinstance(term, KnownTerms)]
        origin = total_of([np.zeros_like(bias), *(term.dominant() for term in known)])
        attention = np.hstack([np.zeros((len(bias), 0)), *(term.attention for term in known)])
        away = by_rules(weights, total_of(term.about(origin) for term in terms)).mean(axis=0)
        cov = second(origin, away).mean(axis=0)
        mse = np.trace(seconds.mean(axis=0), axis1=1, axis2=2)
        share = weights * np.abs(squares)
        tilt = (share * blur).sum(axis=1) / np.maximum(share.sum(axis=1), _UNDERFLOW)
        scale = np.sqrt(np.maximum(mse, 0.0))
        error = np.max(
            [
                np.abs(masses.mean(axis=0) - 1.0) * mse,
                _step_error(step) * mse,
                rule_error(participations, participation) / participation * mse,
                rule_error(seconds, mse),
                rule_error(biases, scale) * scale,
                total_of(term.rounding for term in terms) + tilt * mse,
            ],
            axis=0,
        )
    moments = bias, cov, mse, participation, error, attention
    return PromptIntegrals(nodes[0].u[:kept], terms, first, *moments)


def _nodes(parts: Sequence[AbstractPart], step: float) -> list[AbstractNodes]:
    r"""Return the parts at nodes that cover all u where no part is negligible."""
    u = nodes_of([part.window() for part in parts], step)
    return [part.at(u) for part in parts]


def nodes_of(windows: Sequence[tuple[float, float]], step: float = STEP) -> Array:
    """Return an even number of nodes for a prompt whose parts have these windows.

    They cover u from the smallest lower end of the windows to the smallest upper end.
    """
    lows, highs = zip(*windows, strict=True)
    high = min(highs)
    first, last = (math.floor(end / (2.0 * step)) for end in (min(*lows, high), high))
    return as_float64(step * np.arange(2 * first, 2 * last + 4))


def by_rules(weights: Array, integrand: Array) -> Array:
    """Return the integral by even and by odd nodes, [2, n, ...].

    Args:
        weights: $2he^{k_0}$, h the step, [n, u].
        integrand: [n, u, ...].
    """
    rules = [(weights[:, rule::2], integrand[:, rule::2]) for rule in (0, 1)]
    return np.stack([np.einsum("nu,nu...->n...", w, f) for w, f in rules])


def _last_that_counts(log_psi: Array) -> int:
    """Return the number of nodes, an even one, up to the last that carries any weight."""
    some = np.flatnonzero(log_psi.max(axis=0) > -3.0 * NEGLIGIBLE)
    if not some.size:
        raise AccuracyError(
            "the law of the scores leaves nothing to integrate. Scale the attention down."
        )
    kept = int(some[-1]) + 2
    return min(kept + kept % 2, log_psi.shape[1])


def _step_error(step: float) -> float:
    r"""Return $2|\Gamma(2+2\pi i/h)|$, which bounds the relative error of second moments.

    The integrand is the mean over prompts of $X\,e^{2v}e^{-e^v}$, $v=u+\log Z$ and $X\ge0$.
    """
    return 2.0 * abs(gamma(2.0 + 2j * math.pi / step))


def rule_error(rules: Array, size: Array) -> Array:
    """Return the error of the mean of integrals by even and by odd nodes, [2, n, ...], as [n].

    The relative error of the mean is the square of that of either. Errors are relative to `size`,
    [n].
    """
    apart = 0.5 * np.abs(rules[0] - rules[1]).reshape(rules.shape[1], -1).max(axis=1)
    return apart * np.minimum(1.0, apart / np.maximum(size, _UNDERFLOW))


def total_of(arrays: Iterable[Array]) -> Array:
    """Return the sum of the parts."""
    return functools.reduce(np.add, arrays)
