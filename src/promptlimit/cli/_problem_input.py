"""Problems from the command line: files of named arrays, or a built-in example."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import CommandError

if TYPE_CHECKING:
    import numpy as np

NAMES_HELP = (
    "key_query and value, or key_weight, query_weight, value_weight, output and scale; and "
    "for the prompt mean and cov, tokens and weights, half_widths or radius; with half_widths or "
    "radius also prompt: rademacher, cube or sphere."
)
FILES_HELP = (
    "Files of named arrays (.npz, .json), or NAME=FILE for one array (.npy, .csv as well). Names: "
)

ExampleOption = Annotated[
    str | None,
    typer.Option(
        "--example",
        metavar="NAME",
        help="A built-in problem: gaussian, shifted, tokens, mixture, rademacher, cube or sphere.",
    ),
]
PromptOption = Annotated[
    str | None,
    typer.Option(
        "--prompt",
        metavar="LAW",
        help="The tokens' law: gaussian, tokens, rademacher, cube, sphere.",
    ),
]


def require_known_example(example: str) -> None:
    """Refuse an example that does not exist, and list those that do."""
    from promptlimit.experiments import EXAMPLES

    if example not in EXAMPLES:
        raise CommandError(
            f"there is no example '{example}'", f"the examples are {', '.join(EXAMPLES)}"
        )


def read_files(
    files: Sequence[str], prompt: str | None, command: str
) -> "dict[str, np.ndarray | str]":
    """Return the named arrays of all files, later ones replacing earlier ones."""
    from promptlimit.results import InputFileError, read_arrays

    arrays: dict[str, np.ndarray | str] = {}
    try:
        for source in files:
            arrays.update(read_arrays(source))
    except InputFileError as problem:
        hint = f"promptlimit {command} --help names what is read"
        raise CommandError(str(problem), hint) from None
    if prompt is not None:
        arrays["prompt"] = prompt
    return arrays
