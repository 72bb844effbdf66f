"""Claim 12: opposite means at π = 1/2, the invariant subspace and what it conserves."""

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import Classes, followed, parameters

_MEAN = np.array([1.0, 0.0, 0.7, 0.0, 0.0])
_COV = np.diag([1.0, 1.0, 2.0, 2.0, 0.5])
_INSIDE = np.array([False, True, False, True, True])
"""The orthogonal complement of K, the span of m, Γm, Γ²m, ...: here three of the axes."""

_NORMAL = np.linspace(-8.5, 8.5, 120)
_SHARES = np.exp(-0.5 * _NORMAL**2) / np.exp(-0.5 * _NORMAL**2).sum()


def risk_slope(w: Array) -> Array:
    """Return -E[σ(-T)] m + E[σ'(T)] Γw, T ~ N(w'm, w'Γw)."""
    score = w @ _MEAN + np.sqrt(w @ _COV @ w) * _NORMAL
    wrong = _SHARES @ expit(-score)
    return -wrong * _MEAN + (_SHARES @ (expit(score) * expit(-score))) * (_COV @ w)


def gradient(state: Array) -> Array:
    """Return the gradient in (U_11, v_21) on the subspace, where w = U_11 Γ v_21 is all."""
    U, v = state[:25].reshape(5, 5), state[25:]
    slope = risk_slope(U @ (_COV @ v))
    return np.concatenate([np.outer(slope, _COV @ v).ravel(), _COV @ (U.T @ slope)])


def leaving(theta: Array) -> float:
    """Return how much of the gradient in all parameters leads out of the subspace."""
    classes = Classes(np.stack([_MEAN, -_MEAN]), 0.5, _COV, nodes=5)
    U, u, v, label = classes.split(classes.gradient(theta))
    outside = [U[:, ~_INSIDE].ravel(), u, v[~_INSIDE], [label]]
    return float(np.abs(np.concatenate(outside)).max())


def _limit(v: Array) -> tuple[Array, Array]:
    """Return where the flow from U_11 = 0 ends when Γv = λv (derived here)."""
    best = 2.0 * np.linalg.solve(_COV, _MEAN)
    size = float(np.linalg.norm(v))
    scale = float(v @ _COV @ v) / size**2
    root = np.sqrt(size**4 + 4.0 * (best @ best) / scale**2)
    beta = np.sqrt((size**2 + root) / 2.0)
    return np.outer(best, v) / (size * scale * beta), beta * v / size


def decide(setting: Setting) -> Sequence[Check]:
    """Return what leaves the subspace, the drift of the balance, and the ends of flows."""
    rng = np.random.default_rng(setting.seed)
    matrix, v = rng.normal(size=(5, 5)) * _INSIDE, rng.normal(size=5) * _INSIDE
    matrix, v = matrix / np.linalg.norm(matrix), v / np.linalg.norm(v)
    inside = parameters(matrix, np.zeros(5), v, 0.0)
    slanted = np.array([0.7, 0.3, -1.0, 0.0, 0.2])  # perpendicular to m, not to Γm
    tilted = parameters(np.ones((5, 5)) * _INSIDE, np.zeros(5), slanted, 0.0)
    times = np.array([0.0, 1.0, 10.0, 100.0, 200.0])
    states = followed(gradient, np.concatenate([np.zeros(25), v]), times, rtol=1e-12)
    balance = np.sum(states[:, :25] ** 2, axis=1) - np.sum(states[:, 25:] ** 2, axis=1)
    slopes = [float(np.linalg.norm(gradient(state))) for state in states]
    own = np.array([0.0, 0.5, 0.0, 0.0, 0.0])
    end = followed(
        gradient, np.concatenate([np.zeros(25), own]), np.array([0.0, 400.0]), rtol=1e-11
    )[-1]
    U, last = _limit(own)
    return [
        Check(
            "component of the gradient out of the subspace, at a random point of it with "
            "$U_{11}$ and $v_{21}$ of norm 1",
            leaving(inside),
            "<=",
            1e-13,
            basis="rounding error: sums of symmetric terms; margin 100",
        ),
        Check(
            r"range of ${\|U_{11}\|}^2 - {|v_{21}|}^2$ along a flow from ${|v_{21}|} = 1$",
            np.ptp(balance),
            "<=",
            1e-8,
            basis="solver: about a thousand steps with tolerance $10^{-12}$; margin 10",
        ),
        Check(
            "ratio of the norm of the gradient at $t = 200$ to that at $t = 10$",
            slopes[-1] / slopes[2],
            "<=",
            1e-3,
            basis="stated: a fall that $t^{-2}$ would not reach; exponential decay passes from "
            "a rate of 0.04 on",
        ),
        Check(
            "end of a flow from an eigenvector compared with the closed form (derived here)",
            np.abs(end - np.concatenate([U.ravel(), last])).max(),
            "<=",
            1e-5,
            basis="stated margin: at $t = 400$ the flow is $10^{-7}$ from its end",
        ),
        Check(
            "component of the gradient out of the subspace if $v_{21}$ is perpendicular to $m$ "
            "only",
            leaving(tilted),
            ">=",
            1e-3,
            role="control",
            basis="theory: of order 1; stated margin",
        ),
    ]


CLAIM = Claim(
    number=12,
    name="invariant-subspace",
    statement=r"For opposite means $m_1 = {-m_{-1}} = m$ and $\pi = 1/2$, let $\mathcal{K}$ be "
    r"the span of all $\Gamma^km$ with $k \ge 0$. With the blocks of claim 3, gradient flow "
    "preserves the set of heads with $u_{12} = 0$, $v_{22} = 0$, $v_{21}$ perpendicular to "
    r"$\mathcal{K}$ and $U_{11} = 0$ on $\mathcal{K}$; on it the flow conserves "
    r"${\|U_{11}\|}^2 - {|v_{21}|}^2$ and converges exponentially from $U_{11} = 0$, "
    r"$v_{21} \ne 0$.",
    reference="Theorem 3.6",
    decide=decide,
)
