"""Every head of a model measured against its limits, on a text cut into windows."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.concentration import gap_exponent
from promptlimit.heads._corpus import (
    CorpusMoments,
    corpus_moments,
    prompt_moments_of,
)
from promptlimit.heads._forward import LayerHeads
from promptlimit.heads._measure import LIMITS, CorpusMap, measured
from promptlimit.heads._model import Model
from promptlimit.heads._prediction import GRID, Prediction, prediction
from promptlimit.heads._windows import TextOrIds, windows_of
from promptlimit.results import HeadAtlas

Result = TypeVar("Result")
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

Kept = dict[int, list[LayerHeads]]
"""Heads of the first windows, by their number."""

_THREADS = 4
_MEMORY = 512 * 2**20
ACCURATE = 0.1
"""Share of a head's variation that the limit may miss at the length called needed."""


def atlas(
    model: Model,
    text_or_ids: TextOrIds,
    *,
    window: int | None = None,
    windows: int | None = None,
    clusters: int = 4,
    sinks: int = 8,
    seed: int = 0,
    progress: Progress | None = None,
) -> HeadAtlas:
    r"""Return, for every head, how sharp it is and how well its limits reproduce it.

    The text is read twice in windows, each a prompt: once for the moments of the corpus, once to
    measure. Memory does not grow with the text, nor with the square of a long window.

    A head's prompt is the law of (key, value) over the tokens that a query sees. For a causal model
    that is all tokens up to the query, and queries with fewer than an eighth of the window before
    them are left out. With rotary positions the keys are those after rotation: a token's position
    is part of the token, and its law is averaged over the positions of the prompt.

    Args:
        model: from `load`.
        text_or_ids: a text, token ids, or the windows themselves, one a row.
        window: tokens of a prompt; as many as the model takes, at most 512, unless given.
        windows: the most windows to read.
        clusters: number of Gaussians in the mixture.
        sinks: number of tokens that are atoms beside one Gaussian.
        seed: of the clusters' starts.
        progress: called as the work goes on.
    """
    if isinstance(windows, bool) or (windows is not None and windows < 1):
        raise ValueError(f"`windows` must be at least 1, got {windows}.")
    cut = windows_of(model, text_or_ids, window=window, at_most=windows)
    size = cut.shape[1]
    if isinstance(clusters, bool) or not 1 <= clusters <= size // 4:
        raise ValueError(
            f"`clusters` must be from 1 to a quarter of the window, {size // 4}, got {clusters}."
        )
    if isinstance(sinks, bool) or not 0 <= sinks <= size // 4:
        raise ValueError(
            f"`sinks` must be from 0 to a quarter of the window, {size // 4}, got {sinks}."
        )
    report = progress or (lambda *_: None)
    shortest = max(4, size // 8) if model.shape.causal else size
    table = prediction(shortest, size)
    kept: Kept = {}
    moments = _corpus_moments(model, cut, kept, report)
    key = jax.random.key(seed)

    def one_window(index: int) -> dict[str, np.ndarray]:
        here = jax.random.fold_in(key, index)
        heads = kept.pop(index, None) or _heads_of(model, cut[index])
        layers = list(_measured(model, heads, moments, table, here, shortest, clusters, sinks))
        stacked = {
            name: np.stack([np.asarray(layer[name], np.float64) for layer in layers])
            for name in layers[0]
        }
        return _with_affine_error(_with_grid_error(stacked, table))

    found = list(_in_threads(one_window, len(cut), "measuring heads", report))
    parts = {name: np.stack([window[name] for window in found]) for name in found[0]}
    return _assembled(model, parts, moments, size=size, clusters=clusters, sinks=sinks)


def _in_threads(
    work: Callable[[int], Result], count: int, what: str, report: Progress
) -> Iterator[Result]:
    """Yield the results for all windows in order; a layer alone does not keep two cores busy."""
    report(what, 0, count)
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for done, result in enumerate(pool.map(work, range(count)), start=1):
            report(what, done, count)
            yield result


def _heads_of(model: Model, ids: np.ndarray) -> Iterator[LayerHeads]:
    return (heads for heads, _, _ in model.layer_outputs(ids))


def _corpus_moments(
    model: Model, cut: np.ndarray, kept: Kept, report: Progress
) -> list[CorpusMoments]:
    """Return the moments of each layer's tokens and queries, summed over all windows.

    The heads of the first windows are kept for the second reading, as many as the memory allows.
    """
    shape = model.shape
    room = _MEMORY // (12 * shape.layers * shape.heads * shape.head_dim * cut.shape[1])

    def one_window(index: int) -> list[CorpusMoments]:
        if index < room:
            kept[index] = list(_heads_of(model, cut[index]))
        return [_moments(heads) for heads in kept.get(index) or _heads_of(model, cut[index])]

    total: list[CorpusMoments] = []
    for here in _in_threads(one_window, len(cut), "reading the text", report):
        total = [a + b for a, b in zip(total, here, strict=True)] if total else here
    return total


def _moments(heads: LayerHeads) -> CorpusMoments:
    return corpus_moments(prompt_moments_of(heads), heads.keys.shape[1])


def _measured(  # noqa: PLR0917 - what one window needs, in the order of its use
    model: Model,
    every_layer: Iterable[LayerHeads],
    total: list[CorpusMoments],
    table: Prediction,
    key: jax.Array,
    shortest: int,
    clusters: int,
    sinks: int,
) -> Iterator[dict[str, jax.Array]]:
    """Yield what one window shows of each layer; the corpus is the other windows, if any."""
    for layer, heads in enumerate(every_layer):
        alone = total[layer].count == heads.keys.shape[1]
        corpus = total[layer] if alone else total[layer] - _moments(heads)
        maps = (
            jnp.asarray(part, jnp.float32) for part in corpus.affine_maps(model.shape.scale(layer))
        )
        yield measured(
            heads,
            jnp.float32(model.shape.scale(layer)),
            CorpusMap(*maps),
            table,
            jax.random.fold_in(key, layer),
            causal=model.shape.causal,
            shortest=shortest,
            clusters=clusters,
            sinks=sinks,
        )


def _assembled(
    model: Model,
    parts: dict[str, np.ndarray],
    moments: list[CorpusMoments],
    *,
    size: int,
    clusters: int,
    sinks: int,
) -> HeadAtlas:
    """Return the means over windows; errors and variations are summed before they are divided."""
    total = parts["total"].sum(axis=0)
    share = {
        name: _ratio(parts[f"error_{name}"].sum(axis=0), total) for name in (*LIMITS, "predicted")
    }
    mean = {name: value.mean(axis=0) for name, value in parts.items()}
    maps = [here.affine_maps(model.shape.scale(layer)) for layer, here in enumerate(moments)]
    return HeadAtlas(
        model=model.name,
        model_type=model.shape.model_type,
        window=size,
        windows=len(parts["total"]),
        clusters=clusters,
        sinks=sinks,
        causal=model.shape.causal,
        rotary=model.shape.rotary,
        parity=model.parity,
        sharpness=mean["sharpness"],
        linear=mean["linear"],
        frozen=mean["frozen"],
        effective_tokens=1.0 / mean["participation"],
        effective_tokens_predicted=1.0 / mean["participation_predicted"],
        skewness=mean["skewness"],
        kurtosis=mean["kurtosis"],
        error_predicted=share.pop("predicted"),
        r2={name: 1.0 - value for name, value in share.items()},
        r2_error=_jackknife(parts["error_gaussian"], parts["total"]),
        length_needed=_length_needed(
            parts["grid_error"].sum(axis=0), parts["few_total"].sum(axis=0)
        ),
        exponent=_exponents(model, moments),
        matrix=np.stack([matrix for matrix, _ in maps]),
        shift=np.stack([shift for _, shift in maps]),
    )


def _with_grid_error(here: dict[str, np.ndarray], table: Prediction) -> dict[str, np.ndarray]:
    """Put the error predicted at every length of the grid in place of what it depends on."""
    sharpness, along, spread = (
        here.pop(f"few_{name}") for name in ("sharpness", "along", "spread")
    )
    participation, score_error = table.at_grid(sharpness)
    each = along * score_error + (spread - along) * participation
    return here | {"grid_error": np.moveaxis(each.sum(axis=-1), 0, -1)}


def _with_affine_error(here: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put the squares that the best affine map leaves in place of what they depend on."""
    squares, products = here.pop("query_squares"), here.pop("query_answers")
    variances, axes = np.linalg.eigh(squares)
    kept = variances > 1e-6 * variances[..., -1:]
    turned = (np.swapaxes(axes, -1, -2) @ products) ** 2
    explained = (turned.sum(axis=-1) * kept / np.where(kept, variances, 1.0)).sum(axis=-1)
    return here | {"error_affine": np.maximum(here["total"] - explained, 0.0)}


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return the share of a variation; NaN for a head that answers every query alike."""
    return part / np.where(whole > 0, whole, np.nan)


def _jackknife(errors: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the standard error of a ratio of sums over windows; infinite for a single window."""
    count = len(errors)
    if count == 1:
        return np.full(errors.shape[1:], np.inf)
    without = _ratio(errors.sum(axis=0) - errors, totals.sum(axis=0) - totals)
    return np.sqrt((count - 1) * without.var(axis=0))


def _length_needed(errors: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the length from which the predicted error is a tenth of the limit's own variation.

    Logarithms are interpolated between the lengths of the grid; infinite beyond its end,
    NaN for a limit that does not vary.
    """
    share = _ratio(errors, totals[..., None])
    found = np.full(totals.shape, np.inf)
    grid = np.log(GRID)
    for place in np.ndindex(totals.shape):
        logs = np.log(share[place])
        if not np.isfinite(logs).all():
            found[place] = np.nan
            continue
        above = np.flatnonzero(logs > np.log(ACCURATE))
        last = above[-1] if above.size else -1
        if last == -1:
            found[place] = GRID[0]
        elif last + 1 < len(grid):
            step = (logs[last] - np.log(ACCURATE)) / (logs[last] - logs[last + 1])
            found[place] = np.exp(grid[last] + step * (grid[last + 1] - grid[last]))
    return found


def _exponents(model: Model, moments: list[CorpusMoments]) -> np.ndarray:
    """Return the rate at which each head's gap falls with length, for tokens of its moments."""
    shape = model.shape
    rates = np.empty((shape.layers, shape.heads))
    for layer, head in np.ndindex(rates.shape):
        width = shape.head_dim
        attention = SoftmaxAttention(shape.scale(layer) * np.eye(width), np.eye(1, width))
        laws = moments[layer].key_law(head), moments[layer].query_law(head)
        rates[layer, head] = gap_exponent(attention, *laws).value
    return rates
