"""Results go to standard output; progress, errors and hints go to standard error."""

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

OUT = Console(soft_wrap=False, highlight=False)
ERR = Console(stderr=True, highlight=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]


class CommandError(Exception):
    """A command cannot go on; the message says why and the hint what to do."""

    def __init__(self, message: str, hint: str):
        super().__init__(message)
        self.message = message
        self.hint = hint


def print_error(message: str, hint: str) -> None:
    """Print an error and its hint, without markup, on standard error, even where all is quiet."""
    ERR.quiet = False
    ERR.print("error:", message, style="bold red", markup=False)
    ERR.print("hint:", hint, markup=False)


def print_json(value: object) -> None:
    """Print a value as JSON on standard output; infinities and NaN do not pass."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Print what the library warns of as notes on standard error, once each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        ERR.print("note:", message, markup=False)


def require_folder(out: Path) -> None:
    """Refuse an output folder that is a file, before any work is done."""
    if out.exists() and not out.is_dir():
        raise CommandError(f"--out must be a folder, got the file {out}", "choose another folder")


def compile_sooner() -> None:
    """Ask for programs that compile in two thirds of the time and run nearly as fast.

    A reproduction runs most of its programs once. The flags of the user come first, and compilers
    for accelerators are left alone. A flag that a compiler does not know ends the process: the
    last one is gone from jaxlib 0.11.
    """
    flags = "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"
    if metadata.version("jaxlib").startswith("0.10."):
        flags += " --xla_cpu_use_fusion_emitters=false"
    if not metadata.entry_points(group="jax_plugins"):
        os.environ.setdefault("XLA_FLAGS", flags)


def use_double_precision() -> None:
    """Let jax compute in double precision; the library itself sets no global switch."""
    import jax

    jax.config.update("jax_enable_x64", True)
