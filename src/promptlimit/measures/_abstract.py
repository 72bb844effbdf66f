"""The base class of measures: a log-Laplace transform, its derivatives, and samples."""

import abc
import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, require_whole
from promptlimit._inputs import (
    cast,
    float_array,
    is_traced,
    promoted,
    require_key,
    require_shape,
    to_device,
)
from promptlimit.errors import ArgumentError, OutsideDomainError
from promptlimit.measures._compiled import compiled
from promptlimit.measures._gaussian_parts import GaussianParts
from promptlimit.measures._variance_proxies import VarianceProxy

_NEAR = 1e-12
"""The size of the tilts that test whether a transform is finite near zero."""

_BEYOND = 1e-5
"""The relative step outwards that tests whether a tilt is on the boundary of the domain."""


class AbstractRayTransform(abc.ABC):
    r"""A closed form of $\Lambda(ct)$ for one tilt $t$ and complex multiples $c$."""

    @abc.abstractmethod
    def log_laplace(self, multiples: NDArray[Any]) -> NDArray[Any]:
        r"""Return $\Lambda(ct)$ for multiples $c$, [n]; NaN where the integral is not finite."""

    @abc.abstractmethod
    def derivatives(
        self, value: np.ndarray, multiples: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        r"""Return $V\nabla\Lambda(ct)$, [n, e], and $V\nabla^2\Lambda(ct)V'$, [n, e, e].

        Args:
            value: $V$, [e, d].
            multiples: $c$, [n].
        """


class AbstractMeasure(eqx.Module):
    r"""A probability measure $\mu$ on $\mathbb R^d$: a prompt, finite or infinite.

    Attention depends on a prompt only through the log-Laplace transform
    $\Lambda_\mu(t) = \log\int e^{\langle t,z\rangle}\,d\mu(z)$. The gradient and Hessian of
    $\Lambda_\mu$ are the mean and covariance of the tilted law $\propto e^{\langle t,z\rangle}\mu$.

    A **user-defined measure** implements `dim`, `log_laplace` and `sample`. Leave out `log_laplace`
    if the transform is infinite at every nonzero tilt, as for heavy tails. For example, tokens that
    are one-hot vectors of a vocabulary, drawn with probabilities $\pi$, have the transform
    $\Lambda(t) = \log\sum_i \pi_i e^{t_i}$:

    >>> import jax, jax.numpy as jnp, promptlimit as pl
    >>> class OneHot(pl.AbstractMeasure):
    ...     probabilities: jax.Array
    ...
    ...     @property
    ...     def dim(self):
    ...         return self.probabilities.shape[0]
    ...
    ...     def log_laplace(self, tilt):
    ...         return jax.nn.logsumexp(tilt, b=self.probabilities)
    ...
    ...     def sample(self, length, *, key):
    ...         words = jax.random.choice(key, self.dim, (length,), p=self.probabilities)
    ...         return jax.nn.one_hot(words, self.dim)

    The class works in mixtures, products and affine images, under `jit`, `vmap` and `grad`, and as
    the prompt of any attention.

    >>> prompt = OneHot(jnp.array([0.5, 0.25, 0.25]))
    >>> print(prompt.mean)
    [0.5  0.25 0.25]
    >>> attention = pl.SoftmaxAttention(key_query=jnp.eye(3), value=jnp.eye(3))
    >>> print(attention(prompt, jnp.log(jnp.array([1.0, 2.0, 4.0]))).round(3))
    [0.25 0.25 0.5 ]
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if inspect.isfunction(cls.__dict__.get("sample")):
            cls.sample = _with_checked_arguments(cls.sample)  # ty: ignore[invalid-assignment]  # same signature

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension $d$ of a token."""

    def log_laplace(self, tilt: Inexact[Array, " d"]) -> Inexact[Array, ""]:
        r"""Return $\Lambda_\mu(t) = \log\int e^{\langle t,z\rangle}\,d\mu(z)$.

        The default is infinite at every nonzero tilt, as for Student's t. Softmax attention has no
        limit over such tokens, and finite prompts are simulated.

        At a complex tilt, an implementation must return the analytic continuation, up to multiples
        of $2\pi i$; `jax.grad` is applied with `holomorphic=True`. Where the integral is not
        finite, an implementation must return NaN or infinity, even if its formula has a finite
        value.
        """
        size = jnp.sqrt(jnp.sum(tilt * tilt))  # its derivatives at zero are NaN, as intended
        return jnp.where(size == 0, size, jnp.inf)

    @abc.abstractmethod
    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[Array, "length d"]:
        """Return `length` independent tokens, one per row."""

    def tilted_mean(self, tilt: Float[Array, " d"]) -> Float[Array, " d"]:
        r"""Return $\nabla\Lambda_\mu(t)$, the mean of the law $\propto e^{\langle t,z\rangle}\mu$.

        Raises `OutsideDomainError` if $\Lambda_\mu(t)$ or the mean is not finite. In code that jax
        traces, no error is raised, and the result is not finite.
        """
        return self._tilted("limit (the mean of the tilted law)", _gradient, self._as_tilt(tilt))

    def tilted_cov(self, tilt: Float[Array, " d"]) -> Float[Array, "d d"]:
        r"""Return $\nabla^2\Lambda_\mu(t)$, the covariance of the tilted law; see `tilted_mean`."""
        return self._tilted("covariance of the tilted law", _hessian, self._as_tilt(tilt))

    @property
    def mean(self) -> Float[Array, " d"]:
        r"""The mean $\nabla\Lambda_\mu(0)$ of a token."""
        return self.tilted_mean(self._origin)

    @property
    def cov(self) -> Float[Array, "d d"]:
        r"""The covariance $\nabla^2\Lambda_\mu(0)$ of a token."""
        return self.tilted_cov(self._origin)

    def gaussian_parts(self) -> GaussianParts | None:
        """Return the Gaussians and atoms of which this measure is a mixture, or None.

        With Gaussian parts, averages over Gaussian queries, gradients with respect to score
        matrices and moments of linear attention have closed forms.
        """
        return None

    def on_ray(self, tilt: np.ndarray) -> AbstractRayTransform | None:  # noqa: ARG002
        r"""Return a closed form of $\Lambda_\mu(ct)$ for a tilt $t$ and multiples $c$, or None.

        If the result is None, jax evaluates and differentiates `log_laplace`, which takes longer.
        """
        return None

    def variance_proxy(self) -> VarianceProxy | None:
        r"""Return $P$ with $\log Ee^{\langle a,z-m\rangle}\le a^\top Pa/2$ for all $a$, or None.

        Here $m$ is the mean of a token. The proved bounds require this method.
        """
        return None

    @property
    def finite_everywhere(self) -> bool:
        r"""Whether $\Lambda_\mu(t)$ is finite at every tilt, as for bounded or Gaussian tokens.

        The default is False. The transform is then checked at every tilt.
        """
        return False

    def _tilted(
        self,
        name: str,
        derivative: Callable[["AbstractMeasure", Array], Array],
        tilt: Float[Array, " d"],
    ) -> Array:
        moments = derivative(self, tilt)
        if self.finite_everywhere or is_traced(moments):
            return moments
        if is_infinite(moments) or not np.asarray(tilt).any():
            require_in_domain(self, tilt)
            require_moments(self)
            _require_inside(self, tilt, name, np.asarray(moments))
        return moments

    @property
    def _origin(self) -> Float[Array, " d"]:
        """The zero tilt, in the dtype of the measure's parameters."""
        dtypes = self._dtypes() or [jnp.result_type(float)]
        return to_device(np.zeros(self.dim), promoted(*dtypes))

    def _dtypes(self) -> list[jnp.dtype]:
        leaves = jax.tree.leaves(eqx.filter(self, eqx.is_inexact_array))
        return [leaf.dtype for leaf in leaves]

    def _as_tilt(self, tilt: object) -> Float[Array, " d"]:
        array = float_array("tilt", tilt, rank=1)
        require_shape("tilt", array, (self.dim,), "the measure's dimension")
        return cast(array, promoted(array.dtype, *self._dtypes()))


def _with_checked_arguments(sample: Callable[..., Array]) -> Callable[..., Array]:
    """Return a method `sample` that checks its arguments first."""
    signature = inspect.signature(sample)
    name = list(signature.parameters)[1]

    @wraps(sample)
    def checked(*values: object, **named: object) -> Array:
        bound = signature.bind(*values, **named)
        bound.arguments[name] = require_whole("length", bound.arguments[name], 0)
        if "key" in bound.arguments:
            require_key(bound.arguments["key"])
        return sample(*bound.args, **bound.kwargs)

    return checked


def _value(measure: AbstractMeasure, tilt: Array) -> Array:
    """Return the transform; raise an error if `log_laplace` uses NumPy or returns no number."""
    name = type(measure).__name__
    try:
        transform = measure.log_laplace(tilt)
    except jax.errors.TracerArrayConversionError as error:
        raise ArgumentError(
            "log_laplace",
            f"of {name}, or of a law inside it, must use functions of jax.numpy, got one of NumPy, "
            "which jax cannot differentiate. Replace it by the function of jax.numpy with the same "
            "name.",
        ) from error
    if jnp.shape(transform) != ():
        raise ArgumentError(
            "log_laplace",
            f"of {name} must return a number, got shape {jnp.shape(transform)}. Sum over the "
            "coordinates.",
        )
    return transform


@compiled
def _gradient(measure: AbstractMeasure, tilt: Array) -> Array:
    transform, slope = jax.value_and_grad(partial(_value, measure))(tilt)
    return slope if measure.finite_everywhere else slope * _one_or_nan(transform)


@compiled
def _hessian(measure: AbstractMeasure, tilt: Array) -> Array:
    curvature = jax.hessian(partial(_value, measure))(tilt)
    if measure.finite_everywhere:
        return curvature
    return curvature * _one_or_nan(_value(measure, tilt))


@compiled
def _transform(measure: AbstractMeasure, tilt: Array) -> Array:
    return _value(measure, tilt)


def _transform_at(measure: AbstractMeasure, tilt: ArrayLike) -> Array:
    """Return the transform at a tilt, in double precision if the measure has a float64 array."""
    double = jnp.dtype(jnp.float64) in measure._dtypes()
    with jax.enable_x64(double or jax.config.read("jax_enable_x64")):
        return _transform(measure, measure._as_tilt(tilt))


def _one_or_nan(transform: Array) -> Array:
    """Return 1 if the transform is finite, otherwise NaN.

    Derivatives are multiplied by this factor, because their formulas may have finite values where
    the transform is infinite.
    """
    return jnp.where(jnp.isfinite(transform), jnp.ones_like(transform), jnp.nan)


def is_infinite(array: Array) -> bool:
    """Return whether an entry is infinite or NaN; False if jax traces the array."""
    return not is_traced(array) and not np.isfinite(np.asarray(array)).all()


def require_in_domain(measure: AbstractMeasure, tilt: ArrayLike) -> None:
    """Raise an error if the log-Laplace transform is infinite at a tilt, unless jax is tracing."""
    if measure.finite_everywhere:
        return
    transform = _transform_at(measure, tilt)
    if not is_traced(transform) and not np.isfinite(np.asarray(transform)).all():
        raise outside_domain(measure, tilt, float(transform))


def _require_inside(
    measure: AbstractMeasure, tilt: ArrayLike, name: str, moments: np.ndarray
) -> None:
    """Raise an error if moments are not finite because the tilt is on the domain's boundary."""
    if np.isfinite(moments).all():
        return
    beyond = _transform_at(measure, (1.0 + _BEYOND) * np.asarray(tilt))
    if np.isinf(moments).any() or not np.isfinite(np.asarray(beyond)):
        raise OutsideDomainError(
            "tilt",
            "must lie inside the domain of the log-Laplace transform of "
            f"{type(measure).__name__} tokens, got [{_entries(tilt)}] on its boundary, where the "
            f"{name} is infinite. Scale the query or the key-query matrix down.",
        )


def require_moments(measure: AbstractMeasure) -> None:
    """Raise an error if the transform is infinite near zero: moments are its derivatives there."""
    if measure.finite_everywhere:
        return
    point = np.full(measure.dim, _NEAR)
    if not np.isfinite([np.asarray(_transform_at(measure, t)) for t in (point, -point)]).all():
        raise OutsideDomainError(
            "measure",
            "must have a log-Laplace transform around zero for its moments, got "
            f"{type(measure).__name__} tokens, which have none. Override `mean` and `cov`, or "
            "simulate finite prompts: prompt_moments(..., kind='estimate', key=key).",
        )


def has_transform(measure: AbstractMeasure) -> bool:
    """Return whether the log-Laplace transform is finite at some nonzero tilt."""
    if measure.finite_everywhere:
        return True
    point = np.full(measure.dim, _NEAR)
    return any(bool(np.isfinite(_transform_at(measure, t))) for t in (point, -point))


def outside_domain(
    measure: AbstractMeasure, tilt: ArrayLike, transform: float
) -> OutsideDomainError:
    """Return the error for a tilt at which the transform is not finite."""
    point, words = np.asarray(tilt), _entries(tilt)
    shrunk = _NEAR * point / max(float(np.abs(point).max()), _NEAR)
    if not np.isfinite(np.asarray(_transform_at(measure, shrunk))):
        return OutsideDomainError(
            "tilt",
            f"must lie where the log-Laplace transform of {type(measure).__name__} tokens "
            f"is finite, got [{words}], and it is finite at no smaller multiple either: no limit "
            "exists over these tokens. Simulate finite prompts: "
            "prompt_moments(..., kind='estimate', key=key).",
        )
    return OutsideDomainError(
        "tilt",
        f"must lie where the log-Laplace transform of {type(measure).__name__} tokens is "
        f"finite, got [{words}], where it is {transform:g}. Scale the query or the key-query "
        "matrix down.",
    )


def _entries(tilt: ArrayLike) -> str:
    entries = [f"{entry:.4g}" for entry in np.asarray(tilt)]
    return ", ".join(entries if len(entries) <= 6 else [*entries[:3], "...", entries[-1]])
