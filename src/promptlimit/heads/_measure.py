"""What one prompt shows of every head of a layer: numbers that add up over prompts."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from promptlimit.heads._clusters import members, sink_members
from promptlimit.heads._forward import LayerHeads
from promptlimit.heads._prediction import Prediction
from promptlimit.heads._weighing import (
    gaussian_weights,
    in_blocks,
    inside_of,
    mixture_weights,
    softmax_weights,
    uniform_weights,
)
from promptlimit.measures import full_precision

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
LIMITS = (
    "uniform",
    "gaussian",
    "gaussian_finite",
    "sinks",
    "mixture",
    "corpus",
    "corpus_finite",
    "affine",
)
"""What is held against the head; `affine` is the best affine map of the query, fitted."""
EVERY = 8
"""Of so many queries one is kept to predict the error at other lengths."""


class CorpusMap(NamedTuple):
    r"""The Gaussian limit with moments of other prompts: $q\mapsto m_v+Mq$."""

    matrix: Float[Array, "heads e d"]
    shift: Float[Array, "heads e"]


class _Rows(NamedTuple):
    """What each query of one head sees and answers."""

    sharpness: Array
    participation: Array
    skewness: Array
    kurtosis: Array
    spread: Array
    softmax: Array
    uniform: Array
    gaussian: Array
    sinks: Array
    mixture: Array


@functools.partial(jax.jit, static_argnames=("causal", "shortest", "clusters", "sinks"))
@full_precision
def measured(
    heads: LayerHeads,
    scale: Float[Array, ""],
    corpus: CorpusMap,
    prediction: Prediction,
    key: Array,
    *,
    causal: bool,
    shortest: int,
    clusters: int,
    sinks: int,
) -> dict[str, Array]:
    """Return the measurements of one prompt, one row a head, heads one after the other.

    Args:
        heads: queries, keys and values of a layer.
        scale: the factor on the scores.
        corpus: the affine maps from other prompts' moments.
        prediction: the weight statistics of Gaussian tokens.
        key: randomness of the clusters' starts.
        causal: whether a query sees the tokens up to its own.
        shortest: the shortest prompt of a causal head that is looked at.
        clusters: number of Gaussians in the mixture.
        sinks: number of tokens that are atoms beside one Gaussian.
    """

    def one(given: tuple[LayerHeads, CorpusMap, Array]) -> dict[str, Array]:
        head, limit, head_key = given
        chosen = members(head.queries, head.keys, clusters, head_key)
        parked = sink_members(head.queries, head.keys, scale, sinks)

        def rows(queries: Array, positions: Array) -> _Rows:
            inside = inside_of(positions, head.keys.shape[0], causal=causal)
            return _rows(scale * (queries @ head.keys.T), inside, head.values, parked, chosen)

        found = in_blocks(rows, head.queries)
        n, first = head.queries.shape[0], shortest - 1 if causal else 0
        length = jnp.arange(1, n + 1) if causal else jnp.full(n, head.keys.shape[0])
        kept = jax.tree.map(lambda leaf: leaf[first:], found)
        return _summary(
            kept, head.queries[first:], limit, prediction, length[first:].astype(jnp.float32)
        )

    keys = jax.random.split(key, heads.queries.shape[0])
    return jax.lax.map(one, (heads, corpus, keys))


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
        sharpness=variance,
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
) -> dict[str, Array]:
    statistics = prediction.at_own_length(rows.sharpness, length)
    left = (1.0 - statistics.participation)[:, None]
    pull = queries @ corpus.matrix.T
    answers = {
        "uniform": rows.uniform,
        "gaussian": rows.gaussian,
        "gaussian_finite": rows.uniform + left * (rows.gaussian - rows.uniform),
        "sinks": rows.sinks,
        "mixture": rows.mixture,
        "corpus": corpus.shift[None] + pull,
        "corpus_finite": corpus.shift[None] + left * pull,
    }
    error = {f"error_{name}": _square(rows.softmax - answer) for name, answer in answers.items()}
    order = rows.sharpness / jnp.log(length)
    return error | {
        "total": _square(rows.softmax - rows.softmax.mean(axis=0, keepdims=True)),
        "sharpness": jnp.quantile(rows.sharpness, jnp.array(QUANTILES, jnp.float32)),
        "linear": (order <= 2.0 / 3.0).astype(jnp.float32).mean(),
        "frozen": (order > 2.0).astype(jnp.float32).mean(),
        "participation": rows.participation.mean(),
        "participation_predicted": statistics.participation.mean(),
        "skewness": rows.skewness.mean(),
        "kurtosis": rows.kurtosis.mean(),
        "error_predicted": _gaussian_error(rows, *statistics).sum(),
        **_for_other_lengths(rows),
        **_for_affine_fit(queries, rows.softmax),
    }


def _for_other_lengths(rows: _Rows) -> dict[str, Array]:
    """Return what the error at another length depends on, for a few of the queries."""
    few = jax.tree.map(lambda leaf: leaf[::EVERY], rows)
    change = few.gaussian - few.gaussian.mean(axis=0, keepdims=True)
    return {
        "few_sharpness": few.sharpness,
        "few_along": _along(few),
        "few_spread": few.spread,
        "few_total": _square(change),
    }


def _gaussian_error(rows: _Rows, participation: Array, score_error: Array) -> Array:
    r"""Return $E|T_L-T|^2=|Be|^2E(A-\sigma)^2+(\|B\|_F^2-|Be|^2)E\,S_2$ for each query."""
    along = _along(rows)
    return along * score_error + (rows.spread - along) * participation


def _along(rows: _Rows) -> Array:
    r"""Return $|Be|^2=|C_{vk}t|^2/\sigma^2$, the values' variance along the tilt."""
    pull = ((rows.gaussian - rows.uniform) ** 2).sum(axis=1)
    return jnp.minimum(pull / jnp.maximum(rows.sharpness, 1e-12), rows.spread)


def _for_affine_fit(queries: Array, answers: Array) -> dict[str, Array]:
    """Return the sums of squares and products from which the best affine map is found."""
    x = queries - queries.mean(axis=0, keepdims=True)
    y = answers - answers.mean(axis=0, keepdims=True)
    return {"query_squares": x.T @ x, "query_answers": x.T @ y}


def _square(rows: Array) -> Array:
    return (rows**2).sum()
