"""The atlas: every head of a model compared with approximations, over prompts of one length."""

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from promptlimit._arrays import with_numpy_defaults
from promptlimit._inputs import to_device
from promptlimit.attention import SoftmaxAttention
from promptlimit.concentration import gap_exponent
from promptlimit.errors import ArgumentError
from promptlimit.heads._corpus import CorpusMoments, corpus_moments
from promptlimit.heads._files import extra
from promptlimit.heads._limits import Limits, PerHead, layer_sums
from promptlimit.heads._measure import (
    Progress,
    explained,
    in_every_layer,
    in_threads,
    query_rows,
    share_of,
)
from promptlimit.heads._model import LayerHeads, Model
from promptlimit.heads._parts import Parts, stored_parts
from promptlimit.heads._prediction import GRID, prediction
from promptlimit.heads._prompts import (
    CapturedHeads,
    HeadLists,
    HeadPrompts,
    TextOrIds,
    prompts_of,
)
from promptlimit.results import HeadAtlas
from promptlimit.storage import write_bytes

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
ACCURATE = 0.1
"""The predicted error at `length_needed`, as a fraction of the variance of the limit."""
_STORE_EVERY = 5.0
"""The smallest number of seconds from one storage of moments to the next."""


@with_numpy_defaults
def atlas(
    model: Model | CapturedHeads | HeadLists,
    text_or_ids: TextOrIds | None = None,
    *,
    window: int | None = None,
    windows: int | None = None,
    clusters: int = 4,
    sinks: int = 8,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> HeadAtlas:
    r"""Return the sharpness of every head, and the $R^2$ of its approximations.

    The text is cut into windows, and each window is a prompt. The prompt of a head at a query is
    the law of (key, value) over the tokens to which the query attends. In a causal model these are
    all tokens up to the query, and queries in the first eighth of the window are omitted. With
    rotary positions, keys are used after rotation, so that the law is an average over the positions
    of the prompt. An approximation of the head replaces the law by a simpler law
    (docs/heads-theory.md).

    There are two passes over the windows. The first pass computes the moments of the whole text
    (the corpus), and the second pass measures the heads. Up to 512 MiB of heads are kept in memory
    from the first pass to the second, and the model runs twice over all further windows. Memory
    grows linearly with the number of tokens of a window. For heads from `capture` and heads built
    by hand, no model runs.

    Args:
        model: the result of `load` or of `capture`, or `Head` objects in nested lists: a list of
            the heads of one layer, a list of such lists for several layers (as `Model.heads`
            returns), or a list of lists of layers for several prompts.
        text_or_ids: a text, token ids, or windows of token ids, one per row. Omit it for captured
            heads and lists of heads.
        window: the number of tokens of a prompt; by default the longest prompt of the model, at
            most 512.
        windows: the largest number of windows to use.
        clusters: the number of Gaussians in the approximation "mixture".
        sinks: the number of tokens that the approximation "sinks" keeps as atoms.
        seed: the seed of the clusters.
        folder: a folder for intermediate results. After an interruption the same call resumes from
            them and returns bitwise identical results.
        progress: a function that is called after each part of a step, from any thread. Its
            arguments are the name of the step, the number of finished parts and the number of all
            parts.
    """
    prompts = prompts_of(model, text_or_ids, window, windows)
    quarter = prompts.length // 4
    for name, value, least in (("clusters", clusters, 1), ("sinks", sinks, 0)):
        if isinstance(value, bool) or not least <= value <= quarter:
            raise ArgumentError(
                name, f"must be from {least} to a quarter of the window, {quarter}, got {value}."
            )
    report = progress or (lambda *_: None)
    shortest = max(4, prompts.length // 8) if prompts.causal else prompts.length
    limits = Limits(prompts.causal, clusters, sinks)
    table = prediction(shortest, prompts.length)
    alone, key = prompts.count == 1, jax.random.key(seed)

    def measure(index: int, layer: int, heads: LayerHeads) -> dict[str, Any]:
        """Measure a layer on one window, with the moments of the other windows as the corpus.

        A single window is its own corpus.
        """
        corpus = moments[layer] if alone else moments[layer] - corpus_moments(heads)
        scales = prompts.scales[layer]
        maps = (to_device(part, jnp.float32) for part in corpus.affine_maps(scales))
        own = jax.random.fold_in(jax.random.fold_in(key, index), layer)
        given = PerHead(*maps, jax.random.split(own, len(scales)))
        count = heads.queries.shape[1]
        positions = np.arange(shortest - 1 if prompts.causal else 0, count)
        lengths = positions + 1 if prompts.causal else np.full(count, prompts.length)
        rows = query_rows(heads, scales, positions, table, limits, given)
        return layer_sums(rows, np.asarray(heads.queries)[:, positions], lengths, table)

    options = {"clusters": clusters, "sinks": sinks, "seed": seed}
    with stored_parts(folder, "atlas", prompts.contents, options) as parts:
        moments = _corpus_moments(prompts, report, parts)
        sums = in_every_layer(prompts, measure, "measuring heads", report, parts)
    total = sums["total"].sum(axis=0)
    r2, r2_error = explained(sums["errors"], sums["total"])
    means = {name: part.mean(axis=0) for name, part in sums["means"].items()}
    maps = [here.affine_maps(prompts.scales[layer]) for layer, here in enumerate(moments)]
    return HeadAtlas(
        **prompts.described(),
        clusters=clusters,
        sinks=sinks,
        causal=prompts.causal,
        quantiles=np.array(QUANTILES),
        sharpness=_pooled_quantiles(sums["sharpness"]),
        linear_share=means["linear"],
        frozen_share=means["frozen"],
        effective_tokens=1.0 / means["participation"],
        effective_tokens_predicted=1.0 / means["participation_predicted"],
        skewness=means["skewness"],
        kurtosis=means["kurtosis"],
        r2=r2,
        r2_error=r2_error,
        error_predicted=share_of(sums["predicted_error"].sum(axis=0), total),
        length_needed=_length_needed(
            sums["grid_error"].sum(axis=0), sums["grid_total"].sum(axis=0)
        ),
        exponent=_exponents(prompts.scales, moments),
        matrix=np.stack([matrix for matrix, _ in maps]),
        shift=np.stack([shift for _, shift in maps]),
    )


def _corpus_moments(prompts: HeadPrompts, report: Progress, parts: Parts) -> list[CorpusMoments]:
    """Return the moments of each layer's tokens and queries, summed over all windows."""

    def window_moments(index: int) -> list[CorpusMoments]:
        return [corpus_moments(heads) for heads in prompts.layers(index)]

    stored = parts.load("moments") or {}
    read = int(stored.pop("windows", 0))
    total = [CorpusMoments.of(stored[layer]) for layer in sorted(stored, key=int)]
    saved = time.monotonic()
    report("reading the text", read, prompts.count)
    for done, here in enumerate(in_threads(window_moments, read, prompts.count), start=read + 1):
        report("reading the text", done, prompts.count)
        total = [a + b for a, b in zip(total, here, strict=True)] if total else here
        if done == prompts.count or time.monotonic() - saved > _STORE_EVERY:
            by_layer = {str(layer): vars(moments) for layer, moments in enumerate(total)}
            parts.save("moments", {"windows": done, **by_layer})
            saved = time.monotonic()
    return total


def _pooled_quantiles(sharpness: np.ndarray) -> np.ndarray:
    """Return quantiles over the queries of all windows together, [layers, heads, quantiles]."""
    return np.moveaxis(np.quantile(sharpness, QUANTILES, axis=(0, -1)), 0, -1)


def _length_needed(errors: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return the length at which the predicted error is a tenth of the variance of the limit.

    The logarithm of the error is interpolated linearly in the logarithm of the length. The result
    is at least the first length of `GRID`, infinite if it exceeds the last length of `GRID`, and
    NaN if the limit does not depend on the query.

    Args:
        errors: the predicted errors at the lengths of `GRID`, [layers, heads, lengths].
        totals: the variances of the limit, [layers, heads].
    """
    share = share_of(errors, totals[..., None])
    lengths = np.full(totals.shape, np.inf)
    grid = np.log(GRID)
    for place in np.ndindex(totals.shape):
        if not (np.isfinite(share[place]).all() and share[place].min() > 0.0):
            lengths[place] = np.nan
            continue
        logs = np.log(share[place])
        above = np.flatnonzero(logs > np.log(ACCURATE))
        last = above[-1] if above.size else -1
        if last == -1:
            lengths[place] = GRID[0]
        elif last + 1 < len(grid):
            step = (logs[last] - np.log(ACCURATE)) / (logs[last] - logs[last + 1])
            lengths[place] = np.exp(grid[last] + step * (grid[last + 1] - grid[last]))
    return lengths


def _exponents(scales: np.ndarray, moments: list[CorpusMoments]) -> np.ndarray:
    """Return each head's exponent of the gap, for Gaussian keys and queries with its moments."""
    rates = np.empty(scales.shape)
    for layer, head in np.ndindex(rates.shape):
        keys, queries = moments[layer].key_law(head), moments[layer].query_law(head)
        attention = SoftmaxAttention(scales[layer, head] * np.eye(keys.dim), np.eye(1, keys.dim))
        rates[layer, head] = gap_exponent(attention, keys, queries).value
    return rates


def export_maps(atlas: HeadAtlas, path: str | Path) -> None:
    r"""Write the Gaussian limits $q\mapsto Mq+b$ of all heads as a safetensors file.

    $Mq+b$ is the output of a head at the query q, before the layer's output matrix, over an
    infinite Gaussian prompt. For layer N, the array `layer.N.matrix` is M, [heads, e, d], which
    includes the scale of the scores, and `layer.N.shift` is b, [heads, e]. Use these arrays to
    initialise linear attention.
    """
    save = extra("safetensors.numpy").save
    tensors = {}
    for layer, (matrix, shift) in enumerate(zip(atlas.matrix, atlas.shift, strict=True)):
        tensors[f"layer.{layer}.matrix"] = matrix.astype(np.float32)
        tensors[f"layer.{layer}.shift"] = shift.astype(np.float32)
    note = (
        f"output = matrix @ query + shift of the heads of {atlas.model}, scale of the scores "
        f"included, from {atlas.window * atlas.windows} tokens"
    )
    # A single metadata entry, because the order of several entries varies between processes.
    write_bytes(Path(path), save(tensors, metadata={"map": note}))
