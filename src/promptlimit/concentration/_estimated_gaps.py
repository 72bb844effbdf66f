"""Gaps of simulated prompts: every prompt serves all lengths, by its first tokens."""

import dataclasses
import math
from itertools import islice

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.concentration._queries import Queries
from promptlimit.finite import (
    MEMORY_BUDGET,
    Array,
    in_double,
    stopping,
    tokens_that_fit,
    warn_when_unreliable,
)
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.parallel import in_chunks

DEFAULT_SAMPLES = 4096

_COPIES = 8
_LARGEST_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Means over simulated prompts and queries.

    Attributes:
        value: mean squared distances from the limit, [n].
        cov: covariance of those means, [n, n].
        limit_square: mean square of the limit.
        samples: how many prompts there were.
    """

    value: Array
    cov: Array
    limit_square: float
    samples: int


class _Simulation(eqx.Module):
    attention: AbstractAttention
    measure: AbstractMeasure
    queries: AbstractMeasure
    including_query: bool = eqx.field(static=True)
    wrt: str | None = eqx.field(static=True)
    key: PRNGKeyArray

    def read(self, prompt: AbstractMeasure, query: JaxArray) -> JaxArray:
        """Return what is compared: the output, or a gradient of it."""
        if self.wrt is None:
            return self.attention(prompt, query)
        return self.attention.jacobian(prompt, query, wrt=self.wrt)

    def squares(self, counts: tuple[int, ...], index: JaxArray) -> JaxArray:
        """Return the squared distances at all lengths, then the square of the limit."""
        query_key, token_key = jax.random.split(jax.random.fold_in(self.key, index))
        query = self.queries.sample(1, key=query_key)[0]
        tokens = self.measure.sample(max(counts), key=token_key)
        limit = self.read(self.measure, query)
        found = []
        for count in counts:
            prompt = Empirical(tokens[:count])
            prompt = prompt.including(query) if self.including_query else prompt
            found.append(jnp.sum((self.read(prompt, query) - limit) ** 2))
        return jnp.stack([*found, jnp.sum(limit**2)])


def _batch(shared: tuple[_Simulation, tuple[int, ...]], indices: JaxArray) -> JaxArray:
    simulation, counts = shared
    return jax.vmap(lambda index: simulation.squares(counts, index))(indices)


def estimated_gap(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: Queries,
    lengths: Array,
    *,
    wrt: str | None,
    including_query: bool,
    key: PRNGKeyArray,
    samples: int | None,
) -> Estimate:
    """Return the gaps of simulated prompts, each with its own query, at finite lengths.

    Prompt i draws its query and its tokens from `fold_in(key, i)`, so results depend on the key
    and the number of prompts alone, not on the devices; estimates at different lengths share their
    prompts.
    """
    stop = stopping(None, DEFAULT_SAMPLES if samples is None else samples)
    counts = tuple(tokens_that_fit(float(length), measure.dim) for length in lengths)
    chunk = _chunk(counts, measure.dim, stop.samples)
    with jax.enable_x64(True):
        law = queries.law
        law = Empirical(queries.points, queries.weights) if law is None else law
        simulation = _Simulation(
            in_double(attention), in_double(measure), in_double(law), including_query, wrt, key
        )
        chunks = in_chunks(_batch, (simulation, counts), chunk)
        rows = list(islice(chunks, -(-stop.samples // chunk)))
    squares = np.concatenate(rows)[: stop.samples]
    for column in squares.T[:-1]:
        if warn_when_unreliable(column, stop):
            break
    cov = np.atleast_2d(np.cov(squares[:, :-1], rowvar=False)) / stop.samples
    means = squares.mean(axis=0)
    return Estimate(means[:-1], cov, float(means[-1]), stop.samples)


def _chunk(counts: tuple[int, ...], dim: int, samples: int) -> int:
    """Return how many prompts to hold at a time: a power of two."""
    fitting = max(1, MEMORY_BUDGET // (8 * sum(counts) * dim * _COPIES))
    wanted = min(samples, _LARGEST_CHUNK, fitting)
    return 2 ** int(math.log2(wanted))
