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

TURNS = 3
REPEATS = 5
PROMPTS = 8192
LENGTH = 200
SEEDS = 8
STEPS = 6000
WARM = 1000
TOKENS = 2**24

LAYOUTS = {"1 process": (1, 1), "2 processes": (2, 1), "1 process, 2 devices": (1, 2)}
"""Processes, and devices in each."""


def work(number: int, processes: int, devices: int, address: str) -> None:
    """Time all kinds of work in one of the processes; the first prints the seconds."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:devices] if processes == 1 else {cores[number % len(cores)]})
    import jax  # noqa: PLC0415  # it counts the cores when it starts

    import promptlimit as pl  # noqa: PLC0415
    from promptlimit.parallel import crew, join  # noqa: PLC0415

    jax.config.update("jax_num_cpu_devices", devices)
    if processes > 1:
        join(address, processes, number)
    with pl.spread():
        kinds = {"gaps": gap_seconds, "training": training_seconds, "stream": stream_seconds}
        found = {name: seconds(crew().size) for name, seconds in kinds.items()}
    if number == 0:
        print("\n" + json.dumps(found))


def gap_seconds(size: int) -> float:
    """Return the shortest time for so many times the prompts, after one run to compile."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import promptlimit as pl  # noqa: PLC0415

    normal = pl.Gaussian(np.zeros(5), np.eye(5))
    attention = pl.SoftmaxAttention(0.4 * np.eye(5), np.eye(5))
    seconds = []
    for _ in range(1 + REPEATS):
        started = time.perf_counter()
        key = jax.random.key(0)
        pl.output_gap(
            attention, normal, normal, [LENGTH], kind="estimate", key=key, samples=PROMPTS * size
        )
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def training_seconds(size: int) -> float:
    """Return the time of 1,000 steps from so many times the seeds, from look to look."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import promptlimit as pl  # noqa: PLC0415

    looks = []
    pl.sgd(
        lambda key: pl.uniform_factors(5, key=key),
        pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2),
        LENGTH,
        pl.TrainingPlan(steps=STEPS, batch=16, record=[0, STEPS], points=64),
        key=jax.random.key(0),
        seeds=SEEDS * size,
        watch=lambda progress: looks.append((progress.done, time.perf_counter())),
    )
    (first, started), *_, (last, ended) = [look for look in looks if look[0] >= WARM]
    return 1000 * (ended - started) / (last - first)


def stream_seconds(size: int) -> float:
    """Return the shortest time for so many times the tokens, after one run to compile."""
    import jax  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415

    import promptlimit as pl  # noqa: PLC0415

    normal = pl.Gaussian(np.zeros(4), np.eye(4))
    head = pl.SoftmaxAttention(0.4 * np.eye(4), np.eye(4))
    prompt = pl.Generated(normal, TOKENS * size, key=jax.random.key(0))
    seconds = []
    for _ in range(1 + REPEATS):
        started = time.perf_counter()
        pl.stream(head, prompt, np.ones((4, 4)), covariance=False)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def measured(processes: int, devices: int) -> dict[str, float]:
    """Return the seconds of one layout."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    running = [
        subprocess.Popen(  # noqa: S603  # this file
            [sys.executable, __file__, str(number), str(processes), str(devices), address],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    printed = [process.communicate(timeout=600)[0] for process in running]
    return json.loads(printed[0].splitlines()[-1])


def main() -> None:
    """Print the table; layouts take turns, and medians are compared."""
    turns = [{name: measured(*layout) for name, layout in LAYOUTS.items()} for _ in range(TURNS)]
    print(f"gaps: {PROMPTS} prompts of {LENGTH} tokens a device; training: 1,000 steps of {SEEDS}")
    print(f"seeds a device at L = {LENGTH}; stream: {TOKENS} tokens a device")
    print(f"medians of {TURNS} turns, ratios to one process")
    for what in ("gaps", "training", "stream"):
        for name in LAYOUTS:
            seconds = sorted(turn[name][what] for turn in turns)[TURNS // 2]
            ratios = sorted(turn[name][what] / turn["1 process"][what] for turn in turns)
            print(f"{what:<10} {name:<22} {seconds:7.3f} s  {ratios[TURNS // 2]:5.2f}")


if __name__ == "__main__":
    work(*map(int, sys.argv[1:4]), sys.argv[4]) if len(sys.argv) > 1 else main()
