r"""Batches of linear regression: step k's prompts are a function of (key, length, k) alone.

Tokens are kept as the standard normals $g$ they are made of, $z=(x,y)$ with $x=Cg$ and
$y=\langle w,x\rangle+s\,\epsilon$, $CC^\top=\Sigma$: an attention needs them only along two
directions of its own, which are turned to $(g,\epsilon)$ instead.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from promptlimit._normals import normal_pairs
from promptlimit.tasks._regression import LinearRegression

EXACT = jax.lax.Precision.HIGHEST


class Stream(NamedTuple):
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


def stream(
    task: LinearRegression, lengths: tuple[int, ...], batch: int, keys: Sequence[PRNGKeyArray]
) -> Stream:
    """Return the prompts of members with these lengths; the length is part of the key."""
    dim = task.token_dim
    largest = (dim + 2) * batch * max(lengths)
    if largest >= 2**32:
        raise ValueError(
            f"`lengths` times `batch` must be below {2**32 // (dim + 2)}, got {max(lengths)} times "
            f"{batch}. Ask for smaller batches."
        )
    words = np.stack(
        [
            np.asarray(jax.random.key_data(jax.random.fold_in(key, length)))
            for key, length in zip(keys, lengths, strict=True)
        ]
    )
    return Stream(lengths, batch, dim, (jnp.asarray(words[:, 0]), jnp.asarray(words[:, 1])))


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


def questions(task: LinearRegression, prompts: Stream, step: UInt32[Array, ""]) -> Questions:
    """Return the weights, queries and targets of a step."""
    dim, batch = prompts.dim, prompts.batch
    shape = (len(prompts.lengths), dim * batch)
    after = np.array([prompts.pairs * batch * length for length in prompts.lengths], np.uint32)
    index = jnp.asarray(after)[:, None] + jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    key = (prompts.keys[0][:, None], prompts.keys[1][:, None])
    drawn = normal_pairs(key, step, index).reshape(-1, dim, batch)
    drawn = jnp.moveaxis(drawn, 1, 2)
    weights = np.float32(math.sqrt(task.prior_variance)) * drawn[..., :-1].real
    query = turned(root(task.query_covariance), drawn[..., :-1].imag)
    noise = np.float32(math.sqrt(task.noise_variance)) * drawn[..., -1].real
    return Questions(weights, query, jnp.sum(weights * query, axis=-1) + noise)


def root(covariance: np.ndarray) -> Float[np.ndarray, "d d"]:
    r"""Return $C$ with $CC^\top=\Sigma$: Cholesky's, or the symmetric one when singular."""
    try:
        found = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(covariance)
        found = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return found.astype(np.float32)


def turned(matrix: np.ndarray, vectors: Array) -> Array:
    """Return the matrix times each vector along the last axis; the identity costs nothing."""
    if np.array_equal(matrix, np.eye(matrix.shape[0])):
        return vectors
    return jnp.matmul(vectors, jnp.asarray(matrix.T), precision=EXACT)


def to_normals(task: LinearRegression, weights: Array, directions: Array) -> Array:
    r"""Return $M^\top q$ for $z=M(g,\epsilon)$: $(C^\top(q_x+q_yw),\ s\,q_y)$.

    Args:
        task: the regression.
        weights: $w$, [..., d], of the same rank as `directions`.
        directions: $q$, [..., d + 1].
    """
    C, s = root(task.covariance), np.float32(math.sqrt(task.noise_variance))
    last = directions[..., -1:]
    return jnp.concatenate([turned(C.T, directions[..., :-1] + last * weights), s * last], -1)


def from_normals(task: LinearRegression, weights: Array, sums: Array) -> Array:
    r"""Return $Mu$: $(Cu_x,\ \langle w,Cu_x\rangle+s\,u_y)$, the adjoint of `to_normals`."""
    C, s = root(task.covariance), np.float32(math.sqrt(task.noise_variance))
    covariates = turned(C, sums[..., :-1])
    label = jnp.sum(covariates * weights, axis=-1, keepdims=True) + s * sums[..., -1:]
    return jnp.concatenate([covariates, label], -1)
