"""`promptlimit limit`: softmax and linear attention on one prompt and one query."""

from collections.abc import Sequence
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
    use_double_precision,
)

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.experiments import Problem
    from promptlimit.results import Limits

_FILES_HELP = (
    "Files of named arrays (.npz, .json), or NAME=FILE for one array (.npy, .csv as well). Names: "
    "query; key_query and value, or key_weight, query_weight, value_weight, output and scale; and "
    "for the prompt mean and cov, tokens and weights, half_widths or radius; with half_widths or "
    "radius also prompt: rademacher, cube or sphere."
)


def limit(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILES]...", help=_FILES_HELP)
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="NAME",
            help="A built-in problem: gaussian, shifted, tokens, mixture, rademacher, cube or "
            "sphere.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="LAW",
            help="The tokens' law: gaussian, tokens, rademacher, cube, sphere.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write limit.json there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the softmax limit, the linear limit and the distance between them.

    With tokens in place of a law, the same for that finite prompt.
    """
    if out is not None:
        require_folder(out)
    result = _result(files or [], example, prompt)
    if out is not None:
        from promptlimit.results import write_json

        write_json(out / "limit.json", result.as_json())
    if as_json:
        print_json(result.as_json())
    else:
        OUT.print(_table(result))


def _result(files: Sequence[str], example: str | None, prompt: str | None) -> "Limits":
    try:
        problem = _problem(files, example, prompt)
        from promptlimit.experiments import limits

        return limits(problem)
    except ValueError as problem:
        raise CommandError(str(problem), "promptlimit limit --help lists the names") from None


def _problem(files: Sequence[str], example: str | None, prompt: str | None) -> "Problem":
    if example is not None and prompt is not None:
        raise CommandError(
            "--prompt must not be given with --example, which has a prompt of its own",
            "promptlimit limit --example " + example,
        )
    if bool(files) == (example is not None):
        raise CommandError(
            "either files or --example NAME must be given, and not both",
            "promptlimit limit --example gaussian",
        )
    use_double_precision()
    from promptlimit.experiments import EXAMPLES, problem_from_arrays
    from promptlimit.results import InputFileError, read_arrays

    if example is not None:
        if example not in EXAMPLES:
            raise CommandError(
                f"there is no example '{example}'", f"the examples are {', '.join(EXAMPLES)}"
            )
        return EXAMPLES[example]()
    arrays: dict[str, np.ndarray | str] = {}
    try:
        for source in files:
            arrays.update(read_arrays(source))
    except InputFileError as problem:
        raise CommandError(str(problem), "promptlimit limit --help names what is read") from None
    if prompt is not None:
        arrays["prompt"] = prompt
    return problem_from_arrays(arrays)


def _table(result: "Limits") -> Table:
    table = Table(title=None, box=None, pad_edge=False)
    table.add_column("")
    for index in range(len(result.softmax)):
        table.add_column(f"output {index}", justify="right")
    for name, values in (("softmax", result.softmax), ("linear", result.linear)):
        table.add_row(name, *(f"{value:.10g}" for value in values))
    table.add_row("distance", f"{result.distance:.10g}")
    table.add_row("kind", result.kind)
    return table
