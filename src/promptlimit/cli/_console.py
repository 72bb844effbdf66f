"""Results go to standard output; progress, errors and hints go to standard error."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Item = TypeVar("Item")

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
def working(on: str) -> Iterator[None]:
    """Show on standard error that something is being computed, when that is a terminal."""
    if not ERR.is_terminal:
        yield
        return
    with ERR.status(f"{on} ..."):
        yield


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


def use_double_precision() -> None:
    """Let jax compute in double precision; the library itself sets no global switch."""
    import jax

    jax.config.update("jax_enable_x64", True)


@contextmanager
def item_progress(names: Sequence[str]) -> Iterator[tuple[Callable[[str], None], Callable]]:
    """Show a bar over items on standard error, when that is a terminal, with the time left.

    Yields a function to say what is being done, and one to call when an item is finished.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=ERR,
        transient=True,
        disable=not ERR.is_terminal,
        speed_estimate_period=1e4,
    ) as progress:
        task = progress.add_task("", total=len(names))
        yield (
            lambda words: progress.update(task, description=words),
            lambda: progress.advance(task),
        )


def with_progress(what: str, items: Sequence, work: Callable[..., Item]) -> list[Item]:
    """Do the work item by item, with a bar on standard error when that is a terminal."""
    results = []
    with item_progress([item.name for item in items]) as (tell, finished):
        for item in items:
            tell(f"{what}: {item.name}")
            results.append(work(item))
            finished()
    return results
