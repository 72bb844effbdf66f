r"""Risks of heads trained over prompts of one length and tested over prompts of other lengths.

On an isotropic regression, $\Sigma=\lambda I$ and $\Sigma_q=\lambda_qI$, the softmax heads have
$U=\mathrm{diag}(aI,0)$ and the last row $v=(0,b)$ of the value matrix. The risk is quadratic in b
with coefficients that are means over $|x_q|^2$, so training is a minimisation over a.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from promptlimit._arrays import numpy_only
from promptlimit._inputs import require_choice, to_device
from promptlimit.attention import AbstractHead, LinearAttention, SoftmaxAttention
from promptlimit.errors import ArgumentError
from promptlimit.results import Kind, Result, axis, derived, variable
from promptlimit.tasks._problem import Lengths, require_lengths
from promptlimit.tasks.regression._optimum import linear_optimum
from promptlimit.tasks.regression._polynomials import linear_risk
from promptlimit.tasks.regression._task import LinearRegression, require_regression
from promptlimit.weights import MAX_SHARPNESS, some_statistics

_STEP = 0.125
_TAIL = 42.0
_SCALES = np.linspace(-5.0, 1.0, 25)
r"""Logarithms of $a\sqrt{\lambda\lambda_q}$ among which the best one is bracketed."""

_STATISTICS = ("participation", "cubic_participation", "participation_square")


@dataclasses.dataclass(frozen=True)
class IsotropicRisk:
    r"""The exact risk of softmax attention with $U=\mathrm{diag}(aI,0)$ and $v=(0,b)$.

    With $r=|x_q|^2=\lambda_q\chi^2_d$, $y=\tau^2E\,r$, $n=\tau^2\lambda d+s^2$ and $k=ab\lambda$,

    $$2R=s^2+(1-k)^2y+b^2n\,E\,P-2k(k-1)\tau^2E\,rP+k^2\tau^2E\,r\varrho,$$

    where `_softmax_risk` defines the functions $P$ and $\varrho$ of $\sigma^2=a^2\lambda r$. The
    means are trapezoidal sums in $\log\sigma$, whose nodes do not depend on a.

    Attributes:
        task: a regression whose covariances are multiples of the identity.
        squares: the values of $\sigma^2$, with equal steps in the logarithm, [u].
        participation: the values of $P$ at `squares`, [u].
        excess: the values of $\varrho$ at `squares`, [u].
    """

    task: LinearRegression
    squares: NDArray[np.float64]
    participation: NDArray[np.float64]
    excess: NDArray[np.float64]

    def risk(self, a: float, b: float, every: int = 1) -> float:
        """Return $R_L(a,b)$ for a > 0.

        Args:
            a: the factor a in U.
            b: the last entry b of v.
            every: the stride of the nodes that are used, 1 for all nodes.
        """
        (square, cross), _ = self._coefficients(a, every)
        return 0.5 * (self._without_head - 2 * b * cross + b * b * square)

    def gradient(self, a: float, b: float) -> tuple[float, float]:
        """Return the derivatives of $R_L$ in a and in b."""
        (square, cross), (square_slope, cross_slope) = self._coefficients(a)
        return 0.5 * b * b * square_slope - b * cross_slope, b * square - cross

    def best(self) -> tuple[float, float]:
        """Return the pair (a, b) with the smallest risk."""

        def gain(logarithm: float) -> tuple[float, float]:
            """Return twice the risk reduction by the best b, and a multiple (> 0) of its slope."""
            (square, cross), (square_slope, cross_slope) = self._coefficients(
                math.exp(logarithm) / self._scale
            )
            return cross**2 / square, cross * (2 * cross_slope * square - cross * square_slope)

        place = int(np.argmax([gain(one)[0] for one in _SCALES]))
        low, high = _SCALES[max(0, place - 1)], _SCALES[min(_SCALES.size - 1, place + 1)]
        inside = gain(low)[1] > 0.0 > gain(high)[1]
        best = brentq(lambda one: gain(one)[1], low, high) if inside else _SCALES[place]
        a = math.exp(best) / self._scale
        (square, cross), _ = self._coefficients(a)
        return a, float(cross / square)

    @property
    def _scale(self) -> float:
        return math.sqrt(self.task.covariance[0, 0] * self.task.query_covariance[0, 0])

    @property
    def _label_variance(self) -> float:
        return self.task.prior_variance * float(np.trace(self.task.query_covariance))

    @property
    def _without_head(self) -> float:
        return self.task.noise_variance + self._label_variance

    def _coefficients(
        self, a: float, every: int = 1
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        r"""Return the coefficients of $b^2$ and $-2b$ in $2R$, and their derivatives in a."""
        task, dim = self.task, self.task.token_dim - 1
        chi2 = self.squares[::every] / (a * self._scale) ** 2
        logarithm = dim / 2 * np.log(chi2 / 2) - chi2 / 2 - math.lgamma(dim / 2)
        mass = every * _STEP * np.exp(logarithm)
        P, excess = self.participation[::every], self.excess[::every]
        radius = task.query_covariance[0, 0] * chi2
        rows = np.stack([P, radius * P, radius * excess])
        means = rows @ mass
        # At a node, d log(mass) / d log a = chi2 - d and d radius / d log a = -2 radius.
        slopes = (rows @ (mass * (chi2 - dim)) - np.array([0.0, 2.0, 2.0]) * means) / a
        prior, scale = task.prior_variance, float(task.covariance[0, 0])
        values = prior * float(np.trace(task.covariance)) + task.noise_variance

        def combined(means: NDArray[np.float64], constant: float) -> tuple[float, float, float]:
            P, rP, r_excess = means
            return values * P, constant + prior * (r_excess - 2 * rP), constant - prior * rP

        free, square, cross = combined(means, self._label_variance)
        free_slope, square_slope, cross_slope = combined(slopes, 0.0)
        k = scale * a
        return (
            np.array([free + k * k * square, k * cross]),
            np.array(
                [
                    free_slope + 2 * scale * k * square + k * k * square_slope,
                    scale * cross + k * cross_slope,
                ]
            ),
        )


def isotropic_risks(task: LinearRegression, lengths: Sequence[float]) -> list[IsotropicRisk]:
    """Return the risks at several lengths; one pass computes the statistics of all lengths."""
    dim = task.token_dim - 1
    low, high = 2 * _SCALES[[0, -1]]
    low, high = low - 2 * _TAIL / dim, high + math.log(dim + 4 * _TAIL + 16 * math.sqrt(dim))
    squares = np.exp(np.arange(low, high, _STEP))
    sharpness = np.minimum(np.sqrt(squares), MAX_SHARPNESS)  # weights are frozen beyond
    found = some_statistics(_STATISTICS, sharpness[:, None], np.asarray(lengths))
    P, cubic, square = (found[name].T for name in _STATISTICS)
    excess = P - 6 * cubic + 6 * square
    return [IsotropicRisk(task, squares, *pair) for pair in zip(P, excess, strict=True)]


class TrainTestRisk(Result):
    r"""Risks of heads trained over prompts of some lengths and tested over other prompts.

    Attributes:
        train_lengths: $L$, the length at which each head has the smallest risk, [n].
        test_lengths: $L'$, the lengths at which the risks are computed, [m].
        value: the risk, half the mean squared error, [n, m].
        error: the measured error of `value`, [n, m].
        kind: "exact".
        kernel: "softmax" or "linear".
        key_query: $U$ of each head, [n, d + 1, d + 1].
        value_matrix: $V$ of each head, [n, d + 1, d + 1].
    """

    train_lengths: np.ndarray = axis("train_length", "L", scale="log")
    test_lengths: np.ndarray = axis("test_length", "L'", scale="log")
    value: np.ndarray = variable("train_length", "test_length", label="risk", scale="log")
    error: np.ndarray = variable("train_length", "test_length")
    kind: Kind
    kernel: str
    key_query: np.ndarray = variable("train_length", bulk=True)
    value_matrix: np.ndarray = variable("train_length", bulk=True)

    @property
    @derived("train_length", "test_length")
    def mse(self) -> np.ndarray:
        """Twice `value`: the mean squared error."""
        return 2.0 * self.value

    def attention(self, place: int = 0) -> AbstractHead:
        """Return the head trained at one of the lengths, in jax's current precision.

        Args:
            place: the index of the length in `train_lengths`.
        """
        head = SoftmaxAttention if self.kernel == "softmax" else LinearAttention
        return head(self.key_query[place], self.value_matrix[place])


@numpy_only("Call it outside the compiled function and pass its result.")
def train_test_risk(
    task: LinearRegression,
    train_lengths: Lengths,
    test_lengths: Lengths,
    *,
    kernel: str = "softmax",
) -> TrainTestRisk:
    r"""Return the risk of heads trained at some lengths and tested at others, without simulation.

    A trained head has the smallest risk among the block heads, for which $U=\mathrm{diag}(A,0)$ and
    the last row of V is $v=(0,b)$. For linear attention the trained head is that of
    `linear_optimum`. For softmax attention $A=aI$, and $(a,b)$ minimises the exact risk.

    Args:
        task: the regression; for softmax attention its covariances must be multiples of the
            identity.
        train_lengths: $L$, whole numbers from 2 to 1e30, one or many.
        test_lengths: $L'$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        kernel: "softmax" or "linear".

    >>> import math, numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> for kernel in ("softmax", "linear"):
    ...     found = pl.tasks.train_test_risk(task, [10, 100], [10, 1000, math.inf], kernel=kernel)
    ...     print((found.mse - 0.1).round(4).tolist())
    [[0.6089, 0.1655, 0.1121], [0.9809, 0.0337, 0.0164]]
    [[0.3939, 0.1576, 0.1552], [0.5768, 0.0095, 0.0037]]
    """
    require_regression(task)
    require_choice("kernel", kernel, ("softmax", "linear"))
    train, test = (
        np.atleast_1d(require_lengths(one)).ravel() for one in (train_lengths, test_lengths)
    )
    if not (np.isfinite(train) & (train >= 2)).all():
        raise ArgumentError(
            "train_lengths",
            f"must be finite and at least 2, got {train.tolist()}. Over infinite prompts many "
            "heads have the smallest risk.",
        )
    if kernel == "softmax":
        _require_isotropic(task)
        trained, tested = (isotropic_risks(task, one.tolist()) for one in (train, test))
        heads = [one.best() for one in trained]
        pairs = [_block(task.token_dim, *head) for head in heads]
        value, coarse = (
            np.array([[one.risk(*head, every) for one in tested] for head in heads])
            for every in (1, 2)
        )
        error = np.abs(value - coarse)
    else:
        best = linear_optimum(task, train)
        pairs = list(zip(best.key_query[:, 0], best.value_matrix[:, 0], strict=True))
        value = np.array([[_linear_risk(task, *pair, one) for one in test] for pair in pairs])
        error = np.zeros_like(value)
    key_query, value_matrix = (np.stack(one) for one in zip(*pairs, strict=True))
    return TrainTestRisk(
        train_lengths=train,
        test_lengths=test,
        value=value,
        error=error,
        kind="exact",
        kernel=kernel,
        key_query=key_query,
        value_matrix=value_matrix,
    )


def _linear_risk(
    task: LinearRegression,
    key_query: NDArray[np.float64],
    value_matrix: NDArray[np.float64],
    length: float,
) -> float:
    with jax.enable_x64(True):
        head = to_device(key_query)[None], to_device(value_matrix)[None, -task.label_dim :]
        return float(linear_risk(task, to_device(length), *head))


def _block(size: int, a: float, b: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    key_query, value = a * np.eye(size), np.zeros((size, size))
    key_query[-1, -1], value[-1, -1] = 0.0, b
    return key_query, value


def _require_isotropic(task: LinearRegression) -> None:
    if task.label_dim > 1 or task.query_covariates is not None:
        raise ArgumentError(
            "task",
            "must have one label and Gaussian queries for softmax attention, got others. Train "
            "with gradient_flow(start, task, train_lengths, [math.inf]) and test with "
            "risk(head, task, test_lengths).",
        )
    for name in ("covariance", "query_covariance"):
        matrix = getattr(task, name)
        if not np.array_equal(matrix, matrix[0, 0] * np.eye(len(matrix))):
            raise ArgumentError(
                "task",
                f"must have a `{name}` that is a multiple of the identity for softmax attention, "
                "got another. Train with gradient_flow(start, task, train_lengths, [math.inf]) and "
                "test with risk(head, task, test_lengths).",
            )
