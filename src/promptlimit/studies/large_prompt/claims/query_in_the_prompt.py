"""Claim 6: a query that is itself a token of the prompt changes no rate."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.finite import prompt_moments
from promptlimit.measures import Gaussian
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt.claims.output_gap import local_slopes

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
            "difference between the slopes of the exact squared gap, with and without the query "
            "in the prompt, $L$ from $10^5$ to $10^6$",
            abs(inside - outside),
            "<=",
            0.01,
            basis="theory: the query adds terms of relative order $1/L = 10^{-5}$; margin",
        ),
        Check(
            "slope with the query in the prompt: distance from $-1$",
            abs(inside + 1),
            "<=",
            0.1,
            basis=r"theory: at $\tau = 1/2$ the correction is of order $1/L$, and $L = 10^5$; "
            "margin",
        ),
        Check(
            "queries ten times broader than the tokens: slope with the query in the prompt "
            "minus slope without",
            broad_inside - broad_outside,
            ">=",
            0.3,
            role="control",
            basis="thirty times the tolerance of the statement",
        ),
    ]


CLAIM = Claim(
    number=6,
    name="query-in-the-prompt",
    statement="If queries have the law of the tokens, including the query among the tokens of "
    "its own prompt does not change the rate of convergence.",
    reference="Remark 3.2",
    decide=decide,
)
