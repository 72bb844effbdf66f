"""`promptlimit reproduce`: decide the paper's claims and redraw the figures."""

import difflib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from promptlimit.cli._console import (
    OUT,
    CommandError,
    JsonOption,
    SeedOption,
    compile_sooner,
    print_json,
    require_folder,
    use_double_precision,
)
from promptlimit.cli._progress import progress
from promptlimit.cli._reproduced import write_provenance
from promptlimit.cli._workers import made

if TYPE_CHECKING:
    from promptlimit.results import Check, ClaimResult

_COLOURS = {
    "holds": "green",
    "holds with a change": "yellow",
    "does not hold": "red",
    "not decidable here": "magenta",
}


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Claims by number or name, figures by name."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Do less, in a few minutes; the verdicts stand.")
    ] = False,
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            metavar="HOW",
            help="exact: gradient flows and short training runs; full: also the paper's whole "
            "training protocol.",
        ),
    ] = "exact",
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where claims and figures go.")
    ] = Path("report"),
    seed: SeedOption = 0,
    list_items: Annotated[
        bool, typer.Option("--list", help="List what can be reproduced and exit.")
    ] = False,
    figures_only: Annotated[
        bool, typer.Option("--figures-only", help="Draw the figures, decide nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Decide the claims of the paper, redraw its figures, and write both on one page.

    What is in the folder already, from the same code and the same options, is not computed again.
    Exits 0 when every verdict is the one on record, 1 otherwise.
    """
    setting_words = {"seed": seed, "quick": quick, "protocol": _protocol(protocol)}
    with progress("reproduce") as shown:
        shown.at("starting")
        compile_sooner()
        use_double_precision()
        from promptlimit import experiments
        from promptlimit.reporting import write_page

        began = time.monotonic()
        claims, figures = experiments.all_claims(), experiments.all_figures()
        if list_items:
            shown.close()
            _list(claims, figures)
            return
        if names:
            claims, figures = _chosen(names, claims, figures)
        require_folder(out)
        folder = out / "runs" / experiments.engine_hash()
        setting = experiments.Setting(**setting_words, folder=folder)
        wanted = [*(() if figures_only else claims), *figures]
        items = made(wanted, setting, out, shown, whole=not names)
    results = [item.result for item in items if item.result is not None]
    paths = [path for item in items if item.result is None for path in item.paths]
    paths.append(write_provenance(out, setting, items, began, whole=not names and not figures_only))
    if as_json:
        print_json({"seed": seed, "claims": [result.as_json() for result in results]})
    else:
        for result in results:
            _print_claim(result)
    paths.append(write_page(out))  # last: what others left in the folder may stop it
    if not as_json:
        _print_summary(results, paths, out)
    if not all(result.as_expected for result in results):
        raise typer.Exit(1)


def _protocol(word: str) -> str:
    if word not in ("exact", "full"):
        raise CommandError(
            f"--protocol must be exact or full, got '{word}'", "full takes minutes on a GPU"
        )
    return word


def _list(claims: Sequence, figures: Sequence) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for claim in claims:
        table.add_row(f"{claim.number}", claim.name, claim.reference)
    for recipe in figures:
        table.add_row("", recipe.name, recipe.title)
    OUT.print(table)


def _chosen(names: Sequence[str], claims: Sequence, figures: Sequence) -> tuple[list, list]:
    by_name = {str(claim.number): claim for claim in claims}
    by_name |= {item.name: item for item in (*claims, *figures)}
    for name in names:
        if name not in by_name:
            near = difflib.get_close_matches(name, by_name, n=1)
            known = ", ".join(item.name for item in (*claims, *figures))
            hint = f"did you mean '{near[0]}'?" if near else f"known are {known}"
            raise CommandError(f"there is no claim or figure '{name}'", hint)
    wanted = [by_name[name] for name in names]
    return (
        [claim for claim in claims if claim in wanted],
        [recipe for recipe in figures if recipe in wanted],
    )


def _print_claim(result: "ClaimResult") -> None:
    colour = _COLOURS[result.verdict]
    OUT.print(f"[bold]{result.number}. {result.name}[/] ({result.reference})")
    OUT.print(Padding(escape(result.statement), (0, 0, 0, 3)))
    table = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    for check in result.checks:
        table.add_row("  ", *_check_row(check))
    OUT.print(table)
    if result.evidence:
        OUT.print(Padding(escape(result.evidence), (0, 0, 0, 3)))
    news = "" if result.as_expected else f" (on record: {result.expected})"
    OUT.print(f"   verdict: [{colour}]{result.verdict}[/]{news}\n")


def _check_row(check: "Check") -> tuple[str, ...]:
    mark = "[green]ok[/]" if check.passed else "[red]no[/]"
    name = check.name if check.role == "statement" else f"{check.role}: {check.name}"
    error = "" if check.error is None else f" ± {check.error:.1g}"
    return (
        mark,
        escape(name),
        f"{check.value:.3g}{error}",
        f"{check.relation} {check.tolerance:.3g}",
    )


def _print_summary(results: "Sequence[ClaimResult]", paths: Sequence[Path], out: Path) -> None:
    if results:
        well = sum(result.as_expected for result in results)
        OUT.print(f"{well} of {len(results)} verdicts as on record: {out / 'claims'}")
    for path in paths:
        OUT.print(str(path), markup=False)
