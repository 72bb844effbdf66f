"""Claim 10: how a softmax stack fluctuates about its limit at finite length."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from promptlimit.depth import fluctuation_bias, fluctuation_cov
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction._statistics import share_at_least, within_errors
from promptlimit.reproduction.depth._finite_stacks import (
    atoms_variance,
    first_orders,
    line_stack,
    masked_variance,
    outputs,
)
from promptlimit.results import Check

_STACK = line_stack((1.0, 0.2, 0.6), (1.0, 0.15, 0.5), (0.8, 0.2, 0.7))
_QUERY = 1.0
_CHUNK = 2**22
"""Scores at a time."""

_PROMPTS, _FALL = 6_000, 0.8


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
    """Return the closed covariance and bias against atoms and against simulated stacks.

    Over L tokens a stack returns its limit, a first order F with L Var F = C, and a remainder R.
    √L R falls like 1/√L: at four times the length it has the law of one half of what it was.
    Under a mask, whose first tokens read few others, it falls like ln L / √L, to 0.69 from 40 to
    160 tokens. A wrong first order leaves a remainder that does not fall.
    """
    rng, query = np.random.default_rng([setting.seed, 10]), np.array([_QUERY])
    variance = float(fluctuation_cov(_STACK, query)[0, 0])
    masked = float(fluctuation_cov(_STACK, query, causal=True)[0, 0])
    lengths = (20, 80) if setting.quick else (40, 160)
    setting.tell(f"stacks over prompts of {lengths[0]} and {lengths[1]} tokens")
    short, long = (left_over(length, _PROMPTS, rng) for length in lengths)

    def fallen(name: str, words: str) -> Check:
        """Return whether half of independent pairs fall so far that √L |R| is 0.8 of what it was."""
        after, before = (np.abs(part[name]) for part in (long, short))
        # L R at both lengths, and the root of four
        count = int(np.sum(after / 2.0 <= _FALL * before))
        name = f"{words}: pairs with √L |R| at {lengths[1]} below {_FALL} of that at {lengths[0]}"
        return share_at_least(name, count, after.size, 0.5)

    def standing(name: str, words: str) -> Check:
        return replace(fallen(name, words), relation="<=", role="control")

    # L E R = b + c/L + O(1/L²): a step of Richardson's leaves the last term
    ends = 4.0 * long["plain"] / 3.0, short["plain"] / 3.0
    bias = float(ends[0].mean() - ends[1].mean() - fluctuation_bias(_STACK, query)[0])
    error = math.sqrt(sum(float(column.var()) / column.size for column in ends))
    return [
        Check(
            "L Var against weighted atoms: relative distance",
            abs(variance / atoms_variance(_STACK, _QUERY) - 1.0),
            "<=",
            1e-9,
            basis="quadrature of 40 nodes, and rounding of 1e-13; margin 1e4",
        ),
        Check(
            "L Var under a mask against pairs of paths by quadrature: relative distance",
            abs(masked / masked_variance(_STACK, _QUERY) - 1.0),
            "<=",
            1e-9,
            basis="as above",
        ),
        within_errors("L bias, extrapolated from both lengths", [bias / error]),
        fallen("plain", "no mask"),
        fallen("masked", "masked"),
        standing("without passing on", "nothing passed on"),
        standing("masked, as if not", "masked as if not"),
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
