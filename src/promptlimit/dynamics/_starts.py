"""Starts of training: random factors, and validation of the argument `start`.

"The paper" is Boursier and Boyer, arXiv:2512.11784.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from promptlimit._arrays import require_whole
from promptlimit.attention import (
    AbstractAttention,
    Factored,
    array_names,
)
from promptlimit.dynamics._risks import Parametrisation, is_one_head, kernel_of
from promptlimit.errors import ArgumentError
from promptlimit.tasks import (
    AbstractTask,
    require_fitting_task,
    require_task,
)

Start: TypeAlias = AbstractAttention | Callable[[PRNGKeyArray], AbstractAttention]
"""An attention, or a function of a random key that returns an attention, called once per seed."""

Starts: TypeAlias = tuple[tuple[AbstractAttention, ...], ...]
"""The attention of each start and seed, indexed [start][seed]."""


def uniform_factors(dim: int, *, key: PRNGKeyArray, kernel: str = "softmax") -> Factored:
    r"""Return a head with random key, query, value and output weights $K$, $Q$, $V$ and $O$.

    Entries are uniform between $-1/\sqrt{d+1}$ and $1/\sqrt{d+1}$, the default of PyTorch. $K$, $Q$
    and $V$ have the shape $[d+1,d+1]$, $O$ has the shape $[1,d+1]$, and scores are multiplied by
    $1/\sqrt{d+1}$. The experiments in section 6 of the paper use this start.

    Args:
        dim: $d$, the dimension of the covariates of a regression with one label.
        key: the random key.
        kernel: "softmax" or "linear"; the weights do not depend on it.

    >>> import jax, promptlimit as pl
    >>> start = pl.dynamics.uniform_factors(5, key=jax.random.key(0))
    >>> print(start.output_dim, start.token_dim, f"{start.scale**2:.4f}")
    1 6 0.1667
    """
    require_whole("dim", dim, 1)
    with jax.enable_x64(True):
        size = dim + 1
        bound = 1.0 / math.sqrt(size)
        return Factored(kernel, *_uniform(key, bound, size), scale=bound)


@partial(jax.jit, static_argnums=2)
def _uniform(key: PRNGKeyArray, bound: Array, size: int) -> list[Array]:
    """Return K, Q, V and O for d + 1 = `size`, with entries between -bound and bound."""
    shapes = [(size, size)] * 3 + [(1, size)]
    return [
        jax.random.uniform(own_key, shape, jnp.float64, -bound, bound)
        for own_key, shape in zip(jax.random.split(key, 4), shapes, strict=True)
    ]


def require_start(start: AbstractAttention, task: AbstractTask) -> None:
    """Raise an error if an attention does not fit the task or has no arrays to train."""
    require_task(task)
    require_fitting_task("start", start, task)
    if not array_names(start):
        raise ArgumentError(
            "start",
            f"must have at least one array to train, got {type(start).__name__} without any.",
        )


def starts_of_seeds(
    start: Start | Sequence[Start], task: AbstractTask, seeds: int, key: PRNGKeyArray
) -> Starts:
    """Return the attention of each start and seed, validated; functions get one key per seed."""
    several = list(start) if isinstance(start, Sequence) else [start]
    if not several:
        raise ArgumentError("start", "must contain at least one attention, got none.")
    keys = [jax.random.fold_in(key, seed) for seed in range(seeds)]
    for one in several:
        if not (isinstance(one, AbstractAttention) or callable(one)):
            raise ArgumentError(
                "start",
                "must be an attention, a function of a key that returns one, or a list of "
                f"these, got {type(one).__name__}.",
            )
    starts = tuple(
        tuple(one if isinstance(one, AbstractAttention) else one(seed_key) for seed_key in keys)
        for one in several
    )
    for row in starts:
        for attention in row:
            require_start(attention, task)
    _require_alike(starts)
    return starts


def _require_alike(starts: Starts) -> None:
    """Raise an error if the starts cannot be trained in one call of `sgd`."""
    everyone = [attention for row in starts for attention in row]
    shapes = {_shapes(attention) for attention in everyone}
    if len(shapes) > 1:
        raise ArgumentError(
            "start",
            "must contain attentions whose arrays have the same names and shapes, got "
            f"{len(shapes)} kinds. Train them in separate calls with the same key.",
        )
    different = _different(everyone)
    if not all(map(is_one_head, different)):
        # The seeds of a start share a compiled program.
        if any(len(_different(row)) > 1 for row in starts):
            raise ArgumentError(
                "start",
                "must return attentions that differ only in their arrays, got other differences "
                "between two keys. Pass one function for each.",
            )
        return
    if len({Parametrisation(attention, np.float32) for attention in different}) > 1:
        raise ArgumentError(
            "start",
            "must contain attentions of one parametrisation, got several, such as two "
            "scales of the scores. Train them in separate calls with the same key.",
        )
    if any(len({kernel_of(attention) for attention in row}) > 1 for row in starts):
        raise ArgumentError(
            "start",
            "must return the same kernel for every key, got softmax and linear. Pass one "
            "function for each kernel.",
        )


def _shapes(attention: AbstractAttention) -> tuple[tuple[str, tuple[int, ...]], ...]:
    leaves = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
    return tuple(zip(array_names(attention), (leaf.shape for leaf in leaves), strict=True))


def _different(attentions: Sequence[AbstractAttention]) -> list[AbstractAttention]:
    """Return one representative of each class of attentions that differ only in trained arrays."""
    rests: list[tuple[AbstractAttention, Any]] = []
    for attention in attentions:
        rest = eqx.filter(attention, eqx.is_inexact_array, inverse=True)
        if not any(eqx.tree_equal(rest, other) is True for _, other in rests):
            rests.append((attention, rest))
    return [attention for attention, _ in rests]
