"""Results go to standard output; progress, errors, hints and notes go to standard error."""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

ERR = Console(stderr=True, highlight=False)
INTERRUPTED = 130
"""The exit status of an interrupted command, which is that of shells."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
CsvOption = Annotated[
    bool, typer.Option("--csv", help="Print the result as CSV, with a line of names.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Random seed.")]


class CommandError(Exception):
    """A command cannot continue.

    Attributes:
        message: what is wrong.
        hint: a suggestion.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CommandError):
    """An option or an argument of the command line is wrong, independently of any file."""

    exit_code = 2


def print_error(message: str, hint: str) -> None:
    """Print an error and its hint on standard error, even in a process that prints nothing else."""
    ERR.quiet = False
    ERR.print("error:", message, style="bold red", markup=False, soft_wrap=True)
    ERR.print("hint:", hint, markup=False, soft_wrap=True)


def print_note(message: str) -> None:
    """Print a note on standard error."""
    ERR.print("note:", message, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value without infinities and NaN as JSON."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


@contextlib.contextmanager
def on_standard_output() -> Generator[None]:
    """Flush standard output at the end; report a failure with the name of the stream."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # or Python would report it again at exit
        raise OSError(problem.errno, problem.strerror, "standard output") from None


def discard_standard_output() -> None:
    """Discard everything that this process prints on standard output from now on."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open to the end


@contextlib.contextmanager
def exiting_on_interrupt(hint: str) -> Generator[None]:
    """On Ctrl-C, print one line and exit with status 130.

    A `KeyboardInterrupt` could be raised inside a callback of the compiler, which crashes or
    ignores it. Files are written atomically; locks and workers end with the process.
    """

    def end(*_: object) -> NoReturn:
        cursor = "\x1b[?25h\n" if ERR.is_terminal else ""
        with contextlib.suppress(OSError):
            # not by sys.stderr, which may be in use at this moment
            os.write(2, f"{cursor}error: interrupted\nhint: {hint}\n".encode())
        os._exit(INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def require_folder(out: Path | None) -> None:
    """Raise an error if a folder cannot be made because a file or a broken link has its name."""
    for place in () if out is None else (out, *out.parents):
        is_link = place.is_symlink() and not place.exists()
        if is_link or (place.exists() and not place.is_dir()):
            below = "" if place == out else f"{out} below "
            found = f"the {'broken link' if is_link else 'file'} {place}"
            raise UsageError(f"--out must be a folder, got {below}{found}", "choose another folder")


def file_in(text: str | Path) -> Path:
    """Return the path of a file to write; raise an error if no file can be created there."""
    path = Path(text)
    if text == "" or path.is_dir():
        raise UsageError(f"--out must name a file, got '{text}'")
    require_folder(path.parent)
    if path.is_symlink() and not path.exists():
        raise UsageError(f"--out must be a file, got the broken link {path}")
    return path


def out_option(words: str) -> Any:
    """Return the option `--out DIR` with its help."""
    return typer.Option("--out", metavar="DIR", parser=_folder_in, help=words)


def _folder_in(text: str | Path) -> Path:
    if text == "":
        raise UsageError("--out must name a folder, got ''")
    return Path(text)


def use_double_precision() -> None:
    """Compute in double precision; the library itself sets no global flag."""
    import jax

    jax.config.update("jax_enable_x64", True)
