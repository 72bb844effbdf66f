r"""The gradient of a training batch on linear regression.

Tokens are $z=M(g,\epsilon)=(x,y)$ with standard normals $(g,\epsilon)$, $x=Cg$,
$y=\langle w,x\rangle+s\,\epsilon$ and $CC^\top=\Sigma$. A head depends on a token only through the
score and the value of the token. Both are computed from $(g,\epsilon)$, so tokens are never formed.
`token_sums` computes the sums over tokens, `law_sums` draws these sums from their law, and
`packed_sums` computes them for several lengths in one program.
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
from promptlimit.tasks._problem import BATCH_GRADIENT, BatchProblem, on
from promptlimit.tasks.regression._law_sums import law_sums
from promptlimit.tasks.regression._packed_sums import packed_sums
from promptlimit.tasks.regression._task import LinearRegression, other_queries, several_labels
from promptlimit.tasks.regression._token_sums import (
    EXACT,
    PromptStream,
    TokenSums,
    prompt_stream,
    token_sums,
)


class RegressionNumbers(eqx.Module):
    r"""The parameters of a regression as arguments of compiled programs.

    Attributes:
        root: the matrix $C$ with $CC^\top=\Sigma$.
        query_root: the corresponding matrix for $\Sigma_q$.
        noise: the standard deviation $s$ of the noise.
        spread: the standard deviation $\tau$ of a weight.
    """

    root: Float[Array | np.ndarray, "d d"]
    query_root: Float[Array | np.ndarray, "d d"]
    noise: Float[Array | np.ndarray, ""]
    spread: Float[Array | np.ndarray, ""]

    @classmethod
    def of(cls, task: LinearRegression) -> "RegressionNumbers":
        """Return the parameters of a task, in single precision."""
        return cls(
            _root(task.covariance),
            _root(task.query_covariance),
            np.array(math.sqrt(task.noise_variance), np.float32),
            np.array(math.sqrt(task.prior_variance), np.float32),
        )


class RegressionGradient(eqx.Module):
    r"""The gradient in $U$ and $V$ of the mean squared error of a batch.

    Scores are $\langle q,z\rangle$ with $q=U(x_q,0)$, and values are $\langle v,z\rangle$ with the
    last row v of V. The prediction T of a head has the derivatives $T_q$ and $T_v$ in q and v. The
    gradient of the mean of $(T-y_q)^2$ in U is the mean of $2(T-y_q)\,T_q(x_q,0)^\top$, and the
    gradient in v is the mean of $2(T-y_q)\,T_v$. Each head is trained on its own.

    Attributes:
        numbers: the parameters of the regression.
        prompts: the lengths, keys and batch size.
        kernels: the kernel of each head.
        sums: the function that computes the sums over tokens.
    """

    numbers: RegressionNumbers
    prompts: PromptStream
    kernels: tuple[str, ...] = eqx.field(static=True)
    sums: TokenSums = eqx.field(static=True)

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


class Questions(NamedTuple):
    """The hidden weights $w$, the query $x_q$ and its label $y_q$ of each prompt of a batch."""

    weights: Float[Array, "members batch d"]
    query: Float[Array, "members batch d"]
    target: Float[Array, "members batch"]


def questions(
    numbers: RegressionNumbers, prompts: PromptStream, step: UInt32[Array, ""]
) -> Questions:
    """Return the hidden weights, queries and labels of a step."""
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
    r"""Return $C$ with $CC^\top=\Sigma$: the Cholesky factor, or the symmetric root if singular."""
    try:
        C = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        C = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return C.astype(np.float32)


def _times(matrix: Array | np.ndarray, vectors: Array, *, transposed: bool = False) -> Array:
    return jnp.matmul(vectors, jnp.asarray(matrix if transposed else matrix.T), precision=EXACT)


def to_normals(numbers: RegressionNumbers, weights: Array, directions: Array) -> Array:
    r"""Return $M^\top q=(C^\top(q_x+q_yw),\ s\,q_y)$ for directions $q=(q_x,q_y)$.

    The shapes of w and q are [..., d] and [..., d + 1], with equal ranks.
    """
    C, s, last = numbers.root, numbers.noise, directions[..., -1:]
    covariates = _times(C, directions[..., :-1] + last * weights, transposed=True)
    return jnp.concatenate([covariates, s * last], -1)


def from_normals(numbers: RegressionNumbers, weights: Array, sums: Array) -> Array:
    r"""Return $Mu=(Cu_x,\ \langle w,Cu_x\rangle+s\,u_y)$ for u = `sums`."""
    C, s = numbers.root, numbers.noise
    covariates = _times(C, sums[..., :-1])
    label = jnp.sum(covariates * weights, axis=-1, keepdims=True) + s * sums[..., -1:]
    return jnp.concatenate([covariates, label], -1)


def _not_plain(problem: BatchProblem) -> str | None:
    return several_labels(problem) or other_queries(problem)


@BATCH_GRADIENT.rule(
    kind="estimate",
    scope="`LinearRegression`",
    method="tokens from a counter-based generator, or sums over tokens drawn from their law",
    obstacle=on(LinearRegression, obstacle=_not_plain),
)
def regression_gradient(problem: BatchProblem, _effort: Effort) -> RegressionGradient:
    """Return the gradient for the batches of a regression."""
    task = problem.task
    prompts = prompt_stream(task.token_dim, problem.lengths, problem.size, problem.keys)
    sums = law_sums if problem.sampling == "law" else token_sums
    if len(problem.lengths) > 1:
        sums = packed_sums
    return RegressionGradient(RegressionNumbers.of(task), prompts, problem.kernels, sums)
