"""What does the exact excess of a denoiser cost, against simulation to the same accuracy?

Prints a small table; nothing is asserted. The simulation takes as many prompts as bring its
standard error to a thousandth of the excess: counted from the spread of 4096, not run.
"""

import sys
import time

import jax
import numpy as np

import promptlimit as pl

LENGTHS = np.array([10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e8, 1e9, 1e12])
PROMPTS = 4096


def law(dim: int) -> pl.Denoising:
    """Return the law of the paper's Figure 2, in more dimensions."""
    means = np.zeros((2, dim))
    means[0, 0] = means[1, 1] = 3.0
    return pl.Denoising(means, [0.5, 0.5], within_variance=1, noise_variance=4)


def main(smallest: bool = False) -> None:
    """Time nine lengths in two and ten dimensions, the best layer, and simulated prompts."""
    lengths, prompts = (LENGTHS[:3], 8) if smallest else (LENGTHS, PROMPTS)
    print(f"{'what':46s} {'seconds':>9s} {'CPU':>9s}")
    for dim in (2,) if smallest else (2, 10):
        task = law(dim)
        with jax.enable_x64(True):
            layer = pl.tasks.bayes_layer(task)
        started, used = time.perf_counter(), time.process_time()
        excess = pl.bayes_excess(layer, task, lengths)
        report(f"exact excess, {len(lengths)} lengths, d = {dim}", started, used)
        key = jax.random.key(0)
        pl.risk(layer, task, 1000, kind="estimate", key=key, samples=prompts)
        started, used = time.perf_counter(), time.process_time()
        estimate = pl.risk(layer, task, 1000, kind="estimate", key=key, samples=prompts)
        seconds = report(f"{prompts} prompts of 1000 tokens, d = {dim}", started, used)
        wanted = (
            2 * float(estimate.error) / (1e-3 * float(np.asarray(excess.mse)[2]))
        ) ** 2 * prompts
        print(f"  a thousandth of the excess takes {wanted:.2g} prompts,", end=" ")
        print(f"{wanted / prompts * seconds:.2g} s for one length")
    if smallest:
        return
    started, used = time.perf_counter(), time.process_time()
    best = pl.best_layer(law(2), 1000)
    report("best layer at L = 1000, d = 2", started, used)
    gain = float(excess_at(law(2), 1000)) / float(best.mse)
    print(f"  its excess is {gain:.2f} times below that of the layer of Bayes")


def excess_at(task: pl.Denoising, length: int) -> float | np.ndarray:
    """Return the excess of the layer of Bayes."""
    with jax.enable_x64(True):
        layer = pl.tasks.bayes_layer(task)
    return pl.bayes_excess(layer, task, length).mse


def report(what: str, started: float, used: float) -> float:
    """Print a line of the table, and return its seconds."""
    seconds = time.perf_counter() - started
    print(f"{what:46s} {seconds:9.2f} {time.process_time() - used:9.2f}")
    return seconds


if __name__ == "__main__":
    main("--smallest" in sys.argv)
