r"""One step of training on linear regression: its prompts, predictions, losses and gradients.

Step k's prompts are a function of (key, length, k) alone. Tokens are kept as the standard normals
$g$ they are made of, $z=(x,y)$ with $x=Cg$ and $y=\langle w,x\rangle+s\,\epsilon$,
$CC^\top=\Sigma$: an attention needs them only along two directions of its own, which are turned to
$(g,\epsilon)$ instead.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from promptlimit._inputs import on_device
from promptlimit._normals import normal_pairs
from promptlimit.tasks._abstract import Batches, BatchGradient
from promptlimit.tasks._law_sums import law_sums
from promptlimit.tasks._regression import LinearRegression
from promptlimit.tasks._token_sums import (
    EXACT,
    PromptStream,
    TokenSums,
    packed_sums,
    prompt_stream,
    token_sums,
)


def regression_gradient(task: LinearRegression, batches: Batches) -> BatchGradient:
    r"""Return the gradient in $U$ and $V$ of the mean squared error of a batch.

    With the query $(x_q,0)$, scores are $\langle q,z\rangle$, $q=U(x_q,0)$, and values
    $\langle v,z\rangle$, v the last row of V. From the prediction $T$ and its derivatives $T_q$ and
    $T_v$, the loss is the mean of $(T-y)^2$, with gradients the means of
    $2(T-y)\,T_q(x_q,0)^\top$ and $2(T-y)\,T_v$.

    Args:
        task: the regression.
        batches: which prompts, and for which heads.
    """
    prompts = prompt_stream(task.token_dim, batches.lengths, batches.size, batches.keys)
    sums = _sums(batches)

    def gradient(
        step: UInt32[Array, ""],
        key_query: Float[Array, "members heads dim dim"],
        value: Float[Array, "members heads outputs dim"],
    ) -> tuple[Array, Array]:
        asked = questions(task, prompts, step)
        weights = asked.weights[:, None]
        tilt = jnp.einsum("mhij,mbj->mhbi", key_query[..., :-1], asked.query, precision=EXACT)
        row = jnp.broadcast_to(value[:, :, -1:], tilt.shape)
        along = to_normals(task, weights, row)
        slopes = sums(prompts, batches.kernels, step, to_normals(task, weights, tilt), along)
        misfit = jnp.sum(along * slopes.by_value, axis=-1) - asked.target[:, None]
        scaled = np.float32(2.0 / prompts.batch) * misfit[..., None]
        by_tilt = scaled * from_normals(task, weights, slopes.by_score)
        by_query = jnp.einsum("mhbi,mbj->mhij", by_tilt, asked.query, precision=EXACT)
        slope = jnp.concatenate([by_query, jnp.zeros_like(by_query[..., :1])], axis=-1)
        by_row = jnp.sum(scaled * from_normals(task, weights, slopes.by_value), axis=2)
        return slope, jnp.zeros_like(value).at[:, :, -1].set(by_row)

    return gradient


def _sums(batches: Batches) -> TokenSums:
    """Return how the tokens of these batches are summed."""
    if len(batches.lengths) > 1:
        return packed_sums
    return law_sums if batches.sampling == "law" else token_sums


class Questions(NamedTuple):
    """What each prompt of a batch is about.

    Attributes:
        weights: $w$, [members, batch, d].
        query: $x_q$, [members, batch, d].
        target: $y_q$, [members, batch].
    """

    weights: Float[Array, "members batch d"]
    query: Float[Array, "members batch d"]
    target: Float[Array, "members batch"]


def questions(task: LinearRegression, prompts: PromptStream, step: UInt32[Array, ""]) -> Questions:
    """Return the weights, queries and targets of a step."""
    dim, batch = prompts.dim, prompts.batch
    shape = (len(prompts.lengths), dim * batch)
    after = np.array([prompts.pairs * batch * length for length in prompts.lengths], np.uint32)
    index = on_device(after)[:, None] + jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    key = (prompts.keys[0][:, None], prompts.keys[1][:, None])
    drawn = normal_pairs(key, step, index).reshape(-1, dim, batch)
    drawn = jnp.moveaxis(drawn, 1, 2)
    weights = np.float32(math.sqrt(task.prior_variance)) * drawn[..., :-1].real
    query = _times(_root(task.query_covariance), drawn[..., :-1].imag)
    noise = np.float32(math.sqrt(task.noise_variance)) * drawn[..., -1].real
    return Questions(weights, query, jnp.sum(weights * query, axis=-1) + noise)


def _root(covariance: np.ndarray) -> Float[np.ndarray, "d d"]:
    r"""Return $C$ with $CC^\top=\Sigma$: Cholesky's, or the symmetric one when singular."""
    try:
        C = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        C = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return C.astype(np.float32)


def _times(matrix: np.ndarray, vectors: Array) -> Array:
    """Return the matrix times each vector along the last axis; the identity costs nothing."""
    if np.array_equal(matrix, np.eye(matrix.shape[0])):
        return vectors
    return jnp.matmul(vectors, on_device(matrix.T), precision=EXACT)


def to_normals(task: LinearRegression, weights: Array, directions: Array) -> Array:
    r"""Return $M^\top q$ for $z=M(g,\epsilon)$: $(C^\top(q_x+q_yw),\ s\,q_y)$.

    Args:
        task: the regression.
        weights: $w$, [..., d], of the same rank as `directions`.
        directions: $q$, [..., d + 1].
    """
    C, s = _root(task.covariance), np.float32(math.sqrt(task.noise_variance))
    last = directions[..., -1:]
    return jnp.concatenate([_times(C.T, directions[..., :-1] + last * weights), s * last], -1)


def from_normals(task: LinearRegression, weights: Array, sums: Array) -> Array:
    r"""Return $Mu$: $(Cu_x,\ \langle w,Cu_x\rangle+s\,u_y)$, the adjoint of `to_normals`."""
    C, s = _root(task.covariance), np.float32(math.sqrt(task.noise_variance))
    covariates = _times(C, sums[..., :-1])
    label = jnp.sum(covariates * weights, axis=-1, keepdims=True) + s * sums[..., -1:]
    return jnp.concatenate([covariates, label], -1)
