"""The logarithm of a weighted mean of exponentials, which is what a discrete measure needs."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def log_mean_exp(
    exponents: Float[Array, " n"], weights: Float[Array, " n"] | None = None
) -> Float[Array, ""]:
    r"""Return $\log\sum_i w_ie^{s_i}$, with $w_i = 1/n$ when no weights are given.

    The largest exponent of positive weight is taken out first. A token of weight zero adds nothing
    to the value, yet the derivative in its weight, $e^{s_i}/\sum_jw_je^{s_j}$, is right: its
    exponent may exceed the largest, so it is capped only where the exponential would overflow.
    """
    if weights is None:
        largest = jax.lax.stop_gradient(jnp.max(exponents))
        return largest + jnp.log(jnp.mean(jnp.exp(exponents - largest)))
    counted = jnp.where(weights > 0, exponents, -jnp.inf)
    largest = jax.lax.stop_gradient(jnp.max(counted))
    cap = 0.5 * jnp.log(jnp.finfo(exponents.dtype).max)
    return largest + jnp.log(weights @ jnp.exp(jnp.minimum(exponents - largest, cap)))
