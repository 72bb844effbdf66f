r"""The weights of tokens under softmax and under its approximations.

The output of a head is $\sum_jw_jv_j$ with the values $v_j$ and weights $w_j$. For softmax
$w_j\propto e^{s_j}$ with the scores $s_j$. The approximations are limits over infinite prompts with
the moments of this prompt. Moments are sums over tokens, so the approximations also have the form
$\sum_jw_jv_j$ (docs/heads-theory.md):

    uniform    w_j = 1/n
    Gaussian   w_j = (1 + s_j - s)/n   (Lemma 2.1 of Boursier and Boyer, 2026)
    mixture    w_j = r_c (1 + s_j - s_c)/n_c for j in c,   r_c ∝ n_c exp(s_c + var_c/2)

Here n is the number of tokens of the prompt and s the mean of their scores. For a cluster c, n_c,
s_c and var_c are the number, mean and variance of the scores in it, and r_c is its weight; the
weights of all clusters sum to 1. The array `inside` has one row per query, which states for each
token whether the token is in the prompt of the query. In causal models this prompt ends at the
query.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import to_device
from promptlimit.errors import ArgumentError
from promptlimit.measures import full_precision

Scores = Float[Array, "n length"]
Inside = Bool[Array, "n length"]
Rows = TypeVar("Rows")

_BLOCK = 512
_WHOLE = 1024
_STEPS = 12


def softmax_weights(scores: Scores, inside: Inside) -> Scores:
    """Return the softmax of the scores over the tokens inside the prompt."""
    return jax.nn.softmax(jnp.where(inside, scores, -jnp.inf), axis=1)


def uniform_weights(scores: Scores, inside: Inside) -> Scores:
    """Return equal weights for the tokens inside the prompt."""
    return inside.astype(scores.dtype) / _counts(inside, scores)


def gaussian_weights(scores: Scores, inside: Inside) -> Scores:
    r"""Return the weights of the limit over the Gaussian with the prompt's moments."""
    share = uniform_weights(scores, inside)
    centre = (share * scores).sum(axis=1, keepdims=True)
    return share * (1.0 + scores - centre)


@full_precision
def mixture_weights(
    scores: Scores, inside: Inside, members: Float[Array, "length clusters"]
) -> Scores:
    """Return the weights of the limit over a mixture of Gaussians with the clusters' moments.

    Args:
        scores: the scores, one row per query.
        inside: whether a token is in the prompt of the query.
        members: 1 if a token belongs to a cluster, otherwise 0; one row per token.
    """
    here = inside.astype(scores.dtype)
    counts = here @ members
    safe = jnp.maximum(counts, 1.0)
    centre = (here * scores) @ members / safe
    centred = here * (scores - centre @ members.T)
    variance = (centred**2) @ members / safe
    route = jax.nn.softmax(
        jnp.where(counts > 0, jnp.log(safe) + centre + 0.5 * variance, -jnp.inf), axis=1
    )
    return (here + centred) * ((route / safe) @ members.T)


def _counts(inside: Inside, scores: Scores) -> Float[Array, "n 1"]:
    return inside.astype(scores.dtype).sum(axis=1, keepdims=True)


def inside_of(positions: Int[Array, " n"], length: int, *, causal: bool) -> Inside:
    """Return whether each query attends to each token.

    If `causal`, a query attends to the tokens up to its own position, otherwise to all tokens.
    """
    if not causal:
        return jnp.ones((positions.shape[0], length), bool)
    return jnp.arange(length)[None] <= positions[:, None]


def in_blocks(
    function: Callable[[Array, Array], Rows],
    queries: Float[Array, "length d"],
    positions: Int[Array, " n"] | None = None,
) -> Rows:
    """Return `function(queries[positions], positions)`.

    More than 1024 rows are computed in blocks of 512, so that memory grows linearly with the length
    of the prompt. The results of `function` must have one row per position. By default,
    `positions` contains the positions of all queries.
    """
    places = jnp.arange(queries.shape[0]) if positions is None else positions
    n = places.shape[0]
    if n <= _WHOLE:
        return function(queries[places], places)
    blocks = -(-n // _BLOCK)
    padded = jnp.pad(places, (0, blocks * _BLOCK - n), mode="edge").reshape(blocks, _BLOCK)
    rows = jax.lax.map(lambda block: function(queries[block], block), padded)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:n], rows)


def clusters_of(
    queries: ArrayLike, keys: ArrayLike, clusters: int, *, seed: int
) -> Float[Array, "length clusters"]:
    """Return the membership of keys in clusters: 1 if a key belongs to a cluster, otherwise 0.

    The clusters are those of k-means on the scores of the keys at the queries (see `members`).
    """
    rows = to_device(keys, jnp.float32)
    if isinstance(clusters, bool) or not 1 <= clusters <= rows.shape[0]:
        raise ArgumentError(
            "clusters", f"must be from 1 to the number of tokens, {rows.shape[0]}, got {clusters}."
        )
    return _clustered(to_device(queries, jnp.float32), rows, jax.random.key(seed), clusters)


@functools.partial(jax.jit, static_argnames="clusters")
@full_precision
def _clustered(queries: Array, keys: Array, key: Array, clusters: int) -> Array:
    return members(queries, keys, clusters, key)


@full_precision
def members(
    queries: Float[Array, "n d"], keys: Float[Array, "length d"], clusters: int, key: Key[Array, ""]
) -> Float[Array, "length clusters"]:
    r"""Return the membership of keys in the clusters that k-means finds.

    The distance of two keys is the root mean square difference of their scores over the queries,
    $\sqrt{(k-k')^\top M(k-k')}$ with $M=\frac1n\sum_iq_iq_i^\top$. The first centres are keys drawn
    as in k-means++, and `_STEPS` steps follow.
    """
    metric = queries.T @ queries / queries.shape[0]
    values, axes = jnp.linalg.eigh(metric)
    points = (keys @ axes) * jnp.sqrt(jnp.maximum(values, 0.0))[None]
    points = points - points.mean(axis=0, keepdims=True)
    centres = _start(points, clusters, key)

    def step(_: object, centres: Array) -> Array:
        chosen = _nearest(points, centres)
        counts = chosen.sum(axis=0)[:, None]
        return jnp.where(counts > 0, chosen.T @ points / jnp.maximum(counts, 1.0), centres)

    return _nearest(points, jax.lax.fori_loop(0, _STEPS, step, centres))


@functools.partial(jax.jit, static_argnames="sinks")
@full_precision
def sink_members(
    queries: Float[Array, "n d"], keys: Float[Array, "length d"], scale: Array, sinks: int
) -> Float[Array, "length parts"]:
    r"""Return the membership of keys in clusters: one for each sink, and one for all other keys.

    The sinks are the keys k with the largest $\ln E_qe^{\langle q,k\rangle}=\langle m_q,k\rangle
    +k^\top C_qk/2$, where q is Gaussian with the mean $m_q$ and covariance $C_q$ of the scaled
    queries.
    """
    centre = queries.mean(axis=0)
    spread = scale * (keys @ (queries - centre[None]).T)
    attraction = scale * (keys @ centre) + 0.5 * (spread**2).mean(axis=1)
    _, chosen = jax.lax.top_k(attraction, sinks)
    atoms = jax.nn.one_hot(chosen, keys.shape[0], dtype=keys.dtype).T
    return jnp.concatenate([atoms, 1.0 - atoms.sum(axis=1, keepdims=True)], axis=1)


def sinks_of(
    queries: ArrayLike, keys: ArrayLike, scale: float, sinks: int
) -> Float[Array, "length parts"]:
    """Return `sink_members` for a user's arrays; raise an error for a wrong number of sinks."""
    rows = to_device(keys, jnp.float32)
    if isinstance(sinks, bool) or not 0 <= sinks < rows.shape[0]:
        raise ArgumentError(
            "sinks",
            f"must be at least 0 and below the number of tokens, {rows.shape[0]}, got {sinks}.",
        )
    return sink_members(to_device(queries, jnp.float32), rows, jnp.float32(scale), sinks)


def _start(points: Array, clusters: int, key: Array) -> Array:
    keys = jax.random.split(key, clusters)
    first = points[jax.random.randint(keys[0], (), 0, points.shape[0], jnp.int32)]
    centres = jnp.broadcast_to(first[None], (clusters, points.shape[1]))
    for index in range(1, clusters):
        far = _squared_distances(points, centres).min(axis=1)
        drawn = jax.random.categorical(keys[index], jnp.log(far + 1e-30))
        centres = centres.at[index].set(points[drawn])
    return centres


def _nearest(points: Array, centres: Array) -> Array:
    place = _squared_distances(points, centres).argmin(axis=1)
    return jax.nn.one_hot(place, centres.shape[0], dtype=points.dtype)


def _squared_distances(points: Array, centres: Array) -> Array:
    cross = points @ centres.T
    return jnp.maximum((points**2).sum(1)[:, None] - 2 * cross + (centres**2).sum(1)[None], 0.0)
