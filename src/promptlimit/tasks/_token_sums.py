r"""What a step needs of the tokens of its prompts: two sums a head, one length at a time.

With the score $s=\langle a,g\rangle$ and the value $t=\langle b,g\rangle$ of a token, the
prediction is $T=\sum_lp_lt_l$ (softmax) or $\frac1L\sum_ls_lt_l$ (linear), and

    softmax:  dT/db = sum p g          dT/da = sum p (t - T) g
    linear:   dT/db = sum s g / L      dT/da = sum t g / L,          T = <b, dT/db> in both.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from promptlimit._normals import held, normal_pairs
from promptlimit.tasks._batches import EXACT, Stream

_BLOCK = 2**14  # tokens whose coordinates fit in a cache


class Sums(NamedTuple):
    """Derivatives of predictions in $b$ and $a$, each [members, heads, batch, dim]."""

    by_value: Array
    by_score: Array


def token_sums(
    prompts: Stream,
    kernels: tuple[str, ...],
    step: UInt32[Array, ""],
    score: Float[Array, "1 heads batch dim"],
    value: Float[Array, "1 heads batch dim"],
) -> Sums:
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
        normals = coordinates(prompts, step, first, block)
        return _sums(normals, kernels, rows)

    if block == batch:
        found = one(jnp.uint32(0), rows)
    else:

        def body(index: Array, found: Array) -> Array:
            start = index * block
            part = jax.lax.dynamic_slice_in_dim(rows, start, block)
            sums = one(start.astype(jnp.uint32), part)
            return jax.lax.dynamic_update_slice_in_dim(found, sums, start, 0)

        found = jax.lax.fori_loop(0, batch // block, body, jnp.zeros_like(rows))
    by_value, by_score = found.transpose(1, 2, 0, 3)
    return Sums(by_value[None], by_score[None])


def largest_block(batch: int, length: int) -> int:
    """Return the largest divisor of the batch whose tokens fit in a block, at least 1."""
    most = max(1, _BLOCK // length)
    return max(n for n in range(1, batch + 1) if batch % n == 0 and n <= most)


def coordinates(
    prompts: Stream, step: UInt32[Array, ""], first: Array, count: int
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
    return held(lambda: jnp.stack(planes[: prompts.dim], axis=1), step)


def _sums(
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
    found = jnp.einsum("bhl,bcl->bhc", across, normals, precision=EXACT)
    return found.reshape(rows.shape)
