"""Claim 24: what Gaussian starts do to training, batch by batch."""

from collections.abc import Sequence

import numpy as np

from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.mixtures._descent import descend, start
from promptlimit.results import Check

BATCHES = (1, 16, 128)


def late_excess(name: str, batch: int | None, steps: int, seed: int) -> float:
    """Return the mean excess over the last half of descent from two starts."""
    rng = np.random.default_rng([seed, 0 if batch is None else batch])
    heads = start(
        "gaussian" if name == "gaussian" else "structured", 2, np.random.default_rng(seed)
    )
    record = np.linspace(steps // 2, steps, 6).round()
    return float(descend(heads, batch, record, rng).mean())


def decide(setting: Setting) -> Sequence[Check]:
    """Return excesses late in training for three batches, and for the exact gradient."""
    steps = 1500 if setting.quick else 10_000
    one, some, many = (late_excess("gaussian", batch, steps, setting.seed) for batch in BATCHES)
    structured = late_excess("structured", BATCHES[0], steps, setting.seed)
    exact = descend(
        start("gaussian", 1, np.random.default_rng(setting.seed)),
        None,
        np.array([500.0 if setting.quick else 1500.0]),
        np.random.default_rng(0),
    )[0, 0]
    return [
        Check(f"excess after {steps} steps, batch 1", one, ">=", 0.03),
        Check("the same over that of structured starts, batch 1", one / structured, ">=", 1.5),
        Check(
            "excess with batch 1 over that with batch 16: it is the noise of gradients (derived "
            "here)",
            one / some,
            ">=",
            3.0,
        ),
        Check("excess with batch 128, which is not stuck", many, "<=", 0.03),
        Check(
            "excess after the exact gradient with the same rate: no plateau",
            exact,
            "<=",
            0.05,
            role="control",
        ),
    ]


CLAIM = Claim(
    number=24,
    name="gaussian-starts",
    statement="From starts with standard normal entries training is slow and ends far from Bayes "
    "(d = 20, m = ±e₁, rate 1e-2). That depends on the batch, which the preprint does not state: "
    "with one query a step it is so, with 128 it is not, and with the exact gradient not at all.",
    reference="Figure 4",
    decide=decide,
)
