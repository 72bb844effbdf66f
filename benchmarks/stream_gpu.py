"""How long does an NVIDIA GPU take for a generated prompt of a billion tokens, and ten?

Dimension 8, 16 queries, single precision. The floor is drawing the tokens, with the same generator
and nothing else, plus the multiply-adds at the vendor's rate for the card (67 Tflop/s for an H200).
It also reports memory, the deviation from the limit in standard deviations of the exact engine, and
whether chunks change a bit.

    python benchmarks/stream_gpu.py [--smallest | PEAK_TFLOPS]
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl
from promptlimit.results import StreamedAttention
from promptlimit.streaming._blocks import BlockPart, StandardNormals
from promptlimit.streaming._sums import LEAF

DIM, QUERIES, LEAVES = 8, 16, 4096


def main(smallest: bool = False) -> None:
    """Print the table."""
    lengths, leaves, short = (10**9, 10**10), LEAVES, 10**8 + 1
    if smallest:
        lengths, leaves, short = (10**4,), 2, 5001
    peak = float(sys.argv[1]) if len(sys.argv) > 1 and not smallest else 67.0
    device = jax.devices()[0]
    print(f"{device.device_kind}, jax {jax.__version__}")
    with jax.enable_x64(True):
        draw = _drawing_alone(leaves)
    print(f"tokens drawn and written alone: {1e9 * draw:.1f} ms a 1e9, {DIM / draw / 1e6:.0f} G/s")
    head = pl.SoftmaxAttention(np.eye(DIM), np.eye(DIM))
    law = pl.Gaussian(np.zeros(DIM), np.eye(DIM))
    queries = 0.35 * np.random.default_rng(0).standard_normal((QUERIES, DIM))
    for covariance in (True, False):
        sums = 2 * DIM + 2 + (DIM * (DIM + 1) // 2 if covariance else 0)
        floor = 1e9 * draw + 2 * sums * QUERIES / peak
        print(
            f"covariance {covariance}: {sums * QUERIES} multiply-adds a token, floor {floor:.1f} ms"
        )
        for length in lengths:
            prompt = pl.streaming.Generated(law, length, key=jax.random.key(0))
            pl.stream(head, prompt, queries, covariance=covariance)
            times = []
            for _ in range(3):
                start = time.perf_counter()
                found = pl.stream(head, prompt, queries, covariance=covariance)
                times.append(1e3 * (time.perf_counter() - start) * 1e9 / length)
            took = min(times)
            memory = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9
            print(
                f"  {length:.0e} tokens: {took:.1f} ms a 1e9 (to {max(times):.1f}); "
                f"{100 * floor / took:.0f}% of the floor, {100e9 * draw / took:.0f}% of drawing "
                f"alone; peak memory {memory:.2f} GB"
            )
            _compare(head, law, queries, found, length)
    prompt = pl.streaming.Generated(law, 3 * short, key=jax.random.key(1))
    chunks = [pl.stream(head, prompt, queries, [short // 100, short], chunk=c) for c in (1, 2, 5)]
    same = all(np.array_equal(*map(np.asarray, (chunks[0].cov, each.cov))) for each in chunks)
    alone = pl.stream(head, pl.streaming.Generated(law, short, key=jax.random.key(1)), queries)
    prefix = np.array_equal(alone.output[-1], chunks[0].output[1])
    print(f"chunks of 1, 2 and 5 blocks: the same bits {same}; a prefix as a prompt: {prefix}")


def _drawing_alone(leaves: int) -> float:
    """Return milliseconds a token."""
    source = StandardNormals((jnp.uint32(1), jnp.uint32(2)), DIM)
    numbers = jnp.arange(leaves, dtype=jnp.int32)
    draw = jax.jit(lambda part: jax.vmap(lambda leaf: source.columns(part, leaf))(numbers))
    valid = jnp.int32(leaves * LEAF)
    jax.block_until_ready(draw(BlockPart(jnp.uint32(0), valid, None)))
    start = time.perf_counter()
    for i in range(32):
        last = draw(BlockPart(jnp.uint32(i * leaves), valid, None))
    jax.block_until_ready(last)
    return 1e3 * (time.perf_counter() - start) / (32 * leaves * LEAF)


def _compare(
    head: pl.SoftmaxAttention,
    law: pl.Gaussian,
    queries: np.ndarray,
    found: StreamedAttention,
    length: int,
) -> None:
    """Print deviations from the exact mean in exact standard deviations."""
    scores, tokens = [], []
    for i, query in enumerate(queries):
        exact = pl.prompt_moments(head, law, query, length)
        deviation = found.output[-1, i] - exact.mean
        scores.append(deviation @ np.linalg.solve(exact.cov, deviation))
        tokens.append(found.effective_tokens[-1, i] / exact.effective_tokens)
    print(
        f"    squared deviation in exact covariances: mean {np.mean(scores):.1f}, {DIM} expected; "
        f"effective tokens to the exact ones: {min(tokens):.5f} to {max(tokens):.5f}"
    )


if __name__ == "__main__":
    main("--smallest" in sys.argv)
