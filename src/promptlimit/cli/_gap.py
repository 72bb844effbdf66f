"""`promptlimit gap`: how far finite prompts are from infinite ones, in every kind."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import (
    OUT,
    JsonOption,
    SeedOption,
    UsageError,
    deliver,
    print_json,
    print_note,
    print_table,
    refusal,
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
            "--samples", min=0, help="Prompts to simulate at lengths up to 10,000; 0 for none."
        ),
    ] = 512,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Also write gap.json and the figure there."),
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
            if "can only be simulated" in str(problem):
                words = "--samples must be positive for a problem that can only be simulated, got 0"
                raise UsageError(words, "--samples 512") from None
            raise refusal(problem, "gap", "wrt") from None
        deliver(
            lambda: print_json(report.as_json()) if as_json else _print(report),
            (lambda: _write(report, out)) if out is not None and writes else None,
        )


def _write(report: "GapReport", out: Path) -> None:
    from promptlimit.results import write_json

    write_json(out / "gap.json", report.as_json())
    write_figure("gap_curve", report.as_arrays(), out / "gap")


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
    for kind, reason in report.missing.items():
        print_note(f"there is no column '{_HEADINGS[kind]}': {reason}")
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
