"""`promptlimit train`: the paper's training protocol, at any part of it, resumable."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import (
    CommandError,
    JsonOption,
    UsageError,
    as_usage_error,
    emit,
    out_option,
    print_json,
    print_note,
    print_table,
    require_folder,
    use_double_precision,
)
from promptlimit.cli._machines import Machines, by_writer, machines
from promptlimit.cli._progress import AbstractProgress, duration, progress
from promptlimit.cli._train_plan import Plan, TrainOptions, resolve_plan
from promptlimit.errors import ConfigurationError, InputFileError, RunBusyError

if TYPE_CHECKING:
    from promptlimit.dynamics import Progress
    from promptlimit.results import Training

_BETWEEN_RISKS = 10.0  # seconds
_OVERHEAD = 30.0
"""Tokens whose sums take about as long as what a step takes at any length."""


def train(
    options: TrainOptions,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Options from a TOML file.")
    ] = None,
    out: Annotated[
        Path,
        out_option("Where runs and training.json go."),
    ] = Path("training"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, how long, with what memory.")
    ] = False,
    *,
    where: Machines,
    as_json: JsonOption = False,
) -> None:
    """Train attention by gradient descent on fresh prompts, as the paper's experiments do.

    Softmax and linear attention meet the same prompts from the same random starts. Interrupted
    runs resume where they were; finished ones are not run again.
    """
    require_folder(out)
    plan = resolve_plan(options, config)
    if dry_run and where.distributed:
        raise UsageError("--dry-run is for one process", "leave --distributed out")
    with progress("train") as shown, machines(where) as writes:
        shown.at("starting")
        use_double_precision()
        try:
            if dry_run:
                _show_plan(plan, out, as_json, shown)
                return
            training = _train(plan, out, shown, writes=writes)
        except ValueError as problem:
            raise as_usage_error(problem, "train") from None
        shown.close()
        if not writes:
            return
        from promptlimit.storage import write_json

        emit(
            lambda: print_json(training.to_dict()) if as_json else _print(training),
            lambda: write_json(out / "training.json", training.to_dict()),
        )


class _Watch:
    """Tells how far training is; a length that is never seen was finished before."""

    def __init__(self, plan: Plan, out: Path, shown: AbstractProgress):
        self._shown, self._left = shown, plan.lengths
        config, count = plan.config, len(plan.lengths)
        self._runs = len(config["kernels"]) * config["seeds"]
        self._looked, self._error = 0.0, ""
        shown.plan(
            f"{count} length{'s' if count > 1 else ''}, {config['steps']:,} steps of "
            f"{self._runs} run{'s' if self._runs > 1 else ''} each, into {out}",
            {f"L = {length}": _OVERHEAD + length for length in plan.lengths},
        )

    def __call__(self, at: "Progress") -> None:
        """Tell how far a cell is; its risk takes a while and is asked for now and then."""
        self.passed(int(at.lengths[0]))
        ended, now = at.done == at.total, time.monotonic()
        if ended or (at.rate and now - self._looked > _BETWEEN_RISKS):
            self._error, self._looked = self._squared_error(2 * at.risk()), now
        names = [f"L = {length}" for length in at.lengths]
        if ended:
            self._shown.end(*names, outcome=self._error)
            self._left = [length for length in self._left if length not in at.lengths]
            self._error = ""
            return
        speed = f"{at.rate:.0f} steps a second" if at.rate else ""
        words = filter(None, (f"step {at.done:,} of {at.total:,}", speed, self._error))
        where = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        self._shown.at(f"{where}: {', '.join(words)}", dict.fromkeys(names, at.share))

    def passed(self, before: int | None = None) -> None:
        """Tell that lengths below this one, or all, needed no training: they were not seen."""
        for length in [left for left in self._left if before is None or left < before]:
            self._left.remove(length)
            self._shown.end(f"L = {length}", outcome="stored", stored=True)

    def _squared_error(self, value: float) -> str:
        which = f" (first of {self._runs} runs)" if self._runs > 1 else ""
        return (f"squared error {value:.4f}" if math.isfinite(value) else "diverged") + which


def _require_plan(file: Path, plan: Plan) -> None:
    """Refuse a folder of another plan; a damaged `train.json` is written again."""
    from promptlimit.storage import require_configuration, write_json

    try:
        require_configuration(file, plan.record())
    except InputFileError:  # runs are named by their own configuration, and are kept
        write_json(file, plan.record())
        print_note(f"{file} was damaged and has been written again; finished runs are kept")


def _train(plan: Plan, out: Path, shown: AbstractProgress, *, writes: bool = True) -> "Training":
    arguments = plan.arguments()
    file, new = out / "train.json", not (out / "train.json").exists()
    try:
        by_writer(lambda: _require_plan(file, plan))
        watch = _Watch(plan, out, shown)
        training = plan.call(arguments, folder=out / "runs", watch=watch if writes else None)
        watch.passed()
        return training
    except (ConfigurationError, RunBusyError) as problem:
        raise CommandError(str(problem), "promptlimit train --out ANOTHER") from None
    except InputFileError as problem:
        raise CommandError(str(problem), "move that folder elsewhere to train again") from None
    except OSError as problem:
        raise CommandError(
            f"--out must be a folder that can be written, but {problem}", "choose another folder"
        ) from None
    except ValueError:
        if new and writes:  # nothing was begun: do not stand in the way of what is right
            file.unlink(missing_ok=True)
        raise


def _show_plan(plan: Plan, out: Path, as_json: bool, shown: AbstractProgress) -> None:
    from promptlimit.cli._train_estimate import estimate

    shown.at("measuring a few steps")
    cost = estimate(plan, out)
    shown.close()
    if as_json:
        print_json(cost)
        return
    rows = [
        (str(cell["length"]), str(cell["runs"]), cell["state"], f"{cell['seconds']:.0f}")
        for cell in cost["cells"]
    ]
    print_table(("length", "runs", "state", "seconds"), rows)
    typer.echo(f"about {duration(cost['seconds'])} and {cost['megabytes']:.0f} MB on this machine")


def _print(training: "Training") -> None:
    import numpy as np

    rows = []
    for i, length in enumerate(training.lengths):
        for j, kernel in enumerate(training.kernels):
            ends = 2 * training.value[i, j, :, -1]
            well = ends[np.isfinite(ends)]
            lost = int((training.diverged[i, j] >= 0).sum())
            numbers = [np.median(well), well.min(), well.max()] if well.size else [np.nan] * 3
            error = np.nanmax(2 * training.error[i, j, :, -1]) if well.size else np.nan
            ending = (f"{error:.1e}", f"{lost} of {ends.size}", training.kind)
            rows.append((str(length), kernel, *(f"{x:.4f}" for x in numbers), *ending))
    columns = ("length", "kernel", "squared error", "best", "worst", "± points", "diverged", "kind")
    print_table(columns, rows)
