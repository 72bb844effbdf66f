r"""The law of a Gaussian token, or of a mixture of Gaussians, along a tilt.

Within a part $N(m,\Gamma)$ of the mixture, the score is $s=\mu+\sigma g$ with g standard normal,
$\mu=\langle m,t\rangle$ and $\sigma^2=t'\Gamma t$. Given g, a token is normal with mean
$m+\Gamma t\,g/\sigma$ and covariance $\Gamma-\Gamma tt'\Gamma/\sigma^2$, so second moments of
values are polynomials of degree two in g. For the transform $F_k$, these polynomials are
interpolated at three values of $h=g-(k-1)\sigma$, which are the places of `AbstractProducts`. By
Stein's lemma $F_{k-1}[h]=-\sigma F_k[1]$, so no digits cancel.
"""

import dataclasses
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy.special import softmax

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.weights._gaussian_score import GaussianScore, MixtureScore, mixture_window
from promptlimit.weights._score_law import (
    EPSILON,
    NEGLIGIBLE,
    AbstractProducts,
    AbstractScoreLaw,
    PartitionMeans,
    Scores,
    SquareMeans,
    assembled,
    listed_score_means,
    require_near,
)

_SHARPEST = 150.0
"""The largest standard deviation of scores. Above it, the integrals would take too long."""

_ROUNDING = 8.0 * EPSILON
_NODES = np.array([-1.0, 0.0, 1.0])


@dataclasses.dataclass(frozen=True)
class GaussianLaw(AbstractScoreLaw):
    r"""The law $\sum_kw_kN(m_k,\Gamma_k)$ along a tilt.

    Attributes:
        weights: $w_k$, positive, [k].
        means: $m_k$, [k, d].
        covs: $\Gamma_k$, [k, d, d].
        tilt: $t$, [d].
    """

    weights: Array
    means: Array
    covs: Array
    tilt: Array

    def __post_init__(self) -> None:
        largest = float(self.sharpness.max())
        if not largest <= _SHARPEST:
            raise AccuracyError(
                "the law of the scores must be narrow enough to integrate over, got scores of "
                f"standard deviation {largest:.3g}, above {_SHARPEST:g}. Scale the attention down.",
                argument="attention",
            )

    @cached_property
    def pulls(self) -> Array:
        r"""$\Gamma_kt$, [k, d]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self.covs @ self.tilt

    @cached_property
    def sharpness(self) -> Array:
        r"""$\sigma_k=\sqrt{t'\Gamma_kt}$, [k]."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.sqrt(np.maximum(self.pulls @ self.tilt, 0.0))

    @cached_property
    def _heaviest(self) -> int:
        """The index of the part of largest tilted weight. Its mean is subtracted from tokens."""
        return int(np.argmax(np.log(self.weights) + self.means @ self.tilt + self.sharpness**2 / 2))

    @cached_property
    def _apart(self) -> Array:
        """The means of the parts minus the mean of the heaviest part, [k, d]."""
        return self.means - self.means[self._heaviest]

    @cached_property
    def shifts(self) -> Array:
        r"""$\mu_k=\langle m_k,t\rangle$ minus the mean score of the heaviest part, [k]."""
        return self._apart @ self.tilt

    @cached_property
    def _log_masses(self) -> Array:
        return np.log(self.weights) + self.shifts + 0.5 * self.sharpness**2

    @property
    def offset(self) -> float:
        """The mean score of the heaviest part."""
        return float(self.means[self._heaviest] @ self.tilt)

    def score_of(self, token: Array) -> float:
        return float((token - self.means[self._heaviest]) @ self.tilt)

    @property
    def log_mean(self) -> float:
        return float(np.logaddexp.reduce(self._log_masses))

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        return require_near(*mixture_window(self.shifts, self.sharpness, longest, shortest))

    def _score(self, u: Array) -> MixtureScore:
        return MixtureScore.of(self.weights, self.shifts, self.sharpness, u)

    def scores(self, u: Array) -> Scores:
        score = self._score(u)
        log_phi, mass = score.log_phi, score.moments((1,), 0)[0, 0].sum(axis=0)
        return Scores(u, log_phi, _ROUNDING * np.minimum(np.abs(log_phi), 1.0), mass)

    def partition_means(self, u: Array) -> PartitionMeans:
        parts = self._score(u).parts
        if all(part.is_narrow for part in parts):
            weights = [w * part.normal[1] for w, part in zip(self.weights, parts, strict=True)]
            scores = [part.mean + part.sharpness * part.normal[0] for part in parts]
            return listed_score_means(np.concatenate(weights), np.concatenate(scores), u)
        tilted_mean = float(softmax(self._log_masses) @ (self.shifts + self.sharpness**2))
        sums = [_partition_sums(part, tilted_mean) for part in parts]
        rows = {name: self.weights @ [row[name] for row in sums] for name in sums[0]}
        return assembled(u, self.log_mean, tilted_mean, rows)

    def square_window(self, longest: float, shortest: float) -> tuple[float, float]:
        columns = 2.0 * self.shifts, 2.0 * self.sharpness
        low, high = mixture_window(*columns, longest, shortest)
        # (E[X^{1/2} e^{-X}])^2 is at most e^{u + 2 Lambda}.
        low = min(low, -NEGLIGIBLE - 2.0 * (math.log(longest) + self.log_mean))
        return require_near(low, high)

    def square_means(self, u: Array) -> SquareMeans:
        score = MixtureScore.of(self.weights, 2.0 * self.shifts, 2.0 * self.sharpness, u)
        root, mass = (score.moments((power,), 0)[0, 0].sum(axis=0) for power in (0.5, 1.0))
        return SquareMeans(u, score.log_phi, root, mass)

    def products(self, power: int, u: Array) -> "GaussianProducts":
        parts = self._score(u).parts
        moments = np.stack(
            [part.moments((power,), 2, (power - 1) * part.sharpness)[0] for part in parts]
        )
        if power == 1:
            lower = [np.stack(part.phi_and_complement) for part in parts]
        else:
            lower = [np.stack([part.moments((1,), 0, 0.0)[0, 0], part.missing]) for part in parts]
        shares = self.weights[:, None, None]
        radii = np.maximum(self.sharpness, 1.0)
        weighted = shares * moments
        density, masses = weighted[:, 0].sum(axis=0), np.ones(3 * radii.size)
        return GaussianProducts(
            density, masses, power, self.sharpness, radii, weighted, shares * np.stack(lower)
        )

    def ends(self, value: Array) -> tuple[Array, Array, Array]:
        tilted = self._tilted_mean(value)
        origin = value @ self.means[self._heaviest]
        means = self._apart @ value.T
        mean = self.weights @ means
        apart = means - mean
        cov = value @ np.tensordot(self.weights, self.covs, 1) @ value.T
        return origin + tilted, origin + mean, cov + (self.weights[:, None] * apart).T @ apart

    def _tilted_mean(self, value: Array) -> Array:
        r"""Return $V(\nabla\Lambda(t)-m)$ with m the mean of the heaviest part, [e]."""
        return softmax(self._log_masses) @ ((self._apart + self.pulls) @ value.T)

    def readings(
        self,
        value: Array,
        limit: Array,
        products: AbstractProducts,
    ) -> Iterator[tuple[slice, Array, Array, Array, Array]]:
        """Yield the three places of each part, with the means and covariances of Vz - T there."""
        if not isinstance(products, GaussianProducts):
            raise TypeError(f"products of Gaussians are needed, got {type(products).__name__}")
        tilted, exact = self._tilted_mean(value), np.zeros(3)
        for k, sigma in enumerate(self.sharpness):
            pull = value @ self.pulls[k]
            slope = pull / sigma if sigma > 0.0 else np.zeros(limit.size)
            middle = value @ (self._apart[k] + (products.power - 1) * self.pulls[k]) - tilted
            centred = middle + np.outer(products.radii[k] * _NODES, slope)
            rest = value @ self.covs[k] @ value.T - np.outer(slope, slope)
            yield slice(3 * k, 3 * k + 3), centred, np.stack([rest] * 3), exact, exact


def _partition_sums(part: GaussianScore, tilted_mean: float) -> dict[str, Array]:
    r"""Return the means over one part that `assembled` needs; `tilted_mean` is $\Lambda'$.

    By Stein's lemma, $F_1[s-\mu-\sigma^2]=-\sigma^2F_2[1]$ in the part.
    """
    sigma = part.sharpness
    phi, complement = part.phi_and_complement
    mass = part.moments((1,), 0, 0.0)[0, 0]
    square, lean, spread = part.moments((2,), 2, sigma)[0]
    log_mass, log_square, log_squares = part.log_moments(((1, 1), (2, 1), (2, 2)))
    off = part.mean + sigma**2 - tilted_mean
    off *= abs(off) > _ROUNDING * (abs(part.mean) + sigma**2)  # exactly zero for one Gaussian
    return {
        "phi": phi,
        "complement": complement,
        "remainder": part.remainder,
        "missing": part.missing,
        "mass": mass,
        "drift": -(sigma**2) * square + off * mass,
        "drift_missing": -(sigma**2) * square - off * part.missing,
        "log_mass": log_mass,
        "square": square,
        "lean": sigma * lean + off * square,
        "spread": sigma**2 * spread + 2.0 * off * sigma * lean + off**2 * square,
        "log_square": log_square,
        "log_squares": log_squares,
    }


@dataclasses.dataclass(frozen=True)
class GaussianProducts(AbstractProducts):
    r"""$F_k$ and $F_{k-1}$ of functions that are polynomials in h within each of p parts.

    Attributes:
        power: k.
        sharpness: $\sigma$ of each part, [p].
        radii: r of each part, whose places are h = -r, 0 and r, [p].
        moments: $w\,F_k[h^j]$ for j = 0, 1, 2, with w the probability of the part, [p, j, u].
        below: w times the means of $x^{k-1}e^{-x}$ and $x^{k-1}(1-e^{-x})$ in the part, [p, 2, u].
    """

    power: int
    sharpness: Array
    radii: Array
    moments: Array
    below: Array

    def shares(self, weights: Array) -> tuple[Array, Array]:
        zeroth, first, second = np.einsum("nu,pju->jnp", weights, self.moments, optimize=True)
        first, second = first / self.radii, second / self.radii**2
        shares = np.stack([(second - first) / 2, zeroth - second, (second + first) / 2], axis=-1)
        shares = shares.reshape(len(weights), -1)
        return shares, _ROUNDING * np.abs(shares)

    def lower(self, centred: Array, mean_errors: Array) -> tuple[Array, Array]:  # noqa: ARG002  # zero
        r"""Return $F_{k-1}[f]$ and its error.

        For f = a + bh in a part, $F_{k-1}[f]=aF_{k-1}[1]-b\sigma F_k[1]$. Since $E[fx^{k-1}]=0$,
        the sum of $aF_{k-1}[1]$ over the parts is equal to the sum of $-a\,E[x^{k-1}(1-e^{-x})]$.
        Of the two sums, the one with the smaller terms is used.
        """
        left, middle, right = centred.reshape(-1, 3, centred.shape[1]).transpose(1, 0, 2)
        falls = (right - left) * (self.sharpness / (2.0 * self.radii))[:, None]
        size = np.linalg.norm(middle, axis=1)
        direct, other = self.below.transpose(1, 2, 0)
        sizes = direct @ size, other @ size
        smaller = (sizes[0] <= sizes[1])[:, None]
        density = self.moments[:, 0].T
        lowered = np.where(smaller, direct @ middle, -(other @ middle)) - density @ falls
        total = np.minimum(*sizes) + density @ np.linalg.norm(falls, axis=1)
        return lowered, _ROUNDING * total
