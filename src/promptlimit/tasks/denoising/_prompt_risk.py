r"""The risk of denoising over prompts of L tokens: its value, and what flows descend.

Values are those of `_denoising_prompts`. Flows follow one softmax head beside a residual between
two components, over fixed queries and tables of selection. Linear heads have a closed form.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._errors import ArgumentError
from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention, AbstractHead
from promptlimit.tasks._abstract import (
    AbstractExactRisk,
    AbstractObjective,
    Estimate,
)
from promptlimit.tasks.denoising._limit_risk import AbstractDenoisingRisk
from promptlimit.tasks.denoising._points import query_points
from promptlimit.tasks.denoising._prompts import (
    TiltedHeads,
    prompt_excess,
    query_rule,
    tilted_heads,
)
from promptlimit.tasks.denoising._task import Denoising
from promptlimit.weights import SelectionTable, selection_tables

_STEPS = (0.65, 0.5, 0.36)
"""Of lattices of queries, in standard deviations, until two halves agree."""

_ROUGH = 1e-3
"""The tolerance from which the cross moments of two heads may be rough: they are better still."""

_QUERY_RADIUS = 6.0
"""Standard deviations of a query that flows see."""

_FARTHEST = 25.0
"""How far apart means may be, in standard deviations of a token: tables are finer the farther."""

_REACH_SHARE = 0.5
"""How far tables of selection go, as a share of those of one Gaussian: they have two axes."""


@dataclasses.dataclass(frozen=True)
class PromptRisk(AbstractDenoisingRisk):
    """The risk of softmax heads over prompts of L tokens of one mixture.

    Attributes:
        length: L.
        together: the lengths whose values are asked for together, this one among them.
        known: those values, shared by the risks of these lengths.
    """

    length: float
    together: tuple[float, ...]
    known: dict[object, tuple[np.ndarray, np.ndarray, int]] = dataclasses.field(
        default_factory=dict
    )

    def excess(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate:
        """Return half the mean squared distance to the Bayes predictor, for all lengths at once."""
        heads = tilted_heads(attention)
        if heads is None:
            raise ArgumentError("attention", "must be a sum of softmax heads that says so.")
        key = tolerance, points, *(array.tobytes() for array in heads)
        if key not in self.known:
            self.known[key] = _excesses(self.task, heads, self.together, tolerance, points)
        values, errors, count = self.known[key]
        place = self.together.index(self.length)
        return Estimate(0.5 * float(values[place]), 0.5 * float(errors[place]), count)

    def is_smooth(self, attention: AbstractAttention) -> bool:
        """Return whether it is one head between two components apart, the case of the tables."""
        heads, task = attention.as_heads(), self.task
        if heads is None or len(heads) != 1 or task.weights.size != 2:
            return False
        apart = float(np.linalg.norm(task.means[0] - task.means[1]))
        return 0.0 < apart <= _FARTHEST * math.sqrt(task.token_variance)

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> "PromptObjective":
        """Return the risk to descend: fixed queries, and selection from tables."""
        task, reach = self.task, _REACH_SHARE * max_sharpness
        queries = query_points(task, points, replicate=replicate, radius=_QUERY_RADIUS)
        (table,) = _tables(task, (self.length,), reach)
        return PromptObjective(
            table=table,
            points=to_device(queries.points),
            weights=to_device(queries.weights),
            bayes=to_device(queries.bayes),
            means=to_device(task.means),
            logit=to_device(math.log(task.weights[0] / task.weights[1])),
            variance=to_device(task.token_variance),
            least=self.least,
        )


@dataclasses.dataclass(frozen=True)
class TurnedPromptRisk(AbstractExactRisk):
    """The risk where each prompt turns the mixture, of heads to which that makes no difference.

    It has a value and no slopes: a head moves to where turning does make one.

    Attributes:
        fixed: the risk on the mixture that is not turned.
    """

    fixed: AbstractExactRisk

    @property
    def is_closed_form(self) -> bool:
        """Whether that of the fixed mixture is one."""
        return self.fixed.is_closed_form

    def is_smooth(self, attention: AbstractAttention) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def objective(self, *, points: int, replicate: int, max_sharpness: float) -> AbstractObjective:
        """Return the objective of the fixed mixture, for values alone."""
        return self.fixed.objective(points=points, replicate=replicate, max_sharpness=max_sharpness)

    def excess(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate | None:
        """Return the excess on the fixed mixture."""
        return self.fixed.excess(attention, tolerance=tolerance, points=points)

    def value(
        self, attention: AbstractAttention, *, tolerance: float, points: int | None
    ) -> Estimate:
        """Return the risk on the fixed mixture."""
        return self.fixed.value(attention, tolerance=tolerance, points=points)


def _tables(
    task: Denoising, lengths: tuple[float, ...], reach: float
) -> tuple[SelectionTable, ...]:
    first, second = task.means
    separation = float(np.linalg.norm(first - second)) / math.sqrt(task.token_variance)
    weights = float(task.weights[0]), float(task.weights[1])
    return selection_tables(separation, weights, lengths, reach)


def _excesses(
    task: Denoising,
    heads: TiltedHeads,
    lengths: tuple[float, ...],
    tolerance: float,
    points: int | None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return excesses, their errors and how many queries it took."""
    steps = _STEPS if points is None else (_STEPS[0] * math.sqrt(512 / points),)
    values, errors, count = np.zeros(0), np.zeros(0), 0
    for step in steps:
        rule = query_rule(task, heads, step, max(lengths))
        spacing = "coarse" if tolerance < _ROUGH else "rough"
        values, errors = prompt_excess(task, heads, np.array(lengths), rule, spacing=spacing)
        count = len(rule.points)
        if (errors <= tolerance * np.abs(values)).all():
            break
    return values, errors, count


class PromptObjective(AbstractObjective):
    r"""The risk of one softmax head beside a residual, over L tokens of two components.

    Attributes:
        table: the moments of selection at L.
        points: $z_i$.
        weights: $w_i$, of sum one.
        bayes: $f^*(z_i)$.
        means: $m_1$ and $m_2$.
        logit: $\log\pi_1/\pi_2$.
        variance: of a token within its component.
        least: the risk of Bayes.
    """

    table: SelectionTable
    points: Float[Array, "points d"]
    weights: Float[Array, " points"]
    bayes: Float[Array, "points d"]
    means: Float[Array, "2 d"]
    logit: Float[Array, ""]
    variance: Float[Array, ""]
    least: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk, differentiable in the arrays of the attention."""
        head, residual = _only_head(attention), attention.residual_matrix()
        excess = jax.vmap(lambda z, target: self._excess(head, residual, z, target))
        return self.least + 0.5 * self.weights @ excess(self.points, self.bayes)

    def sharpness(self, attention: AbstractAttention) -> float:
        """Return what part of its tables it asks for, in the units of other tables."""
        tilts = self.points @ _only_head(attention).key_query.T
        largest = jnp.sqrt(self.variance * jnp.max(jnp.sum(tilts**2, axis=1)))
        return float(largest) / _REACH_SHARE

    def _excess(
        self, head: AbstractHead, residual: Array | None, query: Array, target: Array
    ) -> Array:
        r"""Return $|f-f^*|^2+2\langle f-f^*,VE\varepsilon\rangle+E|V\varepsilon|^2$ there."""
        tilt, s, (first, second) = head.key_query @ query, self.variance, self.means
        apart = first - second
        shift = tilt @ apart
        along = jnp.sqrt(s) * shift / jnp.linalg.norm(apart)
        share, mass, square, pull, stretch = self.table(along, s * (tilt @ tilt) - along**2)
        seen, drawn = head.value @ apart, head.value @ tilt
        limit = jax.nn.sigmoid(self.logit + shift) * seen + head.value @ second + s * drawn
        missed = limit - target + (0.0 if residual is None else residual @ query)
        bias = mass * seen - share * s * drawn
        spread = square * (seen @ seen) + 2.0 * s * pull * (seen @ drawn)
        spread += s * s * stretch * (drawn @ drawn) + s * share * jnp.sum(head.value**2)
        return missed @ missed + 2.0 * missed @ bias + spread


def _only_head(attention: AbstractAttention) -> AbstractHead:
    heads = attention.as_heads()
    if heads is None or len(heads) != 1:
        raise ArgumentError("attention", "must be one head, beside a residual or not.")
    return heads[0]


def linear_denoising_risk(
    task: Denoising,
    heads: Sequence[AbstractHead],
    residual: Float[Array, "d d"] | None,
    length: Float[Array, ""],
) -> Float[Array, ""]:
    r"""Return the risk of linear heads, $f_L=(C+\sum_hV_h\hat MU_h)z$, $\hat M$ mean of $zz^\top$.

    With $M=E\,zz^\top$ over tokens and $A=C+\sum_hV_hMU_h$ (derived here),

        E|f_L - X|^2 = E|AZ - X|^2 + (1/L) sum_{h,j} tr(K_hj U_j E[ZZ'] U_h')
        K_hj = sum_k pi_k {(mm'+G)(m'Pm + tr PG) + 2m(GP_sm)' + 2(GP_sm)m' + 2GP_sG} - M P M

    for $P=V_h'V_j$, $P_s$ its symmetric part, $m=m_k$ and $G$ the covariance of a token within a
    component.
    """
    dtype = heads[0].value.dtype
    means, weights = to_device(task.means, dtype), to_device(task.weights, dtype)
    variances = task.within_variance, task.token_variance, task.query_variance
    matrices = [(head.key_query, head.value) for head in heads]
    return _linear_risk((means, weights, variances), matrices, residual, length)


@jax.jit
def _linear_risk(
    law: tuple[Array, Array, tuple[Array, Array, Array]],
    heads: list[tuple[Array, Array]],
    residual: Array | None,
    length: Array,
) -> Float[Array, ""]:
    means, weights, (g, t, s) = law
    eye, outer = jnp.eye(means.shape[1], dtype=means.dtype), means.T @ (weights[:, None] * means)
    second, asked = outer + t * eye, outer + s * eye
    matrix = jnp.zeros_like(eye) if residual is None else residual
    matrix = matrix + sum(V @ second @ U for U, V in heads)
    clean = outer + g * eye
    bias = jnp.sum(matrix @ asked * matrix) - 2.0 * jnp.sum(matrix * clean) + jnp.trace(clean)

    def covariance(left: Array, right: Array) -> Array:
        plain = left.T @ right
        p = 0.5 * (plain + plain.T)
        pulled = means @ p  # (P m_k)', one a row
        sizes = jnp.sum(pulled * means, axis=1) + t * jnp.trace(p)
        tilted = means.T @ ((weights * sizes)[:, None] * means) + t * eye * (weights @ sizes)
        crossed = t * means.T @ (weights[:, None] * pulled)
        return tilted + 2.0 * (crossed + crossed.T) + 2.0 * t * t * p - second @ plain @ second

    spread = sum(
        jnp.sum(covariance(V1, V2) * (U1 @ asked @ U2.T)) for U1, V1 in heads for U2, V2 in heads
    )
    return 0.5 * (bias + spread / length)
