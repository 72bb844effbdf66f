"""How wrong is the error of sampled attention by the central limit theorem, at several budgets?

One head reads N tokens: the k largest scores are kept and n of the others are drawn with
replacement, weighed by (N - k) / n. The variance of a ratio by the central limit theorem, on which
the budget of vAttention is based, is compared with the exact mean squared error and with 200,000
draws in plain NumPy. Prints a small table; nothing is asserted.

    taskset -c 0 python benchmarks/sampled_attention.py [--smallest]
"""

import math
import sys
import time

import numpy as np

import promptlimit as pl

TOKENS, KEPT, DRAWS = 64, 8, 200_000


def main(smallest: bool = False) -> None:
    """Print the three errors at several budgets."""
    i = np.arange(TOKENS)
    scores, values = 2.0 * np.cos(1.7 * i), np.column_stack([np.sin(0.9 * i), (i % 7) / 7.0])
    order = np.argsort(-scores)
    kept, rest = order[:KEPT], order[KEPT:]
    weights = np.exp(scores)
    whole = weights @ values / weights.sum()
    tokens = np.column_stack([scores, values])
    head = pl.SoftmaxAttention([[1.0], [0.0], [0.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    law, rng = pl.Empirical(tokens[rest]), np.random.default_rng(0)
    print("n  exact  s  simulated  s.e.  s  CLT  CLT/exact")
    for count in (2,) if smallest else (2, 4, 8, 16, 64, 256):
        offset = math.log(rest.size / count)
        prompt = pl.Prompt(law, fixed=tokens[kept], offset=offset)
        pl.prompt_moments(head, prompt, [1.0], count)
        started = time.perf_counter()
        found = pl.prompt_moments(head, prompt, [1.0], count)
        exact = float(np.trace(found.cov) + np.sum((found.limit + found.bias - whole) ** 2))
        exact_seconds = time.perf_counter() - started
        started = time.perf_counter()
        drawn = rest[rng.integers(rest.size, size=(DRAWS, count))]
        own = math.exp(offset) * weights[drawn]
        total = weights[kept].sum() + own.sum(axis=1)
        output = weights[kept] @ values[kept] + np.einsum("nl,nlj->nj", own, values[drawn])
        squares = np.sum((output / total[:, None] - whole) ** 2, axis=1)
        seconds = time.perf_counter() - started
        terms = rest.size * weights[rest, None] * (values[rest] - whole) / weights.sum()
        clt = float(terms.var(axis=0).sum() / count)
        print(
            f"{count:4d} {exact:.8f} {exact_seconds:.3f} {squares.mean():.6f} "
            f"{squares.std() / math.sqrt(DRAWS):.0e} {seconds:.2f} {clt:.6f} {clt / exact:.3f}"
        )


if __name__ == "__main__":
    main("--smallest" in sys.argv)
