"""In-context linear regression tasks for several laws of the covariates."""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit._arrays import ArrayLike, Number, numpy_only, real_number, require_whole
from promptlimit._inputs import float_array, in_double, require_shape, to_device
from promptlimit._quadrature import haar_rotations
from promptlimit.errors import ArgumentError
from promptlimit.measures import (
    AbstractMeasure,
    Affine,
    Gaussian,
    Product,
    require_covariance,
    require_measure,
)
from promptlimit.tasks._abstract import AbstractTask


class AbstractRegression(AbstractTask):
    r"""Linear regression in context: each prompt has new hidden weights $w\sim N(0,\tau^2I)$.

    Tokens are $(x, y)$ with covariates x and the label $y=\langle w,x\rangle+s\,\epsilon$, where
    $\epsilon$ is standard normal. The query is $(x_q, 0)$. The last coordinate of the output is the
    prediction, and the loss is half its squared difference from the noisy label $y_q$. Labels in
    $\mathbb R^m$ are $y=Wx+s\,\epsilon$ with independent entries $N(0,\tau^2)$ of W, and the last m
    coordinates of the output are the predictions.
    """

    noise_variance: eqx.AbstractVar[float]
    prior_variance: eqx.AbstractVar[float]
    label_dim: eqx.AbstractVar[int]

    @abc.abstractmethod
    def _with_noise(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
        r"""Return the laws of $(x, s\,\epsilon)$ in the prompt and in the query."""

    def draw(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:
        r"""Return the laws of $(x, y)$ in the prompt and in the query for one random $w$."""
        prompt, query = self._with_noise(key=jax.random.fold_in(key, 1))
        covariates = prompt.dim - self.label_dim
        weights = jax.random.normal(key, (self.label_dim, covariates))
        matrix = jnp.eye(prompt.dim, dtype=weights.dtype)
        matrix = matrix.at[covariates:, :covariates].set(math.sqrt(self.prior_variance) * weights)
        shift = jnp.zeros_like(matrix[0])
        return Affine(prompt, matrix, shift), Affine(query, matrix, shift)

    @property
    def min_output_dim(self) -> int:
        """The smallest output dimension: one coordinate per label."""
        return self.label_dim

    def query_of(self, token: Float[Array, " token_dim"]) -> Float[Array, " token_dim"]:
        """Return the query $(x_q, 0)$ of a target token $(x_q, y_q)$."""
        return token.at[-self.label_dim :].set(0.0)

    def loss(
        self, output: Float[Array, " output_dim"], token: Float[Array, " token_dim"]
    ) -> Float[Array, ""]:
        """Return half the squared error of the last coordinates of the output, one per label."""
        missed = output[-self.label_dim :] - token[-self.label_dim :]
        return 0.5 * jnp.sum(missed**2)


class AbstractGaussianRegression(AbstractRegression):
    """Linear regression whose tokens, given w and the covariance of x, are centred Gaussians."""

    @property
    @abc.abstractmethod
    def rotation_dim(self) -> int:
        r"""The number of standard normals that determine $\Sigma$; 0 if $\Sigma$ is fixed."""

    @abc.abstractmethod
    def covariances(
        self, normals: Float[np.ndarray, "points rotation_dim"]
    ) -> tuple[Float[np.ndarray, "*points d d"], Float[np.ndarray, "*points d d"]]:
        r"""Return $\Sigma$ and $\Sigma_q$: one pair if fixed, otherwise one per row of normals."""


class LinearRegression(AbstractGaussianRegression):
    r"""In-context linear regression with Gaussian covariates $x\sim N(0,\Sigma)$.

    If queries are Gaussian, the risks of one head are exact at every length. The parameters are
    stored in double precision.

    Args:
        covariance: the covariance $\Sigma$ of x, shape `[d, d]`, positive semi-definite.
        noise_variance: $s^2$, the variance of the label noise.
        prior_variance: $\tau^2$, the variance of each entry of the hidden weights $w$.
        query_covariance: the covariance $\Sigma_q$ of the covariates $x_q$ of the query; $\Sigma$
            when None.
        query_covariates: the law of $x_q$ if it is not $N(0,\Sigma_q)$. The attribute
            `query_covariance` is then the second moment $E\,x_qx_q^\top$. Risks of linear attention
            and of infinite prompts depend on the law only through this moment.
        label_dim: the dimension $m$ of labels $y=Wx+s\,\epsilon$. Each entry of W has the variance
            `prior_variance`, and the noise of each label has the variance `noise_variance`.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> best = pl.linear_optimum(task, 40)
    >>> print(f"{best.mse:.4f}")
    0.2398
    """

    covariance: Float[np.ndarray, "d d"]
    query_covariance: Float[np.ndarray, "d d"]
    noise_variance: float
    prior_variance: float
    query_covariates: AbstractMeasure | None
    label_dim: int = eqx.field(static=True)

    @numpy_only("Build the task outside.")
    def __init__(
        self,
        covariance: ArrayLike,
        *,
        noise_variance: Number = 0.0,
        prior_variance: Number = 1.0,
        query_covariance: ArrayLike | None = None,
        query_covariates: AbstractMeasure | None = None,
        label_dim: int = 1,
    ):
        self.covariance = _covariance("covariance", covariance)
        self.query_covariance = self.covariance
        self.query_covariates = None
        if query_covariates is not None:
            self.query_covariates = require_measure("query_covariates", query_covariates)
            self.query_covariance = _second_moment(query_covariates, self.covariance.shape[0])
            if query_covariance is not None:
                _require_second_moment(query_covariance, self.query_covariance)
        elif query_covariance is not None:
            self.query_covariance = _covariance("query_covariance", query_covariance)
            if self.query_covariance.shape != self.covariance.shape:
                raise ArgumentError(
                    "query_covariance",
                    f"must have shape {self.covariance.shape} (that of "
                    f"`covariance`), got {self.query_covariance.shape}.",
                )
        self.noise_variance, self.prior_variance = _variances(noise_variance, prior_variance)
        self.label_dim = require_whole("label_dim", label_dim, 1)

    @property
    def token_dim(self) -> int:
        """The dimension of a token: covariates and labels."""
        return self.covariance.shape[0] + self.label_dim

    @property
    def rotation_dim(self) -> int:
        """Always 0, because the covariance is fixed."""
        return 0

    def covariances(
        self,
        normals: Float[np.ndarray, "points rotation_dim"],  # noqa: ARG002
    ) -> tuple[Float[np.ndarray, "d d"], Float[np.ndarray, "d d"]]:
        r"""Return $\Sigma$ and $\Sigma_q$."""
        return self.covariance, self.query_covariance

    def _with_noise(
        self,
        *,
        key: PRNGKeyArray,  # noqa: ARG002
    ) -> tuple[AbstractMeasure, AbstractMeasure]:
        noise, labels = self.noise_variance, self.label_dim
        prompt = joint_law(self.covariance, noise, labels)
        if self.query_covariates is None:
            return prompt, joint_law(self.query_covariance, noise, labels)
        added = Gaussian(np.zeros(labels), noise * np.eye(labels))
        return prompt, Product([self.query_covariates, added])


class RotatedRegression(AbstractGaussianRegression):
    r"""In-context linear regression with a random covariance $\Sigma=O\Lambda O^\top$.

    Each prompt has a new uniform rotation O, so the parameters of an attention cannot contain
    $\Sigma^{-1}$. If the positive eigenvalues differ, one layer therefore does not solve the
    regression even over an infinite prompt, and more layers reduce the risk.

    Args:
        spectrum: the eigenvalues $\Lambda$ of the covariance, not negative and not all zero.
        noise_variance: $s^2$, the variance of the label noise.
        prior_variance: $\tau^2$, the variance of each entry of $w$.

    >>> import math, promptlimit as pl
    >>> task = pl.RotatedRegression([1.0, 0.5, 0.25])
    >>> print([round(pl.linear_optimum(task, math.inf, depth=K).mse, 6) for K in (1, 2, 3)])
    [0.239726, 0.027356, 0.0]
    """

    spectrum: Float[np.ndarray, " d"]
    noise_variance: float = eqx.field(static=True)
    prior_variance: float = eqx.field(static=True)

    @numpy_only("Build the task outside.")
    def __init__(
        self,
        spectrum: ArrayLike,
        *,
        noise_variance: Number = 0.0,
        prior_variance: Number = 1.0,
    ):
        with jax.enable_x64(True):
            eigenvalues = np.asarray(float_array("spectrum", spectrum, rank=1), np.float64)
        if not ((eigenvalues >= 0).all() and eigenvalues.any()):
            raise ArgumentError(
                "spectrum",
                "must hold eigenvalues that are not negative, one of them positive, "
                f"got {eigenvalues.tolist()}. They are variances of the covariates.",
            )
        self.spectrum = eigenvalues
        self.noise_variance, self.prior_variance = _variances(noise_variance, prior_variance)

    @property
    def token_dim(self) -> int:
        """The dimension of a token: covariates and a label."""
        return self.spectrum.size + 1

    @property
    def label_dim(self) -> int:  # ty: ignore[incompatible-property-override]
        """The number of labels per token, 1."""
        return 1

    @property
    def rotation_dim(self) -> int:
        """$d^2$: a rotation is the orthogonal factor of a matrix of standard normals."""
        return self.spectrum.size**2

    def covariances(
        self, normals: Float[np.ndarray, "points rotation_dim"]
    ) -> tuple[Float[np.ndarray, "points d d"], Float[np.ndarray, "points d d"]]:
        r"""Return $\Sigma=O\Lambda O^\top$ twice, for rotations O computed from the normals."""
        rotations = haar_rotations(normals, self.spectrum.size)
        rotated = (rotations * self.spectrum) @ rotations.mT
        return rotated, rotated

    def _with_noise(self, *, key: PRNGKeyArray) -> tuple[Gaussian, Gaussian]:
        scales = to_device(self.spectrum, dtype=jnp.result_type(float))
        rotation = jax.random.orthogonal(key, scales.size, dtype=scales.dtype)
        law = joint_law((rotation * scales[None]) @ rotation.T, self.noise_variance)
        return law, law


class CovariateRegression(AbstractRegression):
    r"""In-context linear regression with covariates from any measure.

    Unless the covariates are Gaussian, softmax and linear attention have different limits. Risks
    are exact for softmax heads whose scores do not depend on labels, and simulated for other
    attentions.

    Args:
        covariates: the law of the covariates $x$.
        noise_variance: $s^2$, the variance of the label noise.
        prior_variance: $\tau^2$, the variance of each entry of the hidden weights $w$.
        query_covariates: the law of the covariates $x_q$ of the query; that of $x$ when None.

    >>> import numpy as np, promptlimit as pl
    >>> task = pl.CovariateRegression(
    ...     pl.Rademacher([1.0, 1.0]), noise_variance=0.2, prior_variance=0.5
    ... )
    >>> head = pl.SoftmaxAttention(np.diag([0.8, 0.8, 0.0]), np.diag([0.0, 0.0, 1.1]))
    >>> found = pl.risk(head, task, [5, 1000])
    >>> print(found.kind, found.mse.round(6))
    exact [0.738678 0.274031]
    """

    covariates: AbstractMeasure
    query_covariates: AbstractMeasure
    noise_variance: float = eqx.field(static=True)
    prior_variance: float = eqx.field(static=True)

    def __init__(
        self,
        covariates: AbstractMeasure,
        *,
        noise_variance: Number = 0.0,
        prior_variance: Number = 1.0,
        query_covariates: AbstractMeasure | None = None,
    ):
        self.covariates = require_measure("covariates", covariates)
        self.query_covariates = self.covariates
        if query_covariates is not None:
            self.query_covariates = require_measure("query_covariates", query_covariates)
        if self.query_covariates.dim != self.covariates.dim:
            raise ArgumentError(
                "query_covariates",
                f"must have dimension {self.covariates.dim} (that of "
                f"`covariates`), got {self.query_covariates.dim}.",
            )
        self.noise_variance, self.prior_variance = _variances(noise_variance, prior_variance)

    @property
    def token_dim(self) -> int:
        """The dimension of a token: covariates and a label."""
        return self.covariates.dim + 1

    @property
    def label_dim(self) -> int:  # ty: ignore[incompatible-property-override]
        """The number of labels per token, 1."""
        return 1

    def _with_noise(self, *, key: PRNGKeyArray) -> tuple[Product, Product]:  # noqa: ARG002
        noise = Gaussian([0.0], [[self.noise_variance]])
        return Product([self.covariates, noise]), Product([self.query_covariates, noise])


def joint_law(
    covariance: np.ndarray | Array, noise_variance: float, label_dim: int = 1
) -> Gaussian:
    r"""Return the law of $(x, s\,\epsilon)$, Gaussian covariates and the noise of the labels."""
    # The dtype is explicit because jax may reuse a NumPy array in the precision of an earlier call.
    noise = np.pad(np.full(label_dim, noise_variance), (covariance.shape[0], 0))
    if isinstance(covariance, np.ndarray):
        block = np.pad(covariance, (0, label_dim)) + np.diag(noise)
    else:
        matrix = covariance.astype(jnp.result_type(float))
        block = jnp.pad(matrix, (0, label_dim)) + jnp.diag(to_device(noise, matrix.dtype))
    return Gaussian(np.zeros(block.shape[0]), block)


def _covariance(name: str, value: ArrayLike) -> np.ndarray:
    """Return a covariance as a symmetric NumPy array in double precision."""
    with jax.enable_x64(True):
        array = float_array(name, value, rank=2)
        require_shape(name, array, (array.shape[0],) * 2, "a covariance is square")
        if array.size == 0:
            raise ArgumentError(name, "must have at least one row, got an empty matrix.")
        require_covariance(name, array)
    host = np.asarray(array, dtype=np.float64)
    return (host + host.T) / 2


def _second_moment(law: AbstractMeasure, dim: int) -> np.ndarray:
    r"""Return the second moment $E\,x_qx_q^\top$ of the law of $x_q$, or raise an error."""
    if law.dim != dim:
        raise ArgumentError(
            "query_covariates",
            f"must have dimension {dim} (that of `covariance`), got {law.dim}.",
        )
    with jax.enable_x64(True):
        double = in_double(law)
        mean = np.asarray(double.mean, np.float64)
        moment = np.asarray(double.cov, np.float64) + np.outer(mean, mean)
    return (moment + moment.T) / 2


def _require_second_moment(given: ArrayLike, moment: np.ndarray) -> None:
    """Raise an error if `given` differs from the second moment of the law of queries."""
    matrix = _covariance("query_covariance", given)
    if matrix.shape != moment.shape or not np.allclose(matrix, moment, rtol=1e-9, atol=1e-12):
        raise ArgumentError(
            "query_covariance",
            "must be left out, or be the second moment of `query_covariates`, got another matrix.",
        )


def _variances(noise_variance: Number, prior_variance: Number) -> tuple[float, float]:
    noise = real_number("noise_variance", noise_variance)
    prior = real_number("prior_variance", prior_variance)
    if not 0.0 <= noise < math.inf:
        raise ArgumentError(
            "noise_variance",
            f"must be finite and not negative, got {noise_variance}. "
            "It is the variance of a label given its covariates.",
        )
    if not 0.0 < prior < math.inf:
        raise ArgumentError(
            "prior_variance",
            f"must be finite and positive, got {prior_variance}. "
            "It is the variance of an entry of the weights.",
        )
    return noise, prior


def require_regression(task: object) -> None:
    """Raise an error unless the task is a `LinearRegression`."""
    if not isinstance(task, LinearRegression):
        raise ArgumentError(
            "task",
            f"must be a LinearRegression, got {type(task).__name__}. "
            "`risk` and `risk_gradient` simulate other tasks if a key is given.",
        )


def other_queries(problem: Any) -> str | None:
    """Return the reason why a rule for Gaussian queries does not apply, or None."""
    law = problem.task.query_covariates
    return None if law is None else f"queries are {type(law).__name__}, not Gaussian"


def several_labels(problem: Any) -> str | None:
    """Return the reason why a rule for one label does not apply, or None."""
    count = problem.task.label_dim
    return f"labels have {count} coordinates" if count > 1 else None
