"""The reference: a page for every public name, from its docstring; a missing one fails the build.

Public names are those of `promptlimit` itself, of the packages in `_OPEN`, result types, and the
names of other packages that the pages of the site use.
"""

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

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
_EXAMPLE = re.compile(r"(?m)^(?P<indent> *)>>> .*\n(?:(?P=indent).*\S.*\n)*")
_CODE = re.compile(r"(?ms)^ *```.*?^ *```$|(?<!\[)`(?P<code>[^`\n]+)`")


def navigation(docs: Path) -> list[object]:
    """Return the section "Reference"."""
    sections = [
        {_PACKAGES[package]: [f"reference/{package}/{page}.md" for page in ("index", *names)]}
        for package, names in _names(docs).items()
    ]
    return ["reference/index.md", *sections]


def pages(docs: Path) -> dict[str, str]:
    """Return the texts of the pages by their addresses."""
    public = _names(docs)
    rows = [
        f"| [{_PACKAGES[package]}]({package}/index.md) | "
        + ", ".join(f"[`{name}`]({package}/{name}.md)" for name in names)
        + " |"
        for package, names in public.items()
    ]
    about = "Every public name, by use; functions come first, result types last."
    texts = {"reference/index.md": f"# Reference\n\n{about}\n\n{_cards('use | names', rows)}"}
    for package, names in public.items():
        rows = [f"| [`{name}`]({name}.md) | {_summary(f'{package}.{name}')} |" for name in names]
        head = f"# {_PACKAGES[package]}\n\n{_docstring(package)}"
        texts[f"reference/{package}/index.md"] = f"{head}\n\n{_cards('name | ', rows)}"
    homes = {name: f"../{package}/{name}.md" for package, names in public.items() for name in names}
    paths = [f"{package}.{name}" for package, names in public.items() for name in names]
    signatures = _signatures([thing for path in paths for thing in _things(path)])
    for path in paths:
        others = {name: home for name, home in homes.items() if name != path.partition(".")[2]}
        first, *members = (_part(thing, signatures, others) for thing in _things(path))
        text = "\n".join((first, *(f"#{member}" for member in members)))
        texts[f"reference/{path.replace('.', '/')}.md"] = text
    return texts


def _cards(header: str, rows: list[str]) -> str:
    """Return a table whose rows are shown as cards on a narrow screen."""
    lines = ('<div class="cards" markdown>\n', f"| {header} |", "|---|---|", *rows, "\n</div>\n")
    return "\n".join(lines)


# ---------------------------------------------------------------- one page


def _things(path: str) -> Iterator[griffe.Object]:
    """Yield the object of a page, then the documented public members of a class."""
    _docstring(path)
    thing = _package()[path]
    thing = thing.final_target if isinstance(thing, griffe.Alias) else thing
    yield thing
    if isinstance(thing, griffe.Class):
        for name, member in thing.members.items():
            if isinstance(member, griffe.Object) and not name.startswith("_") and member.docstring:
                yield member


def _part(thing: griffe.Object, signatures: dict[str, str], links: dict[str, str]) -> str:
    """Return the heading, the signature and the docstring of one object as Markdown."""
    lines = [f"# {thing.name}\n\n```python\n{signatures[thing.path]}\n```\n"]
    if isinstance(thing, griffe.Class) and thing.bases:
        bases = ", ".join(str(base).rpartition(".")[2] for base in thing.bases)
        lines.append(f"Bases: {_linked_code(bases, links)}\n")
    sections = thing.docstring.parse("google") if thing.docstring else []
    for section in sections:
        if isinstance(section, griffe.DocstringSectionText):
            fenced = _EXAMPLE.sub(r"\g<indent>```pycon\n\g<0>\g<indent>```\n", f"{section.value}\n")
            lines.append(_CODE.sub(lambda match: _link(match, links), fenced))
        else:
            lines.append(f"**{section.kind.value.capitalize()}**\n")
            lines += [_item(item, links) for item in section.value]
            lines.append("")
    return "\n".join(lines)


def _item(item: griffe.DocstringNamedElement, links: dict[str, str]) -> str:
    """Return one parameter, attribute, exception or returned value as a line of a list."""
    name = getattr(item, "name", "")
    parts = [f"**`{name}`**"] if name else []
    if item.annotation is not None:
        default = getattr(item, "default", None)
        suffix = f", default `{default}`" if default is not None else ""
        parts.append(f"({_linked_code(str(item.annotation), links)}{suffix})")
    text = item.description.replace("\n", "\n    ")
    return f"- {' '.join(parts)}: {_CODE.sub(lambda match: _link(match, links), text)}"


def _link(match: re.Match[str], links: dict[str, str]) -> str:
    """Link a public name in backticks to its page; leave other code and fenced code alone."""
    name = match["code"]
    return f"[`{name}`]({links[name]})" if name in links else match[0]


def _linked_code(code: str, links: dict[str, str]) -> str:
    """Return code in backticks in which public names are links."""
    runs = [run.strip() for run in re.split(rf"\b({'|'.join(links)})\b", code)]
    return " ".join(
        f"[`{run}`]({links[run]})" if run in links else f"`{run}`" for run in runs if run
    )


def _signatures(things: list[griffe.Object]) -> dict[str, str]:
    """Return the signature of each object by its path, formatted as ruff formats a definition."""
    lines = {
        thing.path: f"def {thing.signature(return_type=True) or thing.name + '()'}: ..."
        for thing in things
        if isinstance(thing, griffe.Class | griffe.Function)
    }
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "80", "-"]
    process = subprocess.run(
        command, input="\n".join(lines.values()), capture_output=True, text=True, check=True
    )
    formatted = dict(zip(lines, re.split(r"(?m)^def ", process.stdout)[1:], strict=True))
    signatures = {}
    for thing in things:
        if thing.path in formatted:
            word = "class " if isinstance(thing, griffe.Class) else ""
            signatures[thing.path] = word + formatted[thing.path].strip().removesuffix(": ...")
        else:
            signatures[thing.path] = f"{thing.name}: {getattr(thing, 'annotation', '')}"
    return signatures


# ---------------------------------------------------------------- public names


@functools.cache
def _names(docs: Path) -> dict[str, list[str]]:
    """Return the public names by package."""
    homes = _homes()
    if unknown := set(homes.values()) - set(_PACKAGES):
        sys.exit(f"error: the reference has no section for the packages {sorted(unknown)}")
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
        sys.exit(f"error: the public name promptlimit.{path} has no docstring")
    return docstring.value


def _summary(path: str) -> str:
    """Return the first sentence of a docstring, with bars escaped for a table cell."""
    sentence = " ".join(_docstring(path).partition("\n\n")[0].split())
    return _FORMULA.sub(
        lambda formula: formula[0].replace("\\|", "\\Vert ").replace("|", "\\vert "), sentence
    ).replace("|", "\\|")
