"""`promptlimit gap`: how far finite prompts are from infinite ones, in every kind."""

import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from promptlimit.cli._console import (
    OUT,
    CommandError,
    JsonOption,
    SeedOption,
    print_json,
    require_folder,
    warnings_as_notes,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._gap_input import (
    DimOption,
    FilesArgument,
    SharpnessOption,
    WrtOption,
    gap_problem,
    listed_lengths,
)
from promptlimit.cli._machines import (
    CoordinatorOption,
    DevicesOption,
    DistributedOption,
    Machines,
    ProcessesOption,
    ProcessOption,
    machines,
)
from promptlimit.cli._problem_input import ExampleOption, PromptOption
from promptlimit.cli._progress import progress

if TYPE_CHECKING:
    from promptlimit.results import GapCurve, GapReport

_DEFAULT_LENGTHS = "10,30,100,300,1e3,3e3,1e4,1e5,1e6,1e8,1e10,1e12"


def gap(
    files: FilesArgument = None,
    example: ExampleOption = None,
    prompt: PromptOption = None,
    dim: DimOption = None,
    sharpness: SharpnessOption = None,
    lengths: Annotated[
        str, typer.Option("--lengths", metavar="L,L,...", help="Increasing, from 1 to 1e30.")
    ] = _DEFAULT_LENGTHS,
    wrt: WrtOption = None,
    samples: Annotated[
        int,
        typer.Option(
            "--samples", min=0, help="Prompts to simulate at lengths up to 10,000; 0 for none."
        ),
    ] = 512,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Also write gap.json and the figure there."),
    ] = None,
    seed: SeedOption = 0,
    devices: DevicesOption = None,
    distributed: DistributedOption = False,
    coordinator: CoordinatorOption = None,
    processes: ProcessesOption = None,
    process: ProcessOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the mean square distance between finite and infinite prompts, and how fast it falls.

    One column for each kind: exact, leading order, proved bound, simulated.
    """
    if samples == 1:
        raise CommandError("--samples must be 0 or at least 2, got 1", "one has no error bar")
    numbers = _lengths(lengths)
    if out is not None:
        require_folder(out)
    asked = Machines(devices, distributed, coordinator, processes, process)
    with machines(asked) as writes:
        problem = gap_problem("gap", files or [], example, prompt, dim, sharpness)
        import numpy as np

        from promptlimit.experiments import gap_report

        try:
            with warnings_as_notes(), progress("gap") as shown:
                shown.at("computing the gap")
                report = gap_report(problem, np.array(numbers), wrt=wrt, samples=samples, seed=seed)
        except ValueError as refusal:
            raise CommandError(str(refusal), "promptlimit gap --help") from None
        if out is not None and writes:
            _write(report, out)
        if as_json:
            print_json(report.as_json())
        else:
            _print(report)


def _lengths(text: str) -> list[float]:
    numbers = listed_lengths(text)
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        raise CommandError(f"--lengths must increase, got {text}", "sort them, each once")
    return numbers


def _write(report: "GapReport", out: Path) -> None:
    from promptlimit.results import write_json

    write_json(out / "gap.json", report.as_json())
    write_figure("gap_curve", report.as_arrays(), out / "gap")


def _print(report: "GapReport") -> None:
    table = Table(title=None, box=None, pad_edge=False)
    table.add_column("L", justify="right")
    for curve in report.curves:
        table.add_column(_HEADINGS[curve.kind], justify="right")
    best = next((curve for curve in report.curves if curve.kind in ("exact", "estimate")), None)
    if best is not None:
        table.add_column("relative", justify="right")
    for index, length in enumerate(report.curves[0].lengths):
        row = [f"{length:g}", *(_cell(curve, index) for curve in report.curves)]
        if best is not None:
            row.append(f"{100 * best.relative[index]:.3g}%" if index < best.lengths.size else "")
        table.add_row(*row)
    OUT.print(table)
    if report.exponent is not None and report.curves[0].wrt is None:
        tau = f" (tau {report.exponent.tau:.4g})" if report.exponent.tau else ""
        OUT.print(f"Theory predicts L^-{report.exponent.value:.4g}{tau}.")
    if report.fit is not None:
        OUT.print(report.fit.verdict, markup=False)


_HEADINGS = {
    "exact": "exact",
    "asymptotic": "leading order",
    "bound": "bound",
    "estimate": "simulated",
}


def _cell(curve: "GapCurve", index: int) -> str:
    if index >= curve.lengths.size:
        return ""
    value = curve.value[index]
    if not math.isfinite(value):
        return "diverges"
    if curve.kind == "estimate":
        return f"{value:.4g} ± {curve.error[index]:.1g}"
    return f"{value:.10g}" if curve.kind == "exact" else f"{value:.4g}"
