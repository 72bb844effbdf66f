"""Options that several commands share. Importing this module loads neither numpy nor jax."""

import difflib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import typer

from promptlimit.cli._console import (
    CommandError,
    UsageError,
    above_zero,
    choice_option,
    number_in,
    use_double_precision,
    whole_number,
    whole_option,
)
from promptlimit.errors import InputFileError

if TYPE_CHECKING:
    import numpy as np

    from promptlimit.files import AttentionProblem
    from promptlimit.tasks import LinearRegression

_MATRICES = 8
"""A problem of dimension d requires memory for at least this number of [d, d] matrices."""
_SUFFIXES = (".npy", ".csv", ".npz", ".json")


def length_in(text: str, option: str = "--lengths") -> int:
    """Return the length that a text such as "1e3" denotes, a whole number from 1 to 1e30.

    >>> length_in("1e3")
    1000
    """
    whole = whole_number(text)
    if whole is None or not 1 <= whole <= 1e30:
        raise UsageError(
            f"{option} must be whole numbers from 1 to 1e30, separated by commas, got '{text}'"
            if option == "--lengths"
            else f"{option} must be a whole number from 1 to 1e30, got '{text}'",
            f"{option} {'10,100,1e6' if option == '--lengths' else '1e6'}",
        )
    return whole


def lengths_in(text: str) -> list[int]:
    """Return the lengths in a text, in increasing order and without duplicates.

    >>> lengths_in("100,1e3,10,10")
    [10, 100, 1000]
    """
    return sorted({length_in(part) for part in text.split(",")})


def input_path(text: str | Path) -> Path:
    """Return the path of an input file; "-" is standard input."""
    return Path("/dev/stdin") if str(text) == "-" else Path(text)


def _source_in(text: str) -> str:
    name, equals, file = text.rpartition("=")
    return f"{name}{equals}{input_path(file)}"


Lengths = Annotated[
    Any,
    typer.Option(
        "--lengths",
        metavar="L,L,...",
        parser=lengths_in,
        help="Prompt lengths: whole numbers from 1 to 1e30, separated by commas.",
    ),
]
Samples = Annotated[
    int, whole_option("--samples", "Prompts to simulate; 0 for none.", least=0, most=10**8)
]
Kernel = Literal["softmax", "linear"]
KERNELS = get_args(Kernel)
Wrt = Annotated[
    str | None,
    typer.Option(
        "--wrt",
        metavar="NAME",
        help="Compare the gradient in this matrix instead of the output: key_query or value; with "
        "factors key_weight, query_weight, value_weight or output.",
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILES]...",
        parser=_source_in,
        help="Files of named arrays (.npz, .json), or NAME=FILE for one array (.npy, .csv as "
        "well); - is standard input. Names: key_query and value, or key_weight, query_weight, "
        "value_weight, output and scale; for the prompt mean and cov, tokens and weights, "
        "half_widths or radius; query, queries (one per row), or query_cov and query_mean.",
    ),
]
Example = Annotated[
    str | None,
    choice_option(
        "--example",
        ("gaussian", "shifted", "tokens", "mixture", "rademacher", "cube", "sphere"),
        "A built-in problem.",
    ),
]
StackExample = Annotated[
    str | None,
    choice_option(
        "--example",
        ("softmax", "linear", "sharp", "mixture"),
        "Three built-in layers with two heads each.",
    ),
]
Prompt = Annotated[
    str | None,
    choice_option(
        "--prompt",
        ("gaussian", "tokens", "rademacher", "cube", "sphere"),
        "The law of the tokens in the files.",
    ),
]
Noise = Annotated[
    float,
    typer.Option(
        "--noise",
        metavar="X",
        parser=number_in("--noise", lambda x: 0.0 <= x < math.inf, "finite and at least 0"),
        help="Noise variance of the labels.",
    ),
]
Dim = Annotated[
    int | None,
    whole_option(
        "--dim", "Dimension of the covariates (default 5, or that of the covariance matrix)."
    ),
]


class Problem(NamedTuple):
    """The options for an attention problem: files, an example, or the standard case.

    In the standard case, tokens and queries are standard normal, U is a multiple of I, and V = I.
    """

    files: Files = None
    example: Example = None
    law: Prompt = None
    dim: Annotated[
        int | None,
        whole_option("--dim", "Standard case: tokens and queries N(0, I_d), U = τI (default 1)."),
    ] = None
    sharpness: Annotated[
        float | None,
        typer.Option(
            "--sharpness",
            metavar="TAU",
            parser=above_zero("--sharpness"),
            help="Standard case: τ (default 0.5).",
        ),
    ] = None

    def load(self) -> "AttentionProblem":
        """Return the problem, in double precision."""
        if self.dim is None and self.sharpness is None:
            return load_problem(
                self.files,
                self.example,
                self.law,
                others=("--dim N", "--sharpness TAU"),
            )
        if self.files or self.example is not None:
            raise UsageError(
                "FILES and --example must not be given together with --dim or --sharpness"
            )
        if self.law is not None:
            raise UsageError("--prompt must be given together with FILES")
        dim = 1 if self.dim is None else self.dim
        require_room(dim)
        use_double_precision()
        from promptlimit.files import standard_problem

        return standard_problem(dim, 0.5 if self.sharpness is None else self.sharpness)


def load_problem(
    files: list[str] | None,
    example: str | None,
    prompt: str | None,
    *,
    kernel: str | None = None,
    stack: bool = False,
    others: tuple[str, ...] = (),
) -> "AttentionProblem":
    """Return the problem in files of named arrays, or an example, in double precision.

    `prompt`, the name of a law of tokens, and `kernel` replace the values in the files. If `stack`,
    the example is a stack. `others` are further options, for the error if no problem is given.
    """
    if bool(files) == (example is not None):
        ways = ("FILES", "--example NAME", *others)
        given = "FILES and --example" if files else "none"
        raise UsageError(
            f"one of {', '.join(ways)} must be given, got {given}",
            f"--example {'softmax' if stack else 'shifted'}",
        )
    if not files and (prompt is not None or kernel is not None):
        option = "--prompt" if prompt is not None else "--kernel"
        raise UsageError(f"{option} must be given together with FILES")
    use_double_precision()
    from promptlimit.files import example_problem, example_stack, read_problem

    if example is not None:
        return example_stack(example) if stack else example_problem(example)
    return read_problem(files or [], prompt=prompt, kernel=kernel)


def require_room(dim: int) -> None:
    """Raise an error if matrices of this dimension do not fit into memory.

    Without this check, the operating system may kill the process for lack of memory.
    """
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 8 * dim**2 > memory / _MATRICES:
        raise CommandError(
            f"--dim must be small enough for memory, got {dim}: a matrix takes "
            f"{8 * dim**2 / 2**30:.4g} GiB",
            "use fewer dimensions",
        )


def matrices_in(
    option: str, text: str, name: str, *others: str, laws: str = ""
) -> "dict[str, np.ndarray]":
    """Return the matrix that is the value of an option, or the arrays of a file, by name.

    Args:
        option: the name of the option, for messages.
        text: the value: rows separated by semicolons, such as "1,0; 0,1", or the path of a file.
        name: the name of the matrix.
        others: the names of further arrays that the file may contain.
        laws: further accepted values of the option, for messages.
    """
    import numpy as np

    path = input_path(text)
    if text == "" or (path.suffix.lower() not in _SUFFIXES and not path.exists()):
        try:
            rows = [[float(part) for part in row.split(",")] for row in text.split(";")]
        except ValueError:
            rows = []
        if len({len(row) for row in rows}) != 1:
            raise UsageError(
                f"{option} must be {laws}a file, or numbers separated by commas, with rows of "
                f"equal length separated by semicolons, got '{text}'",
                f'{option} "1,0.5; 0.5,1"',
            )
        return {name: np.array(rows)}
    single = path.suffix.lower() in (".npy", ".csv")
    source = f"{name}={path}" if single else str(path)
    return named_arrays(source, (name,), others, before=f"{option}: ", unnamed=name)


def named_arrays(
    source: str,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    *,
    before: str = "",
    hint: str | None = None,
    unnamed: str | None = None,
) -> "dict[str, np.ndarray]":
    """Return the arrays of a file by name, or raise an error that lists the required names.

    Args:
        source: the path of a file with named arrays, or NAME=FILE.
        needed: the names of arrays that the file must contain.
        optional: the names of further arrays that the file may contain.
        before: a text that precedes error messages.
        hint: the hint of errors.
        unnamed: the name for a single array without a name, such as an array from a pipe.
    """
    from promptlimit.storage import read_arrays

    allowed = {*needed, *optional}
    try:
        arrays = read_arrays(source, allowed, unnamed=unnamed)
    except InputFileError as problem:
        raise CommandError(f"{before}{problem}", hint) from None
    found = {name: value for name, value in arrays.items() if not isinstance(value, str)}
    if not (allowed.issuperset(arrays) and len(found) == len(arrays) and {*needed} <= {*found}):
        required = " and ".join(f"`{name}`" for name in needed)
        more = ", ".join(f"`{name}`" for name in optional)
        listing = ", ".join(n if n in found else f"{n} (a text)" for n in arrays) or "nothing"
        strays = [name for name in arrays if name not in allowed]
        near = [match for name in strays for match in difflib.get_close_matches(name, allowed, n=1)]
        raise CommandError(
            f"{before}{source.rpartition('=')[2]} must hold {required}"
            f"{f' and optionally {more}' if more else ''}, got {listing}",
            f"did you mean {near[0]}?" if near else hint,
        )
    return found


class CovarianceChoice(NamedTuple):
    """The value of --covariance: the name of a law of the covariates, or matrices.

    Attributes:
        text: the value as text.
        law: the name of the law; empty for matrices.
        correlation: the correlation of neighbouring covariates under the law; 0 for matrices.
        matrices: the matrices by name; empty for a law.
    """

    text: str
    law: str
    correlation: float
    matrices: "dict[str, np.ndarray]"

    def record(self) -> dict[str, Any]:
        """Return the JSON values that determine the covariance."""
        held = {name: matrix.tolist() for name, matrix in self.matrices.items()}
        return {"covariance": self.text, **({"held": held} if held else {})}

    def regression(self, dim: int | None, noise: float) -> "LinearRegression":
        """Return the regression with prior variance 1/dimension, where `dim` None stands for 5.

        The dimension of a matrix is that of the covariates. `dim` must then be equal to it or None.
        """
        use_double_precision()
        from promptlimit.studies.large_prompt.protocol import protocol_task
        from promptlimit.tasks import LinearRegression

        if not self.matrices:
            dim = 5 if dim is None else dim
            require_room(dim)
            return protocol_task(self.law, dim, self.correlation, noise)
        given: dict[str, Any] = {**self.matrices}
        rows = max((1, *self.matrices["covariance"].shape[:1]))
        task = LinearRegression(**given, noise_variance=noise, prior_variance=1.0 / rows)
        if dim not in (None, rows):
            raise UsageError(
                f"--dim must be {rows}, the dimension of --covariance, or omitted, got {dim}"
            )
        return task


def covariance_in(text: str) -> CovarianceChoice:
    """Return the choice that the value of --covariance denotes.

    >>> covariance_in("kms:0.5").correlation
    0.5
    """
    law, _, number = text.partition(":")
    if text == "identity":
        return CovarianceChoice(text, law, 0.0, {})
    if law not in ("kms", "kms-as-coded"):
        names, laws = ("covariance", "query_covariance"), "identity, kms:0.5, kms-as-coded:0.5, "
        matrices = matrices_in("--covariance", text, *names, laws=laws)
        return CovarianceChoice(text, "", 0.0, matrices)
    try:
        correlation = float(number)
    except ValueError:
        correlation = math.nan
    if not -1.0 < correlation < 1.0:
        raise UsageError(
            f"--covariance {law}:R must have R between -1 and 1, got '{text}'",
            f"--covariance {law}:0.5",
        )
    return CovarianceChoice(text, law, correlation, {})


Covariance = Annotated[
    Any,
    typer.Option(
        "--covariance",
        metavar="LAW",
        parser=covariance_in,
        help='identity, kms:0.5, kms-as-coded:0.5, a matrix "1,0.5; 0.5,1", or a file.',
    ),
]
