"""`promptlimit schema`: the JSON schemas of what commands print with --json."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptlimit.cli._console import UsageError, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator


def schema(
    command: Annotated[
        str | None, typer.Argument(metavar="[COMMAND]", help="All commands unless given.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print tables of fields, as in the documentation.")
    ] = False,
) -> None:
    """Print the JSON schema of what a command prints with --json."""
    types = output_types()
    if command is not None and command not in types:
        raise UsageError(
            f"COMMAND must be one of {', '.join(types)}, got '{command}'", "promptlimit schema gap"
        )
    from promptlimit.results import json_schema

    chosen = types if command is None else {command: types[command]}
    schemas = {name: json_schema(output) for name, output in chosen.items()}
    if markdown:
        typer.echo("\n".join(_page(schemas)), nl=False)
    else:
        print_json(schemas if command is None else schemas[command])


def output_types() -> dict[str, Any]:
    """Return the type of the JSON that each command prints."""
    from promptlimit import results
    from promptlimit.cli._doctor import Finding
    from promptlimit.cli._explore import ExplorerPage
    from promptlimit.cli._report import WrittenReport
    from promptlimit.studies import ClaimsAtSeeds, DecidedClaims

    return {
        "limit": results.Limits,
        "gap": results.GapReport,
        "length": list[results.RequiredLength],
        "flow": results.FlowReport,
        "train": results.Training | results.TrainingCost,
        "stream": results.StreamReport,
        "denoise": results.DenoisingReport,
        "stack": results.StackReport,
        "temperature": results.TemperatureTable,
        "importance": results.ImportanceSampling,
        "heads": results.HeadsReport,
        "doctor": list[Finding],
        "explore": ExplorerPage,
        "reproduce": DecidedClaims | ClaimsAtSeeds,
        "report": WrittenReport,
    }


def _page(schemas: dict[str, Any]) -> "Iterator[str]":
    """Yield the lines of a page: the type of each command's output, and a table per class."""
    shown: set[str] = set()
    for command, found in schemas.items():
        classes = {found["title"]: found} if "title" in found else {}
        classes |= {n: part for n, part in found.get("$defs", {}).items() if "title" in part}
        first = found.get("title")
        yield f"## {command}\n\n{f'`{first}`' if first else _words(found)}.\n"
        for name, part in classes.items():
            if name in shown:
                continue
            shown.add(name)
            yield f"### {name}\n\n{part['description']}\n"
            yield "| field | type | meaning |\n|---|---|---|"
            for field, entry in part["properties"].items():
                meaning = entry.get("description", "")
                meaning = meaning.replace("\\|", "\\Vert ").replace("|", "\\vert ")
                yield f"| `{field}` | {_words(entry)} | {meaning} |"
            yield ""


def _words(entry: dict[str, Any]) -> str:
    """Return the type of an entry in words, without the null of numbers that may be null."""
    match entry:
        case {"$ref": name}:
            own = name.removeprefix("#/$defs/")
            words = own if own == "array" else f"`{own}`"
        case {"anyOf": choices}:
            words = " or ".join(dict.fromkeys(map(_words, choices)))
        case {"enum": values}:
            words = " or ".join(f'"{value}"' for value in values)
        case {"type": "array", "prefixItems": parts}:
            words = f"list of {len(parts)} entries"
        case {"type": "array", "items": part}:
            words = f"list of {_words(part)}"
        case {"type": "object", "additionalProperties": part}:
            words = f"by name: {_words(part)}"
        case _:
            kind = entry.get("type", "any value")
            words = kind[0] if isinstance(kind, list) else kind
    return words
