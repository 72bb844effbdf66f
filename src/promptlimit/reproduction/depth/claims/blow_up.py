"""Claim 2: where the covariance blows up, and that it is then of rank one."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.reproduction.depth._continuous import (
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
            "solved blow-up time against 1/λmax, largest distance",
            max(early),
            "<=",
            1e-6,
            basis="solver: steps to 1e-9, some hundred of them; margin 10",
        ),
        Check(
            "(t* − t)G from its limit at t* − 10⁻⁶, largest distance",
            max(directions),
            "<=",
            8e-6 * (max(dims) - 1) ** 0.5,
            basis="theory: 10⁻⁶ · 2 · 2√(d − 1), at most, over 1/2",
        ),
        Check(
            "second eigenvalue over the first there",
            max(seconds),
            "<=",
            8e-6,
            basis="theory: 2 · 2 over 10⁶/2, at most",
        ),
        Check(
            "U + U' < 0: largest variance at t = 1000, solved",
            max(grown),
            "<=",
            2e-3,
            role="control",
            basis="theory: tG(t) ≤ (−U − U')⁻¹, whose eigenvalues are at most 1; margin 2",
        ),
    ]


CLAIM = Claim(
    number=2,
    name="blow-up",
    statement="With V = I and C = √G₀(U + U')√G₀ the covariance blows up at t* = 1/λmax(C) if that "
    "is positive, and never if it is not; (t* − t)G(t) tends to the rank-one √G₀ee'√G₀/λmax, e the "
    "leading eigenvector of C (derived here).",
    reference="Castin et al. 2025, finite-time blow-up",
    decide=decide,
)
