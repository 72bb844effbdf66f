"""Mixtures of measures."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Inexact, Int, PRNGKeyArray

from promptlimit._arrays import ArrayLike, as_float64
from promptlimit._inputs import (
    float_arrays,
    require_finite,
    require_rank,
    require_shape,
    require_weights,
)
from promptlimit.errors import ArgumentError
from promptlimit.measures._abstract import AbstractMeasure
from promptlimit.measures._compiled import compiled, full_precision
from promptlimit.measures._components import require_components
from promptlimit.measures._gaussian_parts import GaussianParts, mixed
from promptlimit.measures._log_mean_exp import log_mean_exp, relative_exponentials
from promptlimit.measures._variance_proxies import VarianceProxy, of_mixture


class Mixture(AbstractMeasure):
    r"""The mixture $\sum_c \pi_c\mu_c$ with $\Lambda(t) = \log\sum_c \pi_c e^{\Lambda_c(t)}$.

    The limit of softmax attention is the mean of the limits over the components, with weights
    proportional to $\pi_c e^{\Lambda_c(Uz)}$.

    Args:
        weights: the probabilities $\pi_c$.
        components: the measures $\mu_c$, all of the same dimension.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> left, right = pl.Gaussian([-1.0], [[0.5]]), pl.Gaussian([3.0], [[0.5]])
    >>> print(pl.Mixture([0.75, 0.25], [left, right]).cov)
    [[3.5]]
    """

    weights: Float[Array, " components"]
    components: tuple[AbstractMeasure, ...]

    def __init__(self, weights: ArrayLike, components: Sequence[AbstractMeasure]):
        first = weights[0] if isinstance(weights, list | tuple) and weights else weights
        if isinstance(first, AbstractMeasure):
            raise ArgumentError(
                "weights",
                "must be probabilities, got measures: the arguments are in the wrong order. Pass "
                "Mixture(weights, components).",
            )
        measures = require_components(components)
        dims = [measure.dim for measure in measures]
        if len(set(dims)) > 1:
            raise ArgumentError(
                "components", f"must all have the same dimension, got dimensions {dims}."
            )
        (probabilities,) = float_arrays(weights=weights)
        require_rank("weights", probabilities, 1)
        require_shape("weights", probabilities, (len(measures),), "one weight per component")
        require_finite("weights", probabilities)
        require_weights("weights", probabilities)
        self.weights = probabilities
        self.components = measures

    @property
    def dim(self) -> int:
        """The dimension $d$ of a token."""
        return self.components[0].dim

    @property
    def finite_everywhere(self) -> bool:
        """Whether the log-Laplace transform of every component is finite everywhere."""
        return all(measure.finite_everywhere for measure in self.components)

    @full_precision
    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\log\sum_c \pi_c e^{\Lambda_c(t)}$.

        It is evaluated as $\ell(t) + \log\sum_c\pi_ce^{\Lambda_c(t)-\ell(t)}$ with an affine
        function $\ell$ that is zero at the given tilt and has the slope of $\Lambda$ there.
        Subtracting $\ell$ centres the components, so a large common mean costs no digits in the
        derivatives. At a complex tilt, where $e^\Lambda$ may vanish, the slope of $\ell$ is the
        mean of the slopes of the $\Lambda_c$ with weights proportional to $\pi_c|e^{\Lambda_c}|$.
        """
        gradient = partial(jax.grad, holomorphic=jnp.iscomplexobj(tilt))
        here = jax.lax.stop_gradient(tilt)
        transforms = jnp.stack([measure.log_laplace(tilt) for measure in self.components])
        slopes = jnp.stack([gradient(measure.log_laplace)(here) for measure in self.components])
        shares = self.weights * relative_exponentials(jnp.real(transforms), self.weights)
        tangent = jax.lax.stop_gradient(shares @ slopes) @ (tilt - here)
        return tangent + log_mean_exp(transforms - tangent, self.weights)

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` tokens, each from a component drawn with the probabilities `weights`."""
        choice, keys = _choice(self.weights, length, key)
        drawn = [
            measure.sample(length, key=own_key)
            for measure, own_key in zip(self.components, keys, strict=True)
        ]
        return _chosen(choice, drawn)

    def gaussian_parts(self) -> GaussianParts | None:
        """Return the Gaussian parts of all components; None if a component has no such parts."""
        return mixed(as_float64(self.weights), [part.gaussian_parts() for part in self.components])

    def variance_proxy(self) -> VarianceProxy | None:
        r"""Return $P=(p+D^2/4)I$; None if the proxy of a component is None.

        $p$ is the largest eigenvalue of the components' proxies, and $D$ the diameter of their
        means. A mixture of one component has the proxy of this component.
        """
        return of_mixture(
            as_float64(self.weights), [part.variance_proxy() for part in self.components]
        )


@compiled
def _choice(
    weights: Array, length: int, key: PRNGKeyArray
) -> tuple[Int[Array, " length"], list[PRNGKeyArray]]:
    """Return the index of the component of each token, and a key for each component."""
    choice_key, *keys = jax.random.split(key, weights.size + 1)
    return jax.random.choice(choice_key, weights.size, (length,), p=weights), keys


@compiled
def _chosen(choice: Int[Array, " length"], drawn: Sequence[Array]) -> Array:
    tokens = drawn[0]
    for index, others in enumerate(drawn[1:], start=1):
        tokens = jnp.where((choice == index)[:, None], others, tokens)
    return tokens
