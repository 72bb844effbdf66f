"""Render formulas with KaTeX when the site is built, so that pages need no script.

Until a page is written, a formula in it is plain text, which the search index uses. A formula that
KaTeX cannot parse fails the build.
"""

import hashlib
import html
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from mkdocs.exceptions import PluginError

import node

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?:\(|\[)(?P<formula>.*?)\\(?:\)|\])</(?P=tag)>', re.S
)
_MARK = re.compile(r'<(?P<tag>span|div) data-formula="(?P<name>\w+)">.*?</(?P=tag)>', re.S)
_ANNOTATION = re.compile(r"<annotation.*?</annotation>", re.S)
_TAG = re.compile(r"<[^>]*>")
_SCRIPT = Path(__file__).with_name("katex.mjs")
_DRAWINGS: dict[str, str] = {}
"""The formulas rendered so far, by the names of their placeholders."""


def assets() -> dict[str, Path]:
    """Return the files that pages need, by address: the style sheet and its fonts."""
    folder = node.package("katex") / "dist"
    paths = (folder / "katex.min.css", *sorted((folder / "fonts").glob("*.woff2")))
    return {f"assets/katex/{path.relative_to(folder).as_posix()}": path for path in paths}


def mark(contents: Mapping[str, str]) -> dict[str, str]:
    """Return the contents of pages, by address, with a plain-text placeholder for each formula."""
    places = {
        _name(match): (match, address)
        for address, content in contents.items()
        for match in _FORMULA.finditer(content)
    }
    undrawn = {name: place for name, place in places.items() if name not in _DRAWINGS}
    _DRAWINGS.update(zip(undrawn, _drawings(undrawn.values()), strict=True))
    return {address: _FORMULA.sub(_mark_of, content) for address, content in contents.items()}


def draw(page: str) -> str:
    """Return a page with rendered formulas in place of the placeholders."""
    return _MARK.sub(lambda match: _DRAWINGS[match["name"]], page)


def _name(match: re.Match[str]) -> str:
    """Return a hash of a formula and its display style."""
    return hashlib.sha256(f"{match['tag']} {match['formula']}".encode()).hexdigest()[:16]


def _mark_of(match: re.Match[str]) -> str:
    name, tag = _name(match), match["tag"]
    text = _DRAWINGS[name].partition('<span class="katex-html"')[0]  # the rest repeats the formula
    text = _TAG.sub("", _ANNOTATION.sub("", text))
    return f'<{tag} data-formula="{name}">{text}</{tag}>'


def _drawings(places: Iterable[tuple[re.Match[str], str]]) -> list[str]:
    """Return each formula as HTML; an error names the page of a formula that cannot be parsed."""
    formulas = [(html.unescape(match["formula"]), match["tag"] == "div") for match, _ in places]
    if not formulas:
        return []
    node.package("katex")
    process = subprocess.run(
        [node.executable(), str(_SCRIPT), str(node.HOME) + os.sep],
        input=json.dumps(formulas),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if process.returncode:
        raise PluginError(f"KaTeX did not run: {process.stderr.strip()[-2000:]}")
    answers = json.loads(process.stdout)
    for (formula, _), (_, page), answer in zip(formulas, places, answers, strict=True):
        if "problem" in answer:
            raise PluginError(f"{page}: {answer['problem']} in the formula {formula!r}")
    return [
        f'<div class="formula">{answer["html"]}</div>' if display else answer["html"]
        for (_, display), answer in zip(formulas, answers, strict=True)
    ]
