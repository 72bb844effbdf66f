"""A report on one gap: its curves of all available kinds, the predicted rate and a fitted rate."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import ArrayLike, increasing_lengths
from promptlimit.attention import AbstractAttention
from promptlimit.concentration._exact_gaps import gap_exponent
from promptlimit.concentration._fit_rate import fit_rate
from promptlimit.concentration._gaps import gradient_gap, output_gap
from promptlimit.errors import ArgumentError, KindUnavailableError
from promptlimit.measures import AbstractMeasure
from promptlimit.results import GapCurve, GapExponent, GapReport, RateFit

_LONGEST_SIMULATED = 10_000


def gap_report(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
    lengths: ArrayLike,
    *,
    wrt: str | None = None,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
) -> GapReport:
    """Return the gap in every available kind, the predicted rate, and a fitted rate.

    The gap is that of `output_gap`, or of `gradient_gap` if `wrt` is given.

    Args:
        attention: $T$.
        measure: the law of a token.
        queries: the law of the query, or an array [n, query_dim].
        lengths: $L$, increasing.
        wrt: the parameter whose gradient is compared; None for outputs.
        key: the random key; nothing is simulated when None.
        samples: the number of prompts to simulate; only lengths up to 10,000 are simulated.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[0.4]], value=[[1.0]])
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> report = gap_report(attention, normal, normal, [10, 1000, 1e6])
    >>> print(list(report.curves), report.exponent.value)
    ['exact', 'asymptotic', 'bound'] 1.0
    """
    sizes = increasing_lengths(lengths)
    asked = {"exact": sizes, "asymptotic": sizes, "bound": sizes}
    if key is not None and (short := sizes[sizes <= _LONGEST_SIMULATED]).size:
        asked["estimate"] = short
    curves: dict[str, GapCurve] = {}
    missing: dict[str, str] = {}
    for kind, some in asked.items():
        draws, count = (key, samples) if kind == "estimate" else (None, None)
        problem = (attention, measure, queries, some)
        try:
            if wrt is None:
                curves[kind] = output_gap(*problem, kind=kind, key=draws, samples=count)
            else:
                gap = gradient_gap(*problem, wrt=wrt, kind=kind, key=draws, samples=count)
                curves[kind] = gap
        except KindUnavailableError as refusal:
            missing[kind] = str(refusal)
    if not curves:
        raise ArgumentError(
            "key",
            "must be given for a problem that can only be simulated, got None. "
            "Pass key=jax.random.key(0).",
        )
    exponent = _exponent(attention, measure, queries) if wrt is None else None
    return GapReport(curves, missing, exponent, *_fit(curves))


def _exponent(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
) -> GapExponent | None:
    try:
        return gap_exponent(attention, measure, queries)
    except KindUnavailableError:
        return None


def _fit(curves: Mapping[str, GapCurve]) -> tuple[RateFit, float] | tuple[None, None]:
    """Return the power law fitted to the best curve, and the smallest of the fitted lengths.

    The best curve is the exact one, or else the simulated one. For an exact curve, the fit uses the
    longest final part that is a power law, or else the whole curve. A simulated curve is fitted as
    a whole, because with noise some final part would always pass the test.
    """
    best = curves.get("exact") or curves.get("estimate")
    if best is None:
        return None, None
    usable = np.isfinite(best.lengths) & (best.value > 0.0)
    lengths, values = best.lengths[usable], best.value[usable]
    if lengths.size < 2:
        return None, None
    cov = None if best.cov is None else best.cov[np.ix_(usable, usable)]
    whole = fit_rate(lengths, values, cov=cov)
    if cov is None:
        for start in range(lengths.size - 2):
            fit = fit_rate(lengths[start:], values[start:])
            if fit.is_power_law:
                return fit, float(lengths[start])
    return whole, float(lengths[0])
