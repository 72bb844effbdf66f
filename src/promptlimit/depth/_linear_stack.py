r"""A stack of linear layers over L Gaussian tokens, exact at every L.

Layer l has the residual R_l and heads with key-query matrices U_l^h and value matrices V_l^h. The
layer multiplies all tokens and the query by one matrix M_l, so the output of K layers at a query z
is a polynomial of degree $D_K=(3^K-1)/2$ in the second moment $S=\frac1L\sum_iz_iz_i^\top$:

    M_l = R_l + sum_h V_l^h P_l S P_l' U_l^h,     P_{l+1} = M_l P_l,     P_0 = I,     output P_K z

Write $z_i=m+Bx_i$ with $x_i\sim N(0,I_r)$ of mean $\bar x=g/\sqrt L$. Then S is a function of
$g\sim N(0,I)$ and of the independent matrix
$\sum_ix_ix_i^\top-gg^\top\sim\mathrm{Wishart}_r(L-1,I)$. If m = 0, S is a function of a
$\mathrm{Wishart}_r(L,I)$ matrix alone. A Wishart matrix with n degrees of freedom is $TT^\top$. The
matrix T is lower trapezoidal, with normals below the diagonal and $T_{jj}^2\sim\chi^2_{n-j}$ for
j = 0, 1, ... (Bartlett). A product of Gauss rules in these random numbers is exact for polynomials.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.random import Generator

from promptlimit._arrays import Array, as_float64
from promptlimit._quadrature import chi2_gauss, normal_gauss
from promptlimit.depth._gaussian_stack import LayerMatrices

MOST_NODES = 2**18
"""The largest number of nodes of a product of Gauss rules; beyond it, prompts are simulated."""

_CHUNK = 2**13
"""The number of prompts that are processed at a time."""

_MANY = 1e8
"""With at least this many degrees of freedom, a chi-square is approximated by a skewed normal."""


@dataclasses.dataclass(frozen=True)
class BartlettDraws:
    r"""The random numbers g and T of n prompts of L tokens.

    Attributes:
        length: $L$.
        mean_normals: $g$, [n, r]; None when the tokens are centred.
        excess: $y_j=(T_{jj}^2-f)/\sqrt{2f}$ with $f$ the degrees of freedom of $T_{jj}^2$,
            [n, columns].
        normals: the entries of T below its diagonal, row by row, [n, below].
    """

    length: float
    mean_normals: Array | None
    excess: Array
    normals: Array

    def second_moment_error(self, root: Array, mean: Array) -> Array:
        r"""Return $S-E\,S$, [n, d, d], without cancellation.

            S - E S = B (sum xx'/L - I) B' + m (B g)'/sqrt L + (B g) m'/sqrt L

        Args:
            root: $B$, [d, r].
            mean: $m$, [d].
        """
        spread = self._wishart_error(root.shape[1])
        if self.mean_normals is None:
            return root @ (spread / self.length) @ root.T
        g = self.mean_normals
        spread = (spread + g[:, :, None] * g[:, None, :] - np.eye(g.shape[1])) / self.length
        across = mean[:, None] * (g @ root.T)[:, None, :] / math.sqrt(self.length)
        return root @ spread @ root.T + across + across.swapaxes(1, 2)

    def _wishart_error(self, dim: int) -> Array:
        r"""Return $TT^\top-fI$, [n, r, r], with f the degrees of freedom of $TT^\top$."""
        count, columns = self.excess.shape
        freedom = _freedom(self.length, self.mean_normals is not None)
        steps = np.arange(columns)
        chi2_error = np.sqrt(2.0 * (freedom - steps)) * self.excess
        factor = np.zeros((count, dim, columns))
        factor[:, steps, steps] = np.sqrt(np.maximum(freedom - steps + chi2_error, 0.0))
        rows, places = np.tril_indices(dim, -1, columns)
        factor[:, rows, places] = self.normals
        product = factor @ factor.swapaxes(1, 2)
        below = factor.copy()
        below[:, steps, steps] = 0.0
        diagonal = np.sum(below**2, axis=2) - np.where(np.arange(dim) < columns, 0.0, freedom)
        diagonal[:, steps] += chi2_error - steps
        every = np.arange(dim)
        product[:, every, every] = diagonal
        return product


def _freedom(length: float, with_mean: bool) -> float:
    """Return the degrees of freedom of the Wishart matrix."""
    return length - 1.0 if with_mean else length


@dataclasses.dataclass(frozen=True)
class LinearStack:
    r"""Linear layers over tokens $N(m, BB^\top)$, at one query.

    Attributes:
        layers: the matrices of the layers, from the first to the last.
        mean: $m$, [d].
        root: $B$, [d, r].
        query: $z$, [d].
    """

    layers: tuple[LayerMatrices, ...]
    mean: Array
    root: Array
    query: Array

    @property
    def degree(self) -> int:
        r"""The degree $D_K=(3^K-1)/2$ of the output in the second moment."""
        return (3 ** len(self.layers) - 1) // 2

    @cached_property
    def _limits(self) -> tuple[Array, list[Array], list[Array]]:
        """The limit of S, and the limits of every $M_l$ and $P_l$."""
        second = self.root @ self.root.T + np.outer(self.mean, self.mean)
        path = np.eye(self.mean.size)
        maps, paths = [], [path]
        for layer in self.layers:
            maps.append(layer.residual + layer.read(path @ second @ path.T))
            path = maps[-1] @ path
            paths.append(path)
        return second, maps, paths

    @property
    def limit(self) -> Array:
        """The output over an infinite prompt, [e]."""
        return self._limits[2][-1] @ self.query

    def deviations(self, second_error: Array) -> tuple[Array, Array]:
        r"""Return the linear and the nonlinear part of output minus limit, each [n, e].

        In this method, let S and P be the limits of the second moment and of $P_l$, and
        E = `second_error` the second moment of a prompt minus S. The first part is linear in E and
        has mean zero, so the bias is the mean of the second part. For a prompt,
        $P_l=P+\delta$ with $\delta=\delta^1+\rho$ and $\delta^1$ linear in E. The two parts of
        $P_l(S+E)P_l^\top-PSP^\top$ are computed without cancellation:

            delta1 S P' + P E P' + P S delta1'    and    rho S P' + delta (E (P+delta)' + S delta')
                                                         + P E delta' + P S rho'
        """
        second, maps, paths = self._limits
        first = np.zeros((second_error.shape[0], *second.shape))
        rest = first
        for layer, matrix, path in zip(self.layers, maps, paths[:-1], strict=True):
            moved = first + rest
            across, turned = path @ second, moved.swapaxes(1, 2)
            linear = first @ across.T + path @ second_error @ path.T + across @ first.swapaxes(1, 2)
            error = rest @ across.T + across @ rest.swapaxes(1, 2) + path @ second_error @ turned
            error = error + moved @ (second_error @ (path.T + turned) + second @ turned)
            read = layer.read(linear)
            rest = layer.read(error) @ (path + moved) + read @ moved + matrix @ rest
            first = read @ path + matrix @ first
        return first @ self.query, rest @ self.query

    def exact_moments(self, length: float) -> tuple[Array, Array, float]:
        """Return the bias, covariance and mean squared error of the output over L tokens."""
        size = self.limit.size
        bias, square = np.zeros(size), np.zeros((size, size))
        for draws, weights in self._nodes(length):
            first, rest = self.deviations(draws.second_moment_error(self.root, self.mean))
            bias += weights @ rest
            square += (weights[:, None] * (first + rest)).T @ (first + rest)
        return bias, square - np.outer(bias, bias), float(np.trace(square))

    def node_count(self, length: float) -> float:
        """Return the number of nodes of `exact_moments`."""
        chi2, normal, columns, below, with_mean = self._shape(length)
        return float(chi2) ** columns * float(normal) ** (below + with_mean)

    def _shape(self, length: float) -> tuple[int, int, int, int, int]:
        """Return the numbers of nodes per chi-square and per normal, and three counts of variables.

        The variables are the diagonal entries of T, the entries below them, and the entries of g.
        With D = `degree`, squares of the output have degree 2D in a chi-square and 4D in a normal.
        Odd powers of $T_{jj}$ only multiply odd powers of normals, whose mean is zero.
        """
        with_mean = bool(self.mean.any())
        rank = self.root.shape[1]
        columns = int(min(_freedom(length, with_mean), rank))
        below = np.tril_indices(rank, -1, columns)[0].size
        return self.degree + 1, 2 * self.degree + 1, columns, below, rank * with_mean

    def _nodes(self, length: float) -> Iterator[tuple[BartlettDraws, Array]]:
        """Yield the nodes and weights of the product of all Gauss rules, in chunks."""
        chi2, normal, columns, below, with_mean = self._shape(length)
        freedom = _freedom(length, with_mean > 0)
        rules = [chi2_gauss(freedom - step, chi2) for step in range(columns)]
        rules += [normal_gauss(normal)] * (below + with_mean)
        places = itertools.product(*(range(rule[0].size) for rule in rules))
        while chunk := list(itertools.islice(places, _CHUNK)):
            index = np.array(chunk, dtype=np.int64).reshape(len(chunk), len(rules)).T
            picks = list(zip(rules, index, strict=True))
            points = np.stack([rule[0][i] for rule, i in picks] or [np.zeros(0)], axis=-1)
            weights = np.prod([np.ones(len(chunk)), *(rule[1][i] for rule, i in picks)], axis=0)
            points = points.reshape(len(chunk), len(rules))
            last = columns + below
            normals = points[:, last:] if with_mean else None
            yield (
                BartlettDraws(length, normals, points[:, :columns], points[:, columns:last]),
                weights,
            )

    def drawn_deviations(self, length: float, count: int, rng: Generator) -> tuple[Array, Array]:
        """Return `deviations` for random prompts, [count, e] each."""
        _, _, columns, below, with_mean = self._shape(length)
        freedom = as_float64(_freedom(length, with_mean > 0) - np.arange(columns))
        draws = BartlettDraws(
            length,
            rng.standard_normal((count, with_mean)) if with_mean else None,
            _chi2_excess(freedom, count, rng),
            rng.standard_normal((count, below)),
        )
        return self.deviations(draws.second_moment_error(self.root, self.mean))


def _chi2_excess(freedom: Array, count: int, rng: Generator) -> Array:
    r"""Return draws of $(\chi^2_f-f)/\sqrt{2f}$, [count, len(freedom)].

    For large f the result is $z+\frac{\sqrt2}{3\sqrt f}(z^2-1)+O(1/f)$ with z normal, which avoids
    cancellation.
    """
    if freedom.size and freedom.min() >= _MANY:
        z = rng.standard_normal((count, freedom.size))
        return z + math.sqrt(2.0) / 3.0 * (z**2 - 1.0) / np.sqrt(freedom)
    return (rng.chisquare(freedom, (count, freedom.size)) - freedom) / np.sqrt(2.0 * freedom)
