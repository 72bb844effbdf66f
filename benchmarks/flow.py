"""How long does an exact gradient flow of the paper's experiment take?

d = 5, identity covariance, weights N(0, I/5), noise 0.1, random factors, time 600 (300,000 steps of
SGD at 1e-3). Each row is one trajectory with its tables of weight statistics, at the default
tolerance; compiling is timed apart, once for each kernel. With `--all` every length of the paper
and both kernels. If torch is installed, some steps of the paper's loop are timed too, and scaled.

    python benchmarks/flow.py [--all | --smallest]
"""

import importlib.util
import math
import sys
import time

import jax
import numpy as np

import promptlimit as pl

DIM, NOISE, END = 5, 0.1, 600.0
SOME = (10, 1000)
EVERY = (*range(10, 100, 10), *range(100, 1001, 100))
TARGETS = {10: 5.0, 1000: 30.0}
STEPS, TIMED, BATCH = 300_000, 50, 128


def main(smallest: bool = False) -> None:
    """Print the seconds of each trajectory, and of all of them."""
    task = pl.LinearRegression(np.eye(DIM), noise_variance=NOISE, prior_variance=1 / DIM)
    end = 0.2 if smallest else END
    times = np.concatenate([[0.0], np.geomspace(0.1, end, 63)])
    print(f"gradient flow to time {end:g} on {jax.devices()[0].device_kind}, seconds")
    total = 0.0
    for kernel in ("linear",) if smallest else ("softmax", "linear"):
        start = pl.dynamics.uniform_factors(DIM, key=jax.random.key(0), kernel=kernel)
        seconds, _ = timed(task, start, 15, times)
        total += seconds
        print(f"  {kernel:8} compile and L = 15     {seconds:7.2f}")
        some = SOME[:1] if smallest else (*SOME, math.inf)
        for length in EVERY if "--all" in sys.argv else some:
            seconds, flow = timed(task, start, length, times)
            total += seconds
            target = TARGETS.get(length) if kernel == "softmax" else None
            verdict = "" if target is None else f"   target {target:g}: {met(seconds <= target)}"
            error = f"squared error {2 * flow.value[-1]:.5f}"
            print(f"  {kernel:8} L = {length:<8g} {error}   {seconds:7.2f}{verdict}")
    print(f"  together {total:.1f}")
    if smallest or importlib.util.find_spec("torch") is None:
        print("  without torch, or with --smallest, the paper's loop is not timed")
    else:
        for length in SOME:
            print(f"  the paper's loop in torch, L = {length}: {paper_loop(length):.0f}")


def met(well: bool) -> str:
    """Return the verdict on a target."""
    return "met" if well else "missed"


def timed(
    task: pl.LinearRegression, start: pl.Factored, length: float, times: np.ndarray
) -> tuple[float, pl.results.Trajectory]:
    """Return the seconds of one trajectory, and the trajectory."""
    begin = time.perf_counter()
    flow = pl.gradient_flow(start, task, length, times)
    return time.perf_counter() - begin, flow


def paper_loop(length: int) -> float:
    """Return the seconds that all steps of the paper's training would take, from some of them."""
    import torch  # noqa: PLC0415  # optional, and heavy

    size = DIM + 1
    layers = [torch.nn.Linear(size, out, bias=False) for out in (size, size, size, 1)]
    key, query, value, output = layers
    optimiser = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=1e-3)
    begin = time.perf_counter()
    for _ in range(TIMED):
        x = torch.randn(BATCH, length + 1, DIM)
        w = torch.randn(BATCH, DIM, 1) / DIM**0.5
        y = x @ w + NOISE**0.5 * torch.randn(BATCH, length + 1, 1)
        tokens = torch.cat([x, y], dim=2)
        asked = torch.cat([x[:, -1], torch.zeros(BATCH, 1)], dim=1)
        scores = torch.einsum("bli,bi->bl", key(tokens[:, :-1]), query(asked)) / size**0.5
        mixed = torch.einsum("bl,bli->bi", torch.softmax(scores, dim=1), value(tokens[:, :-1]))
        loss = ((output(mixed)[:, 0] - y[:, -1, 0]) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return (time.perf_counter() - begin) / TIMED * STEPS


if __name__ == "__main__":
    main("--smallest" in sys.argv)
