"""The least error of linear layers against their number, at several lengths."""

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.tasks import LinearRegression, bayes_risk, linear_optimum

_AHN = 20


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return optima of the paper's task by depth and length, and of Ahn et al.'s protocol."""
    depths = np.arange(1, 5 if setting.quick else 9)
    lengths = np.array([10.0, 40.0]) if setting.quick else np.array([10.0, 40.0, 160.0, 640.0])
    task = LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    setting.tell("the best linear layers")
    columns = [linear_optimum(task, lengths, depth=int(depth)) for depth in depths]
    protocol = LinearRegression(np.eye(5))
    still = [linear_optimum(protocol, _AHN, depth=int(depth)).mse for depth in depths[:5]]
    moving_depths = depths[: 2 if setting.quick else 3]
    moving = [
        linear_optimum(protocol, _AHN, depth=int(depth), moving_covariates=True).mse
        for depth in moving_depths
    ]
    return {
        "depths": depths,
        "lengths": lengths,
        "mse": np.array([best.mse for best in columns]),
        "bound": np.array([2 * best.bound for best in columns]),
        "bayes": np.asarray(bayes_risk(task, lengths).mse),
        "still_depths": depths[:5],
        "still": np.array(still),
        "moving_depths": moving_depths,
        "moving": np.array(moving),
    }


FIGURE = Figure(
    name="depth_and_length",
    title="What more linear layers are worth",
    reference="Ahn et al. 2023; optimum derived here",
    caption="Everything is exact; no prompt is drawn. Left: the least mean squared error of $K$ "
    "linear layers, minus the noise, on the regression of Boursier and Boyer ($d = 5$, noise "
    "0.1), against the depth $K$. Dashed: the Bayes predictor (ridge regression) at the same "
    "length. Dotted: the best polynomial of degree $K$, which layers with real steps miss at "
    "large depth. Right: the protocol of Ahn et al. ($d = 5$, 20 tokens, no noise) for layers "
    "that update the labels alone and for layers that also update the covariates (GD++).",
    compute=compute,
)
