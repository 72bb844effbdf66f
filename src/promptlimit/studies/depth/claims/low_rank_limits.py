"""Claim 3: flows that do not blow up end at a covariance of lower rank."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.depth._continuous import distance, flow, random_covariance, root_of

_LATE = 1e8


def decide(setting: Setting) -> Sequence[Check]:
    """Return ranks and limits for K = -Q of half the dimension, and for B < 0.

    Singular values of Q and eigenvalues of G₀ are between 1/2 and 2, so that the eigenvalues of
    √G₀B√G₀ that are not zero are at most -1/4. By t = 10⁸ they leave 4e-8 of their directions.
    """
    rng = np.random.default_rng(setting.seed)
    wrong, apart, inverses, missed = 0.0, [], [], []
    with jax.enable_x64(True):
        for dim in (3, 4) if setting.quick else (3, 4, 5, 6):
            Q, G = random_covariance(rng, dim // 2), random_covariance(rng, dim)
            Q = Q @ np.linalg.qr(rng.normal(size=(dim, dim)))[0][: dim // 2]
            U, A = -Q.T @ Q, root_of(G)
            late = flow(U, G, [_LATE])
            wrong += float(late.ranks(1e-4)[0] != dim - dim // 2)
            _, _, rows = np.linalg.svd(Q @ A)
            kernel = rows[dim // 2 :]
            projected = A @ kernel.T @ kernel @ A
            apart.append(distance(late.cov[0], projected))
            full = -random_covariance(rng, dim)
            far = _LATE * flow(full, G, [_LATE]).cov[0]
            inverses.append(distance(far, np.linalg.inv(-2 * full)))
            soon = flow(-U, G, [0.9 / float(np.linalg.eigvalsh(-2 * A @ U @ A)[-1])])
            missed.append(distance(soon.cov[0], projected))
    return [
        Check(
            r"number of flows whose rank at $t = 10^8$ differs from $\lceil d/2 \rceil$",
            wrong,
            "<=",
            0.0,
            basis=r"a count; eigenvalues are above $1/2$ or below $8 \times 10^{-8}$, and a cut "
            "at $10^{-4}$ separates them",
        ),
        Check(
            r"largest distance of the covariance from $\sqrt{G_0}\,P\sqrt{G_0}$",
            max(apart),
            "<=",
            1e-6,
            basis=r"theory: $4 \times 10^{-8} \cdot 2\sqrt{d/2}$ over $1/2$, at most "
            r"$3 \times 10^{-7}$, and rounding error of $10^{-8}$; margin 3",
        ),
        Check(
            r"$B$ negative definite: largest distance of $t\,G(t)$ from $({-B})^{-1}$",
            max(inverses),
            "<=",
            1e-6,
            basis=r"theory: ${\|G_0^{-1}\|}\,{\|B^{-1}\|}\,10^{-8}\sqrt{d}$, at most "
            r"$5 \times 10^{-8}$; margin 20",
        ),
        Check(
            "$K = Q$, near the blow-up: smallest distance of the covariance from "
            r"$\sqrt{G_0}\,P\sqrt{G_0}$",
            min(missed),
            ">=",
            0.5,
            role="control",
            basis=r"theory: $10 \cdot 1/2$ over $2\sqrt{\lceil d/2 \rceil}$, at least 1.4",
        ),
    ]


CLAIM = Claim(
    number=3,
    name="low-rank-limits",
    statement=r"Let $V = I$ and let $B = U + U^\top$ be negative semidefinite. The covariance "
    r"tends to $\sqrt{G_0}\,P\sqrt{G_0}$, where $P$ projects on the kernel of "
    r"$\sqrt{G_0}\,B\sqrt{G_0}$; its rank is $d - \mathrm{rank}(B)$, which is "
    r"$\lceil d/2 \rceil$ if $U = K^\top Q$ with $K = {-Q}$ of $\lfloor d/2 \rfloor$ rows. If "
    r"$B$ is negative definite, then $t\,G(t)$ tends to $({-B})^{-1}$ for every $G_0$ (derived "
    "here).",
    reference="Castin et al. 2025, low-rank limits",
    decide=decide,
)
