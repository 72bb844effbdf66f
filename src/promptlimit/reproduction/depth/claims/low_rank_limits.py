"""Claim 3: flows that do not blow up end at a covariance of lower rank."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.depth._continuous import distance, flow, random_covariance, root_of

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
            "ranks at t = 10⁸ that differ from ⌈d/2⌉",
            wrong,
            "<=",
            0.0,
            basis="a count; eigenvalues are above 1/2 or below 8e-8, and 1e-4 parts them",
        ),
        Check(
            "distance from √G₀ P √G₀, P on the kernel of C",
            max(apart),
            "<=",
            1e-6,
            basis="theory: 4e-8 · 2√(d/2) over 1/2, at most 3e-7, and rounding 1e-8; margin 3",
        ),
        Check(
            "U + U' < 0: distance of tG from (−U − U')⁻¹",
            max(inverses),
            "<=",
            1e-6,
            basis="theory: ‖G₀⁻¹‖ ‖(U + U')⁻¹‖ 10⁻⁸ √d, at most 5e-8; margin 20",
        ),
        Check(
            "K = Q, near its blow-up: the first distance",
            min(missed),
            ">=",
            0.5,
            role="control",
            basis="theory: 10 · 1/2 over 2√⌈d/2⌉, at least 1.4",
        ),
    ]


CLAIM = Claim(
    number=3,
    name="low-rank-limits",
    statement="With V = I and B = U + U' ≤ 0 the covariance tends to √G₀ P √G₀, P the projection "
    "on the kernel of √G₀B√G₀, of rank d − rank B: for K = −Q with ⌊d/2⌋ rows, ⌈d/2⌉. With B < 0 "
    "tG(t) tends to (−B)⁻¹ whatever G₀ (derived here).",
    reference="Castin et al. 2025, low-rank limits",
    decide=decide,
)
