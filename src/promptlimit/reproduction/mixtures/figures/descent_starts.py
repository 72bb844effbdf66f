"""Stochastic gradient descent from two kinds of starts, for three batches (Figures 4 and 5)."""

from functools import partial

import numpy as np

from promptlimit.reproduction import Figure, Setting
from promptlimit.reproduction.mixtures._descent import Heads, StartName, descend, start
from promptlimit.reproduction.mixtures.claims.gaussian_starts import BATCHES


def compute(name: StartName, setting: Setting) -> dict[str, np.ndarray]:
    """Return excesses along training, [batch, record, start], and along the exact gradient."""
    steps, seeds = (1000, 2) if setting.quick else (10_000, 3)
    record = np.unique(np.geomspace(1, steps, 25).round())
    runs = []
    for batch in BATCHES:
        heads = start(name, seeds, np.random.default_rng(setting.seed))
        runs.append(descend(heads, batch, record, np.random.default_rng([setting.seed, batch])))
    exact_record = record[record <= (200 if setting.quick else 2000)]
    same = start(name, seeds, np.random.default_rng(setting.seed))
    first = Heads(*(part[:1] for part in same))
    exact = descend(first, None, exact_record, np.random.default_rng(0))[:, 0]
    return {
        "batches": np.array(BATCHES),
        "steps": record,
        "excess": np.stack(runs),
        "exact_steps": exact_record,
        "exact": exact,
    }


_PROTOCOL = (
    "d = 20, m = ±e₁, Γ = I, π = 1/2, rate 1e-2, infinite prompts; thin lines are runs, thick ones "
    "their mean. The preprint does not state batch, steps and seeds: three batches are shown, "
    "10,000 steps, three starts, and dashed the exact gradient from the first of them"
)

FIGURES = (
    Figure(
        name="gaussian_starts",
        title="Training from Gaussian starts",
        reference="Figure 4",
        caption="Excess logistic risk over Bayes when all entries start standard normal: "
        f"{_PROTOCOL}, which has no plateau. How hard these starts are depends on the batch: with "
        "one query a step the excess stays above 0.05, with 128 it is about a hundred times lower.",
        compute=partial(compute, "gaussian"),
        section="paper",
    ),
    Figure(
        name="structured_starts",
        title="Training from structured starts",
        reference="Figure 5",
        caption="The same from U₁₁ = 0, u₁₂ = 0, v₂₂ = 0 and v₂₁ ~ N(0, I), the starts of Theorem "
        f"3.6: {_PROTOCOL}. Where each curve levels off is the noise of its batch.",
        compute=partial(compute, "structured"),
        section="paper",
    ),
)
