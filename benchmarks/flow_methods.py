"""Which method should integrate a gradient flow, and what does its first call cost?

Flows of the paper's setting at L = 15 and 16, time 600. The first call compiles, the second reuses
the program. Processor seconds: other work on the machine changes them less than waiting times.

    taskset -c 0 python benchmarks/flow_methods.py [--implicit | --smallest]
"""

import sys
import time

import diffrax
import jax
import numpy as np

import promptlimit as pl
from promptlimit.dynamics import StabilisedRungeKutta

DIM, NOISE, END = 5, 0.1, 600.0


def main(smallest: bool = False) -> None:
    """Print a row for each kernel and method."""
    task = pl.LinearRegression(np.eye(DIM), noise_variance=NOISE, prior_variance=1 / DIM)
    end, points = (0.2, 64) if smallest else (END, 4096)
    times = np.concatenate([[0.0], np.geomspace(0.1, end, 15)])
    rows = [
        ("softmax", StabilisedRungeKutta()),
        ("softmax", diffrax.Dopri8()),
        ("linear", diffrax.Dopri8()),
    ]
    if "--implicit" in sys.argv:
        rows.append(("softmax", diffrax.Kvaerno5()))
    print(f"{'kernel':8} {'method':22} {'first':>8} {'second':>8}   last risk")
    for kernel, solver in rows[-1:] if smallest else rows:
        start = pl.dynamics.uniform_factors(DIM, key=jax.random.key(0), kernel=kernel)
        plan = pl.dynamics.FlowPlan(times, points=points, solver=solver)
        jax.clear_caches()
        spent, flow = [], None
        for length in (15, 16):
            began = time.process_time()
            flow = pl.gradient_flow(start, task, length, plan)
            spent.append(time.process_time() - began)
        what = f"{kernel:8} {type(solver).__name__:22}"
        print(f"{what} {spent[0]:6.1f} s {spent[1]:6.2f} s   {flow.value[-1]:.8f}", flush=True)


if __name__ == "__main__":
    main("--smallest" in sys.argv)
