"""The `promptlimit` command and what its subcommands share: errors, exit codes, version."""

import io
import sys
from typing import Annotated

import typer

from promptlimit._version import __version__
from promptlimit.cli import (
    _doctor,
    _flow,
    _gap,
    _heads,
    _length,
    _limit,
    _report,
    _reproduce,
    _stream,
    _train,
)
from promptlimit.cli._console import CommandError, print_error

app = typer.Typer(
    name="promptlimit",
    help="The infinite-prompt limit of attention, and what a finite prompt adds to it.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("limit")(_limit.limit)
app.command("gap")(_gap.gap)
app.command("length")(_length.length)
app.command("flow")(_flow.flow)
app.command("train")(_train.train)
app.command("stream")(_stream.stream)
app.command("heads")(_heads.heads)
app.command("doctor")(_doctor.doctor)
app.command("reproduce")(_reproduce.reproduce)
app.command("report")(_report.report)


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
    """Run the command line: exit 0 when well, 1 on an error, 2 on wrong usage."""
    _let_any_letter_pass()
    try:
        app()
    except CommandError as problem:
        if "--debug" in sys.argv:
            raise
        print_error(problem.message, problem.hint)
        sys.exit(1)
    except (ValueError, ArithmeticError, OSError) as problem:
        if "--debug" in sys.argv:
            raise
        print_error(str(problem), "promptlimit --debug ... shows where it happened")
        sys.exit(1)


def _let_any_letter_pass() -> None:
    """Let a letter that the encoding of the output lacks be a `?` there, and not an error.

    Python writes files on Windows in an encoding of the country, and few of those know τ.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
