"""Options and messages of commands. Results go to standard output, all messages to stderr."""

import contextlib
import difflib
import json
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

ERR = Console(stderr=True, highlight=False)
INTERRUPTED = 130
"""The exit status of an interrupted command, as in shells."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
CsvOption = Annotated[
    bool, typer.Option("--csv", help="Print the result as CSV, with a line of names.")
]


class CommandError(Exception):
    """A command cannot continue: `message` is the reason, and `hint` a suggestion or None."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(CommandError):
    """An option or an argument of the command line is wrong, independently of any file."""

    exit_code = 2


def whole_number(text: str | int) -> int | None:
    """Return the whole number that a text denotes; None for any other text.

    >>> whole_number("1e3"), whole_number("1.5")
    (1000, None)
    """
    try:
        if str(text).strip().isdecimal():
            return int(text)
        number = float(text)
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def whole_option(flag: str, words: str, least: int = 1, most: int = 2**31 - 1) -> Any:
    """Return an option for a whole number from `least` to `most`, with `words` as its help."""

    def parse(text: str | int) -> int:
        number = whole_number(text)
        if number is None or not least <= number <= most:
            bound = f"at least {least}" if number is None or number < least else f"at most {most}"
            raise UsageError(f"{flag} must be a whole number of {bound}, got '{text}'")
        return number

    return typer.Option(flag, metavar="N", parser=parse, help=words)


def choice_option(flag: str, choices: Sequence[str], words: str) -> Any:
    """Return an option for one of several words, with `words` as its help."""

    def parse(text: str) -> str:
        if text not in choices:
            near = difflib.get_close_matches(text, choices, n=1)
            raise UsageError(
                f"{flag} must be one of {', '.join(choices)}, got '{text}'",
                f"did you mean '{near[0]}'?" if near else None,
            )
        return text

    return typer.Option(
        flag,
        metavar="|".join(choices),
        parser=parse,
        autocompletion=lambda incomplete: [c for c in choices if c.startswith(incomplete)],
        help=words,
    )


def number_in(option: str, accepts: Callable[[float], bool], words: str) -> Any:
    """Return a parser of numbers that raises an error if `accepts` returns False.

    The error contains `option`, the name of the option, and `words`, which describe valid numbers.
    """

    def parse(text: str | float) -> float:
        try:
            number = float(text)
        except ValueError:
            raise UsageError(f"{option} must be {words}, got '{text}'") from None
        if not accepts(number):
            raise UsageError(f"{option} must be {words}, got {text}")
        return number

    return parse


def any_number(option: str) -> Any:
    """Return a parser of numbers, for an option whose range the library checks."""
    return number_in(option, lambda _: True, "a number")


def above_zero(option: str) -> Any:
    """Return a parser of positive finite numbers."""
    return number_in(option, lambda number: 0.0 < number < math.inf, "positive and finite")


SeedOption = Annotated[int, whole_option("--seed", "Random seed.", least=0, most=2**63 - 1)]


def print_error(message: str, hint: str) -> None:
    """Print an error and its hint on standard error, even in a process whose notes are silenced."""
    ERR.quiet = False
    ERR.print("error:", message, style="bold red", markup=False, soft_wrap=True)
    ERR.print("hint:", hint, markup=False, soft_wrap=True)


def print_note(message: str) -> None:
    """Print a note on standard error."""
    ERR.print("note:", message, markup=False, soft_wrap=True)


def print_json(value: object) -> None:
    """Print a value as JSON; it must not contain infinities or NaN."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


@contextlib.contextmanager
def on_standard_output() -> Generator[None]:
    """Return a context for printing, in which errors contain the name "standard output"."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # otherwise Python reports the error again at exit
        raise OSError(problem.errno, problem.strerror, "standard output") from None


def discard_standard_output() -> None:
    """Discard everything that this process prints on standard output from now on."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # open to the end


@contextlib.contextmanager
def exiting_on_interrupt(hint: str) -> Generator[None]:
    """Return a context in which Ctrl-C prints an error and a hint, and exits with status 130.

    The process exits at once, because a `KeyboardInterrupt` inside a callback of the compiler would
    crash or be ignored. Exiting is safe: files are written atomically, and locks and workers end
    with the process.
    """

    def end(*_: object) -> NoReturn:
        cursor = "\x1b[?25h\n" if ERR.is_terminal else ""
        with contextlib.suppress(OSError):
            # os.write, because sys.stderr may be in use at this moment
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
    """Raise an error if the folder or one of its parents is a file or a broken link."""
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
    """Set jax's global flag for double precision, which the library itself never sets."""
    import jax

    jax.config.update("jax_enable_x64", True)
