"""Starts of training: blocks of the theory, random factors, and validation of user starts."""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, Number
from promptlimit._inputs import float_array, require_choice, require_shape
from promptlimit.attention import (
    AbstractAttention,
    Factored,
    LinearAttention,
    SoftmaxAttention,
    array_names,
)
from promptlimit.dynamics._risks import Parametrisation, is_one_head, kernel_of
from promptlimit.errors import ArgumentError, OutsideTheoremWarning
from promptlimit.results import Trajectory
from promptlimit.tasks import (
    AbstractTask,
    LinearRegression,
    require_fitting_task,
    require_regression,
    require_task,
)

Start: TypeAlias = AbstractAttention | Callable[[PRNGKeyArray], AbstractAttention]
"""An attention, or a function of a key that returns one, called once per seed."""

Starts: TypeAlias = tuple[tuple[AbstractAttention, ...], ...]
"""Attentions, [start][seed]."""

_RANK = 1e-10


def block_start(
    task: LinearRegression,
    alpha: Number,
    theta: ArrayLike | None = None,
    *,
    kernel: str = "softmax",
) -> SoftmaxAttention | LinearAttention:
    r"""Return $U(0)=\alpha\,\mathrm{diag}(\Theta\Theta^\top,0)$, $V(0)=\alpha\,\mathrm{diag}(0,1)$.

    Assumption 5.1 of the paper, with $\|\Theta\Theta^\top\|_F=1$; for labels in $\mathbb R^m$,
    $V(0)=\alpha\,\mathrm{diag}(0,I_m)$. A warning is given if $\alpha$ is
    outside $0<\alpha<\sqrt2/(d^{1/4}\|\Sigma\|_{op})$, where Theorem 5.2 proves convergence, or if
    $\Theta^\top\Sigma=0$.

    Args:
        task: the regression.
        alpha: $\alpha$, the size of the start.
        theta: $\Theta$, [d, any], scaled here to the norm above; the identity when None.
        kernel: "softmax" or "linear".

    >>> import numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(4))
    >>> print(np.diag(pl.dynamics.block_start(task, 0.5).key_query))
    [0.25 0.25 0.25 0.25 0.  ]
    """
    require_regression(task)
    require_choice("kernel", kernel, ("softmax", "linear"))
    if not math.isfinite(alpha):
        raise ArgumentError("alpha", f"must be finite, got {alpha}.")
    square = _unit_square(task, theta)
    dim = square.shape[0]
    norm = float(np.linalg.norm(task.covariance, 2))
    largest = math.sqrt(2.0) / (dim**0.25 * norm) if norm > 0.0 else math.inf
    if not 0.0 < alpha < largest or not (square @ task.covariance).any():
        warnings.warn(
            f"Theorem 5.2 requires 0 < alpha < {largest:.4g} and theta' Sigma not zero, "
            f"got alpha = {alpha:g}.",
            OutsideTheoremWarning,
            stacklevel=2,
        )
    key_query, value = np.zeros((2, task.token_dim, task.token_dim))
    key_query[:dim, :dim], value[dim:, dim:] = alpha * square, alpha * np.eye(task.label_dim)
    head = SoftmaxAttention if kernel == "softmax" else LinearAttention
    with jax.enable_x64(True):
        return head(key_query, value)


def _unit_square(task: LinearRegression, theta: ArrayLike | None) -> np.ndarray:
    r"""Return $\Theta\Theta^\top/\|\Theta\Theta^\top\|_F$, $\Theta$ the identity when None."""
    dim = task.covariance.shape[0]
    with jax.enable_x64(True):
        array = float_array("theta", np.eye(dim) if theta is None else theta, rank=2)
        require_shape("theta", array, (dim, array.shape[1]), "one row for each covariate")
    factor = np.asarray(array, dtype=np.float64)
    square = factor @ factor.T
    size = np.linalg.norm(square)
    if size == 0.0:
        raise ArgumentError("theta", "must not be zero, got zeros. The flow would never move.")
    return square / size


def uniform_factors(dim: int, *, key: PRNGKeyArray, kernel: str = "softmax") -> Factored:
    r"""Return random factors $K,Q,V$ and $O$, uniform in $\pm1/\sqrt{d+1}$, the default of PyTorch.

    The start of the paper's experiments (section 6): $K,Q,V$ are $[d+1,d+1]$, $O$ is $[1,d+1]$ and
    scores are multiplied by $1/\sqrt{d+1}$. The same key gives both kernels the same factors.

    Args:
        dim: $d$, the dimension of the covariates.
        key: randomness.
        kernel: "softmax" or "linear".

    >>> import jax, promptlimit as pl
    >>> start = pl.dynamics.uniform_factors(5, key=jax.random.key(0))
    >>> print(start.output_dim, start.token_dim, f"{start.scale**2:.4f}")
    1 6 0.1667
    """
    if dim < 1:
        raise ArgumentError("dim", f"must be at least 1, got {dim}.")
    with jax.enable_x64(True):
        size = dim + 1
        bound = 1.0 / math.sqrt(size)
        return Factored(kernel, *_uniform(key, bound, size), scale=bound)


@partial(jax.jit, static_argnums=2)
def _uniform(key: PRNGKeyArray, bound: Array, size: int) -> list[Array]:
    """Return four matrices uniform in +-bound, the last of one row."""
    shapes = [(size, size)] * 3 + [(1, size)]
    return [
        jax.random.uniform(own_key, shape, jnp.float64, -bound, bound)
        for own_key, shape in zip(jax.random.split(key, 4), shapes, strict=True)
    ]


def block_defect(trajectory: Trajectory, *, label_dim: int = 1) -> NDArray[np.float64]:
    r"""Return the largest entry outside the blocks at each time: of $u_{21}$ and of $v_{21}$.

    $U=\begin{pmatrix}A&*\\u_{21}^\top&*\end{pmatrix}$ and $v=(v_{21},b)$, the last row of V. From a
    block start both stay 0: their gradients are odd in w. For labels in $\mathbb R^m$,
    m = `label_dim`, the last m rows.
    """
    key_query, value = trajectory.merged()
    below = key_query[..., -label_dim:, :-label_dim]
    beside = value[..., -label_dim:, :-label_dim]
    return np.abs(np.concatenate([below, beside], axis=-1)).max(axis=(-2, -1))


def imbalance(trajectory: Trajectory, *, label_dim: int = 1) -> NDArray[np.float64]:
    r"""Return $\|A\|_F^2-\|B\|_F^2$ at each time, which the infinite flow conserves in blocks.

    B is the block of V that reads labels, [m, m] with m = `label_dim`. $R_\infty$ depends only on
    the products of their entries, so $(A,B)\to(A/\lambda,\lambda B)$ is a symmetry, and gradient
    flow conserves the corresponding quantity.
    """
    key_query, value = trajectory.merged()
    A = key_query[..., :-label_dim, :-label_dim]
    B = value[..., -label_dim:, -label_dim:]
    return (A**2).sum(axis=(-2, -1)) - (B**2).sum(axis=(-2, -1))


def block_limit(
    task: LinearRegression, alpha: Number, theta: ArrayLike | None = None
) -> SoftmaxAttention:
    r"""Return where the infinite flow from `block_start(task, alpha, theta)` ends.

    With $\Pi$ the projector on the image of $\Sigma$, $P=\Theta\Theta^\top$, $N=P-\Pi P\Pi$ and
    $\delta=\alpha^2\|N\|_F^2$ (appendix F.3; Remark 5.3 when $\Sigma$ is invertible, $N=0$):

    $$c^2=\tfrac12\Big(\delta+\sqrt{\delta^2+4\,\mathrm{tr}((\Sigma^+)^2)}\Big),\qquad
    U_\infty=\mathrm{diag}(\Sigma^+/c+\alpha N,\,0),\qquad V_\infty=\mathrm{diag}(0,\,c).$$

    For labels in $\mathbb R^m$, $V_\infty=\mathrm{diag}(0,\,c\,I_m)$ with
    $c^2=\big(q+\sqrt{q^2+4m\,\mathrm{tr}((\Sigma^+)^2)}\big)/2m$, $q=\delta+(m-1)\alpha^2$, because
    the flow conserves $\|A\|_F^2-\|B\|_F^2$. A start of negative $\alpha$ ends at the negatives.

    >>> import promptlimit as pl
    >>> print(pl.dynamics.block_limit(pl.LinearRegression([[4.0]]), 0.1).value[-1])
    [0.  0.5]
    """
    require_regression(task)
    _require_one_image(task)
    S, P = task.covariance, _unit_square(task, theta)
    inverse = np.linalg.pinv(S, rcond=_RANK, hermitian=True)
    image = inverse @ S
    N = P - image @ P @ image
    delta = alpha**2 * np.sum(N**2)
    labels, dim = task.label_dim, S.shape[0]
    start = delta + (labels - 1) * alpha**2
    c = math.sqrt((start + math.sqrt(start**2 + 4 * labels * np.sum(inverse**2))) / (2 * labels))
    key_query, value = np.zeros((2, task.token_dim, task.token_dim))
    sign = math.copysign(1.0, alpha)
    key_query[:dim, :dim] = sign * inverse / c + alpha * N
    value[dim:, dim:] = sign * c * np.eye(labels)
    with jax.enable_x64(True):
        return SoftmaxAttention(key_query, value)


def _require_one_image(task: LinearRegression) -> None:
    """Raise an error if queries and prompts span different directions, unless both span all."""
    covariances = (task.covariance, task.query_covariance)
    full = all(np.linalg.matrix_rank(S, tol=_RANK) == S.shape[0] for S in covariances)
    if not full and not np.array_equal(*covariances):
        raise ArgumentError(
            "task",
            "must have one covariance or two invertible ones for a closed form of the limit. "
            "Compute it with gradient_flow(start, task, math.inf, [math.inf]).",
        )


def require_start(start: AbstractAttention, task: AbstractTask) -> None:
    """Raise an error for an attention that does not fit the task or has no arrays to train."""
    require_task(task)
    require_fitting_task("start", start, task)
    if not array_names(start):
        raise ArgumentError(
            "start",
            f"must have at least one array to train, got {type(start).__name__} without any.",
        )


def starts_of_seeds(
    start: Start | Sequence[Start], task: AbstractTask, seeds: int, key: PRNGKeyArray
) -> Starts:
    """Return the attentions [start][seed]; functions get the same key for the same seed."""
    several = list(start) if isinstance(start, Sequence) else [start]
    if not several:
        raise ArgumentError("start", "must contain at least one attention, got none.")
    keys = [jax.random.fold_in(key, seed) for seed in range(seeds)]
    for one in several:
        if not (isinstance(one, AbstractAttention) or callable(one)):
            raise ArgumentError(
                "start",
                "must be an attention, a function of a key that returns one, or a list of "
                f"these, got {type(one).__name__}.",
            )
    starts = tuple(
        tuple(one if isinstance(one, AbstractAttention) else one(seed_key) for seed_key in keys)
        for one in several
    )
    for row in starts:
        for attention in row:
            require_start(attention, task)
    _require_alike(starts)
    return starts


def _require_alike(starts: Starts) -> None:
    """Raise an error for starts that cannot be trained by one program."""
    everyone = [attention for row in starts for attention in row]
    shapes = {_shapes(attention) for attention in everyone}
    if len(shapes) > 1:
        raise ArgumentError(
            "start",
            "must contain attentions whose arrays have the same names and shapes, got "
            f"{len(shapes)} kinds. Train them in separate calls with the same key.",
        )
    different = _different(everyone)
    if not all(map(is_one_head, different)):
        # Each start has its own program, which its seeds share.
        if any(len(_different(row)) > 1 for row in starts):
            raise ArgumentError(
                "start",
                "must return attentions that differ only in their arrays, got others for "
                "other keys. Pass one function for each.",
            )
        return
    if len({Parametrisation(attention, np.float32) for attention in different}) > 1:
        raise ArgumentError(
            "start",
            "must contain attentions of one parametrisation, got several, such as two "
            "scales of the scores. Train them in separate calls with the same key.",
        )
    if any(len({kernel_of(attention) for attention in row}) > 1 for row in starts):
        raise ArgumentError(
            "start",
            "must return the same kernel for every key, got softmax and linear. Pass one "
            "function for each kernel.",
        )


def _shapes(attention: AbstractAttention) -> tuple[tuple[str, tuple[int, ...]], ...]:
    leaves = jax.tree.leaves(eqx.filter(attention, eqx.is_inexact_array))
    return tuple(zip(array_names(attention), (leaf.shape for leaf in leaves), strict=True))


def _different(attentions: Sequence[AbstractAttention]) -> list[AbstractAttention]:
    """Return one attention for each distinct untrained part."""
    rests: list[tuple[AbstractAttention, Any]] = []
    for attention in attentions:
        rest = eqx.filter(attention, eqx.is_inexact_array, inverse=True)
        if not any(eqx.tree_equal(rest, other) is True for _, other in rests):
            rests.append((attention, rest))
    return [attention for attention, _ in rests]
