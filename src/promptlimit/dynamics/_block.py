"""Block structure: what the theory proves about flows from a block start, as measurements."""

import math

import jax
import numpy as np
from numpy.typing import NDArray

from promptlimit._inputs import ArrayLike, Number
from promptlimit.attention import SoftmaxAttention
from promptlimit.dynamics._starts import unit_square
from promptlimit.results import Trajectory
from promptlimit.tasks import LinearRegression, require_regression

_RANK = 1e-10


def block_defect(trajectory: Trajectory) -> NDArray[np.float64]:
    r"""Return the largest entry outside the blocks at each time: of $u_{21}$ and of $v_{21}$.

    $U=\begin{pmatrix}A&*\\u_{21}^\top&*\end{pmatrix}$ and $v=(v_{21},b)$, the last row of V. From a
    block start both stay 0: their gradients are odd in w.
    """
    below, beside = trajectory.key_query[:, -1, :-1], trajectory.value_matrix[:, -1, :-1]
    return np.abs(np.concatenate([below, beside], axis=1)).max(axis=1)


def imbalance(trajectory: Trajectory) -> NDArray[np.float64]:
    r"""Return $\|A\|_F^2-b^2$ at each time, which the infinite flow conserves in blocks.

    $R_\infty$ sees only $bA$, so $(A,b)\to(A/\lambda,\lambda b)$ changes nothing, and gradient flow
    keeps what belongs to that symmetry.
    """
    A, b = trajectory.key_query[:, :-1, :-1], trajectory.value_matrix[:, -1, -1]
    return (A**2).sum(axis=(1, 2)) - b**2


def block_limit(
    task: LinearRegression, alpha: Number, theta: ArrayLike | None = None
) -> SoftmaxAttention:
    r"""Return where the infinite flow from `block_start(task, alpha, theta)` ends.

    With $\Pi$ the projector on the image of $\Sigma$, $P=\Theta\Theta^\top$, $N=P-\Pi P\Pi$ and
    $\delta=\alpha^2\|N\|_F^2$ (appendix F.3; Remark 5.3 when $\Sigma$ is invertible, $N=0$):

    $$c^2=\tfrac12\Big(\delta+\sqrt{\delta^2+4\,\mathrm{tr}(\Sigma^+)^2}\Big),\qquad
    U_\infty=\mathrm{diag}(\Sigma^+/c+\alpha N,\,0),\qquad V_\infty=\mathrm{diag}(0,\,c).$$

    A start of negative $\alpha$ ends at the negatives.

    >>> import promptlimit as pl
    >>> print(pl.dynamics.block_limit(pl.LinearRegression([[4.0]]), 0.1).value[-1])
    [0.  0.5]
    """
    require_regression(task)
    _require_one_image(task)
    S, P = task.covariance, unit_square(task, theta)
    inverse = np.linalg.pinv(S, rcond=_RANK, hermitian=True)
    image = inverse @ S
    N = P - image @ P @ image
    delta = alpha**2 * np.sum(N**2)
    c = math.sqrt((delta + math.sqrt(delta**2 + 4 * np.sum(inverse**2))) / 2)
    dim = S.shape[0]
    key_query, value = np.zeros((dim + 1, dim + 1)), np.zeros((dim + 1, dim + 1))
    sign = math.copysign(1.0, alpha)
    key_query[:dim, :dim], value[dim, dim] = sign * inverse / c + alpha * N, sign * c
    with jax.enable_x64(True):
        return SoftmaxAttention(key_query, value)


def _require_one_image(task: LinearRegression) -> None:
    """Refuse queries that see other directions than prompts, unless both see all."""
    covariances = (task.covariance, task.query_covariance)
    full = all(np.linalg.matrix_rank(each, tol=_RANK) == each.shape[0] for each in covariances)
    if not full and not np.array_equal(*covariances):
        raise ValueError(
            "`task` must have one covariance, or two that are invertible, for the end of its flow "
            "to be known. Follow it: gradient_flow(start, task, math.inf, [math.inf])."
        )
