"""Claim 7: what depth is good for over an infinite prompt."""

import math
from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.depth._continuous import random_covariance
from promptlimit.studies.depth._regression import descent_stack
from promptlimit.tasks import LinearRegression, RotatedRegression, linear_optimum, risk


def decide(setting: Setting) -> Sequence[Check]:
    """Return excess errors at infinite length, of one covariance and of rotated ones."""
    rng = np.random.default_rng(setting.seed)
    spectrum = [1.0, 0.5, 0.25]
    rotated = RotatedRegression(spectrum)
    with jax.enable_x64(True):
        fixed = LinearRegression(random_covariance(rng, 4), noise_variance=0.1)
        optima = [linear_optimum(fixed, math.inf, depth=depth) for depth in (1, 3)]
        three = linear_optimum(rotated, math.inf, depth=3).attention
        # Softmax layers with the same steps have the same limit.
        stacks = (descent_stack([1.0, 2.0, 4.0], 3, "softmax"), three)
        softmax, linear = (float(risk(stack, rotated, math.inf).mse) for stack in stacks)
    solved = [float(best.mse) - 0.1 for best in optima]
    two = float(linear_optimum(rotated, math.inf, depth=2).mse)
    return [
        Check(
            "one covariance: larger excess of the best single layer and the best three layers",
            max(solved),
            "<=",
            1e-12,
            basis="rounding error: $10^{-16}$ times condition numbers of at most 4; margin 1000",
        ),
        Check(
            "rotated covariance with spectrum $(1, 1/2, 1/4)$: excess of the best three linear "
            "layers",
            linear,
            "<=",
            1e-24,
            basis="rounding error, squared: residuals of $10^{-15}$; margin 1000 before squaring",
        ),
        Check(
            "rotated covariance with spectrum $(1, 1/2, 1/4)$: excess of three softmax layers",
            softmax,
            "<=",
            1e-24,
            basis="as above",
        ),
        Check(
            "rotated covariance with spectrum $(1, 1/2, 1/4)$: excess of the best two linear "
            "layers",
            two,
            ">=",
            0.01,
            role="control",
            basis="Hankel system of order 2: 0.0274; margin 2.7",
        ),
    ]


CLAIM = Claim(
    number=7,
    name="depth-in-the-limit",
    statement="Over infinite prompts that all have the same covariance, a single layer solves "
    "the regression and depth is useless. If the covariance is rotated from prompt to prompt, "
    "as many layers as it has distinct eigenvalues solve the regression, and fewer do not.",
    reference="Bordelon, Letey and Pehlevan 2025, read in summaries; Hankel system derived here",
    decide=decide,
)
