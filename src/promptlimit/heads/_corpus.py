"""Moments of the tokens and queries of heads over many prompts, and their Gaussian limits."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit.heads._model import LayerHeads
from promptlimit.measures import Gaussian, full_precision


@dataclasses.dataclass(frozen=True)
class CorpusMoments:
    """Sums over the tokens of many prompts, for the heads of one layer, in double precision.

    A token is the pair (key, value) of dimension t = d + e.

    Attributes:
        count: the number of tokens.
        query_count: the number of queries.
        tokens: the sum of the tokens, [heads, t].
        token_squares: the sum of the outer products of each token with itself, [heads, t, t].
        queries: the sum of the queries, [heads, d].
        query_squares: the sum of the outer products of each query with itself, [heads, d, d].
    """

    count: int
    query_count: int
    tokens: np.ndarray
    token_squares: np.ndarray
    queries: np.ndarray
    query_squares: np.ndarray

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "CorpusMoments":
        """Return the moments from arrays with the names of the attributes."""
        count, query_count, *sums = (arrays[field.name] for field in dataclasses.fields(cls))
        return cls(int(count), int(query_count), *sums)

    def __add__(self, other: "CorpusMoments") -> "CorpusMoments":
        return CorpusMoments(*(a + b for a, b in zip(_parts(self), _parts(other), strict=True)))

    def __sub__(self, other: "CorpusMoments") -> "CorpusMoments":
        return CorpusMoments(*(a - b for a, b in zip(_parts(self), _parts(other), strict=True)))

    def key_law(self, head: int) -> Gaussian:
        """Return the Gaussian with the moments of a head's keys."""
        d = self.queries.shape[1]
        return _gaussian(self.count, self.tokens[head, :d], self.token_squares[head, :d, :d])

    def query_law(self, head: int) -> Gaussian:
        """Return the Gaussian with the moments of a head's queries."""
        return _gaussian(self.query_count, self.queries[head], self.query_squares[head])

    def affine_maps(self, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        r"""Return $M$, [heads, e, d], and $b$, [heads, e], of the Gaussian limits $q\mapsto Mq+b$.

        Here $M=c\,C_{vk}$ and $b=m_v$ with the scale c of the scores (`scales`), the covariance
        $C_{vk}$ of values with keys and the mean $m_v$ of the values (Lemma 2.1 of Boursier and
        Boyer, 2026).
        """
        d = self.queries.shape[1]
        mean = self.tokens / self.count
        cross = self.token_squares[:, d:, :d] / self.count
        centred = cross - mean[:, d:, None] * mean[:, None, :d]
        return scales[:, None, None] * centred, mean[:, d:]


def corpus_moments(heads: LayerHeads) -> CorpusMoments:
    """Return the moments of one prompt. Add the results of several prompts for their moments."""
    counts = heads.keys.shape[1], heads.queries.shape[1]
    sums: list[np.ndarray] = []
    for count, moments in zip(counts, _means_and_scatters(heads), strict=True):
        mean, scatter = (np.asarray(part, np.float64) for part in moments)
        symmetric = 0.5 * (scatter + scatter.swapaxes(1, 2))
        sums += [count * mean, symmetric + count * mean[:, :, None] * mean[:, None]]
    return CorpusMoments(*counts, *sums)


@jax.jit
@full_precision
def _means_and_scatters(heads: LayerHeads) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the mean and the centred scatter matrix of tokens (key, value), then of queries."""
    tokens = jnp.concatenate([heads.keys, heads.values], axis=2)
    return _mean_and_scatter(tokens), _mean_and_scatter(heads.queries)


def _mean_and_scatter(rows: Float[Array, "heads n t"]) -> tuple[Array, Array]:
    mean = rows.mean(axis=1)
    centred = rows - mean[:, None]
    return mean, jnp.einsum("hni,hnj->hij", centred, centred)


def _parts(moments: CorpusMoments) -> tuple:
    return tuple(getattr(moments, field.name) for field in dataclasses.fields(moments))


def _gaussian(count: int, total: np.ndarray, squares: np.ndarray) -> Gaussian:
    """Return the Gaussian with the moments of `count` vectors x, from sums of x and of x x^T."""
    mean = total / count
    variances, axes = np.linalg.eigh(squares / count - np.outer(mean, mean))
    # Rounding can make small variances negative.
    cov = (axes * np.maximum(variances, 0.0)) @ axes.T
    return Gaussian(mean, 0.5 * (cov + cov.T))
