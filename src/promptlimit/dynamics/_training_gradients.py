"""The gradients that training follows: the task's own, or over prompts that it draws."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._objective import simulated_objective, with_arrays
from promptlimit.dynamics._training_loop import Gradient
from promptlimit.dynamics._training_request import Cell, TrainingRequest
from promptlimit.tasks import BatchGradient, merged


def stacked(request: TrainingRequest, cell: Cell) -> list[Array]:
    """Return the arrays of the starts, each [members, heads, ...], in single precision."""

    def arrays(attention: AbstractAttention) -> list[np.ndarray]:
        moving = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
        return [np.asarray(leaf, np.float32) for leaf in moving]

    rows = []
    for _, seed in cell:
        seeds = range(request.seeds) if seed is None else [seed]
        heads = [arrays(start[each]) for start in request.starts for each in seeds]
        rows.append([np.stack(leaves) for leaves in zip(*heads, strict=True)])
    return [jnp.asarray(np.stack(leaves)) for leaves in zip(*rows, strict=True)]


def gradient_of(request: TrainingRequest, cell: Cell) -> Gradient:
    """Return the gradient of twice the task's loss over a step's batch, for each head."""
    own = request.task.batch_gradient(request.batches(cell))
    return _drawn(request, cell) if own is None else _through_heads(request, own)


def _through_heads(request: TrainingRequest, own: BatchGradient) -> Gradient:
    """Return a gradient in U and V, carried on to what they are made of."""
    start = request.starts[0][0]

    @jax.vmap
    @jax.vmap
    def read(leaves: list[Array]) -> tuple[Array, Array]:
        head = merged(with_arrays(start, leaves))
        return head.key_query, head.value

    def gradient(parameters: list[Array], step: Array) -> list[Array]:
        heads, back = jax.vjp(read, parameters)
        return back(own(step, *heads))[0]

    return gradient


def _drawn(request: TrainingRequest, cell: Cell) -> Gradient:
    """Return the gradient over prompts that the task draws itself; a program for each start."""
    batches = request.batches(cell)
    keys = [
        jax.random.fold_in(key, length)
        for key, length in zip(batches.keys, batches.lengths, strict=True)
    ]
    per_start = len(batches.kernels) // len(request.starts)

    def of_member(arrays: list[Array], key: PRNGKeyArray, length: int) -> list[Array]:
        drawn = simulated_objective(request.task, float(length), samples=request.batch, key=key)
        found = []
        for index, (start, *_) in enumerate(request.starts):

            def twice(leaves: Any, start: AbstractAttention = start) -> Array:
                return 2.0 * drawn(with_arrays(start, leaves))

            own = slice(index * per_start, (index + 1) * per_start)
            found.append(jax.vmap(jax.grad(twice))([leaf[own] for leaf in arrays]))
        return [jnp.concatenate(leaves) for leaves in zip(*found, strict=True)]

    def gradient(parameters: list[Array], step: Array) -> list[Array]:
        rows = [
            of_member([leaf[i] for leaf in parameters], jax.random.fold_in(key, step), length)
            for i, (key, length) in enumerate(zip(keys, batches.lengths, strict=True))
        ]
        return [jnp.stack(leaves) for leaves in zip(*rows, strict=True)]

    return gradient
