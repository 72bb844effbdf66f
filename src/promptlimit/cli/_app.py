"""The `promptlimit` command: its subcommands, and one guard around all of them."""

import codecs
import contextlib
import errno
import functools
import inspect
import io
import os
import sys
import traceback
import typing
import warnings
from collections.abc import Callable, Generator
from types import FunctionType
from typing import Annotated

import typer

from promptlimit._version import __version__
from promptlimit.cli import (
    _denoise,
    _doctor,
    _explore,
    _flow,
    _gap,
    _heads,
    _length,
    _limit,
    _report,
    _reproduce,
    _stack,
    _stream,
    _temperature,
    _train,
)
from promptlimit.cli._console import (
    CommandError,
    discard_standard_output,
    ending_at_once,
    print_error,
    print_note,
)

Command = Callable[..., None]

app = typer.Typer(
    name="promptlimit",
    help="The infinite-prompt limit of attention, and what a finite prompt adds to it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> bool:
    if value:
        typer.echo(f"promptlimit {__version__}")
        raise typer.Exit
    return value


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a full traceback when something fails.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit 0 when well, 1 on an error, 2 on wrong usage, 130 on Ctrl-C."""
    _tolerate_odd_terminals()
    _let_any_letter_pass()
    app()


def _tolerate_odd_terminals() -> None:
    """Let commands run where standard output is closed, or has no width by its environment."""
    if os.environ.get("COLUMNS", "80").strip("0") == "":
        del os.environ["COLUMNS"]
    if sys.stdout is None:
        discard_standard_output()
        print_note("standard output is closed: results are not shown")


def _add(command: FunctionType, *, resumes: bool = False) -> None:
    """Add a subcommand; one that resumes goes on from its --out folder when it is run again."""
    app.command(command.__name__)(_guarded(_flat(command), resumes=resumes))


def _flat(command: Command) -> Command:
    """Return the command with the options of every group among its parameters as its own.

    A group is a named tuple of options, said once for all commands that have it.
    """
    parameters, groups = [], {}
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if not hasattr(group, "_fields"):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        hints = typing.get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=group._field_defaults[name],
                annotation=hints[name],
            )
            for name in group._fields
        ]

    @functools.wraps(command)
    def flat(**options: object) -> None:
        tuples = {
            name: group(**{field: options.pop(field) for field in group._fields})
            for name, group in groups.items()
        }
        command(**options, **tuples)

    setattr(flat, "__signature__", inspect.Signature(parameters))  # noqa: B010  # pyright's wish
    return flat


def _guarded(command: Command, *, resumes: bool) -> Command:
    """Return the command with one sentence for whatever may stop it, and notes for warnings."""

    @functools.wraps(command)
    def guarded(**options: object) -> None:
        try:
            with ending_at_once(_resumption(resumes, options.get("out"))), _warnings_as_notes():
                command(**options)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except Exception as problem:
            if "--debug" in sys.argv:
                raise
            error = _as_command_error(problem)
            print_error(error.message, error.hint)
            raise typer.Exit(error.exit_code) from None

    return guarded


def _as_command_error(problem: Exception) -> CommandError:
    """Return what stopped a command as a sentence and a hint."""
    words, where = str(problem).strip(), "promptlimit --debug ... shows where it happened"
    if isinstance(problem, CommandError):
        return problem
    # XLA tells that memory ran out in its message alone.
    if isinstance(problem, MemoryError) or words.startswith("RESOURCE_EXHAUSTED"):
        reason = words.partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ")
        return CommandError(
            f"this needs more memory than there is{f': {reason}' if reason else ''}",
            "fewer dimensions, shorter prompts, fewer samples or seeds need less",
        )
    if isinstance(problem, OSError) and problem.strerror is not None:
        place = problem.filename or "a file or standard output"
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            where = "make room there, or choose another place that can be written"
        return CommandError(f"{place}: {problem.strerror}", where)
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms and _raised_by(problem).endswith("xla_bridge.py"):  # where jax looks for devices
        return CommandError(
            f"jax found no device of JAX_PLATFORMS={platforms}", "JAX_PLATFORMS=cpu works"
        )
    if isinstance(problem, OverflowError):
        words, where = f"numbers beyond double precision came up: {words}", "rescale the input"
    if isinstance(problem, (ValueError, ArithmeticError, OSError)):
        return CommandError(words, where)
    return CommandError(
        f"this is a mistake of promptlimit, not yours: {type(problem).__name__}: {words}",
        "please report it, with what promptlimit --debug ... shows",
    )


def _raised_by(problem: Exception) -> str:
    """Return the file that raised an error, nothing where that is not known."""
    frames = traceback.extract_tb(problem.__traceback__)
    return frames[-1].filename if frames else ""


@contextlib.contextmanager
def _warnings_as_notes() -> Generator[None]:
    """Let warnings be notes, each once, without the source line that warns."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            print_note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = show  # ty: ignore[invalid-assignment]  # made to be replaced
        yield


def _resumption(resumes: bool, out: object) -> str:
    """Return what comes of a command that is interrupted, in words."""
    if not resumes:
        return "nothing was kept"
    if out is None:
        return "nothing was kept; with --out DIR the same command would go on where it was"
    return f"the same command goes on from what {out} holds"


def _let_any_letter_pass() -> None:
    """Let a letter that the encoding of the output lacks be spelled there, and be no error.

    Python writes files on Windows in an encoding of the country, and few of those know τ.
    """
    codecs.register_error("promptlimit", _spelled)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in (
        "strict",
        "surrogateescape",
    ):
        sys.stdout.reconfigure(errors="promptlimit")


_SPELLING = {"±": "+-", "²": "^2", "τ": "tau", "σ": "sigma", "κ": "kappa", "…": "...", "−": "-"}


def _spelled(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    letters = problem.object[problem.start : problem.end]
    return "".join(_SPELLING.get(letter, "?") for letter in letters), problem.end


_add(_limit.limit)
_add(_gap.gap)
_add(_length.length)
_add(_flow.flow, resumes=True)
_add(_train.train, resumes=True)
_add(_stream.stream, resumes=True)
_add(_denoise.denoise)
_add(_stack.stack)
_add(_temperature.temperature)
_add(_heads.heads)
_add(_doctor.doctor)
_add(_explore.explore)
_add(_reproduce.reproduce, resumes=True)
_add(_report.report)
