"""The weight of a needle against the inverse temperature: exactly, and annealed."""

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.reproduction import Figure, Setting

_MARGINS = np.array([2.0, 3.0, 4.0, 5.0, 6.0])
_LENGTH = 1000.0


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return weights, [margin, b], at sharpness 1."""
    b = np.linspace(0.0, 8.0, 9 if setting.quick else 81)
    fixed = (b * _MARGINS[:, None])[..., None]
    exact = length_statistics(b, _LENGTH, fixed_scores=fixed).fixed_weights[..., 0]
    annealed = 1.0 / (1.0 + _LENGTH * np.exp(0.5 * b**2 - b * _MARGINS[:, None]))
    return {"margin": _MARGINS, "b": b, "exact": exact, "annealed": annealed}


FIGURE = Figure(
    name="needles",
    title="A needle among a thousand tokens",
    reference="lengths.md, section 4",
    caption="Mean weight of one token whose score is Δ above the mean of 1000 standard Gaussian "
    "ones, when all scores are multiplied by b: exactly, and dashed with Z replaced by its mean, "
    "which turns down beyond freezing, b = √(2 ln L). High needles are found by cooling, low ones "
    "have a best temperature and are not found at any.",
    compute=compute,
)
