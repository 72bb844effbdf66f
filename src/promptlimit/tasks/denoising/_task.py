"""Denoising tasks: tokens from a Gaussian mixture with noise, and a noisy query.

Equation numbers are those of Gabet, Boursier and Boyer.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit._arrays import ArrayLike, Number, numpy_only, real_number
from promptlimit._inputs import float_array, is_traced, require_shape, require_weights, to_device
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import Affine, Gaussian, Mixture, full_precision
from promptlimit.tasks._abstract import AbstractTask

_LARGEST = 1e60
"""The largest mean or variance: squares and products of larger numbers overflow."""


class AbstractDenoising(AbstractTask):
    r"""The base class of tasks to predict the clean token X of a noisy token $Z=X+N(0,xI)$.

    The law of X is $\sum_k\pi_kN(m_k,gI)$. The variance of Z within a component is $s=g+x$. The
    parameters are stored in double precision.
    """

    means: Float[np.ndarray, "components d"]
    weights: Float[np.ndarray, " components"]
    within_variance: float = eqx.field(static=True)
    noise_variance: float = eqx.field(static=True)

    @numpy_only("Build the task outside.")
    def __init__(
        self,
        means: ArrayLike,
        weights: ArrayLike,
        *,
        within_variance: Number,
        noise_variance: Number,
    ):
        self.means, self.weights = _mixture_arrays(means, weights)
        self.within_variance = _variance("within_variance", within_variance)
        self.noise_variance = _variance("noise_variance", noise_variance)
        if self.query_variance == 0.0:
            raise ArgumentError(
                "noise_variance",
                "must be positive where `within_variance` is 0, got 0.0. With both zero, "
                "queries would be clean.",
            )

    @property
    def token_dim(self) -> int:
        """The dimension $d$ of a token."""
        return self.means.shape[1]

    @property
    def query_dim(self) -> int:
        """The dimension of a query, $d$."""
        return self.token_dim

    @property
    def query_variance(self) -> float:
        r"""The variance $s=g+x$ of a query within its component of the mixture."""
        return self.within_variance + self.noise_variance

    @property
    def token_variance(self) -> float:
        r"""The variance of a token of the prompt within its component: $s$."""
        return self.query_variance

    @property
    def token_law(self) -> Mixture:
        """The law of a token of the prompt."""
        return self._mixture(self.token_variance)

    @property
    def query_law(self) -> Mixture:
        """The law of the query $Z$."""
        return self._mixture(self.query_variance)

    @property
    def pair_law(self) -> Mixture:
        r"""The law of $(Z, X)$ on $\mathbb R^{2d}$: a query and its clean token."""
        g, s = self.within_variance, self.query_variance
        covariance = np.kron([[s, g], [g, g]], np.eye(self.token_dim))
        twice = jnp.tile if is_traced(self.means) else np.tile
        return _of_gaussians(self.weights, twice(self.means, (1, 2)), covariance)

    def query_of(self, token: Float[Array, " pair"]) -> Float[Array, " d"]:
        """Return the noisy token $Z$ of a pair $(Z, X)$."""
        return token[: self.token_dim]

    def loss(self, output: Float[Array, " d"], token: Float[Array, " pair"]) -> Float[Array, ""]:
        r"""Return $\frac12|\text{output}-X|^2$, with X the clean token of the pair $(Z, X)$."""
        return 0.5 * jnp.sum((output - token[self.token_dim :]) ** 2)

    def gates(self, queries: Any) -> Any:
        r"""Return the posterior probabilities of the components at queries [n, d] (equation 11).

        They are $\beta_k(z)=\mathrm{softmax}_k(\log\pi_k+\langle m_k,z\rangle/s-|m_k|^2/2s)$. The
        result, [n, components], has the array type of `queries`, NumPy or jax.
        """
        means, weights, xp = self._arrays_like(queries)
        scores = queries @ means.T - 0.5 * (means**2).sum(axis=1)[None]
        return softmax_rows(xp.log(weights)[None] + scores / self.query_variance)

    def bayes_predictions(self, queries: Any) -> Any:
        r"""Return $f^*(z)=E[X\mid Z=z]=\frac gsz+\frac xs\sum_k\beta_k(z)m_k$ at queries [n, d].

        It is the best prediction from a query if the means are known (equation 10). The result has
        the array type of `queries`, NumPy or jax.
        """
        g, x, s = self.within_variance, self.noise_variance, self.query_variance
        means, _, _ = self._arrays_like(queries)
        return (g / s) * queries + (x / s) * self.gates(queries) @ means

    def _arrays_like(self, queries: Any) -> tuple[Any, Any, Any]:
        """Return means and weights in the array type of `queries`, and `numpy` or `jax.numpy`."""
        if isinstance(queries, np.ndarray):
            return self.means, self.weights, np
        dtype = queries.dtype
        return to_device(self.means, dtype), to_device(self.weights, dtype), jnp

    def _mixture(self, variance: float) -> Mixture:
        return _of_gaussians(self.weights, self.means, variance * np.eye(self.token_dim))


class Denoising(AbstractDenoising):
    r"""Denoising of a token of one known mixture (Gabet, Boursier and Boyer, section 4).

    A clean token is $X\sim\sum_k\pi_kN(m_k,gI)$, and a noisy token is $Z=X+N(0,xI)$. By default the
    prompt consists of noisy tokens. The query Z is another noisy token. The loss of a prediction
    $f(Z)$ is $\frac12|f(Z)-X|^2$. All prompts have the same law, so the Bayes risk does not depend
    on the length.

    Args:
        means: the means $m_k$, one per row, shape `[components, d]`; at least two rows.
        weights: the positive weights $\pi_k$ of the components, with sum one.
        within_variance: $g=\gamma^2$, the variance of a clean token within its component; may be 0.
        noise_variance: $x=\xi^2$, the variance of the added noise; may be 0 if g is not.
        clean_prompt: whether the tokens of the prompt are clean. The query is always noisy.

    >>> import math, promptlimit as pl
    >>> task = pl.Denoising([[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4)
    >>> print(f"{pl.bayes_risk(task, math.inf).mse:.6f}", task.bayes([1.5, 1.5]))
    2.990055 [1.5 1.5]
    """

    clean_prompt: bool = eqx.field(static=True)

    def __init__(
        self,
        means: ArrayLike,
        weights: ArrayLike,
        *,
        within_variance: Number,
        noise_variance: Number,
        clean_prompt: bool = False,
    ):
        super().__init__(
            means, weights, within_variance=within_variance, noise_variance=noise_variance
        )
        self.clean_prompt = bool(clean_prompt)

    @property
    def token_variance(self) -> float:
        r"""The variance of a token of the prompt within its component: $s$, or $g$ if clean."""
        return self.within_variance if self.clean_prompt else self.query_variance

    @full_precision
    def bayes(self, query: ArrayLike) -> Float[Array, " d"]:
        r"""Return the best prediction $f^*(z)=E[X\mid Z=z]$ at a query z of shape `[d]`."""
        z = float_array("query", query, rank=1)
        require_shape("query", z, (self.token_dim,), "that of a token")
        return self.bayes_predictions(z[None])[0]

    def draw(self, *, key: PRNGKeyArray) -> tuple[Mixture, Mixture]:  # noqa: ARG002  # one law for all
        """Return the law of a token, and the joint law of a query and its clean token."""
        return self.token_law, self.pair_law


def _of_gaussians(
    weights: np.ndarray | Array, means: np.ndarray | Array, covariance: np.ndarray
) -> Mixture:
    return Mixture(weights, [Gaussian(mean, covariance) for mean in means])


def softmax_rows(logits: Any) -> Any:
    """Return the softmax of each row, in NumPy or jax."""
    shares = logits.__array_namespace__().exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


class InContextDenoising(AbstractDenoising):
    r"""Denoising with a mixture that must be inferred from the prompt.

    This is the task of section 4.4 of Gabet, Boursier and Boyer. The means of each prompt are
    $Qm_k$ with a new uniform random orthogonal matrix Q, so the parameters of an attention cannot
    contain the means of the prompt.

    Args:
        means: the means $m_k$ before the rotation, one per row, shape `[components, d]`.
        weights: the positive weights $\pi_k$ of the components, with sum one.
        within_variance: $g=\gamma^2$, the variance of a clean token within its component.
        noise_variance: $x=\xi^2$, the variance of the added noise.

    >>> import jax, promptlimit as pl
    >>> task = pl.InContextDenoising(
    ...     [[3, 0], [0, 3]], [0.5, 0.5], within_variance=1, noise_variance=4
    ... )
    >>> prompt, asked = task.draw(key=jax.random.key(0))
    >>> print(prompt.dim, asked.dim)
    2 4
    """

    # Without this method, type checkers derive a constructor from the fields.
    def __init__(
        self,
        means: ArrayLike,
        weights: ArrayLike,
        *,
        within_variance: Number,
        noise_variance: Number,
    ):
        super().__init__(
            means, weights, within_variance=within_variance, noise_variance=noise_variance
        )

    def draw(self, *, key: PRNGKeyArray) -> tuple[Affine, Affine]:
        """Return the laws of a token and of a pair (query, clean token), rotated by the same Q."""
        dtype = jnp.result_type(float)
        turn = jax.random.orthogonal(key, self.token_dim, dtype=dtype)
        both = jnp.kron(jnp.eye(2, dtype=dtype), turn)
        return Affine(self.token_law, turn), Affine(self.pair_law, both)


def require_denoising(task: object) -> AbstractDenoising:
    """Return the task, or raise an error if it is not a denoising task."""
    if not isinstance(task, AbstractDenoising):
        raise ArgumentError("task", f"must be a denoising task, got {type(task).__name__}.")
    return task


def require_outputs(attention: AbstractAttention, dim: int) -> None:
    """Raise an error if the outputs of the attention do not have the dimension of a token."""
    if attention.output_dim != dim:
        raise ArgumentError(
            "attention",
            f"must have outputs of dimension {dim} (that of a clean token), got "
            f"{attention.output_dim}.",
        )


def _mixture_arrays(means: ArrayLike, weights: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return means and weights in double precision, or raise an error."""
    with jax.enable_x64(True):
        centres = float_array("means", means, rank=2)
        if centres.shape[0] < 2:
            raise ArgumentError(
                "means",
                f"must have at least two rows, got {centres.shape[0]}. With one component "
                "the best denoiser is affine.",
            )
        if centres.shape[1] == 0:
            raise ArgumentError("means", "must have at least one column, got none.")
        shares = float_array("weights", weights, rank=1)
        require_shape("weights", shares, centres.shape[:1], "one weight per row of `means`")
        require_weights("weights", shares)
    if (largest := float(np.abs(np.asarray(centres)).max())) > _LARGEST:
        raise ArgumentError(
            "means",
            f"must be at most {_LARGEST:g} in size, got {largest:g}. Measure tokens in "
            "other units.",
        )
    if (zero := np.flatnonzero(np.asarray(shares) == 0.0)).size:
        raise ArgumentError(
            "weights", f"must be positive, got 0 at index {zero[0]}. Leave that component out."
        )
    return np.asarray(centres, np.float64), np.asarray(shares, np.float64)


def _variance(name: str, value: Number) -> float:
    variance = real_number(name, value)
    if not 0.0 <= variance < math.inf:
        raise ArgumentError(name, f"must be finite and not negative, got {value}.")
    if variance != 0.0 and not 1.0 / _LARGEST <= variance <= _LARGEST:
        raise ArgumentError(
            name,
            f"must be 0, or between {1.0 / _LARGEST:g} and {_LARGEST:g}, got {value}. "
            "Measure tokens in other units.",
        )
    return variance
