"""The reference: a page for every public name, from its docstring; a name without one fails.

Public is what `promptlimit` itself has, what the packages `heads` and `studies` have, classes
of results, and what the guide takes from another package.
"""

import ast
import functools
import importlib
import re
from pathlib import Path

import griffe
from mkdocs.exceptions import PluginError

import promptlimit as pl

_PACKAGES = {
    "measures": "Measures",
    "attention": "Attention",
    "weights": "Weights",
    "depth": "Depth",
    "finite": "Finite prompts",
    "concentration": "Gaps and lengths",
    "lengths": "Growing contexts",
    "tasks": "Tasks",
    "dynamics": "Training",
    "streaming": "Streaming",
    "heads": "Heads of models",
    "parallel": "Several devices",
    "studies": "Studies and claims",
    "rules": "Rules",
    "files": "Files",
    "results": "Results",
    "errors": "Errors and warnings",
}
"""Packages in the order a reader meets them, and what they are called there."""

_OPEN = ("errors", "heads", "studies", "rules")
"""Packages whose names are reached through them alone."""

_FORMULA = re.compile(r"\$[^$]+\$")
_IMPORT = re.compile(r"from promptlimit\.(?P<package>\w+) import (?P<names>\w+(?:, \w+)*)")
_MENTION = re.compile(
    r"(?:`|\b(?:pl|promptlimit)\.)(?P<package>(?!pl\.|promptlimit\.)\w+)\.(?P<names>\w+)"
)


def navigation(docs: Path) -> list[object]:
    """Return the section "Reference"."""
    sections = [
        {_PACKAGES[package]: [f"reference/{package}/{page}.md" for page in ("index", *names)]}
        for package, names in _names(docs).items()
    ]
    return ["reference/index.md", *sections]


def pages(docs: Path) -> dict[str, str]:
    """Return the texts of the pages by their addresses."""
    texts = {"reference/index.md": _overview(docs)}
    for package, names in _names(docs).items():
        lines = [f"| [`{name}`]({name}.md) | {_summary(f'{package}.{name}')} |" for name in names]
        texts[f"reference/{package}/index.md"] = "\n".join(
            [
                f"# {_PACKAGES[package]}\n\n{_docstring(package)}\n\n| name | |\n|---|---|",
                *lines,
                "",
            ]
        )
        for name in names:
            texts[f"reference/{package}/{name}.md"] = (
                f"---\ntitle: {name}\n---\n\n::: promptlimit.{package}.{name}\n"
            )
    return texts


def _overview(docs: Path) -> str:
    rows = [
        f"| [{_PACKAGES[package]}]({package}/index.md) | "
        + ", ".join(f"[`{name}`]({package}/{name}.md)" for name in names)
        + " |"
        for package, names in _names(docs).items()
    ]
    return "# Reference\n\nEvery public name, by package.\n\n" + _table("| package | names |", rows)


def _table(header: str, rows: list[str]) -> str:
    """Return a table whose rows are cards on a phone."""
    return "\n".join(['<div class="cards" markdown>\n', header, "|---|---|", *rows, "\n</div>\n"])


@functools.cache
def _names(docs: Path) -> dict[str, list[str]]:
    """Return the public names by the package that is their home."""
    homes = _homes()
    if unknown := set(homes.values()) - set(_PACKAGES):
        raise PluginError(f"the reference has no section for the packages {sorted(unknown)}")
    names = {package: set[str]() for package in _PACKAGES}
    for name, package in homes.items():
        names[package].add(name)
    for package in _OPEN:
        module = importlib.import_module(f"promptlimit.{package}")
        names[package] |= {name for name in dir(module) if _is_documented(package, name)}
    for package in ("dynamics", "results", "weights"):
        module = importlib.import_module(f"promptlimit.{package}")
        own = {name for name in dir(module) if _is_result(getattr(module, name), package)}
        names[package] |= own - names["heads"]
    for package, name in _mentions(docs):
        if package in names and _is_documented(package, name):
            names[package].add(name)
    return {package: sorted(inside) for package, inside in names.items() if inside}


def _homes() -> dict[str, str]:
    """Return the package that each name of the top level is from, as its stub says."""
    stub = ast.parse(Path(pl.__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: node.module
        for node in imports
        for alias in node.names
        if node.module is not None and not node.module.startswith("_")
    }


def _mentions(docs: Path) -> set[tuple[str, str]]:
    """Return the packages and names that the guide imports or calls by their package."""
    text = "\n".join(path.read_text("utf-8") for path in sorted(docs.rglob("*.md")))
    return {
        (match["package"], name)
        for pattern in (_IMPORT, _MENTION)
        for match in pattern.finditer(text)
        for name in match["names"].split(", ")
    }


def _is_result(member: object, package: str) -> bool:
    """Return whether a name is a class of results that is defined in the package."""
    is_class = isinstance(member, type) and issubclass(member, pl.results.Result)
    return is_class and member.__module__.startswith(f"promptlimit.{package}.")


@functools.cache
def _package() -> griffe.Object | griffe.Alias:
    """Return the package as its sources have it; nothing of it is imported."""
    return griffe.load("promptlimit", search_paths=[Path(pl.__file__).parents[1]])


def _is_documented(package: str, name: str) -> bool:
    """Return whether a package has the name, and it is neither private nor a module."""
    member = _package()[package].members.get(name)
    return not name.startswith("_") and member is not None and not member.is_module


def _docstring(path: str) -> str:
    """Return the docstring of a name, or say that there is none."""
    docstring = _package()[path].docstring
    if docstring is None or not docstring.value.strip():
        raise PluginError(f"the public name promptlimit.{path} has no docstring")
    return docstring.value


def _summary(path: str) -> str:
    """Return the first sentence of a docstring, for a cell of a table: without bars."""
    sentence = " ".join(_docstring(path).partition("\n\n")[0].split())
    return _FORMULA.sub(_without_bars, sentence).replace("|", "\\|")


def _without_bars(formula: re.Match[str]) -> str:
    return formula[0].replace("\\|", "\\Vert ").replace("|", "\\vert ")
