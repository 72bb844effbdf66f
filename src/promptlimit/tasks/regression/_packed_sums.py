r"""Sums over the tokens of prompts of several lengths in one program, for accelerators.

A member is a training run at one of the lengths. The tokens of all members are divided into chunks,
and the last chunk of each member is padded. The program launches as many GPU kernels as a program
for one length. On one H200, 24,000 steps with a softmax head and a linear head take 6.3 s at 19
lengths, and 42 s if the lengths run one after another.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from promptlimit._inputs import to_device
from promptlimit._normals import normal_pairs
from promptlimit.tasks.regression._token_sums import (
    PredictionSlopes,
    PromptStream,
)

_CHUNK = 32


class Chunks(NamedTuple):
    """The layout of tokens of several lengths in chunks.

    Attributes:
        member: the index of the member of each chunk.
        counts: whether a place in a chunk contains a token and not padding.
        place: the index of a token within its prompt.
        table: the indices of the chunks of each member; the last index is repeated as padding.
    """

    member: Int[np.ndarray, " chunks"]
    counts: Bool[np.ndarray, "chunks places"]
    place: UInt32[np.ndarray, "chunks places"]
    table: Int[np.ndarray, "members most"]


def chunks(lengths: tuple[int, ...]) -> Chunks:
    """Return the layout of prompts of these lengths.

    >>> laid = chunks((10, 40))
    >>> print(laid.member, laid.counts.sum(axis=1), laid.table.tolist())
    [0 1 1] [10 32  8] [[0, 0], [1, 2]]
    """
    sizes = [-(-length // _CHUNK) for length in lengths]
    member = np.repeat(np.arange(len(lengths)), sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    place = (np.arange(member.size) - starts[member])[:, None] * _CHUNK + np.arange(_CHUNK)
    table = starts[:, None] + np.minimum(np.arange(max(sizes)), np.array(sizes)[:, None] - 1)
    counts = place < np.array(lengths)[member][:, None]
    return Chunks(member, counts, place.astype(np.uint32), table)


def packed_sums(
    prompts: PromptStream,
    kernels: tuple[str, ...],
    step: UInt32[Array, ""],
    score: Float[Array, "members heads batch dim"],
    value: Float[Array, "members heads batch dim"],
) -> PredictionSlopes:
    """Return the sums over the tokens of all members; the arguments are those of `token_sums`."""
    laid = chunks(prompts.lengths)
    planes = _planes(prompts, laid, step)
    parts: list[Array] = []
    order: list[int] = []
    for kernel, sums in (("softmax", _softmax), ("linear", _linear)):
        heads = [head for head, name in enumerate(kernels) if name == kernel]
        if heads:
            picked = np.array(heads)
            parts.append(sums(laid, planes, score[:, picked], value[:, picked]))
            order += heads
    both = jnp.concatenate(parts, axis=2)[:, :, np.argsort(order)]
    return PredictionSlopes(both[0], both[1])


def _planes(
    prompts: PromptStream, laid: Chunks, step: Array
) -> list[Float[Array, "1 batch chunks places"]]:
    """Return the coordinates of the tokens, one array per coordinate."""
    shape = (prompts.pairs, prompts.batch, *laid.place.shape)
    lengths = np.array(prompts.lengths, np.uint32)[laid.member][None, None, :, None]
    plane, row = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in (0, 1))
    index = (plane * np.uint32(prompts.batch) + row) * lengths + laid.place[None, None]
    first, second = (word[laid.member][None, None, :, None] for word in prompts.keys)
    drawn = normal_pairs((first, second), step, index)
    both = [part for pair in drawn for part in (pair.real, pair.imag)]
    return [part[None] for part in both[: prompts.dim]]


def _along(planes: list[Array], laid: Chunks, directions: Array) -> Float[Array, "h b c p"]:
    r"""Return $\langle a,g\rangle$ for directions [members, heads, batch, dim]."""
    own = directions[laid.member].transpose(3, 1, 2, 0)[..., None]  # [dim, heads, batch, chunks, 1]
    total = own[0] * planes[0]
    for i, plane in enumerate(planes[1:], start=1):
        total = total + own[i] * plane
    return total


def _softmax(
    laid: Chunks, planes: list[Array], score: Array, value: Array
) -> Float[Array, "2 members heads batch dim"]:
    s = jnp.where(laid.counts[None, None], _along(planes, laid, score), -np.inf)
    peaks = jnp.max(jnp.max(s, axis=-1)[..., laid.table], axis=-1)  # [heads, batch, members]
    e = jnp.exp(s - peaks[..., laid.member][..., None])
    t = _along(planes, laid, value)
    rows = [e, e * t, *(e * plane for plane in planes), *(e * t * plane for plane in planes)]
    total, moment, *rest = _over_members(laid, rows)
    mean = (moment / total)[..., None]
    first, second = (jnp.stack(part, axis=-1) / total[..., None] for part in _halves(rest))
    return jnp.stack([first, second - mean * first])


def _linear(
    laid: Chunks, planes: list[Array], score: Array, value: Array
) -> Float[Array, "2 members heads batch dim"]:
    lengths = np.bincount(laid.member, weights=laid.counts.sum(axis=1))
    counts = (laid.counts / lengths[laid.member][:, None]).astype(np.float32)[None, None]
    s, t = (to_device(counts) * _along(planes, laid, a) for a in (score, value))
    rows = [factor * plane for factor in (s, t) for plane in planes]
    sums = _over_members(laid, rows)
    return jnp.stack([jnp.stack(part, axis=-1) for part in _halves(list(sums))])


def _halves(rows: list[Array]) -> tuple[list[Array], list[Array]]:
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def _over_members(laid: Chunks, rows: list[Array]) -> Float[Array, "rows members heads batch"]:
    """Return sums over the tokens of each member.

    Chunks of other members are omitted, not multiplied by zero. So NaN in a diverged member does
    not affect the other members.
    """
    zeros = (np.float32(0.0),) * len(rows)
    within = jax.lax.reduce(
        tuple(rows), zeros, lambda x, y: tuple(a + b for a, b in zip(x, y, strict=True)), (3,)
    )
    parts = jnp.stack(within)[..., laid.table]  # [rows, heads, batch, members, most]
    repeated = np.diff(laid.table, axis=1, prepend=-1) == 0
    sums = jnp.sum(jnp.where(to_device(repeated), np.float32(0.0), parts), axis=-1)
    return jnp.moveaxis(sums, -1, 1)
