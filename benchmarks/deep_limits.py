"""What does the limit of a deep stack cost, and a linear one at finite length, against NumPy?

Prints a small table in seconds of CPU; nothing is asserted. The limit of 32 layers with 8 heads in
64 dimensions is one compiled loop; NumPy runs the same recursion layer by layer. Two linear layers
over 1,000 tokens are exact by Gauss rules; simulated, they are passed by whole prompts.
"""

import sys
import time
from collections.abc import Callable

import jax
import numpy as np

import promptlimit as pl

LAYERS, HEADS, DIM = 32, 8, 64


def timed(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of CPU."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        jax.block_until_ready(work())
        seconds.append(time.process_time() - start)
    return float(np.median(seconds))


def deep_limit(layers: int, heads_each: int, dim: int) -> None:
    """Time the limit of a deep stack, its first call, and NumPy."""
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(layers, heads_each, 2, dim, dim)) / (4 * dim)
    query, cov = rng.normal(size=dim), np.eye(dim)
    stack = pl.Stack(
        [pl.Layer([pl.SoftmaxAttention(u, v) for u, v in heads]) for heads in matrices]
    )
    prompt = pl.Gaussian(np.full(dim, 0.1), cov)

    def plain() -> np.ndarray:
        mean, spread, point = np.full(dim, 0.1), cov, query
        for heads in matrices:
            matrix = np.eye(dim) + sum(v @ spread @ u for u, v in heads)
            shift = sum(v @ mean for _, v in heads)
            mean, spread, point = (
                matrix @ mean + shift,
                matrix @ spread @ matrix.T,
                matrix @ point + shift,
            )
        return point

    first = timed(lambda: stack(prompt, query), 1)
    warm, by_hand = timed(lambda: stack(prompt, query), 9), timed(plain, 9)
    apart = np.abs(np.asarray(stack(prompt, query)) - plain()).max()
    what = f"limit of {layers} layers, {heads_each} heads, d = {dim}"
    print(f"{what}: {1e3 * warm:.0f} ms, first {first:.1f} s")
    print(f"  NumPy, layer by layer: {1e3 * by_hand:.0f} ms, apart by {apart:.0e}")


def linear_layers(length: int, prompts: int) -> None:
    """Time exact moments of linear layers, and prompts of them."""
    rng = np.random.default_rng(1)
    u, v = 0.3 * rng.normal(size=(2, 3, 3))
    stack = pl.Stack([pl.Layer(pl.LinearAttention(u, v))] * 2)
    law, query = pl.Gaussian(np.zeros(3), np.eye(3)), np.ones(3)
    exact = timed(lambda: pl.prompt_moments(stack, law, query, length).mse, 3)
    run = jax.jit(jax.vmap(lambda key: stack(pl.Empirical(law.sample(length, key=key)), query)))
    keys = jax.random.split(jax.random.key(0), prompts)
    jax.block_until_ready(run(keys))
    one = timed(lambda: run(keys), 5) / prompts
    print(f"two linear layers, d = 3, L = {length}, exact: {exact:.2f} s")
    print(f"  simulated to 1e-3, 2e6 prompts counted from {prompts}: {2e6 * one:.0f} s")


def main(smallest: bool = False) -> None:
    """Time both."""
    with jax.enable_x64(True):
        deep_limit(*((2, 2, 4) if smallest else (LAYERS, HEADS, DIM)))
        linear_layers(*((10, 4) if smallest else (1000, 256)))


if __name__ == "__main__":
    main("--smallest" in sys.argv)
