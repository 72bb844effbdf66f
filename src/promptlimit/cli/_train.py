"""`promptlimit train`: training as in the experiments of Boursier and Boyer (2026)."""

import functools
import json
import math
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from promptlimit.cli._console import (
    CommandError,
    CsvOption,
    JsonOption,
    SeedOption,
    UsageError,
    above_zero,
    choice_option,
    out_option,
    print_note,
    require_folder,
    whole_option,
)
from promptlimit.cli._emit import Output, emit
from promptlimit.cli._machines import Machines, machines, run_on_writer
from promptlimit.cli._options import Covariance, Dim, Lengths, Noise, input_path
from promptlimit.cli._progress import AbstractProgress, progress
from promptlimit.errors import ConfigurationError, InputFileError, RunBusyError

if TYPE_CHECKING:
    from promptlimit.dynamics import Progress

_BETWEEN_RISKS = 60.0  # seconds between computations of the risk that the progress shows
_OVERHEAD = 30.0
"""The time of a step over prompts without tokens, divided by the additional time per token."""

_clock = time.monotonic


def _read_config(ctx, value):  # typer passes its context to a parameter without annotation
    """Read the defaults of the options of this command from a TOML file, and check them."""
    file: Path | None = value
    if file is None:
        return None
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise CommandError(f"--config must be a TOML file, got {file}: {reason}") from None
    options = {option.opts[0].removeprefix("--"): option for option in ctx.command.params}
    del options["config"]
    ctx.default_map = {}
    for name, entry in content.items():
        if name not in options:
            raise CommandError(
                f"{file} must contain options of train, got '{name}'",
                f"options are {', '.join(sorted(options))}",
            )
        text = ",".join(map(str, entry)) if isinstance(entry, list) else str(entry)
        try:
            options[name].process_value(ctx, text)
        except CommandError as problem:
            raise type(problem)(f"{file}: {problem.message}", problem.hint) from None
        except typer.BadParameter as problem:
            raise UsageError(f"{file}: {problem.format_message()}") from None
        ctx.default_map[options[name].name] = text
    return file


def _kernels_in(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(names) <= {"softmax", "linear"}:
        raise UsageError(
            f"--kernels must be softmax, linear or both separated by a comma, got '{text}'"
        )
    return names


def train(
    lengths: Lengths = "10,40,100",
    seeds: Annotated[int, whole_option("--seeds", "Random starts.")] = 1,
    steps: Annotated[int, whole_option("--steps", "Steps of each run.")] = 300_000,
    covariance: Covariance = "identity",
    kernels: Annotated[
        Any,
        typer.Option(
            "--kernels", metavar="NAMES", parser=_kernels_in, help="softmax, linear or both."
        ),
    ] = "softmax,linear",
    dim: Dim = None,
    noise_variance: Noise = 0.1,
    batch: Annotated[int, whole_option("--batch", "Prompts per step.")] = 128,
    learning_rate: Annotated[
        float,
        typer.Option("--rate", metavar="X", parser=above_zero("--rate"), help="Learning rate."),
    ] = 1e-3,
    sampling: Annotated[
        Literal["tokens", "law"],
        choice_option(
            "--sampling",
            ("tokens", "law"),
            "Draw all tokens, or draw sums over tokens from their law (faster).",
        ),
    ] = "tokens",
    every: Annotated[int, whole_option("--every", "Steps between checkpoints.")] = 10_000,
    seed: SeedOption = 0,
    config: Annotated[  # noqa: ARG001  # its callback reads the file
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            parser=input_path,
            callback=_read_config,
            is_eager=True,
            help="A TOML file with these options; options on the command line take precedence.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print an estimate of time and memory, and exit.")
    ] = False,
    out: Annotated[
        Path, out_option("The folder of runs and results; the same command resumes from it.")
    ] = Path("training"),
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    *,
    where: Machines,
) -> None:
    """Train attention by gradient descent on fresh prompts, as in the experiments of the paper.

    Softmax and linear attention train from the same random starts and, with --sampling tokens, on
    the same prompts. Interrupted runs resume, and finished runs are not repeated.
    """
    require_folder(out)
    if dry_run and where.distributed:
        raise UsageError("--dry-run must be given without --distributed")
    with progress("train") as shown, machines(where) as writes:
        shown.at("starting")
        task = covariance.regression(dim, noise_variance)
        import jax

        from promptlimit.dynamics import TrainingPlan, sgd, uniform_factors

        arguments: dict[str, Any] = {
            "start": [
                functools.partial(_start, uniform_factors, task.token_dim - 1, kernel)
                for kernel in kernels
            ],
            "task": task,
            "lengths": lengths,
            "plan": TrainingPlan(
                steps=steps, batch=batch, learning_rate=learning_rate, sampling=sampling
            ),
            "key": jax.random.key(seed),
            "seeds": seeds,
        }
        record = {
            "seeds": seeds,
            "steps": steps,
            "kernels": kernels,
            "dim": task.token_dim - 1,
            "noise": noise_variance,
            "batch": batch,
            "rate": learning_rate,
            "sampling": sampling,
            "seed": seed,
            **covariance.record(),
        }
        if dry_run:
            _estimate(arguments, record, out, shown, Output(None, as_json, as_csv))
            return
        runs = len(kernels) * seeds
        weights = {length: 1.0 if sampling == "law" else _OVERHEAD + length for length in lengths}
        watch = _Watch(weights, steps, runs, out, shown)
        is_new = not (out / "train.json").exists()
        try:
            run_on_writer(lambda: _require_record(out / "train.json", record))
            training = sgd(
                **arguments, folder=out / "runs", every=every, watch=watch if writes else None
            )
        except (ConfigurationError, RunBusyError) as problem:
            raise CommandError(str(problem), "choose another --out") from None
        except InputFileError as problem:
            raise CommandError(str(problem), "move that folder elsewhere to train again") from None
        except ValueError:
            if is_new and writes:  # nothing has begun
                (out / "train.json").unlink(missing_ok=True)
            raise
        watch.close()
        shown.close()
        emit(training, Output(out, as_json, as_csv), "training", writes=writes)


def _start(uniform_factors: Any, dim: int, kernel: str, key: Any) -> Any:
    return uniform_factors(dim, key=key, kernel=kernel)


def _require_record(file: Path, record: dict[str, Any]) -> None:
    """Raise an error if the folder contains runs with other options; rewrite a damaged record.

    The record does not contain the lengths, so that runs at further lengths can be added.
    """
    from promptlimit.storage import require_configuration, write_json

    try:
        require_configuration(file, record)
    except InputFileError:  # each run also stores its own configuration
        write_json(file, record)
        print_note(f"{file} was damaged and has been rewritten; finished runs are kept")


def _estimate(
    arguments: dict[str, Any],
    record: dict[str, Any],
    out: Path,
    shown: AbstractProgress,
    output: Output,
) -> None:
    from promptlimit.dynamics import finished_lengths, training_cost

    shown.at("measuring a few steps")
    finished: set[float] = set()
    try:
        if json.loads((out / "train.json").read_text(encoding="utf-8")) == record:
            finished = finished_lengths(out / "runs")
    except (OSError, ValueError):
        pass
    cost = training_cost(**arguments, finished=finished)
    shown.close()
    emit(cost, output, "cost")


class _Watch:
    """Shows the progress of training.

    `weights` contains, for each length, a number proportional to the time of a step. `runs` is the
    number of runs at each length.
    """

    def __init__(
        self,
        weights: Mapping[int, float],
        steps: int,
        runs: int,
        out: Path,
        shown: AbstractProgress,
    ):
        self._shown, self._left, self._runs = shown, list(weights), runs
        self._computed_at, self._error = _clock(), ""
        count = len(weights)
        shown.plan(
            f"{count} length{'s' if count > 1 else ''}, {steps:,} steps of {runs} "
            f"run{'s' if runs > 1 else ''} each, in {out}",
            {f"L = {length}": weight for length, weight in weights.items()},
        )

    def __call__(self, at: "Progress") -> None:
        """Show the progress. The risk takes long, so it is computed at most once a minute."""
        self.close(below=int(at.lengths[0]))
        names = [f"L = {length}" for length in at.lengths]
        if at.done != at.total:
            self._report(at, names)
            if at.rate and _clock() - self._computed_at > _BETWEEN_RISKS:
                self._compute_error(at)
                self._report(at, names)  # the time for the risk does not count as time of steps
            return
        self._compute_error(at)
        self._shown.end(*names, outcome=self._error)
        self._left = [length for length in self._left if length not in at.lengths]
        self._error = ""

    def _compute_error(self, at: "Progress") -> None:
        self._error = self._squared_error(2 * at.risk())
        self._computed_at = _clock()

    def _report(self, at: "Progress", names: list[str]) -> None:
        speed = f"{at.rate:.0f} steps per second" if at.rate else ""
        words = filter(None, (f"step {at.done:,} of {at.total:,}", speed, self._error))
        place = ", ".join(names[:3]) + ", ..." * (len(names) > 3)
        self._shown.at(f"{place}: {', '.join(words)}", dict.fromkeys(names, at.share))

    def close(self, below: int | None = None) -> None:
        """Report all remaining lengths, or only those below `below`, as stored."""
        for length in [left for left in self._left if below is None or left < below]:
            self._left.remove(length)
            self._shown.end(f"L = {length}", outcome="stored", stored=True)

    def _squared_error(self, value: float) -> str:
        which = f" (first of {self._runs} runs)" if self._runs > 1 else ""
        return (f"squared error {value:.4f}" if math.isfinite(value) else "diverged") + which
