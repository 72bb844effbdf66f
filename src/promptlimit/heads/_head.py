"""One attention head over one prompt, and its prompt as a measure."""

import dataclasses

import numpy as np

from promptlimit._arrays import (
    ArrayLike,
    is_real,
    require_readable,
    require_unmasked,
    with_numpy_defaults,
)
from promptlimit.attention import SoftmaxAttention
from promptlimit.errors import ArgumentError
from promptlimit.heads._weighing import clusters_of, sinks_of
from promptlimit.measures import Empirical, Gaussian, Mixture


@dataclasses.dataclass(frozen=True, init=False)
class Head:
    r"""Queries, keys and values of one head over one prompt, in single precision.

    A token of the prompt is the pair $(k_j, v_j)$, and the score of token j for query i is
    `scale` $\langle q_i,k_j\rangle$. The head can be used with the rest of the library:
    `head.attention(head.tokens(), q)` is its output at the query q, and
    `head.attention(head.gaussian(), q)` its Gaussian limit.

    Args:
        queries: the queries $q_i$, [n, d].
        keys: the keys $k_j$, [length, d].
        values: the values $v_j$, [length, e].
        scale: the factor on the scores; $1/\sqrt d$ by default.
        causal: whether query i attends only to tokens 0..i; requires as many queries as tokens.

    >>> head = Head([[1.0]], keys=[[0.0], [1.0]], values=[[0.0], [3.0]])
    >>> print(head.outputs().round(4))
    [[2.1932]]
    """

    queries: np.ndarray
    keys: np.ndarray
    values: np.ndarray
    scale: float
    causal: bool

    @with_numpy_defaults
    def __init__(
        self,
        queries: ArrayLike,
        keys: ArrayLike,
        values: ArrayLike,
        *,
        scale: float | None = None,
        causal: bool = False,
    ):
        arrays = {"queries": queries, "keys": keys, "values": values}
        matrices = {name: _matrix(name, value) for name, value in arrays.items()}
        (n, d), (length, key_dim) = matrices["queries"].shape, matrices["keys"].shape
        if key_dim != d:
            raise ArgumentError("keys", f"must have the {d} columns of `queries`, got {key_dim}.")
        if matrices["values"].shape[0] != length:
            raise ArgumentError(
                "values",
                f"must have one row for each of the {length} keys, "
                f"got {matrices['values'].shape[0]}.",
            )
        if causal and n != length:
            raise ArgumentError(
                "queries", f"must be as many as the {length} keys of a causal head, got {n}."
            )
        factor = d**-0.5 if scale is None else float(scale)
        if not 0 < factor < np.inf:
            raise ArgumentError("scale", f"must be positive, got {scale}.")
        for name, array in matrices.items():
            object.__setattr__(self, name, array)
        object.__setattr__(self, "scale", factor)
        object.__setattr__(self, "causal", bool(causal))

    @property
    def attention(self) -> SoftmaxAttention:
        r"""The head as attention on tokens $(k,v)$: $U=$ scale $(I\ 0)^\top$, $V=(0\ I)$."""
        keys, values = self.keys.shape[1], self.values.shape[1]
        width = keys + values
        return SoftmaxAttention(self.scale * np.eye(width, keys), np.eye(values, width, k=keys))

    def tokens(self, position: int | None = None) -> Empirical:
        """Return the prompt as a measure; for a causal head, the tokens 0 to `position`."""
        return Empirical(self._prompt(position))

    def gaussian(self, position: int | None = None) -> Gaussian:
        """Return the Gaussian with the prompt's mean and covariance."""
        return _fitted(self._prompt(position))

    def mixture(self, clusters: int, *, seed: int = 0, position: int | None = None) -> Mixture:
        """Return a mixture with one Gaussian per cluster of tokens, fitted to the tokens in it.

        The clusters are those of k-means on the scores: keys in a cluster have similar scores.
        """
        label = np.asarray(clusters_of(self.queries, self.keys, clusters, seed=seed)).argmax(axis=1)
        return self._by_parts(label, position)

    def _by_parts(self, label: np.ndarray, position: int | None) -> Mixture:
        """Return a mixture with one Gaussian per label, fitted to the tokens with this label."""
        prompt = self._prompt(position)
        label = label[: len(prompt)]
        kept = [prompt[label == part] for part in np.unique(label)]
        shares = np.array([len(part) for part in kept]) / len(prompt)
        return Mixture(shares, [_fitted(part) for part in kept])

    def with_sinks(self, sinks: int, *, position: int | None = None) -> Mixture:
        """Return a mixture of `sinks` tokens as atoms and one Gaussian fitted to all other tokens.

        The atoms are the tokens whose exponentiated score has the largest mean over Gaussian
        queries with the moments of the head. In trained heads a few tokens often have much of the
        weight, while the other tokens may be close to Gaussian.
        """
        parts = np.asarray(sinks_of(self.queries, self.keys, self.scale, sinks)).argmax(axis=1)
        return self._by_parts(parts, position)

    @with_numpy_defaults
    def outputs(self) -> np.ndarray:
        """Return the output at each query, by the textbook formula in double precision, [n, e]."""
        queries, keys = self.queries.astype(np.float64), self.keys.astype(np.float64)
        scores = self.scale * queries @ keys.T
        if self.causal:
            scores = np.where(np.tri(len(queries), dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights @ self.values.astype(np.float64)

    def _prompt(self, position: int | None) -> np.ndarray:
        if position is None and self.causal:
            raise ArgumentError(
                "position",
                "must be given for a causal head, got None. It is the last token of the prompt.",
            )
        if position is not None and not self.causal:
            raise ArgumentError(
                "position", f"must be None for a head without a causal mask, got {position}."
            )
        end = len(self.keys) if position is None else position + 1
        if not 1 <= end <= len(self.keys):
            raise ArgumentError(
                "position", f"must be from 0 to {len(self.keys) - 1}, got {position}."
            )
        return np.concatenate([self.keys, self.values], axis=1)[:end].astype(np.float64)


def _fitted(tokens: np.ndarray) -> Gaussian:
    centred = tokens - tokens.mean(axis=0)
    return Gaussian(tokens.mean(axis=0), centred.T @ centred / len(tokens))


def _matrix(name: str, value: object) -> np.ndarray:
    require_unmasked(name, value)
    require_readable(name, value)
    try:
        array = np.asarray(value)
        if not is_real(array):
            raise TypeError
        array = np.asarray(array, dtype=np.float32)
    except (TypeError, ValueError):
        raise ArgumentError(
            name, f"must be a matrix of numbers, got {type(value).__name__}."
        ) from None
    if array.ndim != 2 or 0 in array.shape:
        raise ArgumentError(name, f"must be a matrix, one row per token, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ArgumentError(name, f"must be finite, got {array[~np.isfinite(array)][0]}.")
    return array
