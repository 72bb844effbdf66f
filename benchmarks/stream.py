"""Is a stream from a file on disk as fast as a plain pass over it in NumPy?

A memory-mapped array of 1e7 tokens in 8 dimensions. The pass in NumPy adds up the same sums, block
by block, with a running maximum. `tokens.sum(axis=0)` times reading only. At ratios above 1 the
stream is faster. Each uses the one core that taskset selects.

    taskset -c 0 python benchmarks/stream.py [--smallest | TOKENS]
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402  # threads are counted when it loads

import promptlimit as pl  # noqa: E402

DIM, BLOCK, TURNS = 8, 2**15, 5


def main(smallest: bool = False) -> None:
    """Print the table."""
    length = 10**7
    if smallest:
        length = 10**4
    elif len(sys.argv) > 1:
        length = int(float(sys.argv[1]))
    head = pl.SoftmaxAttention(np.eye(DIM), np.eye(DIM))
    with tempfile.TemporaryDirectory() as folder:
        print("dtype    queries  covariance   stream    NumPy   ratio   reading alone   ratio")
        for dtype in ("float32", "float64"):
            path = _written(Path(folder) / f"{dtype}.npy", length, dtype)
            for count in (1,) if smallest else (1, 16):
                queries = 0.35 * np.random.default_rng(1).standard_normal((count, DIM))
                for second in (False, True):
                    runs = (
                        lambda: pl.stream(head, path, queries, covariance=second),  # noqa: B023
                        lambda: _plain(path, queries, second=second),  # noqa: B023
                        lambda: np.load(path, mmap_mode="r").sum(axis=0),  # noqa: B023
                    )
                    ours, theirs, reading = _medians(runs, 1 if smallest else TURNS)
                    print(
                        f"{dtype}  {count:7d}  {second!s:10s} {ours:8.2f} s {theirs:6.2f} s "
                        f"{theirs / ours:6.2f} {reading:12.2f} s {reading / ours:10.2f}",
                        flush=True,
                    )


def _written(path: Path, length: int, dtype: str) -> Path:
    tokens = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(length, DIM))
    rng = np.random.default_rng(0)
    for start in range(0, length, 10**6):
        stop = min(start + 10**6, length)
        tokens[start:stop] = rng.standard_normal((stop - start, DIM))
    tokens.flush()
    return path


def _plain(path: Path, queries: np.ndarray, *, second: bool) -> np.ndarray:
    """Return tilted means as one would write it; the other sums are made and left."""
    tokens = np.load(path, mmap_mode="r")
    tilts = queries.astype(tokens.dtype)
    top, mass = np.full(len(tilts), -np.inf), np.zeros(len(tilts))
    square, first = np.zeros(len(tilts)), np.zeros((len(tilts), DIM))
    moments = np.zeros((len(tilts), DIM * DIM))
    for start in range(0, len(tokens), BLOCK):
        block = np.asarray(tokens[start : start + BLOCK])
        scores = tilts @ block.T
        new = np.maximum(top, scores.max(axis=1))
        weights = np.exp(scores - new.astype(tokens.dtype)[:, None])
        scale = np.exp(top - new)
        mass = mass * scale + weights.sum(axis=1)
        square = square * scale**2 + (weights**2).sum(axis=1)
        first = first * scale[:, None] + weights @ block
        if second:
            products = (block[:, :, None] * block[:, None, :]).reshape(len(block), -1)
            moments = moments * scale[:, None] + weights @ products
        top = new
    return first / mass[:, None]


def _medians(runs: tuple[Callable[[], object], ...], turns: int) -> list[float]:
    """Return the median seconds of each, taking turns; the first turn does not count."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(turns + 1):
        for each, run in zip(times, runs, strict=True):
            start = time.perf_counter()
            run()
            if turn:
                each.append(time.perf_counter() - start)
    return [float(np.median(each)) for each in times]


if __name__ == "__main__":
    main("--smallest" in sys.argv)
