r"""Claims on two Gaussian classes and one head: the Bayes score and effective coordinates.

Covariates $x\in\mathbb R^d$ have the law $N(m_{\pm1},\Gamma)$ in class $\pm1$, and $\pi$ is the
weight of class +1. The score of a head over an infinite prompt is $\langle
w,x\rangle+b+r\,\sigma(s_0+\langle s,x\rangle)$ with the logistic function $\sigma$ and the prior
log-odds $s_0=\log(\pi/(1-\pi))$. The *effective coordinates* $\zeta=(w,b,r,s)$ are functions of the
blocks $U_{11}$, $u_{12}$, $v_{21}$ and $v_{22}$ of the head (claim 3, module `experts`). The code
stores the blocks as one vector `theta` and the coordinates as one vector `zeta`.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from scipy.special import expit

from promptlimit._arrays import Array, as_float64
from promptlimit._quadrature import normal_gauss, product_rule
from promptlimit.studies import (
    Check,
    Setting,
    at_least,
    at_most,
    control_at_least,
    rejected,
    share_at_least,
)
from promptlimit.studies.mixtures import STUDY
from promptlimit.tasks import Discrimination, bayes_risk, risk


@dataclasses.dataclass(frozen=True, eq=False)
class Classes:
    """Two Gaussian classes with the same covariance; computes the logistic risk by quadrature.

    Attributes:
        means: the means of class +1 and of class -1, [2, d].
        positive: the weight of class +1.
        cov: the covariance of both classes, [d, d].
        nodes: the number of nodes of the Gauss-Hermite rule per dimension and class.
    """

    means: Array
    positive: float
    cov: Array
    nodes: int = 20

    @property
    def dim(self) -> int:
        """The dimension of covariates."""
        return self.means.shape[1]

    @property
    def difference(self) -> Array:
        """The mean of class +1 minus that of class -1."""
        return self.means[0] - self.means[1]

    @property
    def log_odds(self) -> float:
        """The prior log-odds of class +1."""
        return float(np.log(self.positive / (1.0 - self.positive)))

    @functools.cached_property
    def bayes(self) -> tuple[Array, float]:
        """The slope and the intercept of the Bayes score."""
        slope = as_float64(np.linalg.solve(self.cov, self.difference))
        return slope, self.log_odds - float(slope @ self.means.mean(axis=0))

    @functools.cached_property
    def rule(self) -> tuple[Array, Array, Array]:
        """The nodes [n, d] and weights [n] of the quadrature, and the Bayes score at nodes [n]."""
        grid, mass = product_rule([normal_gauss(self.nodes)] * self.dim)
        spread = grid @ np.linalg.cholesky(self.cov).T
        covariates = np.concatenate([mean + spread for mean in self.means])
        weights = np.concatenate([self.positive * mass, (1.0 - self.positive) * mass])
        kept = weights > 1e-22
        slope, intercept = self.bayes
        return covariates[kept], weights[kept], covariates[kept] @ slope + intercept

    # --- effective coordinates ------------------------------------------------------------

    def split(self, theta: Array) -> tuple[Array, Array, Array, float]:
        """Return the blocks U_11, u_12, v_21 and v_22 of a head."""
        d = self.dim
        return theta[: d * d].reshape(d, d), theta[d * d : -d - 1], theta[-d - 1 : -1], theta[-1]

    def coordinates(self, theta: Array) -> Array:
        """Return the effective coordinates (w, b, r, s) of a head."""
        U, u, v, label = self.split(theta)
        ends = [v @ self.means[1] - label, v @ self.difference + 2.0 * label]
        return np.concatenate([U @ (self.cov @ v), ends, 2.0 * u + U @ self.difference])

    def jacobian(self, theta: Array) -> Array:
        """Return the derivative of the effective coordinates, [2d + 2, d² + 2d + 1]."""
        d, (U, _, v, _) = self.dim, self.split(theta)
        J = np.zeros((2 * d + 2, theta.size))
        J[:d, : d * d] = np.kron(np.eye(d), self.cov @ v)
        J[:d, -d - 1 : -1] = U @ self.cov
        J[d, -d - 1 : -1], J[d, -1] = self.means[1], -1.0
        J[d + 1, -d - 1 : -1], J[d + 1, -1] = self.difference, 2.0
        J[d + 2 :, : d * d] = np.kron(np.eye(d), self.difference)
        J[d + 2 :, d * d : -d - 1] = 2.0 * np.eye(d)
        return J

    def features(self, zeta: Array) -> tuple[Array, Array, Array]:
        """Return the score, its derivative in (w, b, r, s), and σ(s₀ + ⟨s, x⟩), at the nodes x."""
        x, _, _ = self.rule
        d = self.dim
        gate = expit(self.log_odds + x @ zeta[d + 2 :])
        bent = zeta[d + 1] * gate * (1.0 - gate)
        score = x @ zeta[:d] + zeta[d] + zeta[d + 1] * gate
        columns = [x, np.ones((len(x), 1)), gate[:, None], bent[:, None] * x]
        return score, np.concatenate(columns, axis=1), gate

    def excess(self, zeta: Array) -> float:
        """Return the logistic risk minus the Bayes risk."""
        _, weights, best = self.rule
        gap = self.features(zeta)[0] - best
        right = expit(best)
        small = np.abs(gap) < 1e-4
        losses = np.where(
            small,
            right * (1.0 - right) * gap**2 * (0.5 + (1.0 - 2.0 * right) * gap / 6.0),
            np.logaddexp(0.0, best + gap) - np.logaddexp(0.0, best) - right * gap,
        )
        return float(weights @ losses)

    def slope(self, zeta: Array) -> Array:
        """Return the gradient of the risk in effective coordinates."""
        _, weights, best = self.rule
        score, rises, _ = self.features(zeta)
        return (weights * (expit(score) - expit(best))) @ rises

    def curvature(self, zeta: Array) -> Array:
        """Return the Hessian of the risk in effective coordinates."""
        (x, weights, best), d = self.rule, self.dim
        score, rises, gate = self.features(zeta)
        wrong = weights * (expit(score) - expit(best))
        first = gate * (1.0 - gate)
        H = (rises * (weights * expit(score) * expit(-score))[:, None]).T @ rises
        cross = (wrong * first) @ x
        H[d + 1, d + 2 :] += cross
        H[d + 2 :, d + 1] += cross
        bend = wrong * zeta[d + 1] * first * (1.0 - 2.0 * gate)
        H[d + 2 :, d + 2 :] += (x * bend[:, None]).T @ x
        return H

    # --- parameters -----------------------------------------------------------------------

    def gradient(self, theta: Array) -> Array:
        """Return the gradient of the risk in the parameters `theta`."""
        return self.jacobian(theta).T @ self.slope(self.coordinates(theta))

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian of the risk in the parameters `theta`."""
        d, zeta, J = self.dim, self.coordinates(theta), self.jacobian(theta)
        H = J.T @ self.curvature(zeta) @ J
        mixed = np.einsum("i,jl->ijl", self.slope(zeta)[:d], self.cov).reshape(d * d, d)
        H[: d * d, -d - 1 : -1] += mixed
        H[-d - 1 : -1, : d * d] += mixed.T
        return H

    def flow(self, theta: Array, times: Array, *, rtol: float = 1e-9) -> Array:
        """Return the gradient flow at increasing times that start at 0, [times, parameters]."""
        return followed(self.gradient, theta, times, rtol=rtol, jacobian=self.hessian)


def followed(
    gradient: Callable[[Array], Array],
    theta: Array,
    times: Array,
    *,
    rtol: float = 1e-9,
    jacobian: Callable[[Array], Array] | None = None,
) -> Array:
    """Return a gradient flow at increasing times from 0 on, [times, parameters]."""
    stiff = None if jacobian is None else lambda _, state: -jacobian(state)
    solution = solve_ivp(
        lambda _, state: -gradient(state), (0.0, times[-1]), theta, method="LSODA", jac=stiff,
        t_eval=times, rtol=rtol, atol=1e-15,
    )  # fmt: skip
    return solution.y.T


def parameters(query: Array, label_score: Array, value: Array, label_value: float) -> Array:
    """Return the blocks U_11, u_12, v_21 and v_22 of a head as one vector."""
    blocks = query, label_score, value, label_value
    return np.concatenate([np.ravel(block) for block in blocks])


C1 = Classes(np.array([[1.0, 0.0], [0.0, 1.0]]), 0.6, np.eye(2))
"""The classes of Figure 1."""

BALANCED = dataclasses.replace(C1, positive=0.5)
"""The classes of Figure 1, with equal weights."""

OPPOSITE = dataclasses.replace(BALANCED, means=np.array([[1.0, 0.5], [-1.0, -0.5]]))
"""Balanced classes with opposite means."""
THREE = Classes(
    np.array([[1.0, 0.2, 0.0], [0.0, 1.0, -0.5]]),
    0.35,
    np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 1.2]]),
    nodes=14,
)
"""Classes in three dimensions."""


def head_without_gain(classes: Classes, gate: Array | None = None) -> Array:
    """Return a Bayes head with r = 0 (the paper's first family) and with u_12 = `gate`.

    v_21 is the multiple of the first axis whose product with the midpoint of the means is b*, and
    U_11 is a matrix of rank one with U_11 Γ v_21 = w*.
    """
    slope, intercept = classes.bayes
    centre = classes.means.mean(axis=0)
    v = np.zeros(classes.dim)
    v[0] = intercept / centre[0]
    U = np.outer(slope, v) / (v @ classes.cov @ v)
    u = np.ones(classes.dim) if gate is None else gate
    return parameters(U, u, v, -float(v @ classes.difference) / 2.0)


def head_with_constant_gate(classes: Classes) -> Array:
    """Return a Bayes head with s = 0 (the paper's second family), for unbalanced classes."""
    slope, intercept = classes.bayes
    U = as_float64(np.linalg.inv(classes.cov))
    positive, v = classes.positive, slope
    reached = v @ classes.means[1] + positive * (v @ classes.difference)
    label = (reached - intercept) / (1.0 - 2.0 * positive)
    return parameters(U, -U @ classes.difference / 2.0, v, float(label))


def distances(classes: Classes, states: Array) -> tuple[Array, Array]:
    """Return the distances of heads from the two families of Bayes heads, in (w, b, r, s)."""
    d, (slope, intercept) = classes.dim, classes.bayes
    rows = np.array([classes.coordinates(state) for state in states])
    w, b, r, s = rows[:, :d] - slope, rows[:, d] - intercept, rows[:, d + 1], rows[:, d + 2 :]
    offset = (b + r * classes.positive) ** 2 / (1.0 + classes.positive**2)
    first = np.sqrt(np.sum(w**2, axis=1) + b**2 + r**2)
    return first, np.sqrt(np.sum(w**2, axis=1) + np.sum(s**2, axis=1) + offset)


def nullity(classes: Classes, theta: Array) -> float:
    """Return the number of zero eigenvalues of the Hessian."""
    return float(np.sum(np.abs(np.linalg.eigvalsh(classes.hessian(theta))) < 1e-9))


def slowest(classes: Classes, theta: Array) -> Array:
    """Return the direction of the least positive eigenvalue of the Hessian at a minimiser."""
    eigenvalues, axes = np.linalg.eigh(classes.hessian(theta))
    return axes[:, int(np.argmax(eigenvalues > 1e-6))]


def valley(classes: Classes, theta: Array) -> Array:
    """Return the flat directions at a head with s = 0, [d, parameters].

    They are in the kernel of the Hessian, and perpendicular to all directions that are tangent to
    the family of heads with s = 0.
    """
    d, J = classes.dim, classes.jacobian(theta)
    offset = J[d] + classes.positive * J[d + 1]
    eigenvalues, axes = np.linalg.eigh(classes.hessian(theta))
    kernel = axes[:, np.abs(eigenvalues) < 1e-9]
    _, _, turns = np.linalg.svd(np.vstack([J[:d], J[d + 2 :], offset]) @ kernel)
    return turns[:d] @ kernel.T


def _tasks(seed: int) -> list[Discrimination]:
    """Return five pairs of classes in one to three dimensions.

    Some pairs are balanced, and some have opposite means. The last pair has the means c ± δ, where
    c and δ have norm 1 and random directions.
    """
    rng = np.random.default_rng(seed)
    tilted = np.array([[1.0, 0.4], [0.4, 0.7]])
    centre, half = rng.normal(size=(2, 3))
    centre, half = centre / np.linalg.norm(centre), half / np.linalg.norm(half)
    return [
        Discrimination([[1.0, 0.0], [0.0, 1.0]], [0.6, 0.4], np.eye(2)),
        Discrimination([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5], np.eye(2)),
        Discrimination([[1.0, 0.5], [-1.0, -0.5]], [0.5, 0.5], tilted),
        Discrimination([[1.0], [-1.0]], [0.3, 0.7], [[0.5]]),
        Discrimination([centre + half, centre - half], [0.5, 0.5], np.diag([1.0, 0.5, 2.0])),
    ]


def _slope_of_squares(classes: Classes) -> float:
    """Return the norm of the gradient in (w, b) of the squared loss at the Bayes score."""
    x, weights, best = classes.rule
    wrong = weights * (best - (2.0 * expit(best) - 1.0))
    return float(np.linalg.norm(np.append(wrong @ x, wrong.sum())))


@STUDY.claim(4, reference="Equation 5, Appendices B.2 and B.4")
def bayes_score(setting: Setting) -> Iterator[Check]:
    r"""For two Gaussian classes with means $m_1$, $m_{-1}$, covariance $\Gamma$ and prior log-odds
    $s_0$, the logistic risk has one minimiser, the score $\langle w^*, x\rangle + b^*$ with $w^* =
    \Gamma^{-1}(m_1 - m_{-1})$ and $b^* = s_0 - (\langle m_1, \Gamma^{-1}m_1\rangle - \langle
    m_{-1}, \Gamma^{-1}m_{-1}\rangle)/2$. One softmax head over an infinite prompt can have this
    score.
    """
    excesses = [
        float(risk(task.bayes_head(), task, math.inf).value - bayes_risk(task, math.inf).value)
        for task in _tasks(setting.seed)
    ]
    bayes = np.concatenate([C1.bayes[0], [C1.bayes[1], 0.0], np.zeros(2)])
    affine = C1.curvature(bayes)[:3, :3]
    yield at_most(
        "largest excess risk of one head, five pairs of classes",
        np.abs(excesses).max(),
        1e-12,
        basis="rounding error: $10^{-16}$ times the nodes of a quadrature; margin 100",
    )
    yield at_most(
        "norm of the gradient at the Bayes score",
        float(np.linalg.norm(C1.slope(bayes))),
        1e-14,
        basis="rounding error: a sum of differences that are 0 each",
    )
    yield at_least(
        "smallest curvature of the risk among affine scores, at the Bayes score",
        np.linalg.eigvalsh(affine)[0],
        0.01,
        basis="theory: positive; stated margin",
    )
    yield control_at_least(
        r"norm of the gradient of the squared loss, whose target is $2\eta - 1$, at the "
        "Bayes score",
        _slope_of_squares(C1),
        0.1,
        basis="theory: not 0; stated margin",
    )


_FLAT, _NEAR = 1e-10, 1e3


def _critical_point(zeta: Array) -> Array:
    """Return the end of a search for a critical point of the risk for the classes `C1`."""
    options = {"gtol": 1e-10, "maxiter": 4000}
    return minimize(
        C1.excess, zeta, jac=C1.slope, hess=C1.curvature, method="trust-exact", options=options
    ).x


def _slope_alone() -> float:
    """Return the least excess among scores ⟨w, x⟩, with b = r = 0."""

    def padded(w: Array) -> Array:
        return np.concatenate([w, np.zeros(4)])

    best = minimize(
        lambda w: C1.excess(padded(w)), np.zeros(2), jac=lambda w: C1.slope(padded(w))[:2]
    )
    return float(best.fun)


@STUDY.claim(5, reference="Theorem 3.1")
def no_spurious_points(setting: Setting) -> Iterator[Check]:
    r"""In the effective coordinates $(w, b, r, s)$ of claim 3, the critical points of the risk are
    $(w^*, b^*, 0, s)$ and $(w^*, b^* - r\sigma(s_0), r, 0)$ with any $s$ and $r$. All of them are
    minimisers. Tested by searches for critical points with the classes of Figure 1.
    """
    rng = np.random.default_rng(setting.seed)
    starts = 2.0 * rng.normal(size=(8 if setting.quick else 16, 6))
    ends = [_critical_point(start) for start in starts]
    # searches that diverge also end at small gradients, but not at critical points
    critical = [
        bool(np.linalg.norm(C1.slope(end)) <= _FLAT and np.linalg.norm(end) <= _NEAR)
        for end in ends
    ]
    first = [bool(np.linalg.norm(C1.slope(start)) <= _FLAT) for start in starts]
    name = f"searches that end where the gradient is below $10^{{{math.log10(_FLAT):.0f}}}$"
    yield share_at_least(name, critical, 0.9)
    yield at_most(
        "largest excess risk at the critical points that searches reach",
        max((C1.excess(end) for end in itertools.compress(ends, critical)), default=np.inf),
        1e-12,
        basis=r"theory: of order ${|\nabla R|}^{4/3} = 5 \times 10^{-14}$ in the flattest "
        "directions; margin 20",
    )
    yield rejected(share_at_least(f"before the first step of the search: {name}", first, 0.9))
    yield control_at_least(
        "excess risk of the best score with $b = r = 0$",
        _slope_alone(),
        0.005,
        basis="stated margin: far above $10^{-12}$",
    )


_COUNT = (
    "a count; a cut at $10^{-10}$ separates singular values, above 0.1 in 3,000 draws, "
    "from rounding error"
)


def _rank(classes: Classes, theta: Array) -> float:
    return float(np.linalg.matrix_rank(classes.jacobian(theta), tol=1e-10))


@STUDY.claim(6, reference="Lemma 3.2")
def regular_coordinates(setting: Setting) -> Iterator[Check]:
    r"""The map from the parameters of a head to the effective coordinates $(w, b, r, s)$ of claim 3
    has a derivative of full rank $2d + 2$ if and only if $m_1 \ne {-m_{-1}}$ and $v_{21} \ne 0$.
    """
    # v₂₁ has norm 1 and a random direction. The other parameters are standard normal.
    rng = np.random.default_rng(setting.seed)
    theta, larger = rng.normal(size=9), rng.normal(size=16)
    theta[6:8] /= np.linalg.norm(theta[6:8])
    larger[12:15] /= np.linalg.norm(larger[12:15])
    still = theta.copy()
    still[6:8] = 0.0
    tied = OPPOSITE.jacobian(theta)
    yield at_most(
        "$d = 2, 3$: $2d + 2$ minus the rank of the derivative, the larger of the two",
        max(6 - _rank(C1, theta), 8 - _rank(THREE, larger)),
        0.0,
        basis=_COUNT,
    )
    yield at_most(
        "opposite means: largest entry of the derivative of $2b + r$, which must be 0",
        np.abs(2.0 * tied[2] + tied[3]).max(),
        1e-14,
        basis="rounding error: entries of at most 10",
    )
    yield control_at_least(
        "$d = 2$, $v_{21} = 0$: 6 minus the rank of the derivative",
        6 - _rank(C1, still),
        1.0,
        basis=_COUNT,
    )
    yield control_at_least(
        "$d = 2$, opposite means: 6 minus the rank of the derivative",
        6 - _rank(OPPOSITE, theta),
        1.0,
        basis=_COUNT,
    )
