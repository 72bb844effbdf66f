r"""One step of training on linear regression: its prompts, predictions, losses and gradients.

Step k's prompts are a function of (key, length, k) alone. Tokens are kept as the standard normals
$g$ they are made of, $z=(x,y)$ with $x=Cg$ and $y=\langle w,x\rangle+s\,\epsilon$,
$CC^\top=\Sigma$: an attention needs them only along two directions of its own, which are turned to
$(g,\epsilon)$ instead.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from promptlimit._inputs import to_device
from promptlimit._normals import normal_pairs
from promptlimit.rules import Effort
from promptlimit.tasks._abstract import Batches
from promptlimit.tasks._problem import BATCH_GRADIENT, BatchProblem, on
from promptlimit.tasks.regression._law_sums import law_sums
from promptlimit.tasks.regression._task import LinearRegression
from promptlimit.tasks.regression._token_sums import (
    EXACT,
    PromptStream,
    TokenSums,
    packed_sums,
    prompt_stream,
    token_sums,
)


class RegressionNumbers(eqx.Module):
    r"""$C$, the root of $\Sigma_q$, $s$ and $\tau$, as arrays: one program serves all laws."""

    root: Float[Array | np.ndarray, "d d"]
    query_root: Float[Array | np.ndarray, "d d"]
    noise: Float[Array | np.ndarray, ""]
    spread: Float[Array | np.ndarray, ""]

    @classmethod
    def of(cls, task: LinearRegression) -> "RegressionNumbers":
        """Return the numbers of a task, in single precision."""
        return cls(
            _root(task.covariance),
            _root(task.query_covariance),
            np.array(math.sqrt(task.noise_variance), np.float32),
            np.array(math.sqrt(task.prior_variance), np.float32),
        )


class RegressionGradient(eqx.Module):
    r"""The gradient in $U$ and $V$ of the mean squared error of a batch.

    With the query $(x_q,0)$, scores are $\langle q,z\rangle$, $q=U(x_q,0)$, and values
    $\langle v,z\rangle$, v the last row of V. From the prediction $T$ and its derivatives $T_q$ and
    $T_v$, the loss is the mean of $(T-y)^2$, with gradients the means of
    $2(T-y)\,T_q(x_q,0)^\top$ and $2(T-y)\,T_v$.

    Attributes:
        numbers: of the regression.
        prompts: which prompts.
        kernels: for which heads.
        sums: how the tokens of the prompts are summed.
    """

    numbers: RegressionNumbers
    prompts: PromptStream
    kernels: tuple[str, ...] = eqx.field(static=True)
    sums: TokenSums = eqx.field(static=True)

    @classmethod
    def of(cls, task: LinearRegression, batches: Batches) -> "RegressionGradient":
        """Return the gradient for a task and its batches."""
        prompts = prompt_stream(task.token_dim, batches.lengths, batches.size, batches.keys)
        return cls(RegressionNumbers.of(task), prompts, batches.kernels, _sums(batches))

    def __call__(
        self,
        step: UInt32[Array, ""],
        key_query: Float[Array, "members heads dim dim"],
        value: Float[Array, "members heads outputs dim"],
    ) -> tuple[Array, Array]:
        """Return the gradients at a step."""
        numbers, prompts = self.numbers, self.prompts
        asked = questions(numbers, prompts, step)
        weights = asked.weights[:, None]
        tilt = jnp.einsum("mhij,mbj->mhbi", key_query[..., :-1], asked.query, precision=EXACT)
        row = jnp.broadcast_to(value[:, :, -1:], tilt.shape)
        across, along = (to_normals(numbers, weights, q) for q in (tilt, row))
        slopes = self.sums(prompts, self.kernels, step, across, along)
        misfit = jnp.sum(along * slopes.by_value, axis=-1) - asked.target[:, None]
        scaled = np.float32(2.0 / prompts.batch) * misfit[..., None]
        by_tilt = scaled * from_normals(numbers, weights, slopes.by_score)
        by_query = jnp.einsum("mhbi,mbj->mhij", by_tilt, asked.query, precision=EXACT)
        slope = jnp.concatenate([by_query, jnp.zeros_like(by_query[..., :1])], axis=-1)
        by_row = jnp.sum(scaled * from_normals(numbers, weights, slopes.by_value), axis=2)
        return slope, jnp.zeros_like(value).at[:, :, -1].set(by_row)


@BATCH_GRADIENT.rule(
    kind="estimate",
    scope="`LinearRegression`",
    method="tokens drawn as normals, or their sums in law",
    obstacle=on(LinearRegression),
)
def _regression_gradient(problem: BatchProblem, _effort: Effort) -> RegressionGradient:
    return RegressionGradient.of(problem.task, problem.batches)


def _sums(batches: Batches) -> TokenSums:
    """Return how the tokens of these batches are summed."""
    if len(batches.lengths) > 1:
        return packed_sums
    return law_sums if batches.sampling == "law" else token_sums


class Questions(NamedTuple):
    """$w$, $x_q$ and $y_q$ of each prompt of a batch."""

    weights: Float[Array, "members batch d"]
    query: Float[Array, "members batch d"]
    target: Float[Array, "members batch"]


def questions(
    numbers: RegressionNumbers, prompts: PromptStream, step: UInt32[Array, ""]
) -> Questions:
    """Return the weights, queries and targets of a step."""
    dim, batch = prompts.dim, prompts.batch
    shape = (len(prompts.lengths), dim * batch)
    after = np.array([prompts.pairs * batch * length for length in prompts.lengths], np.uint32)
    index = to_device(after)[:, None] + jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    key = (prompts.keys[0][:, None], prompts.keys[1][:, None])
    drawn = normal_pairs(key, step, index).reshape(-1, dim, batch)
    drawn = jnp.moveaxis(drawn, 1, 2)
    weights = drawn[..., :-1].real * numbers.spread
    query = _times(numbers.query_root, drawn[..., :-1].imag)
    noise = drawn[..., -1].real * numbers.noise
    return Questions(weights, query, jnp.sum(weights * query, axis=-1) + noise)


def _root(covariance: np.ndarray) -> Float[np.ndarray, "d d"]:
    r"""Return $C$ with $CC^\top=\Sigma$: Cholesky's, or the symmetric one when singular."""
    try:
        C = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        C = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return C.astype(np.float32)


def _times(matrix: Array | np.ndarray, vectors: Array, *, transposed: bool = False) -> Array:
    """Return the matrix times each vector along the last axis."""
    return jnp.matmul(vectors, jnp.asarray(matrix if transposed else matrix.T), precision=EXACT)


def to_normals(numbers: RegressionNumbers, weights: Array, directions: Array) -> Array:
    r"""Return $M^\top q$ for $z=M(g,\epsilon)$: $(C^\top(q_x+q_yw),\ s\,q_y)$.

    Args:
        numbers: of the regression.
        weights: $w$, [..., d], of the same rank as `directions`.
        directions: $q$, [..., d + 1].
    """
    C, s, last = numbers.root, numbers.noise, directions[..., -1:]
    covariates = _times(C, directions[..., :-1] + last * weights, transposed=True)
    return jnp.concatenate([covariates, s * last], -1)


def from_normals(numbers: RegressionNumbers, weights: Array, sums: Array) -> Array:
    r"""Return $Mu$: $(Cu_x,\ \langle w,Cu_x\rangle+s\,u_y)$, the adjoint of `to_normals`."""
    C, s = numbers.root, numbers.noise
    covariates = _times(C, sums[..., :-1])
    label = jnp.sum(covariates * weights, axis=-1, keepdims=True) + s * sums[..., -1:]
    return jnp.concatenate([covariates, label], -1)
