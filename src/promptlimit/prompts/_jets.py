r"""Matrices with their first and second derivatives in several directions.

A jet is $M+\sum_ia_iM_i+\frac12\sum_{ij}a_ia_jM_{ij}$ up to terms of third order in a, with f
first derivatives. Second derivatives are those in the first g = f - 1 directions.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from promptlimit._arrays import Array


@dataclasses.dataclass(frozen=True)
class Jet:
    """A stack of matrices with derivatives.

    Attributes:
        value: [..., m, n].
        first: [f, ..., m, n].
        second: [g, g, ..., m, n].
    """

    value: Array
    first: Array
    second: Array

    @staticmethod
    def constant(value: Array, directions: int) -> "Jet":
        """Return matrices whose derivatives in a given number of directions are zero."""
        pairs = (directions - 1,) * 2
        return Jet(value, np.zeros((directions, *value.shape)), np.zeros((*pairs, *value.shape)))

    def mapped(self, function: Callable[[Array], Array]) -> "Jet":
        """Return the values and derivatives of a linear function that does not depend on a."""
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
        """Return some of the matrices, by their place on the axis before rows and columns."""
        return Jet(self.value[places], self.first[:, places], self.second[:, :, places])

    def transposed(self) -> "Jet":
        """Return the transposed matrices."""
        return self.mapped(lambda array: array.swapaxes(-1, -2))

    def put(self, places: np.ndarray, other: "Jet", valid: np.ndarray) -> None:
        """Overwrite some of the matrices, where `valid`, [u], with those of another jet."""
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
