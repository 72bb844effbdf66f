"""Claim 5: both parameter gradients converge polynomially."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.concentration import gradient_gap
from promptlimit.finite import gradient_moments
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import within_errors
from promptlimit.studies.large_prompt._ensembles import generic_problem, standard_problem
from promptlimit.studies.large_prompt.claims.output_gap import (
    BOUNDED,
    FEW_BOUNDED,
    FEW_PROMPTS,
    PROMPTS,
    Problems,
    Simulated,
    gap_over_bound,
    local_slopes,
)

SHARPNESS = 0.8
"""Of the head: a thousand tokens are asymptotic, and simulated squares have light tails."""

_LENGTHS = np.logspace(2, 12, 41).round()
_FEW_LENGTHS = _LENGTHS[::4]
_GAP = {"value": "gap of the gradient in $V$", "key_query": "gap of the gradient in $U$"}


def _checks(wrt: str, seed: int, prompts: Simulated, lengths: np.ndarray) -> list[Check]:
    problem = generic_problem(SHARPNESS)
    slopes = local_slopes(gradient_moments(*problem, lengths, wrt=wrt, kind="exact").value, lengths)
    exact = gradient_moments(*problem, prompts.lengths, wrt=wrt, kind="exact")
    drawn = gradient_moments(
        *problem,
        prompts.lengths,
        wrt=wrt,
        kind="estimate",
        key=jax.random.key(seed),
        samples=prompts.samples,
    )
    leading = gradient_moments(*problem, 1e18, wrt=wrt, kind="asymptotic").value
    last = gradient_moments(*problem, 1e18, wrt=wrt, kind="exact").value
    return [
        Check(
            f"{_GAP[wrt]}, sharpness {SHARPNESS:g}: largest slope, $L$ from 100 to $10^{{12}}$",
            slopes.max(),
            "<=",
            0.0,
            basis="the statement: the gap falls",
        ),
        Check(
            f"{_GAP[wrt]}: distance of the slope at $L = 10^{{12}}$ from $-1$",
            abs(float(slopes[-1]) + 1),
            "<=",
            1e-3,
            basis=r"theory: the first correction is of relative order $e^{c\sigma^2}/L$; margin",
        ),
        Check(
            f"{_GAP[wrt]}: exact value over leading order at $L = 10^{{18}}$, distance from 1",
            abs(float(last / leading) - 1),
            "<=",
            1e-6,
            basis="theory as above, and the accuracy of the quadrature",
        ),
        within_errors(
            f"{_GAP[wrt]}: exact value compared with {prompts.samples:,} simulated prompts",
            (exact.value - drawn.value) / drawn.error,
        ),
    ]


def _without_the_tilt() -> float:
    """Return how far the gap of the key-query gradient is from the output's, times |z| squared."""
    attention, law, query = generic_problem(SHARPNESS)
    by_u = gradient_moments(attention, law, query, 100, wrt="key_query").value
    by_v = gradient_moments(attention, law, query, 100, wrt="value").value
    return abs(float(by_u / (query @ query * by_v)) - 1)


def _over_queries(wrt: str, bounded: Problems) -> list[Check]:
    """Return what the gap does averaged over Gaussian queries of sharpness 1."""
    problem = standard_problem(2, 1.0)
    slopes = local_slopes(gradient_gap(*problem, _LENGTHS[::8], wrt=wrt).value, _LENGTHS[::8])
    one = float(gradient_gap(*problem, [1], wrt=wrt).value[0])
    return [
        Check(
            rf"{_GAP[wrt]}, queries $\mathcal{{N}}(0, I)$, $\tau = 1$: largest slope, "
            "$L$ from 100 to $10^{12}$",
            float(slopes.max()),
            "<=",
            -0.1,
            basis=r"the statement, with a margin: the exponent at $\tau = 1$ is 0.6",
        ),
        Check(
            f"{_GAP[wrt]}: largest ratio of the exact value to the explicit bound",
            gap_over_bound(wrt, bounded),
            "<=",
            1.0,
            basis="the statement is an upper bound",
        ),
        Check(
            f"{_GAP[wrt]}: value for a single token, where the printed bound is 0",
            one,
            ">=",
            0.1,
            role="control",
            basis="far above rounding error",
        ),
    ]


def simulated(
    seed: int, prompts: Simulated = PROMPTS, lengths: np.ndarray = _FEW_LENGTHS
) -> list[Check]:
    """Return the checks of the value gradient, of which one is against simulated prompts."""
    return _checks("value", seed, prompts, lengths)


def decide(setting: Setting) -> Sequence[Check]:
    """Return slopes of the exact gradient gaps, and those gaps against simulated prompts."""
    seed = setting.seed
    effort = (FEW_PROMPTS, _FEW_LENGTHS) if setting.quick else (PROMPTS, _LENGTHS)
    bounded = FEW_BOUNDED if setting.quick else BOUNDED
    return [
        *simulated(seed, *effort),
        *_checks("key_query", seed, *effort),
        *_over_queries("value", bounded),
        *_over_queries("key_query", bounded),
        Check(
            "relative difference of the gap for $U$ from ${|z|}^2$ times the gap for $V$, which "
            "would confuse the two",
            _without_the_tilt(),
            ">=",
            0.05,
            role="control",
            basis="far above rounding error",
        ),
    ]


CLAIM = Claim(
    number=5,
    name="gradient-gap",
    statement="The gradients of softmax attention with respect to the value matrix $V$ and the "
    "key-query matrix $U$ converge to those of the infinite prompt polynomially in the length "
    "$L$.",
    reference="Proposition 3.4",
    decide=decide,
)
