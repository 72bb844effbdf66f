r"""The exact risk of several softmax heads on Gaussian regression, as a function of all parameters.

Given the hidden weights $W$ and the covariates $x_q$ of the query, tokens are $N(0,\Gamma_W)$. The
labels of the query are $y=Wx_q\in\mathbb R^m$ plus noise of variance $s^2$. Head h has the tilt
$t_h=U_h(x_q,0)$, and $V_h$ are the last m rows of its value matrix. Let $c_{jh}=V_j\Gamma_Wt_h$ and
$G_{hk}=t_h^\top\Gamma_Wt_k$, and let R be the last m rows of the residual, restricted to
covariates. The mean squared error over prompts of L tokens is

$$m\,s^2+|R x_q-y|^2+2\sum_h(1-P_h)\,c_{hh}\cdot(Rx_q-y)
+\sum_h\big[|c_{hh}|^2(1-2P_h+\varrho_h)+\mathrm{tr}V_h\Gamma_WV_h^\top P_h\big]
+2\sum_{h<k}\big[N\,\mathrm{tr}V_h\Gamma_WV_k^\top+2N_{hh}\,c_{hh}\cdot c_{kh}
+N_{hk}\,c_{hk}\cdot c_{kh}+2N_{kk}\,c_{hk}\cdot c_{kk}+C\,c_{hh}\cdot c_{kk}\big],$$

where $P_h$ and $\varrho_h$ are the statistics $P$ and $\varrho$ of `_softmax_risk` for head h. For
each pair of heads, `weights._pair_table` defines $N(G)$ and $Q(G)$; $N_{hk}$ is the derivative of N
in $G_{hk}$, and $C=1-P_h-P_k+Q$. Scores may depend on labels. docs/tasks.md derives the formula.
"""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit._quadrature import REPLICATES, standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._objectives import (
    SHARPNESS_RANGES,
    AbstractObjective,
    ArrayMoments,
    Estimate,
    Objectives,
    evaluate,
    gradient_moments,
)
from promptlimit.tasks._problem import (
    OBJECTIVE,
    RISK,
    RISK_GRADIENT,
    USUAL_POINTS,
    RiskProblem,
    on,
)
from promptlimit.tasks.regression._points import Nodes, node_sets
from promptlimit.tasks.regression._polynomials import linear_risk
from promptlimit.tasks.regression._quadrature import require_accuracy
from promptlimit.tasks.regression._risk import heads_risk
from promptlimit.tasks.regression._softmax_risk import (
    largest_sharpness,
    of_any_length,
    risk_statistics,
    scores,
    with_arrays,
)
from promptlimit.tasks.regression._task import LinearRegression, other_queries
from promptlimit.weights import PAIR_RANGES, PairTable, WeightInterpolant, pair_tables

_USUAL_RANGE = PAIR_RANGES[-2]


class HeadsObjective(AbstractObjective):
    r"""The risk of several softmax heads and a residual over fixed points $(W, x_q)$.

    The risk of linear heads with the same matrices has a closed form. Only the difference between
    the two risks is averaged over the points.

    Attributes:
        task: the regression.
        length: the prompt length L.
        statistics: the statistics $P$ and $\varrho$ of single heads.
        pairs: the statistics $N$ and $Q$ of pairs of heads.
        nodes: the points $(W, x_q)$.
    """

    task: LinearRegression
    length: Float[Array, ""]
    statistics: WeightInterpolant
    pairs: PairTable
    nodes: Nodes

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        """Return the risk of an attention with softmax heads."""
        task, labels = self.task, self.task.label_dim
        heads, residual = unwrap(attention.as_heads()), attention.residual_matrix()
        key_query = jnp.stack([head.key_query for head in heads])
        value = jnp.stack([head.value[-labels:] for head in heads])
        rows = None if residual is None else residual[-labels:]
        exact = linear_risk(task, self.length, key_query, value, rows)
        squares = self._squares(key_query, value, rows)
        return exact + 0.5 * jnp.mean(to_device(self.nodes.mass) * squares)

    def _squares(self, key_query: Array, value: Array, residual: Array | None) -> Array:
        """Return the mean squared error at each point, minus that of linear heads (same U, V)."""
        noise, nodes = self.task.noise_variance, self.nodes
        root, weights, query = (to_device(one) for one in (nodes.root, nodes.weights, nodes.query))
        dim = root.shape[0]
        V1, B = value[:, :, :dim], value[:, :, dim:]
        _, p, t2, squared = jax.vmap(partial(scores, nodes, noise))(key_query)
        read = jnp.einsum("idn,hdn->hin", weights, p) + noise * t2
        c = jnp.einsum("jid,ed,hen->jhin", V1, root, p) + jnp.einsum("jik,hkn->jhin", B, read)
        r = jnp.einsum("jie,de->jid", V1, root)[..., None]
        r = r + jnp.einsum("jik,kdn->jidn", B, weights)
        target = to_device(nodes.label)
        if residual is not None:
            target = target - residual[:, :dim] @ query
        single = self.statistics(jnp.minimum(squared, self.statistics.max_sharpness**2))
        P, excess = single["participation"], single["excess"]
        total = jnp.zeros_like(squared[0])
        for h in range(len(value)):
            own = jnp.sum(c[h, h] ** 2, axis=0)
            trace = jnp.sum(r[h] ** 2, axis=(0, 1)) + noise * jnp.sum(B[h] ** 2)
            total += own * (excess[h] - 2.0 * P[h]) + trace * P[h]
            total += 2.0 * P[h] * jnp.sum(c[h, h] * target, axis=0)
            total -= (own + trace * squared[h]) / self.length
        for h, k in itertools.combinations(range(len(value)), 2):
            crossed = jnp.sum(p[h] * p[k], axis=0) + noise * jnp.sum(t2[h] * t2[k], axis=0)
            trace = jnp.sum(r[h] * r[k], axis=(0, 1)) + noise * jnp.sum(B[h] * B[k])
            N, slopes, Q = self._pair_statistics(squared[h], crossed, squared[k])
            hh_kk, hk_kh, hh_kh, hk_kk = (
                jnp.sum(c[left] * c[right], axis=0)
                for left, right in (
                    ((h, h), (k, k)),
                    ((h, k), (k, h)),
                    ((h, h), (k, h)),
                    ((h, k), (k, k)),
                )
            )
            moment = N * trace + (Q - P[h] - P[k]) * hh_kk
            moment += 2.0 * slopes[0] * hh_kh + slopes[1] * hk_kh + 2.0 * slopes[2] * hk_kk
            total += 2.0 * (moment - (hk_kh + trace * crossed) / self.length)
        return total

    def _pair_statistics(self, *gram: Array) -> tuple[Array, tuple[Array, ...], Array]:
        """Return N, its derivatives in the entries (G_hh, G_hk, G_kk) of the Gram matrix, and Q."""
        N, Q = self.pairs(*gram)
        slopes = jax.grad(lambda *entries: jnp.sum(self.pairs(*entries)[0]), argnums=(0, 1, 2))
        return N, slopes(*gram), Q

    @property
    def lower_bound(self) -> float:
        """Half the sum of the noise variances of the labels."""
        return 0.5 * self.task.label_dim * float(self.task.noise_variance)

    def sharpness(self, attention: AbstractAttention) -> float:
        """Return the largest sharpness, scaled so that `_USUAL_RANGE` is `SHARPNESS_RANGES[0]`."""
        largest = _sharpness(self.task, self.nodes, attention)
        return largest * SHARPNESS_RANGES[0] / _USUAL_RANGE


def _sharpness(task: LinearRegression, nodes: Nodes, attention: AbstractAttention) -> float:
    """Return the largest standard deviation of the scores of any head at any point."""
    heads = unwrap(attention.as_heads())
    return max(largest_sharpness(nodes, task, head.key_query) for head in heads)


def _not_heads(problem: RiskProblem) -> str | None:
    if problem.heads is None:
        return "it does not implement `as_heads`"
    if "softmax" not in problem.kernels:
        return "not all heads are softmax heads"
    if "linear" in problem.kernels:
        return "softmax heads next to linear ones need the joint law of both"
    return other_queries(problem)


def _objective(
    task: LinearRegression, length: float, nodes: Nodes, pairs: PairTable
) -> HeadsObjective:
    statistics = of_any_length(risk_statistics(length, SHARPNESS_RANGES[0]))
    objective = HeadsObjective(task, to_device(length), statistics, pairs, nodes)
    return with_arrays(objective)


@OBJECTIVE.rule(
    kind="exact",
    scope="`LinearRegression`, several softmax heads and a residual over finite prompts",
    method="average over $(w, x_q)$, with tables for pairs of heads",
    obstacle=on(LinearRegression, obstacle=_not_heads),
)
def _objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    task = problem.task

    def make(length: float, max_sharpness: float, replicate: int) -> AbstractObjective:
        nodes = next(node_sets(task, unwrap(effort.points), replicate))
        end = _USUAL_RANGE if max_sharpness == SHARPNESS_RANGES[0] else PAIR_RANGES[-1]
        # Odd replicates use the coarser table, so differences between replicates include the error
        # of the tables.
        return _objective(task, length, nodes, pair_tables(length, end)[replicate % 2])

    return [
        Objectives(partial(make, length))
        if math.isfinite(length)
        else Objectives.formula(heads_risk, task, length)
        for length in problem.lengths.tolist()
    ]


def _replicates(
    problem: RiskProblem, length: float, points: int
) -> tuple[list[AbstractObjective], list[AbstractObjective]]:
    """Return objectives over independent point sets, and one with a coarser table over the first.

    The range of the tables covers, if possible, the sharpness at the points of the first set. For
    infinite prompts the first list contains only the closed form, and the second is empty.
    """
    task = problem.task
    if math.isinf(length):
        return Objectives.formula(heads_risk, task, length).replicates(), []
    sets = [next(node_sets(task, points, replicate)) for replicate in range(REPLICATES)]
    largest = _sharpness(task, sets[0], problem.attention)
    end = next((one for one in PAIR_RANGES if one >= largest), PAIR_RANGES[-1])
    fine, coarse = pair_tables(length, end)
    return (
        [_objective(task, length, nodes, fine) for nodes in sets],
        [_objective(task, length, sets[0], coarse)],
    )


_SCOPE = "`LinearRegression`, several softmax heads and a residual"


@RISK.rule(
    kind="exact",
    scope=_SCOPE,
    method="average over $(w, x_q)$, with tables for pairs of heads",
    obstacle=on(LinearRegression, obstacle=_not_heads),
)
def _risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    points = USUAL_POINTS if effort.points is None else effort.points

    def risk(length: float) -> Estimate:
        sets, changed = _replicates(problem, length, points)
        values = np.array([float(evaluate(one, problem.attention)) for one in sets])
        if not changed:
            return Estimate(values.item(), 0.0, 0)
        tables = abs(float(evaluate(changed[0], problem.attention)) - values[0])
        error = float(standard_error(values)) + tables
        found = Estimate(float(values.mean()), error, points * values.size)
        return require_accuracy(found, problem.task)

    return [risk(length) for length in problem.lengths.tolist()]


@RISK_GRADIENT.rule(
    kind="exact",
    scope=_SCOPE,
    method="the derivative of that average",
    obstacle=on(LinearRegression, obstacle=_not_heads),
)
def _gradients(problem: RiskProblem, effort: Effort) -> list[tuple[ArrayMoments, int]]:
    points = unwrap(effort.points)

    def gradient(length: float) -> tuple[ArrayMoments, int]:
        sets, changed = _replicates(problem, length, points)
        count = points * len(sets) if changed else 0
        return gradient_moments(problem.attention, sets, changed), count

    return [gradient(length) for length in problem.lengths.tolist()]
