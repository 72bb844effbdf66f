"""What do twice the devices cost when they do twice the work?

Weak scaling of simulated gaps, of training and of streams over two processes, and over two devices
that one process makes of the CPU, with a core for each. Prints a small table; nothing is asserted.
Run on an otherwise idle machine with at least two cores.
"""

import json
import os
import socket
import subprocess
import sys
import time
from typing import NamedTuple


class Sizes(NamedTuple):
    """How much work there is for each device, and how often it is repeated."""

    turns: int = 3
    repeats: int = 5
    prompts: int = 8192
    length: int = 200
    seeds: int = 8
    steps: int = 6000
    warm: int = 1000
    tokens: int = 2**24


SMALLEST = Sizes(1, 1, 64, 10, 1, 4, 0, 2**13)

LAYOUTS = {"1 process": (1, 1), "2 processes": (2, 1), "1 process, 2 devices": (1, 2)}
"""Processes, and devices in each."""


def work(number: int, processes: int, devices: int, address: str, sizes: Sizes) -> None:
    """Time all kinds of work in one of the processes; the first prints the seconds."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:devices] if processes == 1 else {cores[number % len(cores)]})
    import jax  # noqa: PLC0415  # it counts the cores when it starts

    import promptlimit as pl  # noqa: PLC0415
    from promptlimit.parallel import active_devices, join  # noqa: PLC0415

    jax.config.update("jax_num_cpu_devices", devices)
    if processes > 1:
        join(address, processes, number)
    with pl.use_devices():
        kinds = {"gaps": gap_seconds, "training": training_seconds, "stream": stream_seconds}
        found = {name: seconds(active_devices().size, sizes) for name, seconds in kinds.items()}
    if number == 0:
        print("\n" + json.dumps(found))


def gap_seconds(size: int, sizes: Sizes) -> float:
    """Return the shortest time for a multiple of the prompts, after one run to compile."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import promptlimit as pl  # noqa: PLC0415

    normal = pl.Gaussian(np.zeros(5), np.eye(5))
    attention = pl.SoftmaxAttention(0.4 * np.eye(5), np.eye(5))
    seconds = []
    for _ in range(1 + sizes.repeats):
        started = time.perf_counter()
        key = jax.random.key(0)
        given = (attention, normal, normal, [sizes.length])
        pl.output_gap(*given, kind="estimate", key=key, samples=sizes.prompts * size)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def training_seconds(size: int, sizes: Sizes) -> float:
    """Return the time of 1,000 steps from a multiple of the seeds, between two records."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import promptlimit as pl  # noqa: PLC0415

    looks = []
    pl.sgd(
        lambda key: pl.dynamics.uniform_factors(5, key=key),
        pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2),
        sizes.length,
        pl.TrainingPlan(steps=sizes.steps, batch=16, record=[0, sizes.steps], points=64),
        key=jax.random.key(0),
        seeds=sizes.seeds * size,
        watch=lambda progress: looks.append((progress.done, time.perf_counter())),
    )
    (first, started), *_, (last, ended) = [look for look in looks if look[0] >= sizes.warm]
    return 1000 * (ended - started) / (last - first)


def stream_seconds(size: int, sizes: Sizes) -> float:
    """Return the shortest time for a multiple of the tokens, after one run to compile."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import promptlimit as pl  # noqa: PLC0415

    normal = pl.Gaussian(np.zeros(4), np.eye(4))
    head = pl.SoftmaxAttention(0.4 * np.eye(4), np.eye(4))
    prompt = pl.streaming.Generated(normal, sizes.tokens * size, key=jax.random.key(0))
    seconds = []
    for _ in range(1 + sizes.repeats):
        started = time.perf_counter()
        pl.stream(head, prompt, np.ones((4, 4)), covariance=False)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def measured(processes: int, devices: int, options: list[str]) -> dict[str, float]:
    """Return the seconds of one layout."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    running = [
        subprocess.Popen(  # noqa: S603  # this file
            [
                sys.executable,
                __file__,
                str(number),
                str(processes),
                str(devices),
                address,
                *options,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    printed = [process.communicate(timeout=600)[0] for process in running]
    return json.loads(printed[0].splitlines()[-1])


def main(smallest: bool = False) -> None:
    """Print the table; layouts take turns, and medians are compared."""
    sizes, options = (SMALLEST, ["--smallest"]) if smallest else (Sizes(), [])
    layouts = {"1 process": LAYOUTS["1 process"]} if smallest else LAYOUTS
    turns = [
        {name: measured(*layout, options) for name, layout in layouts.items()}
        for _ in range(sizes.turns)
    ]
    print(f"gaps: {sizes.prompts} prompts of {sizes.length} tokens per device; training: 1,000")
    print(f"steps of {sizes.seeds} seeds per device; stream: {sizes.tokens} tokens per device")
    print(f"medians of {sizes.turns} turns, ratios to one process")
    for what in ("gaps", "training", "stream"):
        for name in layouts:
            seconds = sorted(turn[name][what] for turn in turns)[sizes.turns // 2]
            ratios = sorted(turn[name][what] / turn["1 process"][what] for turn in turns)
            print(f"{what:<10} {name:<22} {seconds:7.3f} s  {ratios[sizes.turns // 2]:5.2f}")


if __name__ == "__main__":
    is_smallest = "--smallest" in sys.argv
    if len(sys.argv) > 2:
        work(*map(int, sys.argv[1:4]), sys.argv[4], SMALLEST if is_smallest else Sizes())
    else:
        main(is_smallest)
