"""What does a stream cost: seconds as a sum of terms, fitted to runs on this device?

Per token: drawing (a term for each pair of normals) or reading (a term for each byte), and for each
query a score (a term for each dimension), an exponential, and second moments (a term for each pair
of dimensions). Constants are fitted to relative errors, none below zero; the table says how well
single runs are met.

    taskset -c 0 python benchmarks/stream_cost.py [--smallest | TOKENS]
"""

import itertools
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
from scipy.optimize import nnls

import promptlimit as pl
from promptlimit.streaming._sums import BlockTree, TiltedSums

TERMS = (
    "start, a run",
    "drawing, a pair of normals",
    "reading, a byte",
    "scores and means, a query and dimension",
    "exponential, a query",
    "products of coordinates, a pair of dimensions",
    "second moments, a query and pair of dimensions",
)


def main(smallest: bool = False) -> None:
    """Print the constants, the runs and the time of the host per block."""
    length, dims, counts = 3 * 10**6, (2, 4, 8), (1, 4, 16)
    if smallest:
        length, dims, counts = 10**4, (2,), (1,)
    elif len(sys.argv) > 1:
        length = int(float(sys.argv[1]))
    rows, seconds, names = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        grid = itertools.product(("drawn", "stored"), dims, counts, (False, True))
        for source, dim, queries, second in grid:
            for tokens in (length // 10, length):
                took = _timed(Path(folder), source, tokens, dim, queries, second=second)
                rows.append(_terms(source, tokens, dim, queries, second=second))
                seconds.append(took)
                names.append(f"{source} {tokens} tokens, d = {dim}, {queries} queries, {second}")
    measured = np.array(seconds)
    constants, _ = nnls(np.array(rows) / measured[:, None], np.ones(len(rows)))
    for term, constant in zip(TERMS, constants, strict=True):
        unit, scale = ("ms", 1e3) if term == TERMS[0] else ("ns", 1e9)
        print(f"{term:48s} {scale * constant:8.3f} {unit}")
    ratio = np.array(rows) @ constants / measured
    worst = int(np.argmax(np.abs(np.log(ratio))))
    spread = np.exp(np.std(np.log(ratio)))
    print(f"{len(rows)} runs, predicted to measured: typically within a factor {spread:.2f}")
    print(f"from {ratio.min():.2f} to {ratio.max():.2f}; worst: {names[worst]}")
    print(f"host, a block at 16 queries in 8 dimensions: {1e6 * _host():.0f} microseconds")


def _terms(source: str, tokens: int, dim: int, queries: int, *, second: bool) -> list[float]:
    pairs = dim * (dim + 1) / 2 if second else 0.0
    drawn = (dim + 1) // 2 if source == "drawn" else 0.0
    read = 4.0 * dim if source == "stored" else 0.0
    per_token = [drawn, read, queries * dim, queries, pairs, queries * pairs]
    return [1.0, *(tokens * each for each in per_token)]


def _timed(
    folder: Path, source: str, tokens: int, dim: int, queries: int, *, second: bool
) -> float:
    law = pl.Gaussian(np.zeros(dim), np.eye(dim))
    prompt = pl.streaming.Generated(law, tokens, key=jax.random.key(0))
    if source == "stored":
        prompt = folder / f"{tokens}x{dim}.npy"
        if not prompt.exists():
            rng = np.random.default_rng(0)
            np.save(prompt, rng.standard_normal((tokens, dim), dtype=np.float32))
    head = pl.SoftmaxAttention(np.eye(dim), np.eye(dim))
    asked = 0.3 * np.random.default_rng(1).standard_normal((queries, dim))
    times = []
    for _ in range(4):
        start = time.perf_counter()
        pl.stream(head, prompt, asked, covariance=second)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def _host() -> float:
    """Return the seconds it takes to add a block to the tree."""
    tree, count = BlockTree(), 512
    one = TiltedSums(np.zeros(16), np.ones(16), np.ones(16), np.ones((16, 8)), np.ones((16, 36)))
    start = time.perf_counter()
    for i in range(count):
        tree.add(i, one)
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main("--smallest" in sys.argv)
