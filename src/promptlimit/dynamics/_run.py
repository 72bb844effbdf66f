"""The runs of one program from the first step to the last: on devices, and through checkpoints."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from promptlimit._inputs import to_device
from promptlimit.dynamics._risks import training_moments
from promptlimit.dynamics._step import (
    Advance,
    Cell,
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

_SECONDS = 0.5  # between two looks from outside


class Records(NamedTuple):
    """Parameters at the steps to record.

    Attributes:
        leaves: the arrays that move, each [members, heads, records, ...].
        diverged: after how many steps a head was infinite, -1 for never, [members, heads].
    """

    leaves: list[np.ndarray]
    diverged: np.ndarray


def records_of_cell(
    request: TrainingRequest,
    cell: Cell,
    run: RunFolder | None,
    every: int,
    watch: Watcher | None,
) -> Records:
    """Return the records of a cell; with a folder, from its checkpoint and with new ones.

    Args:
        request: what is asked.
        cell: which lengths and seeds.
        run: where it is kept.
        every: how many steps lie between checkpoints.
        watch: what is told now and then how far things are.

    Only the first process touches the folder; the others hear from it.
    """
    recorded, steps = request.plan.recorded_steps, int(request.plan.steps)
    state = first_state(request.plan.rule, start_arrays(request, cell))
    advance = advancer_of_cell(request, cell)
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
    lengths = tuple(length for length, _ in cell)
    while True:
        for place in np.flatnonzero(recorded == step):
            for record, leaf in zip(leaves, jax.tree.leaves(state.parameters), strict=True):
                record[:, :, place] = np.asarray(leaf)
        due = step > 0 and (step % every == 0 or step == steps)
        if due and run is not None and active_devices().writes:
            run.checkpoint(_arrays(state, step, leaves))
        if watch is not None:
            risk = functools.partial(_current_risk, request, cell[0][0], state.parameters)
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
    """Return the risk of the first run of a cell."""
    leaves = [np.asarray(leaf[0, :1]) for leaf in jax.tree.leaves(parameters)]
    start = request.starts[0][0]
    return float(training_moments(request.objectives(start, length), start, leaves)[0].risk[0])


def _arrays(state: TrainingState, step: int, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return what a checkpoint holds."""
    numbers = {f"state.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    records = {f"records.{i}": leaf for i, leaf in enumerate(leaves)}
    return {**numbers, **records, "step": np.array(step)}


def _state(arrays: dict[str, np.ndarray], like: TrainingState) -> TrainingState:
    """Return the state that a checkpoint holds."""
    leaves, structure = jax.tree.flatten(like)
    numbers = [to_device(arrays[f"state.{i}"], leaf.dtype) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(structure, numbers)


class _StepPace:
    """How fast steps are, and how many fit between two looks."""

    def __init__(self, step: int):
        self.rate = 0.0
        self.stride = 8
        self._step, self._time = step, time.perf_counter()

    def seen(self, step: int) -> None:
        now = time.perf_counter()
        if step - self._step < self.stride:
            return
        # The first look holds the compilation: it says nothing of the rate.
        if self.stride > 8:
            self.rate = (step - self._step) / max(now - self._time, 1e-9)
        wanted = int(self.rate * _SECONDS) if self.rate else 64
        self.stride = max(16, min(wanted, 4 * self.stride if self.rate else 64))
        self._step, self._time = step, now


class Shares(NamedTuple):
    """How the seeds of a cell lie over devices: each has all starts, and draws the prompts.

    Between two looks a device is alone with its runs. At a look the state is whole again, on the
    host and in the order it has on one device: a checkpoint does not know how many there were.

    Attributes:
        devices: how many are used.
        starts: how many starts there are.
        seeds: how many seeds there are.
        own: how many of them a device has; the last ones may repeat the last seed.
    """

    devices: int
    starts: int
    seeds: int
    own: int

    def of(self, device: int, runs: Any) -> Any:
        """Return the runs of one device, from arrays [members, starts x seeds, ...]."""
        mine = np.minimum(device * self.own + np.arange(self.own), self.seeds - 1)

        def share(leaf: Any) -> np.ndarray:
            host = np.asarray(leaf)
            split = host.reshape(host.shape[0], self.starts, self.seeds, *host.shape[2:])
            return split[:, :, mine].reshape(host.shape[0], -1, *host.shape[2:])

        return jax.tree.map(share, runs)

    def whole(self, shares: Any) -> Any:
        """Return all runs, from arrays [devices, members, starts x own seeds, ...].

        >>> shares, runs = Shares(2, 1, 3, 2), np.array([[10, 11, 12]])
        >>> both = np.stack([shares.of(0, runs), shares.of(1, runs)])
        >>> both.tolist(), shares.whole(both).tolist()
        ([[[10, 11]], [[12, 12]]], [[10, 11, 12]])
        """

        def join(leaf: np.ndarray) -> np.ndarray:
            members, rest = leaf.shape[1], leaf.shape[3:]
            split = leaf.reshape(-1, members, self.starts, self.own, *rest)
            lined = np.moveaxis(split, 0, 2).reshape(members, self.starts, -1, *rest)
            return lined[:, :, : self.seeds].reshape(members, -1, *rest)

        return jax.tree.map(join, shares)


def shares_of_seeds(seeds: int, starts: int, devices: int, *, all_of_them: bool) -> Shares:
    """Return how to share seeds out: evenly, over no more devices than there is work for.

    Args:
        seeds: how many there are.
        starts: how many starts there are.
        devices: how many there may be.
        all_of_them: whether every device must take part, idle or not.

    >>> shares_of_seeds(5, 2, 4, all_of_them=False)
    Shares(devices=3, starts=2, seeds=5, own=2)
    """
    own = -(-seeds // devices)
    return Shares(devices if all_of_them else -(-seeds // own), starts, seeds, own)


def advancer_of_cell(request: TrainingRequest, cell: Cell) -> Advance:
    """Return what moves a cell on, on the devices at work; one where seeds have their own prompts.

    With several processes all devices take part, since every process must hear of the result.
    """
    team, rule = active_devices(), request.plan.rule
    shares = shares_of_seeds(
        request.seeds, len(request.starts), team.size, all_of_them=team.hosts > 1
    )
    if team.size == 1 or shares.devices == 1 or cell[0][1] is not None:
        return advancer(rule, loss_gradient(request, cell))
    part = dataclasses.replace(request, starts=tuple(row[: shares.own] for row in request.starts))
    program = _device_program(many_steps(rule, loss_gradient(part, cell)))

    def advance(state: TrainingState, first: int, last: int) -> TrainingState:
        bounds = np.array([first, last], np.uint32)
        with use_devices("all" if team.hosts > 1 else shares.devices):
            parts = run_on_devices(program, None, lambda device: (shares.of(device, state), bounds))
        return shares.whole(parts)

    return advance


def _device_program(
    steps: Callable[[TrainingState, Any], TrainingState],
) -> Callable[[None, Any], TrainingState]:
    def program(_: None, part: tuple[TrainingState, Any]) -> TrainingState:
        return steps(*part)

    return program
