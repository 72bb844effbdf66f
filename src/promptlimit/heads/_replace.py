"""The output of a model as more and more heads are replaced by approximations."""

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from promptlimit._arrays import with_numpy_defaults
from promptlimit._inputs import to_device
from promptlimit.errors import ArgumentError
from promptlimit.heads._model import WAYS, Model, Replacement, Replacements
from promptlimit.heads._parts import stored_parts
from promptlimit.heads._prompts import CapturedHeads, TextOrIds, windows_of
from promptlimit.results import HeadAtlas, HeadReplacement

CURVES = {
    "sinks, most linear first": ("sinks", "sinks"),
    "sinks, random order": ("sinks", "random"),
    "gaussian, most linear first": ("gaussian", "gaussian"),
    "gaussian, random order": ("gaussian", "random"),
    "uniform, most linear first": ("uniform", "gaussian"),
    "corpus, most linear first": ("corpus", "gaussian"),
}
"""The approximation and the order of replacement of each curve, by its name."""
_POINTS = 13


@with_numpy_defaults
def replacement_curve(
    model: Model | CapturedHeads,
    text_or_ids: TextOrIds,
    atlas: HeadAtlas,
    *,
    windows: int = 4,
    counts: Sequence[int] | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> HeadReplacement:
    """Return the model's output as more and more heads are replaced by approximations.

    For a causal model, a curve is the loss. For an encoder, it is the cosine between the embeddings
    (means of the last hidden state) with and without replaced heads. Each curve has one
    approximation and one order of replacement: decreasing R² of "gaussian" or "sinks", or a random
    order. The random order and the approximation "uniform" are controls.

    The approximation "gaussian" requires only the moments of the prompt, a state of fixed size,
    whereas softmax requires all keys and values. "sinks" also keeps `atlas.sinks` tokens, which are
    chosen with all queries of the window, in a causal model also with later queries. "corpus"
    requires no state.

    Args:
        model: a model from `load`. Captured heads are not supported, because they have no weights.
        text_or_ids: a text, token ids, or windows of token ids. The last `windows` windows are
            used; if the text is long enough, the atlas has not used them.
        atlas: an atlas of the same model, which determines the order of the heads.
        windows: the number of prompts.
        counts: the numbers of heads to replace, each from 0 to the number of all heads; by default
            at most 13 numbers in equal steps.
        seed: the seed of the random order.
        folder: a folder for intermediate results, as for `atlas`.
        progress: a function that reports progress, as for `atlas`.
    """
    if not isinstance(model, Model):
        raise ArgumentError(
            "model",
            f"must be a model from `load`, got {type(model).__name__}. Replacing heads "
            "requires the weights of the model.",
        )
    shape = model.shape
    if atlas.linear_share.shape != (shape.layers, shape.heads):
        raise ArgumentError(
            "atlas",
            f"must be of this model's {shape.layers} layers of {shape.heads} heads, "
            f"got {atlas.linear_share.shape[0]} of {atlas.linear_share.shape[1]}.",
        )
    if isinstance(windows, bool) or windows < 1:
        raise ArgumentError("windows", f"must be at least 1, got {windows}.")
    every = windows_of(model, text_or_ids, window=atlas.window)
    cut = every[-windows:]
    numbers = _checked_counts(counts, shape.layers * shape.heads)
    orders = {limit: atlas.order(limit) for limit in ("gaussian", "sinks")}
    shuffled = np.random.default_rng(seed).permutation(len(orders["gaussian"]))
    orders["random"] = [orders["gaussian"][index] for index in shuffled]
    trained = [model.embedding(ids) for ids in cut] if not shape.causal else []
    report = progress or (lambda *_: None)
    curves = {name: np.empty((len(numbers), len(cut))) for name in CURVES}
    steps = list(itertools.product(CURVES, range(len(numbers))))
    weights = model.contents()

    def contents() -> list[object]:
        return [*weights, cut, *orders.values(), atlas.matrix, atlas.shift]

    options = {"counts": numbers, "sinks": atlas.sinks}
    with stored_parts(folder, "replacement curve", contents, options) as parts:
        for done, (label, index) in enumerate(steps):
            report("replacing heads", done, len(steps))
            name = f"curve-{list(CURVES).index(label)}-heads-{numbers[index]}"
            part = parts.load(name)
            if part is None:
                way, order = CURVES[label]
                ways = _ways(model, atlas, orders[order][: numbers[index]], way)
                part = {"outputs": _outputs(model, cut, trained, ways)}
                parts.save(name, part)
            curves[label][index] = part["outputs"]
    report("replacing heads", len(steps), len(steps))
    return HeadReplacement(
        model=model.name,
        measure="loss" if shape.causal else "cosine",
        window=atlas.window,
        sinks=atlas.sinks,
        windows_in_atlas=max(0, atlas.windows - (len(every) - len(cut))),
        counts=np.array(numbers),
        curves=curves,
        baseline=math.log(shape.vocabulary) if shape.causal else _unrelated(trained),
    )


def _outputs(
    model: Model, cut: np.ndarray, trained: Sequence[np.ndarray], ways: Replacements
) -> np.ndarray:
    """Return the loss on each window, or the cosine with the embedding of the trained model."""
    if model.shape.causal:
        return np.array([model.loss(ids, ways) for ids in cut])
    embeddings = [model.embedding(ids, ways) for ids in cut]
    return np.array([float(a @ b) for a, b in zip(embeddings, trained, strict=True)])


def _checked_counts(counts: Sequence[int] | None, every: int) -> list[int]:
    if counts is None:
        return sorted({round(share * every) for share in np.linspace(0, 1, _POINTS)})
    for count in counts:
        if isinstance(count, bool) or not 0 <= count <= every:
            raise ArgumentError("counts", f"must be from 0 to all {every} heads, got {count}.")
    return sorted(set(counts))


def _ways(
    model: Model, atlas: HeadAtlas, replaced: Sequence[tuple[int, int]], way: str
) -> Replacements:
    """Return replacements by `way` for the heads `replaced`; all other heads stay as trained."""
    number = np.zeros(atlas.linear_share.shape, np.int32)
    for place in replaced:
        number[place] = WAYS.index(way)
    layers = [
        Replacement(
            to_device(number[layer]),
            to_device(atlas.matrix[layer], jnp.float32),
            to_device(atlas.shift[layer], jnp.float32),
        )
        for layer in range(model.shape.layers)
    ]
    return Replacements(layers, atlas.sinks)


def _unrelated(embeddings: Sequence[np.ndarray]) -> float:
    """Return the mean cosine between embeddings of different windows; NaN for one window."""
    stacked = np.stack(embeddings)
    count = len(stacked)
    cosines = stacked @ stacked.T
    return (
        float((cosines.sum() - np.trace(cosines)) / (count * (count - 1)))
        if count > 1
        else math.nan
    )
