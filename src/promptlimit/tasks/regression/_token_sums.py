r"""Sums over the tokens of training prompts. The prompts depend only on (key, length, step).

A member is one training run; members differ in the length L of their prompts. A token is a vector
$g$ of standard normals with the score $s=\langle a,g\rangle$ and the value $t=\langle b,g\rangle$.
The prediction of a softmax head with weights $p_l$ is $T=\sum_lp_lt_l$, and that of a linear head
is $T=\frac1L\sum_ls_lt_l$. Their derivatives are

    softmax:  dT/db = sum p g          dT/da = sum p (t - T) g
    linear:   dT/db = sum s g / L      dT/da = sum t g / L,

and T = <b, dT/db> for both kernels.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from promptlimit._inputs import to_device
from promptlimit._normals import compute_once, normal_pairs
from promptlimit.errors import ArgumentError

EXACT = jax.lax.Precision.HIGHEST
_BLOCK = 2**14  # tokens whose coordinates fit in a cache


class PromptStream(NamedTuple):
    """The random prompts of several members.

    Attributes:
        lengths: the number of tokens per prompt, for each member.
        batch: the number of prompts per step.
        dim: the dimension of a token.
        keys: the first and the second word of the random key of each member, [members] each.
    """

    lengths: tuple[int, ...]
    batch: int
    dim: int
    keys: tuple[Array, Array]

    @property
    def pairs(self) -> int:
        """The number of pairs of normals per token."""
        return (self.dim + 1) // 2


def prompt_stream(
    dim: int, lengths: tuple[int, ...], batch: int, keys: Sequence[PRNGKeyArray]
) -> PromptStream:
    """Return the prompts of members with these lengths; each length is folded into its key."""
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
    """The derivatives of predictions in $b$ and in $a$, [members, heads, batch, dim] each."""

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
"""A function of the prompts, the kernel of each head, the step, $a$ and $b$ that returns the
derivatives of the predictions."""


def token_sums(
    prompts: PromptStream,
    kernels: tuple[str, ...],
    step: UInt32[Array, ""],
    score: Float[Array, "1 heads batch dim"],
    value: Float[Array, "1 heads batch dim"],
) -> PredictionSlopes:
    """Return the sums over the tokens of one member, whose prompts are drawn in blocks."""
    (length,), batch = prompts.lengths, prompts.batch
    block = largest_block(batch, length)
    rows = jnp.stack([score[0], value[0]]).transpose(2, 0, 1, 3)  # [batch, 2, heads, dim]

    def one(first: Array, rows: Array) -> Array:
        return _block_sums(coordinates(prompts, step, first, block), kernels, rows)

    sums = in_blocks(one, rows, block)
    by_value, by_score = sums.transpose(1, 2, 0, 3)
    return PredictionSlopes(by_value[None], by_score[None])


def largest_block(batch: int, length: int) -> int:
    """Return the largest divisor of the batch such that the tokens of a block fit in a cache."""
    most = max(1, _BLOCK // length)
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= most)


def in_blocks(function: Callable[[Array, Array], Array], rows: Array, block: int) -> Array:
    """Return `function(index of the first row, rows)` for blocks of rows, concatenated."""
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
    """Return the normals of `count` prompts from `first` on, one row per coordinate.

    The normals are drawn as one long row, which vectorises at every length.
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
    """Return the derivatives by value and by score, from two matrix products over the tokens."""
    block, _, length = normals.shape
    heads = len(kernels)
    flat = rows.reshape(block, -1, rows.shape[-1])
    projected = jnp.einsum("bhc,bcl->bhl", flat, normals, precision=EXACT)
    by_value, by_score = [], []
    # One head at a time: arrays with an axis of heads take 1.1 times as long.
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
