"""The training loop of one program: on devices, with checkpoints."""

import dataclasses
import functools
import time
from typing import Any, NamedTuple

import jax
import numpy as np

from promptlimit._inputs import to_device
from promptlimit.dynamics._risks import training_moments
from promptlimit.dynamics._step import (
    Advance,
    RunGroup,
    TrainingRequest,
    TrainingState,
    advancer,
    first_state,
    loss_gradient,
    many_steps,
    start_arrays,
)
from promptlimit.parallel import active_devices, agreed, from_writer, run_on_devices, use_devices
from promptlimit.results import Length
from promptlimit.storage import Progress, RunFolder, Watcher

_SECONDS = 0.5  # between two progress reports


class Records(NamedTuple):
    """Parameters at the steps to record.

    Attributes:
        leaves: the trained arrays, each [sequences, runs, records, ...].
        diverged: the step after which a run was infinite, -1 for never, [sequences, runs].
    """

    leaves: list[np.ndarray]
    diverged: np.ndarray


def group_records(
    request: TrainingRequest,
    group: RunGroup,
    run: RunFolder | None,
    every: int,
    watch: Watcher | None,
) -> Records:
    """Return the records of a group; with a folder, resume from its checkpoint and write new ones.

    Only the first process uses the folder, and sends the state to the others.

    Args:
        request: the validated arguments of `sgd`.
        group: the lengths and seeds.
        run: the folder of the run.
        every: steps between checkpoints.
        watch: called with the progress.
    """
    recorded, steps = request.plan.recorded_steps, int(request.plan.steps)
    state = first_state(request.plan.rule, start_arrays(request, group))
    advance = group_advancer(request, group)
    leaves = [
        np.zeros((*leaf.shape[:2], recorded.size, *leaf.shape[2:]), leaf.dtype)
        for leaf in jax.tree.leaves(state.parameters)
    ]
    step = 0
    if run is not None:
        like = _arrays(state, steps, leaves)
        arrays = from_writer(lambda: run.resume(like) or {})
        if arrays:
            state, step = _state(arrays, state), int(arrays["step"])
            leaves = [arrays[f"records.{i}"] for i in range(len(leaves))]
    pace = _StepPace(step)
    lengths = tuple(length for length, _ in group)
    while True:
        for place in np.flatnonzero(recorded == step):
            for record, leaf in zip(leaves, jax.tree.leaves(state.parameters), strict=True):
                record[:, :, place] = np.asarray(leaf)
        due = step > 0 and (step % every == 0 or step == steps)
        if due and run is not None and active_devices().writes:
            run.checkpoint(_arrays(state, step, leaves))
        if watch is not None:
            risk = functools.partial(_current_risk, request, group[0][0], state.parameters)
            watch(Progress(step, steps, pace.rate, lengths, risk))
        if step == steps:
            return Records(leaves, np.asarray(state.diverged))
        stops = [steps, step - step % every + every, step + pace.stride]
        stops += recorded[recorded > step][:1].tolist()
        end = int(agreed(np.array(min(stops))))
        state = jax.block_until_ready(advance(state, step, end))
        step = end
        pace.seen(step)


def _current_risk(request: TrainingRequest, length: Length, parameters: Any) -> float:
    """Return the risk of the first run of a group."""
    leaves = [np.asarray(leaf[0, :1]) for leaf in jax.tree.leaves(parameters)]
    start = request.starts[0][0]
    return float(training_moments(request.objectives(start, length), start, leaves)[0].risk[0])


def _arrays(state: TrainingState, step: int, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a checkpoint."""
    numbers = {f"state.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    records = {f"records.{i}": leaf for i, leaf in enumerate(leaves)}
    return {**numbers, **records, "step": np.array(step)}


def _state(arrays: dict[str, np.ndarray], like: TrainingState) -> TrainingState:
    """Return the state of a checkpoint."""
    leaves, structure = jax.tree.flatten(like)
    numbers = [to_device(arrays[f"state.{i}"], leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, numbers)


class _StepPace:
    """The rate of steps, and the number of steps between two progress reports."""

    def __init__(self, step: int):
        self.rate = 0.0
        self.stride = 8
        self._step, self._time = step, time.perf_counter()

    def seen(self, step: int) -> None:
        now = time.perf_counter()
        if step - self._step < self.stride:
            return
        # The first stride includes compilation, so it does not measure the rate.
        if self.stride > 8:
            self.rate = (step - self._step) / max(now - self._time, 1e-9)
        wanted = int(self.rate * _SECONDS) if self.rate else 64
        self.stride = max(16, min(wanted, 4 * self.stride if self.rate else 64))
        self._step, self._time = step, now


def runs_of_devices(seeds: int, starts: int, devices: int) -> np.ndarray:
    """Return the runs of each device, [devices, starts x its seeds], as indices on their axis.

    Seeds are distributed evenly, and all starts of a seed, which share prompts, are on one device.
    The last devices may repeat the last seed.

    Args:
        seeds: the number of seeds.
        starts: the number of starts.
        devices: the number of devices.

    >>> runs_of_devices(3, 2, 2).tolist()
    [[0, 1, 3, 4], [2, 2, 5, 5]]
    """
    own = -(-seeds // devices)
    mine = np.minimum(np.arange(devices * own), seeds - 1).reshape(devices, 1, own)
    return (seeds * np.arange(starts)[:, None] + mine).reshape(devices, -1)


def _whole(parts: Any, runs: np.ndarray) -> Any:
    """Return all runs in order, from arrays [devices, sequences, n].

    So a checkpoint does not depend on the number of devices.
    """
    first = np.unique(runs, return_index=True)[1]

    def join(leaf: np.ndarray) -> np.ndarray:
        lined = np.moveaxis(leaf, 0, 1)
        return lined.reshape(leaf.shape[1], -1, *leaf.shape[3:])[:, first]

    return jax.tree.map(join, parts)


def group_advancer(request: TrainingRequest, group: RunGroup) -> Advance:
    """Return the function that advances a group, on the active devices.

    Seeds with independent prompts run on one device. With several processes all devices take part,
    because every process needs the result.
    """
    team, rule, seeds = active_devices(), request.plan.rule, request.seeds
    own = -(-seeds // team.size)
    devices = team.size if team.hosts > 1 else -(-seeds // own)
    if devices == 1 or group[0][1] is not None:
        return advancer(rule, loss_gradient(request, group))
    runs = runs_of_devices(seeds, len(request.starts), devices)
    part = dataclasses.replace(request, starts=tuple(row[:own] for row in request.starts))
    steps = many_steps(rule, loss_gradient(part, group))

    def program(_: None, given: tuple[TrainingState, Any]) -> TrainingState:
        return steps(*given)

    def advance(state: TrainingState, first: int, last: int) -> TrainingState:
        bounds = np.array([first, last], np.uint32)
        host = jax.tree.map(np.asarray, state)

        def given(device: int) -> tuple[TrainingState, np.ndarray]:
            return jax.tree.map(lambda leaf: leaf[:, runs[device]], host), bounds

        with use_devices("all" if team.hosts > 1 else devices):
            return _whole(run_on_devices(program, None, given), runs)

    return advance
