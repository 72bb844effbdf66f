r"""Exact moments of the output of a softmax head over prompts, as integrals over one variable u.

A token l has the score $s_l$ and the value $y_l=Vz_l-T$, measured from the limit T of the head.
With $x_l=e^{s_l+u}$, the Laplace functional of a prompt and its derivatives at a = 0 are

    Psi(u; a) = E exp(-sum_l x_l (1 - <a, y_l>)),
    k_0 = log Psi,    k_1 = gradient of log Psi,    k_2 = Hessian of log Psi.

The moments of the output $T_L$ are integrals of these functions (docs/finite.md, section 4):

    E(T_L - T)             = int k_1 e^{k_0} du
    E(T_L - T)(T_L - T)'   = int (k_2 + k_1 k_1') e^{k_0} du.

If every $y_l$ is replaced by 1, the first integral is the mean of the sum of the softmax weights
$p_l$, which is one. If $y_l$ is replaced by $x_l$, the integral is $E\,S_2$ with $S_2=\sum_lp_l^2$.
For independent parts of a prompt, such as known tokens and tokens from a law, $k_0$, $k_1$ and
$k_2$ add.

The integrals are computed with the trapezoidal rule. The even and the odd nodes form two rules of
twice the step, called "the two rules" below. Half their difference estimates the error of each
rule. If this error is $\epsilon$ relative to the integral, the relative error of their mean is
about $\epsilon^2$.

Brackets give shapes of arrays: n lengths, u nodes, e coordinates of a value, f known tokens.
"""

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
    AbstractScoreLaw,
    Numbers,
    Scores,
    require_near,
)

_UNDERFLOW = 1e-280


@dataclasses.dataclass(frozen=True)
class AbstractTerms(abc.ABC):
    r"""$k_1$ and $k_2$ of one part of a prompt at the nodes.

    Attributes:
        mass: $k_1$ with 1 in place of y, [n, u].
        squares: $k_1$ with x in place of y, [n, u].
        first: $k_1$, [n, u, e].
        rounding: the rounding error of $E|T_L-T|^2$ that is due to this part, [n].
    """

    mass: Array
    squares: Array
    first: Array
    rounding: Array

    def about(self, centre: Array) -> Array:
        r"""Return $k_1$ for values measured from $T+$ `centre`, [n, u, e]; `centre` is [n, e]."""
        return self.first - self.mass[..., None] * centre[:, None]

    @abc.abstractmethod
    def second(self, rule: int, centre: Array) -> Array:
        r"""Return $\sum_uw\,k_2$ over the even or the odd nodes, [n, e, e].

        The weights w are the argument of `PartNodes.terms`.

        Args:
            rule: 0 for the even nodes, 1 for the odd ones.
            centre: c, [n, e]; values are measured from $T+c$ instead of T.
        """


@dataclasses.dataclass(frozen=True)
class PartNodes:
    r"""A part of a prompt at the nodes u.

    Attributes:
        log_psi: $k_0$, [n, u].
        rounding: the rounding error of $k_0$, [n, u].
        terms: a function of the weights $w=2he^{k_0}$, [n, u], that returns $k_1$ and $k_2$ of the
            part. Here h is the step, and $k_0$ is that of the whole prompt. The number of nodes of
            w is even. If w has fewer nodes than u, only the first nodes of u are used.
    """

    log_psi: Array
    rounding: Array
    terms: Callable[[Array], AbstractTerms]


class AbstractPart(abc.ABC):
    """One of the independent parts of a prompt, for one or several lengths."""

    @property
    def step(self) -> float:
        """The largest step between nodes that the part accepts."""
        return STEP

    @abc.abstractmethod
    def window(self) -> tuple[float, float]:
        r"""Return the range of u in which neither $1-e^{k_0}$ nor $e^{k_0}$ is negligible."""

    @abc.abstractmethod
    def at(self, u: Array) -> PartNodes:
        """Return the functions of the part at evenly spaced nodes u."""


# ---------------------------------------------------------------- the kinds of parts


@dataclasses.dataclass(frozen=True)
class KnownTokens(AbstractPart):
    r"""Tokens that are in every prompt, such as the query: $k_0=-\sum_fx_f$, $k_1=\sum_fx_fy_f$.

    Attributes:
        scores: $s_f$ minus the `offset` of the law of the other tokens, [f].
        values: $y_f$, [f, e].
    """

    scores: Array
    values: Array

    def window(self) -> tuple[float, float]:
        top = float(self.scores.max())
        return -NEGLIGIBLE - top, math.log(NEGLIGIBLE) + 0.5 - top

    def exponentials(self, u: Array) -> Array:
        """Return $x_f$, [u, f]."""
        return np.exp(np.minimum(u[:, None] + self.scores, LARGEST_EXPONENT))

    def at(self, u: Array) -> PartNodes:
        x = self.exponentials(u)
        log_psi = -x.sum(axis=1)[None]

        def terms(weights: Array) -> KnownTerms:
            here = x[: weights.shape[1]]
            sums = here.sum(axis=1)[None], (here**2).sum(axis=1)[None], (here @ self.values)[None]
            attention = 0.5 * weights @ here
            return KnownTerms(*sums, np.zeros(len(weights)), here, self.values, attention)

        return PartNodes(log_psi, np.zeros_like(log_psi), terms)


@dataclasses.dataclass(frozen=True)
class KnownTerms(AbstractTerms):
    r"""$k_1$ of known tokens. Their $k_2$ is zero.

    Attributes:
        x: $x_f$, [u, f].
        values: $y_f$, [f, e].
        attention: the mean weight of each token, $\int x_fe^{k_0}du$, [n, f].
    """

    x: Array
    values: Array
    attention: Array

    def about(self, centre: Array) -> Array:
        apart = self.values - centre[:, None]  # exactly zero if a value is equal to the centre
        return np.einsum("uf,nfe->nue", self.x, apart)

    def second(self, rule: int, centre: Array) -> Array:  # noqa: ARG002  # zero for both rules
        outputs = centre.shape[1]
        return np.zeros((len(centre), outputs, outputs))

    def dominant(self) -> Array:
        r"""Return $y_f$ of the known token whose mean weight is above 1/2, else 0, [n, e]."""
        return np.where(self.attention > 0.5, 1.0, 0.0) @ self.values


@dataclasses.dataclass(frozen=True)
class IndependentTokens(AbstractPart):
    r"""L independent tokens from one law, for several L.

    With $\varphi=E\,e^{-x}$, $F_k[f]=E[f\,x^ke^{-x}]$ for one token and $B=F_1[y]$,

        k_0 = L log(phi),    k_1 = L B / phi,    k_2 = L (F_2[yy'] / phi - BB' / phi^2).

    With a slope m, the score of the token at position j, counted from the end of the prompt, is
    lowered by mj. Then $k_0=\sum_{j<L}\log\varphi(u-mj)$. Similarly, $k_1$ and $k_2$ are sums over
    j of $B/\varphi$ and $F_2[yy']/\varphi-BB'/\varphi^2$ at u - mj.

    Attributes:
        law: the law of a token along the tilt t.
        lengths: L, finite, [n]; at least 2, or at least 1 if the prompt has known tokens.
        value: the value matrix V, [e, d].
        limit: $T=V\nabla\Lambda(t)$, [e].
        slope: m, at least 0.
    """

    law: AbstractScoreLaw
    lengths: Array
    value: Array
    limit: Array
    slope: float = 0.0

    @property
    def step(self) -> float:
        return self._positions.step

    @property
    def _positions(self) -> "Positions":
        return Positions(self.lengths, self.slope)

    def window(self) -> tuple[float, float]:
        longest, shortest = float(self.lengths.max()), float(self.lengths.min())
        return self.law.window(longest, 0.5 if self.slope else max(shortest - 1.0, 0.25))

    def at(self, u: Array) -> PartNodes:
        positions = self._positions
        scores = self.law.scores(positions.grid(u))
        log_psi, rounding = map(positions.sums, (scores.log_phi, scores.rounding))
        return PartNodes(log_psi, rounding, functools.partial(self._terms, scores))

    def _terms(self, all_scores: Scores, weights: Array) -> "TokenTerms":
        positions, (count, nodes) = self._positions, weights.shape
        scores = all_scores.first(positions.grid_size(nodes))
        products, phi = self.law.products(2, scores.u), np.exp(scores.log_phi)
        is_even = np.arange(nodes) % 2 == 0
        rules = np.stack([np.where(own, weights, 0.0) for own in (is_even, ~is_even)])
        rules = positions.grid_weights(rules)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            one = np.where(rules > 0.0, rules / phi, 0.0)
            two = np.where(rules > 0.0, rules / phi**2, 0.0)
        flat_shares, share_errors = products.shares(one.reshape(2 * count, -1))
        shares = flat_shares.reshape(2, count, -1)
        share_errors = share_errors.reshape(shares.shape).sum(axis=0)
        outputs, places = self.limit.size, shares.shape[2]
        centred, mean_errors = np.empty((places, outputs), shares.dtype), np.empty(places)
        within, rounding = np.zeros((2, count, outputs, outputs)), np.zeros(count)
        found = self.law.readings(self.value, self.limit, products)
        for part, means, covariances, errors, second_errors in found:
            centred[part], mean_errors[part] = means, errors
            within += np.real(np.tensordot(shares[:, :, part], covariances, axes=1))
            trace = np.trace(covariances, axis1=1, axis2=2)
            sizes = np.abs(trace) + (np.abs(means) ** 2).sum(axis=1)
            rounding += share_errors[:, part] @ np.abs(trace + (means**2).sum(axis=1))
            some_shares = np.abs(shares[:, :, part]).sum(axis=0)
            rounding += some_shares @ (second_errors + EPSILON * sizes)
        drift, drift_error = products.lower(centred, mean_errors)
        first, first_error = positions.sums(drift / phi[:, None]), positions.sums(drift_error / phi)
        sizes = 2.0 * np.linalg.norm(first, axis=2) + first_error
        return TokenTerms(
            mass=positions.sums(scores.mass / phi),
            squares=positions.sums(products.density / phi),
            first=first,
            rounding=rounding + np.sum(weights * sizes * first_error, axis=1),
            token_mass=scores.mass,
            drift=drift,
            drift_error=drift_error,
            one=one,
            two=two,
            shares=shares,
            masses=products.masses,
            centred=centred,
            within=within,
        )


@dataclasses.dataclass(frozen=True)
class TokenTerms(AbstractTerms):
    r"""$k_1$ and $k_2$ of independent tokens, on a grid of points v that contains the nodes u.

    Attributes:
        token_mass: $F_1[1]$, [v].
        drift: $B=F_1[y]$, [v, e].
        drift_error: the rounding error of B, [v].
        one: $\omega/\varphi$ for the even and the odd nodes, [2, n, v]. The weights $\omega$ are
            those of `Positions.grid_weights`; without a slope $\omega=wL$.
        two: $\omega/\varphi^2$, [2, n, v].
        shares: the factor of the mean of f at each place j (`AbstractProducts`) in the sum
            $\sum_v\omega F_2[f]/\varphi$, [2, n, j].
        masses: the mean of 1 at each place, [j].
        centred: the mean of y at each place, [j, e].
        within: $\sum_v\omega F_2[C]/\varphi$ with C the covariance of y at a place, [2, n, e, e].
    """

    token_mass: Array
    drift: Array
    drift_error: Array
    one: Array
    two: Array
    shares: Numbers
    masses: Array
    centred: Numbers
    within: Array

    def second(self, rule: int, centre: Array) -> Array:
        total = self.within[rule].copy()
        missing = np.real(self.shares[rule] @ (self.masses - 1.0))
        for n, c in enumerate(centre):
            places = np.vstack([self.centred - c, c])
            shares = np.append(self.shares[rule, n], missing[n])
            total[n] += np.real((shares[:, None] * places).T @ places)
            at = np.flatnonzero(self.two[rule, n])
            moved = self.drift[at] - self.token_mass[at, None] * c
            total[n] -= weighted_square(moved, self.two[rule, n, at])
        return total


@dataclasses.dataclass(frozen=True)
class Positions:
    r"""Sums $\sum_{j<L}f(u-mj)$ over the positions j of the tokens of a prompt.

    For m > 0 all points u - mj belong to one fine grid, and the sums are differences of cumulative
    sums on this grid. For m = 0 the sum is Lf(u), and the grid consists of the nodes u.

    Attributes:
        lengths: L, [n].
        slope: m, at least 0.
    """

    lengths: Array
    slope: float

    @property
    def _node_stride(self) -> int:
        """The number of grid steps between nodes."""
        return max(1, math.floor(STEP / self.slope)) if self.slope else 1

    @property
    def _stride(self) -> int:
        """The number of grid steps between positions."""
        return max(1, math.ceil(self.slope / STEP)) if self.slope else 0

    @property
    def _before(self) -> int:
        """The number of grid points before the first node."""
        return self._stride * (int(self.lengths.max()) - 1) if self.slope else 0

    @property
    def step(self) -> float:
        """The step between nodes."""
        return self.slope * self._node_stride / self._stride if self.slope else STEP

    def grid_size(self, nodes: int) -> int:
        """Return the number of grid points up to the last of `nodes` nodes."""
        return self._before + self._node_stride * (nodes - 1) + 1

    def grid(self, u: Array) -> Array:
        """Return the grid, which contains the nodes u and all u - mj, [v]."""
        if not self.slope:
            return u
        fine = self.slope / self._stride
        first = round(float(u[0]) / fine) - self._before
        return as_float64(fine * np.arange(first, first + self.grid_size(u.size)))

    def sums(self, function: Array) -> Array:
        r"""Return $\sum_{j<L}f(u-mj)$, [n, u, ...], of a function on the grid, [v, ...]."""
        ones = [1] * (function.ndim - 1)
        if not self.slope:
            return self.lengths.reshape(-1, 1, *ones) * function
        total = _strided_sums(function, self._stride)
        ends = np.arange(self._before, len(function), self._node_stride)
        rows = []
        for length in self.lengths:
            starts = ends - self._stride * int(length)
            earlier = np.where((starts >= 0).reshape(-1, *ones), total[np.maximum(starts, 0)], 0.0)
            rows.append(total[ends] - earlier)
        return np.stack(rows)

    def grid_weights(self, weights: Array) -> Array:
        r"""Return $\omega$ with $\sum_v\omega f(v)=\sum_uw\sum_{j<L}f(u-mj)$, [..., n, v].

        Args:
            weights: w, [..., n, u].
        """
        if not self.slope:
            return weights * self.lengths[:, None]
        size = self.grid_size(weights.shape[-1])
        placed = np.zeros((*weights.shape[:-1], size))
        placed[..., self._before :: self._node_stride] = weights
        rows = []
        for n, length in enumerate(self.lengths):
            backwards = np.moveaxis(placed[..., n, ::-1], -1, 0)
            total = np.moveaxis(_strided_sums(backwards, self._stride), 0, -1)[..., ::-1]
            shift = min(self._stride * int(length), size)
            later = np.concatenate([total[..., shift:], np.zeros_like(total[..., :shift])], axis=-1)
            rows.append(total - later)
        return np.stack(rows, axis=-2)


def _strided_sums(function: Array, stride: int) -> Array:
    """Return cumulative sums along the first axis over every `stride`-th entry."""
    size = -(-len(function) // stride) * stride
    padded = np.zeros((size, *function.shape[1:]))
    padded[: len(function)] = function
    rows = padded.reshape(size // stride, stride, *function.shape[1:])
    return np.cumsum(rows, axis=0).reshape(padded.shape)[: len(function)]


@dataclasses.dataclass(frozen=True)
class Cumulants:
    r"""$k_0$, $k_1$ and $k_2$ of a law of prompts, for n lengths.

    Attributes:
        log_psi: $k_0$, [n, u].
        first: $k_1$ with y replaced by the vector (y, 1, x), [n, u, e + 2].
        second: $k_2$ with y replaced by the vector (y, 1), [n, u, e + 1, e + 1].
        rounding: a bound for the rounding error of `log_psi` and for the relative rounding errors
            of `first` and `second`, [n].
    """

    log_psi: Array
    first: Array
    second: Array
    rounding: Array

    @staticmethod
    def joined(parts: "Sequence[Cumulants]") -> "Cumulants":
        """Concatenate cumulants on consecutive ranges of nodes."""
        names = ("log_psi", "first", "second")
        columns = (
            np.concatenate([getattr(part, name) for part in parts], axis=1) for name in names
        )
        return Cumulants(*columns, rounding=np.max([part.rounding for part in parts], axis=0))


@dataclasses.dataclass(frozen=True)
class DependentTokens(AbstractPart):
    r"""Dependent tokens, given by their cumulants.

    Attributes:
        cumulants: a function that returns the cumulants at nodes u.
        ends: the range of u that `window` returns.
    """

    cumulants: Callable[[Array], Cumulants]
    ends: tuple[float, float]

    def window(self) -> tuple[float, float]:
        return require_near(*self.ends)

    def at(self, u: Array) -> PartNodes:
        found = self.cumulants(u)

        def terms(weights: Array) -> DependentTerms:
            kept = weights.shape[1]
            first, second = found.first[:, :kept], found.second[:, :kept]
            outputs = first.shape[2] - 2
            rules = [
                np.einsum("nu,nuij->nij", weights[:, rule::2], second[:, rule::2])
                for rule in (0, 1)
            ]
            trace = np.trace(sum(rules)[:, :outputs, :outputs], axis1=1, axis2=2)
            return DependentTerms(
                mass=first[..., outputs],
                squares=first[..., outputs + 1],
                first=first[..., :outputs],
                rounding=(found.rounding + 8.0 * EPSILON) * np.abs(trace),
                sums=np.stack(rules),
            )

        return PartNodes(found.log_psi, found.rounding[:, None] + 0.0 * u, terms)


@dataclasses.dataclass(frozen=True)
class DependentTerms(AbstractTerms):
    r"""$k_1$ and $k_2$ of dependent tokens.

    Attributes:
        sums: $\sum_uw\,k_2$ over the even and over the odd nodes, with y replaced by the vector
            (y, 1), [2, n, e + 1, e + 1].
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
        terms: $k_1$ and $k_2$ of each part of the prompt.
        first: $k_1$ of the whole prompt, [n, u, e].
        bias: $E\,T_L-T$, [n, e].
        cov: the covariance of $T_L$, [n, e, e].
        mse: $E|T_L-T|^2$, [n].
        participation: $E\,S_2$, [n].
        error: the measured error of `mse`, [n].
        attention: the mean weights of the known tokens, [n, f].
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
    """Return the moments of the output over prompts that consist of independent parts.

    The covariance is computed from centred values, so a large bias causes no loss of digits.

    Raises:
        AccuracyError: the integrand underflows at all nodes.
    """
    with np.errstate(over="ignore", under="ignore"):
        step = min(part.step for part in parts)
        u = nodes_of([part.window() for part in parts], step)
        nodes = [part.at(u) for part in parts]
        log_psi = total_of(part.log_psi for part in nodes)
        kept = _significant_nodes(log_psi)
        weights = 2.0 * step * np.exp(log_psi[:, :kept])
        blur = total_of(part.rounding for part in nodes)[:, :kept]
        terms = [part.terms(weights) for part in nodes]
        mass, squares, first = (
            total_of(getattr(term, name) for term in terms) for name in ("mass", "squares", "first")
        )
        masses, participations, biases = (by_rules(weights, f) for f in (mass, squares, first))
        bias, participation = biases.mean(axis=0), participations.mean(axis=0)
        # Measure from the value of a known token with most of the weight, to which T_L is close.
        known = [term for term in terms if isinstance(term, KnownTerms)]
        origin = total_of([np.zeros_like(bias), *(term.dominant() for term in known)])
        attention = np.hstack([np.zeros((len(bias), 0)), *(term.attention for term in known)])
        first_about = total_of(term.about(origin) for term in terms)
        away = by_rules(weights, first_about).mean(axis=0)  # the mean of T_L - T - origin
        moved = first_about - mass[..., None] * away[:, None]
        rows = list(zip(moved, weights, strict=True))
        seconds = np.stack(
            [
                total_of(term.second(rule, origin + away) for term in terms)
                + np.stack([weighted_square(m[rule::2], w[rule::2]) for m, w in rows])
                for rule in (0, 1)
            ]
        )
        cov = seconds.mean(axis=0)
        mse = np.trace(cov, axis1=1, axis2=2) + np.sum(bias**2, axis=1)
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
    return PromptIntegrals(u[:kept], terms, first, *moments)


def nodes_of(windows: Sequence[tuple[float, float]], step: float = STEP) -> Array:
    r"""Return an even number of evenly spaced nodes u for parts with these windows.

    The nodes end at the lowest of the upper ends. Above it, $e^{k_0}$ is negligible for one part,
    and thus for the whole prompt.
    """
    lows, highs = zip(*windows, strict=True)
    high = min(highs)
    first, last = (math.floor(end / (2.0 * step)) for end in (min(*lows, high), high))
    return as_float64(step * np.arange(2 * first, 2 * last + 4))


def by_rules(weights: Array, integrand: Array) -> Array:
    """Return an integral over u by the even nodes and by the odd nodes, [2, n, ...].

    Args:
        weights: $2he^{k_0}$ with h the step, [n, u].
        integrand: the integrand divided by $e^{k_0}$, [n, u, ...].
    """
    rules = [(weights[:, rule::2], integrand[:, rule::2]) for rule in (0, 1)]
    return np.stack([np.einsum("nu,nu...->n...", w, f) for w, f in rules])


def _significant_nodes(log_psi: Array) -> int:
    """Return an even number n such that $e^{k_0}$ is negligible after the first n nodes."""
    some = np.flatnonzero(log_psi.max(axis=0) > -3.0 * NEGLIGIBLE)
    if not some.size:
        raise AccuracyError(
            "all terms of the integral underflow, because the scores are too large. Scale the "
            "attention down."
        )
    kept = int(some[-1]) + 2
    return min(kept + kept % 2, log_psi.shape[1])


def _step_error(step: float) -> float:
    r"""Return $2|\Gamma(2+2\pi i/h)|$, a bound for the relative error of $E|T_L-T|^2$ at step h.

    The integrand is the mean over prompts of $|T_L-T|^2e^{2v}e^{-e^v}$ with
    $v=u+\log\sum_le^{s_l}$.
    """
    return 2.0 * abs(gamma(2.0 + 2j * math.pi / step))


def weighted_square(rows: Array, weights: Array) -> Array:
    r"""Return $\sum_iw_iy_iy_i^\top$ for vectors $y_i$ and weights $w_i\ge0$.

    The result is symmetric, and NumPy computes only one triangle of a product $A^\top A$.
    """
    scaled = np.sqrt(weights)[:, None] * rows
    return scaled.T @ scaled


def rule_error(rules: Array, size: Array) -> Array:
    """Return an estimate of the absolute error of the mean of the two rules, [n].

    The relative error of the mean is about the square of the relative error of each rule.

    Args:
        rules: the integrals by the even and by the odd nodes, [2, n, ...].
        size: the numbers to which relative errors refer, [n].
    """
    apart = 0.5 * np.abs(rules[0] - rules[1]).reshape(rules.shape[1], -1).max(axis=1)
    return apart * np.minimum(1.0, apart / np.maximum(size, _UNDERFLOW))


def total_of(arrays: Iterable[Array]) -> Array:
    """Return the sum of the arrays."""
    return functools.reduce(np.add, arrays)
