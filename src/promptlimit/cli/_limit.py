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
from promptlimit.cli._problem_input import (
    FILES_HELP,
    NAMES_HELP,
    ExampleOption,
    PromptOption,
    read_files,
    require_known_example,
)

if TYPE_CHECKING:
    from promptlimit.experiments import Problem
    from promptlimit.results import Limits


def limit(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILES]...", help=FILES_HELP + "query; " + NAMES_HELP),
    ] = None,
    example: ExampleOption = None,
    prompt: PromptOption = None,
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

    if example is not None:
        require_known_example(example)
        return EXAMPLES[example]()
    return problem_from_arrays(read_files(files, prompt, "limit"))


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
