"""Tutorials: their code is run in order, and its output is shown below each block.

A tutorial is a page of Markdown. Its Python blocks share one process in an empty folder. A block
with a title is written there as a file, and a console block is run line by line. A block that
fails, fails the build. Outputs are stored and reused until the page or the package changes.
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

from mkdocs.exceptions import PluginError

_LOG = logging.getLogger("mkdocs.hooks.tutorials")
_BLOCK = re.compile(
    r'(?ms)^```(?P<language>python|console)(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```\n'
)
Block = tuple[str, str, str]
"""The language of a block, its file name or "", and its text."""

_ROOT = Path(__file__).parents[2]
_RUNNER = Path(__file__).with_name("blocks.py")
_STORE = _ROOT / ".tutorials"
_LIMIT = 600
"""Seconds one tutorial may take; each should take less than 120 on two cores."""


def navigation(docs: Path) -> list[str]:
    """Return the section "Tutorials", in the order of the files' names."""
    return [f"tutorials/{path.name}" for path in sorted((docs / "tutorials").glob("*.md"))]


def page_with_output(markdown: str, page: str) -> str:
    """Return the page with the output of its code."""
    blocks = blocks_of(markdown)
    if not blocks:
        return markdown
    outputs = iter(_stored_outputs(blocks, page))
    return _BLOCK.sub(lambda match: match[0] + next(outputs), markdown)


def blocks_of(markdown: str) -> list[Block]:
    """Return the blocks of a page that are run, in their order."""
    return [
        (match["language"], match["title"] or "", match["code"])
        for match in _BLOCK.finditer(markdown)
    ]


def _stored_outputs(blocks: list[Block], page: str) -> list[str]:
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


def _outputs(blocks: list[Block], page: str) -> list[str]:
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
