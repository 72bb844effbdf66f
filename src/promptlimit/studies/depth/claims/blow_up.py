"""Claim 2: where the covariance blows up, and that it is then of rank one."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.depth._continuous import (
    distance,
    flow,
    random_covariance,
    random_head,
    root_of,
)

_LEFT = 1e-6


def decide(setting: Setting) -> Sequence[Check]:
    """Return blow-up times of solved flows, their last directions, and a law that has none.

    C has the eigenvalue 1, the others are at most 1/2, and those of G₀ are between 1/2 and 2. At
    t = 1 − ε the other eigenvalues of (I − tC)⁻¹ are at most 2, and the bounds below follow.
    """
    rng = np.random.default_rng(setting.seed)
    early, directions, seconds, grown = [], [], [], []
    dims = (2, 3) if setting.quick else (2, 3, 4, 6)
    with jax.enable_x64(True):
        for dim in dims:
            U, G = random_head(rng, dim)
            A = root_of(G)
            rates, axes = np.linalg.eigh(A @ (U + U.T) @ A)
            expected = float(1 / rates[-1])
            solved = flow(U, G, [0.5 * expected, 2 * expected], method="ode")
            early.append(abs((solved.blow_up or np.inf) / expected - 1))
            last = flow(U, G, [expected - _LEFT]).cov[0]
            line = A @ axes[:, -1]
            directions.append(distance(_LEFT * last, np.outer(line, line) / rates[-1]))
            spectrum = np.linalg.eigvalsh(last)
            seconds.append(spectrum[-2] / spectrum[-1])
            falling = flow(-random_covariance(rng, dim), G, [1000.0], method="ode")
            grown.append(np.linalg.eigvalsh(falling.cov[0])[-1])
    return [
        Check(
            "largest relative difference between the blow-up time of the solved flow and "
            r"$t^* = 1/\lambda_{\max}(C)$",
            max(early),
            "<=",
            1e-6,
            basis="solver: about a hundred steps with tolerance $10^{-9}$; margin 10",
        ),
        Check(
            r"largest distance of $(t^* - t)\,G(t)$ from its limit, at $t = t^* - 10^{-6}$",
            max(directions),
            "<=",
            8e-6 * (max(dims) - 1) ** 0.5,
            basis=r"theory: at most $10^{-6} \cdot 2 \cdot 2\sqrt{d - 1}$ over $1/2$",
        ),
        Check(
            "largest ratio of the second eigenvalue of $G(t)$ to the first, at $t = t^* - 10^{-6}$",
            max(seconds),
            "<=",
            8e-6,
            basis=r"theory: at most $2 \cdot 2$ over $10^6/2$",
        ),
        Check(
            r"$U + U^\top$ negative definite: largest variance of the solved flow at $t = 1000$",
            max(grown),
            "<=",
            2e-3,
            role="control",
            basis=r"theory: $t\,G(t) \le ({-U} - U^\top)^{-1}$, whose eigenvalues are at most "
            "1; margin 2",
        ),
    ]


CLAIM = Claim(
    number=2,
    name="blow-up",
    statement="Let $V = I$, let $G_0$ be the covariance at $t = 0$ and "
    r"$C = \sqrt{G_0}\,(U + U^\top)\sqrt{G_0}$. The covariance $G(t)$ blows up at "
    r"$t^* = 1/\lambda_{\max}(C)$ if $\lambda_{\max}(C) > 0$, and never otherwise; "
    r"$(t^* - t)\,G(t)$ tends to the rank-one matrix "
    r"$\sqrt{G_0}\,ee^\top\sqrt{G_0}/\lambda_{\max}(C)$, where $e$ is the leading eigenvector of "
    "$C$ (derived here).",
    reference="Castin et al. 2025, finite-time blow-up",
    decide=decide,
)
