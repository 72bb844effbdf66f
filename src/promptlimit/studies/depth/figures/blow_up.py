"""The variance of tokens in continuous depth, past the blow-up of their law."""

import jax
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.depth import depth_flow
from promptlimit.measures import Empirical, Gaussian
from promptlimit.studies import Figure, Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return variances by depth for prompts of several lengths, and that of the limit."""
    rng = np.random.default_rng(setting.seed)
    lengths = np.array([20, 100]) if setting.quick else np.array([50, 200, 800])
    times = np.linspace(0.0, 2.0, 41)
    with jax.enable_x64(True):
        head = SoftmaxAttention([[0.5]], [[1.0]])
        limit = depth_flow(head, Gaussian([0.0], [[1.0]]), times)
        variances = []
        for length in lengths.tolist():
            setting.tell(f"{length} tokens through depth")
            tokens = Empirical(rng.normal(size=(length, 1)))
            variances.append(depth_flow(head, tokens, times, rtol=1e-4).cov[:, 0, 0])
    return {
        "times": times,
        "lengths": lengths,
        "variances": np.array(variances),
        "limit": limit.cov[:, 0, 0],
        "blow_up": np.array(limit.blow_up),
    }


FIGURE = Figure(
    name="blow_up",
    title="The limit blows up, no prompt does",
    reference="Castin et al. 2025, finite-time blow-up",
    caption="Variance of the tokens in continuous depth $t$ under softmax attention, $d = 1$, "
    "$U = 1/2$, $V = 1$. The infinite-prompt limit $1/(1 - t)$ diverges at $t = 1$ (vertical "
    "line); finite prompts of any length pass this depth. Longer prompts follow the limit for "
    "longer, but none follows it to the end.",
    compute=compute,
)
