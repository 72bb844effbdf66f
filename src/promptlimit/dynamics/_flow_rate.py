"""How fast the infinite-prompt flow converges: its rate, and a proved lower bound on it."""

import math

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, Number
from promptlimit.dynamics._starts import block_limit, block_start
from promptlimit.errors import ArgumentError
from promptlimit.results import Result
from promptlimit.tasks import LinearRegression, require_regression, risk

_RANK = 1e-10


class FlowRate(Result):
    r"""The rate of the infinite-prompt flow from a block start.

    Attributes:
        rate: $2\lambda$: the excess risk falls like $e^{-2\lambda t}$ as $t\to\infty$.
        pl_constant: $\mu$ of the Polyak-Lojasiewicz inequality $|\nabla R|^2\ge\mu(R-R^*)$. It
            holds along the whole flow, so that $R(t)-R^*\le e^{-\mu t}(R(0)-R^*)$.
        limit_scale: $c$, the weight $b$ of the labels at the end of the flow.
    """

    rate: float
    pl_constant: float
    limit_scale: float


def flow_rate(task: LinearRegression, alpha: Number, theta: ArrayLike | None = None) -> FlowRate:
    r"""Return the rate at which the infinite-prompt flow from `block_start` converges.

    Take a basis of eigenvectors of $\Sigma$, with nonzero eigenvalues $s_i$, and c the limit of b.
    Near the end of the flow the entries $A_{ij}$, $i\ne j$, decay at the rates
    $\tau^2c^2s_i^2s_j$, and the diagonal of A together with b at the rates

    $$\tau^2\,\mathrm{eig}\big(c^2\,\mathrm{diag}(s^3)+c^{-2}\sqrt s\sqrt s^\top\big).$$

    $\lambda$ is the least rate that the start excites: entries off the diagonal that start at zero
    stay zero, and diagonal entries that start equal, with equal $s_i$, stay equal. The PL
    inequality holds with $\mu=2\tau^2\ell^3b_*^2$, where $\ell$ is the least $s_i$ and
    $b_*^2=\big(\tfrac12\mathrm{tr}\,\Sigma-(R(0)-R^*)/\tau^2\big)/\|\Sigma^2\|_F$ bounds $b^2$ from
    below along the flow; $\mu=0$ if the start is too large for this bound. Both constants are
    derived here; the paper only shows that some exist (appendix F.3).

    Args:
        task: a regression whose queries have the covariance of its prompts.
        alpha: the size of the start.
        theta: $\Theta$ of the start, the identity by default.

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


def _eigenbasis(
    covariance: NDArray[np.float64], first: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r"""Return nonzero eigenvalues of $\Sigma$, and `first` in a basis of their eigenvectors.

    Eigenvectors of equal eigenvalues are chosen so that `first` is diagonal among them.
    """
    s, axes = np.linalg.eigh(covariance)
    image = s > _RANK * s[-1]
    s, axes = s[image], axes[:, image]
    groups = np.split(np.arange(s.size), np.flatnonzero(np.diff(s) > _RANK * s[-1]) + 1)
    for group in groups:
        within = axes[:, group]
        axes[:, group] = within @ np.linalg.eigh(within.T @ first @ within)[1]
    return s, axes.T @ first @ axes


def _distinct(
    s: NDArray[np.float64], diagonal: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distinct pairs of eigenvalue and diagonal entry: the eigenvalues, and how many."""
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
