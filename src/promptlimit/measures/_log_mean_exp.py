"""The logarithm of a weighted mean of exponentials, for discrete measures."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact


def log_mean_exp(
    exponents: Inexact[Array, " n"], weights: Float[Array, " n"] | None = None
) -> Inexact[Array, ""]:
    r"""Return $\log\sum_i w_ie^{s_i}$ for exponents $s_i$, with $w_i = 1/n$ by default."""
    largest, shifted = _shifted(exponents, weights)
    return largest + jnp.log(_mean_exp(shifted, weights))


def relative_exponentials(
    exponents: Float[Array, " n"], weights: Float[Array, " n"] | None = None
) -> Float[Array, " n"]:
    r"""Return $e^{s_i}/\sum_jw_je^{s_j}$, the ratios of softmax probabilities to weights."""
    _, shifted = _shifted(exponents, weights)
    return jnp.exp(shifted) / _mean_exp(shifted, weights)


def _mean_exp(exponents: Array, weights: Array | None) -> Array:
    """Return the mean of exponentials; a complex mean is at least its rounding error in modulus."""
    mean = _mean(jnp.exp(exponents), weights)
    if not jnp.iscomplexobj(exponents):
        return mean
    here, sizes = jax.lax.stop_gradient((mean, jnp.exp(exponents.real)))
    rounding = jnp.finfo(exponents.dtype).eps * _mean(sizes, weights)
    return mean + jnp.where(jnp.abs(here) < rounding, rounding - here, 0.0)


def _mean(values: Array, weights: Array | None) -> Array:
    return jnp.mean(values) if weights is None else weights @ values


def _shifted(exponents: Array, weights: Array | None) -> tuple[Array, Array]:
    r"""Return $c$ and the $s_i-c$, with $c$ the largest real part of the $s_i$ with $w_i>0$.

    An exponent of weight zero may exceed $c$. The derivative with respect to the weight contains
    its exponential, so the exponent is capped to prevent overflow. The optimization barrier
    prevents the compiler from rounding an exponent in two different ways.
    """
    exponents = jax.lax.optimization_barrier(exponents)
    if weights is None:
        largest = jax.lax.stop_gradient(jnp.max(jnp.real(exponents)))
        return largest, exponents - largest
    counted = jnp.where(weights > 0, exponents, -jnp.inf)
    largest = jax.lax.stop_gradient(jnp.max(jnp.real(counted)))
    cap = 0.5 * jnp.log(jnp.finfo(exponents.dtype).max)
    shifted = exponents - largest
    if jnp.iscomplexobj(shifted):
        return largest, jnp.where(shifted.real > cap, cap, shifted)
    return largest, jnp.minimum(shifted, cap)
