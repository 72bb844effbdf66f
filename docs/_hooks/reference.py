"""The reference: a page for every public name, from its docstring; a name without one fails."""

import inspect
from collections.abc import Iterator

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
    "results": "Results and errors",
}
"""Packages in the order a reader meets them, and what they are called there."""

_OWN_NAMES = ("heads",)
"""Packages whose names are reached through them alone."""


def navigation() -> list[object]:
    """Return the section "Reference"."""
    sections = {
        title: [f"reference/{package}/index.md"]
        + [f"reference/{package}/{name}.md" for name in _names(package)]
        for package, title in _PACKAGES.items()
        if _names(package)
    }
    return ["reference/index.md", *({title: pages} for title, pages in sections.items())]


def pages() -> dict[str, str]:
    """Return the texts of the pages by their addresses."""
    texts = {"reference/index.md": _overview()}
    for package, title in _PACKAGES.items():
        if not _names(package):
            continue
        lines = [f"| [`{name}`]({name}.md) | {_summary(package, name)} |" for name in _names(package)]
        about = inspect.getdoc(getattr(pl, package)) or ""
        texts[f"reference/{package}/index.md"] = (
            f"# {title}\n\n{about}\n\n| name | |\n|---|---|\n" + "\n".join(lines) + "\n"
        )
        for name in _names(package):
            texts[f"reference/{package}/{name}.md"] = (
                f"---\ntitle: {name}\n---\n\n::: {_path(package, name)}\n"
            )
    return texts


def _names(package: str) -> list[str]:
    """Return the public names that a package is the home of."""
    if package not in dir(pl):
        return []
    if package in _OWN_NAMES:
        return sorted(name for name in dir(getattr(pl, package)) if not name.startswith("_"))
    return sorted(name for name, home in pl._HOME.items() if home == package)


def _path(package: str, name: str) -> str:
    return f"promptlimit.{package}.{name}"


def _summary(package: str, name: str) -> str:
    """Return the first sentence of a docstring, or say that there is none."""
    value = getattr(getattr(pl, package), name)
    text = inspect.getdoc(value) if callable(value) else ""
    if callable(value) and not text:
        raise PluginError(f"the public name promptlimit.{name} has no docstring")
    return " ".join((text or "").partition("\n\n")[0].split()).replace("|", "\\|")


def _overview() -> str:
    def rows() -> Iterator[str]:
        for package, title in _PACKAGES.items():
            if names := _names(package):
                links = ", ".join(f"[`{name}`]({package}/{name}.md)" for name in names)
                yield f"| [{title}]({package}/index.md) | {links} |"

    missing = set(pl._HOME.values()) - set(_PACKAGES)
    if missing:
        raise PluginError(f"the reference does not know the packages {sorted(missing)}")
    return "# Reference\n\nEvery public name, by package.\n\n| package | names |\n|---|---|\n" + "\n".join(rows()) + "\n"
