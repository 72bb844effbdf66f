"""Claim 10: how a softmax stack fluctuates about its limit at finite length."""

import math
from collections.abc import Sequence

import numpy as np

from promptlimit.depth import fluctuation_bias, fluctuation_cov
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies._statistics import (
    beyond_errors,
    rejected,
    share_at_least,
    within_errors,
)
from promptlimit.studies.depth._finite_stacks import (
    atoms_variance,
    first_orders,
    line_stack,
    masked_variance,
    outputs,
)

_STACK = line_stack((1.0, 0.12, 0.6), (1.0, 0.1, 0.5), (0.8, 0.12, 0.7))
_QUERY = 1.0
_CHUNK = 2**22
"""Scores at a time."""

_PROMPTS = 20_000
"""At each length. The skewness of L R is about 3; the allowance covers 6 with 20,000 prompts."""

_FALL = 0.8
"""Between 1/2, what √L |R| falls to at four times the length, and 1 for a wrong first order."""

_CLOSER = 2 / 3
"""Between 1, the share in the limit, and 1/2, that of two first orders which are equally wrong."""


def left_over(length: int, prompts: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return L times the distance of outputs from each first order, [prompts] each."""
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
            "plain, as if masked": plain - first["causal"],
            "masked": masked - first["causal"],
            "masked, as if not": masked - first["whole"],
        }
        for name, column in differences.items():
            columns.setdefault(name, []).append(length * column)
    return {name: np.concatenate(column) for name, column in columns.items()}


def decide(setting: Setting) -> Sequence[Check]:
    """Return the closed covariance and bias against atoms and against simulated stacks.

    Over L tokens a stack returns its limit, a first order F with L Var F = C, and a remainder R.
    √L R falls like 1/√L: it has half the size at four times the length. Under a mask, where the
    first tokens read few others, powers of ln L slow it down, so F is compared with the first order
    without a mask. A wrong first order leaves a remainder as large as itself.
    """
    rng, query = np.random.default_rng([setting.seed, 10]), np.array([_QUERY])
    variance = float(fluctuation_cov(_STACK, query)[0, 0])
    masked = float(fluctuation_cov(_STACK, query, causal=True)[0, 0])
    lengths = (10, 40) if setting.quick else (20, 80)
    setting.tell(f"stacks over prompts of {lengths[0]} and {lengths[1]} tokens")
    short, long = (left_over(length, _PROMPTS, rng) for length in lengths)
    # L E R = b + c/L + O(1/L²): a step of Richardson's leaves the last term
    ends = 4.0 * long["plain"] / 3.0, short["plain"] / 3.0
    bias, closed = float(ends[0].mean() - ends[1].mean()), fluctuation_bias(_STACK, query)[0]
    error = math.sqrt(sum(float(column.var()) / column.size for column in ends))
    falls = (
        rf"simulated prompts with $\sqrt{{L}}\,{{|R|}}$ at {lengths[1]} tokens below {_FALL} "
        f"of that at {lengths[0]} tokens, where $R$ is the remainder after the first order"
    )
    closer = f"prompts of {lengths[1]} tokens whose output is closer to the first order"
    return [
        Check(
            "$L$ times the variance compared with weighted atoms: relative difference",
            abs(variance / atoms_variance(_STACK, _QUERY) - 1.0),
            "<=",
            1e-9,
            basis="quadrature of 40 nodes, and rounding error of $10^{-13}$; margin $10^4$",
        ),
        Check(
            "$L$ times the variance under a mask compared with quadrature over pairs of paths: "
            "relative difference",
            abs(masked / masked_variance(_STACK, _QUERY) - 1.0),
            "<=",
            1e-9,
            basis="as above",
        ),
        within_errors(
            "$L$ times the bias, extrapolated from both lengths, compared with the closed form",
            [(bias - closed) / error],
        ),
        _share(falls, _FALL * np.abs(short["plain"]), np.abs(long["plain"]) / 2.0, 0.5),
        _share(
            f"under a causal mask: {closer} with the mask than to that without",
            np.abs(long["masked, as if not"]),
            np.abs(long["masked"]),
            _CLOSER,
        ),
        beyond_errors(
            "$L$ times the bias compared with 0 instead of the closed form", abs(bias) / error
        ),
        _rejected(
            _share(
                f"first order without what tokens pass on: {falls}",
                _FALL * np.abs(short["without passing on"]),
                np.abs(long["without passing on"]) / 2.0,
                0.5,
            )
        ),
        _rejected(
            _share(
                f"without a mask: {closer} with a mask than to that without",
                np.abs(long["plain"]),
                np.abs(long["plain, as if masked"]),
                _CLOSER,
            )
        ),
    ]


def _share(name: str, larger: np.ndarray, smaller: np.ndarray, share: float) -> Check:
    """Return a check that at least this share of one column is below another."""
    return share_at_least(name, int(np.sum(smaller < larger)), larger.size, share)


def _rejected(check: Check) -> Check:
    """Return the control that passes where a check of a share fails."""
    return rejected(check)


CLAIM = Claim(
    number=10,
    name="finite-stacks",
    statement="About its limit, a softmax stack over $L$ Gaussian tokens has covariance $C/L$ "
    "and bias $b/L$ to leading order, with $C$ and $b$ in closed form. Under a causal mask, a "
    r"pair of paths along which tokens pass on errors $p$ and $q$ times counts $\binom{p+q}{p}$ "
    "times in $C$.",
    reference="derived here",
    decide=decide,
)
