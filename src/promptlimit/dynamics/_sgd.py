"""Stochastic gradient descent on an in-context task, with fresh prompts at every step."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import jax
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from promptlimit._inputs import Number
from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._comparison import flow_time
from promptlimit.dynamics._requests import require_counts, require_positive
from promptlimit.dynamics._training_request import (
    Cell,
    Sampling,
    Start,
    TrainingRequest,
    require_law,
    require_plan,
    require_record,
    require_whole_lengths,
    resolved_starts,
)
from promptlimit.dynamics._training_risks import measured_along
from promptlimit.dynamics._training_run import Records, Watcher, trained
from promptlimit.parallel import from_writer
from promptlimit.results import (
    Training,
    is_finished,
    load_run,
    locked,
    masked,
    remove_checkpoint,
    require_configuration,
    require_named,
    run_name,
    save_run,
    unmasked,
)
from promptlimit.tasks import AbstractTask, array_names, require_points

_PREFIX = "parameters."
_CURVES = ("key_query", "value_matrix", "value", "gradient_norms", "error")


def sgd(
    start: Start | Sequence[Start],
    task: AbstractTask,
    lengths: Number | Sequence[Number] | np.ndarray,
    *,
    steps: int,
    key: PRNGKeyArray,
    seeds: int = 1,
    own_prompts: bool = False,
    batch: int = 128,
    learning_rate: Number = 1e-3,
    optimiser: optax.GradientTransformation | None = None,
    label: str | None = None,
    record: Sequence[int] | np.ndarray | None = None,
    sampling: str = "tokens",
    packed: bool | None = None,
    points: int = 4096,
    samples: int = 4096,
    folder: str | Path | None = None,
    every: int = 10_000,
    watch: Watcher | None = None,
) -> Training:
    r"""Return the parameters and the exact risks along gradient descent on batches of prompts.

    Each step draws `batch` fresh prompts and descends their mean squared error, twice the task's
    loss, as the paper's experiments do (section 6). All starts and seeds meet the same prompts:
    step k's batch is a function of (key, length, k) alone. On `LinearRegression` training runs in
    a layout made for it, its `batch_gradient`, in single precision, and risks are exact; other
    tasks draw their own prompts. Where a task has no `exact_risk`, risks are estimated on `samples`
    other prompts.

    Inside `spread` the seeds of a length are shared out over the devices, and agree with one device
    to rounding; seeds with prompts of their own run on one.

    Args:
        start: a `SoftmaxAttention`, `LinearAttention` or `Factored`, or another attention that is
            one head; or a function of a key that returns one, called once a seed; or several of
            these, trained on the same prompts.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, one or several whole numbers.
        steps: how many.
        key: randomness.
        seeds: how many runs from each start.
        own_prompts: whether each seed has prompts of its own.
        batch: how many prompts a step has.
        learning_rate: $\eta$ of plain descent.
        optimiser: another rule, from optax; one such rule for each run.
        label: the name of that rule, for the configuration of a run in a folder.
        record: after which steps to record; about ten a decade when None.
        sampling: "tokens", or "law": sums over tokens drawn exactly in law without the tokens,
            faster, but heads then share no prompts.
        packed: whether all lengths run in one program; on an accelerator when None.
        points: of quadrature for exact risks, a power of two.
        samples: how many prompts estimate a risk where it is not exact.
        folder: where runs are kept: finished ones are not run again, others resume at their last
            checkpoint, to the identical bits.
        every: how many steps lie between checkpoints.
        watch: a function told about twice a second how far things are.

    >>> import jax, numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    >>> start = lambda key: pl.uniform_factors(2, key=key)
    >>> found = pl.sgd(start, task, 10, steps=50, key=jax.random.key(0), seeds=2, record=[0, 50])
    >>> print(found.kind, found.value.shape, bool((found.diverged < 0).all()))
    exact (1, 1, 2, 2) True
    """
    require_plan(sampling, steps=steps, batch=batch, seeds=seeds, every=every)
    require_counts(0, samples)
    rate = float(learning_rate)
    require_positive(learning_rate=rate)
    tokens = require_whole_lengths(lengths)
    start_key, prompt_key = jax.random.split(key)
    starts = resolved_starts(start, task, seeds, start_key)
    if seeds > 1 and not own_prompts:
        _require_different(start)
    if folder is not None and optimiser is not None and label is None:
        raise ValueError("`label` must name the optimiser of a run in a folder, got None.")
    on_device = jax.default_backend() != "cpu" if packed is None else packed
    request = TrainingRequest(
        task=task,
        starts=starts,
        lengths=tokens,
        steps=int(steps),
        record=require_record(record, int(steps)),
        batch=int(batch),
        learning_rate=rate,
        optimiser=optax.sgd(rate) if optimiser is None else optimiser,
        label=("sgd" if optimiser is None else "given") if label is None else label,
        key=prompt_key,
        own_prompts=bool(own_prompts),
        sampling=cast(Sampling, sampling),
        packed=bool(on_device) and sampling == "tokens",
        points=require_points(points),
        samples=int(samples),
    )
    require_law(request)
    if folder is not None:
        require_named(request.config())
    found = [_cell(request, cell, folder, int(every), watch) for cell in request.cells]
    return _training(request, found, plain=optimiser is None)


def _require_different(start: Start | Sequence[Start]) -> None:
    given = list(start) if isinstance(start, Sequence) else [start]
    if all(isinstance(each, AbstractAttention) for each in given):
        raise ValueError(
            "`start` must be a function of a key for several seeds on the same prompts, got an "
            "attention: the runs would be one. Pass own_prompts=True, or such a function."
        )


def _cell(
    request: TrainingRequest,
    cell: Cell,
    folder: str | Path | None,
    every: int,
    watch: Watcher | None,
) -> dict[str, np.ndarray]:
    """Return the arrays of a cell, from its folder where it is finished there.

    The folder is the first process's: it reads and writes, and tells the others.
    """
    if folder is None:
        return _arrays(request, cell, trained(request, cell, None, every, watch))
    config = request.config(cell)
    path = Path(folder) / run_name(config)
    with contextlib.ExitStack() as held:

        def begun() -> dict[str, np.ndarray]:
            return {"finished": np.array(_opened(Path(folder), config, held))}

        def ended(records: Records) -> dict[str, np.ndarray]:
            save_run(Path(folder), config, masked(_arrays(request, cell, records)))
            remove_checkpoint(path)
            return {}

        if not from_writer(begun)["finished"]:
            records = trained(request, cell, path, every, watch)
            from_writer(lambda: ended(records))
    return from_writer(lambda: unmasked(load_run(path)[1]))


def _opened(folder: Path, config: dict[str, object], held: contextlib.ExitStack) -> bool:
    """Return whether the run is finished; if not, it is this process's until `held` is closed."""
    if is_finished(folder, config):
        return True
    path = folder / run_name(config)
    held.enter_context(locked(path))
    require_configuration(path / "config.json", config)
    finished = is_finished(folder, config)
    if finished:
        remove_checkpoint(path)
    return finished


def _arrays(request: TrainingRequest, cell: Cell, records: Records) -> dict[str, np.ndarray]:
    """Return what is kept of a cell, each [members, starts, seeds, ...]."""
    members, count = len(cell), request.record.size
    seeds = records.diverged.shape[1] // len(request.starts)
    shape = (members, len(request.starts), seeds)
    leaves = [leaf.reshape(*shape, *leaf.shape[2:]) for leaf in records.leaves]
    rows = []
    for i, (length, _) in enumerate(cell):
        for j, start in enumerate(request.starts):
            flat = [leaf[i, j].reshape(seeds * count, *leaf.shape[4:]) for leaf in leaves]
            moments = measured_along(request, start[0], length, flat)
            error = np.abs(moments.second_risk - moments.risk)
            curves = (moments.key_query, moments.value, moments.risk, moments.gradient_norm, error)
            rows.append([each.reshape(seeds, count, *each.shape[1:]) for each in curves])
    stacked = [np.stack(part) for part in zip(*rows, strict=True)]
    curves = {
        name: each.reshape(*shape, *each.shape[2:])
        for name, each in zip(_CURVES, stacked, strict=True)
    }
    names = array_names(request.starts[0][0])
    parameters = {_PREFIX + name: leaf for name, leaf in zip(names, leaves, strict=True)}
    return {**parameters, **curves, "diverged": records.diverged.reshape(shape)}


def _training(
    request: TrainingRequest, found: list[dict[str, np.ndarray]], *, plain: bool
) -> Training:
    """Return all cells side by side; seeds with prompts of their own become one axis again."""
    arrays = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    if request.own_prompts:
        arrays = {
            name: np.moveaxis(
                array.reshape(len(request.lengths), request.seeds, *array.shape[1:])[:, :, :, 0],
                1,
                2,
            )
            for name, array in arrays.items()
        }
    steps = request.record
    times = np.array([flow_time(int(step), request.learning_rate) for step in steps])
    return Training(
        steps=steps,
        times=times if plain else steps.astype(np.float64),
        lengths=request.lengths,
        kernels=request.kernels,
        parameters={
            name.removeprefix(_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(_PREFIX)
        },
        **{name: arrays[name] for name in _CURVES},
        diverged=arrays["diverged"].astype(np.int64),
        kind="exact" if request.is_exact else "estimate",
        config=request.config(),
    )
