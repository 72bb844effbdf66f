"""Claim 13: when the span of m, Γm, Γ²m, ... is everything."""

from collections.abc import Sequence

import numpy as np

from promptlimit._arrays import Array
from promptlimit.studies import Check, Claim, Setting

_COUNT = (
    "a count; a cut at $10^{-8}$ separates singular values of at least 0.006 from rounding error"
)


def _rank(eigenvalues: Array, mean: Array, axes: Array) -> float:
    """Return the dimension of the span of m, Γm, ..., Γ^(d-1) m, Γ with these axes."""
    cov = axes @ np.diag(eigenvalues) @ axes.T
    columns = [axes @ mean]
    for _ in range(len(mean) - 1):
        columns.append(cov @ columns[-1])
    return float(np.linalg.matrix_rank(np.stack(columns, axis=1), tol=1e-8))


def decide(setting: Setting) -> Sequence[Check]:
    """Return what ranks miss of d when the condition holds, and when it does not."""
    rng = np.random.default_rng(setting.seed)
    axes = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    distinct, mean = np.array([0.5, 1.0, 1.5, 2.0, 2.5]), np.array([1.0, -1.0, 0.5, 0.8, -0.6])
    repeated = np.array([0.5, 1.0, 1.0, 2.0, 2.5])
    missing = mean * np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    return [
        Check(
            r"$d$ minus the dimension of $\mathcal{K}$",
            5 - _rank(distinct, mean, axes),
            "<=",
            0.0,
            basis=_COUNT,
        ),
        Check(
            r"repeated eigenvalue: $d$ minus the dimension of $\mathcal{K}$",
            5 - _rank(repeated, mean, axes),
            ">=",
            1.0,
            role="control",
            basis=_COUNT,
        ),
        Check(
            r"$m$ perpendicular to an eigenspace: $d$ minus the dimension of $\mathcal{K}$",
            5 - _rank(distinct, missing, axes),
            ">=",
            1.0,
            role="control",
            basis=_COUNT,
        ),
    ]


CLAIM = Claim(
    number=13,
    name="krylov-space",
    statement=r"The span $\mathcal{K}$ of all $\Gamma^km$ with $k \ge 0$ is $\mathbb{R}^d$ if "
    r"and only if $\Gamma$ has $d$ distinct eigenvalues and $m$ is perpendicular to none of its "
    "eigenspaces.",
    reference="Proposition B.35",
    decide=decide,
)
