"""Flows from two kinds of minimisers, moved a little: back, or not (Figure 1)."""

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.mixtures.claims.plateau import distance_curves


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the distances of several flows from their families of minimisers, [flows, times]."""
    times = np.linspace(0.0, 1000.0, 101)
    seeds = range(setting.seed, setting.seed + (1 if setting.quick else 3))
    curves = [distance_curves(seed, times) for seed in seeds]
    first, second = (np.stack(rows) for rows in zip(*curves, strict=True))
    return {"times": times, "first": first, "second": second}


FIGURE = Figure(
    name="minimiser_distances",
    title="Back to one family of minimisers, not to the other",
    reference="Figure 1",
    caption="Distance of gradient flow from the family of minimisers near which it started, "
    r"after noise of size $10^{-6}$ was added ($d = 2$, $\pi = 0.6$). Where $r = 0$ the distance "
    "falls exponentially (Theorem 3.5), down to rounding error. At a constant gate, $d$ "
    "directions are flat to fourth order, and noise of this size in them does not decay. The "
    "flow replaces ten million steps of $10^{-4}$. The preprint does not state $u_{12}$ of the "
    "first point, here $(10, 10)$, the number of steps and the seeds.",
    compute=compute,
    section="paper",
)
