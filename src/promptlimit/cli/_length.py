"""`promptlimit length`: how long a prompt must be."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from promptlimit.cli._console import (
    OUT,
    CommandError,
    JsonOption,
    print_json,
    require_folder,
)
from promptlimit.cli._gap_input import (
    DimOption,
    FilesArgument,
    SharpnessOption,
    WrtOption,
    gap_problem,
)
from promptlimit.cli._problem_input import ExampleOption, PromptOption
from promptlimit.cli._progress import progress

if TYPE_CHECKING:
    from promptlimit.results import RequiredLength

_HEADINGS = {"exact": "exact", "asymptotic": "leading order", "bound": "proved bound"}


def length(
    files: FilesArgument = None,
    example: ExampleOption = None,
    prompt: PromptOption = None,
    dim: DimOption = None,
    sharpness: SharpnessOption = None,
    tolerance: Annotated[
        list[float] | None,
        typer.Option("--tolerance", help="The gap allowed; give it several times for a table."),
    ] = None,
    absolute: Annotated[
        bool,
        typer.Option("--absolute", help="The tolerance is a distance, not a share of the limit."),
    ] = False,
    wrt: WrtOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write length.json there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the length from which the gap stays within a tolerance (0.1 and 0.01 by default).

    One answer for each way of knowing the gap: exact, leading order, proved bound.
    """
    if out is not None:
        require_folder(out)
    problem = gap_problem("length", files or [], example, prompt, dim, sharpness)
    from promptlimit.concentration import required_length

    try:
        with progress("length") as shown:
            shown.at("looking for the length")
            found = [
                required_length(
                    problem.attention,
                    problem.measure,
                    problem.queries,
                    each,
                    wrt=wrt,
                    absolute=absolute,
                )
                for each in tolerance or [0.1, 0.01]
            ]
    except ValueError as refusal:
        hint = "--absolute" if "`absolute`" in str(refusal) else "promptlimit length --help"
        raise CommandError(str(refusal), hint) from None
    document = {"lengths": [each.as_json() for each in found]}
    if out is not None:
        from promptlimit.results import write_json

        write_json(out / "length.json", document)
    if as_json:
        print_json(document)
    else:
        OUT.print(_table(found))


def _table(found: "list[RequiredLength]") -> Table:
    table = Table(title=None, box=None, pad_edge=False)
    table.add_column("tolerance", justify="right")
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right")
    for each in found:
        shown = f"{each.tolerance:g}" if each.absolute else f"{each.tolerance:.3g} relative"
        table.add_row(shown, *(each.describe(kind) for kind in _HEADINGS))
    return table
