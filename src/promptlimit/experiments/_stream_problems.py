"""A stream from the command line: one head, its queries, and tokens to draw or to read."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from promptlimit.attention import Factored, SoftmaxAttention
from promptlimit.experiments._gap_problems import QUERY_NAMES, GapProblem, queries_from
from promptlimit.experiments._problems import Arrays, attention_from, known_arrays
from promptlimit.finite import AccuracyError, KindUnavailableError, prompt_moments
from promptlimit.measures import AbstractMeasure
from promptlimit.results import StreamedAttention, StreamReport
from promptlimit.streaming import Generated, Progress, stored_length, stream


@dataclass(frozen=True)
class StreamProblem:
    """What a stream is asked of.

    Attributes:
        attention: the head.
        queries: one a row.
        prompt: tokens to draw, or the file they are in.
    """

    attention: SoftmaxAttention | Factored
    queries: np.ndarray
    prompt: Generated | Path

    @property
    def length(self) -> int:
        """How many tokens there are; of a file, what its head says."""
        if isinstance(self.prompt, Generated):
            return self.prompt.length
        return stored_length(self.prompt)


def drawn_stream_problem(
    problem: GapProblem, length: float, queries: int, seed: int
) -> StreamProblem:
    """Return the problem of a prompt drawn from the law of a gap problem's tokens."""
    query_key, token_key = jax.random.split(jax.random.key(seed))
    prompt = Generated(problem.measure, length, key=token_key)
    return StreamProblem(problem.attention, _some(problem.queries, queries, query_key), prompt)


def stored_stream_problem(
    problem: GapProblem | Arrays, tokens: Path, queries: int, seed: int
) -> StreamProblem:
    """Return the problem of a prompt in a file; named arrays hold parameters and queries alone."""
    if isinstance(problem, GapProblem):
        attention, law = problem.attention, problem.queries
    else:
        shaped = known_arrays(problem, QUERY_NAMES)
        with jax.enable_x64(True):
            attention = attention_from(shaped)
            law = queries_from(shaped, attention.query_dim)
    query_key, _ = jax.random.split(jax.random.key(seed))
    return StreamProblem(attention, _some(law, queries, query_key), tokens)


def _some(queries: AbstractMeasure | np.ndarray, count: int, key: jax.Array) -> np.ndarray:
    if isinstance(queries, AbstractMeasure):
        with jax.enable_x64(True):
            return np.asarray(queries.sample(count, key=key), np.float64)
    return np.asarray(queries, np.float64)


def stream_report(
    problem: StreamProblem,
    lengths: np.ndarray,
    *,
    covariance: bool,
    linear: bool,
    folder: Path | None,
    every: float,
    watch: Callable[[Progress], None] | None,
) -> StreamReport:
    """Return what was streamed, and what was to be expected where the law of tokens is known."""
    found = stream(
        problem.attention,
        problem.prompt,
        problem.queries,
        lengths,
        covariance=covariance,
        linear=linear,
        folder=folder,
        every=every,
        watch=watch,
    )
    if isinstance(problem.prompt, Path):
        return StreamReport(found, found.output[-1], False, None, None)
    law = problem.prompt.measure
    with jax.enable_x64(True):
        limits = [np.asarray(problem.attention(law, query)) for query in problem.queries]
    return StreamReport(found, np.stack(limits), True, *_expected(problem, law, found))


def _expected(
    problem: StreamProblem, law: AbstractMeasure, found: StreamedAttention
) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    """Return mean square distances and effective tokens; of too sharp queries nothing is known."""
    lengths, head = found.lengths.astype(np.float64), problem.attention
    try:
        exact = [
            prompt_moments(head, law, query, lengths, kind="exact") for query in problem.queries
        ]
    except (KindUnavailableError, AccuracyError) as refusal:  # the stream is done: keep it
        warnings.warn(f"There is no exact theory to compare with: {refusal}", stacklevel=3)
        return None, None
    squares, tokens = [each.mse for each in exact], [each.effective_tokens for each in exact]
    return np.stack(squares, axis=1), np.stack(tokens, axis=1)
