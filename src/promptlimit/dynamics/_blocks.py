r"""Block starts of linear regression, and the infinite-prompt flow from them.

A token is $(x,y)$ with covariates $x\in\mathbb R^d$ of covariance $\Sigma$ and a label
$y=\langle w,x\rangle$ plus noise; the entries of $w$ have the variance $\tau^2$. A block head has
the score matrix $U=\mathrm{diag}(A,0)$ and the value matrix $V=\mathrm{diag}(0,b)$; the flow
preserves this form. For labels in $\mathbb R^m$, an $m\times m$ matrix $B$ replaces b. "The paper"
is Boursier and Boyer, arXiv:2512.11784.
"""

import math
import warnings

import jax
import numpy as np

from promptlimit._arrays import Array, ArrayLike, Number, real_number
from promptlimit._inputs import float_array, require_choice, require_shape
from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.errors import ArgumentError, OutsideTheoremWarning
from promptlimit.results import Result, Trajectory
from promptlimit.tasks import LinearRegression, require_regression, risk

_RANK = 1e-10


def block_start(
    task: LinearRegression,
    alpha: Number,
    theta: ArrayLike | None = None,
    *,
    kernel: str = "softmax",
) -> SoftmaxAttention | LinearAttention:
    r"""Return $U(0)=\alpha\,\mathrm{diag}(\Theta\Theta^\top,0)$, $V(0)=\alpha\,\mathrm{diag}(0,1)$.

    This is the start of Assumption 5.1 of the paper, with $\|\Theta\Theta^\top\|_F=1$. With labels
    in $\mathbb R^m$, $V(0)=\alpha\,\mathrm{diag}(0,I_m)$. Theorem 5.2 of the paper proves that the
    infinite-prompt flow converges if $0<\alpha<\sqrt2/(d^{1/4}\|\Sigma\|_{op})$ and
    $\Theta^\top\Sigma\ne0$, with $\Sigma$ the covariance of the d covariates. The function warns
    unless both conditions hold.

    Args:
        task: the regression.
        alpha: $\alpha$, the size of the start.
        theta: $\Theta$, [d, n] with any n, which is scaled to $\|\Theta\Theta^\top\|_F=1$; the
            identity when None.
        kernel: "softmax" or "linear".

    >>> import numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(4))
    >>> print(np.diag(pl.dynamics.block_start(task, 0.5).key_query))
    [0.25 0.25 0.25 0.25 0.  ]
    """
    require_regression(task)
    require_choice("kernel", kernel, ("softmax", "linear"))
    alpha = real_number("alpha", alpha)
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
    r"""Return $\Theta\Theta^\top/\|\Theta\Theta^\top\|_F$, with $\Theta=I$ if `theta` is None."""
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


def block_defect(trajectory: Trajectory, *, label_dim: int = 1) -> Array:
    r"""Return the largest absolute entry of $u$ and $v_1$ at each time.

    Here $U=\begin{pmatrix}A&*\\u^\top&*\end{pmatrix}$, and $(v_1,b)$ is the last row of V. With m =
    `label_dim` labels, $u^\top$ and $v_1$ are blocks of the last m rows. From a block start $u$ and
    $v_1$ stay 0, because their gradients are means of odd functions of the hidden weights, whose
    law is symmetric.
    """
    key_query, value = trajectory.merged()
    of_scores = key_query[..., -label_dim:, :-label_dim]
    of_values = value[..., -label_dim:, :-label_dim]
    return np.abs(np.concatenate([of_scores, of_values], axis=-1)).max(axis=(-2, -1))


def imbalance(trajectory: Trajectory, *, label_dim: int = 1) -> Array:
    r"""Return $\|A\|_F^2-\|B\|_F^2$ at each time; the infinite flow of block heads conserves it.

    With m = `label_dim` labels, A is U without its last m rows and columns, and B is the last
    [m, m] block of V. The conservation law corresponds to the symmetry
    $(A,B)\to(A/\lambda,\lambda B)$ of the risk over infinite prompts.
    """
    key_query, value = trajectory.merged()
    A = key_query[..., :-label_dim, :-label_dim]
    B = value[..., -label_dim:, -label_dim:]
    return (A**2).sum(axis=(-2, -1)) - (B**2).sum(axis=(-2, -1))


def block_limit(
    task: LinearRegression, alpha: Number, theta: ArrayLike | None = None
) -> SoftmaxAttention:
    r"""Return the limit of the infinite-prompt flow from `block_start(task, alpha, theta)`.

    Let $\Sigma$ be the covariance of the covariates, $\Sigma^+$ its pseudo-inverse, $\Pi$ the
    projector on its image, $P=\Theta\Theta^\top$ (scaled as in `block_start`), $N=P-\Pi P\Pi$ and
    $\delta=\alpha^2\|N\|_F^2$. By appendix F.3 of the paper, or by Remark 5.3 if $\Sigma$ is
    invertible and therefore $N=0$,

    $$c^2=\tfrac12\Big(\delta+\sqrt{\delta^2+4\,\mathrm{tr}((\Sigma^+)^2)}\Big),\qquad
    U_\infty=\mathrm{diag}(\Sigma^+/c+\alpha N,\,0),\qquad V_\infty=\mathrm{diag}(0,\,c).$$

    With labels in $\mathbb R^m$, $V_\infty=\mathrm{diag}(0,\,c\,I_m)$ with
    $c^2=\big(q+\sqrt{q^2+4m\,\mathrm{tr}((\Sigma^+)^2)}\big)/(2m)$ and $q=\delta+(m-1)\alpha^2$.
    If $\alpha<0$, $V_\infty$ and the term $\Sigma^+/c$ of $U_\infty$ change sign.

    >>> import promptlimit as pl
    >>> print(pl.dynamics.block_limit(pl.LinearRegression([[4.0]]), 0.1).value[-1])
    [0.  0.5]
    """
    require_regression(task)
    _require_one_image(task)
    alpha = real_number("alpha", alpha)
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
    """Raise an error unless the covariances of prompts and queries are equal or both invertible."""
    covariances = (task.covariance, task.query_covariance)
    full = all(np.linalg.matrix_rank(S, tol=_RANK) == S.shape[0] for S in covariances)
    if not full and not np.array_equal(*covariances):
        raise ArgumentError(
            "task",
            "must have one covariance or two invertible ones for a closed form of the limit. "
            "Compute it with gradient_flow(start, task, math.inf, [math.inf]).",
        )


class FlowRate(Result):
    r"""The rate of the infinite-prompt flow from a block start.

    Attributes:
        rate: $2\lambda$: the excess risk falls like $e^{-2\lambda t}$ as $t\to\infty$.
        pl_constant: $\mu$ of the Polyak-Lojasiewicz (PL) inequality
            $|\nabla R|^2\ge\mu(R-R^*)$, with $R^*$ the risk at the end of the flow. The inequality
            holds along the whole flow, so $R(t)-R^*\le e^{-\mu t}(R(0)-R^*)$.
        limit_scale: $c$, the limit of the absolute value of b, the last entry of V.
    """

    rate: float
    pl_constant: float
    limit_scale: float


def flow_rate(task: LinearRegression, alpha: Number, theta: ArrayLike | None = None) -> FlowRate:
    r"""Return the rate at which the infinite-prompt flow from `block_start` converges.

    Along the flow, $U=\mathrm{diag}(A,0)$ and $V=\mathrm{diag}(0,b)$. Write A in a basis of
    eigenvectors of the covariance $\Sigma$ of the covariates, with nonzero eigenvalues $s_i$. Let c
    be the limit of $|b|$ and $\tau^2$ the prior variance. Near the limit, the entries $A_{ij}$ with
    $i\ne j$ decay at the rates $\tau^2c^2s_i^2s_j$. The diagonal of A and b approach their limits
    together, at the rates

    $$\tau^2\,\mathrm{eig}\big(c^2\,\mathrm{diag}(s^3)+c^{-2}\sqrt s\sqrt s^\top\big).$$

    The excess risk falls at the rate $2\lambda$, where $\lambda$ is the smallest of these rates
    that affects the flow: entries off the diagonal that are zero at the start stay zero, and
    diagonal entries with equal $s_i$ that are equal at the start stay equal.

    The PL inequality of `FlowRate` holds with $\mu=2\tau^2\ell^3b_*^2$. Here $\ell$ is the smallest
    $s_i$, and $b_*^2=\big(\tfrac12\mathrm{tr}\,\Sigma-(R(0)-R^*)/\tau^2\big)/\|\Sigma^2\|_F$ is a
    lower bound on $b^2$ along the flow. If this bound is negative, $\mu=0$. The formulas for
    $\lambda$ and $\mu$ are derived for this library; appendix F.3 of the paper proves that such
    constants exist.

    Args:
        task: a regression whose queries have the covariance of its prompts.
        alpha: as for `block_start`.
        theta: as for `block_start`.

    >>> import numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.diag([1.0, 0.6, 0.3]))
    >>> found = pl.dynamics.flow_rate(task, 0.7)
    >>> print(f"{found.rate:.6f} {found.pl_constant:.6f}")
    0.327760 0.018249
    """
    require_regression(task)
    if task.label_dim > 1:
        raise ArgumentError(
            "task",
            f"must have one label, got {task.label_dim}. Follow the flow instead: "
            "gradient_flow(start, task, math.inf, times).",
        )
    if not np.array_equal(task.covariance, task.query_covariance):
        raise ArgumentError(
            "task",
            "must have one covariance for prompts and queries, got two. Follow the flow instead: "
            "gradient_flow(start, task, math.inf, times).",
        )
    start, end = block_start(task, alpha, theta), block_limit(task, alpha, theta)
    c = abs(float(end.value[-1, -1]))
    s, first = _eigenbasis(task.covariance, np.asarray(start.key_query)[:-1, :-1])
    excited = np.abs(first) > _RANK * np.abs(first).max()
    np.fill_diagonal(excited, False)
    rates = (c**2 * s[:, None] ** 2 * s)[excited]
    size, many = _distinct(s, np.diag(first))
    root = np.sqrt(size * many)
    coupled = np.linalg.eigvalsh(np.diag(c**2 * size**3) + np.outer(root, root) / c**2)
    prior = task.prior_variance
    excess = float(risk(start, task, math.inf).value) - 0.5 * task.noise_variance
    least = (0.5 * s.sum() - excess / prior) / np.linalg.norm(s**2)
    return FlowRate(
        rate=2.0 * prior * float(min([*rates, *coupled])),
        pl_constant=2.0 * prior * float(s.min()) ** 3 * max(0.0, float(least)),
        limit_scale=c,
    )


def _eigenbasis(covariance: Array, first: Array) -> tuple[Array, Array]:
    r"""Return the nonzero eigenvalues of $\Sigma$, and A = `first` in a basis of eigenvectors.

    In this basis, the block of A within each eigenspace is diagonal.
    """
    s, axes = np.linalg.eigh(covariance)
    image = s > _RANK * s[-1]
    s, axes = s[image], axes[:, image]
    groups = np.split(np.arange(s.size), np.flatnonzero(np.diff(s) > _RANK * s[-1]) + 1)
    for group in groups:
        within = axes[:, group]
        axes[:, group] = within @ np.linalg.eigh(within.T @ first @ within)[1]
    return s, axes.T @ first @ axes


def _distinct(s: Array, diagonal: Array) -> tuple[Array, Array]:
    """Return the eigenvalue and the number of each distinct pair (eigenvalue, diagonal entry)."""
    pairs: list[list[float]] = []
    for size, entry in zip(s, diagonal, strict=True):
        for known in pairs:
            if np.allclose(known[:2], (size, entry), rtol=1e-8, atol=0.0):
                known[2] += 1.0
                break
        else:
            pairs.append([size, entry, 1.0])
    values = np.array(pairs)
    return values[:, 0], values[:, 2]
