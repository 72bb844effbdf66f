"""Stochastic gradient descent from two kinds of starts, for three batches (Figures 4 and 5)."""

from functools import partial

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.mixtures._descent import Heads, StartName, descend, start
from promptlimit.studies.mixtures.claims.gaussian_starts import BATCHES


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
    r"$d = 20$, means $\pm e_1$, $\Gamma = I$, $\pi = 1/2$, learning rate $10^{-2}$, infinite "
    "prompts. Thin lines are runs, thick lines their means. The preprint does not state batch "
    "size, steps and seeds: shown are three batch sizes, 10,000 steps and three starts; dashed, "
    "descent by the exact gradient from the first of them"
)

FIGURES = (
    Figure(
        name="gaussian_starts",
        title="Training from Gaussian starts",
        reference="Figure 4",
        caption="Excess logistic risk over Bayes when all entries are standard normal at the "
        f"start: {_PROTOCOL}, which has no plateau. How hard these starts are depends on the "
        "batch size: with one query per step the excess stays above 0.05, with 128 it is about "
        "a hundred times smaller.",
        compute=partial(compute, "gaussian"),
        section="paper",
    ),
    Figure(
        name="structured_starts",
        title="Training from structured starts",
        reference="Figure 5",
        caption="Excess logistic risk over Bayes from $U_{11} = 0$, $u_{12} = 0$, "
        r"$v_{22} = 0$ and $v_{21} \sim \mathcal{N}(0, I)$, the starts of Theorem 3.6: "
        f"{_PROTOCOL}. Each curve levels off at the noise of its batch.",
        compute=partial(compute, "structured"),
        section="paper",
    ),
)
