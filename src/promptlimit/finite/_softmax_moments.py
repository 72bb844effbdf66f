r"""Exact moments of softmax attention over prompts, from the law of a token along the tilt.

The formulas are those of `_prompts`, put together for the outputs of attention.
"""

import dataclasses

import numpy as np

from promptlimit._arrays import Array
from promptlimit.finite._accuracy import AccuracyError
from promptlimit.finite._moment_rows import MomentRows
from promptlimit.finite._prompts import STEP, AbstractScoreLaw, Numbers, Prompts

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
    limit, at_rest, cov = law.ends(value)
    rows = MomentRows.at_infinity(limit, lengths.size)
    alone = (lengths == 1.0) & (own_token is None)
    if alone.any():  # one token, of weight one
        away = at_rest - limit
        rows.put(alone, away, cov, np.trace(cov) + away @ away, 1.0, 0.0)
    finite = np.isfinite(lengths) & ~alone
    if finite.any():
        own_score = None if own_token is None else float(own_token @ law.tilt)
        own_value = np.zeros(limit.size) if own_token is None else value @ own_token - limit
        prompts = Prompts(law, lengths[finite], own_score)
        found = _by_quadrature(prompts, value, limit, own_value)
        mse = np.trace(found.second.mean(axis=0), axis1=1, axis2=2)
        mean = (found.bias.mean(axis=0), found.cov.mean(axis=0))
        error = _measured_error(prompts, found, limit)
        rows.put(finite, *mean, mse, found.participation.mean(axis=0), error)
    return rows


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


def _by_quadrature(prompts: Prompts, value: Array, limit: Array, own_value: Array) -> _Rules:
    squares, count, outputs = prompts.squares, prompts.length.size, limit.size
    places = squares.shares.shape[2]
    centred = np.empty((places, outputs), dtype=squares.shares.dtype)
    spread = np.empty(places)
    within = np.zeros((2, count, outputs, outputs))
    for part, slopes, curvatures in prompts.law.readings(value, limit, squares):
        centred[part] = slopes
        within += np.real(np.tensordot(squares.shares[:, :, part], curvatures, axes=1))
        spread[part] = np.abs(np.trace(curvatures, axis1=1, axis2=2))
    blur = prompts.law.blur(limit)
    vector, lost = squares.lower(centred, blur)
    found = [_by_rule(prompts, rule, centred, within[rule], vector, own_value) for rule in (0, 1)]
    distance = np.linalg.norm(centred, axis=1)
    rounding = squares.rounding @ (spread + distance**2)
    rounding += blur * np.abs(squares.shares.sum(axis=0)) @ (2.0 * distance + blur)
    rounding += prompts.two @ (2.0 * lost * np.linalg.norm(vector, axis=1) + lost**2)
    joined = (np.stack(pair) for pair in zip(*found, strict=True))
    return _Rules(*joined, rounding=rounding)  # pyright: ignore[reportCallIssue]


def _by_rule(  # noqa: PLR0917 - the symbols of the formula
    prompts: Prompts, rule: int, centred: Numbers, within: Array, vector: Array, own_value: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Return mass, participation, bias, second moment and covariance by every other node.

    The covariance is centred inside the integrals: sums of squares lose nothing to the bias.
    """
    at = slice(rule, None, 2)
    one, two = prompts.one[:, at], prompts.two[:, at]
    b, mass, own = vector[at], prompts.scores.mass[at], prompts.own(prompts.scores.u)[at]
    log_left = prompts.length[:, None] * prompts.scores.log_phi[at] - own
    own_weights = STEP * own * np.exp(log_left)
    own_weight, own_square = own_weights.sum(axis=1), own_weights @ own
    token_mass, token_bias = one @ mass, one @ b
    bias = token_bias + own_weight[:, None] * own_value
    shares = prompts.squares.shares[rule]

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


def _measured_error(prompts: Prompts, found: _Rules, limit: Array) -> Array:
    """Return the measured error of the mean square, or refuse what is too inexact.

    Half the difference of two interleaved rules bounds the error of their mean, the total weight
    must be one, and what is summed must not cancel.
    """
    second = np.trace(found.second.mean(axis=0), axis1=1, axis2=2)
    participation = found.participation.mean(axis=0)

    def change(rules: Array) -> Array:
        return np.abs(rules[0] - rules[1]).reshape(second.size, -1).max(axis=1)

    weights = prompts.one * np.abs(prompts.squares.density)
    log_phi = (weights @ prompts.scores.rounding) / np.maximum(weights.sum(axis=1), _UNDERFLOW)
    error = np.max(
        [
            np.abs(found.mass.mean(axis=0) - 1.0) * second,
            change(found.participation) / participation * second,
            change(found.second),
            change(found.bias) * np.sqrt(second),
            found.rounding + (prompts.length - 1.0) * log_phi * second,
        ],
        axis=0,
    )
    scale = np.maximum(second, max((_FINEST * float(np.abs(limit).max())) ** 2, _UNDERFLOW))
    relative = np.where(np.isnan(error), np.inf, error / scale)
    worst = int(np.argmax(relative))
    if not relative[worst] <= TOLERANCE:
        raise AccuracyError(
            f"`error` must stay below {TOLERANCE:g}, got {relative[worst]:.1e} at length "
            f"{prompts.length[worst]:g}. Rescale the scores, or simulate: kind='estimate'."
        )
    return error


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
    first = softmax_moments(law, value, lengths, own_token)
    both = np.vstack([value, mean_value])
    limit, at_rest, one_token = law.ends(both)
    outputs = value.shape[0]
    mean, spread = at_rest[outputs:], one_token[outputs:, outputs:]
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = lengths + float(own_token is not None)
        share = np.where(np.isinf(lengths), 0.0, lengths / tokens**2)
        own = np.where(np.isinf(lengths), 0.0, 1.0 / tokens) * float(own_token is not None)
    away = np.zeros(outputs) if own_token is None else mean_value @ own_token - mean
    bias = first.bias + own[:, None] * away
    cross, error = np.zeros_like(first.cov), np.zeros(lengths.size)
    alone = (lengths == 1.0) & (own_token is None)
    cross[alone] = one_token[:outputs, outputs:]
    finite = np.isfinite(lengths) & ~alone
    if finite.any():
        own_score = None if own_token is None else float(own_token @ law.tilt)
        own_value = np.zeros(outputs) if own_token is None else value @ own_token - first.limit
        prompts = Prompts(law, lengths[finite], own_score)
        rules = _crossed(prompts, both, limit, mean, own_value)
        rules = rules / tokens[finite, None, None]
        cross[finite] = rules.mean(axis=0)
        error[finite] = np.abs(np.trace(rules[0] - rules[1], axis1=1, axis2=2))
    cov = first.cov + cross + cross.transpose(0, 2, 1) + share[:, None, None] * spread
    mse = np.trace(cov, axis1=1, axis2=2) + np.sum(bias**2, axis=1)
    unknown = np.full(lengths.size, np.nan)
    return MomentRows(first.limit + mean, bias, cov, mse, unknown, first.error + 2.0 * error)


def _crossed(prompts: Prompts, both: Array, limit: Array, mean: Array, own_value: Array) -> Array:
    """Return n times the covariance of the two heads, by even and by odd nodes, [2, n, e, e]."""
    outputs = own_value.size
    squares, crossings = prompts.squares, prompts.crossings
    firsts = [found for _, found, _ in prompts.law.readings(both, limit, squares)]
    b, _ = squares.lower(np.concatenate(firsts)[:, :outputs], 0.0)
    found, seconds = np.zeros((2, prompts.length.size, outputs, outputs)), []
    for part, centred, curvatures in prompts.law.readings(both, limit, crossings):
        left, right = centred[:, :outputs], centred[:, outputs:] + (limit[outputs:] - mean)
        mixed = curvatures[:, :outputs, outputs:] + left[:, :, None] * right[:, None, :]
        found += np.real(np.tensordot(crossings.shares[:, :, part], mixed, axes=1))
        seconds.append(right)
    d, _ = crossings.lower(np.concatenate(seconds), 0.0)
    own = prompts.own(prompts.scores.u)
    for rule in (0, 1):
        at = slice(rule, None, 2)
        found[rule] += np.einsum("nu,ui,uk->nik", prompts.two[:, at], b[at], d[at], optimize=True)
        pulled = (prompts.one[:, at] * own[at]) @ d[at]
        found[rule] += own_value[:, None] * pulled[:, None, :]
    return found
