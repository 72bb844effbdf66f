"""How long training would take, and with what memory: measured on a few steps."""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptlimit.cli._train_plan import Plan

if TYPE_CHECKING:
    from promptlimit.dynamics import Progress

_BASE = 450.0  # megabytes of a process with jax and the tables of weight statistics
_MOST_SEEDS = 8


class _EnoughError(Exception):
    """The rate is known."""


def estimate(plan: Plan, out: Path) -> dict[str, Any]:
    """Return the cells, what is left of them in seconds, and megabytes."""
    seeds = plan.config["seeds"]
    share = min(seeds, _MOST_SEEDS) / seeds  # of them is measured, and the time is proportional
    arguments: dict[str, Any] = {**plan.arguments(), "seeds": min(seeds, _MOST_SEEDS)}
    ends = sorted({min(plan.lengths), max(plan.lengths)})
    seconds = [1.0 / share / _rate(arguments, length) for length in ends]
    slope = 0.0 if len(ends) == 1 else (seconds[1] - seconds[0]) / (ends[1] - ends[0])
    runs = len(plan.config["kernels"]) * seeds
    finished = _finished(plan, out)
    cells: list[dict[str, Any]] = []
    for length in plan.lengths:
        left = 0 if length in finished else plan.config["steps"]
        step = max(seconds[0] + slope * (length - ends[0]), 0.0)
        state = "finished" if left == 0 else "to do"
        cells.append({"length": length, "runs": runs, "state": state, "seconds": left * step})
    return {
        "cells": cells,
        "seconds": sum(cell["seconds"] for cell in cells),
        "megabytes": _BASE + _arrays(plan, arguments["task"].token_dim) / 1e6,
    }


def _rate(arguments: Mapping[str, Any], length: int) -> float:
    """Return steps a second at one length, after compilation."""
    rates = []

    def watch(progress: "Progress") -> None:
        if progress.rate and progress.done > 100:
            rates.append(progress.rate)
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        many = dataclasses.replace(arguments["plan"], steps=10**6)
        Plan.call({**arguments, "lengths": length, "plan": many}, watch=watch)
    return rates[0]


def _finished(plan: Plan, out: Path) -> set[int]:
    """Return the lengths whose runs of this plan are finished in the folder.

    An accelerator trains several lengths together, and those with another one anew.
    """
    from promptlimit.storage import RunFolder

    try:
        if json.loads((out / "train.json").read_text(encoding="utf-8")) != plan.record():
            return set()
        done: list[Any] = [run.config for run in RunFolder.inside(out / "runs") if run.finished]
        cells = [{int(length) for length, _ in config["lengths"]} for config in done]
        return set().union(*(cell for cell in cells if cell <= set(plan.lengths)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return set()


def _arrays(plan: Plan, dim: int) -> float:
    """Return the bytes of a step's arrays: blocks on a CPU, all lengths on an accelerator."""
    import jax

    on_cpu = jax.default_backend() == "cpu"
    tokens = max(2**14, *plan.lengths) if on_cpu else plan.config["batch"] * sum(plan.lengths)
    heads = len(plan.config["kernels"]) * plan.config["seeds"]
    return 4.0 * tokens * (4 * dim + 4 * heads)
