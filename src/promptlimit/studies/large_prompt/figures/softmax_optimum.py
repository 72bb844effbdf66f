r"""What trained softmax attention costs at long prompts: excess times length, and its limit.

Over isotropic covariates, in the blocks of the theory with $A=uI$ and $o=u^2$, the leading order of
the excess is $C(o)/L$ with

$$C(o)=\frac{(1-2o)^{-d/2}}{o}\Big(1+s^2+\frac{o}{1-2o}\Big),\qquad 0<o<\tfrac12 :$$

small scores must be amplified by a large value, sharp ones rest on few tokens. Training finds the
least of these.
"""

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.studies.large_prompt.study import DIM, ends


def leading_order(dim: int, noise: float) -> float:
    """Return the least C(o): softmax attention's excess times L as L grows, prior variance 1/d."""
    o = np.linspace(0.0, 0.5, 100_001)[1:-1]
    return float(np.min((1 - 2 * o) ** (-dim / 2) * (1 + noise + o / (1 - 2 * o)) / o))


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return excesses over the noise times the length, of training, optima and ridge."""
    final, noise = ends(setting, "identity"), protocol_task("identity").noise_variance
    scaled = {
        "softmax": final.errors[0],
        "linear": final.errors[1],
        "linear_optimum": final.optimum,
        "ridge": final.ridge,
    }
    return {
        "lengths": final.lengths,
        **{name: (error - final.floor) * final.lengths for name, error in scaled.items()},
        "softmax_limit": np.array(leading_order(DIM, noise)),
        "linear_limit": np.array(DIM + 1 + DIM * noise),
        "ridge_limit": np.array(DIM * noise),
    }


FIGURE = Figure(
    name="softmax_optimum",
    title="What softmax costs at long prompts",
    reference="Section 6, at long prompts",
    caption="Mean squared error above the noise floor, times the length $L$, after training "
    "over isotropic covariates. Dashed lines are the leading orders: in closed form for linear "
    "attention and ridge regression, and for softmax attention the minimum over the scale of "
    "the scores. At long prompts the excess of softmax attention is three times that of linear "
    "attention: the difference between the two falls like $1/L$, and no training removes it.",
    compute=compute,
    after_parts=True,
)
