"""The time and memory of `sgd`, extrapolated from a few measured steps."""

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.dynamics._plan import TrainingPlan
from promptlimit.dynamics._sgd import sgd
from promptlimit.results import TrainingCost
from promptlimit.storage import Progress, RunFolder
from promptlimit.tasks import AbstractTask

_BASE = 450.0  # megabytes of a process that loads jax and tables of weight statistics
_MOST_SEEDS = 8


class _EnoughError(Exception):
    """Raised by a progress callback to stop `sgd` once its rate has been measured."""


def training_cost(
    start: Sequence[Callable[[PRNGKeyArray], AbstractAttention]],
    task: AbstractTask,
    lengths: Sequence[int],
    plan: TrainingPlan,
    *,
    key: PRNGKeyArray,
    seeds: int = 1,
    finished: Collection[float] = (),
) -> TrainingCost:
    """Return the time and memory that `sgd` would take with these arguments on this machine.

    Steps are timed at the shortest and the longest length, with at most 8 seeds. The time of a step
    is assumed to be linear in the length and proportional to the number of seeds.

    Args:
        start: as for `sgd`.
        task: as for `sgd`.
        lengths: as for `sgd`.
        plan: as for `sgd`.
        key: the random key.
        seeds: as for `sgd`.
        finished: lengths of stored runs, which take no time.
    """
    few = min(seeds, _MOST_SEEDS)
    ends = sorted({min(lengths), max(lengths)})
    measured = [seeds / few / _rate(start, task, end, plan, key=key, seeds=few) for end in ends]
    step = np.maximum(np.interp(lengths, ends, measured), 0.0)
    done = np.array([length in finished for length in lengths])
    runs = len(start) * seeds
    on_cpu = jax.default_backend() == "cpu"
    tokens = max(2**14, *lengths) if on_cpu else plan.batch * sum(lengths)
    return TrainingCost(
        lengths=np.array(lengths, np.float64),
        seconds=np.where(done, 0.0, plan.steps * step),
        finished=done,
        runs=runs,
        megabytes=_BASE + 16e-6 * tokens * (task.token_dim + runs),
    )


def finished_lengths(folder: Path) -> set[float]:
    """Return the lengths of the finished runs in a folder; empty if a run is damaged."""
    try:
        configs = [run.config for run in RunFolder.inside(folder) if run.finished]
        return {float(length) for config in configs for length, _ in cast(Any, config["lengths"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _rate(
    start: Sequence[Callable[[PRNGKeyArray], AbstractAttention]],
    task: AbstractTask,
    length: int,
    plan: TrainingPlan,
    *,
    key: PRNGKeyArray,
    seeds: int,
) -> float:
    """Return the number of steps per second at one length, excluding compilation."""
    rates = []

    def watch(progress: Progress) -> None:
        if progress.rate and progress.done > 100:
            rates.append(progress.rate)
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        many = dataclasses.replace(plan, steps=10**6)
        sgd(start, task, length, many, key=key, seeds=seeds, watch=watch)
    return rates[0]
