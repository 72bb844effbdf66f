"""Formulas drawn when the site is built, by KaTeX: pages need no script, and a wrong one is found."""

import atexit
import html
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import node
from mkdocs.exceptions import PluginError

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?:\(|\[)(?P<formula>.*?)\\(?:\)|\])</(?P=tag)>', re.S
)
_process: subprocess.Popen[str] | None = None


def assets() -> Iterator[tuple[str, Path]]:
    """Yield the files a page needs, by address: the style sheet, and its fonts in one format."""
    folder = node.package("katex") / "dist"
    for path in (folder / "katex.min.css", *sorted((folder / "fonts").glob("*.woff2"))):
        yield f"assets/katex/{path.relative_to(folder).as_posix()}", path


def drawn(content: str, page: str) -> str:
    """Return the content of a page with its formulas drawn."""

    def replace(match: re.Match[str]) -> str:
        formula = html.unescape(match["formula"])
        return _rendered(formula, display=match["tag"] == "div", page=page)

    return _FORMULA.sub(replace, content)


def close() -> None:
    """End the process that draws."""
    global _process
    if _process is not None:
        _process.kill()
        _process = None


def _rendered(formula: str, *, display: bool, page: str) -> str:
    process = _running()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"formula": formula, "display": display}) + "\n")
    process.stdin.flush()
    answer = json.loads(process.stdout.readline())
    if "problem" in answer:
        raise PluginError(f"{page}: {answer['problem']} in the formula {formula!r}")
    return f'<div class="formula">{answer["html"]}</div>' if display else answer["html"]


def _running() -> subprocess.Popen[str]:
    global _process
    if _process is None:
        node.package("katex")
        script = str(Path(__file__).with_name("katex.mjs"))
        _process = subprocess.Popen(
            [node.executable(), script, str(node.HOME) + os.sep],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        atexit.register(close)
    return _process
