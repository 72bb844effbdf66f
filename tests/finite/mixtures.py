"""A law as a user would write it, and moments of attention over it by the exact engine."""

import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl
from promptlimit.finite import KnownPart, softmax_moments
from promptlimit.weights import Ray, RayLaw


class GaussianMixture(pl.AbstractMeasure):
    r"""Gaussians and atoms side by side: $\Lambda(t)=\log\sum_cw_ce^{m_c't+t'\Gamma_ct/2}$."""

    weights: jax.Array
    means: jax.Array
    covs: jax.Array

    @property
    def dim(self):
        return self.means.shape[1]

    def log_laplace(self, tilt):
        each = self.means @ tilt + 0.5 * (self.covs @ tilt) @ tilt
        kept = jnp.where(self.weights > 0, each.real, -jnp.inf)
        top = jax.lax.stop_gradient(jnp.max(kept))
        return top + jnp.log(self.weights @ jnp.exp(each - top))

    def sample(self, length, *, key):
        raise NotImplementedError


def moments_on_the_ray(weights, means, covs, tilt, value, lengths, *, query=None):  # noqa: PLR0917
    """Return the exact moments of softmax attention over a mixture, about its limit."""
    means = np.asarray(means, dtype=float)
    count, dim = means.shape
    covs = np.zeros((count, dim, dim)) if covs is None else np.asarray(covs, dtype=float)
    with jax.enable_x64(True):
        law = GaussianMixture(*map(jnp.asarray, (np.asarray(weights, dtype=float), means, covs)))
    tilt, value, lengths = (np.asarray(each, dtype=float) for each in (tilt, value, lengths))
    known = None if query is None else KnownPart.of(np.asarray(query, dtype=float)[None])
    return softmax_moments(RayLaw(Ray(law, tilt)), value, lengths, known)
