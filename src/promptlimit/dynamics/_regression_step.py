"""One step of training on linear regression: predictions, losses and gradients."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from promptlimit.dynamics._batches import (
    EXACT,
    Stream,
    from_normals,
    questions,
    to_normals,
)
from promptlimit.dynamics._token_sums import Sums
from promptlimit.tasks import LinearRegression

TokenSums = Callable[[Stream, tuple[str, ...], Array, Array, Array], Sums]


class Lesson(NamedTuple):
    """What is learnt from what.

    Attributes:
        task: the regression.
        prompts: where tokens come from.
        kernels: "softmax" or "linear", one a head.
        sums: what sums over the tokens.
    """

    task: LinearRegression
    prompts: Stream
    kernels: tuple[str, ...]
    sums: TokenSums


def regression_gradient(
    lesson: Lesson,
    step: UInt32[Array, ""],
    key_query: Float[Array, "members heads dim dim"],
    value_row: Float[Array, "members heads dim"],
) -> tuple[Array, Array, Array]:
    r"""Return the mean squared errors of a batch and their gradients in $U$ and $v$.

    With the query $(x_q,0)$, scores are $\langle q,z\rangle$, $q=U(x_q,0)$, and values
    $\langle v,z\rangle$. From the prediction $T$ and its derivatives $T_q$ and $T_v$, the loss is
    the mean of $(T-y)^2$, with gradients the means of $2(T-y)\,T_q(x_q,0)^\top$ and $2(T-y)\,T_v$.

    Args:
        lesson: what is learnt from what.
        step: which batch.
        key_query: $U$.
        value_row: $v$.
    """
    task, prompts, kernels, sums = lesson
    asked = questions(task, prompts, step)
    weights = asked.weights[:, None]
    tilt = jnp.einsum("mhij,mbj->mhbi", key_query[..., :-1], asked.query, precision=EXACT)
    row = jnp.broadcast_to(value_row[:, :, None], tilt.shape)
    value = to_normals(task, weights, row)
    found = sums(prompts, kernels, step, to_normals(task, weights, tilt), value)
    misfit = jnp.sum(value * found.by_value, axis=-1) - asked.target[:, None]
    scaled = np.float32(2.0 / prompts.batch) * misfit[..., None]
    by_tilt = scaled * from_normals(task, weights, found.by_score)
    by_query = jnp.einsum("mhbi,mbj->mhij", by_tilt, asked.query, precision=EXACT)
    slope = jnp.concatenate([by_query, jnp.zeros_like(by_query[..., :1])], axis=-1)
    row_slope = jnp.sum(scaled * from_normals(task, weights, found.by_value), axis=2)
    return jnp.mean(misfit**2, axis=-1), slope, row_slope
