"""The reference: a page for every public name, from its docstring; a missing one fails the build.

Public names are those of `promptlimit` itself, of the packages in `_OPEN`, result types, and the
names of other packages that the pages of the site use.
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
    "finite": "Finite prompts",
    "prompts": "Laws of prompts",
    "concentration": "Gaps and required lengths",
    "lengths": "Growing contexts",
    "weights": "Softmax weights",
    "tasks": "In-context tasks",
    "dynamics": "Training",
    "depth": "Stacks",
    "heads": "Heads of trained models",
    "streaming": "Long prompts",
    "parallel": "Devices and processes",
    "measures": "Laws",
    "attention": "Attentions",
    "rules": "Rules and explain",
    "files": "Save and load",
    "studies": "Studies and claims",
    "errors": "Errors and warnings",
    "results": "Result types",
}
"""The title of each package, in the order of the reference."""

_OPEN = ("errors", "heads", "studies", "rules")
"""Packages of which every name is public."""

_WITH_RESULTS = ("dynamics", "results", "weights")
"""Packages that define result types."""

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
    about = "Every public name, by use; functions come first, result types last."
    return f"# Reference\n\n{about}\n\n" + _table("| use | names |", rows)


def _table(header: str, rows: list[str]) -> str:
    """Return a table whose rows are shown as cards on a narrow screen."""
    return "\n".join(['<div class="cards" markdown>\n', header, "|---|---|", *rows, "\n</div>\n"])


@functools.cache
def _names(docs: Path) -> dict[str, list[str]]:
    """Return the public names by package."""
    homes = _homes()
    if unknown := set(homes.values()) - set(_PACKAGES):
        raise PluginError(f"the reference has no section for the packages {sorted(unknown)}")
    names = {package: set[str]() for package in _PACKAGES}
    for name, package in homes.items():
        names[package].add(name)
    for package in _OPEN:
        module = importlib.import_module(f"promptlimit.{package}")
        names[package] |= {name for name in dir(module) if _is_documented(package, name)}
    for package in _WITH_RESULTS:
        module = importlib.import_module(f"promptlimit.{package}")
        own = {name for name in dir(module) if _is_result(getattr(module, name), package)}
        names[package] |= own - names["heads"]
    for package, name in _mentions(docs):
        if package in names and _is_documented(package, name):
            names[package].add(name)
    return {
        package: sorted(inside, key=lambda name: (_rank(package, name), name))
        for package, inside in names.items()
        if inside
    }


def _rank(package: str, name: str) -> int:
    """Return 0 for a function, 1 for a class, 2 for a list of rules and 3 for a result type."""
    if not _package()[f"{package}.{name}"].is_class:
        return 2 if name.isupper() else 0
    module = importlib.import_module(f"promptlimit.{package}")
    return 3 if package in _WITH_RESULTS and _is_result(getattr(module, name), package) else 1


def _homes() -> dict[str, str]:
    """Return the package of each top-level name, from the stub."""
    stub = ast.parse(Path(pl.__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: node.module
        for node in imports
        for alias in node.names
        if node.module is not None and not node.module.startswith("_")
    }


def _mentions(docs: Path) -> set[tuple[str, str]]:
    """Return the packages and names that the pages of the site import or mention."""
    text = "\n".join(path.read_text("utf-8") for path in sorted(docs.rglob("*.md")))
    return {
        (match["package"], name)
        for pattern in (_IMPORT, _MENTION)
        for match in pattern.finditer(text)
        for name in match["names"].split(", ")
    }


def _is_result(member: object, package: str) -> bool:
    """Return whether a member is a result type defined in the package."""
    is_class = isinstance(member, type) and issubclass(member, pl.results.Result)
    return is_class and member.__module__.startswith(f"promptlimit.{package}.")


@functools.cache
def _package() -> griffe.Object | griffe.Alias:
    """Return the package as parsed from its sources, without importing it."""
    return griffe.load("promptlimit", search_paths=[Path(pl.__file__).parents[1]])


def _is_documented(package: str, name: str) -> bool:
    """Return whether a package has the name and it is neither private nor a module."""
    member = _package()[package].members.get(name)
    return not name.startswith("_") and member is not None and not member.is_module


def _docstring(path: str) -> str:
    """Return the docstring of a name; a missing one is an error."""
    docstring = _package()[path].docstring
    if docstring is None or not docstring.value.strip():
        raise PluginError(f"the public name promptlimit.{path} has no docstring")
    return docstring.value


def _summary(path: str) -> str:
    """Return the first sentence of a docstring, with bars escaped for a table cell."""
    sentence = " ".join(_docstring(path).partition("\n\n")[0].split())
    return _FORMULA.sub(_without_bars, sentence).replace("|", "\\|")


def _without_bars(formula: re.Match[str]) -> str:
    return formula[0].replace("\\|", "\\Vert ").replace("|", "\\vert ")
