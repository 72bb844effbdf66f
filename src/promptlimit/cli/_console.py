"""Results go to standard output; progress, errors and hints go to standard error."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from promptlimit.errors import ArgumentError

OUT = Console(soft_wrap=False, highlight=False)
ERR = Console(stderr=True, highlight=False)
INTERRUPTED = 130
"""What a command that was interrupted exits with, as shells do."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of everything random.")
]


class CommandError(Exception):
    """A command cannot go on; the message says why and the hint what to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str):
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CommandError):
    """What was typed is wrong in itself, whatever the files hold and the machine can do."""

    exit_code = 2


def print_error(message: str, hint: str) -> None:
    """Print an error and its hint, without markup, on standard error, even where all is quiet."""
    ERR.quiet = False
    ERR.print("error:", message, style="bold red", markup=False)
    ERR.print("hint:", hint, markup=False)


def print_json(value: object) -> None:
    """Print a value as JSON on standard output; infinities and NaN do not pass."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 0) -> None:
    """Print columns as wide as their widest entry, whatever the terminal: no digit is cut.

    Args:
        headings: of the columns.
        rows: of them.
        left: how many columns, from the left, begin at their left.
    """
    lines = [tuple(headings), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        padded = [x.ljust(w) if i < left else x.rjust(w) for i, (x, w) in enumerate(cells)]
        typer.echo("  ".join(padded).rstrip())


def emit(show: Callable[[], None], write: Callable[[], None] | None) -> None:
    """Write a result and show it; one that cannot be written is shown all the same."""
    try:
        if write is not None:
            write()
    finally:
        with on_standard_output():
            show()


@contextlib.contextmanager
def on_standard_output() -> Generator[None]:
    """Print results inside, whole, or say that standard output cannot be written."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # or Python would complain once more at its end
        raise OSError(problem.errno, problem.strerror, "standard output") from None


def discard_standard_output() -> None:
    """Discard the results of this process from here on."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open to the end


@contextlib.contextmanager
def ending_at_once(hint: str) -> Generator[None]:
    """Let Ctrl-C end the process inside, with one sentence and the status of a shell.

    A `KeyboardInterrupt` would be raised wherever Python is, in callbacks of compilers too, which
    cannot be unwound: they crash, or swallow it. Files are written whole or not at all, locks and
    workers end with the process.
    """

    def end(*_: object) -> NoReturn:
        cursor = "\x1b[?25h\n" if ERR.is_terminal else ""
        words = f"{cursor}error: interrupted\nhint: {hint}\n"
        with contextlib.suppress(OSError):
            os.write(2, words.encode())  # sys.stderr may be in use at this moment
        os._exit(INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def as_usage_error(problem: ValueError, command: str, *options: str) -> CommandError:
    """Return a refusal of the library; wrong usage where an option of its name was typed."""
    hint = f"promptlimit {command} --help"
    if isinstance(problem, ArgumentError) and problem.argument in options:
        return UsageError(f"--{problem.argument} {problem.requirement}", hint)
    return CommandError(str(problem), hint)


def print_note(message: str) -> None:
    """Print a remark on standard error."""
    ERR.print("note:", message, markup=False, soft_wrap=True)


def require_folder(out: Path | None) -> None:
    """Refuse an output folder that is a file or lies below one, before any work is done."""
    for place in () if out is None else (out, *out.parents):
        below = "" if place == out else f"{out} below "
        if place.is_symlink() and not place.exists():
            raise UsageError(
                f"--out must be a folder, got {below}the link {place}, which leads nowhere",
                "choose another folder",
            )
        if place.exists() and not place.is_dir():
            raise UsageError(
                f"--out must be a folder, got {below}the file {place}", "choose another folder"
            )


def out_option(words: str) -> Any:
    """Return the option `--out DIR` with its help."""
    return typer.Option("--out", metavar="DIR", parser=_folder_in, help=words)


def _folder_in(text: str | Path) -> Path:
    if text == "":
        raise typer.BadParameter("it must name a folder, got no letters")
    return Path(text)


def use_double_precision() -> None:
    """Let jax compute in double precision; the library itself sets no global switch."""
    import jax

    jax.config.update("jax_enable_x64", True)
