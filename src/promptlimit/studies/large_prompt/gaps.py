r"""Claims on gaps: rates at which outputs and gradients approach their limits.

The gap is the mean squared distance between a value over $L$ tokens and its limit. The sharpness
$\sigma$ is the standard deviation of the scores at one query. For $U=\tau I$ and standard normal
tokens and queries, the gap of the output averaged over queries falls like $L^{-\kappa}$, where
$\kappa$ depends on $\tau$. Slopes are those of log-log plots against $L$.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.concentration import gap_exponent
from promptlimit.concentration import gradient_gap as library_gradient_gap
from promptlimit.concentration import output_gap as library_output_gap
from promptlimit.finite import gradient_moments, prompt_moments
from promptlimit.measures import Gaussian
from promptlimit.studies import (
    Check,
    Setting,
    at_least,
    at_most,
    control_at_least,
    within_errors,
)
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import (
    generic_problem,
    local_slopes,
    standard_problem,
)
from promptlimit.weights import weight_statistics

_SHARPNESSES = np.array([0.5, 1.0, 2.0, 3.0, 4.0])
_LENGTHS = np.logspace(0, 12, 49).round()
_SIMULATED_SHARPNESS = 1.0
_TAUS = (0.3, 0.5, 1.0, 1.5, 2.0)
RATE_TOLERANCE = 0.015
_FAR = np.array([1e28, 1e30])
_GRID = np.array([2.0, 10.0, 1e3, 1e6, 1e12])


class Simulated(NamedTuple):
    """The number of simulated prompts, and their lengths."""

    samples: int
    lengths: tuple[int, ...]


Problems = Sequence[tuple[int, float]]
"""Pairs of a dimension and τ, at which gaps are compared with their bounds."""
BOUNDED, FEW_BOUNDED = ((1, 2.0), (3, 0.2)), ((3, 0.2),)
PROMPTS, FEW_PROMPTS = Simulated(10_000, (2, 20, 200)), Simulated(10_000, (20,))


def _simulation_distances(seed: int, prompts: Simulated) -> np.ndarray:
    """Return the distances of exact from simulated gaps, in standard errors."""
    problem = (*generic_problem(_SIMULATED_SHARPNESS), prompts.lengths)
    exact = prompt_moments(*problem, kind="exact")
    drawn = prompt_moments(
        *problem, kind="estimate", key=jax.random.key(seed), samples=prompts.samples
    )
    return (exact.mse - drawn.mse) / drawn.error


def distances_from_the_rate(taus: Sequence[float]) -> list[float]:
    """Return |slope + κ| for each τ, with the slope of the gap from L = 1e28 to 1e30."""
    distances = []
    for tau in taus:
        problem = standard_problem(1, tau)
        slope = float(local_slopes(library_output_gap(*problem, _FAR).value, _FAR)[0])
        distances.append(abs(slope + gap_exponent(*problem).value))
    return distances


def gap_over_bound(wrt: str | None, problems: Problems = BOUNDED) -> float:
    """Return the largest ratio of the exact gap, averaged over Gaussian queries, to its bound.

    The gap is that of the gradient in the matrix `wrt`, or of the output if `wrt` is None.
    """
    worst = 0.0
    for dim, tau in problems:
        gap = library_output_gap
        if wrt is not None:
            gap = functools.partial(library_gradient_gap, wrt=wrt)
        problem = standard_problem(dim, tau)
        exact, bound = (gap(*problem, _GRID, kind=kind) for kind in ("exact", "bound"))
        worst = max(worst, float((exact.value / bound.value).max()))
    return worst


def simulated(seed: int, prompts: Simulated = PROMPTS) -> list[Check]:
    """Return a check of the exact gap against simulated prompts."""
    name = (
        f"sharpness {_SIMULATED_SHARPNESS:g}, $d = 4$: exact gap compared with "
        f"{prompts.samples:,} simulated prompts"
    )
    return [within_errors(name, _simulation_distances(seed, prompts))]


@STUDY.claim(4, reference="Proposition 3.1")
def output_gap(setting: Setting) -> Iterator[Check]:
    r"""Over Gaussian tokens, the mean squared distance between the outputs over $L$ tokens and over
    the infinite prompt falls polynomially in $L$, more slowly for sharper heads. Averaged over
    Gaussian queries it falls like $L^{-\kappa}$. For standard normal tokens and queries and $U =
    \tau I$, $\kappa = 1$ up to $\tau^2 = 1/2$, and $\kappa = \sqrt{1/\tau^2 + 1/4} - 1/2$ beyond.
    """
    seed = setting.seed
    at_one = library_output_gap(*standard_problem(1, 1.0), [1]).value[0]
    gaps = weight_statistics(_SHARPNESSES[:, None], _LENGTHS).score_error
    slopes = local_slopes(gaps, _LENGTHS)
    middle = int(np.searchsorted(_LENGTHS, 1e3))
    worsening = np.diff(slopes[:, middle])
    frozen = weight_statistics(8.0, np.array([1e3, 1e4])).score_error
    bounded = FEW_BOUNDED if setting.quick else BOUNDED
    where = " and ".join(rf"$d = {dim}$, $\tau = {tau:g}$" for dim, tau in bounded)
    yield at_most(
        "largest slope of the squared gap, sharpness 0.5 to 4, $L$ from 1 to $10^{12}$",
        float(slopes.max()),
        0.0,
        basis="the statement: the gap falls",
    )
    yield at_most(
        "largest distance of the slope from $-1$, sharpness up to 2, $L = 10^{12}$",
        float(np.abs(slopes[:3, -1] + 1).max()),
        1e-3,
        basis="theory: the first correction is of relative order "
        r"$e^{3\sigma^2}/L = 2 \times 10^{-7}$; margin",
    )
    yield at_least(
        "smallest increase of the slope from one sharpness to the next, $L = 10^3$",
        float(worsening.min()),
        1e-3,
        basis="the statement, with a margin far above rounding error",
    )
    yield from simulated(seed, FEW_PROMPTS if setting.quick else PROMPTS)
    yield at_most(
        r"queries $\mathcal{N}(0, 1)$, $\tau$ from 0.3 to 2, $L = 10^{29}$: largest distance "
        r"of the slope from $-\kappa(\tau)$",
        max(distances_from_the_rate(_TAUS[::4] if setting.quick else _TAUS)),
        RATE_TOLERANCE,
        basis=r"theory: the slope approaches its limit like $1/\ln L = 0.015$",
    )
    yield at_most(
        f"largest ratio of the exact gap to the explicit bound, {where}, $L$ from 2 to $10^{{12}}$",
        gap_over_bound(None, bounded),
        1.0,
        basis="the statement is an upper bound",
    )
    yield control_at_least(
        "gap of a single token, where the printed bound "
        r"$c_1\sigma^6\ln L / L^{c_2/\sigma^2}$ is 0",
        float(at_one),
        0.1,
        basis=r"theory: here the gap of one token is $1 + \tau^2$",
    )
    yield control_at_least(
        "sharpness 8, beyond the freezing length: slope from $L = 10^3$ to $10^4$",
        float(local_slopes(frozen, np.array([1e3, 1e4]))[0]),
        -0.5,
        basis="half of the slope $-1$ that is claimed",
    )


_QUERY_LENGTHS = np.array([1e5, 1e6])


def _slopes(key_query: float, variance: float, nodes: int) -> tuple[float, float]:
    """Return the slopes of the exact gap without and with the query in the prompt."""
    attention, law = SoftmaxAttention([[key_query]], [[1.0]]), Gaussian([0.0], [[variance]])

    def gap(query: float, inside: bool) -> np.ndarray:
        return prompt_moments(attention, law, [query], _QUERY_LENGTHS, including_query=inside).mse

    return slopes_over_queries(gap, _QUERY_LENGTHS, nodes)


def slopes_over_queries(
    gap: Callable[[float, bool], np.ndarray], lengths: np.ndarray, nodes: int
) -> tuple[float, float]:
    """Return the slopes of a gap without and with the query in the prompt.

    The function `gap` returns the gap at both lengths, given a query and whether the query is in
    the prompt. The midpoint rule with `nodes` queries averages the gap over standard normal
    queries. It converges geometrically, but if queries in the prompt are much broader than its
    tokens, the result has about one correct digit.
    """
    queries = 7.0 / nodes * (np.arange(nodes) + 0.5)
    density = np.exp(-(queries**2) / 2)
    outside, inside = (
        float(local_slopes(density @ np.array([gap(query, own) for query in queries]), lengths)[0])
        for own in (False, True)
    )
    return outside, inside


@STUDY.claim(6, reference="Remark 3.2")
def query_in_the_prompt(setting: Setting) -> Iterator[Check]:
    r"""If queries have the law of the tokens, including the query among the tokens of its prompt
    does not change the rate at which the output converges. Tested for standard normal tokens and
    queries in one dimension and $U = 1/2$.
    """
    nodes = 28 if setting.quick else 56
    outside, inside = _slopes(0.5, 1.0, nodes)
    broad_outside, broad_inside = _slopes(5.0, 0.01, nodes)
    yield at_most(
        "difference between the slopes of the exact squared gap, with and without the query "
        "in the prompt, $L$ from $10^5$ to $10^6$",
        abs(inside - outside),
        0.01,
        basis="theory: the query adds terms of relative order $1/L = 10^{-5}$; margin",
    )
    yield at_most(
        "distance of the slope with the query in the prompt from $-1$",
        abs(inside + 1),
        0.1,
        basis=r"theory: at $\tau = 1/2$ the correction is of order $1/L$, and $L = 10^5$; "
        "margin",
    )
    yield control_at_least(
        "queries ten times broader than the tokens: slope with the query in the prompt "
        "minus slope without",
        broad_inside - broad_outside,
        0.3,
        basis="thirty times the tolerance of the statement",
    )


SHARPNESS = 0.8
"""The standard deviation of the scores: small, so that simulated squares have light tails."""
_GRADIENT_LENGTHS = np.logspace(2, 12, 41).round()
_FEW_LENGTHS = _GRADIENT_LENGTHS[::4]
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
        at_most(
            f"{_GAP[wrt]}, sharpness {SHARPNESS:g}: largest slope, $L$ from 100 to $10^{{12}}$",
            slopes.max(),
            0.0,
            basis="the statement: the gap falls",
        ),
        at_most(
            f"{_GAP[wrt]}: distance of the slope at $L = 10^{{12}}$ from $-1$",
            abs(float(slopes[-1]) + 1),
            1e-3,
            basis=r"theory: the first correction is of relative order $e^{c\sigma^2}/L$; margin",
        ),
        at_most(
            f"{_GAP[wrt]}: exact value over leading order at $L = 10^{{18}}$, distance from 1",
            abs(float(last / leading) - 1),
            1e-6,
            basis="theory as above, and the accuracy of the quadrature",
        ),
        within_errors(
            f"{_GAP[wrt]}: exact value compared with {prompts.samples:,} simulated prompts",
            (exact.value - drawn.value) / drawn.error,
        ),
    ]


def _without_the_tilt() -> float:
    r"""Return the relative distance of the gap in U from $|z|^2$ times the gap in V."""
    attention, law, query = generic_problem(SHARPNESS)
    by_u = gradient_moments(attention, law, query, 100, wrt="key_query").value
    by_v = gradient_moments(attention, law, query, 100, wrt="value").value
    return abs(float(by_u / (query @ query * by_v)) - 1)


def _over_queries(wrt: str, bounded: Problems) -> list[Check]:
    """Return checks of the gap averaged over Gaussian queries, with τ = 1."""
    problem = standard_problem(2, 1.0)
    slopes = local_slopes(
        library_gradient_gap(*problem, _GRADIENT_LENGTHS[::8], wrt=wrt).value,
        _GRADIENT_LENGTHS[::8],
    )
    one = float(library_gradient_gap(*problem, [1], wrt=wrt).value[0])
    return [
        at_most(
            rf"{_GAP[wrt]}, queries $\mathcal{{N}}(0, I)$, $\tau = 1$: largest slope, "
            "$L$ from 100 to $10^{12}$",
            float(slopes.max()),
            -0.1,
            basis=r"the statement, with a margin: the exponent at $\tau = 1$ is 0.6",
        ),
        at_most(
            f"{_GAP[wrt]}: largest ratio of the exact value to the explicit bound",
            gap_over_bound(wrt, bounded),
            1.0,
            basis="the statement is an upper bound",
        ),
        control_at_least(
            f"{_GAP[wrt]}: value for a single token, where the printed bound is 0",
            one,
            0.1,
            basis="far above rounding error",
        ),
    ]


def simulated_gradients(
    seed: int, prompts: Simulated = PROMPTS, lengths: np.ndarray = _FEW_LENGTHS
) -> list[Check]:
    """Return the checks of the gradient in V; one of them compares it with simulated prompts."""
    return _checks("value", seed, prompts, lengths)


@STUDY.claim(5, reference="Proposition 3.4")
def gradient_gap(setting: Setting) -> Iterator[Check]:
    r"""The gradients of softmax attention with respect to the value matrix $V$ and the key-query
    matrix $U$ converge to those of the infinite prompt, and the gap falls polynomially in the
    length $L$. Tested for Gaussian tokens, at one query and averaged over Gaussian queries.
    """
    seed = setting.seed
    effort = (FEW_PROMPTS, _FEW_LENGTHS) if setting.quick else (PROMPTS, _GRADIENT_LENGTHS)
    bounded = FEW_BOUNDED if setting.quick else BOUNDED
    yield from simulated_gradients(seed, *effort)
    yield from _checks("key_query", seed, *effort)
    yield from _over_queries("value", bounded)
    yield from _over_queries("key_query", bounded)
    yield control_at_least(
        "gap for $U$ compared with ${|z|}^2$ times the gap for $V$, a wrong formula: relative "
        "difference",
        _without_the_tilt(),
        0.05,
        basis="far above rounding error",
    )
