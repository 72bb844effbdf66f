"""Attention over a prompt of any length and over its prefixes, in one pass."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from promptlimit._arrays import ArrayLike, SupportsArray, as_float64, with_numpy_defaults
from promptlimit._inputs import in_double
from promptlimit.attention import AbstractAttention
from promptlimit.errors import AccuracyError, ArgumentError, KindUnavailableError
from promptlimit.finite import prompt_moments
from promptlimit.parallel import active_devices, agreed
from promptlimit.results import StreamedAttention, StreamReport
from promptlimit.storage import Watcher, run_name, watching
from promptlimit.streaming._pass import Saver, all_sums
from promptlimit.streaming._prompts import AbstractPrompt, Generated, stored_length
from promptlimit.streaming._request import StreamRequest, checked_request
from promptlimit.streaming._sums import TiltedSums, symmetric


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
    r"""Return attention over the first L tokens of a prompt that need not fit in memory.

    Tokens are summed in groups of 4096 (leaves), and the sums over leaves are added in double
    precision in a fixed order. Results therefore do not depend on the number of devices or
    processes (see `use_devices`), on `chunk`, or on the sizes of the blocks of an iterable, and a
    prefix gives the same bits as a prompt that consists of the prefix. Another kind of device may
    round differently.

    Args:
        attention: one head, softmax or linear.
        prompt: a `Generated`, an array [length, token_dim] (possibly memory-mapped), the path of a
            .npy file, or an iterable of blocks [n, token_dim] of any sizes. Within a leaf, tokens
            in half or single precision are summed in single precision, others in double precision.
        queries: the queries, [q, query_dim].
        lengths: increasing prefix lengths. The length of the whole prompt is always included.
        covariance: whether to compute tilted covariances, which is half of the work.
        linear: whether to also compute linear attention over the same tokens.
        chunk: the number of internal blocks of leaves that a device sums per round; it affects only
            speed and memory.
        folder: where to save the sums. An interrupted stream resumes from this folder; an iterable
            must then yield all its blocks again. A prompt that is not generated is identified by
            its first 4096 tokens, an array or a file also by its shape and its last 4096 tokens.
        every: the number of seconds between checkpoints.
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
        _require_same_in_all_processes(request)
        saver = Saver(folder, request, every)
        with saver.lock(), watching(watch, "streaming") as watcher:
            sums = all_sums(request, saver, watcher)
    return streamed_attention(request, sums)


def _require_same_in_all_processes(request: StreamRequest) -> None:
    """Raise an error if the arguments other than queries differ between processes.

    The last bits of queries may differ between hosts.
    """
    if active_devices().hosts == 1:
        return
    config = {name: value for name, value in request.config().items() if name != "queries"}
    own = np.frombuffer(run_name(config).encode(), np.uint8)
    if not np.array_equal(agreed(own), own):
        raise ArgumentError(
            "prompt",
            "and all options must be the same in every process, but those of process "
            f"{active_devices().process} differ from those of process 0.",
        )


def streamed_attention(
    request: StreamRequest, sums_by_length: Sequence[tuple[int, TiltedSums]]
) -> StreamedAttention:
    r"""Return attention at each prefix length, from the sums over the tokens of the prefix.

    The sums are in the coordinates $u$ of a token $z=Au+b$, with $A$ and $b$ the matrix and the
    shift of the prompt. At a tilt $t$, the score of the token is
    $\langle A^\top t,u\rangle+\langle t,b\rangle$. If $u$ has the tilted mean $\bar u$ and the
    tilted covariance $C$, those of $z$ are $A\bar u+b$ and $ACA^\top$. The entropy of the weights
    is the log-sum-exp of the scores minus their weighted mean.
    """
    prompt, count = request.prompt, len(request.queries)
    lengths, parts = zip(*sums_by_length, strict=True)
    sums = TiltedSums(*(np.stack(column) for column in zip(*parts, strict=True)))
    value = as_float64(request.head.value)
    tilts = request.queries @ as_float64(request.head.key_query).T
    offset = tilts @ prompt.shift
    mass = sums.mass[:, :count]
    centre = sums.first / sums.mass[..., None]
    log_mass = sums.top[:, :count] + np.log(mass)
    mean_scores = np.sum(as_float64(request.shared.tilts)[:count] * centre[:, :count], -1)
    mean = centre @ prompt.matrix.T + prompt.shift
    cov = _covariances(sums, centre, prompt) if sums.second.shape[-1] else None
    output = mean[:, :count] @ value.T
    linear_output = None
    if request.linear and cov is not None:
        moment = cov[:, count] + mean[:, count, :, None] * mean[:, count, None, :]
        linear_output = tilts @ moment @ value.T
        if request.head.kernel == "linear":
            output = linear_output
    return StreamedAttention(
        lengths=np.array(lengths, np.int64),
        output=output,
        log_sum_exp=log_mass + offset,
        max_score=sums.top[:, :count] + offset,
        max_weight=1.0 / mass,
        participation=sums.square[:, :count] / mass**2,
        entropy=np.maximum(log_mass - mean_scores, 0.0),
        mean=mean[:, :count],
        cov=cov[:, :count] if request.covariance and cov is not None else None,
        linear_output=linear_output,
        dtype=str(prompt.dtype),
    )


def _covariances(sums: TiltedSums, centre: np.ndarray, prompt: AbstractPrompt) -> np.ndarray:
    matrix, dim = prompt.matrix, prompt.dim
    moments = symmetric(sums.second / sums.mass[..., None], dim)
    return matrix @ (moments - centre[..., :, None] * centre[..., None, :]) @ matrix.T


def stream_report(
    attention: AbstractAttention,
    prompt: Any,
    queries: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    covariance: bool = False,
    linear: bool = False,
    folder: str | Path | None = None,
    every: float = 30.0,
    watch: Watcher | bool | None = True,
) -> StreamReport:
    """Return attention over prefixes of a prompt, a reference output and expected errors.

    For a `Generated` prompt, the reference is the limit of infinite length, and the expected errors
    relative to this limit are exact; they are None if no exact method applies. For other prompts,
    the reference is the output over the whole prompt, and the expected errors are None.

    Args:
        attention: one head, softmax or linear.
        prompt: as for `stream`.
        queries: the queries, [q, query_dim].
        lengths: increasing prefix lengths; about two per decade if None. They are required for an
            iterable of blocks.
        covariance: as for `stream`.
        linear: as for `stream`.
        folder: as for `stream`.
        every: as for `stream`.
        watch: as for `stream`.

    >>> import jax, promptlimit as pl
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> prompt = pl.streaming.Generated(normal, 1e4, key=jax.random.key(0))
    >>> head = pl.SoftmaxAttention([[0.5]], [[1.0]])
    >>> report = stream_report(head, prompt, [[1.0]], watch=False)
    >>> print(report.streamed.lengths, report.is_limit)
    [   10    32   100   316  1000  3162 10000] True
    """
    rows = as_float64(queries)
    prefixes = _two_per_decade(_length(prompt)) if lengths is None else lengths
    streamed = stream(
        attention, prompt, rows, prefixes,
        covariance=covariance, linear=linear, folder=folder, every=every, watch=watch,
    )  # fmt: skip
    if not isinstance(prompt, Generated):
        return StreamReport(streamed, streamed.output[-1], False, None, None)
    with jax.enable_x64(True):
        head, law = in_double(attention), in_double(prompt.measure)
        limits = [np.asarray(head(law, query)) for query in rows]
    counts = streamed.lengths.astype(np.float64)
    try:
        moments = [
            prompt_moments(attention, prompt.measure, query, counts, kind="exact") for query in rows
        ]
    except (KindUnavailableError, AccuracyError):
        return StreamReport(streamed, np.stack(limits), True, None, None)
    squares, tokens = (
        np.stack([getattr(one, name) for one in moments], axis=1)
        for name in ("mse", "effective_tokens")
    )
    return StreamReport(streamed, np.stack(limits), True, squares, tokens)


def _length(prompt: Any) -> int:
    if isinstance(prompt, str | Path):
        return stored_length(Path(prompt))
    if isinstance(prompt, Generated):
        return prompt.length
    if not isinstance(prompt, SupportsArray):
        raise ArgumentError(
            "lengths",
            f"must be given for an iterable of blocks, got None for a {type(prompt).__name__}.",
        )
    return len(np.atleast_1d(np.asarray(prompt)))


def _two_per_decade(length: int) -> np.ndarray:
    """Return 10, 32, 100, 316, ... up to below `length`; `length` itself if it is at most 10."""
    steps = range(2, 2 * math.ceil(math.log10(max(length, 10))))
    sizes = sorted({size for step in steps if (size := round(10 ** (step / 2))) < length})
    return np.array(sizes or [length], np.float64)
