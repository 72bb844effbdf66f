"""The linear attention of smallest risk on Gaussian regression, with one or several layers."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import numpy_only
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
from promptlimit.results import Kind, Result, axis, derived, variable
from promptlimit.rules import Effort, Quantity, computes, unwrap
from promptlimit.tasks._problem import Lengths, kind_of, on, require_lengths
from promptlimit.tasks.regression._polynomials import linear_risk
from promptlimit.tasks.regression._task import (
    LinearRegression,
    RotatedRegression,
    require_regression,
)

_MOST_MOVING = 3
_ALONG_LENGTHS = "value", "error", "bound", "steps", "covariate_steps", "key_query", "value_matrix"


class LinearOptimum(Result):
    r"""The best linear attention on a regression and its exact risk, at one or several lengths.

    For several lengths the axes of `lengths` come first in every array.

    Attributes:
        lengths: $L$, the number of tokens of a prompt.
        value: the risk, half the mean squared error.
        error: always 0, because the risk has a closed form.
        kind: "exact", or "limit" when all lengths are infinite.
        bound: the smallest risk of all polynomials, in the second moment of the prompt, whose
            degree is that of the layers. It is below `value` if real steps do not attain it.
        steps: the step $\beta_l$ of each layer; None if the covariate block of U is not a multiple
            of the identity.
        covariate_steps: the step of each layer on the covariates; None without `moving_covariates`.
        key_query: $U$ of each layer.
        value_matrix: $V$ of each layer. The last layer predicts the label, and the other layers
            subtract their steps from the label.
    """

    lengths: float | np.ndarray = axis("length", "L", scale="log")
    value: float | np.ndarray = variable("length", label="risk", scale="log")
    error: float | np.ndarray = variable("length")
    kind: Kind
    bound: float | np.ndarray = variable("length")
    steps: np.ndarray | None = variable("length", "layer")
    covariate_steps: np.ndarray | None = variable("length", "layer")
    key_query: np.ndarray = variable("length", "layer", bulk=True)
    value_matrix: np.ndarray = variable("length", "layer", bulk=True)

    @property
    @derived("length")
    def mse(self) -> float | np.ndarray:
        """Twice `value`: the mean squared error."""
        return 2.0 * self.value

    @property
    def attention(self) -> LinearAttention | Stack:
        """The attention at one length: a head, or a `Stack`. Its last output is the prediction.

        It has jax's current precision. If there are several lengths, select one first:
        `.at(40).attention`.
        """
        if np.ndim(self.lengths):
            raise ArgumentError(
                "lengths",
                f"must be one number to build the attention, got {np.size(self.lengths)}. Select "
                "one: `.at(length).attention`.",
            )
        heads = list(map(LinearAttention, self.key_query, self.value_matrix))
        if len(heads) == 1:
            return heads[0]
        kept = np.append(np.ones(self.key_query.shape[-1] - 1), -1.0)
        return Stack([*map(Layer, heads[:-1]), Layer(heads[-1], np.diag(kept))])


@dataclasses.dataclass(frozen=True)
class OptimumProblem:
    """A validated problem: task, length and number of layers, which move covariates if `moving`."""

    task: Any
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
        """The degree of the layers, as a polynomial in the second moment of the prompt."""
        return moving_degree(self.depth) if self.moving else self.depth

    @property
    def scale(self) -> float | None:
        r"""$\lambda$ if the covariance is $\lambda I$, otherwise None."""
        if isinstance(self.task, RotatedRegression):
            return None
        scale = float(self.task.covariance[0, 0])
        isotropic = np.array_equal(self.task.covariance, scale * np.eye(len(self.task.covariance)))
        return scale if isotropic else None

    def solved(self, **fields: Any) -> LinearOptimum:
        """Return the optimum at the length of the problem, with error 0."""
        kind = kind_of("exact", self.length)
        return LinearOptimum(lengths=self.length, error=0.0, kind=kind, **fields)


LINEAR_OPTIMUM: Quantity[OptimumProblem, LinearOptimum] = Quantity(
    "linear_optimum", returns="a `tasks.LinearOptimum` at one length"
)
"""The rules of `linear_optimum`."""


@computes(LINEAR_OPTIMUM)
@numpy_only("Call it outside the compiled function and pass its result.")
def linear_optimum(
    task: LinearRegression | RotatedRegression,
    lengths: Lengths,
    depth: int = 1,
    *,
    moving_covariates: bool = False,
) -> LinearOptimum:
    r"""Return the linear attention of smallest risk over L tokens, and its risk.

    **One layer** on a `LinearRegression` has $U=\kappa^{-1}\mathrm{diag}(\Gamma^{-1},0)$ and
    $V=\kappa\,\mathrm{diag}(0,1)$ with
    $\Gamma=(1+\frac1L)\Sigma+\frac1L(\mathrm{tr}\Sigma+s^2/\tau^2)I$ (Zhang et al. 2024 without
    noise; Remark 5.3 at $L=\infty$, with the pseudo-inverse of a singular $\Sigma$). The layer does
    not depend on the law of the query. The factor $\kappa=\mathrm{tr}(\Gamma^{-2})^{1/4}$ makes the
    norms of U and V equal, as gradient flow does, and does not affect the risk. For labels in
    $\mathbb R^m$, V is $\kappa\,\mathrm{diag}(0,I_m)$ with
    $\kappa=(\mathrm{tr}(\Gamma^{-2})/m)^{1/4}$, and the risk is m times that of one label.

    **K layers** with a residual are K steps of gradient descent (von Oswald et al. 2023, Ahn et al.
    2023): the relative error is $p(S)=\prod_l(1-\beta_lS)$, with S the second moment of the
    covariates in the prompt. The best steps $\beta_l$ follow from exact moments of S. They are
    available at finite L for $\Sigma=\lambda I$, and at $L=\infty$ for `RotatedRegression`. With a
    fixed $\Sigma$ and $L=\infty$ one layer is sufficient, and K layers with equal steps are
    returned.

    Args:
        task: the regression, `LinearRegression` or `RotatedRegression`.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        depth: $K$, the number of layers, up to 16.
        moving_covariates: whether the layers also change the covariates (GD++). This requires at
            most 3 layers. The steps are found by descents from several starts.

    >>> import math, jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> print(pl.linear_optimum(task, [10, 40, math.inf]).mse.round(6))
    [0.493939 0.239785 0.1     ]
    >>> two = pl.linear_optimum(task, 40, depth=2)
    >>> print(two.steps.round(6), f"{two.mse:.9f}", type(two.attention).__name__)
    [0.638422 1.227466] 0.135299415 Stack
    """
    if not isinstance(task, RotatedRegression):
        require_regression(task)
        if not task.covariance.any():
            raise ArgumentError("task", "must have a covariance that is not zero, got zeros.")
    tokens = require_lengths(lengths)
    _require_depth(depth, moving_covariates=moving_covariates)
    if depth > 1 and task.label_dim > 1:
        raise ArgumentError(
            "depth",
            f"must be 1 for labels of {task.label_dim} coordinates, got {depth}. Steps that are "
            "best for one label are best for several.",
        )
    effort = Effort()
    problems = [
        OptimumProblem(task, length, int(depth), bool(moving_covariates))
        for length in tokens.ravel().tolist()
    ]
    rules = [LINEAR_OPTIMUM.choose(problem, "auto", effort) for problem in problems]
    optima = [rule.compute(problem, effort) for rule, problem in zip(rules, problems, strict=True)]
    return _along(tokens, optima)


def _along(lengths: NDArray[np.float64], optima: list[LinearOptimum]) -> LinearOptimum:
    if lengths.ndim == 0:
        return optima[0]
    arrays = {
        name: np.stack(column).reshape(*lengths.shape, *np.shape(column[0]))
        for name in _ALONG_LENGTHS
        if (column := [getattr(one, name) for one in optima])[0] is not None
    }
    kind = kind_of("exact", lengths)
    return dataclasses.replace(optima[0], lengths=lengths, kind=kind, **arrays)


def _require_depth(depth: int, *, moving_covariates: bool) -> None:
    most = _MOST_MOVING if moving_covariates else MOST_STEPS
    whole = isinstance(depth, int | np.integer) and not isinstance(depth, bool)
    if not (whole and 1 <= depth <= most):
        why = " with `moving_covariates`" if moving_covariates else ""
        raise ArgumentError(
            "depth",
            f"must be a whole number from 1 to {most}{why}, got {depth}. "
            "Pass a Stack of more layers to `risk`.",
        )


def _several_layers(problem: OptimumProblem) -> str | None:
    one = problem.depth == 1 or math.isinf(problem.length)
    return None if one else "there are several layers and the length is finite"


def _not_wishart(problem: OptimumProblem) -> str | None:
    if problem.scale is None:
        return (
            "the covariance is not a multiple of the identity (use depth=1, math.inf, or the "
            "`risk` of a Stack)"
        )
    return None if _several_layers(problem) else "one layer solves it in closed form"


def _finite(problem: OptimumProblem) -> str | None:
    if math.isinf(problem.length):
        return None
    return "the length is finite (use math.inf, or the `risk` of a Stack)"


@LINEAR_OPTIMUM.rule(
    kind="exact",
    scope="`LinearRegression`, one layer; any depth over infinite prompts",
    method="closed form",
    obstacle=on(LinearRegression, obstacle=_several_layers),
)
def _one_layer(problem: OptimumProblem, _effort: Effort) -> LinearOptimum:
    task, length, depth = problem.task, problem.length, problem.depth
    S = task.covariance
    dim = S.shape[0]
    ridge = (np.trace(S) + task.noise_variance / task.prior_variance) / length
    inverse = np.linalg.pinv((1 + 1 / length) * S + ridge * np.eye(dim), hermitian=True)
    balance = math.sqrt(float(np.linalg.norm(inverse)) / math.sqrt(task.label_dim))
    key_query, value = np.zeros((2, task.token_dim, task.token_dim))
    key_query[:dim, :dim] = inverse / balance
    value[dim:, dim:] = balance * np.eye(task.label_dim)
    with jax.enable_x64(True):
        head = to_device(key_query[None]), to_device(value[None, dim:])
        least = float(linear_risk(task, length, *head))
    return problem.solved(
        value=least,
        bound=least,
        steps=None if problem.scale is None else np.full(depth, inverse[0, 0]),
        covariate_steps=np.zeros(depth) if problem.moving else None,
        key_query=np.stack([key_query] * depth),
        value_matrix=np.stack([-value] * (depth - 1) + [value]),
    )


@LINEAR_OPTIMUM.rule(
    kind="exact",
    scope="`LinearRegression` with $\\Sigma=\\lambda I$, several layers, finite prompts",
    method="the best steps, from exact moments of Wishart matrices",
    obstacle=on(LinearRegression, obstacle=_not_wishart),
)
def _best_on_wishart(problem: OptimumProblem, _effort: Effort) -> LinearOptimum:
    task, scale = problem.task, unwrap(problem.scale)
    dim, tokens = task.token_dim - 1, int(problem.length)
    spectrum = wishart_spectrum(dim, tokens, problem.degree)
    ridge = Fraction(task.noise_variance) / Fraction(task.prior_variance) / Fraction(scale) / tokens
    load = task.prior_variance * float(np.trace(task.query_covariance)) / dim
    return _deep_optimum(problem, spectrum, ridge, scale=scale, load=load)


@LINEAR_OPTIMUM.rule(
    kind="limit",
    scope="`RotatedRegression`, infinite prompts",
    method="the best steps, from the moments of the spectrum",
    obstacle=on(RotatedRegression, obstacle=_finite),
)
def _best_on_rotated(problem: OptimumProblem, _effort: Effort) -> LinearOptimum:
    task = problem.task
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
    r"""Return the stack of the best steps; if the spectrum has too few nodes, steps are repeated.

    Args:
        problem: the regression, the length and the number of layers.
        spectrum: the spectrum of the prompt's second moment, in units of `scale`.
        ridge: $s^2/(L\tau^2)$ in units of `scale`.
        scale: the unit of the eigenvalues.
        load: the factor in `2 * risk = noise + load * F`, with the mean F of `best_steps`.
    """
    depth, dim, noise = problem.depth, problem.task.token_dim - 1, problem.task.noise_variance
    shifts = None
    if problem.moving:
        best, moved = best_moving_steps(spectrum, ridge, depth)
        shifts = moved / scale
    else:
        best = best_steps(spectrum, ridge)
    steps = np.resize(best.steps, depth) / scale
    moves = np.zeros(depth) if shifts is None else shifts
    # U and V of each layer have the same norm, as under gradient flow.
    sizes = np.sqrt(np.hypot(steps, math.sqrt(dim) * moves) / math.sqrt(dim))
    balances = np.where(sizes > 0.0, sizes, 1.0)
    rows = zip(steps, moves, balances, strict=True)
    value = np.stack([-np.diag([move] * dim + [step]) / balance for step, move, balance in rows])
    value[-1, dim] *= -1.0
    risk, bound = ((noise + load * mean) / 2 for mean in (best.mean, best.bound))
    return problem.solved(
        value=risk,
        bound=bound,
        steps=steps,
        covariate_steps=shifts,
        key_query=np.stack([np.diag([balance] * dim + [0.0]) for balance in balances]),
        value_matrix=value,
    )
