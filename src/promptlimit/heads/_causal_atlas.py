"""The causal atlas: statistics of every head of a causal model over long prompts."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import entr, expit

from promptlimit._arrays import require_whole, with_numpy_defaults
from promptlimit._inputs import to_device
from promptlimit.errors import ArgumentError
from promptlimit.heads._far_tokens import FarTokens
from promptlimit.heads._measure import SOFTMAX, Progress, explained, in_every_layer, query_rows
from promptlimit.heads._model import LayerHeads, Model
from promptlimit.heads._parts import stored_parts
from promptlimit.heads._prediction import Prediction, prediction
from promptlimit.heads._prompts import CapturedHeads, HeadLists, TextOrIds, prompts_of
from promptlimit.results import CausalAtlas

LONG = 4096
"""The default number of tokens of a window, if the model accepts as many."""
_CLASSES = 6


@with_numpy_defaults
def causal_atlas(
    model: Model | CapturedHeads | HeadLists,
    text_or_ids: TextOrIds | None = None,
    *,
    window: int | None = None,
    windows: int | None = None,
    sinks: int = 4,
    recent: int = 64,
    band: int = 128,
    every: int = 8,
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> CausalAtlas:
    r"""Return statistics of every head of a causal model, and the $R^2$ of replacing far tokens.

    A query attends to the token at its position and to all earlier tokens. The first of these
    tokens (sinks) and the last (recent tokens) are kept exactly; the tokens between them are called
    far. The atlas contains the variance of the scores between and within bands of distance, the
    weights of sinks and recent tokens, the effective number of tokens and the entropy of the
    weights.

    Each approximation in `r2` replaces the far tokens, for example by their count, means and
    covariances. For keys of dimension d and values of dimension e these are $1+d+e+de+d(d+1)/2$
    numbers per head. For comparison, the approximation "dropped" omits the far tokens and keeps as
    many additional recent tokens as take the same memory.

    The model runs over the text once. Memory grows linearly with the number of tokens of a window.

    Args:
        model: the model or heads, as for `atlas`.
        text_or_ids: the text or token ids, as for `atlas`.
        window: the number of tokens of a window; by default the longest prompt of the model, at
            most 4096.
        windows: the largest number of windows to use.
        sinks: the number of sinks.
        recent: the number of recent tokens, including the token at the position of the query.
        band: the number of distances in a band.
        every: the spacing of the measured queries, counted back from the last query.
        folder: a folder for intermediate results, as for `atlas`.
        progress: a function that reports progress, as for `atlas`.
    """
    for name, value, least in (
        ("sinks", sinks, 0), ("recent", recent, 1), ("band", band, 1), ("every", every, 1),
    ):  # fmt: skip
        require_whole(name, value, least)
    prompts = prompts_of(model, text_or_ids, window, windows, usual=LONG, readings=1)
    if not prompts.causal:
        raise ArgumentError(
            "model", f"must be causal, got {prompts.model_type}. Use promptlimit.heads.atlas."
        )
    far = FarTokens(sinks, recent, _moment_tokens(*prompts.widths), band)
    positions = _positions(prompts.length, far, every)
    table = prediction(int(positions[0]) + 1 - sinks - recent, prompts.length)

    def measure(_: int, layer: int, heads: LayerHeads) -> dict[str, dict[str, np.ndarray]]:
        rows = query_rows(heads, prompts.scales[layer], positions, table, far)
        errors = {name: error.sum(axis=-1) for name, error in rows.errors.items()}
        return {"statistics": rows.statistics, "errors": errors, "totals": rows.totals}

    report = progress or (lambda *_: None)
    options = {"sinks": sinks, "recent": recent, "band": band, "every": every}
    with stored_parts(folder, "causal atlas", prompts.contents, options) as parts:
        found = in_every_layer(prompts, measure, "measuring by distance", report, parts)
    rows = found["statistics"]
    means = {name: part.mean(axis=(0, -1)) for name, part in rows.items()}
    r2, r2_error = explained(found["errors"], found["totals"][SOFTMAX])
    lengths = positions + 1
    edges, classes = _classes(lengths)
    split = {
        "between": rows["between"],
        "within": rows["variance"] - rows["between"],
        "entropy": rows["entropy"],
    }
    return CausalAtlas(
        **prompts.described(),
        shortest=int(lengths[0]),
        every=every,
        **far._asdict(),
        between=means["between"],
        within=means["variance"] - means["between"],
        sink_weight=means["sinks"],
        recent_weight=means["recent"],
        effective_tokens=1.0 / means["participation"],
        entropy=means["entropy"],
        far_sharpness=np.sqrt(means["far_variance"]),
        mass_error=means["mass_error"],
        r2=r2,
        r2_error=r2_error,
        lengths=edges,
        by_length={
            name: np.stack([part[..., chosen].mean(axis=(0, -1)) for chosen in classes], axis=-1)
            for name, part in split.items()
        },
        entropy_predicted=_entropy_predicted(rows, lengths, classes, table, far),
    )


def _moment_tokens(keys: int, values: int) -> int:
    """Return the number of tokens that take as much memory as the moments, rounded up.

    The moments are a count, the means of keys and values, the covariance of the keys, and the
    covariance of the values with the keys. `keys` and `values` are the dimensions of a key and of
    a value.
    """
    numbers = 1 + keys + values + values * keys + keys * (keys + 1) // 2
    return -(-numbers // (keys + values))


def _positions(length: int, far: FarTokens, every: int) -> np.ndarray:
    """Return the positions of the measured queries: one in `every`, including the last query.

    Queries in the first eighth of the window are omitted. The number of tokens before a query must
    also be at least twice the number of tokens that "dropped" keeps.
    """
    kept = far.sinks + far.recent + far.equivalent_tokens
    first = max(length // 8, 2 * kept)
    if length <= first:
        raise ArgumentError(
            "window",
            f"must exceed {2 * kept} tokens for sinks={far.sinks} and recent={far.recent}, "
            f"got {length}. Pass a longer window or a smaller `recent`.",
        )
    return np.arange(length - 1, first - 1, -every)[::-1]


def _classes(lengths: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the edges of classes of lengths, and a mask of the lengths in each class.

    The ratio of consecutive edges is the same for all classes, up to rounding. There are at most
    `_CLASSES` classes, and every class contains a length.
    """
    count = _CLASSES
    while True:
        edges = np.geomspace(lengths[0], lengths[-1] + 1, count + 1).round()
        classes = [(lengths >= low) & (lengths < high) for low, high in itertools.pairwise(edges)]
        if count == 1 or all(chosen.any() for chosen in classes):
            return edges, classes
        count -= 1


def _entropy_predicted(
    rows: Mapping[str, np.ndarray],
    lengths: np.ndarray,
    classes: list[np.ndarray],
    table: Prediction,
    far: FarTokens,
) -> dict[str, np.ndarray]:
    r"""Return the entropy in the last class of lengths, predicted from the first class.

    The entropy at each query in the first class is extrapolated from the length of its prompt to
    the geometric mean of the lengths in the last class. The result has the means over these
    queries, [layers, heads], by method:

    - "no change" keeps the entropy;
    - "more tokens" adds the logarithm of the ratio of the lengths;
    - "gaussian" adds the increase of the entropy for Gaussian scores of the same variance;
    - "gaussian far" increases only the entropy and the mass of the far tokens, in the same way.
    """
    short, long = classes[0], classes[-1]
    at = {name: part[..., short] for name, part in rows.items()}
    before, after = lengths[short].astype(float), np.exp(np.log(lengths[long]).mean())
    kept = far.sinks + far.recent
    _, added = _added(table, at["variance"], before, after)
    grown, far_added = _added(table, at["far_variance"], before - kept, after - kept)
    weight = expit(at["far_odds"] + grown)
    choice = entr(weight) + entr(1.0 - weight)
    far_entropy = at["far_entropy"] + far_added
    predictions = {
        "no change": at["entropy"],
        "more tokens": at["entropy"] + np.log(after / before),
        "gaussian": at["entropy"] + added,
        "gaussian far": choice + (1.0 - weight) * at["kept_entropy"] + weight * far_entropy,
    }
    return {name: part.mean(axis=(0, -1)) for name, part in predictions.items()}


_at_own_length = jax.jit(Prediction.at_own_length)


def _added(
    table: Prediction, variance: np.ndarray, before: np.ndarray, after: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Return the changes of $E\ln Z$ and $E\,H$ of Gaussian scores between two lengths.

    For L scores of variance $\sigma^2$, $E\ln Z=\ln L+g\sigma^2/2$, which defines the `growth` g of
    the table, and $E\,H=E\ln Z-\sigma^2(1-E\,S_2)$. Here Z is the sum of the exponentials of the
    scores, H the entropy of the weights and $S_2$ the sum of squared weights.
    """

    def at(length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        flat = (
            to_device(part.ravel(), jnp.float32) for part in np.broadcast_arrays(variance, length)
        )
        statistics = _at_own_length(table, *flat)
        growth, participation = (
            np.asarray(part, np.float64).reshape(variance.shape)
            for part in (statistics.growth, statistics.participation)
        )
        partition = np.log(length) + 0.5 * growth * variance
        return partition, partition - variance * (1.0 - participation)

    early, late = at(before), at(np.array(after))
    return late[0] - early[0], late[1] - early[1]
