"""Monte Carlo over prompts: any law, any attention, with an error bar and a word of warning."""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Array
from promptlimit._inputs import require_samples
from promptlimit.attention import AbstractAttention
from promptlimit.finite._precision import in_double
from promptlimit.finite._problem import Problem
from promptlimit.finite._rules import Effort
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.parallel import Program, agreed, in_chunks

MEMORY_BUDGET = 2**26
"""Bytes that the prompts simulated at one time may take."""

LARGEST_PROMPT = 2**30
"""Bytes one prompt may take."""

_COPIES = 4
"""How many arrays of the size of a prompt its simulation holds: draws, tokens, scores, products."""

_FIRST_LOOK = 256
"""Prompts before the relative error is first looked at; then at every doubling."""

DEFAULT_RTOL = 0.01
DEFAULT_SAMPLES = 2**16


class UnreliableErrorWarning(UserWarning):
    """An estimate whose error bar cannot be trusted, or which stopped before its target."""


@dataclasses.dataclass(frozen=True)
class Stopping:
    """When to stop: at a relative standard error of the mean square, or at a number of prompts."""

    rtol: float
    samples: int
    rtol_was_asked: bool


def stopping(effort: Effort) -> Stopping:
    """Return when to stop; a number of prompts given without `rtol` is used to the last."""
    rtol, samples = effort.rtol, effort.samples
    if rtol is not None and not 0.0 < rtol < math.inf:
        raise ValueError(f"`rtol` must be positive, got {rtol}. It is a relative standard error.")
    require_samples(samples)
    by_default = DEFAULT_RTOL if samples is None else 0.0
    target = by_default if rtol is None else float(rtol)
    return Stopping(target, samples or DEFAULT_SAMPLES, rtol is not None)


class Simulation(eqx.Module):
    """What is simulated: prompts of tokens from a law, each read at its own query.

    Prompt i draws its query and its tokens from `fold_in(key, i)`, so that results depend on the
    key alone, whatever the chunks and the devices.
    """

    attention: AbstractAttention
    measure: AbstractMeasure
    queries: AbstractMeasure
    including_query: bool = eqx.field(static=True)
    wrt: str | None = eqx.field(static=True)
    key: PRNGKeyArray

    @classmethod
    def of(cls, problem: Problem, key: PRNGKeyArray) -> "Simulation":
        """Return the simulation of a problem in double precision; call inside `enable_x64`."""
        attention, measure = in_double(problem.attention), in_double(problem.measure)
        queries = in_double(problem.queries.as_measure())
        return cls(attention, measure, queries, problem.including_query, problem.wrt, key)

    def draw(self, count: int, index: JaxArray) -> tuple[JaxArray, JaxArray]:
        """Return query and tokens of the prompt of this index."""
        query_key, token_key = jax.random.split(jax.random.fold_in(self.key, index))
        query = self.queries.sample(1, key=query_key)[0]
        return query, self.measure.sample(count, key=token_key)

    def read(self, prompt: AbstractMeasure, query: JaxArray) -> JaxArray:
        """Return what is compared: the output, or a gradient of it."""
        if self.wrt is None:
            return self.attention(prompt, query)
        return self.attention.jacobian(prompt, query, wrt=self.wrt)

    def read_tokens(self, tokens: JaxArray, query: JaxArray) -> JaxArray:
        """Return the same of finitely many tokens, the query among them if it should be."""
        prompt = Empirical(tokens)
        return self.read(prompt.including(query) if self.including_query else prompt, query)


class Batch(NamedTuple):
    """What is measured on prompts.

    Attributes:
        program: (simulation, tokens a prompt, *constants), indices -> arrays, one row a prompt.
        constants: what it needs besides.
    """

    program: Program
    constants: tuple[Any, ...]


def simulated(
    simulation: Simulation, length: float, stop: Stopping, batch: Batch
) -> tuple[Array, ...]:
    """Return what `batch` makes of each prompt, stacked; the first of it is the squared error.

    The decision to stop is taken after the same numbers of prompts whatever the chunks and the
    devices.
    """
    dim = simulation.measure.dim
    count = tokens_that_fit(length, dim)
    chunk = chunk_of_prompts(count * dim * _COPIES, min(stop.samples, _FIRST_LOOK))
    chunks = in_chunks(batch.program, (simulation, count, *batch.constants), chunk)
    pieces: list[tuple[Array, ...]] = []
    look = min(_FIRST_LOOK, stop.samples)
    while True:
        pieces += islice(chunks, -(-look // chunk) - len(pieces))
        columns = tuple(np.concatenate(column)[:look] for column in zip(*pieces, strict=True))
        if look == stop.samples or agreed(np.array(_relative_error(columns[0]) <= stop.rtol)):
            break
        look = min(2 * look, stop.samples)
    warn_when_unreliable(columns[0], stop)
    return columns


def tokens_that_fit(length: float, dim: int) -> int:
    """Return a length as a number of tokens, or refuse a prompt that memory will not hold."""
    most = LARGEST_PROMPT // (8 * dim * _COPIES)
    if length > most:
        raise ValueError(
            f"`length` must be at most {most} to simulate prompts of dimension {dim}, "
            f"got {length:g}. Ask for a kind that does not simulate."
        )
    return int(length)


def chunk_of_prompts(entries: int, most: int) -> int:
    """Return how many prompts of so many numbers to hold at a time: a power of two."""
    fitting = max(1, MEMORY_BUDGET // (8 * entries))
    return min(2 ** math.ceil(math.log2(most)), 2 ** int(math.log2(fitting)))


def standard_error(values: Array) -> float:
    """Return the standard error of the mean of independent values."""
    return float(values.std(ddof=1) / math.sqrt(values.size))


def _relative_error(squares: Array) -> float:
    mean = float(squares.mean())
    return standard_error(squares) / mean if mean > 0.0 else 0.0


def warn_when_unreliable(squares: Array, stop: Stopping) -> bool:
    r"""Warn when the error bar is itself uncertain, or larger than was asked for, and say if so.

    The variance of n values of kurtosis $\kappa$ is known to a relative $\sqrt{(\kappa-1)/n}$; past
    one half, a few prompts decide the error bar. Few values hide their tails, so that $\kappa$ is
    taken to be at least a Gaussian's.
    """
    count, reached = squares.size, _relative_error(squares)
    centred = (squares - squares.mean()) ** 2
    variance = float(centred.mean())
    kurtosis = max(3.0, float((centred**2).mean()) / variance**2) if variance > 0.0 else 1.0
    uneven = kurtosis - 1.0 > 0.25 * count
    if uneven:
        equal = squares.sum() ** 2 / np.sum(squares**2)
        warnings.warn(
            f"The squared errors of {count} prompts are so uneven, worth {equal:.1f} equal ones, "
            "that their standard error cannot be trusted. Raise `samples`, or ask for "
            "kind='exact' where it is possible.",
            UnreliableErrorWarning,
            stacklevel=5,
        )
    short = stop.rtol_was_asked and reached > stop.rtol
    if short:
        warnings.warn(
            f"{count} prompts reach a relative standard error of {reached:.2g}, not the "
            f"{stop.rtol:g} asked for. Raise `samples`.",
            UnreliableErrorWarning,
            stacklevel=5,
        )
    return uneven or short


def of_each_length(
    problem: Problem, effort: Effort, batch: Batch
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Yield the place of each finite length and what `batch` makes of its prompts."""
    if effort.key is None:
        raise ValueError("`key` must be given to simulate prompts, got None.")
    stop = stopping(effort)
    for place in np.flatnonzero(np.isfinite(problem.lengths)):
        with jax.enable_x64(True):  # not while this waits
            simulation = Simulation.of(problem, effort.key)
            found = simulated(simulation, float(problem.lengths[place]), stop, batch)
        yield int(place), found


def output_batch(limit: Array, tilt: Array | None) -> Batch:
    """Return the batch of squared errors, deviations from the limit and participations.

    Args:
        limit: what the outputs deviate from.
        tilt: the scores of the weights whose participation is wanted; NaN without.
    """
    return Batch(_outputs, (limit, tilt))


def gradient_batch(limit: Array) -> Batch:
    """Return the batch of squared distances of a parameter gradient from its limit."""
    return Batch(_gradients, (limit,))


def _outputs(
    shared: tuple[Simulation, int, JaxArray, JaxArray | None], indices: JaxArray
) -> tuple[JaxArray, JaxArray, JaxArray]:
    simulation, count, limit, tilt = shared

    def one(index: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray]:
        query, tokens = simulation.draw(count, index)
        deviation = simulation.read_tokens(tokens, query) - limit
        weights = jnp.full((1,), jnp.nan)
        if tilt is not None:
            own = [query[None]] if simulation.including_query else []
            weights = jax.nn.softmax(jnp.concatenate([tokens, *own]) @ tilt)
        return jnp.sum(deviation**2), deviation, jnp.sum(weights**2)

    return jax.vmap(one)(indices)


def _gradients(shared: tuple[Simulation, int, JaxArray], indices: JaxArray) -> tuple[JaxArray]:
    simulation, count, limit = shared

    def one(index: JaxArray) -> JaxArray:
        query, tokens = simulation.draw(count, index)
        return jnp.sum((simulation.read_tokens(tokens, query) - limit) ** 2)

    return (jax.vmap(one)(indices),)
