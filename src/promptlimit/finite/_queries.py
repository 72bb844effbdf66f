"""The law of the query, as points and Gaussians if possible."""

import dataclasses

import jax
import numpy as np

from promptlimit._arrays import Array, ArrayLike, as_float64
from promptlimit._inputs import float_arrays, in_double, require_finite
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical, sqrtm_psd


@dataclasses.dataclass(frozen=True)
class GaussianPart:
    """A Gaussian component of the law of the query.

    Attributes:
        weight: the probability of the component.
        mean: the mean of a query, [q].
        cov: the covariance of a query, [q, q].
    """

    weight: float
    mean: Array
    cov: Array


@dataclasses.dataclass(frozen=True)
class Queries:
    """The law of the query, as a mixture of points and Gaussians if it is such a mixture.

    Attributes:
        points: the queries of positive probability, [n, q].
        weights: the probabilities of `points`, [n].
        gaussians: the Gaussian components.
        law: the law as a measure; None for listed queries.
        is_known: whether the law is a mixture of `points` and `gaussians`.
    """

    points: Array
    weights: Array
    gaussians: tuple[GaussianPart, ...] = ()
    law: AbstractMeasure | None = None
    is_known: bool = True

    @classmethod
    def one(cls, point: Array) -> "Queries":
        """Return the law of one fixed query."""
        return cls(point[None], np.ones(1))

    @property
    def is_one(self) -> bool:
        """Whether there is a single query that was given as an array."""
        return self.law is None and self.points.shape[0] == 1

    @property
    def are_points(self) -> bool:
        """Whether there are finitely many queries."""
        return self.is_known and not self.gaussians

    @property
    def name(self) -> str:
        """The queries as text for messages."""
        return "a list of queries" if self.law is None else f"{type(self.law).__name__} queries"

    @property
    def sub_gaussian(self) -> float | None:
        """The sub-Gaussian constant of a centred law; None for other laws or if it is unknown."""
        mean, cov = self.moments()
        if self.law is None or np.linalg.norm(mean) > 1e-12 * np.sqrt(np.trace(cov)):
            return None
        proxy = self.law.variance_proxy()
        return None if proxy is None else proxy.constant

    def as_measure(self) -> AbstractMeasure:
        """Return the law of the query as a measure."""
        return Empirical(self.points, self.weights) if self.law is None else self.law

    def moments(self) -> tuple[Array, Array]:
        """Return mean and covariance of a query."""
        if self.law is not None and not self.is_known:
            with jax.enable_x64(True):
                return as_float64(self.law.mean), as_float64(self.law.cov)
        parts = self.gaussians
        shares = np.concatenate([self.weights, [part.weight for part in parts]])
        centres = np.concatenate([self.points, *(part.mean[None] for part in parts)])
        mean = shares @ centres
        centred = centres - mean
        within = sum(part.weight * part.cov for part in parts)
        return mean, (shares[:, None] * centred).T @ centred + within

    def for_squares(self) -> tuple[Array, Array]:
        r"""Return points and equal weights that average squares of affine functions exactly.

        The points are $m\pm\sqrt q\,c_k$ with m the mean of a query, q its dimension and $c_k$ the
        columns of a root of its covariance. They have the mean and the covariance of the queries,
        which determine the mean of a polynomial of degree 2.
        """
        mean, cov = self.moments()
        steps = np.sqrt(mean.size) * sqrtm_psd(cov)
        points = mean + np.concatenate([steps, -steps])
        return points, np.full(points.shape[0], 1.0 / points.shape[0])


def checked_queries(queries: AbstractMeasure | ArrayLike | None, dim: int) -> Queries:
    """Return the validated queries; call inside `enable_x64`."""
    if isinstance(queries, AbstractMeasure):
        if queries.dim != dim:
            raise _wrong_dimension(dim, f"a measure of dimension {queries.dim}")
        return _parts_of_law(in_double(queries))
    (array,) = float_arrays(queries=queries)
    if array.ndim != 2 or array.shape[1] != dim or not array.shape[0]:
        raise _wrong_dimension(dim, f"shape {array.shape}")
    require_finite("queries", array)
    points = as_float64(array)
    return Queries(points, np.full(points.shape[0], 1.0 / points.shape[0]))


def _wrong_dimension(dim: int, got: str) -> ArgumentError:
    return ArgumentError(
        "queries",
        f"must be a measure of dimension {dim} or an array [n, {dim}] (as the "
        f"attention expects), got {got}.",
    )


def _parts_of_law(law: AbstractMeasure) -> Queries:
    parts = law.gaussian_parts()
    if parts is None:
        return Queries(np.zeros((0, law.dim)), np.zeros(0), (), law, is_known=False)
    covs = parts.all_covs()
    fixed = np.all(covs == 0.0, axis=(1, 2))
    spread = zip(parts.weights[~fixed], parts.means[~fixed], covs[~fixed], strict=True)
    gaussians = tuple(GaussianPart(float(weight), mean, cov) for weight, mean, cov in spread)
    return Queries(parts.means[fixed], parts.weights[fixed], gaussians, law)
