"""What does an exact finite prompt cost, for laws with and without closed forms?

One query, 19 lengths from 1 to 1e18, the first call (compiling) and warm ones, against simulating
the same to 1% at the one length of 1000. Run on one idle core: `taskset -c 0`.
"""

import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl

LENGTHS = np.unique(np.logspace(0, 18, 19).round())


class TwoSidedExponential(pl.AbstractMeasure):
    """A user-defined law with only a transform."""

    scales: jax.Array

    @property
    def dim(self) -> int:
        """The dimension of a token."""
        return self.scales.shape[0]

    def log_laplace(self, tilt: jax.Array) -> jax.Array:
        """Return -sum log(1 - b^2 t^2)."""
        return -jnp.sum(jnp.log1p(-((self.scales * tilt) ** 2)))

    def sample(self, length: int, *, key: jax.Array) -> jax.Array:
        """Return tokens."""
        return self.scales * jax.random.laplace(key, (length, self.dim))


def laws(many: int) -> dict[str, pl.AbstractMeasure]:
    """Return laws of tokens in five dimensions, one of them a list of many."""
    normal = pl.Gaussian(np.zeros(5), np.eye(5))
    return {
        "Gaussian": normal,
        "a list of 1000 tokens": pl.Empirical(np.random.default_rng(0).normal(size=(1000, 5))),
        f"a list of {many:.0e} tokens": pl.Empirical(
            np.random.default_rng(0).normal(size=(many, 5))
        ),
        "cube": pl.UniformCube(np.ones(5)),
        "sphere": pl.UniformSphere(5, radius=2.0),
        "mixture of a Gaussian and a sphere": pl.Mixture(
            [0.5, 0.5], [normal, pl.UniformSphere(5, radius=2.0)]
        ),
        "two-sided exponential": TwoSidedExponential(jnp.ones(5)),
    }


def seconds(action: Callable[[], object]) -> float:
    """Return how long one run takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def main(smallest: bool = False) -> None:
    """Print a line for each law."""
    jax.config.update("jax_enable_x64", True)
    print(f"{'tokens':<36} {'first':>8} {'warm':>9} {'error':>8} {'simulated, L = 1000':>20}")
    lengths, chosen = LENGTHS, laws(2 if smallest else 10**6)
    if smallest:
        lengths, chosen = LENGTHS[:1], {name: chosen[name] for name in [*chosen][:1]}
    for name, law in chosen.items():
        tilt = np.linspace(1.0, 0.2, 5)
        tilt *= 0.5 / np.sqrt(tilt @ np.asarray(law.cov) @ tilt)
        attention, query = pl.SoftmaxAttention(np.diag(tilt), np.eye(5)), np.ones(5)

        def exact(given: tuple = (attention, law, query, lengths)) -> pl.results.PromptMoments:
            return pl.prompt_moments(*given)

        def simulated(given: tuple = (attention, law, query, 1000)) -> pl.results.PromptMoments:
            return pl.prompt_moments(*given, kind="estimate", key=jax.random.key(0))

        first = seconds(exact)
        warm = min(seconds(exact) for _ in range(5))
        found = exact()
        error = (found.error / found.mse).max()
        simulated()
        times = f"{first:6.2f} s {1e3 * warm:6.1f} ms {error:8.0e} {seconds(simulated):18.2f} s"
        print(f"{name:<36} {times}")


if __name__ == "__main__":
    main("--smallest" in sys.argv)
