"""One gap in every kind, with the slope that theory predicts."""

import jax
import numpy as np

from promptlimit.concentration import gap_exponent, output_gap
from promptlimit.results import GapReport
from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt._ensembles import standard_problem

_LENGTHS = np.unique(np.logspace(0.31, 12, 48).round())
_SIMULATED = np.array([2.0, 5.0, 20.0, 100.0, 500.0, 2000.0])


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the curves of five-dimensional standard normal tokens and queries, τ = 0.4."""
    problem = standard_problem(5, 0.4)
    lengths = _LENGTHS[::3] if setting.quick else _LENGTHS
    kinds = ("exact", "asymptotic", "bound")
    curves = [output_gap(*problem, lengths, kind=kind) for kind in kinds]
    simulated = output_gap(
        *problem,
        _SIMULATED[:4] if setting.quick else _SIMULATED,
        kind="estimate",
        key=jax.random.key(setting.seed),
        samples=2000,
    )
    return GapReport((*curves, simulated), gap_exponent(*problem), None).to_arrays()


FIGURE = Figure(
    name="gap_curve",
    title="One gap, in every kind",
    reference="Proposition 3.1",
    caption="Mean squared gap between finite and infinite prompts, for standard normal tokens "
    r"and queries in five dimensions at sharpness $\tau = 0.4$: the exact gap; its leading order "
    "in $1/L$; the explicit bound, which is proved but loose; and simulated prompts, whose "
    "prefixes serve all lengths.",
    compute=compute,
)
