"""Monte Carlo over tasks and prompts: any task, any attention, with an error bar."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit.attention import AbstractAttention
from promptlimit.measures import Empirical
from promptlimit.tasks._abstract import AbstractTask

DEFAULT_SAMPLES = 2**14

_MEMORY_BUDGET = 2**26
_LARGEST_PROMPT = 2**30
_COPIES = 4
_MOST_AT_ONCE = 1024

Moments = tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]
"""Means of several arrays over prompts, and their standard errors."""


def simulated_risk(
    attention: AbstractAttention,
    task: AbstractTask,
    length: float,
    key: PRNGKeyArray,
    samples: int,
) -> tuple[float, float]:
    """Return the mean loss over simulated prompts and its standard error.

    Prompt i comes from `fold_in(key, i)`, so that a key has one answer whatever the chunks.
    Call inside `jax.enable_x64(True)`.
    """
    mean, error = _over_prompts(_losses, attention, task, length, key, samples)
    return float(mean[0]), float(error[0])


def simulated_gradient(
    attention: AbstractAttention,
    task: AbstractTask,
    length: float,
    key: PRNGKeyArray,
    samples: int,
) -> Moments:
    """Return means and standard errors of the gradient, one array for each of the attention's."""
    return _over_prompts(_gradients, attention, task, length, key, samples)


def _over_prompts(
    measured: Callable[..., list[Array]],
    attention: AbstractAttention,
    task: AbstractTask,
    length: float,
    key: PRNGKeyArray,
    samples: int,
) -> Moments:
    count = None if math.isinf(length) else _tokens_that_fit(length, task.token_dim)
    chunk = _chunk(1 if count is None else count, task.token_dim, samples)
    sums = squares = None
    for start in range(0, samples, chunk):
        indices = jnp.arange(start, start + chunk, dtype=jnp.uint32)
        columns = [np.asarray(each) for each in measured(attention, task, count, key, indices)]
        columns = [each[: samples - start] for each in columns]
        if sums is None or squares is None:
            origin = [each.mean(axis=0) for each in columns]
            sums = [np.zeros_like(each) for each in origin]
            squares = [np.zeros_like(each) for each in origin]
        for i, each in enumerate(columns):
            sums[i] += (each - origin[i]).sum(axis=0)
            squares[i] += ((each - origin[i]) ** 2).sum(axis=0)
    if sums is None or squares is None:
        raise AssertionError("at least two prompts are simulated")
    means = [np.asarray(a + total / samples) for a, total in zip(origin, sums, strict=True)]
    errors = [
        np.sqrt(np.maximum(square - total**2 / samples, 0.0) / (samples - 1) / samples)
        for square, total in zip(squares, sums, strict=True)
    ]
    return means, [np.asarray(each) for each in errors]


def _tokens_that_fit(length: float, dim: int) -> int:
    most = _LARGEST_PROMPT // (8 * dim * _COPIES)
    if length > most:
        raise ValueError(
            f"`length` must be at most {most} to simulate prompts of dimension {dim}, "
            f"got {length:g}. Ask for math.inf, the limit."
        )
    return int(length)


def _chunk(count: int, dim: int, samples: int) -> int:
    """Return how many prompts to hold at a time, a power of two."""
    fitting = max(1, _MEMORY_BUDGET // (8 * count * dim * _COPIES))
    return min(_MOST_AT_ONCE, 2 ** int(math.log2(fitting)), 2 ** math.ceil(math.log2(samples)))


def _loss(
    attention: AbstractAttention,
    task: AbstractTask,
    count: int | None,
    key: PRNGKeyArray,
    index: Array,
) -> Array:
    """Return the loss on one prompt: its law, its tokens and one query, all from one index."""
    law_key, tokens_key, query_key = jax.random.split(jax.random.fold_in(key, index), 3)
    law, queries = task.draw(key=law_key)
    token = queries.sample(1, key=query_key)[0]
    prompt = law if count is None else Empirical(law.sample(count, key=tokens_key))
    return task.loss(attention(prompt, task.masked(token)), token)


@eqx.filter_jit
def _losses(
    attention: AbstractAttention,
    task: AbstractTask,
    count: int | None,
    key: PRNGKeyArray,
    indices: Array,
) -> list[Array]:
    return [jax.vmap(lambda index: _loss(attention, task, count, key, index))(indices)]


@eqx.filter_jit
def _gradients(
    attention: AbstractAttention,
    task: AbstractTask,
    count: int | None,
    key: PRNGKeyArray,
    indices: Array,
) -> list[Array]:
    def one(index: Array) -> list[Array]:
        slopes = eqx.filter_grad(_loss)(attention, task, count, key, index)
        return jax.tree.leaves(slopes)

    return jax.vmap(one)(indices)
