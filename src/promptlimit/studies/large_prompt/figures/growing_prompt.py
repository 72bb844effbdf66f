"""The softmax map of one growing prompt, for Gaussian and for two-valued tokens."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from promptlimit._inputs import to_device
from promptlimit.attention import AbstractAttention, LinearAttention, SoftmaxAttention
from promptlimit.measures import AbstractMeasure, Gaussian, Rademacher
from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt._ensembles import beginning

LENGTHS = (10, 100, 1_000, 100_000)
_QUERIES = np.linspace(-3.0, 3.0, 121)


def _maps(law: AbstractMeasure, at: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Return the outputs at every query: growing prompts, the softmax limit, the linear limit."""
    softmax, linear = SoftmaxAttention([[1.0]], [[1.0]]), LinearAttention([[1.0]], [[1.0]])
    queries = to_device(at)[:, None]
    tokens = law.sample(LENGTHS[-1], key=jax.random.key(seed))

    prompts = [beginning(tokens, length) for length in LENGTHS]
    return {
        "finite": np.stack([_outputs(softmax, prompt, queries)[:, 0] for prompt in prompts]),
        "limit": np.asarray(_outputs(softmax, law, queries)[:, 0]),
        "linear": np.asarray(_outputs(linear, law, queries)[:, 0]),
    }


@eqx.filter_jit
def _outputs(
    attention: AbstractAttention, prompt: AbstractMeasure, queries: Float[Array, "n 1"]
) -> Float[Array, "n 1"]:
    return jax.lax.map(lambda query: attention(prompt, query), queries)


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return both panels' curves."""
    seed, queries = setting.seed, _QUERIES[::4] if setting.quick else _QUERIES
    panels = {"gaussian": Gaussian([0.0], [[1.0]]), "two_valued": Rademacher([1.0])}
    arrays = {"queries": queries, "lengths": np.array(LENGTHS)}
    for index, (panel, law) in enumerate(panels.items()):
        curves = _maps(law, queries, seed + index)
        arrays |= {f"{panel}_{name}": curve for name, curve in curves.items()}
    return arrays


FIGURE = Figure(
    name="growing_prompt",
    title="Attention over a growing prompt",
    reference="Lemma 2.1",
    caption="Softmax attention over one growing prompt, as a function of the query. Over "
    "Gaussian tokens the map straightens: its limit is linear attention. Over two-valued tokens "
    r"with the same mean and variance it also converges, but to $\tanh$.",
    compute=compute,
)
