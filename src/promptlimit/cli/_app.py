"""The `promptlimit` command: its subcommands, and one handler for all errors."""

import codecs
import contextlib
import errno
import functools
import inspect
import io
import os
import re
import sys
import traceback
import typing
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any

import typer

from promptlimit._version import __version__
from promptlimit.cli import (
    _denoise,
    _doctor,
    _explore,
    _flow,
    _gap,
    _heads,
    _importance,
    _length,
    _limit,
    _report,
    _reproduce,
    _schema,
    _stack,
    _stream,
    _temperature,
    _train,
)
from promptlimit.cli._console import (
    CommandError,
    UsageError,
    discard_standard_output,
    exiting_on_interrupt,
    print_error,
    print_note,
)
from promptlimit.cli._emit import Output
from promptlimit.errors import AccuracyError, ArgumentError

Command = Callable[..., None]

app = typer.Typer(
    name="promptlimit",
    help="Attention over infinite prompts, and the exact effect of finite prompts.",
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
        bool, typer.Option("--debug", help="Show a full traceback on an error.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit 0 on success, 1 on an error, 2 on wrong usage, 130 on Ctrl-C."""
    _tolerate_odd_terminals()
    _transliterate_output()
    try:
        app()
    except Exception as problem:
        if "--debug" in sys.argv:
            raise
        error = _as_command_error(problem)
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        print_error(error.message, error.hint or f"promptlimit {command} --help lists all options")
        sys.exit(error.exit_code)


def _tolerate_odd_terminals() -> None:
    """Support COLUMNS=0 in the environment, and a closed standard output."""
    if os.environ.get("COLUMNS", "80").strip("0") == "":
        del os.environ["COLUMNS"]
    if sys.stdout is None:
        discard_standard_output()
        print_note("standard output is closed: results are not shown")


def _add(command: FunctionType, *, resumes: bool = False) -> None:
    """Add a subcommand.

    Args:
        command: the function of the subcommand.
        resumes: whether running the command again continues from the results in its --out folder.
    """
    app.command(command.__name__)(_wrapped(command, resumes=resumes))


def _wrapped(command: Command, *, resumes: bool) -> Command:
    """Return the command in the form that typer expects.

    A parameter may have the type of a named tuple, which is a group of options that several
    commands share. Such a parameter is replaced by the options of the group. In errors, names of
    arguments are replaced by names of options.
    """
    parameters = [_parameter("ctx", typer.Context)]
    groups = {}
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.annotation
        if not hasattr(group, "_fields"):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        hints = typing.get_type_hints(group, include_extras=True)
        parameters += [
            _parameter(name, hints[name], default=group._field_defaults[name])
            for name in group._fields
        ]

    @functools.wraps(command)
    def wrapped(ctx: Any, **options: object) -> None:
        out, flags = options.get("out"), _flags(ctx)
        tuples = {
            name: group(**{field: options.pop(field) for field in group._fields})
            for name, group in groups.items()
        }
        output = tuples.get("output")
        folder = output.folder if isinstance(output, Output) else out
        with exiting_on_interrupt(_interrupted_hint(resumes, folder)), _warnings_as_notes(flags):
            try:
                command(**options, **tuples)
            except ArgumentError as problem:
                raise _in_names_of_options(problem, flags) from problem
            except AccuracyError as problem:
                raise CommandError(_in_flags(str(problem), flags)) from problem
            except OSError as problem:
                if _is_inside(problem.filename, out):
                    words = "--out must be a place that can be written, got "
                    raise _as_file_error(problem, words) from problem
                raise

    setattr(wrapped, "__signature__", inspect.Signature(parameters))  # noqa: B010  # for ty
    return wrapped


def _is_inside(place: object, out: object) -> bool:
    """Return whether a path is --out or a path inside the folder --out.

    The result is False if --out is the current folder, which may also contain inputs.
    """
    return (
        isinstance(out, Path)
        and out.parts != ()
        and isinstance(place, str)
        and Path(place).is_relative_to(out)
    )


def _parameter(name: str, annotation: Any, **default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, **default)


def _flags(ctx: Any) -> dict[str, str]:
    """Return the name of the option for each name of an argument."""
    flags = {
        parameter.name: parameter.opts[0]
        for parameter in ctx.command.params
        if parameter.name and parameter.opts[0].startswith("--")
    }
    return {"folder": flags["out"], **flags} if "out" in flags else flags


def _in_flags(message: str, flags: dict[str, str]) -> str:
    """Return a message of the library, adapted to the command line.

    Names of options replace names of arguments. Suggestions with arguments that have no option are
    left out.
    """
    message = re.sub("`([a-z_]+)`", lambda name: flags.get(name[1], name[0]), message)
    first, *others = re.split(r"(?<=\.) (?=[A-Z])", message)
    return " ".join([first, *(part for part in others if "`" not in part and "kind=" not in part)])


def _in_names_of_options(problem: ArgumentError, flags: dict[str, str]) -> CommandError:
    """Return an error of the library with names of options in place of names of arguments."""
    if problem.argument == "key":
        return UsageError(
            "--samples must be at least 2 for a problem that can only be simulated, got 0",
            "--samples 512",
        )
    if problem.argument not in flags:
        return CommandError(_in_flags(str(problem), flags))
    return UsageError(f"{flags[problem.argument]} {_in_flags(problem.requirement, flags)}")


def _as_command_error(problem: Exception) -> CommandError:  # noqa: PLR0911  # one per cause
    """Return the message and the hint to print for an exception."""
    message = str(problem).strip()
    if isinstance(problem, CommandError):
        return problem
    # XLA reports a lack of memory only in its message.
    if isinstance(problem, MemoryError) or message.startswith("RESOURCE_EXHAUSTED"):
        reason = message.partition("\n")[0].removeprefix("RESOURCE_EXHAUSTED: ")
        return CommandError(
            f"not enough memory{f': {reason}' if reason else ''}",
            "use fewer dimensions, shorter prompts, fewer samples or fewer seeds",
        )
    if isinstance(problem, OSError) and problem.strerror is not None:
        return _as_file_error(problem)
    platforms = os.environ.get("JAX_PLATFORMS")
    frames = traceback.extract_tb(problem.__traceback__)
    if platforms and frames and frames[-1].filename.endswith("xla_bridge.py"):
        return CommandError(
            f"JAX_PLATFORMS must name a device that jax finds, got '{platforms}'",
            "JAX_PLATFORMS=cpu works everywhere",
        )
    if isinstance(problem, OverflowError):
        return CommandError(
            f"numbers exceed the range of double precision: {message}", "rescale the input"
        )
    if isinstance(problem, (ValueError, ArithmeticError, OSError)):
        return CommandError(message)
    return CommandError(
        f"this is a bug in promptlimit: {type(problem).__name__}: {message}",
        "please report it with the output of promptlimit --debug ...",
    )


def _as_file_error(problem: OSError, before: str = "") -> CommandError:
    from promptlimit.storage import FULL_DISK

    hint = "promptlimit --debug ... shows a traceback"
    if problem.errno in FULL_DISK:
        hint = "choose a place with more space"
    elif problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "check the permissions, or choose another place"
    reason = str(problem.strerror)
    reason = reason[:1].lower() + reason[1:]
    place = problem.filename or "a file or standard output"
    return CommandError(f"{before}{place}: {reason}", hint)


@contextlib.contextmanager
def _warnings_as_notes(flags: dict[str, str]) -> Generator[None]:
    """Return a context in which each warning is printed once, as a note without a source line."""
    seen: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            print_note(_in_flags(str(message), flags))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for kind in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
            warnings.simplefilter("ignore", kind)
        warnings.showwarning = show  # ty: ignore[invalid-assignment]  # documented as replaceable
        yield


def _interrupted_hint(resumes: bool, folder: object) -> str:
    if not resumes:
        return "nothing was written"
    if folder is None:
        return "nothing was written; with --out DIR the same command would resume"
    return f"the same command resumes from {folder}"


def _transliterate_output() -> None:
    """Transliterate characters that the encoding of standard output lacks, such as τ."""
    codecs.register_error("promptlimit", _transliterated)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in (
        "strict",
        "surrogateescape",
    ):
        sys.stdout.reconfigure(errors="promptlimit")


_SPELLING = {"±": "+-", "²": "^2", "τ": "tau", "σ": "sigma", "κ": "kappa", "…": "...", "−": "-"}


def _transliterated(problem: UnicodeError) -> tuple[str, int]:
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
_add(_importance.importance)
_add(_heads.heads, resumes=True)
_add(_doctor.doctor)
_add(_explore.explore)
_add(_reproduce.reproduce, resumes=True)
_add(_report.report)
_add(_schema.schema)
