r"""Claims on saddles, divergent sequences and the invariant subspace of discrimination.

Classes have the means $m_{\pm1}$ and the covariance $\Gamma$. Claim 3 (`experts`) defines the
blocks $U_{11}$, $u_{12}$, $v_{21}$ and $v_{22}$ of a head and its effective coordinates
$(w,b,r,s)$, which the code joins to the vector `zeta`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.optimize import minimize, root_scalar
from scipy.special import expit

from promptlimit._arrays import Array, as_float64
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    control_at_least,
    rejected,
    share_at_least,
)
from promptlimit.studies.mixtures import STUDY
from promptlimit.studies.mixtures.discrimination import (
    BALANCED,
    C1,
    OPPOSITE,
    Classes,
    followed,
    head_with_constant_gate,
    head_without_gain,
    parameters,
)


def _with_still_values(classes: Classes, label: float, gate: Array) -> Array:
    """Return the critical point with v_21 = 0, v_22 = `label` and s = `gate`.

    The gradient in v_21 vanishes if Γ U_11' g_w = -(g_b m_- + g_r dm). Here g_w, g_b and g_r are
    the gradients in w, b and r, m_- is the mean of class -1, and dm the difference of the means.
    """
    zeta = np.concatenate([np.zeros(2), [-label, 2.0 * label], gate])
    slope = classes.slope(zeta)
    rest = slope[2] * classes.means[1] + slope[3] * classes.difference
    U = -np.outer(slope[:2], as_float64(np.linalg.solve(classes.cov, rest)))
    U = as_float64(U / (slope[:2] @ slope[:2]))
    return parameters(U, (gate - U @ classes.difference) / 2.0, np.zeros(2), label)


def _silent_saddle() -> Array:
    """Return a critical point with v_21 = 0 and v_22 = 0."""

    def slope(size: float) -> float:
        values = C1.slope(np.concatenate([np.zeros(4), size * np.array([1.0, -0.4])]))
        return float(2.0 * values[3] - values[2])

    ends = (-6.0, 0.0) if slope(-6.0) * slope(0.0) < 0.0 else (0.0, 6.0)
    size = float(root_scalar(slope, bracket=ends, xtol=1e-15).root)
    return _with_still_values(C1, 0.0, size * np.array([1.0, -0.4]))


def _best_without_values() -> Array:
    """Return a critical point that minimises the risk over v_22 and s among heads with v_21 = 0."""

    def zeta(point: Array) -> Array:
        return np.concatenate([np.zeros(2), [-point[0], 2.0 * point[0]], point[1:]])

    def slope(point: Array) -> Array:
        values = C1.slope(zeta(point))
        return np.concatenate([[2.0 * values[3] - values[2]], values[4:]])

    start = np.array([1.0, 1.0, -1.0])
    found = minimize(lambda p: C1.excess(zeta(p)), start, jac=slope, options={"gtol": 1e-12})
    return _with_still_values(C1, float(found.x[0]), found.x[1:])


@STUDY.claim(7, reference="Theorem 3.3")
def strict_saddles(setting: Setting) -> Iterator[Check]:
    r"""If $m_1 \ne {-m_{-1}}$, every critical point of the risk as a function of the parameters is
    a global minimiser or a strict saddle. For balanced classes ($\pi = 1/2$) this is also true for
    opposite means (derived here). Tested at two saddles and two minimisers, and by flows from
    random starts for opposite means.
    """
    saddles = [_silent_saddle(), _best_without_values()]
    rng = np.random.default_rng(setting.seed)
    starts = 0.5 * rng.normal(size=(8 if setting.quick else 16, 9))
    flows = [OPPOSITE.flow(start, np.array([0.0, 1.0, 3e4]), rtol=1e-6) for start in starts]
    early, late = (
        _arrived(when, [OPPOSITE.excess(OPPOSITE.coordinates(flow[place])) for flow in flows])
        for place, when in ((1, "$t = 1$"), (2, r"$t = 3 \times 10^4$"))
    )
    minima = [head_without_gain(C1), head_with_constant_gate(C1)]
    yield at_most(
        "largest norm of the gradient at two saddles",
        max(float(np.linalg.norm(C1.gradient(saddle))) for saddle in saddles),
        1e-9,
        basis="the minimiser's $10^{-12}$ times coordinates of at most 100; margin 10",
    )
    yield at_most(
        "least eigenvalue of the Hessian at two saddles, the larger of the two",
        max(np.linalg.eigvalsh(C1.hessian(saddle))[0] for saddle in saddles),
        -1e-3,
        basis="theory: negative; stated margin, far beyond rounding error",
    )
    yield late
    yield at_most(
        r"the origin at $\pi = 1/2$, where it is critical: norm of the gradient",
        float(np.linalg.norm(BALANCED.gradient(np.zeros(9)))),
        1e-14,
        basis="rounding error: sums of symmetric terms",
    )
    yield rejected(early)
    yield control_at_least(
        "least eigenvalue of the Hessian at two minimisers, which are not saddles",
        min(np.linalg.eigvalsh(C1.hessian(point))[0] for point in minima),
        -1e-12,
        basis="theory: 0; rounding error",
    )
    yield control_at_least(
        r"the origin at $\pi = 0.6$, where it is not critical: norm of the gradient",
        float(np.linalg.norm(C1.gradient(np.zeros(9)))),
        1e-2,
        basis="theory: not 0; stated margin",
    )


def _arrived(when: str, excesses: Sequence[float]) -> Check:
    """Return a check that nine tenths of the flows for opposite means reach the Bayes score."""
    name = (
        r"opposite means at $\pi = 1/2$ (derived here): flows from random starts that reach "
        f"the Bayes score by {when}"
    )
    return share_at_least(name, [excess <= 1e-4 for excess in excesses], 0.9)


_DIRECTION = np.array([0.7, -0.4])


def _point(classes: Classes, size: float, *, corrected: bool = True) -> Array:
    """Return the point (w* - σ'(s₀)c, b* - σ(s₀)R, R, c/R) for R = `size` and c = `_DIRECTION`.

    If not `corrected`, its first coordinate is w*.
    """
    slope, intercept = classes.bayes
    share = classes.positive
    change = share * (1.0 - share) * _DIRECTION if corrected else 0.0
    ends = [intercept - share * size, size]
    return np.concatenate([slope - change, ends, _DIRECTION / size])


def _constant(classes: Classes, power: int) -> float:
    """Return the factor of the leading order of the excess, R^-2 (power 4) or R^-4 (power 6).

    It is E η(1-η)(c'X)^power a²/2, where a is the Taylor coefficient of order power/2 of σ at s₀,
    X is a covariate and η the posterior probability of class 1.
    """
    x, weights, best = classes.rule
    p = classes.positive
    factor = (p * (1 - p) * (1 - 2 * p)) ** 2 / 8.0 if power == 4 else (1.0 / 8.0) ** 2 / 72.0
    moment = weights @ (expit(best) * expit(-best) * (x @ _DIRECTION) ** power)
    return float(factor * moment)


@STUDY.claim(8, reference="Proposition 3.4")
def divergent_sequences(setting: Setting) -> Iterator[Check]:
    r"""In the effective coordinates $(w, b, r, s)$ of claim 3 and for any vector $c$, the points
    $(w^* - \sigma'(s_0)c,\ b^* - \sigma(s_0)R,\ R,\ c/R)$ diverge as $R \to \infty$, while their
    risk tends to the Bayes risk. Let $\eta$ be the posterior probability of class 1. The excess
    falls like $K/R^2$ with $K = \sigma''(s_0)^2\,\mathbb{E}[\eta(1-\eta)\langle c,
    X\rangle^4]/8$, and like $R^{-4}$ at $\pi = 1/2$, where $\sigma''(s_0) = 0$ (the rates are
    derived here). Tested for one $c$ in the plane.
    """
    far, near = 1e3, 100.0
    ratio = C1.excess(_point(C1, far)) * far**2 / _constant(C1, 4)
    balanced = BALANCED.excess(_point(BALANCED, near)) * near**4 / _constant(BALANCED, 6)
    yield at_most(
        "excess risk at $R = 10^3$",
        C1.excess(_point(C1, far)),
        1e-6,
        basis="theory: $K/R^2$ with $K$ below 1",
    )
    yield at_most(
        r"$\pi = 0.6$: ratio of the excess risk to $K/R^2$ (derived here), distance from 1",
        abs(ratio - 1.0),
        0.01,
        basis="theory: the next order is $1/R = 10^{-3}$; margin 10",
    )
    yield at_most(
        r"$\pi = 1/2$: ratio of the excess risk to its leading order $R^{-4}$ (derived "
        "here), distance from 1",
        abs(balanced - 1.0),
        0.01,
        basis=r"theory: the next order is $1/R^2 = 10^{-4}$, since $\sigma - 1/2$ is odd; "
        "margin 100",
    )
    yield control_at_least(
        "excess risk at $R = 10^3$ without the correction of $w$",
        C1.excess(_point(C1, far, corrected=False)),
        1e-3,
        basis=r"theory: an excess of order ${|\sigma'(s_0)c|}^2$, a few hundredths",
    )


_MEAN = np.array([1.0, 0.0, 0.7, 0.0, 0.0])
_COV = np.diag([1.0, 1.0, 2.0, 2.0, 0.5])
_INSIDE = np.array([False, True, False, True, True])
"""The axes that span the orthogonal complement of K, the span of m, Γm, Γ²m, ..."""
_NORMAL = np.linspace(-8.5, 8.5, 120)
_SHARES = np.exp(-0.5 * _NORMAL**2) / np.exp(-0.5 * _NORMAL**2).sum()


def risk_slope(w: Array) -> Array:
    """Return the gradient of the risk in w, -E[σ(-T)] m + E[σ'(T)] Γw with T ~ N(w'm, w'Γw)."""
    score = w @ _MEAN + np.sqrt(w @ _COV @ w) * _NORMAL
    wrong = _SHARES @ expit(-score)
    return -wrong * _MEAN + (_SHARES @ (expit(score) * expit(-score))) * (_COV @ w)


def gradient(state: Array) -> Array:
    """Return the gradient in (U_11, v_21) on the subspace, where w = U_11 Γ v_21, b = r = s = 0."""
    U, v = state[:25].reshape(5, 5), state[25:]
    slope = risk_slope(U @ (_COV @ v))
    return np.concatenate([np.outer(slope, _COV @ v).ravel(), _COV @ (U.T @ slope)])


def leaving(theta: Array) -> float:
    """Return the largest entry of the gradient in `theta` outside the subspace of claim 12."""
    classes = Classes(np.stack([_MEAN, -_MEAN]), 0.5, _COV, nodes=5)
    U, u, v, label = classes.split(classes.gradient(theta))
    outside = [U[:, ~_INSIDE].ravel(), u, v[~_INSIDE], [label]]
    return float(np.abs(np.concatenate(outside)).max())


def _limit(v: Array) -> tuple[Array, Array]:
    """Return the limit (U_11, v_21) of the flow from U_11 = 0 and v_21 = v, an eigenvector of Γ."""
    best = 2.0 * np.linalg.solve(_COV, _MEAN)
    size = float(np.linalg.norm(v))
    scale = float(v @ _COV @ v) / size**2
    root = np.sqrt(size**4 + 4.0 * (best @ best) / scale**2)
    beta = np.sqrt((size**2 + root) / 2.0)
    return np.outer(best, v) / (size * scale * beta), beta * v / size


@STUDY.claim(12, reference="Theorem 3.6")
def invariant_subspace(setting: Setting) -> Iterator[Check]:
    r"""For opposite means $m_1 = {-m_{-1}} = m$ and $\pi = 1/2$, let $\mathcal{K}$ be the span of
    all $\Gamma^km$ with $k \ge 0$. Gradient flow preserves the set of heads with $u_{12} = 0$,
    $v_{22} = 0$, $v_{21}$ perpendicular to $\mathcal{K}$ and $U_{11} = 0$ on $\mathcal{K}$ (the
    blocks of claim 3). From heads in this set the flow conserves ${\|U_{11}\|}^2 - {|v_{21}|}^2$,
    and from those with $U_{11} = 0$ and $v_{21} \ne 0$ it converges exponentially.
    """
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
    yield at_most(
        "component of the gradient out of the subspace, at a random point of it with "
        "$U_{11}$ and $v_{21}$ of norm 1",
        leaving(inside),
        1e-13,
        basis="rounding error: sums of symmetric terms; margin 100",
    )
    yield at_most(
        r"range of ${\|U_{11}\|}^2 - {|v_{21}|}^2$ along a flow from ${|v_{21}|} = 1$",
        np.ptp(balance),
        1e-8,
        basis="solver: about a thousand steps with tolerance $10^{-12}$; margin 10",
    )
    yield at_most(
        "ratio of the norm of the gradient at $t = 200$ to that at $t = 10$",
        slopes[-1] / slopes[2],
        1e-3,
        basis="stated: decay like $t^{-2}$ fails, exponential decay at a rate of at least 0.04 "
        "passes",
    )
    yield at_most(
        "end of a flow from an eigenvector compared with the closed form (derived here)",
        np.abs(end - np.concatenate([U.ravel(), last])).max(),
        1e-5,
        basis="stated margin: at $t = 400$ the flow is $10^{-7}$ from its end",
    )
    yield control_at_least(
        "component of the gradient out of the subspace if $v_{21}$ is perpendicular to $m$ only",
        leaving(tilted),
        1e-3,
        basis="theory: of order 1; stated margin",
    )


_COUNT = (
    "a count; a cut at $10^{-8}$ separates singular values of at least 0.006 from rounding error"
)


def _rank(eigenvalues: Array, mean: Array, axes: Array) -> float:
    """Return the dimension of the span of m, Γm, ..., Γ^(d-1) m.

    Γ has the eigenvectors `axes`, and `mean` contains the coordinates of m in this basis.
    """
    cov = axes @ np.diag(eigenvalues) @ axes.T
    columns = [axes @ mean]
    for _ in range(len(mean) - 1):
        columns.append(cov @ columns[-1])
    return float(np.linalg.matrix_rank(np.stack(columns, axis=1), tol=1e-8))


@STUDY.claim(13, reference="Proposition B.35")
def krylov_space(setting: Setting) -> Iterator[Check]:
    r"""The span $\mathcal{K}$ of all $\Gamma^km$ with $k \ge 0$ is $\mathbb{R}^d$ if and only if
    $\Gamma$ has $d$ distinct eigenvalues and $m$ is perpendicular to none of its eigenspaces.
    """
    rng = np.random.default_rng(setting.seed)
    axes = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    distinct, mean = np.array([0.5, 1.0, 1.5, 2.0, 2.5]), np.array([1.0, -1.0, 0.5, 0.8, -0.6])
    repeated = np.array([0.5, 1.0, 1.0, 2.0, 2.5])
    missing = mean * np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    yield at_most(
        r"$d$ minus the dimension of $\mathcal{K}$",
        5 - _rank(distinct, mean, axes),
        0.0,
        basis=_COUNT,
    )
    yield control_at_least(
        r"repeated eigenvalue: $d$ minus the dimension of $\mathcal{K}$",
        5 - _rank(repeated, mean, axes),
        1.0,
        basis=_COUNT,
    )
    yield control_at_least(
        r"$m$ perpendicular to an eigenspace: $d$ minus the dimension of $\mathcal{K}$",
        5 - _rank(distinct, missing, axes),
        1.0,
        basis=_COUNT,
    )
