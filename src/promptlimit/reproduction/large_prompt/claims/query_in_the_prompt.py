"""Claim 6: a query that is itself a token of the prompt changes no rate."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.finite import prompt_moments
from promptlimit.measures import Gaussian
from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.large_prompt.claims.output_gap import local_slopes

_LENGTHS = np.array([1e5, 1e6])


def _slopes(key_query: float, variance: float, nodes: int) -> tuple[float, float]:
    """Return the slopes of the exact gap over standard normal queries, outside and inside.

    One dimension: the midpoint rule over queries converges geometrically, but for broad queries
    inside, of which it says no more than a first digit.
    """
    attention, law = SoftmaxAttention([[key_query]], [[1.0]]), Gaussian([0.0], [[variance]])
    queries = 7.0 / nodes * (np.arange(nodes) + 0.5)  # the gap is even in the query
    density = np.exp(-(queries**2) / 2)
    slopes = []
    for inside in (False, True):
        gaps = [
            prompt_moments(attention, law, [query], _LENGTHS, including_query=inside).mse
            for query in queries
        ]
        slopes.append(float(local_slopes(density @ np.array(gaps), _LENGTHS)[0]))
    return slopes[0], slopes[1]


def decide(setting: Setting) -> Sequence[Check]:
    """Return the slopes of the exact gap with and without the query, and where they must differ."""
    nodes = 28 if setting.quick else 56
    outside, inside = _slopes(0.5, 1.0, nodes)
    broad_outside, broad_inside = _slopes(5.0, 0.01, nodes)
    return [
        Check(
            "slope of the exact squared gap from L = 1e5 to 1e6: inside minus outside",
            abs(inside - outside),
            "<=",
            0.01,
            basis="theory: the query adds terms of relative order 1/L = 1e-5; margin",
        ),
        Check(
            "the slope inside: distance from -1",
            abs(inside + 1),
            "<=",
            0.1,
            basis="theory: τ = 1/2, whose correction at L = 1e5 is of order L^-1; margin",
        ),
        Check(
            "queries ten times broader than the tokens: slope inside minus outside",
            broad_inside - broad_outside,
            ">=",
            0.3,
            role="control",
            basis="margin: thirty times the tolerance of the statement",
        ),
    ]


CLAIM = Claim(
    number=6,
    name="query-in-the-prompt",
    statement="Counting the query among the tokens of its own prompt changes no rate of "
    "convergence, for queries with the tokens' law.",
    reference="Remark 3.2",
    decide=decide,
)
