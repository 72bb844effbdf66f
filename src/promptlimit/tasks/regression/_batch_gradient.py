r"""One step of training on linear regression: its prompts, predictions, losses and gradients.

Step k's prompts are a function of (key, length, k) alone. Tokens are kept as the standard normals
$g$ they are made of, $z=(x,y)$ with $x=Cg$ and $y=\langle w,x\rangle+s\,\epsilon$,
$CC^\top=\Sigma$: an attention needs them only along two directions of its own, which are turned to
$(g,\epsilon)$ instead. With the score $s=\langle a,g\rangle$ and the value $t=\langle b,g\rangle$
of a token, the prediction is $T=\sum_lp_lt_l$ (softmax) or $\frac1L\sum_ls_lt_l$ (linear), and

    softmax:  dT/db = sum p g          dT/da = sum p (t - T) g
    linear:   dT/db = sum s g / L      dT/da = sum t g / L,          T = <b, dT/db> in both.

`_packed_sums` has these two sums for several lengths in one program, `_law_sums` in law.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from promptlimit._inputs import to_device
from promptlimit._normals import compute_once, normal_pairs
from promptlimit.errors import ArgumentError
from promptlimit.rules import Effort
from promptlimit.tasks._problem import BATCH_GRADIENT, BatchProblem, on
from promptlimit.tasks.regression._task import LinearRegression

EXACT = jax.lax.Precision.HIGHEST
_BLOCK = 2**14  # tokens whose coordinates fit in a cache


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


class PromptStream(NamedTuple):
    """Prompts of several lengths, each with the two words of its key.

    Attributes:
        lengths: the number of tokens, one for each member.
        batch: how many prompts a step has.
        dim: of a token.
        keys: the words of the keys, [members] each.
    """

    lengths: tuple[int, ...]
    batch: int
    dim: int
    keys: tuple[Array, Array]

    @property
    def pairs(self) -> int:
        """How many pairs of normals a token takes."""
        return (self.dim + 1) // 2


def prompt_stream(
    dim: int, lengths: tuple[int, ...], batch: int, keys: Sequence[PRNGKeyArray]
) -> PromptStream:
    """Return the prompts of members with these lengths; the length is part of the key."""
    largest = (dim + 2) * batch * max(lengths)
    if largest >= 2**32:
        raise ArgumentError(
            "lengths",
            f"times `batch` must be below {2**32 // (dim + 2)}, got {max(lengths)} times "
            f"{batch}. Use smaller batches.",
        )
    words = np.stack(
        [
            np.asarray(jax.random.key_data(jax.random.fold_in(key, length)))
            for key, length in zip(keys, lengths, strict=True)
        ]
    )
    return PromptStream(lengths, batch, dim, (to_device(words[:, 0]), to_device(words[:, 1])))


class PredictionSlopes(NamedTuple):
    """Derivatives of predictions in $b$ and $a$, each [members, heads, batch, dim]."""

    by_value: Array
    by_score: Array


TokenSums: TypeAlias = Callable[
    [
        PromptStream,
        tuple[str, ...],
        UInt32[Array, ""],
        Float[Array, "members heads batch dim"],
        Float[Array, "members heads batch dim"],
    ],
    PredictionSlopes,
]
"""(prompts, kernel of each head, step, $a$, $b$) -> the sums: over tokens, or in law."""


def token_sums(
    prompts: PromptStream,
    kernels: tuple[str, ...],
    step: UInt32[Array, ""],
    score: Float[Array, "1 heads batch dim"],
    value: Float[Array, "1 heads batch dim"],
) -> PredictionSlopes:
    """Return the sums over the tokens of one length, drawn in blocks of prompts.

    Args:
        prompts: where tokens come from; one member.
        kernels: "softmax" or "linear", one a head.
        step: which batch.
        score: $a$.
        value: $b$.
    """
    (length,), batch = prompts.lengths, prompts.batch
    block = largest_block(batch, length)
    rows = jnp.stack([score[0], value[0]]).transpose(2, 0, 1, 3)  # [batch, 2, heads, dim]

    def one(first: Array, rows: Array) -> Array:
        return _block_sums(coordinates(prompts, step, first, block), kernels, rows)

    sums = in_blocks(one, rows, block)
    by_value, by_score = sums.transpose(1, 2, 0, 3)
    return PredictionSlopes(by_value[None], by_score[None])


def largest_block(batch: int, length: int) -> int:
    """Return the largest divisor of the batch whose tokens fit in a block, at least 1."""
    most = max(1, _BLOCK // length)
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= most)


def in_blocks(function: Callable[[Array, Array], Array], rows: Array, block: int) -> Array:
    """Return a function of (the first row of a block, its rows), one block at a time."""
    batch = rows.shape[0]
    if block == batch:
        return function(jnp.uint32(0), rows)

    def body(index: Array, results: Array) -> Array:
        start = index * block
        part = jax.lax.dynamic_slice_in_dim(rows, start, block)
        new = function(start.astype(jnp.uint32), part)
        return jax.lax.dynamic_update_slice_in_dim(results, new, start, 0)

    shape = jax.eval_shape(function, jnp.uint32(0), rows[:block]).shape
    return jax.lax.fori_loop(0, batch // block, body, jnp.zeros((batch, *shape[1:]), rows.dtype))


def coordinates(
    prompts: PromptStream, step: UInt32[Array, ""], first: Array, count: int
) -> Float[Array, "count dim length"]:
    """Return the normals of `count` prompts from `first` on, one row a coordinate.

    They are drawn as one long row, whatever the length, so that all of it runs on vectors.
    """
    (length,), pairs, batch = prompts.lengths, prompts.pairs, prompts.batch
    shape = (pairs, count * length)
    plane = jax.lax.broadcasted_iota(jnp.uint32, shape, 0)
    place = jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    index = (plane * np.uint32(batch) + first) * np.uint32(length) + place
    key = (prompts.keys[0][0], prompts.keys[1][0])
    drawn = normal_pairs(key, step, index).reshape(pairs, count, length)
    planes = [part for pair in drawn for part in (pair.real, pair.imag)]
    return compute_once(lambda: jnp.stack(planes[: prompts.dim], axis=1), step)


def _block_sums(
    normals: Float[Array, "block dim length"],
    kernels: tuple[str, ...],
    rows: Float[Array, "block 2 heads dim"],
) -> Float[Array, "block 2 heads dim"]:
    """Return the sums by value and by score, by two matrix products over the tokens.

    Heads are taken one by one: arrays with an axis of heads run a tenth slower.
    """
    block, _, length = normals.shape
    heads = len(kernels)
    flat = rows.reshape(block, -1, rows.shape[-1])
    projected = jnp.einsum("bhc,bcl->bhl", flat, normals, precision=EXACT)
    by_value, by_score = [], []
    for head, kernel in enumerate(kernels):
        score, value = projected[:, head], projected[:, heads + head]
        if kernel == "softmax":
            raised = jnp.exp(score - jnp.max(score, axis=-1, keepdims=True))
            weights = raised / jnp.sum(raised, axis=-1, keepdims=True)
            mean = jnp.sum(weights * value, axis=-1, keepdims=True)
            by_value.append(weights)
            by_score.append(weights * (value - mean))
        else:
            by_value.append(score / np.float32(length))
            by_score.append(value / np.float32(length))
    across = jnp.stack([*by_value, *by_score], axis=1)
    return jnp.einsum("bhl,bcl->bhc", across, normals, precision=EXACT).reshape(rows.shape)


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
    def of(cls, problem: BatchProblem, sums: TokenSums) -> "RegressionGradient":
        """Return the gradient for the batches of a task."""
        task, batches = problem.task, problem.batches
        prompts = prompt_stream(task.token_dim, batches.lengths, batches.size, batches.keys)
        return cls(RegressionNumbers.of(task), prompts, batches.kernels, sums)

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


def _not_tokens_of_one_length(problem: BatchProblem) -> str | None:
    batches = problem.batches
    if batches.sampling != "tokens":
        return "sums are drawn in law"
    return None if len(batches.lengths) == 1 else "several lengths share a program"


@BATCH_GRADIENT.rule(
    kind="estimate",
    scope="`LinearRegression`",
    method="tokens drawn as normals by counter",
    obstacle=on(LinearRegression, obstacle=_not_tokens_of_one_length),
)
def _gradient_over_tokens(problem: BatchProblem, _effort: Effort) -> RegressionGradient:
    return RegressionGradient.of(problem, token_sums)


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
