"""One fixed task: from which length on a gate is worth having."""

import math

import numpy as np
from scipy.optimize import brentq

from promptlimit.reproduction import Figure, Setting
from promptlimit.reproduction.mixtures._denoising import figure_law
from promptlimit.reproduction.mixtures._prompt_lengths import GatedDirection

_GATES = np.linspace(0.0, 1.2, 61)
_LENGTHS = np.array([50.0, 100.0, 185.7, 400.0, 1000.0])


def transition(direction: GatedDirection, gates: np.ndarray) -> float:
    """Return the length at which the gated minimum is as low as the one without a gate."""

    def lead(log_length: float) -> float:
        length = np.array([np.exp(log_length)])
        excess = np.array([direction.excess(gate, length)[0] for gate in gates])
        return float(excess[gates > 0.2].min() - excess[0])

    log_length = brentq(lead, math.log(120.0), math.log(300.0), xtol=1e-4)
    return math.exp(float(np.asarray(log_length)))


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return the least excess against the gate at several lengths, and where the minimum jumps."""
    direction = GatedDirection(figure_law(), step=0.45 if setting.quick else 0.15)
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
    caption="Weights that may know the law of Figure 2: least excess over values and residual "
    "against the gate u along the line between the means, exactly. Without a gate (u = 0, "
    "an affine map with the prompt's mean) is a local minimum at every length, and the "
    "least one up to the length named; beyond it a gated head wins at once with u near "
    "0.44, a transition of first order. Which of the two a training run finds depends on "
    "its start.",
    compute=compute,
)
