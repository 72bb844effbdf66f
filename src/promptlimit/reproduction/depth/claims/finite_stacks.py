"""Claim 10: how a softmax stack fluctuates about its limit at finite length."""

from collections.abc import Sequence

import numpy as np

from promptlimit.depth import fluctuation_bias, fluctuation_cov
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.depth._finite_stacks import (
    atoms_variance,
    first_orders,
    line_stack,
    outputs,
)
from promptlimit.results import Check

_STACK = line_stack((1.0, 0.2, 0.6), (1.0, 0.15, 0.5), (0.8, 0.2, 0.7))
_QUERY = 1.0
_CHUNK = 2**22
"""Scores at a time."""


def left_over(length: int, prompts: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return L times what prompts do to the output, less each first order, [prompts] each."""
    limit = _STACK.output(np.array([_QUERY]))[0]
    chunk = max(1, _CHUNK // length**2)
    columns: dict[str, list[np.ndarray]] = {}
    for start in range(0, prompts, chunk):
        tokens = rng.normal(size=(min(chunk, prompts - start), length))
        first = first_orders(_STACK, tokens, _QUERY)
        plain = outputs(_STACK, tokens, _QUERY)[-1] - limit
        masked = outputs(_STACK, tokens, _QUERY, causal=True)[-1] - limit
        differences = {
            "plain": plain - first["whole"],
            "without passing on": plain - first["direct"],
            "masked": masked - first["causal"],
            "masked, as if not": masked - first["whole"],
        }
        for name, column in differences.items():
            columns.setdefault(name, []).append(length * column)
    return {name: np.concatenate(column) for name, column in columns.items()}


def decide(setting: Setting) -> Sequence[Check]:
    """Return the closed covariance and bias against atoms and against simulated stacks."""
    rng, query = np.random.default_rng([setting.seed, 10]), np.array([_QUERY])
    variance = float(fluctuation_cov(_STACK, query)[0, 0])
    masked = float(fluctuation_cov(_STACK, query, causal=True)[0, 0])
    apart = abs(variance / atoms_variance(_STACK, _QUERY) - 1.0)
    lengths = (40, 160) if setting.quick else (80, 320)
    setting.tell(f"stacks over prompts of {lengths[0]} and {lengths[1]} tokens")
    short, long = (
        left_over(length, n, rng) for length, n in zip(lengths, (2400, 600), strict=True)
    )
    # Var(T_L) = C/L + O(1/L^2): what the first order leaves falls to a quarter
    left = {name: float(np.var(long[name]) / np.var(short[name])) / 4.0 for name in long}
    share = {name: float(np.var(column)) / lengths[1] / variance for name, column in long.items()}
    bias = long["plain"]
    error = bias.std() / np.sqrt(bias.size)
    distance = abs(bias.mean() - fluctuation_bias(_STACK, query)[0]) / error
    longest = f"{lengths[1]} tokens"
    return [
        Check("L Var against weighted atoms: relative distance", apart, "<=", 1e-9),
        Check(f"{longest}: L bias, in standard errors", distance, "<=", 4.0),
        Check(f"{longest}: variance beside the first order", share["plain"], "<=", 0.05),
        Check("it falls to so much at four times the length", left["plain"], "<=", 0.5),
        Check(f"{longest}, masked: the same", share["masked"], "<=", 0.05 * masked / variance),
        Check("masked: it falls to so much", left["masked"], "<=", 0.6),
        Check(
            f"{longest}, nothing passed on: variance left",
            share["without passing on"],
            *(">=", 0.1, "control"),
        ),
        Check(
            f"{longest}, masked as if not: variance left",
            share["masked, as if not"],
            *(">=", 0.1, "control"),
        ),
    ]


CLAIM = Claim(
    number=10,
    name="finite-stacks",
    statement="Over L Gaussian tokens a softmax stack has covariance C/L and bias b/L about its "
    "limit, in closed form; under a causal mask pairs of paths that p and q tokens pass on count "
    "(p+q choose p) times.",
    reference="derived here",
    decide=decide,
)
