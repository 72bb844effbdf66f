r"""The exact risk of stacks on Gaussian regression, which depends only on second moments.

Given the hidden weights w, tokens are centred and Gaussian with covariance $\Gamma_w$. A layer of
linear heads depends on its tokens only through their second moment $\hat\Gamma$. So does a layer of
softmax heads over an infinite prompt, where $\hat\Gamma=\Gamma_w$. A stack of K layers then maps
the query linearly, $(x_q,0)\mapsto P_K(x_q,0)$. Let $k$ be the last row of $P_K$ without its last
entry. The risk R satisfies

$$2R=s^2+E\,(k-w)^\top\Sigma_q(k-w),$$

where the mean is over w and, if L is finite, over $L\hat\Gamma\sim\mathrm{Wishart}(L,\Gamma_w)$.

The mean has a closed form if every layer has the residual $\mathrm{diag}(\rho I,\rho')$ and heads
$U=\mathrm{diag}(uI,0)$, $V=\mathrm{diag}(\alpha I,b)$. All matrices are then functions of the
second moment S of the covariates. At an eigenvalue $\lambda$ of S, the layers multiply the
covariates by g and the labels by t, and the prediction is f times the exact label. Starting from
$g=t=1$ and $f=0$, each layer updates these factors by

$$g\gets(\rho+\alpha u\lambda g^2)g,\qquad f\gets\rho'f+bu\,\lambda g^2t,\qquad
t\gets(\rho'+bu\,\lambda g^2)t ,$$

with $\alpha u$ and $bu$ summed over heads. The relative error of the prediction is $p=1-f$. The
layers perform gradient descent if they do not change the covariates, and GD++ if they do.
"""

import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from promptlimit._inputs import to_device
from promptlimit._quadrature import normal_gauss, product_rule, sobol_normals
from promptlimit.attention import AbstractAttention, require_affine_limit
from promptlimit.depth import MOST_STEPS, bartlett_factors, wishart_spectrum
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
from promptlimit.tasks.regression._task import (
    AbstractGaussianRegression,
    LinearRegression,
    several_labels,
)

_SEED = 20_240_207
_FIRST, _LARGEST = 1024, 2**16
_MOST_NODES = 4096


class StackObjective(AbstractObjective):
    r"""The risk as a mean over points $(\hat\Gamma,w)$, differentiable in the arrays of a stack.

    Attributes:
        second_moments: the second moments $\hat\Gamma$ of the tokens of a prompt.
        weights: the hidden weights $w$.
        query_covariances: the query covariances $\Sigma_q$, one per point or one for all points.
        masses: the masses of the points.
        noise_variance: the noise variance $s^2$ of a label.
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
    """Return why the rule for functions of second moments does not apply, or None."""
    # Other rules apply to one layer on LinearRegression.
    if isinstance(problem.task, LinearRegression) and problem.attention.as_layers() is None:
        return OutOfScope("the attention is not a stack")
    if (labels := several_labels(problem)) is not None:
        return labels
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
    method="average over $w$ and Wishart matrices; Gauss-Hermite nodes in few dimensions",
    obstacle=on(AbstractGaussianRegression, obstacle=_no_second_moment),
)
def _stack_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    points = _FIRST if effort.points is None else effort.points
    return [stack_objectives(problem, length, points) for length in problem.lengths.tolist()]


def stack_objectives(problem: RiskProblem, length: float, points: int) -> Objectives:
    r"""Return the risk at one length as a function of the stack.

    For a fixed covariance and an infinite prompt, the risk is the mean of a polynomial in w of
    degree at most $2(3^K-1)$. If the dimension is small, $3^K$ Gauss-Hermite nodes per axis compute
    this mean exactly.
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
    method="closed form if all matrices are multiples of the identity on the covariates; "
    "otherwise average over points",
    obstacle=on(AbstractGaussianRegression, obstacle=_no_second_moment),
)
def _stack_risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    return [_risk(problem, length, effort) for length in problem.lengths.tolist()]


def _risk(problem: RiskProblem, length: float, effort: Effort) -> Estimate:
    """Return the risk in closed form if layers commute, otherwise as a mean over points."""
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
    rotations: NDArray[np.float64] | None = None,
    shapes: NDArray[np.float64] | None = None,
) -> StackObjective:
    r"""Return the objective at these points and their mirror images.

    Tokens are $z=M(g,\epsilon)$ with standard normals $(g,\epsilon)$. If N is the second moment of
    $(g,\epsilon)$ over the tokens of a prompt, the second moment of z is $MNM^\top$. The mirror
    image of a point has the weights $-w$ and the second moment of tokens with the opposite label.
    Terms that are odd in w therefore vanish.

    By default masses are equal, and the second moments N (`shapes`) are the identity. The normals
    `rotations` determine the rotation of each prompt.
    """
    points, dim = weights.shape
    covariance, query = task.covariances(np.zeros((points, 0)) if rotations is None else rotations)
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
    """Return the limit risk on a grid of `count` Gauss-Hermite nodes per entry of w."""
    grid, masses = product_rule([normal_gauss(count)] * (task.token_dim - 1))
    return _objective(task, math.sqrt(task.prior_variance) * grid, masses=masses)


def _limit_objective(
    task: AbstractGaussianRegression, points: int, replicate: int
) -> StackObjective:
    """Return the limit risk over points w whose second moment is exactly that of the law of w."""
    dim = task.token_dim - 1
    normals = sobol_normals(dim + task.rotation_dim, points // 2, _SEED, replicate)
    second = normals[:, :dim].T @ normals[:, :dim] / normals.shape[0]
    weights = np.linalg.solve(np.linalg.cholesky(second), normals[:, :dim].T).T
    return _objective(task, math.sqrt(task.prior_variance) * weights, rotations=normals[:, dim:])


def _finite_objective(
    task: AbstractGaussianRegression, length: float, points: int, replicate: int
) -> StackObjective:
    """Return the risk over L tokens, with second moments drawn by their Bartlett factors."""
    dim = task.token_dim - 1
    factor, normals = bartlett_factors(
        dim + 1, length, points // 2, replicate, extra=dim + task.rotation_dim
    )
    weights = math.sqrt(task.prior_variance) * normals[:, :dim]
    shapes = factor @ factor.mT / length
    return _objective(task, weights, rotations=normals[:, dim:], shapes=shapes)


class ScalarLayer(NamedTuple):
    r"""The numbers of a layer: $(\rho,\rho')$ of the residual, and $(u,\alpha,b)$ of each head."""

    residual: tuple[float, float]
    heads: list[tuple[float, float, float]]


def scalar_layers(attention: AbstractAttention) -> list[ScalarLayer] | None:
    """Return the layers if every matrix is diag(a I, a'), with a' = 0 in U; otherwise None."""
    layers = []
    for layer in attention.as_layers() or (attention,):
        residual, heads = layer.residual_matrix(), layer.as_heads() or ()
        kept = (0.0, 0.0) if residual is None else _scalars(residual)
        pairs = [(_scalars(head.key_query), _scalars(head.value)) for head in heads]
        known = [(u[0], *v) for u, v in pairs if u is not None and v is not None and u[1] == 0.0]
        if kept is None or not pairs or len(known) < len(pairs):
            return None
        layers.append(ScalarLayer(kept, known))
    return layers


def _scalars(matrix: object) -> tuple[float, float] | None:
    host = np.asarray(matrix, np.float64)
    if host.shape[0] != host.shape[1] or host.shape[0] < 2:
        return None
    scales = host[0, 0].item(), host[-1, -1].item()
    diagonal = np.append(np.full(host.shape[0] - 1, scales[0]), scales[1])
    return scales if np.array_equal(host, np.diag(diagonal)) else None


def commuting_risk(
    attention: AbstractAttention, task: AbstractGaussianRegression, length: float
) -> float | None:
    r"""Return the risk in closed form; None if layers do not commute or the degree is too high.

    For infinite prompts, $2R=s^2+\tau^2\sum_i(\Sigma_q)_{ii}p(\lambda_i)^2$ in a basis of
    eigenvectors of $\Sigma$ with eigenvalues $\lambda_i$. At finite L the closed form requires
    $\Sigma=\lambda I$, and the risk follows from the mean `Spectrum.mean` over a Wishart spectrum.
    """
    layers = scalar_layers(attention)
    if layers is None:
        return None
    noise, prior, dim = task.noise_variance, task.prior_variance, task.token_dim - 1
    unrotated = np.eye(dim).reshape(1, -1)[:, : task.rotation_dim]
    sigma, query = (law.reshape(-1, dim, dim)[0] for law in task.covariances(unrotated))
    if math.isinf(length):
        variances, axes = np.linalg.eigh(sigma)
        loads = np.einsum("ji,jk,ki->i", axes, query, axes)
        return (noise + prior * float(loads @ (1 - _answers(layers, variances)) ** 2)) / 2
    degree, scale = _degree(layers), float(sigma[0, 0])
    isotropic = task.rotation_dim == 0 and np.array_equal(sigma, scale * np.eye(dim))
    if not isotropic or scale == 0.0 or degree > MOST_STEPS:
        return None
    spectrum = wishart_spectrum(dim, int(length), max(degree, 1))
    ridge = Fraction(noise) / (Fraction(prior) * Fraction(scale) * int(length))
    mean = spectrum.mean(ridge, 1 - _answers(layers, scale * (1 + spectrum.nodes[0])))
    return (noise + prior * float(np.trace(query)) / dim * mean) / 2


def _answers(layers: list[ScalarLayer], variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return f after the last layer at each eigenvalue."""
    covariates, labels = np.ones_like(variances), np.ones_like(variances)
    answers = np.zeros_like(variances)
    for (kept, kept_label), heads in layers:
        second = variances * covariates**2
        step = sum(b * u for u, _, b in heads) * second
        answers = kept_label * answers + step * labels
        labels = (kept_label + step) * labels
        covariates = (kept + sum(alpha * u for u, alpha, _ in heads) * second) * covariates
    return answers


def _degree(layers: list[ScalarLayer]) -> int:
    """Return an upper bound of the degree of f in the eigenvalue."""
    covariates = labels = answers = 0
    for _, heads in layers:
        second = 1 + 2 * covariates
        if any(b * u for u, _, b in heads):
            answers, labels = max(answers, second + labels), labels + second
        if any(alpha * u for u, alpha, _ in heads):
            covariates += second
    return answers
