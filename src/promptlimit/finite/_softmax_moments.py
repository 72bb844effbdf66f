r"""Exact moments of softmax attention over prompts, from the law of a token along the tilt.

The formulas are those of `_prompts`, put together for the outputs of attention.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError, NotAnalyticError
from promptlimit.finite._head_moments import MomentRows
from promptlimit.weights import EPSILON, NEGLIGIBLE, STEP, AbstractScoreLaw, Numbers, Prompts

TOLERANCE = 1e-9
"""Largest relative error, measured by the code itself, that is returned."""

_UNDERFLOW = 1e-280
_FINEST = 1e-8
"""Errors of outputs below this part of them need no relative accuracy of their own."""


def softmax_moments(
    law: AbstractScoreLaw, value: Array, lengths: Array, own_token: Array | None
) -> MomentRows:
    r"""Return the moments of $T_L=\sum_lp_lVz_l$, $p_l\propto e^{\langle t,z_l\rangle}$.

    Args:
        law: of a token, along the tilt.
        value: V, [e, d].
        lengths: L, [n]: from 1 on, or infinite.
        own_token: the query, where it is a token of its prompt.

    Raises:
        AccuracyError: the measured error exceeds `TOLERANCE`.
    """
    return _tilted_head(law, value, lengths, own_token).rows


@dataclasses.dataclass(frozen=True)
class _Drift:
    r"""$B=F_1[Vz-T]$ at every u, [u, e], and its rounding error, [u]."""

    value: Array
    rounding: Array


@dataclasses.dataclass(frozen=True)
class _TiltedHeadMoments:
    """The moments of a head, and of its integrals what another head beside it needs.

    Attributes:
        rows: the moments.
        alone: the lengths at which one token has all the weight, whichever it is, [n].
        finite: those that are integrated over, [n].
        own_value: the own token's value about T; zero without one.
        prompts: of the finite lengths; None where there is none.
        drift: over those prompts.
    """

    rows: MomentRows
    alone: NDArray[np.bool_]
    finite: NDArray[np.bool_]
    own_value: Array
    prompts: Prompts | None = None
    drift: _Drift | None = None


def _tilted_head(
    law: AbstractScoreLaw, value: Array, lengths: Array, own_token: Array | None
) -> _TiltedHeadMoments:
    limit, at_rest, cov = law.ends(value)
    rows = MomentRows.at_infinity(limit, lengths.size)
    alone = (lengths == 1.0) & (own_token is None)
    if alone.any():  # one token, of weight one
        away = at_rest - limit
        mse = np.trace(cov) + away @ away
        if not np.isfinite(mse):
            raise NotAnalyticError("the derivatives of its `log_laplace` are not finite at zero")
        rows.put(alone, away, cov, mse, 1.0, 8.0 * EPSILON * mse)
    own_score, own_value, lost = None, np.zeros_like(limit), np.zeros(lengths.size, dtype=bool)
    if own_token is not None:
        own_score, own_value = law.score_of(own_token), value @ own_token - limit
        lost = np.log(lengths) + law.log_mean - own_score < -NEGLIGIBLE
        # where the own token has all the weight
        rows.put(lost, own_value, np.zeros_like(cov), own_value @ own_value, 1.0, 0.0)
    finite = np.isfinite(lengths) & ~alone & ~lost
    if not finite.any():
        return _TiltedHeadMoments(rows, alone, finite, own_value)
    prompts = Prompts(law, lengths[finite], own_score)
    with np.errstate(over="ignore", under="ignore"):
        rules, drift = _by_quadrature(prompts, value, limit, own_value)
        error = _measured_error(prompts, rules)
    mse = np.trace(rules.second.mean(axis=0), axis1=1, axis2=2)
    _require_accurate(error, mse, limit, lengths[finite])
    means = (moment.mean(axis=0) for moment in (rules.bias, rules.cov, rules.participation))
    bias, cov, participation = means
    rows.put(finite, bias, cov, mse, participation, error)
    return _TiltedHeadMoments(rows, alone, finite, own_value, prompts, drift)


@dataclasses.dataclass(frozen=True)
class _Rules:
    """What the even and the odd nodes make of each moment, [2, n, ...].

    `rounding` is the rounding error of the trace of `second`, [n].
    """

    mass: Array
    participation: Array
    bias: Array
    second: Array
    cov: Array
    rounding: Array


def _by_quadrature(
    prompts: Prompts, value: Array, limit: Array, own_value: Array
) -> tuple[_Rules, _Drift]:
    """Return the moments by even and by odd nodes, and what they drift by."""
    squares, count, outputs = prompts.squares, prompts.length.size, limit.size
    places = squares.shares.shape[2]
    centred = np.empty((places, outputs), dtype=squares.shares.dtype)
    spread, square, blur, shake = np.empty((4, places))
    within = np.zeros((2, count, outputs, outputs))
    for part, slopes, curvatures, *errors in prompts.law.readings(value, limit, squares):
        centred[part] = slopes
        blur[part], shake[part] = errors
        within += np.real(np.tensordot(squares.shares[:, :, part], curvatures, axes=1))
        trace = np.trace(curvatures, axis1=1, axis2=2)
        spread[part] = np.abs(trace)
        square[part] = np.abs(trace + (slopes**2).sum(axis=1))
    drift = _Drift(*squares.lower(centred, blur))
    pair = [_by_rule(prompts, rule, centred, within[rule], drift, own_value) for rule in (0, 1)]
    distance, lost = np.linalg.norm(centred, axis=1), drift.rounding
    rounding = squares.rounding @ square
    sizes = np.abs(squares.shares).sum(axis=0)
    rounding += sizes @ (shake + EPSILON * (spread + distance**2))
    rounding += prompts.two @ (2.0 * lost * np.linalg.norm(drift.value, axis=1) + lost**2)
    mass, participation, bias, second, cov = map(np.stack, zip(*pair, strict=True))
    return _Rules(mass, participation, bias, second, cov, rounding), drift


def _by_rule(  # noqa: PLR0917 - the symbols of the formula
    prompts: Prompts, rule: int, centred: Numbers, within: Array, drift: _Drift, own_value: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Return mass, participation, bias, second moment and covariance by every other node.

    The covariance is centred inside the integrals: sums of squares lose nothing to the bias.
    """
    at = slice(rule, None, 2)
    one, two, shares = prompts.one[:, at], prompts.two[:, at], prompts.squares.shares[rule]
    b, mass, own = drift.value[at], prompts.scores.mass[at], prompts.own(prompts.scores.u)[at]
    log_left = prompts.length[:, None] * prompts.scores.log_phi[at] - own
    own_weights = STEP * own * np.exp(log_left)
    own_weight, own_square = own_weights.sum(axis=1), own_weights @ own
    token_mass, token_bias = one @ mass, one @ b
    bias = token_bias + own_weight[:, None] * own_value

    def about(n: int, centre: Array, own_part: Array) -> Array:
        apart, moved = centred - centre, b - mass[:, None] * centre
        cross = np.outer((one[n] * own) @ moved, own_part)
        return (
            within[n]
            + np.real((shares[n][:, None] * apart).T @ apart)
            + (two[n][:, None] * moved).T @ moved
            + (cross + cross.T)
            + own_square[n] * np.outer(own_part, own_part)
        )

    own_left = token_mass[:, None] * own_value - token_bias
    lengths = range(prompts.length.size)
    second = np.stack([about(n, np.zeros_like(own_value), own_value) for n in lengths])
    cov = np.stack([about(n, bias[n], own_left[n]) for n in lengths])
    participation = prompts.squares.integral()[rule] + own_square
    return token_mass + own_weight, participation, bias, second, cov


def _measured_error(prompts: Prompts, rules: _Rules) -> Array:
    """Return the measured error of the mean square.

    Half the difference of two interleaved rules bounds the error of their mean, the total weight
    must be one, and the rounding of all that is summed, derivatives of the transform included, is
    added up.
    """
    second = np.trace(rules.second.mean(axis=0), axis1=1, axis2=2)
    participation = rules.participation.mean(axis=0)

    def change(moment: Array) -> Array:
        return np.abs(moment[0] - moment[1]).reshape(second.size, -1).max(axis=1)

    weights = prompts.one * np.abs(prompts.squares.density)
    log_phi = (weights @ prompts.scores.rounding) / np.maximum(weights.sum(axis=1), _UNDERFLOW)
    return np.max(
        [
            np.abs(rules.mass.mean(axis=0) - 1.0) * second,
            change(rules.participation) / participation * second,
            change(rules.second),
            change(rules.bias) * np.sqrt(np.maximum(second, 0.0)),
            rules.rounding + (prompts.length - 1.0) * log_phi * second,
        ],
        axis=0,
    )


def _require_accurate(error: Array, mse: Array, limit: Array, lengths: Array) -> None:
    """Refuse mean squares that are not known well enough."""
    scale = np.maximum(mse, max((_FINEST * float(np.abs(limit).max())) ** 2, _UNDERFLOW))
    relative = np.where(np.isfinite(error), error / scale, np.inf)
    worst = int(np.argmax(relative))
    if not relative[worst] <= TOLERANCE:
        raise AccuracyError(
            f"moments must be exact to a relative {TOLERANCE:g}, got {relative[worst]:.1e} at "
            f"length {lengths[worst]:g}. Scale the attention, or define `gaussian_parts` of tokens "
            "from a list of points.",
            argument="attention",
        )


def moments_beside_mean(
    law: AbstractScoreLaw, value: Array, mean_value: Array, lengths: Array, own_token: Array | None
) -> MomentRows:
    r"""Return the moments of $T_L+\bar T_L$, $\bar T_L$ the plain mean of $\bar Vz_l$.

    A head of tilt zero reads that mean. With $w=\bar V(z-m)$, $D=F_0[w]$, and n tokens in all,

        n Cov(T_L, T'_L) = L int F_1[yw'] phi^{L-1} + L(L-1) int B D' phi^{L-2} + r L int a D' phi^{L-1}

    under $e^{-a}$ as before.

    Args:
        law: of a token, along the tilt of the first head.
        value: V, [e, d].
        mean_value: $\bar V$, [e, d].
        lengths: L, [n].
        own_token: the query, where it is a token of its prompt.
    """  # noqa: E501  # a formula stays on one line
    first = _tilted_head(law, value, lengths, own_token)
    both = np.vstack([value, mean_value])
    limit, at_rest, one_token = law.ends(both)
    outputs = value.shape[0]
    mean, spread = at_rest[outputs:], one_token[outputs:, outputs:]
    inside = float(own_token is not None)
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = lengths + inside
        share = np.where(np.isinf(lengths), 0.0, lengths / tokens**2)
        own_share = np.where(np.isinf(lengths), 0.0, inside / tokens)
    away = np.zeros(outputs) if own_token is None else mean_value @ own_token - mean
    bias = first.rows.bias + own_share[:, None] * away
    cross, error = np.zeros_like(first.rows.cov), first.rows.error.copy()
    cross[first.alone] = one_token[:outputs, outputs:]
    if first.prompts is not None and first.drift is not None:
        with np.errstate(over="ignore", under="ignore"):
            rules, rounding = _crossed(
                first.prompts, first.drift, both, limit, mean, first.own_value
            )
        counted = tokens[first.finite]
        rules, rounding = rules / counted[:, None, None], rounding / counted
        cross[first.finite] = rules.mean(axis=0)
        apart = np.abs(np.trace(rules[0] - rules[1], axis1=1, axis2=2))
        error[first.finite] += 2.0 * np.maximum(apart, rounding)
    cov = first.rows.cov + cross + cross.transpose(0, 2, 1) + share[:, None, None] * spread
    mse = np.trace(cov, axis1=1, axis2=2) + np.sum(bias**2, axis=1)
    limits = first.rows.limit + mean
    _require_accurate(error, mse, limits, lengths)
    return MomentRows(limits, bias, cov, mse, np.full(lengths.size, np.nan), error)


def _crossed(  # noqa: PLR0917 - the symbols of the formula
    prompts: Prompts, drift: _Drift, both: Array, limit: Array, mean: Array, own_value: Array
) -> tuple[Array, Array]:
    """Return n times the covariance of the two heads, [2, n, e, e], and its rounding error, [n].

    By even and by odd nodes.
    """
    outputs, count = own_value.size, prompts.length.size
    crossings, b = prompts.crossings, drift.value
    rounding, rules = np.zeros(count), np.zeros((2, count, outputs, outputs))
    places = crossings.shares.shape[2]
    rights, blurs = np.empty((places, outputs), crossings.shares.dtype), np.empty(places)
    for part, centred, curvatures, blur, shake in prompts.law.readings(both, limit, crossings):
        left, right = centred[:, :outputs], centred[:, outputs:] + (limit[outputs:] - mean)
        mixed = curvatures[:, :outputs, outputs:] + left[:, :, None] * right[:, None, :]
        rules += np.real(np.tensordot(crossings.shares[:, :, part], mixed, axes=1))
        rights[part], blurs[part] = right, blur
        sizes = np.abs(crossings.shares[:, :, part]).sum(axis=0)
        size = np.abs(np.trace(mixed, axis1=1, axis2=2))
        rounding += crossings.rounding[:, part] @ size
        rounding += sizes @ (blur * np.linalg.norm(limit[outputs:] - mean) + shake)
    d, d_lost = crossings.lower(rights, blurs)
    rounding += prompts.two @ (
        np.linalg.norm(b, axis=1) * d_lost + np.linalg.norm(d, axis=1) * drift.rounding
    )
    own = prompts.own(prompts.scores.u)
    for rule in (0, 1):
        at = slice(rule, None, 2)
        rules[rule] += np.einsum("nu,ui,uk->nik", prompts.two[:, at], b[at], d[at], optimize=True)
        pulled = (prompts.one[:, at] * own[at]) @ d[at]
        rules[rule] += own_value[:, None] * pulled[:, None, :]
    return rules, rounding
