"""Claim 4: the output's gap falls polynomially, more slowly for sharper heads."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from promptlimit.concentration import gap_exponent, gradient_gap, output_gap
from promptlimit.finite import prompt_moments
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction._statistics import within_errors
from promptlimit.reproduction.large_prompt._ensembles import generic_problem, standard_problem
from promptlimit.weights import weight_statistics

_SHARPNESSES = np.array([0.5, 1.0, 2.0, 3.0, 4.0])
_LENGTHS = np.logspace(0, 12, 49).round()
_SIMULATED_SHARPNESS = 1.0
_TAUS = (0.3, 0.5, 1.0, 1.5, 2.0)
RATE_TOLERANCE = 0.015
_FAR = np.array([1e28, 1e30])
_GRID = np.array([2.0, 10.0, 1e3, 1e6, 1e12])


class Simulated(NamedTuple):
    """How many prompts are simulated, and of how many tokens each."""

    samples: int
    lengths: tuple[int, ...]


Problems = Sequence[tuple[int, float]]
"""Dimensions and τ at which gaps are held against their bounds."""

BOUNDED, FEW_BOUNDED = ((1, 2.0), (3, 0.2)), ((3, 0.2),)
PROMPTS, FEW_PROMPTS = Simulated(10_000, (2, 20, 200)), Simulated(10_000, (20,))


def local_slopes(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the slopes between neighbours in a log-log plot, lengths on the last axis."""
    return np.diff(np.log(values)) / np.diff(np.log(lengths))


def _simulation_distances(seed: int, prompts: Simulated) -> np.ndarray:
    """Return how far the exact gap is from simulated prompts, in standard errors."""
    problem = (*generic_problem(_SIMULATED_SHARPNESS), prompts.lengths)
    exact = prompt_moments(*problem, kind="exact")
    drawn = prompt_moments(
        *problem, kind="estimate", key=jax.random.key(seed), samples=prompts.samples
    )
    return (exact.mse - drawn.mse) / drawn.error


def distances_from_the_rate(taus: Sequence[float]) -> list[float]:
    """Return how far slopes over Gaussian queries at L near 1e30 are from the predicted rates."""
    distances = []
    for tau in taus:
        problem = standard_problem(1, tau)
        slope = float(local_slopes(output_gap(*problem, _FAR).value, _FAR)[0])
        distances.append(abs(slope + gap_exponent(*problem).value))
    return distances


def gap_over_bound(wrt: str | None, problems: Problems = BOUNDED) -> float:
    """Return the largest ratio of exact gap to explicit bound on a grid, Gaussian queries."""
    worst = 0.0
    for dim, tau in problems:
        gap = output_gap if wrt is None else functools.partial(gradient_gap, wrt=wrt)
        problem = standard_problem(dim, tau)
        exact, bound = (gap(*problem, _GRID, kind=kind) for kind in ("exact", "bound"))
        worst = max(worst, float((exact.value / bound.value).max()))
    return worst


def simulated(seed: int, prompts: Simulated = PROMPTS) -> list[Check]:
    """Return the exact gap held against simulated prompts."""
    name = (
        f"sharpness {_SIMULATED_SHARPNESS:g}, d = 4: exact gap against {prompts.samples:,} "
        "simulated prompts"
    )
    return [within_errors(name, _simulation_distances(seed, prompts))]


def decide(setting: Setting) -> Sequence[Check]:
    """Return slopes of the exact gap, and the exact gap against simulated prompts."""
    seed = setting.seed
    at_one = output_gap(*standard_problem(1, 1.0), [1]).value[0]
    gaps = weight_statistics(_SHARPNESSES[:, None], _LENGTHS).score_error
    slopes = local_slopes(gaps, _LENGTHS)
    middle = int(np.searchsorted(_LENGTHS, 1e3))
    worsening = np.diff(slopes[:, middle])
    frozen = weight_statistics(8.0, np.array([1e3, 1e4])).score_error
    bounded = FEW_BOUNDED if setting.quick else BOUNDED
    where = " and ".join(f"d = {dim}, τ = {tau:g}" for dim, tau in bounded)
    return [
        Check(
            "slope of the squared gap, sharpness 0.5 to 4, L from 1 to 1e12: largest",
            float(slopes.max()),
            "<=",
            0.0,
            basis="the statement: the gap falls",
        ),
        Check(
            "sharpness up to 2, L = 1e12: largest distance of the slope from -1",
            float(np.abs(slopes[:3, -1] + 1).max()),
            "<=",
            1e-3,
            basis="theory: the first correction is of relative order exp(3σ²)/L = 2e-7; margin",
        ),
        Check(
            "slope at L = 1e3: smallest increase from one sharpness to the next",
            float(worsening.min()),
            ">=",
            1e-3,
            basis="the statement, and a margin far above rounding",
        ),
        *simulated(seed, FEW_PROMPTS if setting.quick else PROMPTS),
        Check(
            "queries N(0, 1), τ from 0.3 to 2: slope at L = 1e29 against the rate κ(τ), largest "
            "distance",
            max(distances_from_the_rate(_TAUS[::4] if setting.quick else _TAUS)),
            "<=",
            RATE_TOLERANCE,
            basis="theory: the slope approaches the rate like 1/ln L = 0.015",
        ),
        Check(
            f"exact gap over the explicit bound, {where}, L from 2 to 1e12: largest",
            gap_over_bound(None, bounded),
            "<=",
            1.0,
            basis="the statement: a bound",
        ),
        Check(
            "one token, where the printed bound c₁σ⁶ ln L / L^(c₂/σ²) is 0: the gap",
            float(at_one),
            ">=",
            0.1,
            role="control",
            basis="theory: one token has the gap 1 + τ² here",
        ),
        Check(
            "sharpness 8, beyond the freezing length: slope from L = 1e3 to 1e4",
            float(local_slopes(frozen, np.array([1e3, 1e4]))[0]),
            ">=",
            -0.5,
            role="control",
            basis="margin: half of the slope that is claimed",
        ),
    ]


CLAIM = Claim(
    number=4,
    name="output-gap",
    statement="The mean square distance between the outputs of a finite and of the infinite prompt "
    "falls polynomially in the length, L^-κ with κ = 1 to τ² = 1/2 and smaller beyond, more slowly "
    "the sharper the head.",
    reference="Proposition 3.1",
    decide=decide,
)
