"""The exact risk of one head on Gaussian regression, ready for values, gradients and flows."""

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit.attention import AbstractAttention, KernelName
from promptlimit.tasks._capabilities import (
    AbstractExactRisk,
    AbstractObjective,
    Averaged,
    merged,
)
from promptlimit.tasks._points import node_sets
from promptlimit.tasks._quadrature import first_range, replicate_risks, softmax_risk
from promptlimit.tasks._radial import is_radial, radial_risk
from promptlimit.tasks._regression import LinearRegression
from promptlimit.tasks._risk_function import LinearRisk
from promptlimit.tasks._softmax_risk import (
    Regressor,
    SoftmaxRisk,
    of_any_length,
    risk_statistics,
    tabulate_risks,
)


class RegressionObjective(AbstractObjective):
    """A risk as a function of (U, v), read off an attention; only arrays tell lengths apart."""

    risk: LinearRisk | SoftmaxRisk

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk of the head that the attention is."""
        head = merged(attention)
        return self.risk(head.key_query, head.value[-1])

    @property
    def reads_kernel(self) -> bool:
        """No: the kernel has chosen the function of (U, v)."""
        return False

    def sharpness(self, attention: AbstractAttention) -> float:
        """Return the largest sharpness at any point, 0 for a polynomial."""
        if isinstance(self.risk, LinearRisk):
            return 0.0
        return float(self.risk.sharpness(merged(attention).key_query))


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
        """Return the risk to descend, over lines without slopes."""
        if self.is_closed_form:
            return RegressionObjective(LinearRisk(self.task, jnp.asarray(self.length)))
        statistics = of_any_length(risk_statistics(self.length, max_sharpness))
        nodes = next(node_sets(self.task, points, replicate))
        return RegressionObjective(SoftmaxRisk(self.task, statistics, nodes, sloping=False))

    def replicates(self, attention: AbstractAttention, points: int) -> Sequence[AbstractObjective]:
        """Return the risk over independent point sets, its tables wide enough for the head."""
        if self.is_closed_form:
            return [RegressionObjective(LinearRisk(self.task, jnp.asarray(self.length)))]
        risks = replicate_risks(self.task, self.length, merged(attention).key_query, points)
        return [RegressionObjective(risk) for risk in risks]

    def value(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Averaged:
        """Return the risk in closed form, by one integral, or over as many points as it takes."""
        if self.is_closed_form:
            return super().value(attention, tolerance=tolerance, points=points)
        head = self._regressor(attention)
        found = radial_risk(head, tolerance) if points is None else None
        return softmax_risk(head, tolerance=tolerance, points=points) if found is None else found

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
