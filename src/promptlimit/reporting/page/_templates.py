"""Pages from templates: self-contained files that make no network requests.

Templates escape all data. The security policy of a page lists the hashes of its style sheet and its
script, and allows no others.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from promptlimit.reporting.page._numbers import duration, formula, measured, number, two_digits

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Entry:
    """An entry of a table of contents.

    Attributes:
        anchor: the target of the link.
        label: the text of the link.
        mark: a short text after the label, such as a verdict.
        mark_class: the CSS class of the mark.
        entries: the entries below this one.
    """

    anchor: str
    label: str
    mark: str = ""
    mark_class: str = ""
    entries: "tuple[Entry, ...]" = ()


def page_text(
    template: str,
    *,
    title: str,
    contents: tuple[Entry, ...],
    sources: tuple[str, ...] = (),
    home: str = "#content",
    **values: Any,
) -> str:
    """Return a page as the text of an HTML file; the same values give the same text.

    Args:
        template: the file name of the template, which extends `shell.html`.
        title: the title of the page.
        contents: the table of contents.
        sources: the names of style sheets and scripts, in addition to those of every page.
        home: the target of the link on the name of the library.
        values: the variables of the template.
    """
    style, script = (_sources(ending, sources) for ending in (".css", ".js"))
    logo = f"data:image/svg+xml;base64,{base64.b64encode(_source('logo.svg').encode()).decode()}"
    shell = {"title": title, "contents": contents, "home": home, "logo": logo}
    page = _ENVIRONMENT.get_template(template)
    return page.render(style=style, script=script, **shell, **values)


def _sources(ending: str, more: tuple[str, ...]) -> Markup:
    """Return the style sheets, or the scripts, of a page as one text."""
    names = (f"page{ending}", *(name for name in more if name.endswith(ending)))
    return Markup("\n").join(map(_source, names))


def _source(name: str) -> Markup:
    folder = resources.files("promptlimit.reporting.page")
    return Markup((folder / name).read_text(encoding="utf-8"))  # noqa: S704  # a file of this library


def _source_hash(text: str) -> Markup:
    digest = hashlib.sha256(text.encode()).digest()
    return Markup("'sha256-{}'").format(base64.b64encode(digest).decode())


def _printable(value: object) -> object:
    """Return text with unprintable characters replaced."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNPRINTABLE.sub("\ufffd", value)
    return value


def anchor(*words: str | int) -> str:
    """Return the HTML id of a place on a page.

    >>> anchor("large_prompt", "figure", "gap curve")
    'large_prompt-figure-gap-curve'
    """
    return re.sub("[^A-Za-z0-9_-]", "-", "-".join(map(str, words)))


def verdict_class(verdict: str) -> str:
    """Return the CSS class of a verdict, which determines its colour."""
    return "verdict-" + re.sub("[^a-z]", "-", verdict)


def facts(value: object) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a mapping as text, for values of any JSON type.

    >>> list(facts({"seed": 0, "quick": False, "versions": {"jax": "0.10"}}))
    [('seed', '0'), ('quick', 'no'), ('versions', 'jax 0.10')]
    """
    if not isinstance(value, Mapping):
        return
    for key, item in value.items():
        if isinstance(item, bool):
            yield str(key), "yes" if item else "no"
        elif isinstance(item, Mapping):
            yield str(key), ", ".join(f"{name} {text}" for name, text in facts(item))
        elif isinstance(item, str):
            yield str(key), item
        else:
            yield str(key), json.dumps(item)


_ENVIRONMENT = Environment(
    loader=PackageLoader("promptlimit.reporting.page", "."),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_printable,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_ENVIRONMENT.filters |= {
    "duration": duration,
    "facts": facts,
    "formula": lambda text: formula(str(_printable(text))),
    "measured": measured,
    "number": number,
    "source_hash": _source_hash,
    "two_digits": two_digits,
    "verdict_class": verdict_class,
}
_ENVIRONMENT.globals |= {"anchor": anchor}  # ty: ignore[unsupported-operator]  # jinja's types do not include functions
