"""Claim 5: both parameter gradients converge polynomially."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.concentration import gradient_gap
from promptlimit.finite import gradient_moments
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.large_prompt._ensembles import (
    random_gaussian,
    random_parameters,
    standard_problem,
)
from promptlimit.reproduction.large_prompt.claims.output_gap import (
    BOUNDED,
    FEW_BOUNDED,
    FEW_PROMPTS,
    PROMPTS,
    Problems,
    Simulated,
    gap_over_bound,
    local_slopes,
)
from promptlimit.results import Check

_DIM = 4
_LENGTHS = np.logspace(2, 12, 41).round()
_FEW_LENGTHS = _LENGTHS[::4]


def _checks(wrt: str, seed: int, prompts: Simulated, lengths: np.ndarray) -> list[Check]:
    rng = np.random.default_rng(seed)
    u, v = random_parameters(rng, _DIM)
    law, query = random_gaussian(rng, _DIM), rng.normal(size=_DIM)
    attention, key = SoftmaxAttention(u, v), jax.random.key(seed)
    slopes = local_slopes(
        gradient_moments(attention, law, query, lengths, wrt=wrt, kind="exact").value, lengths
    )
    problem = (attention, law, query, prompts.lengths)
    exact = gradient_moments(*problem, wrt=wrt, kind="exact")
    drawn = gradient_moments(*problem, wrt=wrt, kind="estimate", key=key, samples=prompts.samples)
    leading = gradient_moments(attention, law, query, 1e18, wrt=wrt, kind="asymptotic").value
    last = gradient_moments(attention, law, query, 1e18, wrt=wrt, kind="exact").value
    distance = float((np.abs(exact.value - drawn.value) / drawn.error).max())
    return [
        Check(f"gradient in `{wrt}`: largest slope, L from 100 to 1e12", slopes.max(), "<=", 0.0),
        Check(
            f"gradient in `{wrt}`: distance of the slope at L = 1e12 from -1",
            abs(float(slopes[-1]) + 1),
            "<=",
            1e-3,
        ),
        Check(
            f"gradient in `{wrt}`: exact over leading order at L = 1e18, distance from one",
            abs(float(last / leading) - 1),
            "<=",
            1e-6,
        ),
        Check(
            f"gradient in `{wrt}`: exact against {prompts.samples:,} simulated prompts, largest "
            "distance in standard errors",
            distance,
            "<=",
            4.0,
            error=1.0,
        ),
    ]


def _without_the_tilt(seed: int) -> float:
    """Return how far the gap of the key-query gradient is from the output's, times |z| squared."""
    rng = np.random.default_rng(seed)
    u, v = random_parameters(rng, _DIM)
    law, query = random_gaussian(rng, _DIM), rng.normal(size=_DIM)
    attention = SoftmaxAttention(u, v)
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
            f"gradient in `{wrt}`, queries N(0, I), τ = 1: largest slope, L from 100 to 1e12",
            float(slopes.max()),
            "<=",
            -0.1,
        ),
        Check(
            f"gradient in `{wrt}`: exact gap over the explicit bound, largest ratio",
            gap_over_bound(wrt, bounded),
            "<=",
            1.0,
        ),
        Check(
            f"gradient in `{wrt}`, one token, where the printed bound is 0: the gap",
            one,
            ">=",
            0.1,
            role="control",
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
        *_checks("key_query", seed + 1, *effort),
        *_over_queries("value", bounded),
        *_over_queries("key_query", bounded),
        Check(
            "the two gradients' gaps taken for one another (up to |z|²): relative difference",
            _without_the_tilt(seed),
            ">=",
            0.05,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=5,
    name="gradient-gap",
    statement="The gradients with respect to the value and to the key-query matrix converge to "
    "those of the infinite prompt, polynomially in the length.",
    reference="Proposition 3.4",
    decide=decide,
)
