r"""The exact risk of stacks on Gaussian regression: prompts enter by their second moment alone.

Given w, tokens are centred and Gaussian. A layer of linear heads reads the second moment
$\hat\Gamma$ of its tokens; over an infinite prompt so does one of softmax heads, and there
$\hat\Gamma=\Gamma_w$. A stack then maps the query linearly, $(x_q,0)\mapsto P_K(x_q,0)$, and with
$k$ the last row of $P_K$ less its last entry

$$2R=s^2+E\,(k-w)^\top\Sigma_q(k-w),$$

a mean over w, and over $L\hat\Gamma\sim\mathrm{Wishart}(L,\Gamma_w)$ where L is finite. That no
prompt is drawn makes the deep flow over an infinite prompt an ordinary differential equation.
"""

import math
import warnings
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._inputs import to_device
from promptlimit._quadrature import normal_gauss, product_rule, sobol_normals
from promptlimit.attention import AbstractAttention, require_affine_limit
from promptlimit.depth import bartlett_factors
from promptlimit.errors import UnreliableErrorWarning
from promptlimit.measures import Gaussian
from promptlimit.rules import Effort, OutOfScope
from promptlimit.tasks._objectives import (
    AbstractObjective,
    Estimate,
    Objectives,
    mean_over_sets,
    to_tolerance,
)
from promptlimit.tasks._problem import OBJECTIVE, RISK, RiskProblem, on
from promptlimit.tasks.regression._commuting import commuting_risk
from promptlimit.tasks.regression._task import AbstractGaussianRegression, LinearRegression

_SEED = 20_240_207
_FIRST, _LARGEST = 1024, 2**16
_MOST_NODES = 4096


class StackObjective(AbstractObjective):
    r"""The risk as a mean over points, differentiable in the arrays of a stack.

    Attributes:
        second_moments: of the tokens of a prompt.
        weights: $w$.
        query_covariances: $\Sigma_q$, one a point or one for all.
        masses: of the points.
        noise_variance: $s^2$.
    """

    second_moments: Float[Array, "points tokens tokens"]
    weights: Float[Array, "points d"]
    query_covariances: Float[Array, "*points d d"]
    masses: Float[Array, " points"]
    noise_variance: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $\frac12(s^2+E\,(k-w)^\top\Sigma_q(k-w))$."""
        centre = jnp.zeros_like(self.second_moments[0, 0])

        def square(moment: Array, weights: Array, covariance: Array) -> Array:
            matrix, _ = require_affine_limit(attention, Gaussian(centre, moment))
            missed = matrix[-1, :-1] - weights
            return missed @ (covariance @ missed)

        same = None if self.query_covariances.ndim == 2 else 0
        squares = jax.vmap(square, (0, 0, same))(
            self.second_moments, self.weights, self.query_covariances
        )
        return 0.5 * (self.noise_variance + jnp.sum(self.masses * squares))


def _no_second_moment(problem: RiskProblem) -> str | None:
    """Return why the attention does not read prompts through second moments alone.

    Linear heads do at every length, softmax heads over an infinite prompt. The heads of one layer
    on `LinearRegression` have rules of their own.
    """
    if isinstance(problem.task, LinearRegression) and problem.attention.as_layers() is None:
        return OutOfScope("the attention is not a stack")
    heads = [layer.as_heads() for layer in _layers(problem)]
    known = [head for one in heads if one is not None for head in one]
    if any(one is None for one in heads):
        return "a layer does not implement `as_heads`"
    if not problem.is_limit and any(head.kernel != "linear" for head in known):
        return "a length is finite and a head is not linear"
    return None


def _layers(problem: RiskProblem) -> Sequence[AbstractAttention]:
    return problem.attention.as_layers() or (problem.attention,)


@OBJECTIVE.rule(
    kind="exact",
    scope="Gaussian regression, a stack of linear layers; softmax layers over infinite prompts",
    method="a mean over $w$ and Wishart matrices, or Gauss-Hermite nodes (few dimensions)",
    obstacle=on(AbstractGaussianRegression, obstacle=_no_second_moment),
)
def _stack_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    points = _FIRST if effort.points is None else effort.points
    return [stack_objectives(problem, length, points) for length in problem.lengths.tolist()]


def stack_objectives(problem: RiskProblem, length: float, points: int) -> Objectives:
    r"""Return the risk at one length as a function of the stack.

    In closed form where Gauss-Hermite nodes integrate the polynomial in w without error: its degree
    is $2(3^K-1)$ at most, for which $3^K$ nodes an axis are enough.
    """
    task, depth = problem.task, len(_layers(problem))
    fixed = task.rotation_dim == 0 and math.isinf(length)
    if fixed and 3 ** (depth * (task.token_dim - 1)) <= _MOST_NODES:
        return Objectives(lambda _s, _r: _hermite_objective(task, 3**depth), is_closed_form=True)
    if math.isinf(length):
        return Objectives(lambda _, replicate: _limit_objective(task, points, replicate))
    return Objectives(lambda _, replicate: _finite_objective(task, length, points, replicate))


@RISK.rule(
    kind="exact",
    scope="Gaussian regression, a stack of linear layers; softmax layers over infinite prompts",
    method="closed form (layers that are scalars on the covariates), else a mean as for gradients",
    obstacle=on(AbstractGaussianRegression, obstacle=_no_second_moment),
)
def _stack_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    return [_risk(problem, length, effort) for length in problem.lengths.tolist()]


def _risk(problem: RiskProblem, length: float, effort: Effort) -> Estimate:
    """Return the risk in closed form where layers commute, or over as many points as needed."""
    known = commuting_risk(problem.attention, problem.task, length)
    if known is not None:
        return Estimate(known, 0.0, 0)

    def mean(count: int) -> Estimate:
        return mean_over_sets(stack_objectives(problem, length, count), problem.attention, count)

    found = to_tolerance(mean, effort, _FIRST, _LARGEST)
    if effort.points is None and found.error > effort.tolerance * found.value:
        warnings.warn(
            f"{_LARGEST} points reach a relative error of {found.error / found.value:.2g}, not the "
            f"requested {effort.tolerance:g}: the risk depends on rare prompts. Its error is "
            "reported.",
            UnreliableErrorWarning,
            stacklevel=2,
        )
    return found


def _objective(
    task: AbstractGaussianRegression,
    weights: NDArray[np.float64],
    *,
    masses: NDArray[np.float64] | None = None,
    turns: NDArray[np.float64] | None = None,
    shapes: NDArray[np.float64] | None = None,
) -> StackObjective:
    r"""Return the objective at these points and their mirror images.

    The second moment is $MNM^\top$ for tokens $z=M(g,\epsilon)$, N that of $(g,\epsilon)$. At $-w$
    it is the one at w with the sign of the label changed, so that what is odd in w vanishes.

    Args:
        task: the regression.
        weights: $w$, [points, d].
        masses: of the points; equal when None.
        turns: normals for the rotations, where prompts have their own.
        shapes: $N$, the identity when None.
    """
    points, dim = weights.shape
    covariance, query = task.covariances(np.zeros((points, 0)) if turns is None else turns)
    variances, axes = np.linalg.eigh(covariance)
    root = axes * np.sqrt(np.maximum(variances, 0.0))[..., None, :]
    tokens = np.zeros((points, dim + 1, dim + 1))
    tokens[:, :dim, :dim] = root
    tokens[:, dim, :dim] = (weights[:, None] @ root)[:, 0]
    tokens[:, dim, dim] = math.sqrt(task.noise_variance)
    moments = tokens @ tokens.mT if shapes is None else tokens @ shapes @ tokens.mT
    flip = np.append(np.ones(dim), -1.0)
    mass = np.full(points, 1 / points) if masses is None else masses
    return StackObjective(
        to_device(np.concatenate([moments, flip[:, None] * moments * flip])),
        to_device(np.concatenate([weights, -weights])),
        to_device(query if query.ndim == 2 else np.concatenate([query, query])),
        to_device(np.concatenate([mass, mass]) / 2),
        to_device(task.noise_variance),
    )


def _hermite_objective(task: AbstractGaussianRegression, count: int) -> StackObjective:
    """Return the limit risk on a grid of Gauss-Hermite nodes of w."""
    grid, masses = product_rule([normal_gauss(count)] * (task.token_dim - 1))
    return _objective(task, math.sqrt(task.prior_variance) * grid, masses=masses)


def _limit_objective(
    task: AbstractGaussianRegression, points: int, replicate: int
) -> StackObjective:
    """Return the limit risk; the weights have exactly their second moment, as linear maps need."""
    dim = task.token_dim - 1
    normals = sobol_normals(dim + task.rotation_dim, points // 2, _SEED, replicate)
    second = normals[:, :dim].T @ normals[:, :dim] / normals.shape[0]
    weights = np.linalg.solve(np.linalg.cholesky(second), normals[:, :dim].T).T
    return _objective(task, math.sqrt(task.prior_variance) * weights, turns=normals[:, dim:])


def _finite_objective(
    task: AbstractGaussianRegression, length: float, points: int, replicate: int
) -> StackObjective:
    """Return the risk over L tokens, by Bartlett factors of their second moments."""
    dim = task.token_dim - 1
    factor, normals = bartlett_factors(
        dim + 1, length, points // 2, replicate, extra=dim + task.rotation_dim
    )
    weights = math.sqrt(task.prior_variance) * normals[:, :dim]
    shapes = factor @ factor.mT / length
    return _objective(task, weights, turns=normals[:, dim:], shapes=shapes)
