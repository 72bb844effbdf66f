"""What one prompt shows of every head of a layer: numbers that add up over prompts."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from promptlimit._inputs import to_device
from promptlimit.heads._clusters import members, sink_members
from promptlimit.heads._forward import LayerHeads
from promptlimit.heads._prediction import Prediction, Statistics
from promptlimit.heads._weighing import (
    gaussian_weights,
    in_blocks,
    inside_of,
    mixture_weights,
    softmax_weights,
    uniform_weights,
)
from promptlimit.measures import full_precision

Numbers = Array | np.ndarray
"""An array on the device, or the same in doubles on the host."""
EVERY = 8
"""Of so many queries one is kept to predict the error at other lengths."""


class CorpusMap(NamedTuple):
    r"""The Gaussian limit with moments of other prompts: $q\mapsto m_v+Mq$."""

    matrix: Float[Array, "heads e d"]
    shift: Float[Array, "heads e"]


class Settings(NamedTuple):
    """How prompts are looked at.

    Attributes:
        causal: whether a query sees the tokens up to its own.
        shortest: the shortest prompt of a causal head that is looked at.
        clusters: number of Gaussians in the mixture.
        sinks: number of tokens that are atoms beside one Gaussian.
    """

    causal: bool
    shortest: int
    clusters: int
    sinks: int


class ByLimit(NamedTuple):
    """One array for each limit that is held against a head."""

    uniform: Numbers
    gaussian: Numbers
    gaussian_finite: Numbers
    sinks: Numbers
    mixture: Numbers
    corpus: Numbers
    corpus_finite: Numbers


class ScoreMeans(NamedTuple):
    """Means over the queries of each head, [heads], of what their scores show.

    Attributes:
        linear: share of queries whose squared sharpness is at most 2/3 ln L.
        frozen: share of queries whose squared sharpness exceeds 2 ln L.
        participation: of the sum of squared weights.
        participation_predicted: of the same for Gaussian tokens.
        skewness: of the scores' skewness.
        kurtosis: of their excess kurtosis.
    """

    linear: Numbers
    frozen: Numbers
    participation: Numbers
    participation_predicted: Numbers
    skewness: Numbers
    kurtosis: Numbers


class Sums(NamedTuple):
    """What one prompt shows of the heads of a layer, in doubles; leaves are [heads] and add up.

    Attributes:
        sharpness: standard deviation of each query's scores, [heads, queries]; it does not add up.
        scores: means over queries.
        errors: squared differences of the head's answers and a limit's.
        affine_error: of the best affine map of the query, fitted.
        predicted_error: of the Gaussian limit, were tokens independent and Gaussian.
        total: squared differences of the answers and their mean.
        grid_error: error predicted at each length of `GRID`, for a few queries, [heads, lengths].
        grid_total: squared differences of the limit's answers to those queries and their mean.
    """

    sharpness: np.ndarray
    scores: ScoreMeans
    errors: ByLimit
    affine_error: np.ndarray
    predicted_error: np.ndarray
    total: np.ndarray
    grid_error: np.ndarray
    grid_total: np.ndarray


class _FewQueries(NamedTuple):
    """What the error at another length depends on, one row a head, one column a query kept."""

    variance: Array
    along: Array
    spread: Array


class _DeviceSums(NamedTuple):
    """Sums as the device leaves them; the last three fields become errors on the host."""

    sharpness: Array
    scores: ScoreMeans
    errors: ByLimit
    predicted_error: Array
    total: Array
    grid_total: Array
    few: _FewQueries
    query_squares: Array
    query_answers: Array


class _Rows(NamedTuple):
    """What each query of one head sees and answers."""

    variance: Array
    participation: Array
    skewness: Array
    kurtosis: Array
    spread: Array
    softmax: Array
    uniform: Array
    gaussian: Array
    sinks: Array
    mixture: Array


def layer_sums(  # noqa: PLR0917 - in the order of their use
    heads: LayerHeads,
    scales: Float[np.ndarray, " heads"],
    corpus: CorpusMap,
    prediction: Prediction,
    key: Array,
    settings: Settings,
) -> Sums:
    """Return the sums of one prompt over the heads of a layer.

    Args:
        heads: queries, keys and values of a layer.
        scales: the factor on the scores of each head.
        corpus: the affine maps from other prompts' moments.
        prediction: the weight statistics of Gaussian tokens.
        key: randomness of the clusters' starts.
        settings: how the prompt is looked at.
    """
    device_sums = _device_sums(
        heads, to_device(scales, jnp.float32), corpus, prediction, key, settings=settings
    )
    sums = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), device_sums)
    return Sums(
        sharpness=sums.sharpness,
        scores=sums.scores,
        errors=sums.errors,
        affine_error=_affine_error(sums.query_squares, sums.query_answers, sums.total),
        predicted_error=sums.predicted_error,
        total=sums.total,
        grid_error=_grid_error(sums.few, prediction),
        grid_total=sums.grid_total,
    )


def _grid_error(few: _FewQueries, prediction: Prediction) -> np.ndarray:
    """Return the error predicted at every length of the grid, [heads, lengths]."""
    variance, along, spread = (np.asarray(part) for part in few)
    participation, score_error = prediction.at_grid(variance)
    errors = along * score_error + (spread - along) * participation
    return np.moveaxis(errors.sum(axis=-1), 0, -1)


def _affine_error(squares: np.ndarray, products: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return the squares that the best affine map of the query leaves, [heads]; NaN if unknown."""
    finite = np.isfinite(np.abs(squares).max(axis=(1, 2)))
    variances, axes = np.linalg.eigh(np.where(finite[:, None, None], squares, 0.0))
    kept = variances > 1e-6 * variances[..., -1:]
    turned = (np.swapaxes(axes, -1, -2) @ products) ** 2
    explained = (turned.sum(axis=-1) * kept / np.where(kept, variances, 1.0)).sum(axis=-1)
    return np.where(finite, np.maximum(total - explained, 0.0), np.nan)


@functools.partial(jax.jit, static_argnames="settings")
@full_precision
def _device_sums(
    heads: LayerHeads,
    scales: Float[Array, " heads"],
    corpus: CorpusMap,
    prediction: Prediction,
    key: Array,
    *,
    settings: Settings,
) -> _DeviceSums:
    """Return what one prompt shows, heads one after the other."""
    causal, shortest, clusters, sinks = settings

    def head_sums(operands: tuple[LayerHeads, Array, CorpusMap, Array]) -> _DeviceSums:
        head, scale, limit, head_key = operands
        chosen = members(head.queries, head.keys, clusters, head_key)
        parked = sink_members(head.queries, head.keys, scale, sinks)

        def rows(queries: Array, positions: Array) -> _Rows:
            inside = inside_of(positions, head.keys.shape[0], causal=causal)
            return _rows(scale * (queries @ head.keys.T), inside, head.values, parked, chosen)

        n, first = head.queries.shape[0], shortest - 1 if causal else 0
        length = jnp.arange(1, n + 1) if causal else jnp.full(n, head.keys.shape[0])
        seen = in_blocks(rows, head.queries, jnp.arange(first, n))
        return _summary(
            seen, head.queries[first:], limit, prediction, length[first:].astype(jnp.float32)
        )

    keys = jax.random.split(key, heads.queries.shape[0])
    return jax.lax.map(head_sums, (heads, scales, corpus, keys))


def _rows(
    scores: Float[Array, "n length"],
    inside: Bool[Array, "n length"],
    values: Float[Array, "length e"],
    parked: Float[Array, "length parts"],
    chosen: Float[Array, "length clusters"],
) -> _Rows:
    softmax, uniform = softmax_weights(scores, inside), uniform_weights(scores, inside)
    centred = jnp.where(inside, scores - (uniform * scores).sum(axis=1, keepdims=True), 0.0)
    variance, third, fourth = ((uniform * centred**power).sum(axis=1) for power in (2, 3, 4))
    safe = jnp.maximum(variance, 1e-12)
    mean = uniform @ values
    return _Rows(
        variance=variance,
        participation=(softmax**2).sum(axis=1),
        skewness=third / safe**1.5,
        kurtosis=fourth / safe**2 - 3.0,
        spread=jnp.maximum(uniform @ (values**2).sum(axis=1) - (mean**2).sum(axis=1), 0.0),
        softmax=softmax @ values,
        uniform=mean,
        gaussian=gaussian_weights(scores, inside) @ values,
        sinks=mixture_weights(scores, inside, parked) @ values,
        mixture=mixture_weights(scores, inside, chosen) @ values,
    )


def _summary(
    rows: _Rows, queries: Array, corpus: CorpusMap, prediction: Prediction, length: Array
) -> _DeviceSums:
    statistics = prediction.at_own_length(rows.variance, length)
    left = (1.0 - statistics.participation)[:, None]
    pull = queries @ corpus.matrix.T
    answers = ByLimit(
        uniform=rows.uniform,
        gaussian=rows.gaussian,
        gaussian_finite=rows.uniform + left * (rows.gaussian - rows.uniform),
        sinks=rows.sinks,
        mixture=rows.mixture,
        corpus=corpus.shift[None] + pull,
        corpus_finite=corpus.shift[None] + left * pull,
    )
    order = rows.variance / jnp.log(length)
    scores = ScoreMeans(
        linear=(order <= 2.0 / 3.0).astype(jnp.float32).mean(),
        frozen=(order > 2.0).astype(jnp.float32).mean(),
        participation=rows.participation.mean(),
        participation_predicted=statistics.participation.mean(),
        skewness=rows.skewness.mean(),
        kurtosis=rows.kurtosis.mean(),
    )
    few = jax.tree.map(lambda leaf: leaf[::EVERY], rows)
    x, y = _centred(queries), _centred(rows.softmax)
    return _DeviceSums(
        sharpness=jnp.sqrt(rows.variance),
        scores=scores,
        errors=ByLimit(*(_square(rows.softmax - answer) for answer in answers)),
        predicted_error=_gaussian_error(rows, statistics).sum(),
        total=_square(y),
        grid_total=_square(_centred(few.gaussian)),
        few=_FewQueries(few.variance, _along(few), few.spread),
        query_squares=x.T @ x,
        query_answers=x.T @ y,
    )


def _gaussian_error(rows: _Rows, statistics: Statistics) -> Array:
    r"""Return $E|T_L-T|^2=|Be|^2E(A-\sigma)^2+(\|B\|_F^2-|Be|^2)E\,S_2$ for each query."""
    along = _along(rows)
    return along * statistics.score_error + (rows.spread - along) * statistics.participation


def _along(rows: _Rows) -> Array:
    r"""Return $|Be|^2=|C_{vk}t|^2/\sigma^2$, the values' variance along the tilt."""
    pull = ((rows.gaussian - rows.uniform) ** 2).sum(axis=1)
    return jnp.minimum(pull / jnp.maximum(rows.variance, 1e-12), rows.spread)


def _centred(rows: Array) -> Array:
    return rows - rows.mean(axis=0, keepdims=True)


def _square(rows: Array) -> Array:
    return (rows**2).sum()
