"""A report on a stack of layers: its limit and its moments over finite prompts."""

import math
from collections.abc import Callable

from jaxtyping import PRNGKeyArray

from promptlimit._arrays import ArrayLike, as_float64, increasing_lengths
from promptlimit.attention import AbstractAttention, Stack
from promptlimit.depth import GaussianStack, unsupported_layer
from promptlimit.finite._problem import checked_problem
from promptlimit.finite._prompt_moments import PROMPT_MOMENTS, prompt_moments
from promptlimit.measures import AbstractMeasure, Gaussian
from promptlimit.results import Kind, PromptMoments, StackReport

_LONGEST_SIMULATED = 100
"""The largest length to simulate; the cost grows with the square of the length."""
_KINDS: tuple[Kind, ...] = ("exact", "asymptotic", "estimate")


def stack_report(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    query: ArrayLike,
    lengths: ArrayLike,
    *,
    causal: bool = False,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    watch: Callable[[str, int, int], None] | None = None,
) -> StackReport:
    """Return the limit of a stack and its moments over finite prompts, in every available kind.

    Args:
        attention: the layers.
        measure: the law of a token.
        query: one query.
        lengths: the prompt lengths, increasing.
        causal: whether each token attends only to itself and the tokens before it.
        key: the random key; nothing is simulated when None.
        samples: the number of prompts to simulate at each length up to 100.
        watch: a function that is called with the name of the current step, the number of completed
            steps and the number of all steps.

    >>> import promptlimit as pl
    >>> layer = pl.Layer([pl.LinearAttention([[0.2]], [[0.5]])])
    >>> report = stack_report(pl.Stack([layer, layer]), pl.Gaussian([1.0], [[1.0]]), [1.0], [10])
    >>> print(list(report.curves), report.limit.limit.round(4))
    ['exact'] [1.5456]
    """
    sizes = increasing_lengths(lengths)
    problem = checked_problem(attention, measure, sizes, query=query, causal=causal)
    rules = {kind: PROMPT_MOMENTS.first(problem, kind) for kind in _KINDS}
    missing: dict[str, str] = {kind: rule for kind, rule in rules.items() if isinstance(rule, str)}
    sizes_of = {kind: sizes for kind in _KINDS[:2] if kind not in missing}
    if key is not None and (short := sizes[sizes <= _LONGEST_SIMULATED]).size:
        sizes_of["estimate"] = short
    steps = ["limit", *sizes_of]

    def tell(done: int) -> None:
        if watch is not None:
            watch(steps[min(done, len(steps) - 1)], done, len(steps))

    def moments(counts: ArrayLike, kind: str) -> PromptMoments:
        return prompt_moments(
            attention, measure, query, counts, kind=kind, causal=causal, key=key, samples=samples
        )

    tell(0)
    limit = moments(math.inf, "auto")
    curves: dict[str, PromptMoments] = {}
    for done, (kind, counts) in enumerate(sizes_of.items(), start=1):
        tell(done)
        curves[kind] = moments(counts, kind)
    tell(len(steps))
    return StackReport(curves, missing, limit, causal, _squared_tau(attention, measure))


def _squared_tau(
    attention: AbstractAttention, measure: AbstractMeasure
) -> tuple[float, ...] | None:
    r"""Return the $\tau^2$ of every layer; None unless all are softmax layers over Gaussian tokens.

    $\tau$ is the scale of the sharpness of a layer over its tokens (`GaussianStack.squared_tau`).
    """
    if not (isinstance(attention, Stack) and isinstance(measure, Gaussian)):
        return None
    if unsupported_layer(attention.layers) is not None:
        return None
    moments = as_float64(measure.location), as_float64(measure.covariance)
    layers = GaussianStack.of(attention.layers, *moments)
    return tuple(layers.squared_tau(level) for level in range(layers.depth))
