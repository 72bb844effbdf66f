r"""Softmax and its limits as ways to weigh the tokens of a prompt.

A head answers a query with $\sum_jw_jv_j$. Softmax takes $w_j\propto e^{s_j}$, $s_j$ the score of
token j. The limits of the theory know the prompt through moments only, and yet they too are
weighings of the same tokens, because a sample's covariance is a sum over its tokens:

    uniform    w_j = 1/n
    Gaussian   w_j = (1 + s_j - s)/n                       as m_v + C_vk t = mean (1 + s_j - s) v_j
    mixture    w_j = r_c (1 + s_j - s_c)/n_c for j in c    r_c ∝ n_c exp(s_c + var_c/2)

with s, s_c the mean scores of the prompt and of cluster c, n and n_c their numbers of tokens. A
prompt that ends at the query, as causal models have it, is a row of `inside`.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from promptlimit.measures import full_precision

Scores = Float[Array, "n length"]
Inside = Bool[Array, "n length"]
Rows = TypeVar("Rows")

_BLOCK = 512
_WHOLE = 1024


def softmax_weights(scores: Scores, inside: Inside) -> Scores:
    """Return the softmax of the scores over the tokens inside the prompt."""
    return jax.nn.softmax(jnp.where(inside, scores, -jnp.inf), axis=1)


def uniform_weights(scores: Scores, inside: Inside) -> Scores:
    """Return equal weights: what is left of attention when the query says nothing."""
    return inside.astype(scores.dtype) / _counts(inside, scores)


def gaussian_weights(scores: Scores, inside: Inside) -> Scores:
    r"""Return the weights of the limit over $N(m,\Gamma)$, the prompt's moments (Lemma 2.1)."""
    share = uniform_weights(scores, inside)
    centre = (share * scores).sum(axis=1, keepdims=True)
    return share * (1.0 + scores - centre)


@full_precision
def mixture_weights(
    scores: Scores, inside: Inside, members: Float[Array, "length clusters"]
) -> Scores:
    """Return the weights of the limit over a mixture of Gaussians with the clusters' moments.

    Args:
        scores: one row a query.
        inside: which tokens are in the query's prompt.
        members: 1 where a token belongs to a cluster, else 0.
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
    """Return which tokens each query sees: all, or those up to its own position."""
    if not causal:
        return jnp.ones((positions.shape[0], length), bool)
    return jnp.arange(length)[None] <= positions[:, None]


def in_blocks(
    function: Callable[[Array, Array], Rows],
    queries: Float[Array, "length d"],
    positions: Int[Array, " n"] | None = None,
) -> Rows:
    """Return `function(queries, positions)`, a few hundred queries at a time for long prompts.

    The function's results must have one row a query; memory then grows with the prompt's length
    and not with its square. Positions are those of all queries unless given.
    """
    places = jnp.arange(queries.shape[0]) if positions is None else positions
    n = places.shape[0]
    if n <= _WHOLE:
        return function(queries[places], places)
    blocks = -(-n // _BLOCK)
    padded = jnp.pad(places, (0, blocks * _BLOCK - n), mode="edge").reshape(blocks, _BLOCK)
    rows = jax.lax.map(lambda block: function(queries[block], block), padded)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:n], rows)
