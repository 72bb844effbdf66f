"""Softmax layers that descend in context, on drawn tokens and in the limit."""

import math

import jax
import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.depth._regression import descent_stack, softmax_errors
from promptlimit.tasks import LinearRegression, risk

_STEPS = {1: [0.9], 2: [0.5, 0.4], 4: [0.5, 0.4, 0.6, 0.3]}
_SHARPNESS = 0.35


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return simulated errors by depth and length, their standard errors, and limits."""
    rng = np.random.default_rng(setting.seed)
    lengths = np.array([25, 100]) if setting.quick else np.array([25, 50, 100, 200, 400])
    scores = 2e6 if setting.quick else 2e7
    task = LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    mse, error = np.empty((2, len(_STEPS), lengths.size))
    for place, length in enumerate(lengths.tolist()):
        setting.tell(f"softmax layers on {length} drawn tokens")
        count = int(min(4000, scores / length**2))
        squares = softmax_errors(
            rng, *_STEPS.values(), dim=5, length=length, prompts=count, sharpness=_SHARPNESS
        )
        mse[:, place] = squares.mean(axis=1)
        error[:, place] = squares.std(axis=1, ddof=1) / math.sqrt(count)
    with jax.enable_x64(True):
        stacks = [descent_stack(steps, 5, "softmax", _SHARPNESS) for steps in _STEPS.values()]
        limits = [float(risk(stack, task, math.inf).mse) - 0.1 for stack in stacks]
    return {
        "depths": np.array(list(_STEPS)),
        "lengths": lengths,
        "mse": mse,
        "error": error,
        "limits": np.array(limits),
    }


FIGURE = Figure(
    name="softmax_stacks",
    title="Softmax layers and their limit",
    reference="von Oswald et al. 2023 for the layers; limit derived here",
    caption="Mean squared error, minus the noise, of softmax stacks that take gradient steps in "
    "context ($d = 5$, noise 0.1), on the same simulated prompts and with one standard error; "
    "dashed, their exact infinite-prompt limits. The steps were chosen by hand: 0.9; 0.5, 0.4; "
    "and 0.5, 0.4, 0.6, 0.3. Depth helps at short prompts, where several small steps smooth "
    "more than one large step.",
    compute=compute,
)
