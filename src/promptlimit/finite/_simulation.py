"""Monte Carlo over prompts: any law, any attention, with an error bar and a word of warning."""

import math
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Key, PRNGKeyArray

from promptlimit._arrays import Array
from promptlimit._quadrature import standard_error
from promptlimit.attention import AbstractAttention, attend_through
from promptlimit.errors import ArgumentError, UnreliableErrorWarning
from promptlimit.finite._problem import Problem
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.parallel import Program, agreed, in_chunks
from promptlimit.rules import Effort, unwrap

MEMORY_BUDGET = 2**26
"""Bytes that the prompts simulated at one time may take."""

LARGEST_PROMPT = 2**30
"""Bytes one prompt may take."""

_COPIES = 4
"""How many arrays of the size of a prompt its simulation holds: draws, tokens, scores, products."""

_FIRST_LOOK = 256
"""Prompts before the relative error is first looked at; then at every doubling."""


class PromptSimulation(eqx.Module):
    """What is simulated: prompts of tokens from a law, each read at its own query.

    Prompt i draws its query and its tokens by the keys `split(fold_in(key, i))`, so that results
    depend on the key alone, whatever the chunks and the devices.
    """

    attention: AbstractAttention
    measure: AbstractMeasure
    queries: AbstractMeasure
    including_query: bool = eqx.field(static=True)
    wrt: str | None = eqx.field(static=True)
    causal: bool = eqx.field(static=True)

    @classmethod
    def of(cls, problem: Problem) -> "PromptSimulation":
        """Return the simulation of a problem; call inside `enable_x64`."""
        modules = problem.attention, problem.measure, problem.queries.as_measure()
        return cls(*modules, problem.including_query, problem.wrt, problem.causal)

    def draw(self, count: int, keys: Key[JaxArray, " 2"]) -> tuple[JaxArray, JaxArray]:
        """Return query and tokens of a prompt, by a key each."""
        query = self.queries.sample(1, key=keys[0])[0]
        return query, self.measure.sample(count, key=keys[1])

    def read(self, prompt: AbstractMeasure, query: JaxArray) -> JaxArray:
        """Return what is compared: the output, or a gradient of it."""
        if self.wrt is None:
            return self.attention(prompt, query)
        return self.attention.jacobian(prompt, query, wrt=self.wrt)

    def read_tokens(self, tokens: JaxArray, query: JaxArray) -> JaxArray:
        """Return the same of finitely many tokens, the query among them if it should be."""
        prompt = Empirical(tokens)
        if self.causal:
            layers = unwrap(self.attention.as_layers())
            return attend_through(layers, prompt, query, causal=True)
        return self.read(prompt.including(query) if self.including_query else prompt, query)


def simulated_lengths(
    problem: Problem, effort: Effort, program: Program, *constants: Array | None
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Yield the place of each finite length, and what a program makes of its prompts, stacked.

    Every length has the whole key. The decision to stop is taken after the same numbers of prompts
    whatever the chunks and the devices.

    Args:
        problem: at one query.
        effort: how many prompts, or when to stop.
        program: (simulation, tokens a prompt, *constants), keys -> arrays, one row a prompt, of
            which the first are squared errors.
        constants: what the program needs besides.
    """
    for place in np.flatnonzero(np.isfinite(problem.lengths)):
        with jax.enable_x64(True):  # not while this waits
            columns = _simulated(problem, float(problem.lengths[place]), effort, program, constants)
        warn_when_unreliable(columns[0], effort)
        yield int(place), columns


def _simulated(
    problem: Problem, length: float, effort: Effort, program: Program, constants: tuple[Any, ...]
) -> tuple[Array, ...]:
    chunks, chunk = prompt_chunks(problem, length, effort, program, *constants)
    return rows_until_known(chunks, chunk, effort)


def prompt_chunks(
    problem: Problem, length: float, effort: Effort, program: Program, *constants: Any
) -> tuple[Iterator[Any], int]:
    """Return what a program makes of prompts of a length, so many at a time, and how many.

    The program is that of `simulated_lengths`; call inside `enable_x64`.
    """
    count = tokens_that_fit(length, problem.measure.dim)
    entries = numbers_of_prompt(problem, count, _COPIES)
    chunk = chunk_of_prompts(entries, min(_FIRST_LOOK, effort.most_samples))
    shared = PromptSimulation.of(problem), count, *constants
    return simulated_chunks(program, shared, chunk, unwrap(effort.key)), chunk


def simulated_chunks(program: Program, shared: Any, chunk: int, key: PRNGKeyArray) -> Iterator[Any]:
    """Return what a program makes of the prompts of a simulation, so many at a time."""
    return in_chunks(program, shared, chunk, key=key, draws=2)


def rows_until_known(
    chunks: Iterator[tuple[Array, ...]], chunk: int, effort: Effort
) -> tuple[Array, ...]:
    """Return so many rows that the mean of the first array is known as well as it should be.

    Args:
        chunks: arrays, one row a prompt, of which the first are squared errors.
        chunk: how many rows each has.
        effort: how many rows, or when to stop.
    """
    most = effort.most_samples
    look = min(_FIRST_LOOK, most)
    pieces: list[tuple[Array, ...]] = []
    while True:
        pieces += islice(chunks, -(-look // chunk) - len(pieces))
        columns = tuple(np.concatenate(column)[:look] for column in zip(*pieces, strict=True))
        if look == most or agreed(np.array(_relative_error(columns[0]) <= effort.target)):
            return columns
        look = min(2 * look, most)


def tokens_that_fit(length: float, dim: int) -> int:
    """Return a length as a number of tokens, or refuse a prompt that memory will not hold."""
    most = LARGEST_PROMPT // (8 * dim * _COPIES)
    if length > most:
        raise ArgumentError(
            "length",
            f"must be at most {most} to simulate prompts of dimension {dim}, "
            f"got {length:g}. Ask for a kind that does not simulate.",
        )
    return int(length)


def numbers_of_prompt(problem: Problem, count: int, copies: int) -> int:
    """Return how many numbers the simulation of one prompt of so many tokens holds."""
    return count * problem.measure.dim * copies + problem.attention.scratch_size(count)


def chunk_of_prompts(entries: int, most: int) -> int:
    """Return how many prompts of so many numbers to hold at a time: a power of two."""
    fitting = max(1, MEMORY_BUDGET // (8 * entries))
    return min(2 ** math.ceil(math.log2(most)), 2 ** int(math.log2(fitting)))


def _relative_error(squares: Array) -> float:
    mean = float(squares.mean())
    return float(standard_error(squares)) / mean if mean > 0.0 else 0.0


def warn_when_unreliable(squares: Array, effort: Effort) -> bool:
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
    short = effort.rtol is not None and reached > effort.rtol
    if short:
        warnings.warn(
            f"{count} prompts reach a relative standard error of {reached:.2g}, not the "
            f"{effort.rtol:g} asked for. Raise `samples`.",
            UnreliableErrorWarning,
            stacklevel=5,
        )
    return uneven or short


def output_errors(
    shared: tuple[PromptSimulation, int, JaxArray, JaxArray | None],
    keys: Key[JaxArray, "prompts 2"],
) -> tuple[JaxArray, JaxArray, JaxArray]:
    """Return squared errors, deviations from the limit, and participations.

    Constants: the limit, and the tilt of the weights whose participation is wanted; NaN without.
    """
    simulation, count, limit, tilt = shared

    def one(own: Key[JaxArray, " 2"]) -> tuple[JaxArray, JaxArray, JaxArray]:
        query, tokens = simulation.draw(count, own)
        deviation = simulation.read_tokens(tokens, query) - limit
        weights = jnp.full((1,), jnp.nan)
        if tilt is not None:
            last = [query[None]] if simulation.including_query else []
            weights = jax.nn.softmax(jnp.concatenate([tokens, *last]) @ tilt)
        return jnp.sum(deviation**2), deviation, jnp.sum(weights**2)

    return jax.vmap(one)(keys)


def outputs_and_tokens(
    shared: tuple[PromptSimulation, int, JaxArray], keys: Key[JaxArray, "prompts 2"]
) -> tuple[JaxArray, JaxArray]:
    """Return deviations from the limit, the one constant, and the tokens that made them."""
    simulation, count, limit = shared

    def one(own: Key[JaxArray, " 2"]) -> tuple[JaxArray, JaxArray]:
        query, tokens = simulation.draw(count, own)
        return simulation.read_tokens(tokens, query) - limit, tokens

    return jax.vmap(one)(keys)


def gradient_errors(
    shared: tuple[PromptSimulation, int, JaxArray], keys: Key[JaxArray, "prompts 2"]
) -> tuple[JaxArray]:
    """Return squared distances of a parameter gradient from its limit, the one constant."""
    simulation, count, limit = shared

    def one(own: Key[JaxArray, " 2"]) -> JaxArray:
        query, tokens = simulation.draw(count, own)
        return jnp.sum((simulation.read_tokens(tokens, query) - limit) ** 2)

    return (jax.vmap(one)(keys),)
