r"""What queries of a causal head see by distance, and what is left of the far tokens as moments.

A query at position i sees the tokens 0..i. The first few of them (sinks) and the last few (the
recent window) are kept; the far tokens between them, n in number, are known through their moments:

    mass       Z_f = n exp(s + var/2)                 s, var: mean and variance of their scores
    answer     a_f = m_v + C_vk t = mean (1 + s_j - s) v_j                            (Lemma 2.1)
    head       (Z_k a_k + Z_f a_f)/(Z_k + Z_f)        Z_k, a_k: mass and answer of the kept tokens

For n Gaussian tokens $\ln Z_f$ has mean $\ln n+s+g\,\mathrm{var}/2$ and the pull $C_{vk}t$ shrinks
by $1-E\,S_2$: the finite-length correction.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from promptlimit._inputs import to_device
from promptlimit.heads._forward import LayerHeads
from promptlimit.heads._prediction import Prediction
from promptlimit.heads._weighing import in_blocks, inside_of
from promptlimit.measures import full_precision

Numbers = Array | np.ndarray
"""An array on the device, or the same in doubles on the host."""
_LEAST = 1e-37
"""A mass below this, the largest being one, is none."""


class Distances(NamedTuple):
    """How the tokens of a causal prompt are told apart.

    Attributes:
        sinks: tokens kept at the beginning.
        recent: tokens kept before the query, its own included.
        equivalent: tokens that take as much memory as the moments of the far ones.
        band: tokens of a band of distance.
    """

    sinks: int
    recent: int
    equivalent: int
    band: int


class FarLimits(NamedTuple):
    """One array for each way to do without the far tokens.

    Attributes:
        dropped: they are left out, and as many more recent tokens kept as moments would cost.
        mean: their true mass, and their mean value: memory of one token and a mass.
        gaussian: mass and answer from their moments.
        gaussian_finite: the same with the finite-length correction.
        gaussian_mass: their true mass, and the answer from their moments.
    """

    dropped: Numbers
    mean: Numbers
    gaussian: Numbers
    gaussian_finite: Numbers
    gaussian_mass: Numbers


class QueryRows(NamedTuple):
    """What queries of the heads of a layer show, [heads, queries] unless said otherwise.

    Attributes:
        variance: of the scores.
        between: of the mean scores of bands of distance, part of `variance`.
        sinks: softmax weight of the first tokens.
        recent: softmax weight of the last ones.
        participation: sum of squared softmax weights.
        entropy: of the softmax weights, in nats.
        far_odds: logarithm of the far tokens' mass over that of the kept ones.
        far_entropy: of the weights among far tokens.
        kept_entropy: of the weights among kept tokens.
        far_variance: of the scores of far tokens.
        mass_error: logarithm of the far tokens' mass from moments over the true one.
        errors: squared differences of the head's answers and those of each way.
        total: squared differences of the answers and their mean, summed over queries, [heads].
    """

    variance: Numbers
    between: Numbers
    sinks: Numbers
    recent: Numbers
    participation: Numbers
    entropy: Numbers
    far_odds: Numbers
    far_entropy: Numbers
    kept_entropy: Numbers
    far_variance: Numbers
    mass_error: Numbers
    errors: FarLimits
    total: Numbers


def query_rows(
    heads: LayerHeads,
    scales: Float[np.ndarray, " heads"],
    positions: Int[np.ndarray, " queries"],
    prediction: Prediction,
    distances: Distances,
) -> QueryRows:
    """Return what the queries at some positions show, in doubles, heads one after the other."""
    rows = _device_rows(
        heads,
        to_device(scales, jnp.float32),
        to_device(positions, jnp.int32),
        prediction,
        distances=distances,
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), rows)


@functools.partial(jax.jit, static_argnames="distances")
@full_precision
def _device_rows(
    heads: LayerHeads,
    scales: Float[Array, " heads"],
    positions: Int[Array, " queries"],
    prediction: Prediction,
    *,
    distances: Distances,
) -> QueryRows:
    def head_rows(operands: tuple[LayerHeads, Array]) -> QueryRows:
        head, scale = operands
        keys = scale * head.keys

        def rows_of(queries: Array, places: Array) -> tuple[QueryRows, Array]:
            return _rows(queries @ keys.T, places, head.values, prediction, distances)

        rows, answers = in_blocks(rows_of, head.queries, positions)
        return rows._replace(total=((answers - answers.mean(axis=0)[None]) ** 2).sum())

    return jax.lax.map(head_rows, (heads, scales))


class _Masks(NamedTuple):
    """Which tokens each query sees, and which of them are first, last, far, or kept instead."""

    inside: Bool[Array, "n length"]
    first: Bool[Array, "1 length"]
    last: Bool[Array, "n length"]
    far: Bool[Array, "n length"]
    longer: Bool[Array, "n length"]


def _masks(positions: Int[Array, " n"], length: int, distances: Distances) -> _Masks:
    inside = inside_of(positions, length, causal=True)
    place, here = jnp.arange(length)[None], positions[:, None]
    first = place < distances.sinks
    last = inside & (place > here - distances.recent)
    longer = inside & (first | (place > here - distances.recent - distances.equivalent))
    return _Masks(inside, first, last, inside & ~first & ~last, longer)


def _rows(
    scores: Float[Array, "n length"],
    positions: Int[Array, " n"],
    values: Float[Array, "length e"],
    prediction: Prediction,
    distances: Distances,
) -> tuple[QueryRows, Float[Array, "n e"]]:
    """Return what some queries show, `total` left open, and the head's answers to them."""
    masks = _masks(positions, scores.shape[1], distances)
    scores = scores - jnp.where(masks.inside, scores, -jnp.inf).max(axis=1, keepdims=True)
    masses = _only(jnp.exp(jnp.minimum(scores, 0.0)), masks.inside)
    far_masses, kept_masses = _only(masses, masks.far), _only(masses, ~masks.far)
    softmax = _weighed(masses)
    _, variance, centred = _moments(scores, masks.inside)
    far_mean, far_variance, _ = _moments(scores, masks.far)
    gaussian_mass = jnp.log(_counts(masks.far)) + far_mean + 0.5 * far_variance
    whole = softmax @ values
    answers = _answers(scores, masses, values, masks, prediction)
    rows = QueryRows(
        variance=variance,
        between=_between(centred, positions, distances.band),
        sinks=_only(softmax, masks.first).sum(axis=1),
        recent=_only(softmax, masks.last).sum(axis=1),
        participation=(softmax**2).sum(axis=1),
        entropy=_entropy(masses, scores),
        far_odds=_log_sum(far_masses) - _log_sum(kept_masses),
        far_entropy=_entropy(far_masses, scores),
        kept_entropy=_entropy(kept_masses, scores),
        far_variance=far_variance,
        mass_error=gaussian_mass - _log_sum(far_masses),
        errors=FarLimits(*(((whole - one) ** 2).sum(axis=1) for one in answers)),
        total=jnp.zeros_like(variance),
    )
    return rows, whole


def _answers(
    scores: Float[Array, "n length"],
    masses: Float[Array, "n length"],
    values: Float[Array, "length e"],
    masks: _Masks,
    prediction: Prediction,
) -> FarLimits:
    """Return the answers [n, e] of each way to do without the far tokens."""
    count = _counts(masks.far)
    mean, variance, centred = _moments(scores, masks.far)
    kept_masses = _only(masses, ~masks.far)
    kept, kept_mass = _weighed(kept_masses) @ values, _log_sum(kept_masses)
    true_mass = _log_sum(_only(masses, masks.far))
    share = masks.far.astype(scores.dtype) / count[:, None]
    middle, pull = share @ values, (share * centred) @ values
    finite = prediction.at_own_length(variance, count)
    left = (1.0 - finite.participation)[:, None]
    flat_mass = jnp.log(count) + mean

    def joined(log_mass: Array, far_answer: Array) -> Array:
        weight = jax.nn.sigmoid(log_mass - kept_mass)[:, None]
        return kept + weight * (far_answer - kept)

    return FarLimits(
        dropped=_weighed(_only(masses, masks.longer)) @ values,
        mean=joined(true_mass, middle),
        gaussian=joined(flat_mass + 0.5 * variance, middle + pull),
        gaussian_finite=joined(flat_mass + 0.5 * finite.growth * variance, middle + left * pull),
        gaussian_mass=joined(true_mass, middle + pull),
    )


def _counts(chosen: Bool[Array, "n length"]) -> Float[Array, " n"]:
    return jnp.maximum(chosen.sum(axis=1), 1).astype(jnp.float32)


def _only(rows: Float[Array, "n length"], chosen: Bool[Array, "*n length"]) -> Array:
    """Return the rows with zeros where a token is not chosen."""
    return jnp.where(chosen, rows, 0.0)


def _log_sum(masses: Float[Array, "n length"]) -> Float[Array, " n"]:
    return jnp.log(jnp.maximum(masses.sum(axis=1), _LEAST))


def _entropy(
    masses: Float[Array, "n length"], scores: Float[Array, "n length"]
) -> Float[Array, " n"]:
    r"""Return $\ln Z-\sum_jp_js_j$ for masses $e^{s_j}$, or 0 where there is none."""
    return _log_sum(masses) - (_weighed(masses) * jnp.maximum(scores, jnp.log(_LEAST))).sum(axis=1)


def _moments(
    scores: Float[Array, "n length"], chosen: Bool[Array, "n length"]
) -> tuple[Array, Array, Array]:
    """Return mean and variance of the scores of chosen tokens, and their differences to it."""
    count = _counts(chosen)
    mean = _only(scores, chosen).sum(axis=1) / count
    centred = _only(scores - mean[:, None], chosen)
    return mean, (centred**2).sum(axis=1) / count, centred


def _weighed(masses: Float[Array, "n length"]) -> Float[Array, "n length"]:
    return masses / jnp.maximum(masses.sum(axis=1, keepdims=True), _LEAST)


def _between(
    centred: Float[Array, "n length"], positions: Int[Array, " n"], band: int
) -> Float[Array, " n"]:
    r"""Return the variance of the mean scores of bands of distance, $\sum_bn_bm_b^2/L$.

    Band b holds the tokens whose distance to the query is from b times `band` to the next.
    """
    sums = jnp.pad(jnp.cumsum(centred, axis=1), ((0, 0), (1, 0)))
    bands = -(-centred.shape[1] // band)
    edges = jnp.maximum(positions[:, None] + 1 - band * jnp.arange(bands + 1)[None], 0)
    at_edges = jnp.take_along_axis(sums, edges, axis=1)
    counts = (edges[:, :-1] - edges[:, 1:]).astype(centred.dtype)
    totals = at_edges[:, :-1] - at_edges[:, 1:]
    return (totals**2 / jnp.maximum(counts, 1.0)).sum(axis=1) / (positions + 1).astype(
        centred.dtype
    )
