"""A streamed prompt compared with exact theory."""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import in_double
from promptlimit.attention import AbstractAttention
from promptlimit.errors import AccuracyError, KindUnavailableError
from promptlimit.finite import prompt_moments
from promptlimit.results import StreamReport
from promptlimit.storage import Watcher
from promptlimit.streaming._prompts import Generated, stored_length
from promptlimit.streaming._stream import stream


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
    """Return the attention on prefixes of a prompt, and what exact theory expects of such prompts.

    Outputs on a `Generated` prompt are compared with the limit, those on other prompts with the
    output on the whole prompt. Where exact theory does not apply, nothing is expected.

    Args:
        attention: one head.
        prompt: as for `stream`.
        queries: [q, query_dim].
        lengths: prefixes; two per decade when None.
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
    return prompt.length if isinstance(prompt, Generated) else len(prompt)


def _two_per_decade(length: int) -> np.ndarray:
    """Return 10, 32, 100, 316, ... below a length; the length itself where there are none."""
    steps = range(2, 2 * math.ceil(math.log10(max(length, 10))))
    sizes = sorted({size for step in steps if (size := round(10 ** (step / 2))) < length})
    return np.array(sizes or [length], np.float64)
