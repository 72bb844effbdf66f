"""Attention on a prompt of any length, at many of its prefixes, in one pass."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from promptlimit._arrays import ArrayLike, with_numpy_defaults
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.parallel import active_devices, agreed
from promptlimit.results import StreamedAttention
from promptlimit.storage import Watcher, run_name, watching
from promptlimit.streaming._pass import all_sums
from promptlimit.streaming._readings import streamed_attention
from promptlimit.streaming._request import StreamRequest, checked_request
from promptlimit.streaming._saved import Saver


@with_numpy_defaults
def stream(
    attention: AbstractAttention,
    prompt: Any,
    queries: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    covariance: bool = True,
    linear: bool = False,
    chunk: int | None = None,
    folder: str | Path | None = None,
    every: float = 30.0,
    watch: Watcher | bool | None = True,
) -> StreamedAttention:
    r"""Return what attention does with the first L tokens of a prompt that need not fit in memory.

    Tokens are summed up in leaves of 4096, leaves in double precision along one fixed binary tree.
    So a prefix has the same bits as a prompt that ends there, and neither the number of devices or
    processes (see `use_devices`) nor the sizes of blocks or chunks change any. Another kind of
    device may round differently.

    Args:
        attention: one head; softmax or linear.
        prompt: a `Generated`, an array [length, token_dim] (one that is mapped into memory stays
            in its file), the path of a .npy file, or an iterable of blocks [n, token_dim] of any
            sizes. Single precision is read in single, all else in double.
        queries: [q, query_dim].
        lengths: prefixes to read at, increasing; the whole prompt is always read, and last.
        covariance: whether to sum up second moments too, which is half of the work.
        linear: whether to read the same tokens by linear attention as well.
        chunk: blocks that a device does at a time; a matter of speed and memory alone.
        folder: where the sums so far are kept; a stream that was killed goes on from there. Blocks
            from an iterable must then come again from the first one. Prompts are known by their
            first tokens, 4096 of them; those in memory or in a file by their last ones, too.
        every: seconds between two times of saving.
        watch: True shows a progress bar on a terminal or in a notebook; a function is called with
            the `Progress` about twice a second; False shows nothing.

    >>> import jax, numpy as np, promptlimit as pl
    >>> attention = pl.SoftmaxAttention(np.eye(2), np.eye(2))
    >>> prompt = pl.streaming.Generated(
    ...     pl.Gaussian(np.zeros(2), np.eye(2)), 1e6, key=jax.random.key(0)
    ... )
    >>> streamed = pl.stream(attention, prompt, [[1.0, 0.0]], [1e3, 1e5])
    >>> print(streamed.lengths, streamed.output[-1].round(2))  # the limit is the query
    [   1000  100000 1000000] [[1. 0.]]
    """
    with jax.enable_x64(True):
        request = checked_request(
            attention,
            prompt,
            queries,
            lengths,
            covariance=covariance,
            linear=linear,
            chunk=chunk,
        )
        _require_one_for_all(request)
        saver = Saver(folder, request, every)
        with saver.lock(), watching(watch, "streaming") as watcher:
            sums = all_sums(request, saver, watcher)
    return streamed_attention(request, sums)


def _require_one_for_all(request: StreamRequest) -> None:
    """Refuse processes that were given different prompts or asked different things.

    Queries may differ in their last bits, where hosts differ.
    """
    if active_devices().hosts == 1:
        return
    asked = {name: value for name, value in request.config().items() if name != "queries"}
    own = np.frombuffer(run_name(asked).encode(), np.uint8)
    if not np.array_equal(agreed(own), own):
        raise ArgumentError(
            "prompt",
            "and all options must be the same in every process, but those of process "
            f"{active_devices().process} differ from those of process 0.",
        )
