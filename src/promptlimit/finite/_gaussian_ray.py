r"""Mixtures of Gaussians along a tilt, in NumPy: nothing to compile.

With $a_c=\langle t,m_c\rangle$ and $b_c=t'\Gamma_ct$, $\Lambda(ct)=\log\sum_iw_ie^{ca_i+c^2b_i/2}$;
the parts weigh $p_i(c)$, have means $m_i+c\Gamma_it$ and keep their covariances. All tokens are
taken from one centre, so that a large mean costs no digits.
"""

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit.finite._ray import Complex, Ray
from promptlimit.measures import GaussianParts

MOST_PARTS = 64
"""With more parts, differentiating the transform itself is quicker."""

_AT_ONCE = 512


@dataclasses.dataclass(frozen=True)
class GaussianRay(Ray):
    """A measure that is a mixture of few Gaussians and atoms."""

    parts: GaussianParts

    @cached_property
    def centre(self) -> Array:
        """The mean of the part of largest tilted weight, from which no other loses digits."""
        means = self.parts.means
        with np.errstate(over="ignore", invalid="ignore"):
            score = means @ self.tilt + 0.5 * self._spread
            heaviest = np.argmax(np.log(self.parts.weights) + score)
        return means[int(heaviest)]

    @cached_property
    def _spread(self) -> Array:
        r"""The variances of the scores, $t'\Gamma_it$, [i]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.einsum("i,cij,j->c", self.tilt, self.parts.all_covs(), self.tilt)

    def on_axis(self, multiples: Array) -> Array:
        r"""Return $\Lambda(ct)$ for real c."""
        return self._shares(multiples)[0]

    def log_laplace(self, multiples: Complex) -> Complex:
        r"""Return $\Lambda(ct)$ for complex c, up to multiples of $2\pi i$."""
        return self._shares(multiples)[0]

    def derivatives(
        self, value: Array, multiples: Complex
    ) -> Iterator[tuple[slice, Complex, Complex]]:
        r"""Yield $V\nabla\Lambda(ct)$ and $V\nabla^2\Lambda(ct)V'$, some c at a time."""
        covs = self.parts.all_covs()
        means, pulls = (self.parts.means - self.centre) @ value.T, (covs @ self.tilt) @ value.T
        within = value @ covs @ value.T
        for start in range(0, multiples.size, _AT_ONCE):
            c = multiples[start : start + _AT_ONCE]
            shares = self._shares(c)[1]
            centres = means + c[:, None, None] * pulls
            slope = np.einsum("ni,nie->ne", shares, centres)
            apart = centres - slope[:, None]
            between = np.einsum("ni,nie,nif->nef", shares, apart, apart, optimize=True)
            yield slice(start, start + c.size), slope, np.tensordot(shares, within, 1) + between

    def require_analytic(self) -> None:
        """Refuse scores beyond all digits; sums of exponentials of polynomials are analytic."""
        _ = self.domain
        self.require_digits()

    def _shares(self, multiples: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        r"""Return $\Lambda(ct)$, [n], and the tilted weights $p_i(c)$, [n, i]."""
        parts, tilt = self.parts, self.tilt
        apart = (parts.means - self.centre) @ tilt
        with np.errstate(over="ignore", invalid="ignore"):
            exponents = np.log(parts.weights) + np.outer(multiples, apart)
            exponents = exponents + 0.5 * np.outer(multiples**2, self._spread)
            top = exponents.real.max(axis=1, keepdims=True)
            powers = np.exp(exponents - top)
        total = powers.sum(axis=1, keepdims=True)
        return (top + np.log(total))[:, 0], powers / total
