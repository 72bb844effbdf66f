"""Rules of practice beside what keeps a head of sharpness 2."""

import numpy as np

from promptlimit.lengths import temperature_table
from promptlimit.studies import Figure, Setting


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return factors and weights of a needle by rule, from 8192 tokens to a million."""
    count = 2 if setting.quick else 15
    lengths = np.geomspace(8192.0, 1048576.0, count).round()
    return temperature_table(2.0, 8192, lengths).to_arrays()


FIGURE = Figure(
    name="temperature",
    title="What keeps a needle, and what practice does",
    reference="lengths.md, section 5",
    caption="Factors on the scores of a head of sharpness 2 as prompts grow from 8192 tokens, "
    "and the weight that they leave to a needle that had weight $1/2$. Thick lines: the factors "
    "that keep the weight of the needle and the entropy, by exact roots. The rules in use are "
    "the same for all heads, but what a head needs depends on its sharpness.",
    compute=compute,
)
