"""Claim 2: where the covariance blows up, and that it is then of rank one."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.depth._continuous import distance, flow, random_covariance, root_of
from promptlimit.results import Check


def decide(setting: Setting) -> Sequence[Check]:
    """Return blow-up times of solved flows, their last directions, and a law that has none."""
    rng = np.random.default_rng(setting.seed)
    early, directions, seconds, grown = [], [], [], []
    with jax.enable_x64(True):
        for dim in (2, 3) if setting.quick else (2, 3, 4, 6):
            U, G = rng.normal(size=(dim, dim)), random_covariance(rng, dim)
            A = root_of(G)
            rates, axes = np.linalg.eigh(A @ (U + U.T) @ A)
            expected = float(1 / rates[-1])
            solved = flow(U, G, [0.5 * expected, 2 * expected], method="ode")
            early.append(abs((solved.blow_up or np.inf) / expected - 1))
            left = 1e-6 * expected
            last = flow(U, G, [expected - left]).cov[0]
            line = A @ axes[:, -1]
            directions.append(distance(left * last, np.outer(line, line) / rates[-1]))
            spectrum = np.linalg.eigvalsh(last)
            seconds.append(spectrum[-2] / spectrum[-1])
            falling = flow(-U @ U.T, G, [1000.0])
            grown.append(np.linalg.eigvalsh(falling.cov[0])[-1] / np.linalg.eigvalsh(G)[-1])
    return [
        Check("solved blow-up time against 1/λmax, largest distance", max(early), "<=", 1e-6),
        Check("(t* − t)G from its limit, largest distance", max(directions), "<=", 1e-4),
        Check("second eigenvalue over the first at t* − 10⁻⁶t*", max(seconds), "<=", 1e-4),
        Check("U + U' ≤ 0: growth of the covariance by t = 1000", max(grown), "<=", 1.0, "control"),
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
