r"""The law of one token along a tilt: transforms of its score and of its value.

With $x=e^{s+u}$, $s=\langle t,z\rangle$ the score of a token, the transforms are

$$\phi(u)=E\,e^{-x},\qquad F_k[f](u)=E[f\,x^ke^{-x}].$$

`_functional` integrates them over u. Derived in docs/finite.md.
"""

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError

STEP = 3 / 16
"""The step in u; a dyadic fraction, so that nodes and their differences are exact."""

NEGLIGIBLE = 42.0
"""Minus the logarithm of the size below which terms are dropped."""

_WIDEST = 2.0**13
"""The largest range of u."""

EPSILON = float(np.finfo(np.float64).eps)
LARGEST_EXPONENT = 300.0
SMALLEST = 1e-300

Numbers = NDArray[Any]
"""Real or complex."""


@dataclasses.dataclass(frozen=True)
class Scores:
    r"""Transforms of one score: u, $\log\phi(u)$ and its rounding error, $F_1[1](u)$, [u] each."""

    u: Array
    log_phi: Array
    rounding: Array
    mass: Array

    def first(self, count: int) -> "Scores":
        """Return the transforms at the first nodes."""
        columns = self.u, self.log_phi, self.rounding, self.mass
        return Scores(*(column[:count] for column in columns))


@dataclasses.dataclass(frozen=True)
class PartitionMeans:
    r"""Means over one score at evenly spaced u, [u] each.

    Attributes:
        u: the nodes.
        log_mean: $\Lambda$.
        tilted_mean: $\Lambda'=E[s\,e^s]/E\,e^s$.
        log_phi: $\ln\varphi$.
        excess: $\psi=\ln\varphi+\bar x$, the excess over the annealed exponent; never negative.
        slope: $\psi'=\bar x-F_1[1]/\varphi$.
        mass: $F_1[1]$.
        drift: $F_1[s-\Lambda']$, never positive.
        log_mass: $F_1[t]$.
        square: $F_2[1]$.
        lean: $F_2[s-\Lambda']$.
        spread: $F_2[(s-\Lambda')^2]$.
        log_square: $F_2[t]$.
        log_squares: $F_2[t^2]$.
        rounding: about the largest relative rounding error of `excess`, `drift` and `spread`.
    """

    u: Array
    log_mean: float
    tilted_mean: float
    log_phi: Array
    excess: Array
    slope: Array
    mass: Array
    drift: Array
    log_mass: Array
    square: Array
    lean: Array
    spread: Array
    log_square: Array
    log_squares: Array
    rounding: Array


@dataclasses.dataclass(frozen=True)
class SquareMeans:
    r"""Means over one score of functions of $X=e^{2s+u}$, [u] each.

    Attributes:
        u: the nodes.
        log_phi: $\ln E\,e^{-X}$.
        root: $E[X^{1/2}e^{-X}]$.
        mass: $E[Xe^{-X}]$.
    """

    u: Array
    log_phi: Array
    root: Array
    mass: Array


@dataclasses.dataclass(frozen=True)
class AbstractProducts(abc.ABC):
    r"""$F_k$ as sums over places j, and $F_{k-1}$ of functions with mean zero at $c=k-1$.

    A place is a multiple c of the tilt, or a token.

    Attributes:
        density: $F_k[1]$, [u].
        masses: the mean of 1 at each place, [j]; 1 unless `readings` yields sums, as for cells.
    """

    density: Array
    masses: Array

    @abc.abstractmethod
    def shares(self, weights: Array) -> tuple[Numbers, Array]:
        r"""Return $\sum_uw(u)F_k[f](u)$ as weights of the means of f at the places.

        Args:
            weights: w, [n, u].

        Returns:
            The weights of the places, by even and by odd u, [2, n, j], and their rounding error,
            [n, j].
        """

    @abc.abstractmethod
    def lower(self, centred: Numbers, blur: Array) -> tuple[Array, Array]:
        r"""Return $F_{k-1}$, [u, e], of means of f at the places, [j, e], and its error, [u].

        `blur` is the error of those means, [j].
        """


class AbstractScoreLaw(abc.ABC):
    """The law of a token along a tilt."""

    @abc.abstractmethod
    def score_of(self, token: Array) -> float:
        r"""Return $\langle t,z\rangle$ of one token, measured from the offset."""

    @abc.abstractmethod
    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return the u between which neither $1-\phi^L$ nor $\phi^L$ is negligible."""

    @abc.abstractmethod
    def scores(self, u: Array) -> Scores:
        """Return the transforms of one score at evenly spaced u."""

    @abc.abstractmethod
    def partition_means(self, u: Array) -> PartitionMeans:
        """Return the means of one score for the log-partition function, at evenly spaced u."""

    @abc.abstractmethod
    def square_window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return the u at which $E\,e^{-X}$, $X=e^{2s+u}$, to the power L is not negligible."""

    @abc.abstractmethod
    def square_means(self, u: Array) -> SquareMeans:
        """Return the means of one score for the effective number of tokens, at evenly spaced u."""

    @abc.abstractmethod
    def products(self, power: int, u: Array) -> AbstractProducts:
        """Return $F_k$, k = `power`, at evenly spaced u."""

    @abc.abstractmethod
    def ends(self, value: Array) -> tuple[Array, Array, Array]:
        r"""Return $V\nabla\Lambda(t)$, $V\nabla\Lambda(0)$ and $V\nabla^2\Lambda(0)V'$."""

    @property
    @abc.abstractmethod
    def offset(self) -> float:
        """The origin of scores: `score_of` and `log_mean` are measured from it."""

    @property
    @abc.abstractmethod
    def log_mean(self) -> float:
        r"""$\Lambda(t)$, of scores measured from the offset."""

    @abc.abstractmethod
    def readings(
        self, value: Array, limit: Array, products: AbstractProducts
    ) -> Iterator[tuple[slice, Numbers, Numbers, Array, Array]]:
        r"""Yield places, means of $Vz-T$ there, [j, e], covariances, [j, e, e], and their errors.

        T = `limit` is $V\nabla\Lambda(t)$, and the means add up to zero under the tilted law. The
        errors, [j] each, are the rounding errors of the means and of the traces of the second
        moments.
        """


def require_near(low: float, high: float) -> tuple[float, float]:
    """Return a window in u; raise AccuracyError if it is too wide to integrate over."""
    if not high - low <= _WIDEST:
        raise AccuracyError(
            "scores must lie within a few thousand of each other to be integrated over, got "
            f"a range of {high - low:.3g}. Scale the attention down.",
            argument="attention",
        )
    return low, high


def even_and_odd(part: slice) -> list[slice]:
    """Return the even and the odd places of a part, counted from its start."""
    return [slice((rule - part.start) % 2, None, 2) for rule in (0, 1)]
