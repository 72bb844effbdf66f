r"""Cumulants of prompts along a finite Markov chain, by powers of its transfer matrix.

Each transition has a token. P is the transition matrix. For the token of the transition from i to
j, $s_{ij}$ is the score, $x_{ij}=e^{s_{ij}+u}$, and $y_{ij}$ is the value minus the limit. With m
transitions, a start row r and an end column c,

    Psi = r M^m c,   M_ij = P_ij exp(-x_ij (1 - <a, y_ij>)).

The cumulants $k_0$, $k_1$ and $k_2$ are $\log\Psi$ and its derivatives in a at a = 0. Let $\rho$ be
the largest eigenvalue of M. If the other eigenvalues are negligible after m steps,
$\log\Psi=m\log\rho+\log(r\,v)+\log(w\,c)-\log(w\,v)$ with the right and left eigenvectors v and w
of $\rho$. Otherwise powers of M are computed.

At small x, $k_1$ depends on the small difference of M and P, so digits could cancel. In the basis
S = [1, R], where R spans the vectors orthogonal to the stationary law $\pi$,
$S^{-1}PS=\mathrm{diag}(1,P_\perp)$. The first entry of the derivative of M is then
$-\sum\pi_iP_{ij}x_{ij}y_{ij}(1-e^{-x_{ij}})$, because y has mean zero under the tilted law.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from promptlimit._arrays import Array
from promptlimit.weights import EPSILON, NEGLIGIBLE, Cumulants

ENTRIES_AT_ONCE = 2**22
"""The number of entries of a jet of matrices that are computed in one block."""

_MOST_SQUARINGS = 12
"""The number of powers M, M**2, M**4, ... that are tested for a dominant eigenvalue."""

_RANK_ONE = 1e-13
_SMALL = 0.1
_LEAST = -0.5
"""The mean of exp(-x) - 1 below which the basis S loses digits."""

_NEWTON_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Jet:
    r"""Matrices that depend on a: $M+\sum_ia_iM_i+\frac12\sum_{ij}a_ia_jM_{ij}$, to second order.

    The vector a has f entries, and $M_{ij}$ is stored only for the first g = f - 1 of them.

    Attributes:
        value: $M$, [..., m, n].
        first: $M_i$, [f, ..., m, n].
        second: $M_{ij}$, [g, g, ..., m, n].
    """

    value: Array
    first: Array
    second: Array

    @staticmethod
    def constant(value: Array, directions: int) -> "Jet":
        """Return matrices that do not depend on a, a vector of `directions` entries."""
        pairs = (directions - 1,) * 2
        return Jet(value, np.zeros((directions, *value.shape)), np.zeros((*pairs, *value.shape)))

    def mapped(self, function: Callable[[Array], Array]) -> "Jet":
        """Return the jet of a linear function of the matrices."""
        return Jet(function(self.value), function(self.first), function(self.second))

    def __matmul__(self, other: "Jet") -> "Jet":
        count = len(self.second)
        left, right = self.first[:count], other.first[:count]
        crossed = left[:, None] @ right[None]
        return Jet(
            self.value @ other.value,
            self.value @ other.first + self.first @ other.value,
            self.value @ other.second
            + self.second @ other.value
            + crossed
            + crossed.swapaxes(0, 1).copy(),
        )

    def __add__(self, other: "Jet") -> "Jet":
        return Jet(self.value + other.value, self.first + other.first, self.second + other.second)

    def __sub__(self, other: "Jet") -> "Jet":
        return Jet(self.value - other.value, self.first - other.first, self.second - other.second)

    def part(self, rows: slice, columns: slice) -> "Jet":
        """Return blocks of the matrices."""
        return self.mapped(lambda array: array[..., rows, columns])

    def at(self, places: np.ndarray) -> "Jet":
        """Return some of the matrices, by their index on the axis before rows and columns."""
        return Jet(self.value[places], self.first[:, places], self.second[:, :, places])

    def transposed(self) -> "Jet":
        """Return the transposed matrices."""
        return self.mapped(lambda array: array.swapaxes(-1, -2))

    def put(self, places: np.ndarray, other: "Jet", valid: np.ndarray) -> None:
        """Copy the matrices of another jet to the `places` at which `valid`, [u], is true."""
        kept = valid[places]
        self.value[places[kept]] = other.value[kept]
        self.first[:, places[kept]] = other.first[:, kept]
        self.second[:, :, places[kept]] = other.second[:, :, kept]

    def log(self) -> "Jet":
        """Return the logarithm, entry by entry."""
        return self._logarithm(np.log(self.value), self.value)

    def log1p(self) -> "Jet":
        """Return log(1 + entry), entry by entry."""
        return self._logarithm(np.log1p(self.value), 1.0 + self.value)

    def _logarithm(self, value: Array, whole: Array) -> "Jet":
        first, count = self.first / whole, len(self.second)
        squares = first[:count, None] * first[None, :count]
        return Jet(value, first, self.second / whole - squares)


@dataclasses.dataclass(frozen=True)
class Chain:
    r"""A chain of n states, in the basis that separates its stationary law.

    Attributes:
        transitions: P, [n, n].
        stationary: $\pi$, [n].
    """

    transitions: Array
    stationary: Array

    @property
    def basis(self) -> tuple[Array, Array]:
        r"""S = [1, R] and its inverse, [n, n] each."""
        law = self.stationary
        size = law.size
        complement = np.linalg.svd(law[None])[2][1:].T
        basis = np.concatenate([np.ones((size, 1)), complement], axis=1)
        centred = np.eye(size) - np.outer(np.ones(size), law)
        return basis, np.concatenate([law[None], complement.T @ centred])

    def matrices(self, x: Array, y: Array) -> Jet:
        """Return the jet of M in the basis S, minus 1 in the first entry.

        Args:
            x: $x_{ij}$, [u, n, n].
            y: the features of each transition, [f, u, n, n]; all except the last two have mean zero
                under the tilted law.
        """
        basis, inverse = self.basis
        plain, complement = self.plain_matrices(x, y), -np.expm1(-x)
        value = self._plain() - inverse @ ((complement * self.transitions) @ basis)
        first = inverse @ (plain.first @ basis)
        flow, centred = self.stationary[:, None] * self.transitions, len(y) - 2
        value[..., 0, 0] = -np.sum(complement * flow, axis=(-2, -1))
        first[:centred, ..., 0, 0] = -np.sum(y[:centred] * (x * complement * flow), axis=(-2, -1))
        return Jet(value, first, inverse @ (plain.second @ basis))

    def plain_matrices(self, x: Array, y: Array) -> Jet:
        """Return the jet of M in the original basis; arguments as for `matrices`."""
        kept = np.exp(-x) * self.transitions
        pairs = y[:-1, None] * y[None, :-1]
        return Jet(kept, x * kept * y, x**2 * kept * pairs)

    def _plain(self) -> Array:
        r"""Return $\mathrm{diag}(0,P_\perp)$."""
        basis, inverse = self.basis
        plain = inverse @ self.transitions @ basis
        plain[0], plain[:, 0] = 0.0, 0.0
        return plain

    def chance(self, row: Array, column: Array, steps: float) -> float:
        """Return the product of `row`, P to the power `steps`, and `column`."""
        basis, inverse = self.basis
        power = np.linalg.matrix_power(self._plain()[1:, 1:], int(steps))
        left, right = row @ basis, inverse @ column
        return float(left[0] * right[0] + left[1:] @ power @ right[1:])


@dataclasses.dataclass(frozen=True)
class Walk:
    r"""Paths of m steps along a chain, for several m: $\Psi=rM^mc$.

    Attributes:
        chain: P and its stationary law.
        x: $x_{ij}$, [u, n, n].
        y: the features of each transition, [f, u, n, n]; all except the last two have mean zero
            under the tilted law.
        row: r, [u, 1, n]; the stationary law when None.
        columns: c for each m, [k, n]; ones when None.
        steps: m, [k].
    """

    chain: Chain
    x: Array
    y: Array
    row: Jet | None
    columns: Array | None
    steps: Array

    def cumulants(self) -> Cumulants:
        """Return the cumulants, from the largest eigenvalue or from powers of M."""
        matrix = self.chain.matrices(self.x, self.y)
        whole = _with_one(matrix)
        mixing, right, left = _dominant(whole.value, float(self.steps.max()))
        mixing[matrix.value[:, 0, 0] < _LEAST] = np.inf
        by_root = self.steps[:, None] >= 2.0 * mixing
        row, columns = self._ends()
        logs = [Jet.constant(np.zeros((len(self.x), 1, 1)), len(self.y)) for _ in self.steps]
        places = np.flatnonzero(by_root.any(axis=0))
        if places.size:
            root = _root(matrix.at(places), right[places], left[places])
            for log, column, count, valid in zip(logs, columns, self.steps, by_root, strict=True):
                log.put(places, root.log_product(row.at(places), column, count), valid)
        # If x is not small, sums of positive terms in the original basis keep all digits.
        rest, small = ~by_root.all(axis=0), self.x.max(axis=(1, 2)) < _SMALL
        for chosen, deflated in ((rest & small, True), (rest & ~small, False)):
            products = self._powers(chosen, deflated)
            for log, found, valid in zip(logs, products, by_root, strict=False):
                log.put(np.flatnonzero(chosen), found, ~valid)
        log_psi = np.stack([log.value[:, 0, 0] for log in logs])
        powered = (~by_root & (log_psi > -NEGLIGIBLE)).any(axis=1)
        rounding = EPSILON * (8.0 + np.where(powered, 0.5 * self.steps, 0.0))
        return Cumulants(
            log_psi,
            np.stack([np.moveaxis(log.first[..., 0, 0], 0, -1) for log in logs]),
            np.stack([np.moveaxis(log.second[..., 0, 0], (0, 1), (-2, -1)) for log in logs]),
            rounding,
        )

    def _ends(self) -> tuple[Jet, Array]:
        """Return the row r and the columns c in the basis S."""
        basis, inverse = self.chain.basis
        origin = np.eye(1, len(basis))
        row = Jet.constant(np.tile(origin, (len(self.x), 1, 1)), len(self.y))
        columns = np.tile(origin, (self.steps.size, 1))
        return (
            row if self.row is None else self.row.mapped(lambda array: array @ basis),
            columns if self.columns is None else self.columns @ inverse.T,
        )

    def _powers(self, places: np.ndarray, deflated: bool) -> list[Jet]:
        r"""Return $\log rM^mc$ for every m at the chosen nodes; `deflated` selects the basis S."""
        if not places.any():
            return []
        x, y = self.x[places], self.y[:, places]
        if deflated:
            matrix = _with_one(self.chain.matrices(x, y))
            row, columns = self._ends()
            row = row.at(places)
        else:
            law = self.chain.stationary
            matrix = self.chain.plain_matrices(x, y)
            row = Jet.constant(np.tile(law, (len(x), 1, 1)), len(y))
            row = row if self.row is None else self.row.at(places)
            columns = np.ones((self.steps.size, law.size)) if self.columns is None else self.columns
        logs = []
        for column, (product, scale) in zip(columns, _powers(matrix, row, self.steps), strict=True):
            ended = product @ Jet.constant(column[None, :, None], len(self.y))
            kept, size = _without_zeros(ended, scale)
            found = kept.log()
            logs.append(Jet(found.value + size, found.first, found.second))
        return logs


def _with_one(matrix: Jet) -> Jet:
    value = matrix.value.copy()
    value[:, 0, 0] += 1.0
    return Jet(value, matrix.first, matrix.second)


def _without_zeros(product: Jet, scale: Array) -> tuple[Jet, Array]:
    """Replace each product that underflows by 1, and its scale by a negligible one."""
    kept = product.value > np.finfo(np.float64).tiny
    arrays = (product.value, 1.0), (product.first, 0.0), (product.second, 0.0)
    jet = Jet(*(np.where(kept, array, other) for array, other in arrays))
    return jet, np.where(kept, scale, -1e6)


def _powers(matrix: Jet, row: Jet, steps: Array) -> list[tuple[Jet, Array]]:
    """Return the row times each power of the matrix as a pair (product / exp(scale), scale)."""
    counts = [int(count) for count in steps]
    most, size = max(counts), matrix.value.shape[-1]
    found = [(row, np.zeros((len(matrix.value), 1, 1))) for _ in counts]
    if most <= 2 * size * math.log2(most + 1):
        here = found[0]
        for done in range(1, most + 1):
            here = _scaled(here[0] @ matrix, here[1])
            found = [
                here if count >= done else old for count, old in zip(counts, found, strict=True)
            ]
        return found
    power, scale = _scaled(matrix, np.zeros((len(matrix.value), 1, 1)))
    for bit in range(most.bit_length()):
        for n, count in enumerate(counts):
            if count >> bit & 1:
                found[n] = _scaled(found[n][0] @ power, found[n][1] + scale)
        if bit < most.bit_length() - 1:
            power, scale = _scaled(power @ power, 2.0 * scale)
    return found


def _scaled(jet: Jet, scale: Array) -> tuple[Jet, Array]:
    size = np.abs(jet.value).max(axis=(-2, -1), keepdims=True)
    size = np.where(size > 0.0, size, 1.0)
    return jet.mapped(lambda array: array / size), scale + np.log(size)


def _dominant(matrix: Array, most: float) -> tuple[Array, Array, Array]:
    """Return the number of steps after which one eigenvalue dominates, [u], and its eigenvectors.

    A number above `most` / 2 or 2**11 is replaced by infinity. The right and left eigenvectors
    (1, v) and (1, w) are returned as v and w, [u, n - 1] each.
    """
    mixing = np.full(len(matrix), np.inf)
    right, left = np.zeros((2, len(matrix), matrix.shape[-1] - 1))
    power = matrix
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        for squaring in range(_MOST_SQUARINGS):
            if 2.0 ** (squaring + 1) > most:
                break
            corner = power[:, :1, :1]
            apart = np.abs(power - power[:, :, :1] * power[:, :1] / corner).max(axis=(1, 2))
            mixed = np.isinf(mixing) & (apart <= _RANK_ONE * np.abs(power).max(axis=(1, 2)))
            mixing[mixed] = 2.0**squaring
            right[mixed] = (power[:, 1:, 0] / power[:, :1, 0])[mixed]
            left[mixed] = (power[:, 0, 1:] / power[:, 0, :1])[mixed]
            if not np.isinf(mixing).any():
                break
            power = power @ power
            power = power / np.abs(power).max(axis=(1, 2), keepdims=True)
    return mixing, right, left


@dataclasses.dataclass(frozen=True)
class _Root:
    r"""The largest eigenvalue $\rho$ with its right and left eigenvectors (1, v) and (1, w).

    Attributes:
        log_root: $\log\rho$.
        right: v, [u, n - 1, 1].
        left: w, [u, 1, n - 1].
    """

    log_root: Jet
    right: Jet
    left: Jet

    def log_product(self, row: Jet, column: Array, steps: float) -> Jet:
        r"""Return $m\log\rho+\log(r\,v)+\log(w\,c)-\log(w\,v)$ for row r, column c and m steps."""
        first, rest = slice(0, 1), slice(1, None)
        start = row.part(slice(None), first) + row.part(slice(None), rest) @ self.right
        end = self.left @ Jet.constant(column[None, 1:, None], len(row.first))
        end = Jet(end.value + column[0], end.first, end.second)
        overlap = (self.left @ self.right).log1p()
        power = self.log_root.mapped(lambda array: float(steps) * array)
        return power + start.log() + end.log() - overlap


def _root(matrix: Jet, right: Array, left: Array) -> _Root:
    v, excess = _eigenvector(matrix, right)
    w, _ = _eigenvector(matrix.transposed(), left)
    return _Root(excess.log1p(), v, w.transposed())


def _eigenvector(matrix: Jet, guess: Array) -> tuple[Jet, Jet]:
    r"""Return v of the eigenvector (1, v), and $\rho-1$, by Newton's method.

    The argument `matrix` is M minus 1 in the first entry. If m11, m12, m21 and M22 are its blocks,

        m21 + M22 v = v (1 + m11 + m12 v).

    Each step uses the Jacobian at a = 0 and makes the next order of the jet exact.
    """
    first, rest = slice(0, 1), slice(1, None)
    m11, m12 = matrix.part(first, first), matrix.part(first, rest)
    m21, m22 = matrix.part(rest, first), matrix.part(rest, rest)
    v = Jet.constant(guess[..., None], len(matrix.first))
    identity = np.eye(guess.shape[-1])
    for _ in range(_NEWTON_STEPS):
        excess = m11 + m12 @ v
        missing = m21 + m22 @ v - v - v @ excess
        slope = m22.value - (1.0 + excess.value) * identity - v.value @ m12.value
        v = v - _solved(slope, missing)
    return v, m11 + m12 @ v


def _solved(matrix: Array, jet: Jet) -> Jet:
    """Return the inverse of a matrix, which does not depend on a, times a jet of columns."""
    first, second = jet.first, jet.second
    pairs = second.reshape(-1, *second.shape[2:])
    columns = np.concatenate([jet.value[None], first, pairs])[..., 0]
    found = np.linalg.solve(matrix, np.moveaxis(columns, 0, -1))
    found = np.moveaxis(found, -1, 0)[..., None]
    count = 1 + len(first)
    return Jet(found[0], found[1:count], found[count:].reshape(second.shape))
