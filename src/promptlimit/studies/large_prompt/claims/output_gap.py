"""Claim 4: the output's gap falls polynomially, more slowly for sharper heads."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from promptlimit.concentration import gap_exponent, gradient_gap, output_gap
from promptlimit.finite import prompt_moments
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._checks import within_errors
from promptlimit.studies.large_prompt._ensembles import generic_problem, standard_problem
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
        f"sharpness {_SIMULATED_SHARPNESS:g}, $d = 4$: exact gap compared with "
        f"{prompts.samples:,} simulated prompts"
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
    where = " and ".join(rf"$d = {dim}$, $\tau = {tau:g}$" for dim, tau in bounded)
    return [
        Check(
            "largest slope of the squared gap, sharpness 0.5 to 4, $L$ from 1 to $10^{12}$",
            float(slopes.max()),
            "<=",
            0.0,
            basis="the statement: the gap falls",
        ),
        Check(
            "largest distance of the slope from $-1$, sharpness up to 2, $L = 10^{12}$",
            float(np.abs(slopes[:3, -1] + 1).max()),
            "<=",
            1e-3,
            basis="theory: the first correction is of relative order "
            r"$e^{3\sigma^2}/L = 2 \times 10^{-7}$; margin",
        ),
        Check(
            "smallest increase of the slope from one sharpness to the next, $L = 10^3$",
            float(worsening.min()),
            ">=",
            1e-3,
            basis="the statement, with a margin far above rounding error",
        ),
        *simulated(seed, FEW_PROMPTS if setting.quick else PROMPTS),
        Check(
            r"queries $\mathcal{N}(0, 1)$, $\tau$ from 0.3 to 2, $L = 10^{29}$: largest distance "
            r"of the slope from $-\kappa(\tau)$",
            max(distances_from_the_rate(_TAUS[::4] if setting.quick else _TAUS)),
            "<=",
            RATE_TOLERANCE,
            basis=r"theory: the slope approaches its limit like $1/\ln L = 0.015$",
        ),
        Check(
            f"largest ratio of the exact gap to the explicit bound, {where}, $L$ from 2 to "
            "$10^{12}$",
            gap_over_bound(None, bounded),
            "<=",
            1.0,
            basis="the statement is an upper bound",
        ),
        Check(
            "gap of a single token, where the printed bound "
            r"$c_1\sigma^6\ln L / L^{c_2/\sigma^2}$ is 0",
            float(at_one),
            ">=",
            0.1,
            role="control",
            basis=r"theory: here the gap of one token is $1 + \tau^2$",
        ),
        Check(
            "sharpness 8, beyond the freezing length: slope from $L = 10^3$ to $10^4$",
            float(local_slopes(frozen, np.array([1e3, 1e4]))[0]),
            ">=",
            -0.5,
            role="control",
            basis="half of the slope that is claimed",
        ),
    ]


CLAIM = Claim(
    number=4,
    name="output-gap",
    statement="The mean squared distance between the outputs over $L$ tokens and over the "
    "infinite prompt falls polynomially in $L$, more slowly for sharper heads. Averaged over "
    r"Gaussian queries it falls like $L^{-\kappa}$: with $\tau$ the sharpness, $\kappa = 1$ up "
    r"to $\tau^2 = 1/2$, and $\kappa$ is smaller beyond.",
    reference="Proposition 3.1",
    decide=decide,
)
