r"""Exact moments of several softmax heads on one prompt: those of each head and of each pair.

With $\varepsilon_h$ the distance of head h from its limit, $E|\sum_h\varepsilon_h|^2=\sum_{h,k}
E\langle\varepsilon_h,\varepsilon_k\rangle$: single heads need one integral and pairs two
(`promptlimit.weights._pairs`).
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

_LENGTHS_AT_ONCE = 32


@dataclasses.dataclass(frozen=True)
class HeadsMoments:
    r"""Moments of the sum of softmax heads about its limit, for n lengths.

    Attributes:
        rows: moments of the sum; NaN for quantities that are defined for one head only.
        overlaps: $E\sum_lp^h_lp^k_l$ of heads h and k, [h, h, n].
        overlap_errors: the errors of `overlaps`, [h, h, n].
    """

    rows: MomentRows
    overlaps: Array
    overlap_errors: Array


LawAlong = Callable[[Array], AbstractScoreLaw]
"""From a tilt to the law of a token along it."""


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
        law_along: its laws along tilts.
        heads: at one query.
        lengths: L, [n]: from 1 on, or infinite.
        known: tokens and sinks of every prompt.
        spacing: steps and ranges of the quadrature for pairs of heads.
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
        for block in np.array_split(
            np.flatnonzero(finite), -(-int(finite.sum()) // _LENGTHS_AT_ONCE)
        ):
            parts: list[AbstractPairPart] = [PairTokens(law, lengths[block]), *fixed]
            found = pair_integrals(parts, law.maps, block.size, spacing)
            biases = single[h].bias[block], single[k].bias[block]
            crossed = found.moment - biases[0][:, :, None] * biases[1][:, None, :]
            cov[block] += crossed + crossed.transpose(0, 2, 1)
            for place in ((h, k, block), (k, h, block)):
                overlaps[place], overlap_errors[place] = found.overlap, found.overlap_error
            scale = np.sqrt(single[h].mse[block] * single[k].mse[block])
            numerical = (found.mass_error + law.rounding(lengths[block])) * scale
            error[block] += 2.0 * np.maximum(found.error, numerical)
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
    """Return scores and values of the known tokens and sinks for both heads, if there are any."""
    if not known.size:
        return []
    read = [
        known.along(law, value, rows.limit)
        for law, value, rows in zip(laws, pair.values, single, strict=True)
    ]
    scores = [one.scores - law.log_mean for one, law in zip(read, laws, strict=True)]
    return [KnownPairs(np.stack(scores), np.stack([one.values for one in read]))]
