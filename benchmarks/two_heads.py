"""What does the risk of two softmax heads in context cost, exactly and by simulated prompts?

The simulation is the usual loop over batches of prompts, in plain NumPy. It stops after a fixed
number of prompts; the time to an error extrapolates its standard error, which falls with the square
root of the time. Contenders run in one process. Prints a small table; nothing is asserted.

    taskset -c 0 python benchmarks/two_heads.py [--smallest]
"""

import math
import sys
import time

import numpy as np

import promptlimit as pl

DIM, NOISE, PRIOR = 5, 0.1, 0.2
SCORES, GAINS = (0.3, -0.3), (1.2, -1.2)
BATCH, BATCHES = 4096, 40


def simulated(length: int, batches: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return the mean squared error over simulated prompts, and its standard error."""
    means = []
    for _ in range(batches):
        w = math.sqrt(PRIOR) * rng.standard_normal((BATCH, DIM, 1))
        x = rng.standard_normal((BATCH, length, DIM))
        y = (x @ w)[:, :, 0] + math.sqrt(NOISE) * rng.standard_normal((BATCH, length))
        query = rng.standard_normal((BATCH, DIM, 1))
        target = (query[:, :, 0] * w[:, :, 0]).sum(axis=1)
        target += math.sqrt(NOISE) * rng.standard_normal(BATCH)
        score = (x @ query)[:, :, 0]
        predicted = np.zeros(BATCH)
        for scale, gain in zip(SCORES, GAINS, strict=True):
            weights = np.exp(scale * score)
            predicted += gain * (weights * y).sum(axis=1) / weights.sum(axis=1)
        means.append(np.mean((predicted - target) ** 2))
    return float(np.mean(means)), float(np.std(means, ddof=1) / math.sqrt(batches))


def main(smallest: bool = False) -> None:
    """Print time and error of both contenders at several lengths."""
    task = pl.LinearRegression(np.eye(DIM), noise_variance=NOISE, prior_variance=PRIOR)
    scores, value = np.diag([1.0] * DIM + [0.0]), np.diag([0.0] * DIM + [1.0])
    heads = pl.MultiHead(
        [pl.SoftmaxAttention(u * scores, b * value) for u, b in zip(SCORES, GAINS, strict=True)]
    )
    rng = np.random.default_rng(0)
    pl.risk(heads, task, 10)
    print("L  exact  error  s  simulated  error  s  |difference|/error  s to 1e-4")
    for length in (10,) if smallest else (10, 40, 160):
        started = time.perf_counter()
        exact = pl.risk(heads, task, length)
        exact_seconds = time.perf_counter() - started
        started = time.perf_counter()
        mean, error = simulated(length, 2 if smallest else BATCHES, rng)
        seconds = time.perf_counter() - started
        wanted = seconds * (error / (1e-4 * mean)) ** 2
        print(
            f"{length:4d} {exact.mse:.8f} {exact.mse_error:.0e} {exact_seconds:.2f} {mean:.5f} "
            f"{error:.0e} {seconds:.2f} {abs(mean - float(exact.mse)) / error:.1f} {wanted:.0f}"
        )


if __name__ == "__main__":
    main("--smallest" in sys.argv)
