"""How long do weight statistics take: tables, one point inside jit, and against sampling?

Prints a small table; nothing is asserted. Run on an otherwise idle machine.
"""

import resource
import sys
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from promptlimit.weights._interpolant import weight_interpolant
from promptlimit.weights._weight_statistics import weight_statistics

LENGTHS = np.concatenate([np.arange(10, 100, 10), np.arange(100, 1001, 100)])


def best_seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the shortest of several runs, after one to warm up."""
    action()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def peak_megabytes() -> float:
    """Return the most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tables(count: int) -> None:
    """Time tables of sharpnesses and 19 lengths."""
    for largest in (8.0, 40.0):
        sharpness = np.geomspace(0.05, largest, count)[:, None]
        before = peak_megabytes()
        seconds = best_seconds(lambda grid=sharpness: weight_statistics(grid, LENGTHS), 5)
        grown = peak_megabytes() - before
        label = f"table {count} x {LENGTHS.size}, sharpness 0.05 to {largest:g}"
        print(f"{label:<48} {seconds:8.3f} s   {grown:6.0f} MB more at the peak")


def interpolant(points: int, repeats: int) -> None:
    """Time one point inside jit, two statistics with their derivatives."""
    started = time.perf_counter()
    statistics = weight_interpolant(1000, statistics=("participation", "score_error"))
    print(f"{'interpolant up to sharpness 8, built':<48} {time.perf_counter() - started:8.3f} s")

    def both(squared: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = statistics(squared)
        return found["participation"], found["score_error"]

    with jax.enable_x64(True):
        squared = jnp.asarray(np.random.default_rng(0).uniform(0.0, 64.0, points))
        ones = jnp.ones_like(squared)
        function = jax.jit(lambda s: jax.jvp(both, (s,), (ones,)))
        seconds = best_seconds(lambda: jax.block_until_ready(function(squared)), repeats)
    label = "two statistics and derivatives inside jit"
    print(f"{label:<48} {seconds / squared.size * 1e9:8.1f} ns a point, batches of {points:,}")


def sampling(prompts: int) -> None:
    """Draw prompts until E(A - sigma)^2 is known to 1e-3, L = 1000, sharpness 2."""
    sharpness, length, tolerance = 2.0, 1000, 1e-3
    exact = best_seconds(lambda: weight_statistics(sharpness, length), 20)
    rng = np.random.default_rng(0)
    started, draws = time.perf_counter(), []
    for _ in range(8):
        g = rng.standard_normal((prompts, length))
        p = np.exp(sharpness * (g - g.max(axis=1, keepdims=True)))
        draws.append((((p * g).sum(axis=1) / p.sum(axis=1)) - sharpness) ** 2)
    each = (time.perf_counter() - started) / (8 * prompts)
    errors = np.concatenate(draws)
    needed = (errors.std() / errors.mean() / tolerance) ** 2
    print(f"{'one point exactly, all statistics':<48} {exact * 1e3:8.2f} ms")
    print(f"{'the same to 1e-3 by sampling':<48} {needed * each:8.1f} s   {needed:.1e} prompts")
    print(f"{'ratio':<48} {needed * each / exact:8.0f}")


def main(smallest: bool = False) -> None:
    """Time all of them."""
    tables(2 if smallest else 64)
    interpolant(100 if smallest else 100_000, repeats=2 if smallest else 200)
    sampling(10 if smallest else 1000)


if __name__ == "__main__":
    main("--smallest" in sys.argv)
