"""How long does the paper's protocol take on an accelerator: 19 lengths, both architectures?

    python benchmarks/sgd_gpu.py [STEPS [COVARIANCE...]]

300,000 steps and the identity unless told otherwise; kms and kms-as-coded are the other laws.
"""

import sys
import time

import jax
import numpy as np

import promptlimit as pl
from promptlimit.experiments import protocol_task

LENGTHS = [*range(10, 100, 10), *range(100, 1001, 100)]
BATCH, DIM = 128, 5
ROOFLINE = 140e9  # normals a second, measured on an H200


def main() -> None:
    """Print seconds with compilation, tokens a second and the share of the roofline."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    names = sys.argv[2:] or ["identity"]
    starts = [
        lambda key, kernel=kernel: pl.uniform_factors(DIM, key=key, kernel=kernel)
        for kernel in ("softmax", "linear")
    ]
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    if jax.default_backend() == "cpu" and len(sys.argv) == 1:
        print("there is no accelerator here; name a number of steps to run all the same")
        return
    for name in names:
        seen: list[tuple[float, int]] = []
        began = time.perf_counter()
        found = pl.sgd(
            protocol_task(name),
            starts,
            LENGTHS,
            steps=steps,
            key=jax.random.key(0),
            packed=True,
            watch=lambda progress, seen=seen: seen.append((time.perf_counter(), progress.step)),
        )
        total = time.perf_counter() - began
        compiled = next(i for i, (_, step) in enumerate(seen) if step > 0)
        (first, start), (last, end) = seen[compiled], seen[-1]
        trained = last - began
        a_step = (last - first) / max(end - start, 1)
        tokens = BATCH * sum(LENGTHS) / a_step
        print(f"{name}: {steps} steps of {len(LENGTHS)} lengths x 2 architectures")
        print(f"  with compilation {trained:.1f} s, first look after {first - began:.1f} s")
        print(f"  with the exact risks {total:.1f} s")
        print(f"  {1e6 * a_step:.0f} µs a step, {tokens / 1e9:.2f} G tokens/s")
        normals = tokens * (DIM + 1)
        print(f"  {normals / 1e9:.1f} G normals/s, {normals / ROOFLINE:.0%} of the roofline")
        for i, length in enumerate(LENGTHS):
            ends = 2 * found.risks[i, :, 0, -1]
            print(f"  L = {length:4}: softmax {ends[0]:.4f}, linear {ends[1]:.4f}")
        if np.isnan(found.risks[..., -1]).any():
            print("  some runs diverged")


if __name__ == "__main__":
    main()
