"""The arguments of `stream`, validated before the pass over the prompt begins."""

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np

from promptlimit._arrays import (
    ArrayLike,
    as_float64,
    require_readable,
    require_unmasked,
    require_whole,
)
from promptlimit._configuration import description
from promptlimit._inputs import float_array, in_double, to_device
from promptlimit._version import __version__
from promptlimit.attention import AbstractAttention, AbstractHead
from promptlimit.errors import ArgumentError
from promptlimit.parallel import active_devices
from promptlimit.streaming._blocks import SharedInputs
from promptlimit.streaming._prompts import AbstractPrompt, Generated, as_prompt, require_length
from promptlimit.streaming._sums import LEAF, TiltedSums, no_sums, triangle


def active_platform() -> str:
    """Return the platform of the active devices, such as "cpu"."""
    return active_devices().mesh.devices.flat[0].platform


def leaves_per_block(platform: str) -> int:
    """Return the number of leaves per block, which affects the last bits of results."""
    return 32 if platform == "cpu" else 4096


def most_blocks(platform: str) -> int:
    """Return the largest number of blocks per device and round; tokens are counted in 32 bits."""
    return 2**31 // (leaves_per_block(platform) * LEAF) - 1


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    r"""The validated arguments of `stream`.

    Attributes:
        attention: the attention.
        head: the attention as one head, in double precision.
        prompt: the prompt.
        queries: the queries, one per row.
        lengths: the requested prefix lengths.
        covariance: whether to return tilted covariances.
        linear: whether to compute linear attention.
        shared: the inputs that all devices share. The tilts are $A^\top Uz$ for each query $z$,
            with $U$ the score matrix of the head and $A$ the `matrix` of the prompt. For linear
            attention, a tilt of zero follows.
    """

    attention: AbstractAttention
    head: AbstractHead
    prompt: AbstractPrompt
    queries: np.ndarray
    lengths: tuple[int, ...]
    covariance: bool
    linear: bool
    shared: SharedInputs

    @property
    def block(self) -> int:
        """The number of tokens per block."""
        return self.shared.leaves * LEAF

    @property
    def capacity(self) -> int:
        """The number of tokens per device and round."""
        return self.shared.blocks * self.block

    @property
    def none(self) -> TiltedSums:
        """The sums over no tokens."""
        tilts, dim = self.shared.tilts.shape
        return no_sums(tilts, dim, triangle(dim) if self.shared.second else 0)

    def config(self) -> dict[str, object]:
        """Return the values that determine the bits of the result, as numbers and strings."""
        return {
            "what": "stream",
            "version": __version__,
            "attention": description(self.attention),
            "queries": self.queries.tolist(),
            "prompt": self.prompt.description,
            "lengths": list(self.lengths),
            "second": self.shared.second,
            "linear": self.linear,
            "block": self.block,
            "platform": self.shared.platform,
        }


def checked_request(
    attention: AbstractAttention,
    prompt: Any,
    queries: ArrayLike,
    lengths: ArrayLike | None,
    *,
    covariance: bool,
    linear: bool,
    chunk: int | None,
) -> StreamRequest:
    """Return the validated arguments; call this function inside `enable_x64`.

    `chunk` is the number of blocks per device and round.
    """
    head = in_double(attention).single_head()
    if head is None:
        raise ArgumentError(
            "attention",
            f"must be one head, got {type(attention).__name__}. Stream its heads one "
            "by one: the output is their sum.",
        )
    points = np.asarray(float_array("queries", queries, rank=2), np.float64)
    if points.shape[1] != attention.query_dim or not len(points):
        raise ArgumentError(
            "queries",
            f"must have shape [n, {attention.query_dim}], one query per row, "
            f"got {list(points.shape)}.",
        )
    prefixes = _increasing(lengths)
    platform = active_platform()
    tokens = as_prompt(prompt, active_devices().hosts)
    if tokens.dim != attention.token_dim:
        raise ArgumentError(
            "prompt",
            f"must have tokens of dimension {attention.token_dim}, as the attention does, "
            f"got {tokens.dim}.",
        )
    if tokens.length is not None and prefixes and prefixes[-1] > tokens.length:
        raise ArgumentError(
            "lengths",
            f"must be at most {tokens.length}, the length of the prompt, got {prefixes[-1]}.",
        )
    linear = linear or head.kernel == "linear"
    tilts = points @ as_float64(head.key_query).T @ tokens.matrix
    tilts = np.concatenate([tilts, np.zeros((int(linear), tokens.dim))]).astype(tokens.dtype)
    shared = SharedInputs(
        tokens.source,
        to_device(tilts),
        leaves_per_block(platform),
        _blocks_per_round(chunk, platform, drawn=isinstance(prompt, Generated)),
        covariance or linear,
        platform,
    )
    return StreamRequest(attention, head, tokens, points, prefixes, covariance, linear, shared)


def _increasing(lengths: ArrayLike | None) -> tuple[int, ...]:
    require_unmasked("lengths", lengths)
    require_readable("lengths", lengths)
    listed = [] if lengths is None else np.atleast_1d(np.asarray(lengths)).tolist()
    prefixes = tuple(require_length("lengths", length) for length in listed)
    if any(later <= earlier for earlier, later in pairwise(prefixes)):
        raise ArgumentError(
            "lengths", f"must increase, got {list(prefixes)}. Sort them and remove duplicates."
        )
    return prefixes


def _blocks_per_round(chunk: int | None, platform: str, *, drawn: bool) -> int:
    """Return the number of blocks that a device sums per round; it does not affect results."""
    if chunk is not None:
        return require_whole("chunk", chunk, 1, most_blocks(platform), note=" It counts blocks.")
    if platform == "cpu":
        return 8
    return 16 if drawn else 1
