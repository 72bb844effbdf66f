"""What do exact entropies and needles cost, against simulation to the same accuracy?

Prints a small table; nothing is asserted. The simulation takes as many prompts as bring its
standard error to a thousandth of the entropy's own deviation from ln L: counted from the spread of
1000, not run. Processor seconds.
"""

import math
import sys
import time
from collections.abc import Callable

import numpy as np

import promptlimit as pl

LENGTHS = np.concatenate([np.arange(10, 100, 10), np.arange(100, 1001, 100)])
PROMPTS, TOLERANCE = 1000, 1e-3


def best_seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the fewest processor seconds of several runs, after one to warm up."""
    action()
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        action()
        seconds.append(time.process_time() - started)
    return min(seconds)


def tables(count: int, many: np.ndarray, repeats: int) -> None:
    """Time tables over sharpness and length, and many lengths of one head."""
    sharpness = np.geomspace(0.05, 8.0, count)[:, None]
    scores = np.random.default_rng(0).normal(size=4096)
    for label, cells, action in (
        (
            f"{count} sharpnesses to 8 x 19 lengths",
            19 * count,
            lambda: pl.length_statistics(sharpness, LENGTHS),
        ),
        (
            f"{many.size} lengths to 1e12, sharpness 2",
            many.size,
            lambda: pl.length_statistics(2.0, many),
        ),
        (
            "the same with a needle",
            many.size,
            lambda: pl.length_statistics(2.0, many, fixed_scores=[9]),
        ),
        (
            "a list of 4096 scores, 2 lengths",
            2,
            lambda: pl.lengths.entropy_prediction(scores, [64, 65536]),
        ),
        ("a needle's temperature", 1, lambda: pl.inverse_temperature(1, 1e6, margin=6, weight=0.5)),
        (
            "the table of rules for a head",
            10,
            lambda: pl.lengths.temperature_table(2.0, 8192, 131072),
        ),
    ):
        seconds = best_seconds(action, repeats)
        print(f"{label:<42} {seconds * 1e3:9.1f} ms {cells / seconds:9.0f} cells a second")


def simulation(prompts: int) -> None:
    """Count the prompts that would say the same, at sharpness 2 and 1000 tokens."""
    sigma, length = 2.0, 1000
    exact = best_seconds(lambda: pl.length_statistics(sigma, length), 20)
    rng = np.random.default_rng(0)
    started = time.process_time()
    scores = sigma * rng.standard_normal((prompts, length))
    top = scores.max(axis=1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(axis=1)
    entropy = top[:, 0] + np.log(total) - (powers * scores).sum(axis=1) / total
    each = (time.process_time() - started) / prompts
    deviation = math.log(length) - entropy.mean()
    needed = (entropy.std() / (TOLERANCE * deviation)) ** 2
    print(f"{'one cell exactly, all statistics':<42} {exact * 1e3:9.1f} ms")
    print(f"{'its mean entropy to 1e-3 by simulation':<42} {needed * each:9.1f} s", end=" ")
    print(f"{needed:9.1e} prompts, {needed * each / exact:.0f} times as long")
    variance = (2.0 / TOLERANCE**2) * each
    print(f"{'its variance to 1e-3 by simulation':<42} {variance:9.1f} s", end=" ")
    print(f"{2.0 / TOLERANCE**2:9.1e} prompts, {variance / exact:.0f} times as long")


def main(smallest: bool = False) -> None:
    """Time both."""
    lengths = np.geomspace(2, 1e12, 4 if smallest else 1000).round()
    tables(2 if smallest else 64, lengths, repeats=1 if smallest else 5)
    simulation(10 if smallest else PROMPTS)


if __name__ == "__main__":
    main("--smallest" in sys.argv)
