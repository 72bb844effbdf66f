r"""Exact moments of the sum of several softmax heads on one prompt.

With $\varepsilon_h$ the output of head h minus its limit,
$E|\sum_h\varepsilon_h|^2=\sum_{h,k}E\langle\varepsilon_h,\varepsilon_k\rangle$. A term with h = k
is a single integral, and any other term is a double integral (`promptlimit.weights._pairs`).
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.finite._head_moments import MomentRows
from promptlimit.finite._problem import KnownPart, TiltedHead
from promptlimit.finite._softmax_moments import softmax_moments
from promptlimit.measures import AbstractMeasure
from promptlimit.weights import (
    AbstractPairPart,
    AbstractScoreLaw,
    HeadPair,
    KnownPairs,
    PairTokens,
    Spacing,
    pair_integrals,
    pair_law,
    total_of,
)


@dataclasses.dataclass(frozen=True)
class HeadsMoments:
    r"""Moments of a sum of softmax heads minus its limit, for n lengths.

    Attributes:
        rows: the moments of the sum; weights (`participation`, `fixed_weights`) are NaN.
        overlaps: $E\sum_lp^h_lp^k_l$ with $p^h_l$ the weight of token l in head h, [h, k, n].
        overlap_errors: the errors of `overlaps`, [h, k, n].
    """

    rows: MomentRows
    overlaps: Array
    overlap_errors: Array


LawAlong = Callable[[Array], AbstractScoreLaw]
"""A function that returns the law of a token along a tilt."""


def heads_moments(
    measure: AbstractMeasure,
    law_along: LawAlong,
    heads: Sequence[TiltedHead],
    lengths: Array,
    *,
    known: KnownPart,
    spacing: Spacing,
) -> HeadsMoments:
    """Return the moments of a sum of softmax heads with different tilts.

    Args:
        measure: the law of a token.
        law_along: a function that returns the law of a token along a tilt.
        heads: the heads at one query.
        lengths: L, [n]: at least 1, or infinite.
        known: the tokens and sinks that are in every prompt.
        spacing: the steps and ranges of the quadrature for pairs of heads.
    """
    laws = [law_along(head.tilt) for head in heads]
    single = [
        softmax_moments(law, head.value, lengths, known)
        for law, head in zip(laws, heads, strict=True)
    ]
    finite = np.isfinite(lengths)
    overlaps, overlap_errors = np.zeros((2, len(heads), len(heads), lengths.size))
    for h, rows in enumerate(single):
        overlaps[h, h] = rows.participation
        with np.errstate(divide="ignore", invalid="ignore"):
            overlap_errors[h, h] = np.where(rows.mse > 0.0, rows.error / rows.mse, 0.0)
        overlap_errors[h, h] *= rows.participation
    cov = total_of(rows.cov for rows in single)
    error = total_of(rows.error for rows in single)
    for h, k in itertools.combinations(range(len(heads)), 2):
        if not finite.any():
            break
        pair = HeadPair((heads[h].tilt, heads[k].tilt), (heads[h].value, heads[k].value))
        law = pair_law(measure, pair, spacing, by_values=known.size > 0)
        fixed = _known_pairs(known, (laws[h], laws[k]), pair, (single[h], single[k]))
        count = int(finite.sum())
        parts: list[AbstractPairPart] = [PairTokens(law, lengths[finite]), *fixed]
        found = pair_integrals(parts, law.maps, count, spacing)
        biases = single[h].bias[finite], single[k].bias[finite]
        crossed = found.moment - biases[0][:, :, None] * biases[1][:, None, :]
        cov[finite] += crossed + crossed.transpose(0, 2, 1)
        for place in ((h, k, finite), (k, h, finite)):
            overlaps[place], overlap_errors[place] = found.overlap, found.overlap_error
        scale = np.sqrt(single[h].mse[finite] * single[k].mse[finite])
        relative = found.mass_error + spacing.accuracy + law.rounding(lengths[finite])
        error[finite] += 2.0 * np.maximum(found.error, relative * scale)
    bias, limit = (total_of(getattr(rows, name) for rows in single) for name in ("bias", "limit"))
    mse = np.trace(cov, axis1=1, axis2=2) + np.sum(bias**2, axis=1)
    unknown, weights = np.full(lengths.size, np.nan), np.full((lengths.size, known.size), np.nan)
    rows = MomentRows(limit, bias, cov, mse, unknown, error, fixed_weights=weights)
    return HeadsMoments(rows, overlaps, overlap_errors)


def _known_pairs(
    known: KnownPart,
    laws: tuple[AbstractScoreLaw, AbstractScoreLaw],
    pair: HeadPair,
    single: tuple[MomentRows, MomentRows],
) -> list[KnownPairs]:
    """Return the known tokens and sinks as a list of at most one part of the prompt."""
    if not known.size:
        return []
    read = [
        known.along(law, value, rows.limit)
        for law, value, rows in zip(laws, pair.values, single, strict=True)
    ]
    scores = [one.scores - law.log_mean for one, law in zip(read, laws, strict=True)]
    return [KnownPairs(np.stack(scores), np.stack([one.values for one in read]))]
