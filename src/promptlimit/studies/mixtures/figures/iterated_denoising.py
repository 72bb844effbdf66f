"""Figure 3: where iterated denoising leads, with little noise and with much."""

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.mixtures._iteration import (
    STRONG_NOISE,
    WEAK_NOISE,
    attractor,
    figure_points,
    iterated,
)

_STEPS = 60
_SIDE = 7


def compute(setting: Setting) -> dict[str, np.ndarray]:  # nothing is random
    """Return the paths of a grid of queries at both noise levels, and their limits."""
    heights = np.linspace(-6.0, 6.0, 2 * _SIDE)  # none on the line between the two basins
    starts = np.stack(np.meshgrid(np.linspace(-6.0, 6.0, _SIDE), heights), axis=-1).reshape(-1, 2)
    arrays: dict[str, np.ndarray] = {}
    for name, noise in (("weak", WEAK_NOISE), ("strong", STRONG_NOISE)):
        u = 3.0 * attractor(3.0 / noise)
        ends = [[0.0, u], [0.0, -u]] if u else [[0.0, 0.0]]
        arrays |= {
            f"{name}.noise": np.array(noise),
            f"{name}.paths": iterated(figure_points(noise), starts, _STEPS),
            f"{name}.limits": np.array(ends),
        }
    return arrays


FIGURE = Figure(
    name="figure_3",
    title="Iterated denoising has one limit or two",
    caption=r"The Bayes denoiser of the points $\pm(0, 3)$ with $\gamma = 0$, applied repeatedly "
    r"from a grid of queries. While $\xi < 3$, each half plane has an attractor $\pm u(0, 3)$ "
    r"with $u = \tanh(9u/\xi^2)$, closer to the midpoint than the point itself. From $\xi = 3$ "
    "on, every query tends to the midpoint. After one step all queries lie on the line through "
    r"the points. The preprint does not state $\xi$ for its panels; here it is 2.5 and 4.",
    compute=compute,
    section="paper",
    reference="Figure 3",
)
