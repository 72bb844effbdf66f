"""Claim 9: how close linear layers come to ridge regression as depth grows."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Check, Claim, Setting
from promptlimit.tasks import LinearRegression, bayes_risk, linear_optimum


def decide(setting: Setting) -> Sequence[Check]:
    """Return excesses over Bayes, relative to its own over the noise, with and without noise."""
    depth = 8 if setting.quick else 12
    lengths = (40,) if setting.quick else (10, 40, 400)
    noisy = LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    clean = LinearRegression(np.eye(5), prior_variance=0.2)
    steps, polynomials, shallow = [], [], []
    for length in lengths:
        bayes = bayes_risk(noisy, length, points=4096)
        least = float(bayes.mse)
        own = least - 0.1
        deep, one = linear_optimum(noisy, length, depth=depth), linear_optimum(noisy, length)
        steps.append((float(deep.mse) - least) / own)
        error = 2 * float(bayes.error) / own
        polynomials.append((2 * deep.bound - least) / own - 2 * error)
        shallow.append((float(one.mse) - least) / own)
    exact = float(linear_optimum(clean, 40, depth=depth).mse)
    return [
        Check(
            f"with noise: excess of {depth} layers over Bayes', largest",
            max(steps),
            "<=",
            1e-3,
            basis="the statement's 0, with a thousandth to approach it",
        ),
        Check(
            "the same of the best polynomials",
            max(polynomials),
            "<=",
            0.02,
            role="amended",
            basis="stated: a third of what the layers may keep",
        ),
        Check(
            "of the layers",
            max(steps),
            "<=",
            0.06,
            role="amended",
            basis="the evidence's twentieth at L = 10; margin 1.2",
        ),
        Check(
            "without noise: mean squared error at L = 40",
            exact,
            "<=",
            1e-4,
            role="amended",
            basis="a thousandth of the noise variance 0.1 of the other task",
        ),
        Check(
            "one layer, with noise: excess over Bayes'",
            min(shallow),
            ">=",
            1.0,
            role="control",
            basis="stated margin: one layer misses by more than all of Bayes' own excess",
        ),
    ]


CLAIM = Claim(
    number=9,
    name="depth-and-ridge",
    statement="At every length the best linear layers approach ridge regression, which is Bayes, "
    "as their number grows.",
    reference="Ahn et al. 2023 and von Oswald et al. 2023 for the layers; optimum derived here",
    decide=decide,
    expected="holds with a change",
    evidence="The best polynomial of degree K in the prompt's second moment does, and without "
    "noise it has real roots, which are layers. With noise it wants c/(λ + c), whose logarithm is "
    "convex, while that of a product of real factors is concave between its zeros: from depth 5 on "
    "(d = 5, L = 40) roots are complex, steps meet in pairs, and the stack stays above Bayes by a "
    "few thousandths of Bayes' own excess at L = 40, and by a twentieth at L = 10.",
)
