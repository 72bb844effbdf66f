"""How long a prompt must be for a relative gap of one per cent, by each way of knowing the gap."""

import numpy as np

from promptlimit.concentration import required_length
from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt._ensembles import standard_problem

_SHARPNESSES = np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.8, 0.9, 1.0])
_KINDS = ("exact", "asymptotic", "bound")
TOLERANCE = 0.01


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return lengths of each kind against the sharpness; infinite where there is none to 1e30."""
    sharpnesses = _SHARPNESSES[::4] if setting.quick else _SHARPNESSES
    answers = [required_length(*standard_problem(1, tau), TOLERANCE) for tau in sharpnesses]
    lengths = {
        kind: np.array([_number(getattr(answer, kind)) for answer in answers]) for kind in _KINDS
    }
    return {"sharpnesses": sharpnesses, **lengths}


def _number(length: float | None) -> float:
    return np.inf if length is None else length


FIGURE = Figure(
    name="required_lengths",
    title="How long a prompt must be",
    reference="Proposition 3.1, made sharp",
    caption="The smallest length from which the relative gap stays below one per cent, for "
    r"standard normal tokens and queries in one dimension, against the sharpness $\tau$ of the "
    "scores. It is computed from the exact gap; from its leading order in $1/L$, which diverges "
    r"at $\tau^2 = 1/2$; and from the proved bound, which soon leaves the figure and reaches "
    "$10^{30}$.",
    compute=compute,
)
