"""Finite prompts: listed tokens with weights."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PRNGKeyArray

from promptlimit._arrays import Array as HostArray
from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import (
    cast,
    float_array,
    float_arrays,
    require_finite,
    require_rank,
    require_shape,
    require_weights,
)
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure
from promptlimit.measures._compiled import compiled, full_precision
from promptlimit.measures._gaussian_parts import GaussianParts, atoms
from promptlimit.measures._tokens import log_laplace_of_tokens
from promptlimit.measures._variance_proxies import VarianceProxy, of_points


class Empirical(AbstractMeasure):
    r"""The measure $\sum_i w_i\delta_{z_i}$ of finitely many tokens, $w_i = 1/L$ unless given.

    The gradient of $\Lambda(t) = \log\sum_i w_i e^{\langle z_i,t\rangle}$ is textbook softmax
    attention.

    Args:
        tokens: the tokens $z_i$, one per row, shape `[L, d]`.
        weights: the probabilities $w_i$, shape `[L]`; uniform when None.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> prompt = pl.Empirical([[0.0, 0.0], [2.0, 1.0]])
    >>> print(prompt.mean, prompt.including(jnp.array([1.0, 5.0])).mean)
    [1.  0.5] [1. 2.]
    """

    tokens: Float[Array, "length d"]
    weights: Float[Array, " length"] | None

    def __init__(self, tokens: ArrayLike, weights: ArrayLike | None = None):
        if weights is None:
            (points,) = float_arrays(tokens=tokens)
        else:
            points, weights = float_arrays(tokens=tokens, weights=weights)
        require_rank("tokens", points, 2)
        length, dim = points.shape
        if length == 0 or dim == 0:
            raise ArgumentError(
                "tokens",
                f"must hold at least one token, got shape {points.shape}. "
                "Attention over an empty prompt is not defined.",
            )
        require_finite("tokens", points)
        if weights is not None:
            require_shape("weights", weights, (length,), "one weight per token")
            require_finite("weights", weights)
            require_weights("weights", weights)
        self.tokens = points
        self.weights = weights

    @property
    def dim(self) -> int:
        """The dimension $d$ of a token."""
        return self.tokens.shape[1]

    @property
    def length(self) -> int:
        """The number of tokens $L$."""
        return self.tokens.shape[0]

    @property
    def finite_everywhere(self) -> bool:
        """True: there are finitely many tokens."""
        return True

    @full_precision
    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\log\sum_i w_i e^{\langle z_i,t\rangle}$."""
        return log_laplace_of_tokens(self.tokens, self.weights, tilt)

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` tokens, drawn with replacement, each with its probability $w_i$."""
        return _sample(self, length, key)

    def including(self, query: ArrayLike) -> "Empirical":
        r"""Return $\frac{1}{L+1}\big(\sum_i L w_i\,\delta_{z_i} + \delta_z\big)$ for the query $z$.

        The query becomes a token with the average weight (Remark 3.2 of arXiv:2512.11784).
        """
        token = float_array("query", query, rank=1)
        require_shape("query", token, (self.dim,), "the dimension of a token")
        return Empirical(*_with_token(self, cast(token, self.tokens.dtype)))

    def gaussian_parts(self) -> GaussianParts:
        """Return the tokens as atoms."""
        return atoms(as_float64(self.tokens), self._host_weights())

    def variance_proxy(self) -> VarianceProxy:
        """Return $P=(D^2/4)I$; D is the diameter of the tokens, or a bound if they are many."""
        return of_points(as_float64(self.tokens), self._host_weights())

    def _host_weights(self) -> HostArray:
        if self.weights is None:
            return np.full(self.length, 1.0 / self.length)
        return as_float64(self.weights)


@compiled
def _with_token(prompt: Empirical, token: Array) -> tuple[Array, Array | None]:
    tokens = jnp.concatenate([prompt.tokens, token[None]])
    if prompt.weights is None:
        return tokens, None
    length = prompt.length
    share = jnp.full((1,), 1 / (length + 1), prompt.weights.dtype)
    return tokens, jnp.concatenate([prompt.weights * (length / (length + 1)), share])


@compiled
def _sample(prompt: Empirical, length: int, key: PRNGKeyArray) -> Array:
    if prompt.length == 1:  # nothing to draw
        return jnp.broadcast_to(prompt.tokens, (length, prompt.dim))
    rows = jax.random.choice(key, prompt.length, (length,), p=prompt.weights)
    return prompt.tokens[rows]
