r"""The exact risk of softmax attention on Gaussian regression, as a function of its parameters.

Given $(W, x_q)$ the mean square over prompts is, with the symbols of `_polynomials`,

$$E[|\text{prediction}-y_q|^2\mid W,x_q]=|c-y|^2+m\,s^2+f\,P(\sigma^2)+|c|^2\varrho(\sigma^2),\qquad
f=\mathrm{tr}V\Gamma_WV^\top-2c\cdot(c-y),$$

$P=E\,S_2$ and $\varrho=(E(A-\sigma)^2-E\,S_2)/\sigma^2=E\,S_2-6E\,S_3+6E\,S_2^2$. No term is
divided by $\sigma$, so value and gradient are smooth where the tilt vanishes. Derived in
docs/tasks.md.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import Number, checked_lengths
from promptlimit._inputs import to_device
from promptlimit.tasks.regression._points import Nodes
from promptlimit.tasks.regression._polynomials import averages, query_averages
from promptlimit.tasks.regression._task import LinearRegression
from promptlimit.weights import WeightInterpolant, tabulate, weight_interpolant

TreeT = TypeVar("TreeT")
_STATISTICS = ("participation", "cubic_participation", "participation_square")


def tabulate_risks(lengths: Sequence[Number], max_sharpness: Number = 16.0) -> None:
    """Tabulate the weight statistics of risks at several lengths together.

    Twenty lengths take as long as one or two. Later flows, training runs and risks at these lengths
    in the same process use the tables.

    Args:
        lengths: prompt lengths, whole numbers from 1 to 1e30.
        max_sharpness: the range of the tables; flows use 16.

    >>> import promptlimit as pl
    >>> pl.tasks.tabulate_risks([10, 20], max_sharpness=2.0)
    """
    tokens = tuple(float(one) for one in checked_lengths(lengths).ravel() if np.isfinite(one))
    tabulate(_STATISTICS, tokens, float(max_sharpness))


def risk_statistics(length: float, max_sharpness: float) -> WeightInterpolant:
    r"""Return $P$ and $\varrho$ as functions of $\sigma^2$, called "participation" and "excess".

    The tables of the three statistics have the same pieces, so their combination is a table too.
    """
    interpolant = weight_interpolant(length, max_sharpness=max_sharpness, statistics=_STATISTICS)
    participation, cubic, square = interpolant.tables
    excess = participation - 6 * cubic + 6 * square
    tables, names = (participation, excess), ("participation", "excess")
    return dataclasses.replace(interpolant, tables=tables, statistics=names)


def of_any_length(statistics: WeightInterpolant) -> WeightInterpolant:
    """Return the statistics without length and errors: one compiled program for all lengths."""
    return dataclasses.replace(statistics, lengths=(1.0,), error=0.0, slope_error=0.0)


def with_arrays(tree: TreeT) -> TreeT:
    """Return a tree with arrays in place of floats: one compiled program for all values."""
    return jax.tree.map(lambda leaf: to_device(leaf) if isinstance(leaf, float) else leaf, tree)


def perturbed(statistics: WeightInterpolant) -> WeightInterpolant:
    r"""Return the statistics changed by their errors: values by `error`, slopes by `slope_error`.

    $\varrho$ is the sum of $P$, six times $E\,S_3$ and six times $E\,S_2^2$, none above $P$.
    """
    participation, excess = statistics.tables
    size = np.abs(participation[..., :1, :])
    slope = 0.5 * statistics.slope_error * statistics.width
    change = np.zeros_like(participation)
    change[..., :1, :], change[..., 1:2, :] = statistics.error * size, slope * size
    tables = (participation + change, excess + 13 * change)
    return dataclasses.replace(statistics, tables=tables)


class PointMeans(NamedTuple):
    r"""Weighted means over points, the terms of `SoftmaxRisk.combined`.

    A bar is the mean over w given the query, in closed form, and $P_0=P(\bar\sigma^2)$: the points
    average differences from functions of the query alone.

    Attributes:
        participation, excess, sharpness: means of $P_0$, $\varrho_0$ and $\bar\sigma^2$, divided by
            the mean mass.
        factor, square: means of $\bar f$ and $\overline{c^2}$.
        factor_sharpness: mean of $f(\sigma^2-\bar\sigma^2)+\bar f\,\bar\sigma^2$.
        square_sharpness: mean of $c^2(\sigma^2-\bar\sigma^2)+\overline{c^2}\,\bar\sigma^2$.
        finite: mean of $f(P-P_0)+c^2(\varrho-\varrho_0)+\bar f P_0+\overline{c^2}\varrho_0$.
        beyond: mean of $f(1-P)+c^2(1-\varrho)$ over points whose sharpness exceeds the tables.
    """

    participation: Float[Array, "*sets"]
    excess: Float[Array, "*sets"]
    sharpness: Float[Array, "*sets"]
    factor: Float[Array, "*sets"]
    square: Float[Array, "*sets"]
    factor_sharpness: Float[Array, "*sets"]
    square_sharpness: Float[Array, "*sets"]
    finite: Float[Array, "*sets"]
    beyond: Float[Array, "*sets"]


class Regressor(NamedTuple):
    """One softmax head on Gaussian regression at one length: U, and the rows of V that predict.

    Tables for the lengths `together` are computed in one pass.
    """

    task: LinearRegression
    length: float
    key_query: Float[Array, "tokens tokens"]
    value: Float[Array, "m tokens"]
    together: tuple[float, ...] = ()


class SoftmaxRisk(eqx.Module):
    r"""The risk $R_L(U, v)$ of softmax attention, over fixed points $(w, x_q)$.

    Polynomials are averaged in closed form. With straight lines $\ell_P,\ell_\varrho$ in
    $\sigma^2$ near $P$ and $\varrho$,

    $$2R_L=E(c-y)^2+s^2+E[f\,\ell_P+c^2\ell_\varrho]+E[f(P-\ell_P)+c^2(\varrho-\ell_\varrho)],$$

    and only the last term, which vanishes as the prompt grows, is a sum over points.

    `risk_function` uses these lines. `risk` multiplies their slopes by the factor at which point
    sets agree best, which reduces the error of block heads over short prompts eightfold.
    Objectives, and therefore flows, use constants: with few points and sloping lines the risk
    decreases without bound at large parameters. For labels in
    $\mathbb R^m$, $m>1$, all lines are constants.

    Attributes:
        task: the regression.
        statistics: $P$ and $\varrho$ at one length.
        nodes: the points.
        slope_share: the factor on the slopes of the lines. None uses constants and averages over
            points only: closed-form averages over w take 1.9 times as long and gain nothing at the
            points of flows.
        clipped: whether the statistics keep their last value beyond the tables; otherwise they are
            NaN.
        saturated: whether the statistics are 1, their limit, beyond the tables.
    """

    task: LinearRegression
    statistics: WeightInterpolant
    nodes: Nodes
    slope_share: float | None = 1.0
    clipped: bool = eqx.field(static=True, default=False)
    saturated: bool = eqx.field(static=True, default=False)

    @property
    def length(self) -> float:
        """$L$, the number of tokens of a prompt."""
        return self.statistics.lengths[0]

    @property
    def max_sharpness(self) -> float:
        r"""The largest $\sigma$ at any point for which the risk is a number."""
        return self.statistics.max_sharpness

    def __call__(
        self, key_query: Float[Array, "tokens tokens"], value_row: Float[Array, "*m tokens"]
    ) -> Float[Array, ""]:
        r"""Return $R_L$ at $U$ and the last row of $V$, NaN where a point leaves the tables.

        Labels in $\mathbb R^m$ take the last m rows of V, [m, tokens]. Call it inside
        `jax.enable_x64(True)`; `jax.jit` and `jax.grad` apply.
        """
        value = jnp.atleast_2d(value_row)
        if self.slope_share is not None:
            means = self.means(key_query, value)
            return self.combined(key_query, value, means, means, self.slope_share)
        at, exact = self._at_points(key_query, value), averages(self.task, key_query, value)
        finite = self._mean(at.factor * at.participation + at.square * at.excess)
        factor = exact.value - 2 * (exact.square - exact.cross) - self._mean(at.factor)
        share = jnp.mean(to_device(self.nodes.mass))
        finite += self._mean(at.participation) / share * factor
        finite += self._mean(at.excess) / share * (exact.square - self._mean(at.square))
        return 0.5 * (exact.misfit + self._noise + finite)

    @property
    def _noise(self) -> float | Array:
        """The noise variance of all labels."""
        return self.task.label_dim * self.task.noise_variance

    def sharpness(self, key_query: Float[Array, "tokens tokens"]) -> Float[Array, ""]:
        r"""Return the largest $\sigma$ at any point."""
        return jnp.sqrt(jnp.max(scores(self.nodes, self.task.noise_variance, key_query).squared))

    def means(
        self, key_query: Float[Array, "tokens tokens"], value: Float[Array, "m tokens"]
    ) -> PointMeans:
        """Return the means over the points."""
        at, mass = self._at_points(key_query, value), to_device(self.nodes.mass)
        count = self.nodes.distinct
        f, c2, P, rho, squared = at.factor, at.square, at.participation, at.excess, at.sharpness
        q, t2 = at.scored[:, :count], at.label[:, :count]
        seen = to_device(self.nodes.root) @ to_device(self.nodes.query)[:, :count]
        known = query_averages(self.task, to_device(self.nodes.root), value, seen, q, t2)
        f0, c0, s0 = known.value - 2 * (known.square - known.cross), known.square, known.sharpness
        P0, rho0 = self._statistics(s0)

        def of_query(terms: Array) -> Array:
            return jnp.mean(mass[:count] * terms)

        def around(terms: Array, known: Array, factor: Array) -> Array:
            """Return the mean of (known - terms) times a factor, the last two at queries."""
            own = jnp.mean((mass * terms).reshape(-1, count), axis=0)
            return jnp.mean((mass[:count] * known - own) * factor)

        share = jnp.mean(mass[:count])
        beyond = squared > self.statistics.max_sharpness**2
        lost = self._mean(jnp.where(beyond, f * (1 - P) + c2 * (1 - rho), 0.0))
        finite = self._mean(f * P + c2 * rho) + around(f, f0, P0) + around(c2, c0, rho0)
        return PointMeans(
            participation=of_query(P0) / share,
            excess=of_query(rho0) / share,
            sharpness=of_query(s0) / share,
            factor=of_query(f0),
            square=of_query(c0),
            factor_sharpness=self._mean(f * squared) + around(f, f0, s0),
            square_sharpness=self._mean(c2 * squared) + around(c2, c0, s0),
            finite=finite + lost if self.saturated else finite,
            beyond=lost,
        )

    def combined(
        self,
        key_query: Float[Array, "tokens tokens"],
        value: Float[Array, "m tokens"],
        means: PointMeans,
        all_means: PointMeans,
        slope_share: float | Float[Array, ""],
    ) -> Float[Array, "*sets"]:
        r"""Return the risk from means over points, the polynomial part in closed form.

        Exact values replace the means over points of $f\,\ell$ and $c^2\ell$. The heights of the
        lines $\ell=h+\kappa\sigma^2$ fit `all_means`, the means over all points. The risk is linear
        in `slope_share`.
        """
        exact = averages(self.task, key_query, value)
        slope_p = slope_rho = jnp.zeros_like(exact.sharpness)
        if exact.square_sharpness is not None:
            slopes = _slopes(self.statistics, exact.sharpness)
            slope_p, slope_rho = (slope_share * slope for slope in slopes)
        height_p = all_means.participation - slope_p * all_means.sharpness
        height_rho = all_means.excess - slope_rho * all_means.sharpness
        factor = exact.value - 2 * (exact.square - exact.cross)
        corrected = means.finite + height_p * (factor - means.factor)
        corrected += height_rho * (exact.square - means.square)
        if exact.square_sharpness is not None and exact.cross_sharpness is not None:
            factor_sharp = exact.product - 2 * (exact.square_sharpness - exact.cross_sharpness)
            corrected += slope_p * (factor_sharp - means.factor_sharpness)
            corrected += slope_rho * (exact.square_sharpness - means.square_sharpness)
        return 0.5 * (exact.misfit + self._noise + corrected)

    def _at_points(self, key_query: Array, value: Array) -> "_AtPoints":
        r"""Return the terms of the means at each point.

        With $t=(t_1,t_2)$, $C^\top C=\Sigma$, $p=C(t_1+W^\top t_2)$ and the rows $r_i$ of
        $(V_1+BW)C^\top$: $\sigma^2=|p|^2+s^2|t_2|^2$, $c_i=\langle p,r_i\rangle+s^2(Bt_2)_i$ and
        $\mathrm{tr}V\Gamma_WV^\top=\sum_i|r_i|^2+s^2|B|^2$.
        """
        noise, weights = self.task.noise_variance, to_device(self.nodes.weights)
        q, p, t2, squared = scores(self.nodes, noise, key_query)
        V1, B = value[:, : q.shape[0]], value[:, q.shape[0] :]
        r = (V1 @ to_device(self.nodes.root).T)[:, :, None]
        r = r + jnp.sum(B[:, :, None, None] * weights[None], axis=1)
        c = jnp.sum(p[None] * r, axis=1) + noise * jnp.sum(B[:, :, None] * t2[None], axis=1)
        misfit = jnp.sum(c * (c - to_device(self.nodes.label)), axis=0)
        f = jnp.sum(r * r, axis=(0, 1)) + noise * jnp.sum(B * B) - 2 * misfit
        return _AtPoints(f, jnp.sum(c * c, axis=0), squared, *self._statistics(squared), q, t2)

    def _statistics(self, squared: Array) -> tuple[Array, Array]:
        r"""Return $P$ and $\varrho$ at $\sigma^2$."""
        end = self.statistics.max_sharpness**2
        at = self.statistics(jnp.minimum(squared, end) if self.clipped else squared)
        return at["participation"], at["excess"]

    def _mean(self, terms: Array) -> Array:
        return jnp.mean(to_device(self.nodes.mass) * terms)


class _AtPoints(NamedTuple):
    r"""$f$, $|c|^2$, $\sigma^2$, $P$, $\varrho$, $CAx_q$ and $t_2$ at each point."""

    factor: Array
    square: Array
    sharpness: Array
    participation: Array
    excess: Array
    scored: Array
    label: Array


class Scores(NamedTuple):
    r"""$Ct_1$, $p=C(t_1+W^\top t_2)$, $t_2$ and $\sigma^2=|p|^2+s^2|t_2|^2$ at each point."""

    scored: Array
    p: Array
    label: Array
    squared: Array


def scores(
    nodes: Nodes,
    noise_variance: float | Float[Array, ""],
    key_query: Float[Array, "tokens tokens"],
) -> Scores:
    """Return the scores of a head at the points, and their sharpness."""
    root, query, weights = (to_device(one) for one in (nodes.root, nodes.query, nodes.weights))
    dim = query.shape[0]
    q, t2 = root @ key_query[:dim, :dim] @ query, key_query[dim:, :dim] @ query
    p = q + jnp.sum(t2[:, None] * weights, axis=0)
    squared = jnp.sum(p * p, axis=0) + noise_variance * jnp.sum(t2 * t2, axis=0)
    return Scores(q, p, t2, squared)


def _slopes(
    statistics: WeightInterpolant, sharpness: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Return the slopes in $\sigma^2$ of lines near P and $\varrho$, given $m=E\,\sigma^2$.

    The mean slope from 0 to 3m by two Gauss nodes, which is smooth at m = 0.
    """
    nodes = to_device([1.5 - 0.75**0.5, 1.5 + 0.75**0.5]) * sharpness
    inside = jnp.minimum(nodes, statistics.max_sharpness**2)
    _, slope = jax.jvp(statistics, (inside,), (jnp.ones_like(inside),))
    return jnp.mean(slope["participation"]), jnp.mean(slope["excess"])
