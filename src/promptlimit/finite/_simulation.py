"""Simulation of random prompts for any law and any attention, with standard errors and warnings.

A *program* is a compiled function that returns arrays for a chunk of prompts, one row per prompt.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
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
from promptlimit.attention import AbstractAttention, AbstractHead, attend_through
from promptlimit.errors import ArgumentError, UnreliableErrorWarning
from promptlimit.finite._problem import Problem
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.parallel import Program, agreed, in_chunks
from promptlimit.prompts import Prompt
from promptlimit.rules import Effort, unwrap

MEMORY_BUDGET = 2**26
"""The largest size in bytes of the prompts in one chunk."""

LARGEST_PROMPT = 2**30
"""The largest size in bytes of one prompt."""

_COPIES = 4
"""The number of arrays of the size of a prompt that exist during its simulation."""

_FIRST_LOOK = 256
"""The error is first checked after this number of prompts, and again after each doubling."""


class PromptSimulation(eqx.Module):
    """Attention over random prompts, each with a query drawn from `queries`.

    Prompt i is drawn with the keys `split(fold_in(key, i))`, the first of which is for the query.
    Results therefore do not depend on the size of chunks or the number of devices.
    """

    attention: AbstractAttention
    prompt: Prompt
    queries: AbstractMeasure
    including_query: bool = eqx.field(static=True)
    wrt: str | None = eqx.field(static=True)
    causal: bool = eqx.field(static=True)

    @classmethod
    def of(cls, problem: Problem) -> "PromptSimulation":
        """Return the simulation of a problem; call inside `enable_x64`."""
        modules = problem.attention, problem.prompt, problem.queries.as_measure()
        return cls(*modules, problem.including_query, problem.wrt, problem.causal)

    def draw(self, count: int, keys: Key[JaxArray, " 2"]) -> tuple[JaxArray, JaxArray]:
        """Return the query of a prompt and `count` random tokens."""
        query = self.queries.sample(1, key=keys[0])[0]
        return query, self.prompt.sample(count, key=keys[1])

    def read(self, prompt: AbstractMeasure, query: JaxArray) -> JaxArray:
        """Return the output over a measure, or its gradient in `wrt`."""
        if self.wrt is None:
            return self.attention(prompt, query)
        return self.attention.jacobian(prompt, query, wrt=self.wrt)

    def read_tokens(self, tokens: JaxArray, query: JaxArray) -> JaxArray:
        """Return the output, or its gradient in `wrt`, over random and known tokens."""
        if self.causal:
            layers = unwrap(self.attention.as_layers())
            return attend_through(layers, Empirical(tokens), query, causal=True)
        heads = self.attention.as_heads() if self.wrt is None else None
        if heads and all(head.kernel == "softmax" for head in heads):
            return self._read_heads(heads, tokens, query)
        return self.read(Empirical(self._with_known(tokens, query)), query)

    def weights(self, tokens: JaxArray, query: JaxArray, tilt: JaxArray) -> JaxArray:
        """Return the softmax weights of one head.

        They are the weights of the random tokens, the fixed tokens, the query if it is a token, and
        the sinks, in this order. Subtracting the token of largest score from all tokens keeps the
        digits of large scores.
        """
        known = self._with_known(tokens, query)
        top = known[jnp.argmax(known @ tilt)]
        scores = (known - top[None]) @ tilt
        if self.prompt.offset != 0.0 or self.prompt.slope != 0.0:
            offsets = self.prompt.offsets(len(tokens)).astype(scores.dtype)
            scores = scores.at[: len(tokens)].add(offsets)
        sinks = [] if self.prompt.sinks is None else [self.prompt.sinks - top @ tilt]
        return jax.nn.softmax(jnp.concatenate([scores, *sinks]))

    def _read_heads(
        self, heads: Sequence[AbstractHead], tokens: JaxArray, query: JaxArray
    ) -> JaxArray:
        residual, known = self.attention.residual_matrix(), self._with_known(tokens, query)
        output = 0.0 * query[0] if residual is None else residual @ query
        for head in heads:
            weights = self.weights(tokens, query, head.key_query @ query)
            mean = weights[: len(known)] @ known
            output = head.value @ mean + output
        return output

    def _with_known(self, tokens: JaxArray, query: JaxArray) -> JaxArray:
        """Return random tokens, then fixed tokens, then the query if it is a token."""
        fixed = [] if self.prompt.fixed is None else [self.prompt.fixed]
        own = [query[None]] if self.including_query else []
        return jnp.concatenate([tokens, *fixed, *own])


def simulated_lengths(
    problem: Problem, effort: Effort, program: Program, *constants: Array | None
) -> Iterator[tuple[int, tuple[Array, ...]]]:
    """Yield the index of each finite length, and the arrays of a program over its prompts.

    All lengths use the same key.

    Args:
        problem: the problem to simulate.
        effort: the number of prompts, or the standard error at which to stop.
        program: a function of (simulation, tokens per prompt, *constants) and keys that returns
            arrays, one row per prompt. The first array contains squared errors.
        constants: the further arguments of the program.
    """
    for place in np.flatnonzero(np.isfinite(problem.lengths)):
        with jax.enable_x64(True):  # entered at every step: it must be off while the caller runs
            length = float(problem.lengths[place])
            chunks, chunk = prompt_chunks(problem, length, effort, program, *constants)
            columns = rows_until_accurate(chunks, chunk, effort)
        warn_when_unreliable(columns[0], effort)
        yield int(place), columns


def prompt_chunks(
    problem: Problem, length: float, effort: Effort, program: Program, *constants: Any
) -> tuple[Iterator[Any], int]:
    """Return an endless iterator over chunks of prompts of one length, and the size of a chunk.

    The iterator yields the arrays of the program for each chunk. The arguments are those of
    `simulated_lengths`. Call inside `enable_x64`.
    """
    count = tokens_that_fit(length, problem.prompt.dim)
    entries = numbers_of_prompt(problem, count, _COPIES)
    chunk = chunk_of_prompts(entries, min(_FIRST_LOOK, effort.most_samples))
    shared = PromptSimulation.of(problem), count, *constants
    return simulated_chunks(program, shared, chunk, unwrap(effort.key)), chunk


def simulated_chunks(program: Program, shared: Any, chunk: int, key: PRNGKeyArray) -> Iterator[Any]:
    """Return an iterator over the arrays of a program, whose first argument is `shared`."""
    return in_chunks(program, shared, chunk, key=key, draws=2)


def rows_until_accurate(
    chunks: Iterator[tuple[Array, ...]], chunk: int, effort: Effort
) -> tuple[Array, ...]:
    """Return as many rows of the chunks as `effort` requires.

    A chunk consists of arrays of `chunk` rows, one per prompt. The first array contains squared
    errors. The number of rows is doubled until their mean is accurate enough or the largest number
    is reached.
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
    """Return a length as an integer; raise if a prompt of this length exceeds the memory."""
    most = LARGEST_PROMPT // (8 * dim * _COPIES)
    if length > most:
        raise ArgumentError(
            "length",
            f"must be at most {most} to simulate prompts of dimension {dim}, "
            f"got {length:g}. Choose a kind that does not simulate prompts.",
        )
    return int(length)


def numbers_of_prompt(problem: Problem, count: int, copies: int) -> int:
    """Return the number of array entries in the simulation of one prompt of `count` tokens."""
    known = problem.known.size
    return count * problem.prompt.dim * copies + problem.attention.scratch_size(count + known)


def chunk_of_prompts(entries: int, most: int) -> int:
    """Return the number of prompts per chunk, a power of two.

    `entries` is the number of array entries per prompt, and `most` the number of all prompts.
    """
    fitting = max(1, MEMORY_BUDGET // (8 * entries))
    return min(2 ** math.ceil(math.log2(most)), 2 ** int(math.log2(fitting)))


def _relative_error(squares: Array) -> float:
    mean = float(squares.mean())
    return float(standard_error(squares)) / mean if mean > 0.0 else 0.0


def warn_when_unreliable(squares: Array, effort: Effort) -> bool:
    r"""Warn if the standard error is uncertain or larger than requested; return whether it is.

    The variance of n values of kurtosis $\kappa$ has a relative error of $\sqrt{(\kappa-1)/n}$. If
    it exceeds one half, a few prompts determine the standard error. $\kappa$ is taken to be at
    least 3, as for a Gaussian, because the kurtosis of few values is often too small.
    """
    count, reached = squares.size, _relative_error(squares)
    centred = (squares - squares.mean()) ** 2
    variance = float(centred.mean())
    kurtosis = max(3.0, float((centred**2).mean()) / variance**2) if variance > 0.0 else 1.0
    uneven = kurtosis - 1.0 > 0.25 * count
    if uneven:
        equal = squares.sum() ** 2 / np.sum(squares**2)
        warnings.warn(
            f"A few of the {count} squared errors dominate (their effective number is "
            f"{equal:.1f}), so their standard error cannot be trusted. Raise `samples`, or use "
            "the exact value if it is available.",
            UnreliableErrorWarning,
            stacklevel=5,
        )
    short = effort.rtol is not None and reached > effort.rtol
    if short:
        warnings.warn(
            f"{count} prompts reach a relative standard error of {reached:.2g}, not the "
            f"requested {effort.rtol:g}. Raise `samples`.",
            UnreliableErrorWarning,
            stacklevel=5,
        )
    return uneven or short


def output_errors(
    shared: tuple[PromptSimulation, int, JaxArray, JaxArray | None],
    keys: Key[JaxArray, "prompts 2"],
) -> tuple[JaxArray, JaxArray, JaxArray, JaxArray]:
    """Return four arrays, one row per prompt.

    They are the squared errors, the deviations from the limit, the sums of squared weights, and the
    weights of known tokens and sinks. `shared` is (simulation, number of random tokens, limit,
    tilt). If the tilt is None, the sums are NaN, and the weights are empty.
    """
    simulation, count, limit, tilt = shared

    def one(own: Key[JaxArray, " 2"]) -> tuple[JaxArray, JaxArray, JaxArray, JaxArray]:
        query, tokens = simulation.draw(count, own)
        deviation = simulation.read_tokens(tokens, query) - limit
        weights = jnp.full((1,), jnp.nan)
        if tilt is not None:
            weights = simulation.weights(tokens, query, tilt)
        return jnp.sum(deviation**2), deviation, jnp.sum(weights**2), weights[count:]

    return jax.vmap(one)(keys)


def outputs_and_tokens(
    shared: tuple[PromptSimulation, int, JaxArray], keys: Key[JaxArray, "prompts 2"]
) -> tuple[JaxArray, JaxArray]:
    """Return deviations from the limit and the random tokens, one row per prompt.

    `shared` is (simulation, number of random tokens, limit).
    """
    simulation, count, limit = shared

    def one(own: Key[JaxArray, " 2"]) -> tuple[JaxArray, JaxArray]:
        query, tokens = simulation.draw(count, own)
        return simulation.read_tokens(tokens, query) - limit, tokens

    return jax.vmap(one)(keys)


def gradient_errors(
    shared: tuple[PromptSimulation, int, JaxArray], keys: Key[JaxArray, "prompts 2"]
) -> tuple[JaxArray]:
    """Return squared distances of a gradient from its limit, one row per prompt.

    `shared` is (simulation, number of random tokens, limit).
    """
    simulation, count, limit = shared

    def one(own: Key[JaxArray, " 2"]) -> JaxArray:
        query, tokens = simulation.draw(count, own)
        return jnp.sum((simulation.read_tokens(tokens, query) - limit) ** 2)

    return (jax.vmap(one)(keys),)
