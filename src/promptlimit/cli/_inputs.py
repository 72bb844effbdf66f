"""What commands take alike, in one vocabulary: problems, lengths, covariances. No jax here."""

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from promptlimit.cli._console import CommandError, UsageError, use_double_precision
from promptlimit.errors import InputFileError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.cli._problems import ProblemSpec
    from promptlimit.tasks import LinearRegression

EXAMPLES = ("gaussian", "shifted", "tokens", "mixture", "rademacher", "cube", "sphere")

PROMPTS = {
    "gaussian": ("mean", "cov"),
    "tokens": ("tokens", "weights"),
    "rademacher": ("half_widths",),
    "cube": ("half_widths",),
    "sphere": ("radius",),
}
OF_PROMPTS = {name for names in PROMPTS.values() for name in names}
MERGED = ("key_query", "value")
FACTORS = ("key_weight", "query_weight", "value_weight", "output", "scale")
QUERIES = {"query", "queries", "query_mean", "query_cov"}
ARRAY_NAMES = frozenset({"prompt", *MERGED, *FACTORS, *OF_PROMPTS, *QUERIES})
"""What arrays of a problem may be called."""

STACK_NAMES = frozenset({"prompt", "kernel", "residual", "query", *MERGED, *OF_PROMPTS})
"""What arrays of a stack may be called."""

_MATRICES = 8
"""How many matrices of its dimension a problem holds at least, beside what it computes."""

LENGTHS = typer.Option(
    "--lengths", metavar="L,L,...", help="Whole numbers from 1 to 1e30, commas between."
)
COVARIANCE = typer.Option(
    "--covariance", metavar="LAW", help="identity, kms:0.5, kms-as-coded:0.5 or a file."
)
WrtOption = Annotated[
    str | None,
    typer.Option(
        "--wrt",
        metavar="NAME",
        help="Compare the gradient in this matrix, not the output: key_query or value; with "
        "factors key_weight, query_weight, value_weight or output.",
    ),
]


class Source(NamedTuple):
    """A problem in files, or an example."""

    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILES]...",
            help="Files of named arrays (.npz, .json), or NAME=FILE for one array (.npy, .csv as "
            "well). Names: query; for gap, length and stream also queries one a row, or query_cov "
            "and query_mean for Gaussian ones; key_query and value, or key_weight, query_weight, "
            "value_weight, output and scale; and for the prompt mean and cov, tokens and weights, "
            "half_widths or radius; with half_widths or radius also prompt: rademacher, cube or "
            "sphere.",
        ),
    ] = None
    example: Annotated[
        str | None,
        typer.Option(
            "--example", metavar="NAME", help=f"A built-in problem: {', '.join(EXAMPLES)}."
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="LAW",
            help="The tokens' law: gaussian, tokens, rademacher, cube, sphere.",
        ),
    ] = None


class Standard(NamedTuple):
    """The standard case."""

    dim: Annotated[
        int | None,
        typer.Option(
            "--dim", min=1, help="The standard case: tokens and queries N(0, I_d), U = τI."
        ),
    ] = None
    sharpness: Annotated[
        float | None,
        typer.Option("--sharpness", metavar="TAU", help="τ of the standard case (0.5)."),
    ] = None


def problem_of(
    command: str,
    source: Source,
    standard: Standard | None = None,
    *,
    with_law: bool = True,
) -> "ProblemSpec":
    """Return the problem of the files, of the example or of the standard case.

    Args:
        command: which asks.
        source: files or an example.
        standard: what describes the standard case; None where there is one query, of files or of
            the example.
        with_law: whether files must describe a prompt.
    """
    is_standard = standard is not None and standard != (None, None)
    if [bool(source.files), source.example is not None, is_standard].count(True) != 1:
        ways = "files or --example NAME"
        if standard is not None:
            ways = "files, --example NAME, or --dim, --sharpness or both"
        raise UsageError(
            f"the problem must be given in one way: {ways}",
            f"promptlimit {command} --example shifted",
        )
    if source.prompt is not None and not source.files:
        raise UsageError(
            "--prompt must be given with files only",
            f"promptlimit {command} head.npz half_widths=widths.csv query=query.csv --prompt cube",
        )
    if source.example is not None and source.example not in EXAMPLES:
        raise UsageError(
            f"there is no example '{source.example}'", f"the examples are {', '.join(EXAMPLES)}"
        )
    sharpness = 0.5 if standard is None or standard.sharpness is None else standard.sharpness
    require_positive("--sharpness", sharpness, 0.5)
    arrays = read_files(source.files or [], source.prompt, command)  # before jax, which takes long
    use_double_precision()
    from promptlimit.cli import _problems

    if source.example is not None:
        return _problems.example(source.example)
    if standard is not None and is_standard:
        require_room(standard.dim or 1)
        return _problems.standard_case(standard.dim or 1, sharpness)
    try:
        return _problems.from_arrays(arrays, one_query=standard is None, with_law=with_law)
    except ValueError as refusal:
        hint = f"promptlimit {command} --help lists the names"
        raise CommandError(str(refusal), hint) from None


def read_files(
    files: Sequence[str],
    prompt: str | None,
    command: str,
    names: Collection[str] = ARRAY_NAMES,
) -> "dict[str, np.ndarray | str]":
    """Return the named arrays of all files, later ones replacing earlier ones."""
    from promptlimit.storage import read_arrays

    arrays: dict[str, np.ndarray | str] = {}
    try:
        for source in files:
            arrays.update(read_arrays(source, names))
    except InputFileError as refusal:
        hint = f"promptlimit {command} --help names what is read"
        raise CommandError(str(refusal), hint) from None
    if prompt is not None:
        arrays["prompt"] = prompt
    return arrays


def lengths_in(text: str) -> list[int]:
    """Return the lengths that --lengths lists, in increasing order, each once.

    >>> lengths_in("100,1e3,10,10")
    [10, 100, 1000]
    """
    try:
        numbers = {_whole(part) for part in text.split(",")}
    except (ValueError, OverflowError):
        numbers = {0}
    if not all(1 <= number <= 1e30 for number in numbers):
        raise UsageError(
            f"--lengths must be whole numbers from 1 to 1e30 with commas between, got '{text}'",
            "--lengths 10,100,1e6",
        )
    return sorted(numbers)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else 0


def require_positive(option: str, value: float, default: float) -> None:
    """Refuse a number that is not positive and finite."""
    if not 0.0 < value < math.inf:
        raise UsageError(
            f"{option} must be positive and finite, got {value:g}", f"{option} {default:g}"
        )


def require_room(dim: int) -> None:
    """Refuse a dimension whose matrices would fill the memory of this machine.

    Asking for them is no test: a system may promise more than it has, and end the process later.
    """
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 8 * dim**2 > memory / _MATRICES:
        size = f"{8 * dim**2 / 2**30:.4g} GiB"
        raise CommandError(
            f"--dim {dim} takes matrices of {size}, more than there is room for",
            "fewer dimensions need less",
        )


def choices(option: str, text: str, known: Sequence[str], most: int = 1) -> list[str]:
    """Return the names that an option lists, with commas between."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if len(names) > most or not set(names) <= set(known):
        words = f"{'among' if most > 1 else 'one of'} {', '.join(known)}"
        raise UsageError(f"{option} must be {words}, got '{text}'", f"{option} {known[0]}")
    return names


def covariance_law(text: str) -> tuple[str, float] | None:
    """Return the name and the correlation of a covariance; None where a file must hold it.

    >>> covariance_law("kms:0.5")
    ('kms', 0.5)
    """
    name, _, number = text.partition(":")
    if text == "identity":
        return name, 0.0
    if name not in ("kms", "kms-as-coded"):
        return None
    try:
        correlation = float(number)
    except ValueError:
        correlation = math.nan
    if not -1.0 < correlation < 1.0:
        raise UsageError(
            f"--covariance {name}:R must have R between -1 and 1, got '{text}'",
            f"--covariance {name}:0.5",
        )
    return name, correlation


def require_covariance(text: str) -> None:
    """Refuse a covariance that is neither a law nor in a file, before anything is begun."""
    if covariance_law(text) is None:
        covariance_arrays(text)


def covariance_arrays(text: str) -> "dict[str, np.ndarray]":
    """Return what the file named by --covariance holds: the matrix, and perhaps that of queries."""
    from promptlimit.storage import read_arrays

    hint = "--covariance kms:0.5"
    names = {"covariance", "query_covariance"}
    single = Path(text).suffix.lower() in (".npy", ".csv")
    try:
        arrays = read_arrays(f"covariance={text}" if single else text, names)
    except InputFileError as refusal:
        raise CommandError(
            f"--covariance must be identity, kms:0.5, kms-as-coded:0.5 or a file: {refusal}", hint
        ) from None
    if "covariance" not in arrays or not set(arrays) <= names:
        raise CommandError(
            f"{text} must hold covariance and perhaps query_covariance, got {', '.join(arrays)}",
            hint,
        )
    words = [name for name, value in arrays.items() if isinstance(value, str)]
    if words:
        raise CommandError(f"{text} must hold numbers in {words[0]}, got a text", hint)
    return {name: value for name, value in arrays.items() if not isinstance(value, str)}


def regression(covariance: str, dim: int, noise: float) -> "LinearRegression":
    """Return the regression with the covariance that was named, of that dimension unless a file's.

    The prior variance of the weights is one over the dimension.
    """
    from promptlimit.studies.large_prompt.protocol import protocol_task
    from promptlimit.tasks import LinearRegression

    law = covariance_law(covariance)
    if law is not None:
        require_room(dim)
        return protocol_task(law[0], dim, law[1], noise)
    arrays = covariance_arrays(covariance)
    return LinearRegression(
        arrays["covariance"],
        query_covariance=arrays.get("query_covariance"),
        noise_variance=noise,
        prior_variance=1.0 / max((1, *arrays["covariance"].shape[:1])),
    )
