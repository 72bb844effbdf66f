"""Which method should step a gradient flow?

The softmax flow of `flow.py` at L = 15 and 16, time 600. The first call compiles, the second reuses
the program. Processor seconds: other work on the machine changes them less than waiting times.

    python benchmarks/flow_methods.py [--smallest]
"""

import sys
import time

import diffrax
import jax
import numpy as np
import optimistix as optx

import promptlimit as pl
from promptlimit.dynamics._stabilised import StabilisedRungeKutta

DIM, NOISE, END = 5, 0.1, 600.0


def main(smallest: bool = False) -> None:
    """Print a row for each method."""
    task = pl.LinearRegression(np.eye(DIM), noise_variance=NOISE, prior_variance=1 / DIM)
    start = pl.dynamics.uniform_factors(DIM, key=jax.random.key(0))
    end, points = (0.2, 64) if smallest else (END, 4096)
    times = np.concatenate([[0.0], np.geomspace(0.1, end, 15)])
    newton = optx.Newton(rtol=1e-5, atol=1e-6)
    methods: dict[str, diffrax.AbstractSolver] = {
        "stabilised": StabilisedRungeKutta(),
        "Dopri8": diffrax.Dopri8(),
        "Kvaerno3": diffrax.Kvaerno3(root_finder=newton),
        "Kvaerno5": diffrax.Kvaerno5(root_finder=newton),
    }
    if smallest:
        methods = dict([*methods.items()][:1])
    print(f"{'method':12} {'first':>8} {'second':>8}   last risk")
    for name, solver in methods.items():
        plan = pl.dynamics.FlowPlan(times, points=points, solver=solver)
        spent = []
        for length in (15, 16):
            began = time.process_time()
            flow = pl.gradient_flow(start, task, length, plan)
            spent.append(time.process_time() - began)
        print(f"{name:12} {spent[0]:6.1f} s {spent[1]:6.2f} s   {flow.value[-1]:.8f}", flush=True)


if __name__ == "__main__":
    main("--smallest" in sys.argv)
