r"""Two Gaussian classes and one head over an infinite prompt: risk, slopes and curvature in NumPy.

A head is the vector $\theta=(U_{11}, u_{12}, v_{21}, v_{22})$, row after row; its score has the
effective coordinates $\zeta=(w, b, r, s)$. Risks are excesses over Bayes, differences taken before
they are averaged, so that they keep their digits down to 1e-30.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp
from scipy.special import expit

from promptlimit._arrays import Array, as_float64
from promptlimit._quadrature import normal_gauss, product_rule


@dataclasses.dataclass(frozen=True, eq=False)
class Classes:
    """Two classes of one covariance, and nodes of Gauss-Hermite for their mixture.

    Attributes:
        means: of class +1 and of class -1, [2, d].
        positive: the weight of class +1.
        cov: [d, d].
        nodes: in each direction and class.
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
        """The mean of class +1 less that of class -1."""
        return self.means[0] - self.means[1]

    @property
    def log_odds(self) -> float:
        """The logarithm of the odds of class +1 before anything is seen."""
        return float(np.log(self.positive / (1.0 - self.positive)))

    @functools.cached_property
    def bayes(self) -> tuple[Array, float]:
        """Slope and intercept of the Bayes score."""
        slope = as_float64(np.linalg.solve(self.cov, self.difference))
        return slope, self.log_odds - float(slope @ self.means.mean(axis=0))

    @functools.cached_property
    def rule(self) -> tuple[Array, Array, Array]:
        """Covariates [n, d], weights [n], and the Bayes score [n]."""
        grid, mass = product_rule([normal_gauss(self.nodes)] * self.dim)
        spread = grid @ np.linalg.cholesky(self.cov).T
        covariates = np.concatenate([mean + spread for mean in self.means])
        weights = np.concatenate([self.positive * mass, (1.0 - self.positive) * mass])
        kept = weights > 1e-22
        slope, intercept = self.bayes
        return covariates[kept], weights[kept], covariates[kept] @ slope + intercept

    # --- effective coordinates ------------------------------------------------------------

    def split(self, theta: Array) -> tuple[Array, Array, Array, float]:
        """Return U_11, u_12, v_21 and v_22."""
        d = self.dim
        return theta[: d * d].reshape(d, d), theta[d * d : -d - 1], theta[-d - 1 : -1], theta[-1]

    def coordinates(self, theta: Array) -> Array:
        """Return (w, b, r, s)."""
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
        """Return the score, its derivative in (w, b, r, s), and the gate, at the nodes."""
        x, _, _ = self.rule
        d = self.dim
        gate = expit(self.log_odds + x @ zeta[d + 2 :])
        bent = zeta[d + 1] * gate * (1.0 - gate)
        score = x @ zeta[:d] + zeta[d] + zeta[d + 1] * gate
        columns = [x, np.ones((len(x), 1)), gate[:, None], bent[:, None] * x]
        return score, np.concatenate(columns, axis=1), gate

    def excess(self, zeta: Array) -> float:
        """Return the logistic risk less that of Bayes."""
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
        """Return the gradient in effective coordinates."""
        _, weights, best = self.rule
        score, rises, _ = self.features(zeta)
        return (weights * (expit(score) - expit(best))) @ rises

    def curvature(self, zeta: Array) -> Array:
        """Return the Hessian in effective coordinates."""
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
        """Return the gradient in the parameters."""
        return self.jacobian(theta).T @ self.slope(self.coordinates(theta))

    def hessian(self, theta: Array) -> Array:
        """Return the Hessian in the parameters."""
        d, zeta, J = self.dim, self.coordinates(theta), self.jacobian(theta)
        H = J.T @ self.curvature(zeta) @ J
        mixed = np.einsum("i,jl->ijl", self.slope(zeta)[:d], self.cov).reshape(d * d, d)
        H[: d * d, -d - 1 : -1] += mixed
        H[-d - 1 : -1, : d * d] += mixed.T
        return H

    def flow(self, theta: Array, times: Array, *, rtol: float = 1e-9) -> Array:
        """Return the gradient flow at times from 0 on, [times, parameters]."""
        return followed(self.gradient, theta, times, rtol=rtol, jacobian=self.hessian)


def followed(
    gradient: Callable[[Array], Array],
    theta: Array,
    times: Array,
    *,
    rtol: float = 1e-9,
    jacobian: Callable[[Array], Array] | None = None,
) -> Array:
    """Return a gradient flow at increasing times, [times, parameters]."""
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

THREE = Classes(
    np.array([[1.0, 0.2, 0.0], [0.0, 1.0, -0.5]]),
    0.35,
    np.array([[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 1.2]]),
    nodes=14,
)
"""Classes in three dimensions."""


def without_gain(classes: Classes, gate: Array | None = None) -> Array:
    """Return a Bayes head with r = 0 (the paper's first family), s = 2u + U dm for this u.

    v_21 meets the midpoint in b*, along the first axis that allows it, and w_* comes by a matrix of
    rank one.
    """
    slope, intercept = classes.bayes
    centre = classes.means.mean(axis=0)
    v = np.zeros(classes.dim)
    v[0] = intercept / centre[0]
    U = np.outer(slope, v) / (v @ classes.cov @ v)
    u = np.ones(classes.dim) if gate is None else gate
    return parameters(U, u, v, -float(v @ classes.difference) / 2.0)


def constant_gate(classes: Classes) -> Array:
    """Return a Bayes head with s = 0 (the paper's second family), unbalanced classes."""
    slope, intercept = classes.bayes
    U = as_float64(np.linalg.inv(classes.cov))
    positive, v = classes.positive, slope
    reached = v @ classes.means[1] + positive * (v @ classes.difference)
    label = (reached - intercept) / (1.0 - 2.0 * positive)
    return parameters(U, -U @ classes.difference / 2.0, v, float(label))


def distances(classes: Classes, states: Array) -> tuple[Array, Array]:
    """Return how far effective coordinates are from r = 0 at Bayes, and from s = 0 at Bayes."""
    d, (slope, intercept) = classes.dim, classes.bayes
    rows = np.array([classes.coordinates(state) for state in states])
    w, b, r, s = rows[:, :d] - slope, rows[:, d] - intercept, rows[:, d + 1], rows[:, d + 2 :]
    offset = (b + r * classes.positive) ** 2 / (1.0 + classes.positive**2)
    first = np.sqrt(np.sum(w**2, axis=1) + b**2 + r**2)
    return first, np.sqrt(np.sum(w**2, axis=1) + np.sum(s**2, axis=1) + offset)


def nullity(classes: Classes, theta: Array) -> float:
    """Return how many eigenvalues of the Hessian are zero."""
    return float(np.sum(np.abs(np.linalg.eigvalsh(classes.hessian(theta))) < 1e-9))


def slowest(classes: Classes, theta: Array) -> Array:
    """Return the direction of the least positive eigenvalue of the Hessian at a minimiser."""
    eigenvalues, axes = np.linalg.eigh(classes.hessian(theta))
    return axes[:, int(np.argmax(eigenvalues > 1e-6))]


def valley(classes: Classes, theta: Array) -> Array:
    """Return the directions that a Hessian at s = 0 does not see, [d, parameters].

    They are in its kernel and move the distance to the family with a constant gate.
    """
    d, J = classes.dim, classes.jacobian(theta)
    offset = J[d] + classes.positive * J[d + 1]
    eigenvalues, axes = np.linalg.eigh(classes.hessian(theta))
    kernel = axes[:, np.abs(eigenvalues) < 1e-9]
    _, _, turns = np.linalg.svd(np.vstack([J[:d], J[d + 2 :], offset]) @ kernel)
    return turns[:d] @ kernel.T
