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

from promptlimit.heads._forward import LayerHeads
from promptlimit.heads._prediction import Prediction
from promptlimit.heads._weighing import inside_of
from promptlimit.measures import full_precision

Numbers = Array | np.ndarray
"""An array on the device, or the same in doubles on the host."""
_BLOCK = 256
"""Queries whose scores are in memory at once."""
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
    rows = _on_device(
        heads,
        jnp.asarray(scales, jnp.float32),
        jnp.asarray(positions, jnp.int32),
        prediction,
        distances=distances,
    )
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), rows)


@functools.partial(jax.jit, static_argnames="distances")
@full_precision
def _on_device(
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

        def block(part: tuple[Array, Array]) -> tuple[QueryRows, Array]:
            queries, places = part
            return _rows(queries @ keys.T, places, head.values, prediction, distances)

        count = positions.shape[0]
        blocks = -(-count // _BLOCK)
        padded = jnp.pad(positions, (0, blocks * _BLOCK - count), mode="edge")
        asked = head.queries[padded].reshape(blocks, _BLOCK, -1)
        rows, answers = jax.tree.map(
            lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count],
            jax.lax.map(block, (asked, padded.reshape(blocks, _BLOCK))),
        )
        return rows._replace(total=((answers - answers.mean(axis=0)[None]) ** 2).sum())

    return jax.lax.map(head_rows, (heads, scales))


def _rows(
    scores: Float[Array, "n length"],
    positions: Int[Array, " n"],
    values: Float[Array, "length e"],
    prediction: Prediction,
    distances: Distances,
) -> tuple[QueryRows, Float[Array, "n e"]]:
    """Return what some queries show, `total` left open, and the head's answers to them."""
    inside = inside_of(positions, scores.shape[1], causal=True)
    place, here = jnp.arange(scores.shape[1])[None], positions[:, None]
    first = place < distances.sinks
    last = inside & (place > here - distances.recent)
    far = inside & ~first & ~last
    longer = inside & (first | (place > here - distances.recent - distances.equivalent))
    scores = scores - jnp.where(inside, scores, -jnp.inf).max(axis=1, keepdims=True)
    masses = _only(jnp.exp(jnp.minimum(scores, 0.0)), inside)
    softmax = _weighed(masses)
    _, variance, centred = _moments(scores, inside)
    far_mean, far_variance, far_centred = _moments(scores, far)
    far_count = far.sum(axis=1).astype(scores.dtype)
    flat_mass = jnp.log(far_count) + far_mean
    far_masses, kept_masses = _only(masses, far), _only(masses, ~far)
    far_mass, kept_mass = _log_sum(far_masses), _log_sum(kept_masses)
    finite = prediction.at_own_length(far_variance, far_count)
    share = far.astype(scores.dtype) / far_count[:, None]
    kept, middle = _weighed(kept_masses) @ values, share @ values
    pull = (share * far_centred) @ values

    def answer(log_mass: Array, far_answer: Array) -> Array:
        weight = jax.nn.sigmoid(log_mass - kept_mass)[:, None]
        return kept + weight * (far_answer - kept)

    answers = FarLimits(
        dropped=_weighed(_only(masses, longer)) @ values,
        mean=answer(far_mass, middle),
        gaussian=answer(flat_mass + 0.5 * far_variance, middle + pull),
        gaussian_finite=answer(
            flat_mass + 0.5 * finite.growth * far_variance,
            middle + (1.0 - finite.participation)[:, None] * pull,
        ),
        gaussian_mass=answer(far_mass, middle + pull),
    )
    whole = softmax @ values
    rows = QueryRows(
        variance=variance,
        between=_between(centred, positions, distances.band),
        sinks=_only(softmax, first).sum(axis=1),
        recent=_only(softmax, last).sum(axis=1),
        participation=(softmax**2).sum(axis=1),
        entropy=_entropy(masses, scores),
        far_odds=far_mass - kept_mass,
        far_entropy=_entropy(far_masses, scores),
        kept_entropy=_entropy(kept_masses, scores),
        far_variance=far_variance,
        mass_error=flat_mass + 0.5 * far_variance - far_mass,
        errors=FarLimits(*(((whole - one) ** 2).sum(axis=1) for one in answers)),
        total=jnp.zeros_like(variance),
    )
    return rows, whole


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
    count = jnp.maximum(chosen.sum(axis=1), 1).astype(scores.dtype)
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
