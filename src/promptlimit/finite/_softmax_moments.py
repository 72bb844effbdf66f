r"""Exact moments of softmax attention over prompts, from the integrals of `weights._functional`.

A head at one query has the tilt t and the value matrix V. Tokens $z_l$ have scores $s_l$ and
softmax weights $p_l$. The output is $T_L=\sum_lp_lVz_l$, and T is its limit.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError, NotAnalyticError
from promptlimit.finite._head_moments import MomentRows
from promptlimit.finite._problem import KnownPart
from promptlimit.weights import (
    EPSILON,
    NEGLIGIBLE,
    AbstractPart,
    AbstractScoreLaw,
    IndependentTokens,
    PromptIntegrals,
    TokenTerms,
    prompt_integrals,
    rule_error,
)

RandomPart: TypeAlias = Callable[[Array, Array], AbstractPart]
"""A function of T, [e], and lengths, [n], that returns the random tokens as a part of prompts."""

TOLERANCE = 1e-9
"""The largest accepted relative error."""

_UNDERFLOW = 1e-280
_ROUNDING = 8.0 * EPSILON
_FINEST = 1e-8
"""Errors are relative to the larger of `mse` and the square of this number times max |T_i|."""


def softmax_moments(
    law: AbstractScoreLaw,
    value: Array,
    lengths: Array,
    known: KnownPart | None = None,
    *,
    slope: float = 0.0,
    dependent: RandomPart | None = None,
) -> MomentRows:
    r"""Return the moments of $T_L=\sum_lp_lVz_l$ with $p_l\propto e^{s_l}$.

    Args:
        law: the law of a token of an infinite prompt, along the tilt.
        value: V, [e, d].
        lengths: L, [n]: at least 1, or infinite.
        known: the tokens and sinks that are in every prompt.
        slope: the decrease of the scores of independent tokens per position.
        dependent: the random tokens, if they are not independent; otherwise None.

    Raises:
        AccuracyError: the relative error exceeds `TOLERANCE`.
    """
    return _tilted_head(law, value, lengths, known, slope=slope, dependent=dependent).rows


@dataclasses.dataclass(frozen=True)
class _TiltedHeadMoments:
    """The moments of a head, with integrals that `softmax_and_mean_moments` reuses.

    Attributes:
        rows: the moments.
        alone: whether the prompt consists of one random token, [n].
        finite: whether a length is included in `integrals`, [n].
        integrals: the moments as integrals; None if no length is included.
    """

    rows: MomentRows
    alone: NDArray[np.bool_]
    finite: NDArray[np.bool_]
    integrals: PromptIntegrals | None = None


def _tilted_head(
    law: AbstractScoreLaw,
    value: Array,
    lengths: Array,
    known: KnownPart | None,
    *,
    slope: float = 0.0,
    dependent: RandomPart | None = None,
) -> _TiltedHeadMoments:
    limit, at_rest, cov = law.ends(value)
    rows = MomentRows.at_infinity(limit, lengths.size, 0 if known is None else known.size)
    fixed = None if known is None or not known.size else known.along(law, value, limit)
    alone = (lengths == 1.0) & (fixed is None) & (dependent is None)
    if alone.any():  # the one token has weight one
        away = at_rest - limit
        mse = np.trace(cov) + away @ away
        if not np.isfinite(mse):
            raise NotAnalyticError("the derivatives of its `log_laplace` are not finite at zero")
        rows.put(alone, away, cov, mse, 1.0, 8.0 * EPSILON * mse)
    dominated = np.zeros(lengths.size, dtype=bool)
    if fixed is not None and fixed.scores.size == 1:  # one known token may have all the weight
        only = fixed.values[0]
        dominated = np.log(lengths) + law.log_mean - fixed.scores[0] < -NEGLIGIBLE
        rows.put(dominated, only, np.zeros_like(cov), only @ only, 1.0, 0.0)
        rows.fixed_weights[dominated] = 1.0
    finite = np.isfinite(lengths) & ~alone & ~dominated
    if not finite.any():
        return _TiltedHeadMoments(rows, alone, finite)
    if dependent is None:
        tokens = IndependentTokens(law, lengths[finite], value, limit, slope)
    else:
        tokens = dependent(limit, lengths[finite])
    found = prompt_integrals([tokens] if fixed is None else [tokens, fixed])
    if dependent is not None:
        found = _without_rounding(found, float(np.trace(cov) + np.sum((at_rest - limit) ** 2)))
    differs = found.mse != 0.0
    checked = (row[differs] for row in (found.error, found.mse, lengths[finite]))
    require_accurate(*checked, limit)
    rows.put(finite, found.bias, found.cov, found.mse, found.participation, found.error)
    if fixed is not None:
        rows.fixed_weights[finite] = found.attention
    return _TiltedHeadMoments(rows, alone, finite, found)


def _without_rounding(found: PromptIntegrals, size: float) -> PromptIntegrals:
    r"""Return the moments of dependent tokens, with zeros in place of rounding errors.

    An output equals its limit if the prompt consists of whole periods of a deterministic cycle, or
    of all tokens drawn without replacement. The integrals are then sums of terms that cancel, each
    about as large as $E\,S_2$ times `size`.

    Args:
        found: the moments.
        size: the mean squared distance of the value of one token from the limit.
    """
    rounding = _ROUNDING * found.participation * size
    doubt = np.maximum(found.error, rounding)
    is_zero = (np.abs(found.mse) <= 4.0 * doubt) & (doubt <= 64.0 * rounding)
    error = np.where(is_zero, doubt, found.error)
    mse = np.where(is_zero, 0.0, found.mse)
    bias = np.where(is_zero[:, None], 0.0, found.bias)
    cov = np.where(is_zero[:, None, None], 0.0, found.cov)
    return dataclasses.replace(found, mse=mse, bias=bias, cov=cov, error=error)


def require_accurate(error: Array, mse: Array, lengths: Array, limit: Array) -> None:
    """Raise AccuracyError if the relative error of `mse` exceeds `TOLERANCE`."""
    if not mse.size:
        return
    size = np.abs(mse)
    scale = np.maximum(size, max((_FINEST * float(np.abs(limit).max())) ** 2, _UNDERFLOW))
    # The true mean square is not negative, so the error of a negative value is at least its size.
    relative = np.where(np.isfinite(error), np.maximum(error, -mse) / scale, np.inf)
    worst = int(np.argmax(relative))
    if not relative[worst] <= TOLERANCE and size[worst] < EPSILON * float(limit @ limit):
        raise AccuracyError(
            "outputs must differ from the limit by more than rounding errors, got a mean squared "
            f"distance of at most {size[worst] + error[worst]:.1e} at length {lengths[worst]:g}. "
            "Choose shorter prompts.",
            argument="lengths",
        )
    if not relative[worst] <= TOLERANCE:
        raise AccuracyError(
            f"moments must be exact to a relative {TOLERANCE:g}, got {relative[worst]:.1e} at "
            f"length {lengths[worst]:g}. Scale the attention, or define `gaussian_parts` of tokens "
            "from a list of points. The derivatives of a user-defined `log_laplace` may lose "
            "digits at this tilt: call `check_law`.",
            argument="attention",
        )


def softmax_and_mean_moments(
    law: AbstractScoreLaw, value: Array, mean_value: Array, lengths: Array, known: KnownPart
) -> MomentRows:
    r"""Return the moments of $T_L+\bar T_L$, with $\bar T_L$ the mean of $\bar Vz_l$ over all tokens.

    $\bar T_L$ is the output of a head of tilt zero with the value matrix $\bar V$. Let n be the
    number of all tokens, m the mean of a token, $w=\bar V(z-m)$ and $D=F_0[w]$. The functions $k_0$
    and $k_1$ of the prompt, and $\phi$, $F_k$ and $B=F_1[y]$ of one token, are defined in
    `weights._functional`. Then

        n Cov(T_L, bar T_L) = int L (F_1[yw'] / phi - B D' / phi^2) e^{k_0} + int k_1 (L D / phi)' e^{k_0}.

    `heads_moments` takes 2.5 to 24 times as long (benchmarks/special_paths.py). It is less accurate
    for long prompts of tokens that are neither Gaussian nor listed.

    Args:
        law: the law of a token along the tilt of the first head.
        value: V, [e, d].
        mean_value: $\bar V$, [e, d].
        lengths: L, [n].
        known: the tokens that are in every prompt.
    """  # noqa: E501  # a formula stays on one line
    first = _tilted_head(law, value, lengths, known)
    both = np.vstack([value, mean_value])
    limit, at_rest, one_token = law.ends(both)
    outputs = value.shape[0]
    mean, spread = at_rest[outputs:], one_token[outputs:, outputs:]
    with np.errstate(divide="ignore", invalid="ignore"):
        tokens = lengths + known.size
        share = np.where(np.isinf(lengths), 0.0, lengths / tokens**2)
    away = (known.tokens @ mean_value.T - mean).sum(axis=0)
    bias = first.rows.bias + away / tokens[:, None]
    cross, error = np.zeros_like(first.rows.cov), first.rows.error.copy()
    cross[first.alone] = one_token[:outputs, outputs:]
    if first.integrals is not None:
        with np.errstate(over="ignore", under="ignore"):
            rules, rounding = _crossed(
                law, first.integrals, lengths[first.finite], both, limit, mean
            )
        counted = tokens[first.finite]
        rules, rounding = rules / counted[:, None, None], rounding / counted
        cross[first.finite] = rules.mean(axis=0)
        apart = rule_error(np.trace(rules, axis1=2, axis2=3), first.rows.mse[first.finite])
        error[first.finite] += 2.0 * np.maximum(apart, rounding)
    cov = first.rows.cov + cross + cross.transpose(0, 2, 1) + share[:, None, None] * spread
    mse = np.trace(cov, axis1=1, axis2=2) + np.sum(bias**2, axis=1)
    limits = first.rows.limit + mean
    require_accurate(error, mse, lengths, limits)
    unknown = np.full(lengths.size, np.nan)
    weights = np.full((lengths.size, known.size), np.nan)
    return MomentRows(limits, bias, cov, mse, unknown, error, fixed_weights=weights)


def _crossed(  # noqa: PLR0917 - the symbols of the formula
    law: AbstractScoreLaw,
    integrals: PromptIntegrals,
    lengths: Array,
    both: Array,
    limit: Array,
    mean: Array,
) -> tuple[Array, Array]:
    """Return the covariance of both heads times the number of tokens, and its rounding error.

    The first array, [2, n, e, e], contains the integrals over the even and over the odd nodes. The
    second has one entry per length, [n].
    """
    tokens = next(term for term in integrals.terms if isinstance(term, TokenTerms))
    b, outputs, shift = tokens.drift, mean.size, limit[mean.size :] - mean
    crossings = law.products(1, integrals.u)
    found = crossings.shares(tokens.one.reshape(2 * lengths.size, -1))
    shares, share_errors = (rows.reshape(2, lengths.size, -1) for rows in found)
    share_errors = share_errors.sum(axis=0)
    rounding, rules = np.zeros(lengths.size), np.zeros((2, lengths.size, outputs, outputs))
    places = shares.shape[2]
    rights, mean_errors = np.empty((places, outputs), shares.dtype), np.empty(places)
    for part, centred, curvatures, errors, second_errors in law.readings(both, limit, crossings):
        left, right = centred[:, :outputs], centred[:, outputs:] + shift
        mixed = curvatures[:, :outputs, outputs:] + left[:, :, None] * right[:, None, :]
        rules += np.real(np.tensordot(shares[:, :, part], mixed, axes=1))
        # If a place represents several tokens, `centred` contains sums over these tokens.
        rights[part] = centred[:, outputs:] + crossings.masses[part, None] * shift
        mean_errors[part] = errors
        sizes = np.abs(shares[:, :, part]).sum(axis=0)
        size = np.abs(np.trace(mixed, axis1=1, axis2=2))
        rounding += share_errors[:, part] @ size
        rounding += sizes @ (errors * np.linalg.norm(shift) + second_errors)
    d, d_error = crossings.lower(rights, mean_errors)
    rounding += (tokens.two.sum(axis=0) * (lengths[:, None] - 1.0)) @ (
        np.linalg.norm(b, axis=1) * d_error + np.linalg.norm(d, axis=1) * tokens.drift_error
    )
    for rule, n in np.ndindex(2, lengths.size):
        rules[rule, n] += (tokens.one[rule, n, :, None] * integrals.first[n]).T @ d
        rules[rule, n] -= (tokens.two[rule, n, :, None] * b).T @ d
    return rules, rounding
