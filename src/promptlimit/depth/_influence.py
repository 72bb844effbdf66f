"""The influence of each token of a prompt on the output of an attention."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray

from promptlimit._arrays import Array, ArrayLike, as_float64
from promptlimit._inputs import in_double, to_device
from promptlimit.attention import AbstractAttention
from promptlimit.measures import Empirical


@dataclasses.dataclass(frozen=True)
class Influence:
    r"""The influence of the tokens of one prompt on the output of an attention at a query.

    Attributes:
        output: $T[\mu](z)$, [e].
        kernel: $K(z,z_i)$, the derivative of the output when weight moves from all tokens to token
            i, [n, e]. Its weighted mean over tokens is zero.
        weights: the weights of the tokens, [n].
    """

    output: Array
    kernel: Array
    weights: Array

    @property
    def cov(self) -> Array:
        r"""$E_yK(z,y)K(z,y)'$, the limit of L times the covariance of the output over prompts."""
        return (self.weights[:, None] * self.kernel).T @ self.kernel

    @property
    def error(self) -> Array:
        r"""The standard error of each entry of `cov`, for tokens drawn independently."""
        squares = self.kernel[:, :, None] * self.kernel[:, None, :]
        spread = np.einsum("n,nef->ef", self.weights, (squares - self.cov) ** 2)
        return np.sqrt(spread * np.sum(self.weights**2))


def influence(attention: AbstractAttention, prompt: Empirical, query: ArrayLike) -> Influence:
    r"""Return $K(z,z_i)=\frac{d}{d\epsilon}T[(1-\epsilon)\mu+\epsilon\delta_{z_i}](z)$.

    This is the infinitesimal jackknife, computed by reverse-mode differentiation. To leading order,
    `cov` of the result is L times the covariance of the output over prompts of L tokens. It is an
    estimate if the tokens of `prompt` are drawn from a law. If they are the atoms of a quadrature
    rule of the law, it is accurate up to the quadrature error.

    Args:
        attention: any attention, such as a `Stack`.
        prompt: tokens drawn from a law, or the atoms of a quadrature rule with their weights.
        query: $z$; it is not added to the prompt.

    >>> import jax, promptlimit as pl
    >>> head = pl.SoftmaxAttention([[0.2]], [[0.6]])
    >>> stack, law = pl.Stack([pl.Layer(head)] * 2), pl.Gaussian([0.0], [[1.0]])
    >>> tokens = pl.Empirical(law.sample(500, key=jax.random.key(0)))
    >>> print(influence(stack, tokens, [1.0]).cov.round(2))
    [[2.79]]
    """
    with jax.enable_x64(True):
        point = to_device(query, dtype=jnp.float64)
        double, tokens = in_double(attention), in_double(prompt)
        weights = tokens.weights
        if weights is None:
            weights = jnp.full(tokens.length, 1.0 / tokens.length)
        output, rows = _weight_derivatives(double, tokens.tokens, weights, point)
        kernel = as_float64(rows).T
    shares = as_float64(weights)
    return Influence(as_float64(output), kernel - shares @ kernel, shares)


@eqx.filter_jit
def _weight_derivatives(
    attention: AbstractAttention, tokens: JaxArray, weights: JaxArray, query: JaxArray
) -> tuple[JaxArray, JaxArray]:
    """Return the output, [e], and its derivatives in the weights, [e, n]."""

    def output(shares: JaxArray) -> JaxArray:
        return attention(Empirical(tokens, shares), query)

    value, pull_back = jax.vjp(output, weights)
    (rows,) = jax.vmap(pull_back)(jnp.eye(value.size))
    return value, rows
