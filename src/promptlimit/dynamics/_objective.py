"""What a flow descends: the risk of an attention, exact or over simulated prompts."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit.attention import AbstractAttention, AbstractHead, KernelName, LinearAttention
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.tasks import AbstractObjective, AbstractTask

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


def merged(attention: AbstractAttention) -> AbstractHead:
    """Return the one head that an attention is; differentiable."""
    head = attention.single_head()
    if head is None:
        raise AssertionError("a start is one head")
    return head


def kernel_of(start: AbstractAttention) -> KernelName:
    """Return the kernel of a start in whatever precision."""
    with jax.enable_x64(True):
        return merged(start).kernel


def mover(objective: AbstractObjective, start: AbstractAttention) -> AbstractAttention:
    """Return what moves: where the objective does not ask for the kernel, one for both kernels."""
    if objective.reads_kernel:
        return start
    head = merged(start)
    leaves = jax.tree.leaves(eqx.filter(start, eqx.is_inexact_array))
    if len(leaves) == 2 and leaves[0] is head.key_query and leaves[1] is head.value:
        return LinearAttention(head.key_query, head.value)
    named = any(field.name == "kernel" and field.init for field in dataclasses.fields(start))
    return dataclasses.replace(start, kernel="linear") if named else start
