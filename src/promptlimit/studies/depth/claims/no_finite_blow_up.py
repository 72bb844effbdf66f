"""Claim 6: no finite prompt blows up."""

import math
from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.depth import depth_flow
from promptlimit.measures import Empirical, Gaussian
from promptlimit.studies import Check, Claim, Setting


def decide(setting: Setting) -> Sequence[Check]:
    """Return tokens of one dimension past the blow-up of their law, against their hull."""
    rng = np.random.default_rng(setting.seed)
    lengths = (20, 100) if setting.quick else (50, 500)
    reached, finite = [], []
    with jax.enable_x64(True):
        head = SoftmaxAttention([[0.5]], [[1.0]])
        for length in lengths:
            tokens = rng.normal(size=(length, 1))
            past = depth_flow(head, Empirical(tokens), [2.0], rtol=1e-6)
            bound = math.exp(2.0) * np.abs(tokens).max()
            reached.append(float(np.abs(np.asarray(past.tokens)).max() / bound))
            finite.append(float(past.cov[0, 0, 0] / bound**2))
        law = depth_flow(head, Gaussian([0.0], [[1.0]]), [0.9999])
    return [
        Check(
            r"largest token at $t = 2t^*$ over $e^{{\|V\|}t}$ times the largest at $t = 0$",
            max(reached),
            "<=",
            1.0 + 1e-5,
            basis="theory: 1; the solver's $10^{-6}$, margin 10",
        ),
        Check(
            r"variance of the tokens at $t = 2t^*$ over the square of $e^{{\|V\|}t}$ times the "
            "largest token at $t = 0$",
            max(finite),
            "<=",
            1.0 + 1e-5,
            basis="theory: 1, since no token is larger; the solver's $10^{-6}$, margin 10",
        ),
        Check(
            r"variance of the limit at $0.9999\,t^*$",
            law.cov[0, 0, 0],
            ">=",
            9_000.0,
            role="control",
            basis="closed form: $1/(1 - 0.9999) = 10^4$",
        ),
    ]


CLAIM = Claim(
    number=6,
    name="no-finite-blow-up",
    statement=r"At depth $t$ no token is larger than $e^{{\|V\|}t}$ times the largest token at "
    "the start, because attention returns a point of the convex hull of the values. A finite "
    "prompt therefore passes the depth $t^*$ at which its limit diverges (derived here).",
    reference="Castin et al. 2025, blow-up of the limit",
    decide=decide,
)
