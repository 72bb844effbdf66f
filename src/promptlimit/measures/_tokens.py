r"""The log-Laplace transform of weighted tokens, with accurate second derivatives.

Automatic differentiation of $\Lambda=\log\sum_iw_ie^{\langle z_i,t\rangle}$ gives an inaccurate
covariance if the mean of the tokens is large compared with their standard deviation. The custom
derivatives below use centred tokens. With the tilted mean $m=\sum_ip_iz_i$,
$e_i = e^{\langle z_i,t\rangle-\Lambda}$ and $p_i = w_ie_i$, they are

    dLambda = <m, dt> + sum_i p_i <dz_i, t> + sum_i dw_i e_i
    dm      = sum_i p_i (z_i - m) (<z_i - m, dt> + <dz_i, t>) + sum_i p_i dz_i + sum_i dw_i e_i (z_i - m)
"""  # noqa: E501  # a formula stays on one line

from typing import TypeGuard

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Inexact

from promptlimit.measures._log_mean_exp import log_mean_exp, relative_exponentials

Tangent = Array | SymbolicZero | None
Primals = tuple[Array, Array | None, Array]
Tangents = tuple[Tangent, Tangent, Tangent]


def log_laplace_of_tokens(
    tokens: Float[Array, "length d"],
    weights: Float[Array, " length"] | None,
    tilt: Inexact[Array, " d"],
) -> Inexact[Array, ""]:
    r"""Return $\log\sum_iw_ie^{\langle z_i,t\rangle}$.

    The weights are $w_i=1/L$ if None. At a complex tilt, automatic differentiation is used without
    centring, because the exponentials may cancel, and then $m$ is large.
    """
    if jnp.iscomplexobj(tilt):
        return log_mean_exp(tokens @ tilt, weights)
    return _log_laplace(tokens, weights, tilt)


@jax.custom_jvp
def _log_laplace(tokens: Array, weights: Array | None, tilt: Array) -> Array:
    return log_mean_exp(tokens @ tilt, weights)


@jax.custom_jvp
def _tilted_mean(tokens: Array, weights: Array | None, tilt: Array) -> Array:
    return _probabilities(tokens, weights, tilt) @ tokens


def _probabilities(tokens: Array, weights: Array | None, tilt: Array) -> Array:
    if weights is None:
        return jax.nn.softmax(tokens @ tilt)
    return weights * relative_exponentials(tokens @ tilt, weights)


def _log_laplace_jvp(primals: Primals, tangents: Tangents) -> tuple[Array, Array]:
    (tokens, weights, tilt), (tokens_dot, weights_dot, tilt_dot) = primals, tangents
    slope = jnp.zeros((), tilt.dtype)
    if _is_nonzero(tilt_dot):
        slope = slope + _tilted_mean(tokens, weights, tilt) @ tilt_dot
    if _is_nonzero(tokens_dot):
        slope = slope + _probabilities(tokens, weights, tilt) @ (tokens_dot @ tilt)
    if _is_nonzero(weights_dot):
        slope = slope + weights_dot @ relative_exponentials(tokens @ tilt, weights)
    return _log_laplace(tokens, weights, tilt), slope


def _tilted_mean_jvp(primals: Primals, tangents: Tangents) -> tuple[Array, Array]:
    (tokens, weights, tilt), (tokens_dot, weights_dot, tilt_dot) = primals, tangents
    mean = _tilted_mean(tokens, weights, tilt)
    probabilities = _probabilities(tokens, weights, tilt)
    centred = tokens - mean[None]
    slope = jnp.zeros_like(mean)
    if _is_nonzero(tilt_dot):
        slope = slope + (probabilities * (centred @ tilt_dot)) @ centred
    if _is_nonzero(tokens_dot):
        slope = slope + (probabilities * (tokens_dot @ tilt)) @ centred
        slope = slope + probabilities @ tokens_dot
    if _is_nonzero(weights_dot):
        slope = slope + (weights_dot * relative_exponentials(tokens @ tilt, weights)) @ centred
    return mean, slope


def _is_nonzero(tangent: Tangent) -> TypeGuard[Array]:
    return tangent is not None and not isinstance(tangent, SymbolicZero)


_log_laplace.defjvp(_log_laplace_jvp, symbolic_zeros=True)
_tilted_mean.defjvp(_tilted_mean_jvp, symbolic_zeros=True)
