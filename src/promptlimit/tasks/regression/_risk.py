"""The exact risk of heads on Gaussian regression: as a function, for values, and for flows."""

import dataclasses
import math
import os
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import Number, checked_lengths, require_whole
from promptlimit._errors import ArgumentError
from promptlimit._inputs import require_choice, to_device
from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.tasks._abstract import (
    SHARPNESS_RANGES,
    AbstractExactRisk,
    AbstractObjective,
    Estimate,
    MatrixRisk,
    Replicates,
    merged,
)
from promptlimit.tasks.regression._points import node_sets, require_points
from promptlimit.tasks.regression._polynomials import linear_heads_risk, linear_risk
from promptlimit.tasks.regression._quadrature import (
    first_range,
    replicate_risks,
    require_accuracy,
    softmax_risk,
)
from promptlimit.tasks.regression._radial import is_radial, radial_risk
from promptlimit.tasks.regression._softmax_risk import (
    Regressor,
    SoftmaxRisk,
    of_any_length,
    risk_statistics,
    tabulate_risks,
    with_arrays,
)
from promptlimit.tasks.regression._stack_risk import stack_risk
from promptlimit.tasks.regression._task import LinearRegression, require_regression


class LinearRisk(eqx.Module):
    r"""The risk $R_L(U, v)$ of linear attention, of softmax too at $L=\infty$: a polynomial.

    Attributes:
        task: the regression.
        length: $L$, the number of tokens of a prompt.
    """

    task: LinearRegression
    length: float | Float[Array, ""]

    def __call__(
        self, key_query: Float[Array, "tokens tokens"], value_row: Float[Array, " tokens"]
    ) -> Float[Array, ""]:
        r"""Return $R_L$ at $U$ and the last row of $V$."""
        return linear_risk(self.task, self.length, key_query, value_row)


def risk_function(
    task: LinearRegression,
    length: Number,
    *,
    kernel: str = "softmax",
    points: int = 4096,
    replicate: int = 0,
    max_sharpness: Number = 16.0,
    folder: str | os.PathLike[str] | None = None,
) -> SoftmaxRisk | LinearRisk:
    r"""Return $R_L$ as a function of $(U, v)$, v the last row of V, for `jit` and `grad`.

    Linear attention, and either attention at $L=\infty$, have a polynomial for a risk, without
    error. Softmax at finite length averages over fixed points $(w, x_q)$, closed under
    $w\to-w$; its cost does not depend on L. Where a point's sharpness exceeds `max_sharpness` the
    risk is NaN: ask `.sharpness(U)` and take a larger range, up to 40.

    Args:
        task: the regression.
        length: $L$, a whole number from 1 to 1e30, or `math.inf`.
        kernel: "softmax" or "linear".
        points: a power of two.
        replicate: which of the independent point sets; the spread over them is the error.
        max_sharpness: the range of the weight statistics, which take seconds to tabulate once.
        folder: where to keep those tables between processes.

    >>> import jax, jax.numpy as jnp, numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2), noise_variance=0.1)
    >>> risk = pl.risk_function(task, 10, max_sharpness=4.0)
    >>> with jax.enable_x64(True):
    ...     U, v = jnp.diag(jnp.array([0.5, 0.5, 0.0])), jnp.array([0.0, 0.0, 1.0])
    ...     value, slopes = jax.jit(jax.value_and_grad(risk, argnums=(0, 1)))(U, v)
    >>> print(f"{value:.3f}", value.dtype, slopes[0].shape)
    0.575 float64 (3, 3)
    """
    require_regression(task)
    require_choice("kernel", kernel, ("softmax", "linear"))
    tokens = _require_length(length)
    count = require_points(points)
    require_whole("replicate", replicate, 0)
    if kernel == "linear" or np.isinf(tokens):
        return LinearRisk(task, tokens)
    statistics = risk_statistics(tokens, float(max_sharpness), folder)
    return SoftmaxRisk(task, statistics, next(node_sets(task, count, int(replicate))))


def _require_length(length: Number) -> float:
    """Return one prompt length as a float."""
    lengths = checked_lengths(length)
    if lengths.ndim:
        raise ArgumentError("length", f"must be one number, got shape {lengths.shape}.")
    return float(lengths)


class RegressionObjective(AbstractObjective):
    """A risk as a function of (U, v), read off an attention."""

    risk: LinearRisk | SoftmaxRisk

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk of the head that the attention is."""
        head = merged(attention)
        return self._at(head.key_query, head.value)

    def _at(self, key_query: Array, value: Array) -> Float[Array, ""]:
        return self.risk(key_query, value[-1])

    @property
    def of_matrices(self) -> MatrixRisk:
        """The risk itself: the kernel has chosen the function of (U, v)."""
        return self._at

    @property
    def lower_bound(self) -> float:
        """Half the noise variance, which no predictor beats."""
        return 0.5 * float(self.risk.task.noise_variance)

    def sharpness(self, attention: AbstractAttention) -> float:
        """Return the largest sharpness at any point, 0 for a polynomial."""
        if isinstance(self.risk, LinearRisk):
            return 0.0
        return float(self.risk.sharpness(merged(attention).key_query))


def _objective(risk: LinearRisk | SoftmaxRisk) -> RegressionObjective:
    """Return a risk to descend, its numbers arrays: for all of them there is one program."""
    return RegressionObjective(with_arrays(risk))


@dataclasses.dataclass(frozen=True)
class RegressionRisk(AbstractExactRisk):
    """The risk of a head of one kernel at one length.

    Attributes:
        task: the regression.
        length: the number of tokens of a prompt.
        kernel: "softmax" or "linear".
    """

    task: LinearRegression
    length: float
    kernel: KernelName

    @property
    def is_closed_form(self) -> bool:
        """Whether the risk is a polynomial: that of linear attention, and of infinite prompts."""
        return self.kernel == "linear" or math.isinf(self.length)

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> AbstractObjective:
        """Return the risk to descend, over lines without slopes.

        The widest tables are followed by their last values: few points reach so far.
        """
        if self.is_closed_form:
            return _objective(LinearRisk(self.task, self.length))
        statistics = of_any_length(risk_statistics(self.length, max_sharpness))
        nodes = next(node_sets(self.task, points, replicate))
        widest = max_sharpness >= SHARPNESS_RANGES[-1]
        return _objective(
            SoftmaxRisk(self.task, statistics, nodes, slope_share=None, clipped=widest)
        )

    def replicates(self, attention: AbstractAttention, points: int) -> Replicates:
        """Return the risk over point sets made for the attention, and with its tables changed."""
        if self.is_closed_form:
            return Replicates([_objective(LinearRisk(self.task, self.length))])
        versions = replicate_risks(self._regressor(attention), points)
        return Replicates(*([_objective(risk) for risk in risks] for risks in versions))

    def value(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate:
        """Return the risk in closed form, by one integral, or over as many points as it takes."""
        if self.is_closed_form:
            return super().value(attention, tolerance=tolerance, points=points)
        head = self._regressor(attention)
        radial = radial_risk(head, tolerance) if points is None else None
        if radial is not None:
            return require_accuracy(radial, self.task.noise_variance)
        return softmax_risk(head, tolerance=tolerance, points=points)

    def tabulate(
        self, attention: AbstractAttention, lengths: Sequence[float], max_sharpness: float | None
    ) -> None:
        """Tabulate weight statistics at all lengths, where points are to ask for them."""
        head = self._regressor(attention)
        if self.kernel == "linear" or (max_sharpness is None and is_radial(head)):
            return
        tabulate_risks(lengths, max_sharpness or first_range(self.task, head.key_query))

    def _regressor(self, attention: AbstractAttention) -> Regressor:
        head = merged(attention)
        return Regressor(self.task, self.length, head.key_query, head.value[-1])


class LinearHeadsObjective(AbstractObjective):
    """The risk of heads that read the prompt's second moment, beside a residual: a polynomial.

    Attributes:
        task: the regression.
        length: $L$, the number of tokens of a prompt.
    """

    task: LinearRegression
    length: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk of the heads that the attention is the sum of."""
        heads, residual = attention.as_heads(), attention.residual_matrix()
        if heads is None:
            raise AssertionError("an attention does not forget its heads")
        key_query = jnp.stack([head.key_query for head in heads])
        value_row = jnp.stack([head.value[-1] for head in heads])
        row = jnp.zeros_like(value_row[0]) if residual is None else residual[-1]
        return linear_heads_risk(self.task, self.length, key_query, value_row, row)


@dataclasses.dataclass(frozen=True)
class LinearHeadsRisk(AbstractExactRisk):
    """The risk of several linear heads at one length, of softmax heads too at infinity.

    Attributes:
        task: the regression.
        length: the number of tokens of a prompt.
    """

    task: LinearRegression
    length: float

    @property
    def is_closed_form(self) -> bool:
        """Whether the risk is a polynomial: always."""
        return True

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> AbstractObjective:  # noqa: ARG002
        """Return the risk to descend."""
        return LinearHeadsObjective(self.task, to_device(self.length, jnp.float64))


def regression_risk(
    attention: AbstractAttention, task: LinearRegression, length: float
) -> AbstractExactRisk | None:
    """Return the exact risk: of one head, of several where a polynomial is, of a stack; or None.

    Several softmax heads over finitely many tokens need the joint law of their weights.
    """
    head, heads = attention.single_head(), attention.as_heads()
    if head is not None:
        return RegressionRisk(task, length, head.kernel)
    if heads is None:
        return None if attention.as_layers() is None else stack_risk(attention, task, length)
    linear = all(one.kernel == "linear" for one in heads)
    return LinearHeadsRisk(task, length) if linear or math.isinf(length) else None
