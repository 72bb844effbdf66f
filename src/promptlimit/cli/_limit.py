"""`promptlimit limit`: softmax and linear attention on one prompt and one query."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from promptlimit.cli._console import (
    CommandError,
    JsonOption,
    emit,
    out_option,
    print_json,
    print_table,
    require_folder,
)
from promptlimit.cli._inputs import Source, problem_of

if TYPE_CHECKING:
    from promptlimit.results import Limits


def limit(
    source: Source,
    out: Annotated[
        Path | None,
        out_option("Also write limit.json there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the softmax limit, the linear limit and the distance between them.

    With tokens in place of a law, the same for that finite prompt.
    """
    require_folder(out)
    problem = problem_of("limit", source)
    from promptlimit.cli._problems import limits
    from promptlimit.storage import write_json

    try:
        result = limits(problem)
    except ValueError as refusal:
        raise CommandError(str(refusal), "promptlimit limit --help lists the names") from None
    emit(
        lambda: print_json(result.to_dict()) if as_json else _print(result),
        None if out is None else lambda: write_json(out / "limit.json", result.to_dict()),
    )


def _print(result: "Limits") -> None:
    outputs = len(result.softmax)
    rows = [
        ["softmax", *(f"{value:.10g}" for value in result.softmax)],
        ["linear", *(f"{value:.10g}" for value in result.linear)],
        ["distance", f"{result.distance:.10g}", *[""] * (outputs - 1)],
        ["kind", result.kind, *[""] * (outputs - 1)],
    ]
    print_table(["", *(f"output {index}" for index in range(outputs))], rows, left=1)
