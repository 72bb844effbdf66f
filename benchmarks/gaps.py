"""How long do averaged gaps take: a curve, a required length, and against sampling?

Prints a small table; nothing is asserted. Run on an otherwise idle machine.
"""

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

import promptlimit as pl

LENGTHS = np.concatenate([np.arange(10, 100, 10), np.arange(100, 1001, 100)])
ACCURACY = 0.01


def best_seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the shortest of several runs, after one to warm up."""
    action()
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def standard(dim: int, tau: float) -> tuple[pl.SoftmaxAttention, pl.Gaussian, pl.Gaussian]:
    """Return softmax attention with U = tau I over standard normal tokens and queries."""
    normal = pl.Gaussian(np.zeros(dim), np.eye(dim))
    return pl.SoftmaxAttention(tau * np.eye(dim), np.eye(dim)), normal, normal


def anisotropic(dim: int) -> tuple[pl.SoftmaxAttention, pl.Gaussian, pl.Gaussian]:
    """Return a random head over correlated tokens and shifted, correlated queries."""
    rng = np.random.default_rng(0)
    root, spread = rng.normal(size=(2, dim, dim)) / np.sqrt(dim)
    tokens = pl.Gaussian(rng.normal(size=dim), root @ root.T)
    queries = pl.Gaussian(0.2 * rng.normal(size=dim), spread @ spread.T)
    key_query, value = 0.4 * rng.normal(size=(2, dim, dim)) / np.sqrt(dim)
    return pl.SoftmaxAttention(key_query, value), tokens, queries


def row(label: str, seconds: float, note: str = "") -> None:
    """Print one line."""
    print(f"{label:<60} {seconds:8.3f} s   {note}")


def curves(given_lengths: np.ndarray, repeats: int) -> None:
    """Time curves over lengths."""
    count = len(given_lengths)
    for label, problem in (("tau 0.5", standard(5, 0.5)), ("anisotropic", anisotropic(5))):
        gap = pl.output_gap(*problem, given_lengths)
        worst = float((gap.error / gap.value).max())
        seconds = best_seconds(partial(pl.output_gap, *problem, given_lengths), repeats)
        row(f"output gap, d = 5, {label}, {count} lengths", seconds, f"error {worst:.0e}")
        gradient = partial(pl.gradient_gap, *problem, given_lengths, wrt="key_query")
        seconds = best_seconds(gradient, repeats)
        row(f"key-query gradient gap, d = 5, {label}, {count} lengths", seconds)


def many_dimensions() -> None:
    """Time gaps in 64 dimensions at one length."""
    for tau in (0.5, 2.0):
        seconds = best_seconds(lambda t=tau: pl.output_gap(*standard(64, t), [1e12]), 1)
        row(f"output gap, d = 64, tau {tau}, L = 1e12", seconds)
    seconds = best_seconds(lambda: pl.gradient_gap(*anisotropic(64), [1e12], wrt="key_query"), 1)
    row("key-query gradient gap, d = 64, anisotropic, L = 1e12", seconds)


def required_lengths(dim: int, taus: tuple[float, ...], repeats: int) -> None:
    """Time required lengths."""
    for tau in taus:
        problem = standard(dim, tau)
        found = pl.required_length(*problem, 0.01)
        seconds = best_seconds(partial(pl.required_length, *problem, 0.01), repeats)
        row(f"required length, d = {dim}, tau {tau}, all kinds", seconds, found.describe("exact"))


def sampling(lengths: np.ndarray, samples: int) -> None:
    """Time simulated prompts to one per cent at the longest, extrapolated from some of them."""
    problem = standard(5, 0.5)
    seconds = best_seconds(lambda: pl.output_gap(*problem, lengths), 1)
    options: dict[str, Any] = {"kind": "estimate", "key": jax.random.key(0), "samples": samples}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn = pl.output_gap(*problem, lengths, **options)
        sampled = best_seconds(lambda: pl.output_gap(*problem, lengths, **options), 1)
    needed = float((drawn.error / drawn.value)[-1] / ACCURACY) ** 2
    longest = f"L = {lengths[-1]}"
    row(f"the same lengths to 1% at {longest} by sampling", needed * sampled, "extrapolated")
    print(f"ratio to the exact curve {needed * sampled / seconds:,.0f}")


def main(smallest: bool = False) -> None:
    """Time all of them."""
    jax.config.update("jax_enable_x64", True)
    repeats = 1 if smallest else 3
    curves(LENGTHS[:1] if smallest else LENGTHS, repeats)
    if not smallest:
        many_dimensions()
    required_lengths(*((2, (0.1,)) if smallest else (16, (0.1, 0.3, 1.0))), repeats)
    sampling(LENGTHS[:1] if smallest else LENGTHS, 64 if smallest else 1000)


if __name__ == "__main__":
    main("--smallest" in sys.argv)
