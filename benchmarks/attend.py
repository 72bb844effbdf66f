"""Does `SoftmaxAttention` on `Empirical` tokens cost more than softmax attention written by hand?

Both are compiled, see the same 100,000 tokens of dimension 8 in single precision, and return
V softmax(Z U z) Z. Their calls alternate, so that whatever else the machine does falls on both, and
only medians are compared. The memory is what the compiler says each program needs.

    python benchmarks/attend.py
"""

import statistics
import time
from collections.abc import Callable

import jax
import numpy as np

import promptlimit as pl

LENGTH, DIM = 100_000, 8
ROUNDS, WARM_UP = 1_000, 50
TARGET = 1.1


@jax.jit
def by_hand(
    key_query: jax.Array, value: jax.Array, tokens: jax.Array, query: jax.Array
) -> jax.Array:
    """Return what a textbook says: V times the softmax-weighted mean of the tokens."""
    return value @ (jax.nn.softmax(tokens @ (key_query @ query)) @ tokens)


@jax.jit
def compiled(attention: pl.SoftmaxAttention, prompt: pl.Empirical, query: jax.Array) -> jax.Array:
    """Return the library's answer, as part of a program that a user compiles."""
    return attention(prompt, query)


def main() -> None:
    """Print the ratios of time and memory, library to hand-written."""
    keys = jax.random.split(jax.random.key(0), 4)
    key_query = jax.random.normal(keys[0], (DIM, DIM)) / DIM
    value = jax.random.normal(keys[1], (DIM, DIM))
    tokens = jax.random.normal(keys[2], (LENGTH, DIM))
    query = jax.random.normal(keys[3], (DIM,))
    attention, prompt = pl.SoftmaxAttention(key_query, value), pl.Empirical(tokens)

    calls: dict[str, Callable[[], jax.Array]] = {
        "by hand": lambda: by_hand(key_query, value, tokens, query),
        "compiled by the user": lambda: compiled(attention, prompt, query),
        "called directly": lambda: attention(prompt, query),
    }
    answers = [np.asarray(call()) for call in calls.values()]
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-4, atol=1e-5)

    times = median_times(calls)
    memory = {
        "by hand": memory_of(by_hand, key_query, value, tokens, query),
        "compiled by the user": memory_of(compiled, attention, prompt, query),
    }
    print(f"softmax attention over L = {LENGTH:,} tokens, d = {DIM}, {tokens.dtype}")
    print(f"medians of {ROUNDS:,} alternating calls on {jax.devices()[0].device_kind}")
    base = times["by hand"]
    for name, seconds in times.items():
        print(f"  time    {name:22} {1e6 * seconds:8.0f} us   ratio {seconds / base:.3f}")
    for name, (peak, temporary) in memory.items():
        ratios = peak / memory["by hand"][0], temporary / memory["by hand"][1]
        print(
            f"  memory  {name:22} peak {peak / 1e6:.3f} MB, ratio {ratios[0]:.3f};"
            f" temporary {temporary / 1e6:.3f} MB, ratio {ratios[1]:.3f}"
        )
    print(f"  target: ratios of at most {TARGET}")


def median_times(calls: dict[str, Callable[[], jax.Array]]) -> dict[str, float]:
    """Return the median seconds of each call; they take turns, and turns at going first."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(WARM_UP + ROUNDS):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.perf_counter()
            calls[name]().block_until_ready()
            elapsed = time.perf_counter() - start
            if turn >= WARM_UP:
                seconds[name].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def memory_of(function: Callable[..., jax.Array], *arguments: object) -> tuple[int, int]:
    """Return the bytes a compiled function holds at its peak, and of those the temporary ones."""
    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    if analysis is None:
        raise SystemExit("error: this backend does not report the memory of a program")
    return analysis.peak_memory_in_bytes, analysis.temp_size_in_bytes


if __name__ == "__main__":
    main()
