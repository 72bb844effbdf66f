r"""The exact risk of one softmax head on Gaussian regression, as a function of its parameters.

Symbols: $W$ are the hidden weights (for one label the row $w^\top$) and $x_q$ are the covariates of
the query. The labels of the query are $y=Wx_q\in\mathbb R^m$ without noise, and $y_q$ with noise of
variance $s^2$. Given $W$, tokens are $N(0,\Gamma_W)$. The head has the tilt $t=U(x_q,0)$ and the
squared sharpness $\sigma^2=t^\top\Gamma_Wt$, and $V$ denotes the last m rows of its value matrix.
The prediction of the head over an infinite prompt is $c=V\Gamma_Wt$. Over prompts of L tokens,

$$E[|\text{prediction}-y_q|^2\mid W,x_q]=|c-y|^2+m\,s^2+f\,P(\sigma^2)+|c|^2\varrho(\sigma^2),\qquad
f=\mathrm{tr}V\Gamma_WV^\top-2c\cdot(c-y),$$

where $P=E\,S_2$ and $\varrho=E\,S_2-6E\,S_3+6E\,S_2^2$ depend only on L and $\sigma^2$. Here $S_k$
is the sum of the k-th powers of the softmax weights. docs/tasks.md derives the formula.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

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
    r"""Tabulate the statistics of softmax weights for risks at several lengths.

    Later flows, training runs and risks in the same process reuse the tables. The tables for twenty
    lengths take as long as those for one or two.

    Args:
        lengths: prompt lengths, whole numbers from 1 to 1e30.
        max_sharpness: the largest sharpness $\sigma$ (standard deviation of the scores at one
            query) in the tables; flows use 16.

    >>> import promptlimit as pl
    >>> pl.tasks.tabulate_risks([10, 20], max_sharpness=2.0)
    """
    tokens = tuple(float(one) for one in checked_lengths(lengths).ravel() if np.isfinite(one))
    tabulate(_STATISTICS, tokens, float(max_sharpness))


def risk_statistics(length: float, max_sharpness: float) -> WeightInterpolant:
    r"""Return $P$ and $\varrho$ as functions of $\sigma^2$, named "participation" and "excess".

    $\varrho$ is a linear combination of three statistics. Their tables have the same intervals of
    $\sigma^2$, so the combination is again a table.
    """
    interpolant = weight_interpolant(length, max_sharpness=max_sharpness, statistics=_STATISTICS)
    participation, cubic, square = interpolant.tables
    excess = participation - 6 * cubic + 6 * square
    tables, names = (participation, excess), ("participation", "excess")
    return dataclasses.replace(interpolant, tables=tables, statistics=names)


def of_any_length(statistics: WeightInterpolant) -> WeightInterpolant:
    """Return the statistics without their length and errors, so that lengths share a program."""
    return dataclasses.replace(statistics, lengths=(1.0,), error=0.0, slope_error=0.0)


def with_arrays(tree: TreeT) -> TreeT:
    """Return a tree with arrays in place of floats, so that all their values share one program."""
    return jax.tree.map(lambda leaf: to_device(leaf) if isinstance(leaf, float) else leaf, tree)


def perturbed(statistics: WeightInterpolant) -> WeightInterpolant:
    r"""Return the statistics plus bounds of their errors.

    The values of $P$ change by `error` and its slopes by `slope_error`, both relative to $P$. The
    change of $\varrho=P-6E\,S_3+6E\,S_2^2$ is 13 times as large, because $E\,S_3\le P$ and
    $E\,S_2^2\le P$.
    """
    participation, excess = statistics.tables
    size = np.abs(participation[..., :1, :])
    slope = 0.5 * statistics.slope_error * statistics.width
    change = np.zeros_like(participation)
    change[..., :1, :], change[..., 1:2, :] = statistics.error * size, slope * size
    tables = (participation + change, excess + 13 * change)
    return dataclasses.replace(statistics, tables=tables)


class PointMeans(NamedTuple):
    r"""Weighted means over points, from which `SoftmaxRisk.combined` computes the risk.

    Here $c^2$ denotes $|c|^2$. A bar denotes the mean over W given the query, in closed form. $P_0$
    and $\varrho_0$ are $P$ and $\varrho$ at $\bar\sigma^2$, so they depend only on the query.

    Attributes:
        participation: the mean of $P_0$, divided by the mean mass of the points.
        excess: the mean of $\varrho_0$, divided by the mean mass of the points.
        sharpness: the mean of $\bar\sigma^2$, divided by the mean mass of the points.
        factor: the mean of $\bar f$.
        square: the mean of $\overline{c^2}$.
        factor_sharpness: the mean of $f(\sigma^2-\bar\sigma^2)+\bar f\,\bar\sigma^2$.
        square_sharpness: the mean of $c^2(\sigma^2-\bar\sigma^2)+\overline{c^2}\,\bar\sigma^2$.
        finite: the mean of $f(P-P_0)+c^2(\varrho-\varrho_0)+\bar f P_0+\overline{c^2}\varrho_0$.
        beyond: the mean of a function that is $f(1-P)+c^2(1-\varrho)$ at points whose sharpness
            exceeds the range of the tables, and 0 at the other points.
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
    """One softmax head on Gaussian regression at one length.

    The array `value` contains the last m rows of the value matrix, which predict the labels. The
    tables for the lengths `together` are computed in one pass.
    """

    task: LinearRegression
    length: float
    key_query: Float[Array, "tokens tokens"]
    value: Float[Array, "m tokens"]
    together: tuple[float, ...] = ()


class SoftmaxRisk(eqx.Module):
    r"""The risk $R_L(U, V)$ of a softmax head, averaged over fixed points $(W, x_q)$.

    Let $\ell_P$ and $\ell_\varrho$ be linear functions of $\sigma^2$ that approximate $P$ and
    $\varrho$, called lines. For one label,

    $$2R_L=E(c-y)^2+s^2+E[f\,\ell_P+c^2\ell_\varrho]+E[f(P-\ell_P)+c^2(\varrho-\ell_\varrho)].$$

    Only the last term is a sum over points; it vanishes as the prompt grows. The other terms are
    polynomials in the parameters with closed forms.

    `risk_function` uses the slopes of `_slopes`. `risk` multiplies both slopes by the factor for
    which independent point sets differ least. This factor reduces the error eightfold for block
    heads, $U=\mathrm{diag}(A,0)$ and $V=(0,b)$, over short prompts. Objectives and flows use slope
    zero, because with few points and other slopes the risk decreases without bound at large
    parameters. For labels in $\mathbb R^m$, $m>1$, all lines have slope zero.

    Attributes:
        task: the regression.
        statistics: $P$ and $\varrho$ at one length.
        nodes: the points $(W, x_q)$.
        slope_share: the factor on the slopes of the lines. None means slope zero and no closed-form
            means over W given the query. With these means a call takes 1.9 times as long, and for
            the few points of a flow they do not reduce the error.
        clipped: whether the statistics keep their last value beyond the range of the tables; if
            False, they are NaN there.
        saturated: 1 to set the statistics of a clipped risk to 1, their limit for large $\sigma$,
            beyond the tables; otherwise 0. It is a number, so that both cases share a compiled
            program. It has no effect if `slope_share` is None.
    """

    task: LinearRegression
    statistics: WeightInterpolant
    nodes: Nodes
    slope_share: float | None = 1.0
    clipped: bool = eqx.field(static=True, default=False)
    saturated: float = 0.0

    @property
    def length(self) -> float:
        """$L$, the number of tokens of a prompt."""
        return self.statistics.lengths[0]

    @property
    def max_sharpness(self) -> float:
        r"""The largest $\sigma$ in the tables; beyond it the risk is NaN unless it is `clipped`."""
        return self.statistics.max_sharpness

    def __call__(
        self, key_query: Float[Array, "tokens tokens"], value_row: Float[Array, "*m tokens"]
    ) -> Float[Array, ""]:
        r"""Return $R_L$ at $U$ and the last row of the value matrix.

        For labels in $\mathbb R^m$, pass the last m rows as an array of shape [m, tokens]. Unless
        `clipped` is set, the result is NaN if the sharpness at a point exceeds the range of the
        tables. Call the method inside `jax.enable_x64(True)`. It supports `jax.jit` and `jax.grad`.
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
        """The sum of the noise variances of the labels."""
        return self.task.label_dim * self.task.noise_variance

    def sharpness(self, key_query: Float[Array, "tokens tokens"]) -> Float[Array, ""]:
        r"""Return the largest $\sigma$ at any point."""
        found = scores(self.nodes, self.task.noise_variance, to_device(key_query))
        return jnp.sqrt(jnp.max(found.squared))

    def means(
        self, key_query: Float[Array, "tokens tokens"], value: Float[Array, "m tokens"]
    ) -> PointMeans:
        """Return the means over the points that `combined` needs."""
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
            """Return the mean of (known - terms) * factor; `known` has one entry per query."""
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
            finite=finite + self.saturated * lost,
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
        r"""Return the risk, with closed forms in place of the means of $f\,\ell_P+c^2\ell_\varrho$.

        Each line is $\ell=h+\kappa\sigma^2$ with the height h fitted to `all_means`, the means over
        the points of all sets. `means` are the means over each set. The risk is linear in
        `slope_share`.
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
        r"""Return f, $|c|^2$, $\sigma^2$ and the statistics at each point.

        Write $V=(V_1,B)$, split into covariates and labels, and let $r_i$ be the rows of
        $(V_1+BW)C^\top$. With $t_2$, $p$ and C of `Scores`,
        $c_i=\langle p,r_i\rangle+s^2(Bt_2)_i$ and
        $\mathrm{tr}V\Gamma_WV^\top=\sum_i|r_i|^2+s^2|B|^2$.
        """
        noise, weights = self.task.noise_variance, to_device(self.nodes.weights)
        q, p, t2, squared = scores(self.nodes, noise, to_device(key_query))
        V1, B = value[:, : q.shape[0]], value[:, q.shape[0] :]
        r = (V1 @ to_device(self.nodes.root).T)[:, :, None]
        r = r + jnp.sum(B[:, :, None, None] * weights[None], axis=1)
        c = jnp.sum(p[None] * r, axis=1) + noise * jnp.sum(B[:, :, None] * t2[None], axis=1)
        misfit = jnp.sum(c * (c - to_device(self.nodes.label)), axis=0)
        f = jnp.sum(r * r, axis=(0, 1)) + noise * jnp.sum(B * B) - 2 * misfit
        return _AtPoints(f, jnp.sum(c * c, axis=0), squared, *self._statistics(squared), q, t2)

    def _statistics(self, squared: Array) -> tuple[Array, Array]:
        r"""Return $P$ and $\varrho$ at squared sharpnesses $\sigma^2$."""
        end = self.statistics.max_sharpness**2
        at = self.statistics(jnp.minimum(squared, end) if self.clipped else squared)
        return at["participation"], at["excess"]

    def _mean(self, terms: Array) -> Array:
        return jnp.mean(to_device(self.nodes.mass) * terms)


class _AtPoints(NamedTuple):
    r"""$f$, $|c|^2$, $\sigma^2$, $P$, $\varrho$, $Ct_1$ and $t_2$ at each point, in this order."""

    factor: Array
    square: Array
    sharpness: Array
    participation: Array
    excess: Array
    scored: Array
    label: Array


class Scores(NamedTuple):
    r"""$Ct_1$, $p=C(t_1+W^\top t_2)$, $t_2$ and $\sigma^2=|p|^2+s^2|t_2|^2$ at each point.

    Here $(t_1,t_2)=U(x_q,0)$ is the tilt, and C is the matrix of `covariance_factor`, with
    $C^\top C=\Sigma$. All are arrays of NumPy or all are arrays of jax.
    """

    scored: Any
    p: Any
    label: Any
    squared: Any


def scores(
    nodes: Nodes,
    noise_variance: float | Float[Array, ""],
    key_query: Float[Array | np.ndarray, "tokens tokens"],
) -> Scores:
    """Return the `Scores` of the head with U = `key_query` at the points.

    They are NumPy arrays if all arguments are, otherwise jax arrays.
    """
    dim = nodes.query.shape[0]
    q = nodes.root @ key_query[:dim, :dim] @ nodes.query
    t2 = key_query[dim:, :dim] @ nodes.query
    p = q + (t2[:, None] * nodes.weights).sum(axis=0)
    squared = (p * p).sum(axis=0) + noise_variance * (t2 * t2).sum(axis=0)
    return Scores(q, p, t2, squared)


def largest_sharpness(nodes: Nodes, task: LinearRegression, key_query: Array) -> float:
    r"""Return the largest $\sigma$ at any point.

    It is computed by NumPy, to avoid compilation. `SoftmaxRisk.sharpness` works inside `jit`.
    """
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        squared = scores(nodes, float(task.noise_variance), np.asarray(key_query)).squared
    return math.sqrt(squared.max())


def _slopes(
    statistics: WeightInterpolant, sharpness: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    r"""Return the mean slopes of $P$ and $\varrho$ for $\sigma^2$ from 0 to $3E\,\sigma^2$.

    The argument `sharpness` is $E\,\sigma^2$. The means are over two Gauss nodes, so the result is
    smooth where $E\,\sigma^2=0$.
    """
    nodes = to_device([1.5 - 0.75**0.5, 1.5 + 0.75**0.5]) * sharpness
    inside = jnp.minimum(nodes, statistics.max_sharpness**2)
    _, slope = jax.jvp(statistics, (inside,), (jnp.ones_like(inside),))
    return jnp.mean(slope["participation"]), jnp.mean(slope["excess"])
