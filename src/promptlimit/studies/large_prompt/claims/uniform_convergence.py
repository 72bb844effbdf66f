"""Claim 9: the risk and its gradient converge to their limits uniformly on balls."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.dynamics import ball_gap
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._regressions import POINTS, claim_lengths, regression
from promptlimit.studies.large_prompt.protocol import tables_at_hand

_RADIUS = 0.5


def decide(setting: Setting) -> Sequence[Check]:
    """Return the largest gaps met on a ball, as the prompt grows and as the ball does."""
    seed = setting.seed
    task, key = regression(), jax.random.key(seed)
    lengths = claim_lengths(setting)
    tables_at_hand()
    gaps = [ball_gap(task, length, _RADIUS, key=key, points=POINTS) for length in lengths]
    wide = ball_gap(task, lengths[0], 4 * _RADIUS, key=key, points=POINTS)
    risks, slopes = (
        np.array([getattr(gap, name) for gap in gaps]) for name in ("risk", "gradient")
    )
    fallen = "a margin of a tenth; if $U$ reads the label no power of $L$ is guaranteed"
    return [
        Check(
            r"largest ${|R_L - R_\infty|}$ on a ball: ratio of $L = 10^4$ to $L = 10$",
            risks[-1] / risks[0],
            "<=",
            0.1,
            basis=fallen,
        ),
        Check(
            r"largest ${|\nabla R_L - \nabla R_\infty|}$ on a ball: ratio of $L = 10^4$ to "
            "$L = 10$",
            slopes[-1] / slopes[0],
            "<=",
            0.1,
            basis=fallen,
        ),
        Check(
            "largest gap of the risk or of its gradient on a ball: largest ratio from one "
            "length to the next",
            float(max((risks[1:] / risks[:-1]).max(), (slopes[1:] / slopes[:-1]).max())),
            "<=",
            0.9,
            basis="the statement, with a margin of a tenth",
        ),
        Check(
            "largest gradient gap at $L = 10$: ratio of a ball four times as wide to the ball",
            wide.gradient / gaps[0].gradient,
            ">=",
            4.0,
            role="control",
            basis="theory: growth at least linear, since the risk is a polynomial of higher degree",
        ),
    ]


CLAIM = Claim(
    number=9,
    name="uniform-convergence",
    statement="On every ball of parameters the risk $R_L$ over $L$ tokens and its gradient "
    r"converge uniformly to the infinite-prompt risk $R_\infty$ and its gradient. On the whole "
    "space they do not.",
    reference="Section 4 and Appendix E",
    decide=decide,
)
