"""Stochastic gradient descent on an in-context task, with fresh prompts at every step."""

import contextlib
import math
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._arrays import Number, numpy_only, require_unmasked
from promptlimit.attention import AbstractAttention, array_names
from promptlimit.dynamics._plan import TrainingPlan, require_count
from promptlimit.dynamics._risks import RISK_SETS, training_moments
from promptlimit.dynamics._run import Records, records_of_cell
from promptlimit.dynamics._starts import Start, starts_of_seeds
from promptlimit.dynamics._step import Cell, TrainingRequest
from promptlimit.errors import ArgumentError
from promptlimit.parallel import active_devices, from_writer
from promptlimit.results import Length, Training
from promptlimit.storage import RunFolder, Watcher, pack_nonfinite, unpack_nonfinite, watching
from promptlimit.tasks import AbstractTask

_PREFIX = "parameters."
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
    r"""Return the parameters and the exact risks along gradient descent on batches of prompts.

    Each step draws a batch of fresh prompts and descends twice the mean of the task's loss: of a
    regression the mean squared error, as the paper's experiments do (section 6). All starts and
    seeds meet the same prompts: step k's batch is a function of (key, length, k) alone. One head on
    `LinearRegression` trains in a layout made for it, a rule of `tasks.BATCH_GRADIENT`, in single
    precision; other attentions and other tasks train on prompts that the task draws. At an infinite
    length a prompt is its law, and the queries are what is drawn. Where no rule computes the risk,
    risks are estimated on other prompts.

    Inside `use_devices` the seeds of a length are distributed over the devices; results agree with
    those of one device to rounding. Seeds with independent prompts run on one device.

    Args:
        start: any attention, its arrays are what moves; or a function of a key that returns one,
            called once a seed; or several of these, trained on the same prompts.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, one or several whole numbers; `math.inf` too.
        plan: how many steps of which rule, on which batches, and what is recorded.
        key: randomness.
        seeds: how many runs from each start.
        independent_prompts: whether each seed has prompts of its own.
        packed: whether all lengths run in one program; on an accelerator when None.
        folder: where runs are kept: finished ones are not run again, others resume at their last
            checkpoint, to the identical bits.
        every: how many steps lie between checkpoints.
        watch: True shows a progress bar on a terminal or in a notebook; a function is called with
            the `Progress` about twice a second; False shows nothing.

    >>> import jax, numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    >>> start = pl.dynamics.block_start(task, 0.3)
    >>> plan = pl.TrainingPlan(steps=50, learning_rate=0.01, record=[0, 50])
    >>> trained = pl.sgd(start, task, 10, plan, key=jax.random.key(0))
    >>> print(trained.kind, trained.value.shape, bool((trained.diverged < 0).all()))
    exact (1, 1, 1, 2) True

    Beside the gradient flow from the same start:

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
    tokens = _require_lengths(lengths)
    start_key, prompt_key = jax.random.split(key)
    starts = starts_of_seeds(start, task, seeds, start_key)
    if seeds > 1 and not independent_prompts:
        _require_different(start)
    if folder is not None and plan.optimiser is not None and plan.label is None:
        raise ArgumentError("label", "must name the optimiser of a run in a folder, got None.")
    to_device = jax.default_backend() != "cpu" if packed is None else packed
    request = TrainingRequest(
        starts=starts,
        task=task,
        lengths=tokens,
        plan=plan,
        key=prompt_key,
        independent_prompts=bool(independent_prompts),
        packed=bool(to_device) and plan.sampling == "tokens",
    )
    _require_law(request)
    cells = [
        (cell, None if folder is None else RunFolder(folder, request.config(cell)))
        for cell in request.cells
    ]
    with watching(watch if active_devices().writes else False, "training") as watcher:
        arrays = [_cell_arrays(request, cell, run, int(every), watcher) for cell, run in cells]
    return _training(request, arrays)


def _require_different(start: Start | Sequence[Start]) -> None:
    several = list(start) if isinstance(start, Sequence) else [start]
    if all(isinstance(one, AbstractAttention) for one in several):
        raise ArgumentError(
            "start",
            "must be a function of a key for several seeds on the same prompts, got an "
            "attention: the runs would be one. Pass independent_prompts=True, or such a function.",
        )


def _require_lengths(lengths: object) -> tuple[Length, ...]:
    """Return the lengths as whole numbers or infinity, or say what is wrong with them."""
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
    """Refuse to sample in law where the task does not know how."""
    if request.plan.sampling == "tokens":
        return
    if not request.are_heads or math.inf in request.lengths:
        names = ", ".join(dict.fromkeys(request.kernels))
        raise ArgumentError(
            "sampling",
            "must be 'tokens' where starts are not one head each or a length is "
            f"infinite, got 'law' for {names} at lengths {list(request.lengths)}.",
        )
    if request.own_gradient(request.cells[0]) is None:
        raise ArgumentError(
            "sampling",
            f"must be 'tokens' for {type(request.task).__name__}, got 'law'. "
            "No rule draws the sums of its prompts in law.",
        )


def _cell_arrays(
    request: TrainingRequest, cell: Cell, run: RunFolder | None, every: int, watch: Watcher | None
) -> dict[str, np.ndarray]:
    """Return the arrays of a cell, from its folder where it is finished there.

    The folder is the first process's: it reads and writes, and tells the others.
    """
    if run is None:
        return _arrays(request, cell, records_of_cell(request, cell, None, every, watch))
    with contextlib.ExitStack() as locks:

        def begin() -> dict[str, np.ndarray]:
            if not run.finished:
                locks.enter_context(run.lock())
            return {"finished": np.array(run.finished)}

        def end(records: Records) -> dict[str, np.ndarray]:
            run.save(pack_nonfinite(_arrays(request, cell, records)))
            return {}

        if not from_writer(begin)["finished"]:
            records = records_of_cell(request, cell, run, every, watch)
            from_writer(lambda: end(records))
    return from_writer(lambda: unpack_nonfinite(run.load()))


def _arrays(request: TrainingRequest, cell: Cell, records: Records) -> dict[str, np.ndarray]:
    """Return what is kept of a cell, each [members, starts, seeds, ...]."""
    members, count = len(cell), request.plan.recorded_steps.size
    seeds = records.diverged.shape[1] // len(request.starts)
    shape = (members, len(request.starts), seeds)
    leaves = [leaf.reshape(*shape, *leaf.shape[2:]) for leaf in records.leaves]
    rows = []
    for i, (length, _) in enumerate(cell):
        for j, (start, *_) in enumerate(request.starts):
            flat = [leaf[i, j].reshape(seeds * count, *leaf.shape[4:]) for leaf in leaves]
            objectives = request.objectives(start, length)
            moments, error = training_moments(
                objectives, start, flat, RISK_SETS, exact=request.is_exact
            )
            rows.append((*moments, error))
    curves = {
        name: np.stack(columns).reshape(*shape, count, *columns[0].shape[1:])
        for name, columns in zip(_MOMENTS, zip(*rows, strict=True), strict=True)
        if not any(column is None for column in columns)
    }
    names = array_names(request.starts[0][0])
    parameters = {_PREFIX + name: leaf for name, leaf in zip(names, leaves, strict=True)}
    return {**parameters, **curves, "diverged": records.diverged.reshape(shape)}


def _training(request: TrainingRequest, cells: list[dict[str, np.ndarray]]) -> Training:
    """Return all cells side by side; seeds with prompts of their own become one axis again."""
    members = [member for cell in request.cells for member in cell]
    order = [members.index(member) for member in request.members]
    arrays = {name: np.concatenate([cell[name] for cell in cells])[order] for name in cells[0]}
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
        config=request.config(),
    )
