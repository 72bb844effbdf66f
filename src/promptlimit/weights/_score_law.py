r"""The law of one token along a tilt: transforms of its score and of its value.

A token z has the score $s=\langle t,z\rangle$ at the tilt t and the value Vz. With $x=e^{s+u}$ and
a function f of the token, the transforms are

$$\varphi(u)=E\,e^{-x},\qquad F_k[f](u)=E[f\,x^ke^{-x}].$$

Moments over prompts are integrals of these transforms over u (docs/finite.md).
$\Lambda(t)=\log E\,e^{\langle t,z\rangle}$ is the log-Laplace transform, and $T=V\nabla\Lambda(t)$
is the limit of the output. Brackets give shapes of arrays: u nodes, n lengths, e coordinates of a
value, d coordinates of a token, and j places (`AbstractProducts`).
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
"""The step in u. It is a dyadic fraction, so that nodes and their differences are exact."""

NEGLIGIBLE = 42.0
"""Minus the logarithm of the size below which terms are dropped."""

_WIDEST = 2.0**13
"""The largest width of a window in u."""

EPSILON = float(np.finfo(np.float64).eps)
LARGEST_EXPONENT = 300.0
SMALLEST = 1e-300

Numbers = NDArray[Any]
"""An array of real or complex numbers."""

_LARGEST_CENTRED = 30.0
r"""The largest $c$ for which $e^{-x}-e^{-c}$ is computed from $x-c$ (`_damping_apart`)."""

_ENTRIES_AT_ONCE = 2**18
_ROUNDING = 2.0**-50
_KEPT = ("mass", "log_mass", "square", "lean", "spread", "log_square", "log_squares")


@dataclasses.dataclass(frozen=True)
class Scores:
    r"""Transforms of one score at the nodes, [u] each.

    Attributes:
        u: the nodes.
        log_phi: $\log\varphi$.
        rounding: the rounding error of $\log\varphi$.
        mass: $F_1[1]$.
    """

    u: Array
    log_phi: Array
    rounding: Array
    mass: Array

    def first(self, count: int) -> "Scores":
        """Return the transforms at the first `count` nodes."""
        columns = self.u, self.log_phi, self.rounding, self.mass
        return Scores(*(column[:count] for column in columns))


@dataclasses.dataclass(frozen=True)
class PartitionMeans:
    r"""Means over one score at evenly spaced u, for moments of the log-partition function.

    Here $\bar x=E\,x$. The fields from `log_phi` to `rounding` have shape [u].

    Attributes:
        u: the nodes.
        log_mean: $\Lambda=\ln E\,e^s$.
        tilted_mean: $\Lambda'=E[s\,e^s]/E\,e^s$.
        log_phi: $\ln\varphi$.
        excess: $\eta=\ln\varphi+\bar x$, never negative.
        slope: $\eta'=\bar x-F_1[1]/\varphi$.
        mass: $F_1[1]$.
        drift: $F_1[s-\Lambda']$, never positive.
        log_mass: $F_1[\ln x]$.
        square: $F_2[1]$.
        lean: $F_2[s-\Lambda']$.
        spread: $F_2[(s-\Lambda')^2]$.
        log_square: $F_2[\ln x]$.
        log_squares: $F_2[(\ln x)^2]$.
        rounding: an estimate of the largest relative rounding error of `excess`, `drift` and
            `spread`.
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
    r"""$F_k[f]$ and $F_{k-1}[f]$ as sums over places j of a factor times the mean of f at j.

    The meaning of a place depends on the law. For a list, a place is a token, and the mean is the
    value of f. For a Gaussian part, a place is a score, and the mean is that of f given this score.
    For a transform on the complex ray, a place is a multiple c of the tilt, and the mean is
    $E[fe^{cs}]/E\,e^{cs}$. $F_{k-1}$ is available only for functions f with $E[f\,e^{(k-1)s}]=0$.

    Attributes:
        density: $F_k[1]$, [u].
        masses: the mean of the function 1 at each place, [j]. It is 1 except for long lists, which
            use sums instead of means (`ManyAtoms`).
    """

    density: Array
    masses: Array

    @abc.abstractmethod
    def shares(self, weights: Array) -> tuple[Numbers, Array]:
        r"""Return the factors of places in $\sum_uwF_k[f]$, and their rounding errors, [n, j] each.

        Args:
            weights: w, [n, u].
        """

    @abc.abstractmethod
    def lower(self, centred: Numbers, mean_errors: Array) -> tuple[Array, Array]:
        r"""Return $F_{k-1}[f]$, [u, e], and its rounding error, [u].

        Args:
            centred: the means of f at the places, [j, e].
            mean_errors: the rounding errors of these means, [j].
        """


class AbstractScoreLaw(abc.ABC):
    """The law of the score and of the value of one token, along a tilt."""

    @abc.abstractmethod
    def score_of(self, token: Array) -> float:
        r"""Return the score $\langle t,z\rangle$ of one token minus `offset`."""

    @abc.abstractmethod
    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return the range of u in which neither $1-\varphi^L$ nor $\varphi^L$ is negligible.

        The range is valid for all lengths L from `shortest` to `longest`.
        """

    @abc.abstractmethod
    def scores(self, u: Array) -> Scores:
        """Return the transforms of one score at evenly spaced u."""

    @abc.abstractmethod
    def partition_means(self, u: Array) -> PartitionMeans:
        """Return the means of one score for the log-partition function, at evenly spaced u."""

    @abc.abstractmethod
    def square_window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return the range of u for integrals over the transforms of `square_means`.

        Below the range, the integrands are negligible. Above it, $(E\,e^{-X})^L$ with $X=e^{2s+u}$
        is negligible.
        """

    @abc.abstractmethod
    def square_means(self, u: Array) -> SquareMeans:
        """Return the means of one score for the effective number of tokens, at evenly spaced u."""

    @abc.abstractmethod
    def products(self, power: int, u: Array) -> AbstractProducts:
        """Return $F_k$ at evenly spaced u, with k = `power`."""

    @abc.abstractmethod
    def ends(self, value: Array) -> tuple[Array, Array, Array]:
        r"""Return the limit T, [e], and the mean, [e], and covariance, [e, e], of a value Vz.

        These are $V\nabla\Lambda(t)$, $V\nabla\Lambda(0)$ and $V\nabla^2\Lambda(0)V'$. The name
        refers to the ends t and 0 of the segment of tilts.

        Args:
            value: V, [e, d].
        """

    @property
    @abc.abstractmethod
    def offset(self) -> float:
        """The number that all other methods subtract from scores."""

    @property
    @abc.abstractmethod
    def log_mean(self) -> float:
        r"""$\Lambda(t)$ minus `offset`."""

    @abc.abstractmethod
    def readings(
        self, value: Array, limit: Array, products: AbstractProducts
    ) -> Iterator[tuple[slice, Numbers, Numbers, Array, Array]]:
        r"""Yield the means and covariances of $Vz-T$ at blocks of places.

        Args:
            value: V, [e, d].
            limit: T, [e].
            products: the result of `products`, which determines the places.

        Yields:
            The indices of the places, the means, [j, e], the covariances, [j, e, e], and the
            rounding errors of the means and of the traces of the second moments, [j] each.
        """


def require_near(low: float, high: float) -> tuple[float, float]:
    """Return the window (low, high) in u; raise AccuracyError if it is too wide."""
    if not high - low <= _WIDEST:
        raise AccuracyError(
            "scores must lie within a few thousand of each other to be integrated over, got "
            f"a range of {high - low:.3g}. Scale the attention down.",
            argument="attention",
        )
    return low, high


def listed_score_means(weights: Array, scores: Array, u: Array) -> PartitionMeans:
    r"""Return the `PartitionMeans` of scores $s_i$ with probabilities $w_i$."""
    masses = np.log(weights) + scores
    log_mean = float(np.logaddexp.reduce(masses))
    tilted_mean = float(np.exp(masses - log_mean) @ scores)
    sums = _listed_sums(weights, scores, u, (log_mean, tilted_mean))
    return assembled(u, log_mean, tilted_mean, sums)


def assembled(
    u: Array,
    log_mean: float,
    tilted_mean: float,
    sums: dict[str, Array],
    rounding: Array | float = _ROUNDING,
) -> PartitionMeans:
    r"""Return the `PartitionMeans`, computed from the means in `sums`.

    With $\delta=1-\varphi$, $\eta=E[e^{-x}-1+x]+\{\ln(1-\delta)+\delta\}$ is used for
    $\delta<\frac12$, and $\eta'=(E[x(1-e^{-x})]-\delta\bar x)/\varphi$ for $\bar x\le1$. If `sums`
    contains the entries `excess` and `slope` of `_centred_sums`, $\eta=\ln(1+\text{excess})$ and
    $\eta'=\text{slope}/\varphi$ are used instead for $\bar x\le30$.

    Args:
        u: the nodes, [u].
        log_mean: $\Lambda$.
        tilted_mean: $\Lambda'$.
        sums: means by the names of `PartitionMeans`, with `phi` for $\varphi$ and `complement`
            for $1-\varphi$. Without `excess` and `slope` it must also contain `remainder`,
            $E[e^{-x}-1+x]$; `missing`, $E[x(1-e^{-x})]$; and `drift_missing`,
            $-E[(s-\Lambda')x(1-e^{-x})]$.
        rounding: the relative rounding error of the means.
    """
    phi, complement = np.maximum(sums["phi"], SMALLEST), sums["complement"]
    small, log_phi = complement < 0.5, log_from(phi, complement)
    mean = np.exp(np.minimum(u + log_mean, LARGEST_EXPONENT))
    excess, slope, drift = log_phi + mean, mean - sums["mass"] / phi, sums["drift"]
    if "excess" in sums:
        near = mean <= _LARGEST_CENTRED
        excess = np.where(near, np.log1p(sums["excess"]), excess)
        slope = np.where(near, sums["slope"] / phi, slope)
    else:
        excess = np.where(small, sums["remainder"] + _log_rest(complement), excess)
        slope = np.where(mean <= 1.0, (sums["missing"] - complement * mean) / phi, slope)
        drift = np.where(sums["missing"] <= sums["mass"], sums["drift_missing"], drift)
    kept = {name: sums[name] for name in _KEPT}
    errors = np.broadcast_to(rounding, u.shape)
    return PartitionMeans(
        u, log_mean, tilted_mean, log_phi, excess, slope, drift=drift, **kept, rounding=errors
    )


def _log_rest(small: Array) -> Array:
    r"""Return $\ln(1-\delta)+\delta$, without cancellation."""
    delta = np.minimum(small, 0.1)
    series = np.zeros_like(delta)
    for power in range(18, 1, -1):
        series = 1.0 / power + delta * series
    plain = np.log1p(-np.minimum(small, 0.5)) + small
    return np.where(small <= 0.1, -(delta**2) * series, plain)


def _listed_sums(
    weights: Array, scores: Array, u: Array, centre: tuple[float, float]
) -> dict[str, Array]:
    r"""Return the sums over listed scores by name, [u] each; `centre` is $(\Lambda,\Lambda')$."""
    pieces = []
    apart = scores - centre[1]
    moments = weights[:, None] * apart[:, None] ** np.arange(3)
    for part in blocks(u.size, scores.size, _ENTRIES_AT_ONCE):
        t = np.minimum(u[part, None] + scores, LARGEST_EXPONENT)
        x = np.exp(t)
        left = np.exp(-x)
        first = x * left
        second = x * first
        square, lean, spread = (second @ moments).T
        sums = {
            "phi": left @ weights,
            "complement": -np.expm1(-x) @ weights,
            "mass": first @ weights,
            "log_mass": (t * first) @ weights,
            "square": square,
            "lean": lean,
            "spread": spread,
            "log_square": (t * second) @ weights,
            "log_squares": (t * t * second) @ weights,
        }
        centred = _centred_sums(weights, scores, u[part, None], x=x, left=left, centre=centre)
        pieces.append(sums | centred)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _centred_sums(
    weights: Array,
    scores: Array,
    u: Array,
    *,
    x: Array,
    left: Array,
    centre: tuple[float, float],
) -> dict[str, Array]:
    r"""Return three means over all scores of a law by name, as sums of terms of one sign.

    `excess` is $E[e^{-(x-\bar x)}-1+(x-\bar x)]$, `slope` is $E[(\bar x-x)(e^{-x}-e^{-\bar x})]$,
    and `drift` is $E[(s-\Lambda')x(e^{-x}-e^{-x'})]$ with $x'=e^{u+\Lambda'}$. Since
    $E[(s-\Lambda')x]=0$, `drift` is equal to $F_1[s-\Lambda']$.
    """
    mean, middle = (np.exp(np.minimum(u + level, LARGEST_EXPONENT)) for level in centre)
    off_mean, off_middle = (np.expm1(scores - level) for level in centre)
    drift = x * _damping_apart(left, middle, off_middle)
    slope = _damping_apart(left, mean, off_mean) @ (off_mean * weights)
    return {
        "excess": exponential_rest(np.minimum(mean, _LARGEST_CENTRED) * off_mean) @ weights,
        "slope": -mean[:, 0] * slope,
        "drift": drift @ (weights * (scores - centre[1])),
    }


def _damping_apart(left: Array, centre: Array, off: Array) -> Array:
    r"""Return $e^{-x}-e^{-c}$ from $e^{-x}$, the centre c and $x/c-1$, without cancellation."""
    near = np.minimum(centre, _LARGEST_CENTRED)
    precise = np.exp(-near) * np.expm1(-near * off)
    return np.where(centre <= _LARGEST_CENTRED, precise, left - np.exp(-centre))


def blocks(rows: int, columns: int, entries: int) -> Iterator[slice]:
    """Yield slices of rows: at least one row and, if possible, at most `entries` entries each."""
    size = max(1, entries // columns)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def log_from(phi: Array, complement: Array) -> Array:
    r"""Return $\log\varphi$, computed from the smaller of $\varphi$ and $1-\varphi$."""
    small = complement < 0.5
    logarithm = np.log(np.maximum(phi, SMALLEST))  # finite, because 0 times it must be 0
    return np.where(small, np.log1p(-np.where(small, complement, 0.0)), logarithm)


def exponential_rest(y: Array) -> Array:
    r"""Return $e^{-y}-1+y$, without cancellation."""
    near = np.clip(y, -0.05, 0.05)
    series = np.zeros_like(near)
    for divisor in (40320.0, -5040.0, 720.0, -120.0, 24.0, -6.0, 2.0):
        series = 1.0 / divisor + near * series
    return np.where(np.abs(y) <= 0.05, near**2 * series, np.expm1(-y) + y)
