"""Would `diffrax.diffeqsolve` do in place of our loop over its steps, and which method should step?

Flows of the paper's setting at L = 15 and 16, time 600. The first call compiles, the second reuses
the program. Processor seconds: other work on the machine changes them less than waiting times.
`diffeqsolve` gets the gradient behind one jitted function, an event for the arrival, and `SaveAt`.

    taskset -c 0 python benchmarks/flow_loop.py [--smallest]
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl
from promptlimit.dynamics import _solver
from promptlimit.dynamics._solver import StabilisedRungeKutta

DIM, NOISE, END = 5, 0.1, 600.0
OURS = _solver._descent


def by_diffeqsolve(pull: Callable, y0: Any, times: Any, rules: Any, solver: Any) -> Any:
    """Return the same flow by diffrax's own loop."""

    def arrived(t: Any, y: Any, args: Any, **_: Any) -> Any:  # noqa: ARG001  # diffrax's signature
        return jnp.linalg.norm(pull(y)) < rules.arrival

    if isinstance(solver, diffrax.AbstractRungeKutta):
        solver = diffrax.Dopri8(scan_kind="lax")
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: pull(y)),  # noqa: ARG005  # its signature
        solver,
        0.0,
        rules.end,
        jnp.minimum(1e-3, rules.end),
        y0,
        saveat=diffrax.SaveAt(subs=[diffrax.SubSaveAt(ts=times), diffrax.SubSaveAt(t1=True)]),
        stepsize_controller=diffrax.PIDController(rtol=rules.tolerance, atol=rules.tolerance),
        event=diffrax.Event(arrived),
        adjoint=diffrax.ForwardMode(),
        max_steps=_solver.MAX_STEPS,
        throw=False,
    )
    (states, (last,)), (_, (end,)) = solution.ys, solution.ts
    finished = diffrax.is_okay(solution.result)
    return _solver.Descent(states, last, end, solution.event_mask, jnp.array(False), finished)


def main(smallest: bool = False) -> None:
    """Print a row for each kernel, loop and method."""
    task = pl.LinearRegression(np.eye(DIM), noise_variance=NOISE, prior_variance=1 / DIM)
    end, points = (0.2, 64) if smallest else (END, 4096)
    times = np.concatenate([[0.0], np.geomspace(0.1, end, 15)])
    methods = {"stabilised": StabilisedRungeKutta(), "Dopri8": diffrax.Dopri8()}
    rows = [
        (kernel, method, loop)
        for kernel, method in (
            ("softmax", "stabilised"),
            ("softmax", "Dopri8"),
            ("linear", "Dopri8"),
        )
        for loop in ("ours", "diffeqsolve")
    ]
    print(f"{'kernel':8} {'method':10} {'loop':12} {'first':>8} {'second':>8}   last risk")
    for kernel, method, loop in rows[:2] if smallest else rows:
        start = pl.dynamics.uniform_factors(DIM, key=jax.random.key(0), kernel=kernel)
        plan = pl.dynamics.FlowPlan(times, points=points, solver=methods[method])
        setattr(_solver, "_descent", OURS if loop == "ours" else by_diffeqsolve)  # noqa: B010
        jax.clear_caches()
        spent, flow = [], None
        for length in (15, 16):
            began = time.process_time()
            flow = pl.gradient_flow(start, task, length, plan)
            spent.append(time.process_time() - began)
        what = f"{kernel:8} {method:10} {loop:12}"
        print(f"{what} {spent[0]:6.1f} s {spent[1]:6.2f} s   {flow.value[-1]:.8f}", flush=True)
    setattr(_solver, "_descent", OURS)  # noqa: B010


if __name__ == "__main__":
    main("--smallest" in sys.argv)
