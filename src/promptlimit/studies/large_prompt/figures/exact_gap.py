"""The exact gap of a finite prompt from one token to 1e12, through simulated prompts."""

import jax
import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.finite import prompt_moments
from promptlimit.measures import Gaussian
from promptlimit.studies import Figure, Setting
from promptlimit.weights import weight_statistics

SHARPNESSES = np.array([1.0, 2.0, 3.0, 4.0, 6.0])
_LENGTHS = np.unique(np.logspace(0, 12, 121).round())
_SIMULATED = np.array([1.0, 4.0, 16.0, 64.0, 256.0, 1024.0])


def _simulated(
    sharpness: float, lengths: np.ndarray, key: jax.Array, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return simulated squared gaps and their standard errors."""
    moments = prompt_moments(
        SoftmaxAttention([[1.0]], [[1.0]]),
        Gaussian([0.0], [[1.0]]),
        [sharpness],
        lengths,
        kind="estimate",
        key=key,
        samples=samples,
    )
    return moments.mse, moments.error


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return curves, simulated points and the freezing line, relative to the squared limit."""
    seed, samples = setting.seed, 2000
    keys = jax.random.split(jax.random.key(seed), len(SHARPNESSES))
    drawn = _SIMULATED[::3] if setting.quick else _SIMULATED
    pairs = zip(SHARPNESSES, keys, strict=True)
    points = [_simulated(float(s), drawn, key, samples) for s, key in pairs]
    squared = SHARPNESSES[:, None] ** 2
    exact = weight_statistics(SHARPNESSES[:, None], _LENGTHS).score_error / squared
    freezing = np.linspace(1.5, 7.4, 60)
    frozen_lengths = np.exp(freezing**2 / 2).round()
    frozen = weight_statistics(freezing, frozen_lengths).score_error / freezing**2
    return {
        "sharpnesses": SHARPNESSES,
        "lengths": _LENGTHS,
        "exact": exact,
        "simulated_lengths": drawn,
        "simulated": np.stack([value for value, _ in points]) / squared,
        "simulated_error": np.stack([error for _, error in points]) / squared,
        "freezing_lengths": frozen_lengths,
        "freezing": frozen,
    }


FIGURE = Figure(
    name="exact_gap",
    title="The exact gap of a finite prompt",
    reference="docs/finite.md",
    caption="Mean squared error of softmax attention over $L$ standard normal tokens, relative "
    r"to the squared limit, for several values of the sharpness $\sigma$. Lines are exact, "
    "computed by quadrature at a cost that does not depend on $L$; points are simulated prompts "
    r"with two standard errors. Above the dashed line, where $\sigma^2 > 2\ln L$, a few tokens "
    "take all the weight.",
    compute=compute,
)
