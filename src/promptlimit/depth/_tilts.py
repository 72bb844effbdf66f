r"""Jointly Gaussian tilts, and means of exponentials of their quadratic forms.

To leading order, bias and covariance of a stack are derivatives of $E\exp(\tfrac12v'Jv)$ with
respect to parameters of the mean and the covariance of a Gaussian vector v.

Derivatives are computed with infinitesimals $\epsilon_1,\dots,\epsilon_n$ that satisfy
$\epsilon_i^2=0$. A number $x=\sum_Sx_S\prod_{i\in S}\epsilon_i$ has a coefficient $x_S$ for every
subset S of 1, ..., n. The derivative of a function once in each $\epsilon_i$ is the last
coefficient of its value. The first axis of arrays, of length $2^n$, contains the coefficients:
$x_S$ is at the index whose binary digits are S.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array, as_float64


@functools.cache
def _splits(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return all pairs of disjoint sets, sorted by union, and the index where each union begins."""
    pairs = [
        (part, whole ^ part) for whole in range(count) for part in range(count) if not part & ~whole
    ]
    unions = np.array([part | rest for part, rest in pairs])
    left, right = np.array(pairs).T
    return left, right, np.flatnonzero(np.diff(unions, prepend=-1))


def product(x: Array, y: Array, multiply: Callable[[Array, Array], Array] = np.matmul) -> Array:
    r"""Return $xy$, $(xy)_S=\sum_{S'\subset S}x_{S'}y_{S\setminus S'}$."""
    if len(x) == 1:
        return multiply(x, y)
    left, right, begins = _splits(len(x))
    return np.add.reduceat(multiply(x[left], y[right]), begins, axis=0)


def last_of_product(x: Array, y: Array) -> Array:
    r"""Return the last coefficient of $xy$ for numbers x and matrices y."""
    return np.sum(x[..., None, None] * y[::-1], axis=0)


def exponential(x: Any) -> Any:
    r"""Return $e^x$ of NumPy or jax numbers: $e^{a+\epsilon b}=e^a+\epsilon e^ab$."""
    xp = x.__array_namespace__()
    coefficients = [xp.exp(x[0])]
    while (half := len(coefficients)) < len(x):
        coefficients += [
            sum(
                coefficients[part] * x[half + (whole ^ part)]
                for part in range(half)
                if not part & ~whole
            )
            for whole in range(half)
        ]
    return xp.stack(coefficients)


def inverse(x: Array) -> tuple[Array, Array]:
    r"""Return $x^{-1}$ and $\ln\det x$ of matrices, [2^n, ..., k, k].

    $(a+\epsilon b)^{-1}=a^{-1}-\epsilon a^{-1}ba^{-1}$, and
    $\ln\det(a+\epsilon b)=\ln\det a+\epsilon\,\mathrm{tr}(a^{-1}b)$.
    """
    if len(x) == 1:
        return as_float64(np.linalg.inv(x)), np.linalg.slogdet(x)[1]
    low, high = np.split(x, 2)
    without, log_det = inverse(low)
    moved = product(without, high)
    trace = np.trace(moved, axis1=-2, axis2=-1)
    return (
        np.concatenate([without, -product(moved, without)]),
        np.concatenate([log_det, trace]),
    )


@dataclasses.dataclass(frozen=True)
class Tilts:
    r"""A Gaussian vector v that stacks one or several tilts, with n infinitesimals.

    In the shapes, k is the size of v and q the total size of the initial tilts, from which v is
    computed by affine maps.

    Attributes:
        mean: the mean of v, columns [2^n, ..., k, 1].
        slope: the derivative of the mean in the initial tilts, [2^n, ..., k, q].
        cov: the covariance of v, [2^n, ..., k, k].
    """

    mean: Array
    slope: Array
    cov: Array

    @staticmethod
    def start(tilt: Array) -> "Tilts":
        """Return v for one deterministic initial tilt, a column [..., k, 1]."""
        size, batch = tilt.shape[-2], tilt.shape[:-2]
        slope = np.broadcast_to(np.eye(size), (*batch, size, size))
        return Tilts(tilt[None], slope[None], np.zeros((1, *batch, size, size)))

    def select(self, *rows: slice) -> "Tilts":
        """Return these rows of v, in this order."""
        places = np.concatenate([np.arange(self.mean.shape[-2])[part] for part in rows])
        cov = self.cov[..., places, :][..., places]
        return Tilts(self.mean[..., places, :], self.slope[..., places, :], cov)

    def append(
        self,
        matrix: Array,
        of: slice,
        *,
        shift: Array | float = 0.0,
        noise: Array | float = 0.0,
        mark: tuple[Array, slice] | None = None,
    ) -> "Tilts":
        r"""Return v with $Av_{of}+c+N(0,\text{noise})+\epsilon Bv_{at}$ appended.

        Args:
            matrix: $A$, [..., k', k_of].
            of: the rows of v that A multiplies.
            shift: $c$, a column.
            noise: the covariance of the independent Gaussian term.
            mark: $B$ and the rows `at`; $\epsilon$ is a new infinitesimal. None omits the term.
        """
        mean, slope = (matrix @ numbers[..., of, :] for numbers in (self.mean, self.slope))
        across = matrix @ self.cov[..., of, :]
        own = across[..., of] @ matrix.mT
        mean[0] += shift
        own[0] += noise
        without = Tilts(_below(self.mean, mean), _below(self.slope, slope), self._grow(across, own))
        if mark is None:
            return without
        matrix, at = mark
        mean, slope = (matrix @ numbers[..., at, :] for numbers in (self.mean, self.slope))
        half = across[..., at] @ matrix.mT
        across = matrix @ self.cov[..., at, :]
        zero = Tilts(*(np.zeros_like(part) for part in (self.mean, self.slope, self.cov)))
        return Tilts(
            np.concatenate([without.mean, _below(zero.mean, mean)]),
            np.concatenate([without.slope, _below(zero.slope, slope)]),
            np.concatenate([without.cov, zero._grow(across, half + half.mT)]),
        )

    def _grow(self, across: Array, own: Array) -> Array:
        """Return the covariance of v with new entries appended."""
        lower = np.concatenate([across, own], axis=-1)
        return _below(np.concatenate([self.cov, across.mT], axis=-1), lower)

    def correlate(self, cov: Array, first: slice, second: slice) -> "Tilts":
        r"""Return v with $\epsilon D$ added to the covariance between two slices, D = `cov`.

        The derivative of $E f(v)$ in $\epsilon$ is $E\langle\nabla_1,D\nabla_2\rangle f(v)$.
        """
        added = np.zeros_like(self.cov)
        added[0][..., first, second] = cov
        added[0][..., second, first] = cov.mT
        mean, slope = (np.concatenate([part, 0.0 * part]) for part in (self.mean, self.slope))
        return Tilts(mean, slope, np.concatenate([self.cov, added]))

    def join(self, other: "Tilts") -> "Tilts":
        """Return the two vectors stacked, as independent vectors with separate initial tilts."""
        own, others = len(self.mean), len(other.mean)

        def blocks(first: Array, second: Array) -> Array:
            batch = np.broadcast_shapes(first.shape[1:-2], second.shape[1:-2])
            rows, columns = (
                a + b for a, b in zip(first.shape[-2:], second.shape[-2:], strict=True)
            )
            both = np.zeros((own * others, *batch, rows, columns))
            both[:own, ..., : first.shape[-2], : first.shape[-1]] = first
            both[::own, ..., first.shape[-2] :, first.shape[-1] :] = second
            return both

        mean = blocks(self.mean, other.mean).sum(axis=-1, keepdims=True)
        return Tilts(mean, blocks(self.slope, other.slope), blocks(self.cov, other.cov))


def _below(above: Array, below: Array) -> Array:
    return np.concatenate([above, below], axis=-2)


def symmetric_form(first: Array, between: Array, second: Array) -> Array:
    """Return [[first, between], [between', second]], [..., k, k]."""
    batch = np.broadcast_shapes(*(block.shape[:-2] for block in (first, between, second)))
    a, b, c = (np.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (first, between, second))
    return _below(np.concatenate([a, b], axis=-1), np.concatenate([b.mT, c], axis=-1))


@dataclasses.dataclass(frozen=True)
class GaussianMean:
    r"""The mean $e^F=E\exp(\tfrac12v'Jv)$ and the gradient of F in the initial tilts.

        F = (mu'Y mu - ln det(I - CJ)) / 2,    Y = J (I - CJ)^-1,    v ~ N(mu, C)

    Attributes:
        value: $e^F$, [2^n, ...].
        gradient: $\nabla F$, columns [2^n, ..., q, 1].
        slope: the derivative of the mean of v in the initial tilts, [2^n, ..., k, q].
        precision: $Y$, [2^n, ..., k, k].
    """

    value: Array
    gradient: Array
    slope: Array
    precision: Array

    @staticmethod
    def of(tilts: Tilts, form: Array) -> "GaussianMean":
        """Return the mean for J = `form`, [..., k, k]."""
        matrix = -tilts.cov @ form
        matrix[0] += np.eye(form.shape[-1])
        inverted, log_det = inverse(matrix)
        precision = form @ inverted
        pull = product(precision, tilts.mean)
        square = product(tilts.mean.mT, pull)[..., 0, 0]
        gradient = product(np.ascontiguousarray(tilts.slope.mT), pull)
        return GaussianMean(exponential(0.5 * (square - log_det)), gradient, tilts.slope, precision)

    def derivative(self) -> Array:
        """Return the last coefficient of the gradient of $e^F$, columns [..., q, 1]."""
        return last_of_product(self.value, self.gradient)

    def mixed_derivative(self, first: int) -> Array:
        r"""Return the last coefficient of $\nabla_t\nabla_s'e^F$.

        Here t consists of the first `first` entries of the initial tilts, and s of the others.
        """
        left, right = self.gradient[..., :first, :], self.gradient[..., first:, :]
        onward = product(self.precision, self.slope[..., first:])
        curvature = product(np.ascontiguousarray(self.slope[..., :first].mT), onward)
        return last_of_product(self.value, product(left, right.mT) + curvature)
