"""`promptlimit temperature`: what keeps a head as its prompts grow, and what rules do instead."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptlimit.cli._console import (
    JsonOption,
    UsageError,
    emit,
    out_option,
    print_json,
    print_note,
    print_table,
    require_folder,
)
from promptlimit.cli._drawing import write_figure
from promptlimit.cli._inputs import lengths_in
from promptlimit.cli._progress import progress

if TYPE_CHECKING:
    from promptlimit.results import TemperatureTable

_CURVE = 9
"""Lengths at which the figure is computed."""

_LARGEST_MARGIN = 500.0


def temperature(
    sharpness: Annotated[
        float,
        typer.Option(
            "--sharpness", metavar="SIGMA", help="Standard deviation of the head's scores, to 10."
        ),
    ] = 2.0,
    start: Annotated[
        str, typer.Option("--from", metavar="L", help="The length it was measured at.")
    ] = "8192",
    end: Annotated[
        str, typer.Option("--to", metavar="L", help="The length that is asked about.")
    ] = "131072",
    needle: Annotated[
        float | None,
        typer.Option(
            "--needle",
            metavar="MARGIN",
            help="By how much the score of the one token that matters exceeds the mean; without it "
            "as much as gives it half the weight at first.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_option("Also write temperature.json and the figure there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what factors on the scores do to a head as prompts grow, exactly.

    Rows are rules of practice; the last two keep the weight of a needle, and the entropy.
    """
    require_folder(out)
    base, length = _lengths(start, end)
    _require_numbers(sharpness, needle)
    from promptlimit.lengths import temperature_table

    lengths = _between(base, length) if out is not None else [float(length)]
    with progress("temperature") as shown:
        shown.plan(f"sharpness {sharpness:g}, from {base} to {length} tokens", {})
        shown.at("looking for the temperatures that keep the head")
        table = temperature_table(sharpness, base, lengths, margin=needle)
    for note in _notes(table):
        print_note(note)
    document = _document(table)
    emit(
        lambda: print_json(document) if as_json else _print(table),
        None if out is None else lambda: _write(table, document, out),
    )


def _lengths(start: str, end: str) -> tuple[int, int]:
    """Return both lengths, or say which is none."""
    numbers = []
    for option, text in (("--from", start), ("--to", end)):
        try:
            (number,) = lengths_in(text)
        except (UsageError, ValueError):
            number = 0
        if number < 2:
            raise UsageError(
                f"{option} must be a whole number from 2 to 1e30, got '{text}'", f"{option} 8192"
            )
        numbers.append(number)
    base, length = numbers
    if length <= base:
        raise UsageError(
            f"--to must be longer than --from, got {length} after {base}", f"--to {4 * base}"
        )
    return base, length


def _require_numbers(sharpness: float, needle: float | None) -> None:
    if not 0.0 < sharpness <= 10.0:
        raise UsageError(
            f"--sharpness must be positive and at most 10, got {sharpness:g}", "--sharpness 2"
        )
    if needle is not None and not 0.0 < needle <= _LARGEST_MARGIN:
        raise UsageError(
            f"--needle must be positive and at most {_LARGEST_MARGIN:g}, got {needle:g}",
            "--needle 11",
        )


def _between(base: int, length: int) -> list[float]:
    """Return whole lengths from one to the other, evenly in their logarithm."""
    ratio = length / base
    return [float(round(base * ratio ** (i / (_CURVE - 1)))) for i in range(_CURVE)]


def _notes(table: "TemperatureTable") -> list[str]:
    """Return what a reader must know: what no temperature keeps."""
    last = dict(zip(table.names, table.value[:, -1], strict=True))
    return [
        f"no temperature keeps the {name.removeprefix('keep ')} at L = {table.lengths[-1]:g}"
        for name in table.names
        if name.startswith("keep ") and math.isnan(last[name])
    ]


def _document(table: "TemperatureTable") -> dict[str, object]:
    """Return plain numbers and lists; what is not finite is null."""
    from promptlimit.results import plain

    columns = ("value", "entropy", "effective_tokens", "needle")
    rows = {
        name: {
            **{column: getattr(table, column)[row] for column in columns},
            "frozen_from": table.frozen_from[row],
        }
        for row, name in enumerate(table.names)
    }
    return plain(
        {
            "kind": table.kind,
            "relative_error": table.relative_error,
            "sharpness": table.sharpness,
            "base": table.base,
            "margin": table.margin,
            "lengths": table.lengths,
            "rules": rows,
        }
    )


def _print(table: "TemperatureTable") -> None:
    rows = []
    for row, name in enumerate(table.names):
        frozen = table.frozen_from[row]
        entropy = table.entropy[row, -1]
        numbers = (
            f"{table.value[row, -1]:.4f}",
            f"{entropy:.3f}",
            f"{math.exp(entropy):.4g}",
            f"{table.effective_tokens[row, -1]:.4g}",
            f"{table.needle[row, -1]:.4f}",
        )
        known = [number if number != "nan" else "" for number in numbers]
        end = "" if math.isnan(frozen) else "never" if math.isinf(frozen) else f"{frozen:.2g}"
        rows.append([name, *known, end])
    headings = ["rule", "factor", "entropy", "e^entropy", "effective", "needle", "frozen from"]
    print_table(headings, rows, left=1)
    typer.echo(
        f"At L = {table.lengths[-1]:g}; the head was measured at L = {table.base:g}, and the "
        f"needle scores {table.margin:.4f} above the mean."
    )


def _write(table: "TemperatureTable", document: dict[str, object], out: Path) -> None:
    from promptlimit.storage import write_json

    write_json(out / "temperature.json", document)
    write_figure("temperature", table.to_arrays(), out / "temperature")
