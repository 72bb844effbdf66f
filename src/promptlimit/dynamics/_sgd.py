"""Stochastic gradient descent on an in-context task, with fresh prompts at every step.

`_steps` defines runs, groups of runs and sequences of prompts. "The paper" is Boursier and Boyer,
arXiv:2512.11784.
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Number, numpy_only, require_unmasked
from promptlimit._inputs import require_random_key
from promptlimit.attention import AbstractAttention, array_names
from promptlimit.dynamics._plan import TrainingPlan, require_count
from promptlimit.dynamics._starts import Start, starts_of_seeds
from promptlimit.dynamics._steps import (
    RunGroup,
    TrainingRequest,
    TrainingState,
    first_state,
    take_steps,
)
from promptlimit.errors import ArgumentError
from promptlimit.parallel import (
    active_devices,
    agreed,
    alone,
    from_writer,
    run_on_devices,
    use_devices,
)
from promptlimit.results import Length, Training
from promptlimit.storage import (
    Progress,
    RunFolder,
    Watcher,
    pack_nonfinite,
    unpack_nonfinite,
    watching,
)
from promptlimit.tasks import AbstractTask

_PREFIX = "parameters."
_SECONDS = 0.5  # between two progress reports
_CURVES = ("value", "gradient_norms", "error")
_MOMENTS = ("key_query", "value_matrix", *_CURVES)


@numpy_only("Use `risk_gradient` outside, or `tasks.risk_function` for linear regression.")
def sgd(
    start: Start | Sequence[Start],
    task: AbstractTask,
    lengths: Number | Sequence[Number] | np.ndarray,
    plan: TrainingPlan,
    *,
    key: PRNGKeyArray,
    seeds: int = 1,
    independent_prompts: bool = False,
    packed: bool | None = None,
    folder: str | Path | None = None,
    every: int = 10_000,
    watch: Watcher | bool | None = True,
) -> Training:
    r"""Return the parameters and risks along stochastic gradient descent on fresh prompts.

    Each step draws a batch of prompts and minimises twice the mean loss. For a regression, twice
    the mean loss is the mean squared error, as in section 6 of the paper. By default all starts
    and seeds train on the same prompts: the batch of step k depends only on the key, the length
    and k. At an infinite length the prompt is the law itself, and only queries are drawn. Recorded
    risks are exact if a rule computes them; otherwise they are estimated on prompts that are
    independent of the training prompts.

    Training is in single precision. At finite lengths, a rule of `tasks.BATCH_GRADIENT` computes
    the gradients of single heads on `LinearRegression`; other gradients use automatic
    differentiation. Inside `use_devices` the seeds of a length are distributed over the devices,
    unless each seed has independent prompts. Results agree with those of one device up to rounding.

    Args:
        start: an attention, whose arrays are trained; a function of a random key that returns an
            attention, called once per seed; or a list of these, all trained on the same prompts.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, one or several whole numbers or `math.inf`.
        plan: steps, optimiser, batches and recorded steps.
        key: the random key.
        seeds: the number of runs from each start.
        independent_prompts: whether each seed draws separate prompts.
        packed: whether one compiled program trains all finite lengths; by default True except on a
            CPU. It has no effect if `sampling` of the plan is "law".
        folder: where to store runs. Finished runs are read from this folder. Interrupted runs
            resume from their last checkpoint, with the same bits as without interruption.
        every: the number of steps between checkpoints.
        watch: True shows a progress bar on a terminal or in a notebook; a function is called with
            the `Progress` about twice a second; False shows nothing.

    >>> import jax, numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    >>> start = pl.dynamics.block_start(task, 0.3)
    >>> plan = pl.TrainingPlan(steps=50, learning_rate=0.01, record=[0, 50])
    >>> trained = pl.sgd(start, task, 10, plan, key=jax.random.key(0))
    >>> print(trained.kind, trained.value.shape, bool((trained.diverged < 0).all()))
    exact (1, 1, 1, 2) True

    The gradient flow from the same start is close:

    >>> flow = pl.gradient_flow(start, task, 10, plan.times)
    >>> print(pl.trajectory_gap(trained.trajectory(), flow).merged.max() < 0.02)
    True
    """
    if not isinstance(plan, TrainingPlan):
        raise ArgumentError(
            "plan",
            f"must be a TrainingPlan, got {type(plan).__name__}. Pass TrainingPlan(steps=1000).",
        )
    require_count(seeds=seeds, every=every)
    require_random_key(key)
    tokens = _require_lengths(lengths)
    start_key, prompt_key = jax.random.split(key)
    starts = starts_of_seeds(start, task, seeds, start_key)
    if seeds > 1 and not independent_prompts:
        _require_different(start)
    if folder is not None and plan.optimiser is not None and plan.label is None:
        raise ArgumentError("label", "must name the optimiser of a run in a folder, got None.")
    in_one = jax.default_backend() != "cpu" if packed is None else packed
    request = TrainingRequest(
        starts=starts,
        task=task,
        lengths=tokens,
        plan=plan,
        key=prompt_key,
        independent_prompts=bool(independent_prompts),
        packed=bool(in_one) and plan.sampling == "tokens",
    )
    _require_law(request)
    groups = [
        (group, None if folder is None else RunFolder(folder, request.config(group.sequences)))
        for group in request.groups
    ]
    with watching(watch if active_devices().writes else False, "training") as watcher:
        arrays = [_group_arrays(group, run, int(every), watcher) for group, run in groups]
    return _training(request, arrays)


def _require_different(start: Start | Sequence[Start]) -> None:
    several = list(start) if isinstance(start, Sequence) else [start]
    if all(isinstance(one, AbstractAttention) for one in several):
        raise ArgumentError(
            "start",
            "must be a function of a key for several seeds on the same prompts, got an "
            "attention, which makes all runs equal. Pass such a function, or "
            "independent_prompts=True.",
        )


def _require_lengths(lengths: object) -> tuple[Length, ...]:
    """Return the lengths as whole numbers or infinity."""
    require_unmasked("lengths", lengths)
    several: list[Any] = list(lengths) if isinstance(lengths, Sequence | np.ndarray) else [lengths]
    bad = [length for length in several if not _counts_tokens(length)]
    if bad or not several or len(set(several)) < len(several):
        what = bad[0] if bad else several
        raise ArgumentError(
            "lengths", f"must be whole numbers from 1 or math.inf, each once, got {what}."
        )
    return tuple(math.inf if length == math.inf else int(length) for length in several)


def _counts_tokens(length: object) -> bool:
    whole = isinstance(length, Integral) or (isinstance(length, float) and math.isinf(length))
    return whole and cast(float, length) >= 1


def _require_law(request: TrainingRequest) -> None:
    """Raise an error if the plan requests `sampling="law"` where it is not supported."""
    if request.plan.sampling == "tokens":
        return
    if not request.are_heads or math.inf in request.lengths:
        names = ", ".join(dict.fromkeys(request.kernels))
        raise ArgumentError(
            "sampling",
            "must be 'tokens' unless every start is one head and every length is "
            f"finite, got 'law' for {names} at lengths {list(request.lengths)}.",
        )
    if request.groups[0].fused_gradient is None:
        raise ArgumentError(
            "sampling",
            f"must be 'tokens' for {type(request.task).__name__}, got 'law'. "
            "No rule draws the sums of its prompts.",
        )


def _group_arrays(
    group: RunGroup, run: RunFolder | None, every: int, watch: Watcher | None
) -> dict[str, np.ndarray]:
    """Train a group and return its arrays; read them from the folder if the group is finished.

    Only process 0 reads and writes the folder.
    """
    if run is None:
        return _arrays(group, _records(group, None, every, watch))
    with contextlib.ExitStack() as locks:

        def begin() -> dict[str, np.ndarray]:
            if not run.finished:
                locks.enter_context(run.lock())
            return {"finished": np.array(run.finished)}

        def end(records: Records) -> dict[str, np.ndarray]:
            run.save(pack_nonfinite(_arrays(group, records)))
            return {}

        if not from_writer(begin)["finished"]:
            records = _records(group, run, every, watch)
            from_writer(lambda: end(records))
    return from_writer(lambda: unpack_nonfinite(run.load()))


def _arrays(group: RunGroup, records: "Records") -> dict[str, np.ndarray]:
    """Return the arrays to store for a group, each [sequences, starts, seeds, ...]."""
    request, count = group.request, group.request.plan.recorded_steps.size
    shape = (len(group.sequences), len(request.starts), group.seeds)
    leaves = [leaf.reshape(*shape, *leaf.shape[2:]) for leaf in records.leaves]
    rows = []
    for i, length in enumerate(group.lengths):
        for j, risk in enumerate(request.risks[length]):
            flat = [leaf[i, j].reshape(group.seeds * count, *leaf.shape[4:]) for leaf in leaves]
            with jax.enable_x64(True):
                moments, error = risk.mean_moments(flat)
            rows.append((*moments, error))
    curves = {
        name: np.stack(columns).reshape(*shape, count, *columns[0].shape[1:])
        for name, columns in zip(_MOMENTS, zip(*rows, strict=True), strict=True)
        if not any(column is None for column in columns)
    }
    names = array_names(request.starts[0][0])
    parameters = {_PREFIX + name: leaf for name, leaf in zip(names, leaves, strict=True)}
    return {**parameters, **curves, "diverged": records.diverged.reshape(shape)}


def _training(request: TrainingRequest, groups: list[dict[str, np.ndarray]]) -> Training:
    """Combine the arrays of all groups into one result, with axes for lengths, starts and seeds."""
    sequences = [sequence for group in request.groups for sequence in group.sequences]
    order = sorted(range(len(sequences)), key=lambda i: request.lengths.index(sequences[i][0]))
    arrays = {name: np.concatenate([group[name] for group in groups])[order] for name in groups[0]}
    if request.independent_prompts:
        lengths, seeds = len(request.lengths), request.seeds
        arrays = {
            name: np.moveaxis(array.reshape(lengths, seeds, *array.shape[1:])[:, :, :, 0], 1, 2)
            for name, array in arrays.items()
        }
    return Training(
        steps=request.plan.recorded_steps,
        times=request.plan.times,
        lengths=request.lengths,
        kernels=request.kernels,
        parameters={
            name.removeprefix(_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(_PREFIX)
        },
        key_query=arrays.get("key_query"),
        value_matrix=arrays.get("value_matrix"),
        **{name: arrays[name] for name in _CURVES},
        diverged=arrays["diverged"].astype(np.int64),
        kind=request.kind,
        config=request.config(request.lengths),
    )


# ---------------------------------------------------------------- the loop


class Records(NamedTuple):
    """The parameters of a group of runs at the recorded steps.

    Attributes:
        leaves: the trained arrays, each [sequences, runs, recorded steps, ...].
        diverged: `TrainingState.diverged` after the last step, [sequences, runs].
    """

    leaves: list[np.ndarray]
    diverged: np.ndarray


def _records(group: RunGroup, run: RunFolder | None, every: int, watch: Watcher | None) -> Records:
    """Train a group and return its records.

    With a folder, training resumes from the last checkpoint and writes new checkpoints. Process 0
    reads the checkpoint and sends the state to the other processes.
    """
    plan = group.request.plan
    recorded, steps = plan.recorded_steps, int(plan.steps)
    state = jax.tree.map(np.asarray, first_state(plan.rule, group.first_arrays))
    leaves = [
        np.zeros((*leaf.shape[:2], recorded.size, *leaf.shape[2:]), leaf.dtype)
        for leaf in jax.tree.leaves(state.parameters)
    ]
    step = 0
    if run is not None:
        like = _checkpoint(state, steps, leaves)
        arrays = from_writer(lambda: run.resume(like) or {})
        if arrays:
            structure = jax.tree.structure(state)
            numbers = [arrays[f"state.{i}"] for i in range(structure.num_leaves)]
            state, step = jax.tree.unflatten(structure, numbers), int(arrays["step"])
            leaves = [arrays[f"records.{i}"] for i in range(len(leaves))]
    advance, pace = _advancer(group), _StepPace(step)
    while True:
        for place in np.flatnonzero(recorded == step):
            for record, leaf in zip(leaves, jax.tree.leaves(state.parameters), strict=True):
                record[:, :, place] = leaf
        due = step > 0 and (step % every == 0 or step == steps)
        if due and run is not None and active_devices().writes:
            run.checkpoint(_checkpoint(state, step, leaves))
        if watch is not None:
            risk = functools.partial(_current_risk, group, state.parameters)
            watch(Progress(step, steps, pace.rate, group.lengths, risk))
        if step == steps:
            return Records(leaves, np.asarray(state.diverged))
        stops = [steps, step - step % every + every, step + pace.stride]
        stops += recorded[recorded > step][:1].tolist()
        end = int(agreed(np.array(min(stops))))
        state, step = advance(state, step, end), end
        pace.update(step)


def _checkpoint(state: TrainingState, step: int, leaves: list[np.ndarray]) -> dict[str, np.ndarray]:
    numbers = {f"state.{i}": leaf for i, leaf in enumerate(jax.tree.leaves(state))}
    records = {f"records.{i}": leaf for i, leaf in enumerate(leaves)}
    return {**numbers, **records, "step": np.array(step)}


def _current_risk(group: RunGroup, parameters: Any) -> float:
    """Return the risk of the first run of a group at the current parameters."""
    leaves = [leaf[0, :1] for leaf in jax.tree.leaves(parameters)]
    risk = group.request.risks[group.lengths[0]][0]
    with jax.enable_x64(True):
        return float(risk.mean_moments(leaves, sets=1)[0].risk[0])


class _StepPace:
    """The measured number of steps per second, and the number of steps between two reports."""

    def __init__(self, step: int):
        self.rate = 0.0
        self.stride = 8
        self._step, self._time = step, time.perf_counter()

    def update(self, step: int) -> None:
        """Measure the pace once `stride` steps have passed since the last measurement."""
        now = time.perf_counter()
        if step - self._step < self.stride:
            return
        # The first stride includes compilation, so it does not measure the rate.
        if self.stride > 8:
            self.rate = (step - self._step) / max(now - self._time, 1e-9)
        wanted = int(self.rate * _SECONDS) if self.rate else 64
        self.stride = max(16, min(wanted, 4 * self.stride if self.rate else 64))
        self._step, self._time = step, now


# ---------------------------------------------------------------- runs on devices


def runs_of_devices(seeds: int, starts: int, devices: int) -> np.ndarray:
    """Return the indices of the runs of each device, [devices, runs per device].

    The run of start i and seed j has the index `seeds * i + j`. All starts of a seed are on one
    device, because they share prompts. If the number of seeds is not a multiple of the number of
    devices, some devices repeat the last seed.

    >>> runs_of_devices(3, 2, 2).tolist()
    [[0, 1, 3, 4], [2, 2, 5, 5]]
    """
    per_device = -(-seeds // devices)
    places = np.minimum(np.arange(devices * per_device), seeds - 1)
    return (seeds * np.arange(starts)[:, None] + places.reshape(devices, 1, -1)).reshape(
        devices, -1
    )


def _advancer(group: RunGroup) -> Callable[[TrainingState, int, int], TrainingState]:
    """Return a function (state, first, last) -> the state after steps first, ..., last - 1.

    The steps run on the active devices, or on one device if seeds have independent prompts. With
    several processes, seeds that share prompts run on all devices, because every process needs
    the result. The state contains all runs in order, as NumPy arrays, so that a checkpoint does
    not depend on the number of devices.
    """
    team, request = active_devices(), group.request
    per_device = -(-group.seeds // team.size)
    needed = -(-group.seeds // per_device)
    devices = team.size if team.hosts > 1 and group.shares_prompts else needed
    runs = runs_of_devices(group.seeds, len(request.starts), devices)
    first = np.unique(runs, return_index=True)[1]
    if devices > 1:
        starts = tuple(row[:per_device] for row in request.starts)
        group = dataclasses.replace(group, request=dataclasses.replace(request, starts=starts))
    shared = request.plan.rule, group.gradient

    def whole(leaf: np.ndarray) -> np.ndarray:
        """Return [sequences, runs, ...] from [devices, sequences, runs per device, ...]."""
        lined = np.moveaxis(leaf, 0, 1)
        return lined.reshape(leaf.shape[1], -1, *leaf.shape[3:])[:, first]

    def advance(state: TrainingState, start: int, stop: int) -> TrainingState:
        bounds = np.array([start, stop], np.uint32)

        def part(device: int) -> tuple[TrainingState, np.ndarray]:
            return jax.tree.map(lambda leaf: leaf[:, runs[device]], state), bounds

        everyone: int | str = "all" if team.hosts > 1 else devices
        with alone() if devices == 1 else use_devices(everyone):
            return jax.tree.map(whole, run_on_devices(take_steps, shared, part))

    return advance
