r"""Gaussian parts: the Gaussians and atoms of which a measure is a mixture.

An atom is a point with positive probability: a Gaussian with zero covariance.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array, as_float64

MOST_PARTS = 4096
"""For a product measure with more Gaussian parts than this, `gaussian_parts` returns None."""


@dataclasses.dataclass(frozen=True)
class GaussianParts:
    r"""The mixture $\sum_cw_cN(m_c,\Gamma_c)$ in double precision.

    Attributes:
        weights: $w_c$, [c], positive, with sum one.
        means: $m_c$, [c, d].
        covs: $\Gamma_c$, [c, d, d]; None when all parts are atoms.
    """

    weights: Array
    means: Array
    covs: Array | None = None

    @property
    def is_gaussian(self) -> bool:
        """Whether the measure is a single Gaussian."""
        return self.weights.size == 1 and self.covs is not None

    def all_covs(self) -> Array:
        """Return the covariances, [c, d, d]; they are zero for atoms."""
        count, dim = self.means.shape
        return np.zeros((count, dim, dim)) if self.covs is None else self.covs

    def root(self) -> Array:
        r"""Return the symmetric root of the first part's covariance, $\Gamma^{1/2}$."""
        return sqrtm_psd(self.all_covs()[0])

    def tilted(self, tilt: Array) -> "GaussianParts":
        r"""Return the law $\propto e^{\langle t,z\rangle}\mu$.

        Its weights are proportional to $w_ce^{\langle t,m_c\rangle+t^\top\Gamma_ct/2}$, its means
        are $m_c+\Gamma_ct$, and its covariances are $\Gamma_c$.
        """
        pull = self.all_covs() @ tilt
        log_weights = np.log(self.weights) + (self.means + 0.5 * pull) @ tilt
        weights = np.exp(log_weights - log_weights.max())
        return GaussianParts(weights / weights.sum(), self.means + pull, self.covs)

    def affine(self, matrix: Array, shift: Array) -> "GaussianParts":
        r"""Return the law of $Az+b$ for z with this law."""
        covs = None if self.covs is None else matrix @ self.covs @ matrix.T
        if covs is not None:
            covs = 0.5 * (covs + covs.transpose(0, 2, 1))
        return GaussianParts(self.weights, self.means @ matrix.T + shift, covs)


def atoms(tokens: Array, weights: Array | None) -> GaussianParts:
    """Return the tokens of nonzero weight as atoms; weights are equal if `weights` is None."""
    shares = np.ones(tokens.shape[0]) if weights is None else weights
    kept = shares > 0.0
    return GaussianParts(shares[kept] / shares.sum(), tokens[kept])


def mixed(weights: Array, parts: Sequence[GaussianParts | None]) -> GaussianParts | None:
    """Return the parts of a mixture; None if a component of nonzero weight has no such parts."""
    kept = [(w, part) for w, part in zip(weights / weights.sum(), parts, strict=True) if w > 0.0]
    known = [(w, part) for w, part in kept if part is not None]
    if len(known) < len(kept):
        return None
    only_atoms = all(part.covs is None for _, part in known)
    return GaussianParts(
        np.concatenate([w * part.weights for w, part in known]),
        np.concatenate([part.means for _, part in known]),
        None if only_atoms else np.concatenate([part.all_covs() for _, part in known]),
    )


def multiplied(parts: Sequence[GaussianParts | None]) -> GaussianParts | None:
    """Return the parts of a product measure: each combines one part of every factor.

    The result is None if the parts of a factor are None, or for over `MOST_PARTS` combinations.
    """
    from scipy.linalg import block_diag  # noqa: PLC0415  # scipy loads slowly

    factors = [part for part in parts if part is not None]
    count = int(np.prod([float(part.weights.size) for part in factors]).clip(max=1e18))
    if len(factors) < len(parts) or count > MOST_PARTS:
        return None
    choices = list(itertools.product(*(range(part.weights.size) for part in factors)))
    pick = [list(zip(factors, choice, strict=True)) for choice in choices]
    weights = as_float64([np.prod([part.weights[c] for part, c in row]) for row in pick])
    means = as_float64([np.concatenate([part.means[c] for part, c in row]) for row in pick])
    if all(part.covs is None for part in factors):
        return GaussianParts(weights, means)
    covs = [part.all_covs() for part in factors]
    blocks = [[cov[c] for cov, c in zip(covs, choice, strict=True)] for choice in choices]
    return GaussianParts(weights, means, np.array([block_diag(*row) for row in blocks]))


def sqrtm_psd(cov: Array) -> Array:
    """Return the symmetric roots of covariances, [..., d, d]; negative eigenvalues become zero."""
    variances, axes = np.linalg.eigh(cov)
    return (axes * np.sqrt(np.maximum(variances, 0.0))[..., None, :]) @ axes.mT
