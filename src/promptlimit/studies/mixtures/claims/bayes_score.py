"""Claim 4: the Bayes score, and that one head has it."""

import math
from collections.abc import Sequence

import jax
import numpy as np
from scipy.special import expit

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._discrimination import C1, Classes
from promptlimit.tasks import Discrimination, bayes_risk, risk


def _tasks(seed: int) -> list[Discrimination]:
    """Return classes of every case: balanced or not, opposite means or not, d from 1 to 3.

    The last two means are c ± δ with |c| = |δ| = 1, in random directions.
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
    """Return the gradient norm, in (w, b), of the squared loss at the Bayes score."""
    x, weights, best = classes.rule
    wrong = weights * (best - (2.0 * expit(best) - 1.0))
    return float(np.linalg.norm(np.append(wrong @ x, wrong.sum())))


def decide(setting: Setting) -> Sequence[Check]:
    """Return the excess of the constructed heads, and the curvature that makes Bayes unique."""
    with jax.enable_x64(True):
        excesses = [
            float(risk(task.bayes_head(), task, math.inf).value - bayes_risk(task, math.inf).value)
            for task in _tasks(setting.seed)
        ]
    bayes = np.concatenate([C1.bayes[0], [C1.bayes[1], 0.0], np.zeros(2)])
    affine = C1.curvature(bayes)[:3, :3]
    return [
        Check(
            "largest excess risk of one head in five laws",
            np.abs(excesses).max(),
            "<=",
            1e-12,
            basis="rounding error: $10^{-16}$ times the nodes of a quadrature; margin 100",
        ),
        Check(
            "norm of the gradient at the Bayes score",
            float(np.linalg.norm(C1.slope(bayes))),
            "<=",
            1e-14,
            basis="rounding error: a sum of differences that are 0 each",
        ),
        Check(
            "smallest curvature of the risk among affine scores, at the Bayes score",
            np.linalg.eigvalsh(affine)[0],
            ">=",
            0.01,
            basis="theory: positive; stated margin",
        ),
        Check(
            r"norm of the gradient of the squared loss, whose target is $2\eta - 1$, at the "
            "Bayes score",
            _slope_of_squares(C1),
            ">=",
            0.1,
            role="control",
            basis="theory: not 0; stated margin",
        ),
    ]


CLAIM = Claim(
    number=4,
    name="bayes-score",
    statement=r"For two Gaussian classes with means $m_1$, $m_{-1}$, covariance $\Gamma$ and "
    "prior log-odds $s_0$, the logistic risk has one minimiser, the score "
    r"$\langle w^*, x\rangle + b^*$ with $w^* = \Gamma^{-1}(m_1 - m_{-1})$ and "
    r"$b^* = s_0 - (\langle m_1, \Gamma^{-1}m_1\rangle "
    r"- \langle m_{-1}, \Gamma^{-1}m_{-1}\rangle)/2$. "
    "One softmax head over an infinite prompt attains this score.",
    reference="(5), Appendices B.2 and B.4",
    decide=decide,
)
