"""Tutorials: their code is run in order, and its output is shown below each block.

A tutorial is a page of Markdown. Its Python blocks share one process in an empty folder. A block
with a title is written there as a file, and a console block is run line by line. A block that
fails, fails the build. Outputs are stored and reused until the page or the package changes. Each
tutorial is also written as an executed notebook.
"""

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

_LOG = logging.getLogger("mkdocs.hooks.tutorials")
_BLOCK = re.compile(
    r'(?ms)^```(?P<language>python|console)(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```\n'
)
Block = tuple[str, str, str]
"""The language of a block, its file name or "", and its text."""

Output = dict[str, Any]
"""What a block prints, "text", and draws, "figures": each as "svg", and as "png" in base64."""

_LINK = re.compile(r"\]\((?P<page>[\w./-]+)\.md(?P<anchor>#[\w-]+)?\)")

_ROOT = Path(__file__).parents[2]
_RUNNER = Path(__file__).with_name("blocks.py")
_STORE = _ROOT / ".tutorials"
_LIMIT = 600
"""Seconds one tutorial may take; each should take less than 120 on two cores."""


def navigation(docs: Path) -> list[str]:
    """Return the section "Tutorials", in the order of the files' names."""
    return [f"tutorials/{path.name}" for path in sorted((docs / "tutorials").glob("*.md"))]


def page_with_output(markdown: str, page: str) -> str:
    """Return the page with the output of its code, and a link to its notebook below the title."""
    blocks = blocks_of(markdown)
    if not blocks:
        return markdown
    outputs = iter(_stored_outputs(blocks, page))
    shown = _BLOCK.sub(lambda match: match[0] + _markdown(next(outputs)), markdown)
    title, _, rest = shown.partition("\n")
    link = f"[Download this tutorial as a notebook](../{notebook_address(page)}){{ download }}"
    return f"{title}\n\n{link}\n{rest}"


def notebook_address(page: str) -> str:
    """Return the address of the notebook of a page: `notebooks/a.ipynb` of `tutorials/a.md`."""
    return f"notebooks/{Path(page).stem}.ipynb"


def notebook(markdown: str, page: str) -> str:
    """Return a page as a notebook in Jupyter's format 4.5, with the output of its code."""
    outputs = iter(_stored_outputs(blocks_of(markdown), page))
    cells: list[dict[str, Any]] = []
    end = 0
    for count, match in enumerate(_BLOCK.finditer(markdown), start=1):
        cells += _text_cells(markdown[end : match.start()])
        cells.append(
            {
                "cell_type": "code",
                "execution_count": count,
                "source": _cell_source(match),
                "outputs": _cell_outputs(next(outputs)),
            }
        )
        end = match.end()
    cells += _text_cells(markdown[end:])
    named = [{"id": f"cell-{i}", "metadata": {}, **cell} for i, cell in enumerate(cells)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": named}, indent=1
    )


def _markdown(output: Output) -> str:
    """Return the output of a block as it is shown on the page."""
    text = f"\n```text\n{output['text']}\n```\n" if output["text"] else ""
    drawings = [figure["svg"][figure["svg"].index("<svg") :] for figure in output["figures"]]
    return text + "".join(f'\n<div class="drawing">{svg}</div>\n' for svg in drawings)


def _text_cells(text: str) -> list[dict[str, Any]]:
    """Return one cell, or none for blank text; links lead to the pages of the site."""
    linked = _LINK.sub(_link_from_notebooks, text.strip())
    return [{"cell_type": "markdown", "source": linked}] if linked else []


def _link_from_notebooks(match: re.Match[str]) -> str:
    folder = "" if match["page"].startswith("../") else "../tutorials/"
    return f"]({folder}{match['page']}.html{match['anchor'] or ''})"


def _cell_source(match: re.Match[str]) -> str:
    """Return the code of a block as IPython runs it: files and commands have their own syntax."""
    code = match["code"].rstrip("\n")
    if match["title"]:
        return f"%%writefile {match['title']}\n{code}"
    return re.sub(r"(?m)^\$ ", "!", code) if match["language"] == "console" else code


def _cell_outputs(output: Output) -> list[dict[str, Any]]:
    """Return text and figures; PNG because Jupyter does not show SVG of downloaded notebooks."""
    text = {"output_type": "stream", "name": "stdout", "text": output["text"] + "\n"}
    figures = [
        {"output_type": "display_data", "data": {"image/png": figure["png"]}, "metadata": {}}
        for figure in output["figures"]
    ]
    return [text, *figures] if output["text"] else figures


def blocks_of(markdown: str) -> list[Block]:
    """Return the blocks of a page that are run, in their order."""
    return [
        (match["language"], match["title"] or "", match["code"])
        for match in _BLOCK.finditer(markdown)
    ]


def _stored_outputs(blocks: list[Block], page: str) -> list[Output]:
    """Return the outputs of the blocks, from the store if they were run before."""
    stored = _STORE / f"{_hash(blocks)}.json"
    if not stored.exists():
        _LOG.info("Running %s", page)
        text = json.dumps(_outputs(blocks, page))
        _STORE.mkdir(exist_ok=True)
        unfinished = stored.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text, "utf-8")
        unfinished.replace(stored)
    return json.loads(stored.read_text("utf-8"))


def _outputs(blocks: list[Block], page: str) -> list[Output]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        process = subprocess.run(
            [sys.executable, str(_RUNNER), str(answer)],
            input=json.dumps(blocks),
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=folder,
            timeout=_LIMIT,
            check=False,
        )
        if process.returncode:
            raise PluginError(f"{page} fails:\n{process.stderr.strip()[-2000:]}")
        return json.loads(answer.read_text("utf-8"))


def _hash(blocks: list[Block]) -> str:
    """Return a hash of the code of a tutorial and of the package."""
    digest = hashlib.sha256(json.dumps(blocks).encode())
    for path in (*sorted((_ROOT / "src").rglob("*.py")), _RUNNER):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]
