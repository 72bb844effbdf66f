r"""Measures that are mixtures of Gaussians in disguise, taken apart.

Atoms are singular Gaussians; an affine image or a product of Gaussian mixtures is one again. What
is exact for $\sum_c w_cN(m_c,\Gamma_c)$ is exact for all of them.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from scipy.linalg import block_diag

from promptlimit.finite._array_types import Array, doubles
from promptlimit.measures import (
    AbstractMeasure,
    Affine,
    Empirical,
    Gaussian,
    Mixture,
    Product,
    Rademacher,
)

MOST_COMPONENTS = 4096
"""A product has as many components as its factors multiplied; beyond this it is not taken apart."""


@dataclasses.dataclass(frozen=True)
class Components:
    r"""The mixture $\sum_c w_cN(m_c,\Gamma_c)$ in double precision.

    Attributes:
        weights: $w_c$, [c], positive, of sum one.
        means: $m_c$, [c, d].
        covs: $\Gamma_c$, [c, d, d]; None when all components are atoms.
    """

    weights: Array
    means: Array
    covs: Array | None

    @property
    def is_gaussian(self) -> bool:
        """Whether there is one component and it is no atom."""
        return self.weights.size == 1 and self.covs is not None

    def all_covs(self) -> Array:
        """Return the covariances, with zeros for atoms."""
        count, dim = self.means.shape
        return np.zeros((count, dim, dim)) if self.covs is None else self.covs

    def root(self) -> Array:
        r"""Return the symmetric root of the first component's covariance, $\Gamma^{1/2}$."""
        variances, axes = np.linalg.eigh(self.all_covs()[0])
        return (axes * np.sqrt(np.maximum(variances, 0.0))) @ axes.T

    def tilted(self, tilt: Array) -> "Components":
        r"""Return the law $\propto e^{\langle t,z\rangle}\mu$.

        Again a mixture: $w_ce^{\langle t,m_c\rangle+t'\Gamma_ct/2}$, $m_c+\Gamma_ct$, $\Gamma_c$.
        """
        pull = self.all_covs() @ tilt
        log_weights = np.log(self.weights) + (self.means + 0.5 * pull) @ tilt
        weights = np.exp(log_weights - log_weights.max())
        return Components(weights / weights.sum(), self.means + pull, self.covs)


def gaussian_components(  # noqa: PLR0911 - one line a measure
    measure: AbstractMeasure,
) -> Components | None:
    """Return the measure as a mixture of Gaussians and atoms, or None when it is not one."""
    match measure:
        case Gaussian():
            covariance = doubles(measure.covariance)
            symmetric = 0.5 * (covariance + covariance.T)
            return Components(np.ones(1), doubles(measure.location)[None], symmetric[None])
        case Empirical():
            return _atoms(doubles(measure.tokens), measure.weights)
        case Rademacher():
            corners = [_atoms(doubles([[-a], [a]]), None) for a in doubles(measure.half_widths)]
            return _product(corners)
        case Mixture():
            parts = [gaussian_components(part) for part in measure.components]
            return _mixture(doubles(measure.weights), parts)
        case Product():
            return _product([gaussian_components(part) for part in measure.components])
        case Affine():
            inner = gaussian_components(measure.measure)
            return inner and _affine(inner, doubles(measure.matrix), doubles(measure.shift))
    return None


def _atoms(tokens: Array, weights: object) -> Components:
    given = np.ones(tokens.shape[0]) if weights is None else doubles(weights)
    kept = given > 0.0
    return Components(given[kept] / given.sum(), tokens[kept], None)


def _mixture(weights: Array, parts: Sequence[Components | None]) -> Components | None:
    kept = [(w, part) for w, part in zip(weights / weights.sum(), parts, strict=True) if w > 0.0]
    known = [(w, part) for w, part in kept if part is not None]
    if len(known) < len(kept):
        return None
    only_atoms = all(part.covs is None for _, part in known)
    return Components(
        np.concatenate([w * part.weights for w, part in known]),
        np.concatenate([part.means for _, part in known]),
        None if only_atoms else np.concatenate([part.all_covs() for _, part in known]),
    )


def _product(parts: Sequence[Components | None]) -> Components | None:
    """Combine every component of each factor with every one of the others."""
    found = [part for part in parts if part is not None]
    count = int(np.prod([float(part.weights.size) for part in found]).clip(max=1e18))
    if len(found) < len(parts) or count > MOST_COMPONENTS:
        return None
    choices = list(itertools.product(*(range(part.weights.size) for part in found)))
    pick = [list(zip(found, choice, strict=True)) for choice in choices]
    weights = doubles([np.prod([part.weights[c] for part, c in row]) for row in pick])
    means = doubles([np.concatenate([part.means[c] for part, c in row]) for row in pick])
    if all(part.covs is None for part in found):
        return Components(weights, means, None)
    covs = [part.all_covs() for part in found]
    blocks = [[cov[c] for cov, c in zip(covs, choice, strict=True)] for choice in choices]
    return Components(weights, means, np.array([block_diag(*row) for row in blocks]))


def _affine(inner: Components, matrix: Array, shift: Array) -> Components:
    covs = None if inner.covs is None else matrix @ inner.covs @ matrix.T
    if covs is not None:
        covs = 0.5 * (covs + covs.transpose(0, 2, 1))
    return Components(inner.weights, inner.means @ matrix.T + shift, covs)
