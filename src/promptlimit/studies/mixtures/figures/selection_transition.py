"""One fixed task: from which length on a gate is worth having."""

import numpy as np
from scipy.interpolate import PchipInterpolator

from promptlimit.studies import Figure, Setting
from promptlimit.studies.mixtures._denoising import figure_law
from promptlimit.studies.mixtures._prompt_lengths import GatedDirection

_GATES = np.linspace(0.0, 1.2, 61)
_LENGTHS = np.array([50.0, 100.0, 185.7, 400.0, 1000.0])
_AROUND = np.geomspace(120.0, 300.0, 41)
"""Lengths among which the transition is looked for, all at once."""


def transition(direction: GatedDirection, gates: np.ndarray) -> float:
    """Return the length at which the gated minimum is as low as the one without a gate."""
    excess = np.array([direction.excess(gate, _AROUND) for gate in gates])
    lead = excess[gates > 0.2].min(axis=0) - excess[0]  # falls as prompts grow
    return float(np.exp(PchipInterpolator(-lead, np.log(_AROUND))(0.0)))


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the least excess against the gate at several lengths, and where the minimum jumps."""
    direction = GatedDirection(figure_law())
    gates = _GATES[::6] if setting.quick else _GATES
    excess = np.stack([direction.excess(float(gate), _LENGTHS) for gate in gates], axis=1)
    near = np.concatenate([[0.0], np.linspace(0.36, 0.52, 5 if setting.quick else 17)])
    return {
        "gates": gates,
        "lengths": _LENGTHS,
        "excess": excess,
        "transition": np.array(transition(direction, near)),
    }


FIGURE = Figure(
    name="selection_transition",
    title="Selection switches on",
    reference="derived here",
    caption="A head that may be adapted to the fixed law of Figure 2: its least excess over "
    "values and residual, computed exactly, against the gate $u$ along the line between the "
    "means. The head without a gate ($u = 0$, an affine map with the mean of the prompt) is a "
    "local minimum at every length, and the global one up to the length in the title. Beyond it "
    "a gated head with $u$ near 0.44 is better at once, as in a first-order transition. Which "
    "of the two a training run finds depends on its start.",
    compute=compute,
)
