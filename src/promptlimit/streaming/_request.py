"""What a user asks of a stream, checked before any token is read."""

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np

from promptlimit._arrays import ArrayLike, as_float64, require_unmasked, require_whole
from promptlimit._configuration import description
from promptlimit._inputs import float_array, in_double, to_device
from promptlimit._version import __version__
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.parallel import active_devices
from promptlimit.streaming._blocks import Task, is_bounded
from promptlimit.streaming._leaves import LEAF
from promptlimit.streaming._prompts import AbstractPrompt, Generated, as_prompt, require_length
from promptlimit.streaming._sums import TiltedSums, no_sums, triangle


def platform_at_work() -> str:
    """Return what the devices are."""
    return active_devices().mesh.devices.flat[0].platform


def leaves_of_a_block(platform: str) -> int:
    """Return what fills a device; another number gives other bits."""
    return 32 if platform == "cpu" else 4096


def most_blocks(platform: str) -> int:
    """Return how many blocks a device can do at a time: their tokens must be counted."""
    return 2**31 // (leaves_of_a_block(platform) * LEAF) - 1


@dataclasses.dataclass(frozen=True)
class StreamRequest:
    r"""A prompt to read, and what is asked about it.

    Attributes:
        attention: the head, as it was given.
        key_query: $U$.
        value: $V$.
        prompt: the tokens.
        queries: one a row.
        tilts: $A^\top Uz$, one for each query, in the coordinates and the precision of the
            prompt's source; then zero, when linear attention is asked for.
        lengths: prefixes.
        covariance: whether tilted covariances are wanted.
        linear: whether linear attention is wanted.
        is_linear: whether the attention asked about is linear itself.
        task: what devices are told.
    """

    attention: AbstractAttention
    key_query: np.ndarray
    value: np.ndarray
    prompt: AbstractPrompt
    queries: np.ndarray
    tilts: np.ndarray
    lengths: tuple[int, ...]
    covariance: bool
    linear: bool
    is_linear: bool
    task: Task

    @property
    def block(self) -> int:
        """How many tokens a block has."""
        return self.task.leaves * LEAF

    @property
    def capacity(self) -> int:
        """How many tokens a device takes at a time."""
        return self.task.blocks * self.block

    @property
    def none(self) -> TiltedSums:
        """The sums over no tokens."""
        tilts, dim = self.tilts.shape
        return no_sums(tilts, dim, triangle(dim) if self.task.second else 0)

    def config(self) -> dict[str, object]:
        """What decides the bits of the result, as plain numbers and strings."""
        return {
            "what": "stream",
            "version": __version__,
            "attention": description(self.attention),
            "queries": self.queries.tolist(),
            "prompt": self.prompt.description,
            "lengths": list(self.lengths),
            "second": self.task.second,
            "linear": self.linear,
            "block": self.block,
            "platform": self.task.platform,
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
    """Return the request, or say in one sentence what is wrong with it; inside `enable_x64`."""
    head = in_double(attention).single_head()
    if head is None:
        raise ArgumentError(
            "attention",
            f"must be one head, got {type(attention).__name__}. Stream its heads one "
            "by one: the output is their sum.",
        )
    key_query, value = as_float64(head.key_query), as_float64(head.value)
    asked = np.asarray(float_array("queries", queries, rank=2), np.float64)
    if asked.shape[1] != attention.query_dim or not len(asked):
        raise ArgumentError(
            "queries",
            f"must have shape [n, {attention.query_dim}], one a row, got {list(asked.shape)}.",
        )
    wanted = _increasing(lengths)
    platform = platform_at_work()
    tokens = as_prompt(prompt, active_devices().hosts)
    if tokens.dim != attention.token_dim:
        raise ArgumentError(
            "prompt",
            f"must have tokens of dimension {attention.token_dim} (what the attention's "
            f"parameters take), got {tokens.dim}.",
        )
    if tokens.length is not None and wanted and wanted[-1] > tokens.length:
        raise ArgumentError(
            "lengths",
            f"must be at most {tokens.length}, the length of the prompt, got {wanted[-1]}.",
        )
    is_linear = head.kernel == "linear"
    linear = linear or is_linear
    tilts = asked @ key_query.T @ tokens.matrix
    tilts = np.concatenate([tilts, np.zeros((int(linear), tokens.dim))]).astype(tokens.dtype)
    task = Task(
        tokens.source,
        to_device(tilts),
        leaves_of_a_block(platform),
        _chunk(chunk, platform, sent=not isinstance(prompt, Generated)),
        covariance or linear,
        is_bounded(tokens.source, tilts),
        platform,
    )
    return StreamRequest(
        attention,
        key_query,
        value,
        tokens,
        asked,
        tilts.astype(np.float64),
        wanted,
        covariance,
        linear,
        is_linear,
        task,
    )


def _increasing(lengths: ArrayLike | None) -> tuple[int, ...]:
    require_unmasked("lengths", lengths)
    listed = [] if lengths is None else np.atleast_1d(np.asarray(lengths)).tolist()
    wanted = tuple(require_length("lengths", length) for length in listed)
    if any(later <= earlier for earlier, later in pairwise(wanted)):
        raise ArgumentError("lengths", f"must increase, got {list(wanted)}. Sort them, each once.")
    return wanted


def _chunk(chunk: int | None, platform: str, *, sent: bool) -> int:
    """Return how many blocks a device does between two looks from the host; changes no bit."""
    if chunk is None and platform == "cpu":
        return 8
    if chunk is None:
        return 1 if sent else 16
    return require_whole("chunk", chunk, 1, most_blocks(platform), note=" It counts blocks.")
