"""Does `SoftmaxAttention` on `Empirical` tokens cost more than softmax attention written by hand?

Both are compiled, use the same 100,000 tokens of dimension 8 in single precision, and return
V (softmax(Z U z) Z). Calls take turns in shuffled order, so that other load on the machine affects
all of them equally, and only medians are compared. The memory is the compiler's figure for each
program. A direct call also checks the query and dispatches from Python; a prompt of 10 tokens
shows this cost.

    python benchmarks/attend.py [--smallest]
"""

import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

import promptlimit as pl

LENGTH, FEW, DIM = 100_000, 10, 8
ROUNDS, WARM_UP = 1_000, 50
TARGET = 1.1


class Parameters(NamedTuple):
    """The arrays both programs see."""

    key_query: jax.Array
    value: jax.Array
    tokens: jax.Array
    query: jax.Array


@jax.jit
def by_hand(
    key_query: jax.Array, value: jax.Array, tokens: jax.Array, query: jax.Array
) -> jax.Array:
    """Return the textbook formula: V times the softmax-weighted mean of the tokens."""
    return value @ (jax.nn.softmax(tokens @ (key_query @ query)) @ tokens)


@jax.jit
def compiled(attention: pl.SoftmaxAttention, prompt: pl.Empirical, query: jax.Array) -> jax.Array:
    """Return the library's answer, as part of a program that a user compiles."""
    return attention(prompt, query)


def main(smallest: bool = False) -> None:
    """Print the ratios of time and memory, library to hand-written."""
    length, rounds = (100, 3) if smallest else (LENGTH, ROUNDS)
    print(f"softmax attention over L = {length:,} tokens, d = {DIM}, float32")
    print(f"medians of {rounds:,} alternating calls on {jax.devices()[0].device_kind}")
    times = median_times(calls_on(parameters(length)), rounds)
    base = times["by hand"]
    for name, seconds in times.items():
        print(f"  time    {name:16} {1e6 * seconds:8.0f} us   ratio {seconds / base:.3f}")
    print_memory(parameters(length))

    few = median_times(calls_on(parameters(FEW)), rounds)
    added, added_to_few = (1e6 * (t["called directly"] - t["compiled"]) for t in (times, few))
    print(f"  a direct call adds {added:.0f} us, and {added_to_few:.0f} us to L = {FEW} tokens")
    ratio = times["compiled"] / base
    verdict = "met" if ratio <= TARGET else "missed"
    print(f"  target: compiled / by hand <= {TARGET}: {verdict} with {ratio:.3f}")


def parameters(length: int) -> Parameters:
    """Return the same head and query for a prompt of any length."""
    keys = jax.random.split(jax.random.key(0), 4)
    return Parameters(
        key_query=jax.random.normal(keys[0], (DIM, DIM)) / DIM,
        value=jax.random.normal(keys[1], (DIM, DIM)),
        tokens=jax.random.normal(keys[2], (length, DIM)),
        query=jax.random.normal(keys[3], (DIM,)),
    )


def calls_on(given: Parameters) -> dict[str, Callable[[], jax.Array]]:
    """Return the contenders, after a look that they agree."""
    attention = pl.SoftmaxAttention(given.key_query, given.value)
    prompt = pl.Empirical(given.tokens)
    calls: dict[str, Callable[[], jax.Array]] = {
        "by hand": lambda: by_hand(*given),
        "compiled": lambda: compiled(attention, prompt, given.query),
        "called directly": lambda: attention(prompt, given.query),
    }
    want = np.asarray(calls["by hand"]())
    for call in calls.values():
        np.testing.assert_allclose(np.asarray(call()), want, rtol=1e-4, atol=1e-5)
    return calls


def median_times(calls: dict[str, Callable[[], jax.Array]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call; they take turns, in an order that changes."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    order = random.Random(0)  # noqa: S311  # shuffles turns, guards no secret
    for turn in range(WARM_UP + rounds):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter()
            calls[name]().block_until_ready()
            elapsed = time.perf_counter() - start
            if turn >= WARM_UP:
                seconds[name].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_memory(given: Parameters) -> None:
    """Print what the compiler reserves for the two programs, and the ratios."""
    attention = pl.SoftmaxAttention(given.key_query, given.value)
    bytes_of = {
        "by hand": memory_of(by_hand, *given),
        "compiled": memory_of(compiled, attention, pl.Empirical(given.tokens), given.query),
    }
    base, base_temporary = bytes_of["by hand"]
    for name, (total, temporary) in bytes_of.items():
        print(
            f"  memory  {name:16} {total / 1e6:8.3f} MB   ratio {total / base:.3f}"
            f"   (temporary {temporary / 1e6:.3f} MB, ratio {temporary / base_temporary:.3f})"
        )


def memory_of(function: Callable[..., jax.Array], *arguments: object) -> tuple[int, int]:
    """Return the bytes of a compiled function: all of them, and the temporary ones among them."""
    analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
    if analysis is None:
        raise SystemExit("error: this backend does not report the memory of a program")
    temporary = analysis.temp_size_in_bytes
    return analysis.argument_size_in_bytes + analysis.output_size_in_bytes + temporary, temporary


if __name__ == "__main__":
    main("--smallest" in sys.argv)
