"""What does the best temperature of single-location regression cost, exactly and by SGD?

The exact contender minimises the exact risk over the inverse temperature beta. The other one is the
usual loop: SGD on new prompts, in plain NumPy with the gradient by hand, from beta = 0.5. Both are
compared with the truth, beta = sqrt(signal), and with the exact risk at the beta that they find.

    taskset -c 0 python benchmarks/single_location.py [--smallest]
"""

import math
import sys
import time

import numpy as np
from scipy.optimize import minimize_scalar

import promptlimit as pl

SIGNAL, BATCH, RATE = 9.0, 256, 2.0


def descend(length: int, steps: int, rng: np.random.Generator) -> float:
    """Return the mean of beta over the second half of SGD on the squared error."""
    beta, kept = 0.5, []
    for step in range(steps):
        scores = rng.standard_normal((BATCH, length))
        scores[:, 0] += math.sqrt(SIGNAL)
        values = rng.standard_normal((BATCH, length))
        weights = np.exp(beta * (scores - scores.max(axis=1, keepdims=True)))
        weights /= weights.sum(axis=1, keepdims=True)
        output = (weights * values).sum(axis=1)
        mean = (weights * scores).sum(axis=1)
        slope = (weights * scores * values).sum(axis=1) - mean * output
        beta -= RATE * float(np.mean((output - values[:, 0]) * slope))
        if 2 * step >= steps:
            kept.append(beta)
    return float(np.mean(kept))


def main(smallest: bool = False) -> None:
    """Print beta, its error and the time of both contenders at several lengths."""
    task, rng = pl.tasks.SingleLocation(SIGNAL), np.random.default_rng(0)
    pl.risk(task.head(1.0), task, 10)
    print("L  contender  beta  |beta - sqrt(signal)|  excess of the mse over Bayes  s")
    for length in (10,) if smallest else (10, 100, 1000):
        bayes = float(pl.bayes_risk(task, length).mse)
        started = time.perf_counter()
        found = minimize_scalar(
            lambda beta, length=length: float(pl.risk(task.head(beta), task, length).mse),
            bounds=(0.1, 8.0),
            method="bounded",
            options={"maxiter": 3 if smallest else 500},
        )
        rows = [("exact", float(found.x), time.perf_counter() - started)]
        started = time.perf_counter()
        beta = descend(length, 20 if smallest else 2000, rng)
        rows.append(("SGD", beta, time.perf_counter() - started))
        for name, beta, seconds in rows:
            excess = float(pl.risk(task.head(beta), task, length).mse) - bayes
            distance = abs(beta - math.sqrt(SIGNAL))
            print(
                f"{length:4d}  {name:5s}  {beta:.6f}  {distance:.1e}  {excess:.1e}  {seconds:.2f}"
            )


if __name__ == "__main__":
    main("--smallest" in sys.argv)
