"""What a flow descends: the risk of an attention, exact or over simulated prompts."""

import dataclasses
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit.attention import AbstractAttention, KernelName, LinearAttention
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.tasks import AbstractObjective, AbstractTask, merged

_LARGEST = 2**31  # bytes of simulated tokens


class SimulatedObjective(AbstractObjective):
    """The mean loss over fixed prompts: common random numbers make it a function of parameters.

    Attributes:
        task: whose loss.
        prompts: the prompts, stacked along the first axis of every array.
        tokens: what each prompt is asked about, [samples, token_dim].
    """

    task: AbstractTask
    prompts: AbstractMeasure
    tokens: Float[Array, "samples token_dim"]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $\frac1n\sum_i\ell(T[\mu_i](\text{masked }z_i), z_i)$."""

        def loss(prompt: AbstractMeasure, token: Array) -> Array:
            return self.task.loss(attention._attend(prompt, self.task.masked(token)), token)

        return jnp.mean(eqx.filter_vmap(loss)(self.prompts, self.tokens))


def simulated_objective(
    task: AbstractTask, length: float, *, samples: int, key: PRNGKeyArray
) -> SimulatedObjective:
    """Return the mean loss over prompts drawn once from `key`."""
    if math.isfinite(length) and 8 * length * samples * task.token_dim > _LARGEST:
        most = int(_LARGEST // (8 * samples * task.token_dim))
        raise ValueError(
            f"`lengths` must be at most {most} with {samples} simulated prompts, got {length:g}. "
            "Ask for fewer samples."
        )

    def one(each: PRNGKeyArray) -> tuple[AbstractMeasure, Array]:
        law_key, tokens_key, query_key = jax.random.split(each, 3)
        law, queries = task.draw(key=law_key)
        token = queries.sample(1, key=query_key)[0]
        if math.isinf(length):
            return law, token
        return Empirical(law.sample(int(length), key=tokens_key)), token

    prompts, tokens = eqx.filter_vmap(one)(jax.random.split(key, samples))
    return SimulatedObjective(task, prompts, tokens)


def kernel_of(start: AbstractAttention) -> KernelName:
    """Return the kernel of a start in whatever precision."""
    with jax.enable_x64(True):
        return merged(start).kernel


def mover(objective: AbstractObjective, start: AbstractAttention) -> AbstractAttention:
    """Return what moves: where the objective does not ask for the kernel, one for both kernels."""
    if objective.reads_kernel:
        return start
    head = merged(start)
    alike: list[AbstractAttention] = [LinearAttention(head.key_query, head.value)]
    if any(field.name == "kernel" and field.init for field in dataclasses.fields(start)):
        alike.append(dataclasses.replace(start, kernel="linear"))
    return next((each for each in alike if merges_like(each, start)), start)


def with_arrays(attention: AbstractAttention, leaves: Sequence[Array]) -> AbstractAttention:
    """Return the attention with other arrays in place of its own, in their order."""
    moving, rest = eqx.partition(attention, eqx.is_inexact_array)
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(moving), leaves), rest)


def merges_like(first: AbstractAttention, other: AbstractAttention) -> bool:
    """Return whether the first would make the other's head of the other's arrays."""
    theirs, own = (jax.tree.leaves(eqx.filter(x, eqx.is_inexact_array)) for x in (first, other))
    if [leaf.shape for leaf in theirs] != [leaf.shape for leaf in own]:
        return False
    with jax.enable_x64(True):
        made, meant = merged(with_arrays(first, own)), merged(other)
    pairs = ((made.key_query, meant.key_query), (made.value, meant.value))
    return all(np.array_equal(*pair, equal_nan=True) for pair in pairs)
