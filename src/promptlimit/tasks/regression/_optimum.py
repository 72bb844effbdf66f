"""What linear attention learns: its best parameters on Gaussian regression, one layer or many."""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple, overload

import jax
import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Number, numpy_only
from promptlimit._inputs import to_device
from promptlimit.attention import Layer, LinearAttention, Stack
from promptlimit.depth import (
    MOST_STEPS,
    Spectrum,
    best_moving_steps,
    best_steps,
    moving_degree,
    spectrum_of,
    wishart_spectrum,
)
from promptlimit.errors import ArgumentError
from promptlimit.results import Risk
from promptlimit.rules import Effort, OutOfScope, Quantity, computes, unwrap
from promptlimit.tasks._abstract import Lengths
from promptlimit.tasks._problem import kind_of, require_lengths
from promptlimit.tasks.regression._polynomials import linear_risk
from promptlimit.tasks.regression._task import (
    LinearRegression,
    RotatedRegression,
    require_regression,
)

_MOST_MOVING = 3


class LinearOptimum(NamedTuple):
    r"""The best linear attention on a regression, and its exact risk.

    Attributes:
        attention: one head, or a `Stack` of layers whose last output coordinate predicts.
        risk: its risk.
        steps: $\beta_l$, one a layer, with $B_l=\beta_lI$; None where B is no multiple of the
            identity.
        covariate_steps: how far each layer moves the covariates; None where they stay.
        bound: the least risk of any polynomial of the prompt's second moment that the layers could
            be; above Bayes', and below `risk` where no real steps are that polynomial.
    """

    attention: LinearAttention | Stack
    risk: Risk
    steps: NDArray[np.float64] | None
    covariate_steps: NDArray[np.float64] | None
    bound: float


@dataclasses.dataclass(frozen=True)
class OptimumProblem:
    """A validated problem: the best linear layers on a regression at one length.

    Attributes:
        task: the regression.
        length: the number of tokens of a prompt.
        depth: the number of layers.
        moving: whether the layers move the covariates.
    """

    task: LinearRegression | RotatedRegression
    length: float
    depth: int
    moving: bool

    @property
    def subject(self) -> str:
        """The problem in words."""
        layers = f"{self.depth} layer{'s' * (self.depth > 1)}"
        return f"{layers} on {type(self.task).__name__} over {self.length:g} tokens"

    @property
    def degree(self) -> int:
        """The degree in the prompt's second moment of the polynomial that the layers are."""
        return moving_degree(self.depth) if self.moving else self.depth

    @property
    def scale(self) -> float | None:
        """The covariance where it is a multiple of the identity, as that multiple."""
        if isinstance(self.task, RotatedRegression):
            return None
        scale = float(self.task.covariance[0, 0])
        isotropic = np.array_equal(self.task.covariance, scale * np.eye(self.task.token_dim - 1))
        return scale if isotropic else None


LINEAR_OPTIMUM: Quantity[OptimumProblem, LinearOptimum] = Quantity(
    "linear_optimum", returns="a `tasks.LinearOptimum`"
)
"""The rules of `linear_optimum`."""


@overload
def linear_optimum(
    task: LinearRegression | RotatedRegression,
    lengths: Number,
    depth: int = 1,
    *,
    moving_covariates: bool = False,
) -> LinearOptimum: ...
@overload
def linear_optimum(
    task: LinearRegression | RotatedRegression,
    lengths: Sequence[Number] | np.ndarray,
    depth: int = 1,
    *,
    moving_covariates: bool = False,
) -> tuple[LinearOptimum, ...]: ...
@computes(LINEAR_OPTIMUM)
@numpy_only("Call it outside and pass what it returns.")
def linear_optimum(
    task: LinearRegression | RotatedRegression,
    lengths: Lengths,
    depth: int = 1,
    *,
    moving_covariates: bool = False,
) -> LinearOptimum | tuple[LinearOptimum, ...]:
    r"""Return the linear attention of least risk over L tokens, and that risk.

    **One layer** on a `LinearRegression`: $U=\kappa^{-1}\mathrm{diag}(\Gamma^{-1},0)$ and
    $V=\kappa\,\mathrm{diag}(0,1)$ with
    $\Gamma=(1+\frac1L)\Sigma+\frac1L(\mathrm{tr}\Sigma+s^2/\tau^2)I$ and
    $\kappa=\mathrm{tr}(\Gamma^{-2})^{1/4}$ (Zhang et al. 2024 without noise; Remark 5.3 at
    $L=\infty$, with the pseudo-inverse of a singular $\Sigma$). The law of the query does not
    matter. The factor $\kappa$ balances U and V, as gradient flow does; any other has the same
    risk. The attention comes in the precision in force, its risk in double.

    **K layers** with a residual are K steps of gradient descent, $p(S)=\prod_l(1-\beta_lS)$ (von
    Oswald et al. 2023, Ahn et al. 2023). The best steps are found from exact moments of the
    prompt's second moment S: at finite L for $\Sigma=\lambda I$, and at $L=\infty$ for covariances
    that vary from prompt to prompt. They are the best among $B_l=\beta_lI$. With a fixed $\Sigma$
    one layer is enough at $L=\infty$, and all K are that layer.

    Args:
        task: the regression, `LinearRegression` or `RotatedRegression`.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`. For many, one optimum a length
            comes back, as a tuple.
        depth: $K$, the number of layers, up to 16.
        moving_covariates: whether the layers move the covariates too (GD++), up to 3 layers; found
            by descent from several starts.

    >>> import math, jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> print(f"{pl.linear_optimum(task, 10).risk.mse:.6f}")
    0.493939
    >>> print(pl.linear_optimum(task, math.inf).risk)
    Risk(kind='limit', lengths=inf, value=0.05)
    >>> two = pl.linear_optimum(task, 40, depth=2)
    >>> print(two.steps.round(6), f"{two.risk.mse:.9f}")
    [0.638422 1.227466] 0.135299415
    """
    if not isinstance(task, RotatedRegression):
        require_regression(task)
        if not task.covariance.any():
            raise ArgumentError("task", "must have a covariance that is not zero, got zeros.")
    tokens = require_lengths(lengths)
    _require_depth(depth, moving_covariates=moving_covariates)
    effort = Effort()
    problems = [
        OptimumProblem(task, length, int(depth), bool(moving_covariates))
        for length in tokens.ravel().tolist()
    ]
    rules = [LINEAR_OPTIMUM.choose(problem, "auto", effort) for problem in problems]
    optima = tuple(
        rule.compute(problem, effort) for rule, problem in zip(rules, problems, strict=True)
    )
    return optima if tokens.ndim else optima[0]


def _require_depth(depth: int, *, moving_covariates: bool) -> None:
    most = _MOST_MOVING if moving_covariates else MOST_STEPS
    whole = isinstance(depth, int | np.integer) and not isinstance(depth, bool)
    if not (whole and 1 <= depth <= most):
        why = " where covariates move" if moving_covariates else ""
        raise ArgumentError(
            "depth",
            f"must be a whole number from 1 to {most}{why}, got {depth}. "
            "Ask for the `risk` of a Stack of your own beyond.",
        )


def _not_solved(problem: OptimumProblem) -> str | None:
    if isinstance(problem.task, RotatedRegression):
        return OutOfScope("the covariance varies from prompt to prompt")
    one = problem.depth == 1 or math.isinf(problem.length)
    return None if one else "several layers read a finite prompt"


def _not_wishart(problem: OptimumProblem) -> str | None:
    if isinstance(problem.task, RotatedRegression):
        return OutOfScope("the covariance varies from prompt to prompt")
    if problem.scale is None:
        return (
            "the covariance is not a multiple of the identity (use depth=1, math.inf, or the "
            "`risk` of a Stack)"
        )
    if problem.depth == 1 or math.isinf(problem.length):
        return "one layer solves it in closed form"
    return None


def _not_rotated(problem: OptimumProblem) -> str | None:
    if not isinstance(problem.task, RotatedRegression):
        return OutOfScope("the covariance is the same for all prompts")
    if math.isfinite(problem.length):
        return "the length is finite (use math.inf, or the `risk` of a Stack)"
    return None


@LINEAR_OPTIMUM.rule(
    kind="exact",
    scope="`LinearRegression`, one layer; any depth over infinite prompts",
    method="closed form",
    obstacle=_not_solved,
)
def _one_layer(problem: OptimumProblem, _effort: Effort) -> LinearOptimum:
    """Return the best layer alone, or K times it over an infinite prompt, which it solves."""
    task, length, depth, scale = problem.task, problem.length, problem.depth, problem.scale
    if isinstance(task, RotatedRegression):
        raise TypeError("a rule must not compute where its obstacle holds")
    S = task.covariance
    dim = S.shape[0]
    ridge = (np.trace(S) + task.noise_variance / task.prior_variance) / length
    inverse = np.linalg.pinv((1 + 1 / length) * S + ridge * np.eye(dim), hermitian=True)
    balance = math.sqrt(float(np.linalg.norm(inverse)))
    key_query, value = np.zeros((dim + 1, dim + 1)), np.zeros((dim + 1, dim + 1))
    key_query[:dim, :dim], value[dim, dim] = inverse / balance, balance
    with jax.enable_x64(True):
        head = to_device(key_query[None]), to_device(value[None, dim])
        least = float(linear_risk(task, length, *head))
    kind = kind_of("exact", length)
    attention = LinearAttention(key_query, value)
    if depth > 1:
        attention = _stack([key_query] * depth, [-value] * depth)
    steps = None if scale is None else np.full(depth, inverse[0, 0])
    return LinearOptimum(attention, Risk(least, 0.0, kind, length, 0), steps, None, least)


@LINEAR_OPTIMUM.rule(
    kind="exact",
    scope="`LinearRegression` with $\\Sigma=\\lambda I$, several layers, finite prompts",
    method="the best steps, from exact moments of Wishart matrices",
    obstacle=_not_wishart,
)
def _best_on_wishart(problem: OptimumProblem, _effort: Effort) -> LinearOptimum:
    task, scale = problem.task, unwrap(problem.scale)
    if isinstance(task, RotatedRegression):
        raise TypeError("a rule must not compute where its obstacle holds")
    dim, tokens = task.token_dim - 1, int(problem.length)
    spectrum = wishart_spectrum(dim, tokens, problem.degree)
    ridge = Fraction(task.noise_variance) / Fraction(task.prior_variance) / Fraction(scale) / tokens
    load = task.prior_variance * float(np.trace(task.query_covariance)) / dim
    return _deep_optimum(problem, spectrum, ridge, scale=scale, load=load)


@LINEAR_OPTIMUM.rule(
    kind="limit",
    scope="`RotatedRegression`, infinite prompts",
    method="the best steps, from the moments of the spectrum",
    obstacle=_not_rotated,
)
def _best_on_rotated(problem: OptimumProblem, _effort: Effort) -> LinearOptimum:
    task = problem.task
    if not isinstance(task, RotatedRegression):
        raise TypeError("a rule must not compute where its obstacle holds")
    eigenvalues = [Fraction(value) for value in task.spectrum.tolist() if value > 0]
    scale = sum(eigenvalues, Fraction(0)) / len(eigenvalues)
    moments = [
        sum((value * (value / scale) ** k for value in eigenvalues), Fraction(0))
        for k in range(2 * problem.degree + 1)
    ]
    no_ridge, load = Fraction(0), task.prior_variance
    return _deep_optimum(problem, spectrum_of(moments), no_ridge, scale=float(scale), load=load)


def _deep_optimum(
    problem: OptimumProblem, spectrum: Spectrum, ridge: Fraction, *, scale: float, load: float
) -> LinearOptimum:
    """Return the stack of the best steps; those of a finite spectrum are taken again and again.

    Args:
        problem: the regression, the length and the layers.
        spectrum: of the prompt's second moment, in units of `scale`.
        ridge: c of `Spectrum`.
        scale: the unit of eigenvalues.
        load: the unit of F in twice the risk.
    """
    depth, dim, noise = problem.depth, problem.task.token_dim - 1, problem.task.noise_variance
    shifts = None
    if problem.moving:
        best, moved = best_moving_steps(spectrum, ridge, depth)
        shifts = moved / scale
    else:
        best = best_steps(spectrum, ridge)
    steps = np.resize(best.steps, depth) / scale
    key_query, value = [], []
    for step, shift in zip(steps, np.zeros(depth) if shifts is None else shifts, strict=True):
        # As large as each other, as gradient flow keeps them.
        balance = math.sqrt(math.hypot(step, math.sqrt(dim) * shift) / math.sqrt(dim)) or 1.0
        key_query.append(np.diag([balance] * dim + [0.0]))
        value.append(-np.diag([shift] * dim + [step]) / balance)
    risk, bound = ((noise + load * mean) / 2 for mean in (best.mean, best.bound))
    result = Risk(risk, 0.0, kind_of("exact", problem.length), problem.length, 0)
    return LinearOptimum(_stack(key_query, value), result, steps, shifts, bound)


def _stack(key_query: list[NDArray[np.float64]], value: list[NDArray[np.float64]]) -> Stack:
    """Return the layers; the last turns the sign of the label, so that it is the prediction."""
    layers = [Layer(LinearAttention(u, v)) for u, v in zip(key_query[:-1], value[:-1], strict=True)]
    sign = np.append(np.ones(len(value[-1]) - 1), -1.0)
    last = Layer(LinearAttention(key_query[-1], sign[:, None] * value[-1]), np.diag(sign))
    return Stack([*layers, last])
