"""How much faster is a step of `sgd` than the same protocol in PyTorch, on one core?

Contenders take turns, five times; processor time of a single-threaded process is compared, which
other work on the machine disturbs least. PROMPTLIMIT_TORCH names a Python that has torch 2.13;
without it this Python is tried, and without torch only our own times are printed.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1 "
    + os.environ.get("XLA_FLAGS", "")
)

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

import promptlimit as pl
from promptlimit.dynamics._starts import starts_of_seeds
from promptlimit.dynamics._steps import TrainingRequest, first_state, take_steps
from promptlimit.parallel import run_on_devices
from promptlimit.tasks.regression._token_sums import PromptStream, coordinates, prompt_stream

LENGTHS = (10, 40, 100, 200, 500, 1000)
BOTH = ("softmax", "linear")
TURNS = 5
BARS = {
    ("tokens", BOTH): {10: 12, 40: 12, 100: 8, 200: 8, 500: 6, 1000: 6},
    ("law", ("softmax",)): {10: 15, 40: 15, 100: 10, 1000: 7},
    ("law", ("linear",)): {1000: 100},
}


class Ours:
    """One length, ready to take steps."""

    def __init__(self, sampling: str, kernels: tuple[str, ...], length: int, seeds: int = 1):
        task = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
        key = jax.random.key(0)
        starts = [
            lambda key, k=k: pl.dynamics.uniform_factors(5, key=key, kernel=k) for k in kernels
        ]
        request = TrainingRequest(
            starts=starts_of_seeds(starts, task, seeds, key),
            task=task,
            lengths=(length,),
            plan=pl.TrainingPlan(steps=10**6, record=[0], sampling=sampling),
            key=key,
            independent_prompts=False,
            packed=False,
        )
        (group,) = request.groups
        self.shared = request.plan.rule, group.gradient
        self.state = first_state(request.plan.rule, group.first_arrays)
        self._advance(0, 2)

    def _advance(self, first: int, last: int) -> None:
        part = self.state, np.array([first, last], np.uint32)
        found = run_on_devices(take_steps, self.shared, lambda _: part)
        self.state = jax.tree.map(lambda leaf: leaf[0], found)

    def seconds(self, steps: int) -> float:
        """Return the processor time of a step."""
        began = time.process_time()
        self._advance(2, 2 + steps)
        return (time.process_time() - began) / steps


class Torch:
    """The PyTorch loop in a process of its own."""

    def __init__(self):
        python = os.environ.get("PROMPTLIMIT_TORCH", sys.executable)
        self.here = not subprocess.run(  # noqa: S603  # the Python the user named
            [python, "-c", "import torch"], capture_output=True, check=False
        ).returncode
        if self.here:
            script = str(Path(__file__).with_name("_sgd_torch.py"))
            self.process = subprocess.Popen(  # noqa: S603  # as above
                [python, script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def seconds(self, kernel: str, length: int, steps: int) -> float:
        """Return the processor time of a step."""
        if not self.here or self.process.stdin is None or self.process.stdout is None:
            return float("nan")
        request = {"kernel": kernel, "length": length, "steps": steps}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


class Drawing:
    """The normals of the tokens of a step, drawn and added up."""

    def __init__(self, draw: Callable[[jax.Array], jax.Array]):
        def add(step: jax.Array, total: jax.Array) -> jax.Array:
            return total + jnp.sum(draw(step.astype(jnp.uint32)))

        self.total = jax.jit(lambda steps: jax.lax.fori_loop(0, steps, add, jnp.float32(0.0)))
        jax.block_until_ready(self.total(2))

    def seconds(self, steps: int) -> float:
        """Return the processor time of a step."""
        began = time.process_time()
        jax.block_until_ready(self.total(steps))
        return (time.process_time() - began) / steps


def gain(slow: Ours | Drawing, fast: Ours | Drawing, length: int) -> float:
    """Return how many times faster one of two is, which take turns."""
    steps = max(10, 10_000 // length)
    return statistics.median(slow.seconds(steps) / fast.seconds(steps) for _ in range(TURNS))


def special_paths() -> None:
    """Print what sums in law and our generator of normals gain over tokens and `jax.random`."""
    key = jax.random.key(0)
    for length in (10, 100, 1000):
        for kernel in BOTH:
            tokens, law = (Ours(sampling, (kernel,), length) for sampling in ("tokens", "law"))
            print(f"{kernel} in law, L = {length}: {gain(tokens, law, length):.1f} x over tokens")
        prompts = prompt_stream(6, (length,), 128, [key])
        plain = functools.partial(_plain_normals, key, length)
        ours = functools.partial(_our_normals, prompts)
        ratio = gain(Drawing(plain), Drawing(ours), length)
        print(f"normals, L = {length}: {ratio:.1f} x over jax.random.normal")


def _plain_normals(key: PRNGKeyArray, length: int, step: jax.Array) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(key, step), (128, 6, length))


def _our_normals(prompts: PromptStream, step: jax.Array) -> jax.Array:
    return coordinates(prompts, step, jnp.uint32(0), 128)


def main(smallest: bool = False) -> None:
    """Print the table, and every bar that is missed."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch = Torch()
    if not torch.here:
        print("torch cannot be imported; set PROMPTLIMIT_TORCH to a Python that has it")
    for (sampling, kernels), bars in [*BARS.items()][: 1 if smallest else None]:
        lengths = LENGTHS if kernels == BOTH else [*bars]
        for length in lengths[:1] if smallest else lengths:
            ours = Ours(sampling, kernels, length)
            steps = 2 if smallest else max(10, 60_000 // length // 8)
            few = max(4, steps // 8)
            mine, theirs = [], []
            for _ in range(1 if smallest else TURNS):
                mine.append(ours.seconds(steps))
                theirs.append(sum(torch.seconds(kernel, length, few) for kernel in kernels))
            me, them = statistics.median(mine), statistics.median(theirs)
            name = f"{sampling:6} {'+'.join(kernels):14} L = {length:5}"
            print(f"{name}  {1e6 * me:9.0f} µs  torch {1e6 * them:9.0f} µs  {them / me:6.1f} x")
            if torch.here and not smallest and them / me < bars.get(length, 0):
                print(f"  MISS: the bar is {bars[length]} x")
    if smallest:
        return
    special_paths()
    alone, eight = (Ours("tokens", BOTH, 100, seeds).seconds(200) for seeds in (1, 8))
    print(f"8 seeds on shared prompts, L = 100: {8 * alone / eight:.1f} x faster than alone")


if __name__ == "__main__":
    main("--smallest" in sys.argv)
