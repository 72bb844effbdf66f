"""The weight of a needle against the inverse temperature: exactly, and annealed."""

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.studies import Figure, Setting

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
    caption=r"Mean weight of one token whose score is $\Delta$ above the mean of 1000 standard "
    "normal scores, when all scores are multiplied by $b$. Lines are exact; dashed lines "
    "replace $Z$, the sum of the other exponentials, by its mean, and turn down beyond "
    r"freezing, $b = \sqrt{2\ln L}$. Lowering the temperature finds a high needle; a low needle "
    "has a best temperature, but is not found at any.",
    compute=compute,
)
