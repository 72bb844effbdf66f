"""The entropy as a share of ln L, along fixed distances to freezing."""

import numpy as np

from promptlimit.lengths import length_statistics
from promptlimit.studies import Figure, Setting

_SHARES = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 4.0])


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return shares, [s, length]."""
    lengths = 10.0 ** (np.array([1, 4, 12, 24]) if setting.quick else np.arange(1, 31))
    sigma = np.sqrt(_SHARES[:, None] * np.log(lengths))
    entropy = length_statistics(sigma, lengths).entropy
    return {"s": _SHARES, "lengths": lengths, "share": entropy / np.log(lengths)}


FIGURE = Figure(
    name="entropy_share",
    title="The entropy along fixed distances to freezing",
    reference="lengths.md, section 2",
    caption=r"Mean entropy of the softmax weights divided by $\ln L$, where the sharpness grows "
    r"with the length as $\sigma^2 = s\ln L$, computed exactly up to $L = 10^{30}$. Dashed: the "
    r"limit, $1 - s/2$ for $s \le 2$ and 0 beyond. Near freezing, corrections fall so "
    "slowly that no context length in use is near the limit.",
    compute=compute,
)
