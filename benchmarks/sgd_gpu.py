"""How long does the paper's protocol take on an accelerator: 19 lengths, both architectures?

    python benchmarks/sgd_gpu.py [--smallest | STEPS [COVARIANCE...]]

300,000 steps and the identity by default; kms and kms-as-coded are the other laws.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl
from promptlimit._normals import box_muller, threefry
from promptlimit.studies.large_prompt.protocol import protocol_task

LENGTHS = [*range(10, 100, 10), *range(100, 1001, 100)]
BATCH, DIM = 128, 5
COUNTERS, PASSES = 2**26, 64


@functools.partial(jax.jit, static_argnums=1)
def summed(key: tuple[jax.Array, jax.Array], counters_each: int) -> jax.Array:
    """Return the sum of the normals of all counters: drawn, added up and never stored."""
    index = jnp.arange(counters_each, dtype=jnp.uint32)

    def add(step: jax.Array, total: jax.Array) -> jax.Array:
        counters = jnp.full(index.shape, step.astype(jnp.uint32)), index
        return total + sum(jnp.sum(each) for each in box_muller(*threefry(key, counters)))

    return jax.lax.fori_loop(0, PASSES, add, jnp.float32(0.0))


def roofline(counters: int) -> float:
    """Return how many normals a second the generator makes here with nothing else to do."""
    jax.block_until_ready(summed((jnp.uint32(0), jnp.uint32(0)), counters))
    began = time.perf_counter()
    jax.block_until_ready(summed((jnp.uint32(1), jnp.uint32(2)), counters))
    return 2 * counters * PASSES / (time.perf_counter() - began)


def main(smallest: bool = False) -> None:
    """Print seconds with compilation, tokens a second and the share of the roofline."""
    lengths, steps, names, points = LENGTHS, 300_000, ["identity"], 4096
    if smallest:
        lengths, steps, points = [10], 2, 64
    elif len(sys.argv) > 1:
        steps, names = int(sys.argv[1]), sys.argv[2:] or names
    starts = [
        lambda key, kernel=kernel: pl.dynamics.uniform_factors(DIM, key=key, kernel=kernel)
        for kernel in ("softmax", "linear")
    ]
    print(jax.devices()[0].device_kind, "jax", jax.__version__)
    if jax.default_backend() == "cpu" and len(sys.argv) == 1:
        print("no accelerator was found; give a number of steps to run anyway")
        return
    fastest = roofline(2**10 if smallest else COUNTERS)
    print(f"the generator alone: {fastest / 1e9:.0f} G normals/s")
    for name in names:
        seen: list[tuple[float, int]] = []
        began = time.perf_counter()
        found = pl.sgd(
            starts,
            protocol_task(name),
            lengths,
            pl.TrainingPlan(steps=steps, points=points),
            key=jax.random.key(0),
            packed=True,
            watch=lambda progress, seen=seen: seen.append((time.perf_counter(), progress.done)),
        )
        total = time.perf_counter() - began
        compiled = next(i for i, (_, step) in enumerate(seen) if step > 0)
        (first, start), (last, end) = seen[compiled], seen[-1]
        trained = last - began
        a_step = (last - first) / max(end - start, 1)
        tokens = BATCH * sum(lengths) / a_step
        print(f"{name}: {steps} steps of {len(lengths)} lengths x 2 architectures")
        print(f"  with compilation {trained:.1f} s, first look after {first - began:.1f} s")
        print(f"  with the exact risks {total:.1f} s")
        print(f"  {1e6 * a_step:.0f} µs a step, {tokens / 1e9:.2f} G tokens/s")
        normals = tokens * (DIM + 1)
        print(f"  {normals / 1e9:.1f} G normals/s, {normals / fastest:.0%} of the roofline")
        for i, length in enumerate(lengths):
            ends = 2 * found.value[i, :, 0, -1]
            print(f"  L = {length:4}: softmax {ends[0]:.4f}, linear {ends[1]:.4f}")
        if np.isnan(found.value[..., -1]).any():
            print("  some runs diverged")


if __name__ == "__main__":
    main("--smallest" in sys.argv)
