"""Tutorials: their code is run, in order, and what it prints and draws stands below it.

A tutorial is a page of Markdown. Its blocks of Python share one process of their own; a block that
fails, fails the build. What was run with this text and this code before is not run again.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.exceptions import PluginError

_BLOCK = re.compile(r"(?ms)^```python\n(?P<code>.*?)^```\n")
_ROOT = Path(__file__).parents[2]
_CACHE = _ROOT / ".tutorials"
_LIMIT = 600
"""Seconds one tutorial may take; each should take less than 120 on two cores."""


def navigation(docs: Path) -> list[str]:
    """Return the section "Tutorials", in the order of the files' names."""
    return [f"tutorials/{path.name}" for path in sorted((docs / "tutorials").glob("*.md"))]


def run(markdown: str, page: str) -> str:
    """Return the page with the output of its code."""
    blocks = [match["code"] for match in _BLOCK.finditer(markdown)]
    if not blocks:
        return markdown
    if os.environ.get("TUTORIALS") == "skip":
        return markdown
    outputs = iter(_outputs(blocks, page))
    return _BLOCK.sub(lambda match: f"```python\n{match['code']}```\n" + next(outputs), markdown)


def _outputs(blocks: list[str], page: str) -> list[str]:
    stored = _CACHE / f"{_hash(blocks)}.json"
    if stored.exists():
        return json.loads(stored.read_text("utf-8"))
    print(f"running {page}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, str(Path(__file__).with_name("run_blocks.py")), str(answer)]
        done = subprocess.run(
            command,
            input=json.dumps(blocks),
            capture_output=True,
            text=True,
            cwd=folder,
            timeout=_LIMIT,
            check=False,
        )
        if done.returncode:
            raise PluginError(f"{page} fails:\n{done.stderr.strip()[-2000:]}")
        outputs = json.loads(answer.read_text("utf-8"))
    _CACHE.mkdir(exist_ok=True)
    stored.write_text(json.dumps(outputs), "utf-8")
    return outputs


def _hash(blocks: list[str]) -> str:
    """Return a hash of the code of a tutorial and of all code it may run."""
    digest = hashlib.sha256(json.dumps(blocks).encode())
    for path in sorted((_ROOT / "src").rglob("*.py")):
        digest.update(path.read_bytes())
    digest.update(Path(__file__).with_name("run_blocks.py").read_bytes())
    return digest.hexdigest()[:24]
