"""The gradients that training follows: the fast layout of regression, and any other task."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from promptlimit.attention import AbstractAttention, Factored, LinearAttention, SoftmaxAttention
from promptlimit.dynamics._batches import Stream, stream
from promptlimit.dynamics._law_sums import law_sums
from promptlimit.dynamics._objective import simulated_objective
from promptlimit.dynamics._packed_sums import packed_sums
from promptlimit.dynamics._regression_step import Lesson, regression_gradient
from promptlimit.dynamics._token_sums import token_sums
from promptlimit.dynamics._training_loop import Gradient
from promptlimit.dynamics._training_request import TrainingRequest
from promptlimit.tasks import LinearRegression
from promptlimit.tasks._heads import merged_head

Cell = tuple[tuple[int, int | None], ...]


def stacked(request: TrainingRequest, cell: Cell) -> Any:
    """Return the arrays of the starts, each [members, heads, ...], in single precision."""

    def arrays(attention: AbstractAttention) -> Any:
        with jax.enable_x64(True):
            moving = eqx.filter(as_linear(attention), eqx.is_inexact_array)
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), moving)

    rows = []
    for _, seed in cell:
        seeds = range(request.seeds) if seed is None else [seed]
        rows.append([arrays(start[each]) for start in request.starts for each in seeds])
    members = [jax.tree.map(lambda *leaves: np.stack(leaves), *row) for row in rows]
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *members)


def as_linear(attention: AbstractAttention) -> AbstractAttention:
    """Return the same arrays as a linear attention: what moves does not know its kernel."""
    if isinstance(attention, SoftmaxAttention):
        return LinearAttention(attention.key_query, attention.value)
    if isinstance(attention, Factored):
        factors = attention.key_weight, attention.query_weight, attention.value_weight
        return Factored("linear", *factors, attention.output, scale=attention.scale)
    return attention


def member_keys(request: TrainingRequest, cell: Cell) -> list[PRNGKeyArray]:
    """Return what the prompts of each member come from."""
    shared = jax.random.fold_in(request.key, 0)
    return [shared if seed is None else jax.random.fold_in(shared, seed + 1) for _, seed in cell]


def gradient_of(request: TrainingRequest, cell: Cell) -> Gradient:
    """Return the gradient of twice the task's loss over a step's batch, for each head."""
    per_start = request.seeds if cell[0][1] is None else 1
    if isinstance(request.task, LinearRegression):
        kernels = tuple(kernel for kernel in request.kernels for _ in range(per_start))
        lengths = tuple(length for length, _ in cell)
        prompts = stream(request.task, lengths, request.batch, member_keys(request, cell))
        return _regression(request, prompts, kernels)
    return _simulated(request, cell, per_start)


def _regression(request: TrainingRequest, prompts: Stream, kernels: tuple[str, ...]) -> Gradient:
    with jax.enable_x64(True):
        rest = eqx.filter(as_linear(request.starts[0][0]), eqx.is_inexact_array, inverse=True)
    sums = law_sums if request.sampling == "law" else token_sums
    if len(prompts.lengths) > 1:
        sums = packed_sums
    task = request.task
    if not isinstance(task, LinearRegression):
        raise AssertionError("the fast layout is that of regression")
    lesson = Lesson(task, prompts, kernels, sums)

    @jax.vmap
    @jax.vmap
    def merged(arrays: Any) -> tuple[Array, Array]:
        _, key_query, value = merged_head(eqx.combine(arrays, rest))
        return key_query, value[-1]

    def gradient(parameters: Any, step: Array) -> Any:
        (key_query, row), back = jax.vjp(merged, parameters)
        _, *slopes = regression_gradient(lesson, step, key_query, row)
        return back(tuple(slopes))[0]

    return gradient


def _simulated(request: TrainingRequest, cell: Cell, per_start: int) -> Gradient:
    """Return the gradient over prompts that the task draws itself; a program for each start."""
    keys = [
        jax.random.fold_in(key, length)
        for key, (length, _) in zip(member_keys(request, cell), cell, strict=True)
    ]
    starts = [eqx.partition(start[0], eqx.is_inexact_array) for start in request.starts]

    def of_member(arrays: Any, key: PRNGKeyArray, length: int) -> Any:
        drawn = simulated_objective(request.task, float(length), samples=request.batch, key=key)
        found = []
        for index, (moving, rest) in enumerate(starts):

            def twice(one: Any, moving: Any = moving, rest: Any = rest) -> Array:
                own = jax.tree.unflatten(jax.tree.structure(moving), jax.tree.leaves(one))
                return 2.0 * drawn(eqx.combine(own, rest))

            own = slice(index * per_start, (index + 1) * per_start)
            part = jax.tree.map(lambda leaf, own=own: leaf[own], arrays)
            found.append(jax.vmap(jax.grad(twice))(part))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found)

    def gradient(parameters: Any, step: Array) -> Any:
        rows = [
            of_member(
                jax.tree.map(lambda leaf, i=i: leaf[i], parameters),
                jax.random.fold_in(key, step),
                cell[i][0],
            )
            for i, key in enumerate(keys)
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)

    return gradient
