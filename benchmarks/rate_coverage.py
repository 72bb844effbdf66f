"""How often does the interval of `fit_rate` contain the exponent, and which verdicts occur?

Prints a small table of 500 repeats per row; nothing is asserted.
"""

import sys
from collections import Counter

import numpy as np

from promptlimit.concentration._fit_rate import fit_rate

LENGTHS = 10.0 ** np.linspace(2, 8, 7)
REPEATS = 500


def noises() -> dict[str, np.ndarray]:
    """Return relative covariances, from independent to nearly equal noise."""
    one, same = np.eye(LENGTHS.size), np.ones((LENGTHS.size, LENGTHS.size))
    return {
        "independent, 0.1%": 1e-6 * one,
        "independent, 1%": 1e-4 * one,
        "independent, 5%": 25e-4 * one,
        "independent, 0.1% to 3%": np.diag(np.geomspace(1e-6, 1e-3, LENGTHS.size)),
        "correlation 0.9, 5%": 25e-4 * (0.1 * one + 0.9 * same),
        "correlation 0.999, 2%": 4e-4 * (0.001 * one + 0.999 * same),
        "correlation 1 - 1e-9, 5%": 25e-4 * (1e-9 * one + (1 - 1e-9) * same),
    }


def covered(
    relative: np.ndarray, repeats: int, rng: np.random.Generator
) -> tuple[float, Counter[str]]:
    """Return how often a power law's exponent is in its interval, and the verdicts."""
    truth = 3.0 / LENGTHS
    spread, axes = np.linalg.eigh(relative)
    root = axes * np.sqrt(np.maximum(spread, 0.0))
    hits, verdicts = 0, Counter()
    for _ in range(repeats):
        values = truth * (1 + root @ rng.standard_normal(LENGTHS.size))
        fit = fit_rate(LENGTHS, values, cov=relative * np.outer(truth, truth))
        hits += fit.exponent_interval[0] <= 1.0 <= fit.exponent_interval[1]
        verdicts[fit.status] += 1
    return hits / repeats, verdicts


def main(smallest: bool = False) -> None:
    """Print a line for each kind of noise."""
    generator = np.random.default_rng(0)
    for label, covariance in noises().items():
        share, counts = covered(covariance, 3 if smallest else REPEATS, generator)
        print(f"{label:<28} {100 * share:5.1f}%   {dict(counts)}")


if __name__ == "__main__":
    main("--smallest" in sys.argv)
