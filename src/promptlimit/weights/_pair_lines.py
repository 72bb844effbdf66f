r"""The law of a token along two tilts, as integrals over pairs of vertical lines.

A token has the scores $s_1$ and $s_2$ at the tilts $t_1$ and $t_2$. With $x_1=e^{s_1+u}$ and
$x_2=e^{s_2+v}$, Mellin's inversion formula in both variables is

    E[f x_1^j x_2^k e^{-x_1-x_2}] = (2 pi i)^{-2} iint Gamma(j-c_1) Gamma(k-c_2) e^{c_1 u + c_2 v}
                                    E[f e^{c_1 s_1 + c_2 s_2}] dc_1 dc_2,

where $E\,e^{c_1s_1+c_2s_2}=e^{\Lambda(c_1t_1+c_2t_2)}$. On a pair of lines for $c_1$ and $c_2$, the
integral for all u and v is a product of three matrices. The line for $c_1$ depends on u: it is one
of `_LINES` on which the integrand of head 1 alone is near its minimum at the real axis. Likewise,
the line for $c_2$ depends on v and head 2. On the line at 1/2, to the right of the pole at 0,
$e^{-x}-1$ replaces $e^{-x}$, and transforms of the other head alone are added, so that no digits
are lost.
"""

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from scipy.special import loggamma

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.measures import AbstractMeasure
from promptlimit.weights._lines import score_law
from promptlimit.weights._pair_sums import listed_pairs
from promptlimit.weights._pairs import (
    AbstractPairLaw,
    AbstractPairTransforms,
    HeadPair,
    Spacing,
    Window,
)
from promptlimit.weights._ray import Complex, Ray
from promptlimit.weights._score_law import EPSILON, AbstractScoreLaw

_LINES = np.array([0.5, -0.5, -1.5, -3.0, -5.0, -8.0, -13.0])
"""The points at which the lines cross the real axis."""

_NODE_STEP = 0.1
"""The step between nodes on a line. It is twice as large on lines to the left of `_FAR`."""

_FAR = -1.0
_SLACK = 4.0
"""The largest excess of the logarithm of an integrand on the real axis over its minimum."""

_HIGHEST = 28.0
"""The largest imaginary part of a node. Above it, the gamma function is negligible."""

_CHUNK = 4096


@dataclasses.dataclass(frozen=True)
class LinePairs(AbstractPairLaw):
    """The law of a token along two tilts, for any law whose log-Laplace transform is analytic.

    Attributes:
        measure: the law of a token, in double precision.
        pair: two heads.
    """

    measure: AbstractMeasure
    pair: HeadPair

    @cached_property
    def laws(self) -> tuple[AbstractScoreLaw, AbstractScoreLaw]:
        """The laws of a token along the first and the second tilt."""
        first, second = (score_law(self.measure, tilt) for tilt in self.pair.tilts)
        return first, second

    def windows(self, left: float, shortest: float) -> tuple[Window, Window]:
        ends = (law.window(2.0, shortest)[1] + law.log_mean for law in self.laws)
        first, second = ((-left, end) for end in ends)
        return first, second

    def at(self, u: Array, v: Array, count: int) -> "LineTransforms":  # noqa: ARG002
        return LineTransforms(self, u, v)

    def rounding(self, lengths: Array) -> Array:
        """Return the relative rounding errors. They grow with L on the line at 1/2."""
        return 16.0 * EPSILON * (2.0 + lengths)


def pair_law(
    measure: AbstractMeasure, pair: HeadPair, spacing: Spacing, *, by_values: bool = False
) -> AbstractPairLaw:
    """Return the law of a token along two tilts.

    Lists and mixtures of Gaussians use `listed_pairs`, which describes the arguments. Other laws
    use `LinePairs`, whose methods raise NotAnalyticError if the transform is not analytic.

    Raises:
        AccuracyError: the scores are too sharp for the nodes.
    """
    parts = measure.gaussian_parts()
    if parts is None:
        return LinePairs(np.stack([np.eye(len(pair.values[0]))] * 2), measure, pair)
    return listed_pairs(parts, pair, spacing, by_values=by_values)


class _Single(NamedTuple):
    r"""Transforms of one head: $\varphi-1$, [u], and $F_1$ of its values and of 1, [e + 1, u]."""

    complement: Array
    first: Array


def _single(law: AbstractScoreLaw, value: Array, places: Array) -> _Single:
    u = places - law.log_mean
    scores, products = law.scores(u), law.products(2, u)
    rows = list(law.readings(value, law.ends(value)[0], products))
    centred = np.concatenate([slopes for _, slopes, *_ in rows])
    drift, _ = products.lower(centred, np.concatenate([errors for *_, errors, _ in rows]))
    return _Single(np.expm1(scores.log_phi), np.vstack([drift.T, scores.mass]))


class _Group(NamedTuple):
    r"""A line of one head, and the nodes u (head 1) or v (head 2) that use it.

    Attributes:
        part: the indices of these nodes.
        multiples: the nodes c of the line, [j].
        kernel: $\Gamma(-c)e^{cu}$ with the weights of the rule, [j, u].
        is_right: whether the line is to the right of 0.
    """

    part: slice
    multiples: Complex
    kernel: Complex
    is_right: bool

    @property
    def heat(self) -> Complex:
        r"""$\Gamma(1-c)e^{cu}$, with the weights of the rule."""
        return -self.multiples[:, None] * self.kernel


class _Block(NamedTuple):
    r"""A line of each head, and means over a token at all pairs of nodes c of the two lines.

    Attributes:
        one: the line of the first head, with nodes in the upper half plane only.
        two: the line of the second head, with nodes in both half planes.
        masses: $E\,e^{c_1s_1+c_2s_2}$, [j, k].
        values: $E[f\,e^{c_1s_1+c_2s_2}]$ for f the values of each head and 1, [2, e + 1, j, k].
        products: these means for f the products of an entry of head 1 and an entry of head 2,
            [e + 1, e + 1, j, k].
    """

    one: _Group
    two: _Group
    masses: Complex
    values: Complex
    products: Complex


class LineTransforms(AbstractPairTransforms):
    """Transforms of one token, computed as sums over pairs of nodes."""

    def __init__(self, law: LinePairs, u: Array, v: Array):
        self.law, self.outputs = law, len(law.pair.values[0])
        self._shape = u.size, v.size
        pairs = zip(law.laws, law.pair.values, (u, v), strict=True)
        singles = [_single(*one) for one in pairs]
        self._blocks = list(self._all_blocks(u, v))
        self.log_phi = self._log_phi(singles)
        self._means = [self._first(head, singles[head]) for head in (0, 1)]
        if not (np.isfinite(self.log_phi).all() and np.isfinite(self._means).all()):
            raise AccuracyError(
                "the transform of the scores must be finite on pairs of lines, got one that is "
                "not. Scale the attention down.",
                argument="attention",
            )

    def first(self, head: int) -> Array:
        return self._means[head]

    def _all_blocks(self, u: Array, v: Array) -> Iterator[_Block]:
        laws, (one, two) = self.law.laws, self.law.pair.tilts
        ones = list(_groups(self.law.measure, laws[0], one, u, is_half=True))
        twos = list(_groups(self.law.measure, laws[1], two, v, is_half=False))
        limits = [law.ends(value)[0] for law, value in zip(laws, self.law.pair.values, strict=True)]
        for first in ones:
            for second in twos:
                log_mass, left, right, mixed = _moments(self.law, first.multiples, second.multiples)
                masses = np.exp(log_mass)
                left, right = left - limits[0], right - limits[1]
                unit = np.ones((*masses.shape, 1))
                left, right = np.concatenate([left, unit], 2), np.concatenate([right, unit], 2)
                products = left[..., :, None] * right[..., None, :]
                products[..., :-1, :-1] += mixed
                yield _Block(
                    first,
                    second,
                    masses,
                    np.stack([np.moveaxis(row, 2, 0) for row in (left, right)]) * masses,
                    np.moveaxis(products, (2, 3), (0, 1)) * masses,
                )

    def _log_phi(self, singles: list[_Single]) -> Array:
        r"""Return $\log\varphi$, from $\varphi-1$ if both lines are to the right of 0."""
        log_phi = np.empty(self._shape)
        for one, two, masses, *_ in self._blocks:
            found = (one.kernel.T @ masses @ two.kernel).real
            first = singles[0].complement[one.part, None] if two.is_right else 0.0
            second = singles[1].complement[two.part] if one.is_right else 0.0
            if one.is_right and two.is_right:
                found = np.log1p(np.maximum(found + first + second, EPSILON - 1.0))
            else:
                found = found + (1.0 + first if two.is_right else 0.0)
                found = found + (1.0 + second if one.is_right else 0.0)
                found = np.log(np.maximum(found, 1e-300))
            log_phi[one.part, two.part] = found
        return np.minimum(log_phi, 0.0)

    def _first(self, head: int, single: _Single) -> Array:
        total = np.empty((self.outputs + 1, *self._shape))
        for one, two, _, values, _ in self._blocks:
            kernels = (one.heat, two.kernel) if head == 0 else (one.kernel, two.heat)
            found = (kernels[0].T @ values[head] @ kernels[1]).real
            if head == 0 and two.is_right:
                found = found + single.first[:, one.part, None]
            if head == 1 and one.is_right:
                found = found + single.first[:, None, two.part]
            total[:, one.part, two.part] = found
        return total

    def second(self, weights: Array) -> tuple[Array, Array, Array]:
        size = self.outputs + 1
        total = np.zeros((len(weights), size, size))
        for one, two, _, _, products in self._blocks:
            for m, w in enumerate(weights):
                shares = one.heat @ w[one.part, two.part] @ two.heat.T
                total[m] += np.tensordot(products, shares, axes=2).real
        return total, np.zeros((len(weights), self.outputs, self.outputs)), total[:, -1, -1].copy()


def _groups(
    measure: AbstractMeasure, law: AbstractScoreLaw, tilt: Array, places: Array, *, is_half: bool
) -> Iterator[_Group]:
    """Yield the lines of one head for the nodes u or v in `places`.

    If `is_half` is set, nodes c are in the upper half plane only, with twice the weight.
    """
    axis = Ray(measure, tilt).log_laplace(_LINES)
    u = places - law.log_mean
    sizes = loggamma(-_LINES + 0j).real + axis + np.outer(u, _LINES)
    sizes = np.where(np.isfinite(sizes), sizes, np.inf)
    is_good = sizes <= sizes.min(axis=1, keepdims=True) + _SLACK
    start = 0
    while start < u.size:
        runs = [int(np.argmin(np.append(column, False))) for column in is_good[start:].T]
        best = int(np.argmax(runs))
        stop, real = start + runs[best], float(_LINES[best])
        step = _NODE_STEP if real > _FAR else 2.0 * _NODE_STEP
        last = round(_HIGHEST / step)
        heights = step * np.arange(0 if is_half else -last, last + 1)
        c = (real + 1j * heights).astype(np.complex128)
        weights = np.full(c.size, step / (2.0 * np.pi) * (2.0 if is_half else 1.0))
        if is_half:
            weights[0] *= 0.5
        part = slice(start, stop)
        kernel = weights[:, None] * np.exp(loggamma(-c)[:, None] + np.outer(c, u[part]))
        yield _Group(part, c, kernel, real > 0.0)
        start = stop


def _moments(
    law: LinePairs, one: Complex, two: Complex
) -> tuple[Complex, Complex, Complex, Complex]:
    r"""Return $\Lambda$, $V_1\nabla\Lambda$, $V_2\nabla\Lambda$ and $V_1\nabla^2\Lambda V_2'$.

    They are evaluated at $c_1t_1+c_2t_2$ for all $c_1$ in `one` and $c_2$ in `two`, [j, k, ...]. If
    the tilts are parallel, these points are multiples of $t_1$, and equal multiples are evaluated
    once.
    """
    t1, t2 = law.pair.tilts
    first, second = (grid.ravel() for grid in np.meshgrid(one, two, indexing="ij"))
    inverse = np.arange(first.size)
    ratio = float(t1 @ t2) / max(float(t1 @ t1), 1e-300)
    if np.abs(t2 - ratio * t1).max() <= 1e-14 * np.abs(t2).max(initial=1e-300):
        multiples, inverse = np.unique(np.round(first + ratio * second, 12), return_inverse=True)
        first, second = multiples, np.zeros_like(multiples)
    pieces = []
    for start in range(0, first.size, _CHUNK):
        rows = [np.zeros(_CHUNK, dtype=np.complex128) for _ in (0, 1)]
        count = min(_CHUNK, first.size - start)
        for row, multiples in zip(rows, (first, second), strict=True):
            row[:count] = multiples[start : start + count]
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
            arrays = [[jnp.asarray(one) for one in both] for both in (*law.pair, rows)]
            found = _pair_derivatives(law.measure, *arrays)
            pieces.append([np.asarray(part)[:count] for part in found])
    columns = (np.concatenate(column)[inverse] for column in zip(*pieces, strict=True))
    log_mass, *slopes, mixed = (
        column.reshape(one.size, two.size, *column.shape[1:]) for column in columns
    )
    return log_mass, slopes[0], slopes[1], mixed


@eqx.filter_jit
def _pair_derivatives(
    measure: AbstractMeasure,
    tilts: list[JaxArray],
    values: list[JaxArray],
    multiples: list[JaxArray],
) -> tuple[JaxArray, JaxArray, JaxArray, JaxArray]:
    (t1, t2), (v1, v2) = tilts, values

    def at(one: JaxArray, two: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray, JaxArray]:
        def moved(a: JaxArray, b: JaxArray) -> JaxArray:
            return measure.log_laplace(one * t1 + two * t2 + a @ v1 + b @ v2)

        a, b = jnp.zeros(v1.shape[0], one.dtype), jnp.zeros(v2.shape[0], one.dtype)
        left = jax.grad(moved, argnums=0, holomorphic=True)
        right = jax.grad(moved, argnums=1, holomorphic=True)
        mixed = jax.jacfwd(left, argnums=1, holomorphic=True)(a, b)
        return moved(a, b), left(a, b), right(a, b), mixed

    return jax.vmap(at)(*multiples)
