"""`promptlimit gap`: how far finite prompts are from infinite ones, in every kind."""

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import (
    JsonOption,
    SeedOption,
    UsageError,
    as_usage_error,
    emit,
    out_option,
    print_json,
    print_note,
    print_table,
    require_folder,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._inputs import (
    LENGTHS,
    Source,
    Standard,
    WrtOption,
    lengths_in,
    problem_of,
)
from promptlimit.cli._machines import Machines, machines
from promptlimit.cli._progress import progress
from promptlimit.errors import ArgumentError

if TYPE_CHECKING:
    from promptlimit.results import GapCurve, GapReport


def gap(
    source: Source,
    standard: Standard,
    lengths: Annotated[str, LENGTHS] = "10,30,100,300,1e3,3e3,1e4,1e5,1e6,1e8,1e10,1e12",
    wrt: WrtOption = None,
    samples: Annotated[
        int,
        typer.Option(
            "--samples",
            min=0,
            max=10**8,
            help="Prompts to simulate at lengths up to 10,000; 0 for none.",
        ),
    ] = 2048,
    out: Annotated[
        Path | None,
        out_option("Also write gap.json and the figure there."),
    ] = None,
    seed: SeedOption = 0,
    *,
    where: Machines,
    as_json: JsonOption = False,
) -> None:
    """Print the mean square distance between finite and infinite prompts, and how fast it falls.

    One column for each kind: exact, leading order, proved bound, simulated.
    """
    if samples == 1:
        raise UsageError("--samples must be 0 or at least 2, got 1", "one has no error bar")
    sizes = lengths_in(lengths)
    require_folder(out)
    with machines(where) as writes:
        asked = problem_of("gap", source, standard)
        import jax
        import numpy as np

        from promptlimit.concentration import gap_report

        key = jax.random.key(seed) if samples else None
        try:
            with progress("gap") as shown:
                shown.at("computing the gap")
                report = gap_report(
                    *asked.parts,
                    np.array(sizes, float),
                    wrt=wrt,
                    key=key,
                    samples=samples or None,
                )
        except ValueError as problem:
            if isinstance(problem, ArgumentError) and problem.argument == "key":
                words = "--samples must be positive for a problem that can only be simulated, got 0"
                raise UsageError(words, "--samples 512") from None
            raise as_usage_error(problem, "gap", "wrt") from None
        for note in _notes(report):
            print_note(note)
        emit(
            lambda: print_json(report.to_dict()) if as_json else _print(report),
            (lambda: _write(report, out)) if out is not None and writes else None,
        )


def _write(report: "GapReport", out: Path) -> None:
    from promptlimit.storage import write_json

    write_json(out / "gap.json", report.to_dict())
    write_figure("gap_curve", report.to_arrays(), out / "gap")


def _notes(report: "GapReport") -> list[str]:
    """Return what a reader of the curves must know: kinds that are missing, tails not yet met."""
    notes = [f"there is no {_HEADINGS[kind]} gap: {why}" for kind, why in report.missing.items()]
    exact, drawn = report.curve("exact"), report.curve("estimate")
    if exact is not None and drawn is not None:
        away = abs(drawn.value - exact.value[: drawn.lengths.size])
        away /= drawn.error.clip(sys.float_info.min)
        if away.max() > _FAR:
            notes.append(
                f"at L = {drawn.lengths[away.argmax()]:g} simulated and exact are {away.max():.1f} "
                f"standard errors apart: rare queries and prompts carry the mean, {drawn.samples} "
                "draws hardly meet them, and their error is not to be trusted; raise --samples"
            )
    return notes


def _print(report: "GapReport") -> None:
    best = next((curve for curve in report.curves if curve.kind in ("exact", "estimate")), None)
    headings = ["L", *(_HEADINGS[curve.kind] for curve in report.curves)]
    rows = []
    for index, length in enumerate(report.curves[0].lengths):
        row = [f"{length:g}", *(_cell(curve, index) for curve in report.curves)]
        if best is not None:
            row.append(f"{100 * best.relative[index]:.3g}%" if index < best.lengths.size else "")
        rows.append(row)
    print_table([*headings, "relative"] if best is not None else headings, rows)
    if report.exponent is not None and report.curves[0].wrt is None:
        tau = f" (tau {report.exponent.tau:.4g})" if report.exponent.tau else ""
        typer.echo(f"Theory predicts L^-{report.exponent.value:.4g}{tau}.")
    if report.fit is not None:
        whole = report.fit_from == report.curves[0].lengths[0]
        typer.echo(("" if whole else f"From L = {report.fit_from:g} on: ") + report.fit.verdict)


_FAR = 3.5
"""Standard errors from the exact value at which an estimate is remarked upon."""
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
