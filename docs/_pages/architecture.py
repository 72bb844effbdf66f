"""The map of the packages: layers from pyproject.toml, imports from the sources."""

import ast
import html
import re
import tomllib
from pathlib import Path

_IMPORT = re.compile(r"(?m)^ *from promptlimit\.([a-z]\w*)")


def drawing(root: Path) -> str:
    """Return the map as HTML: a row for each layer, a box for each package."""
    source = root / "src" / "promptlimit"
    rows = []
    for layer in _layers(root):
        packages = [name.strip() for name in layer.split("|")]
        boxes = [_box(source / name) for name in packages if (source / name).is_dir()]
        if boxes:
            rows.append('<div class="layer">' + "".join(boxes) + "</div>")
    return '<div class="architecture">' + "".join(rows) + "</div>"


def _layers(root: Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    return next(contract["layers"] for contract in contracts if contract["type"] == "layers")


def _box(package: Path) -> str:
    sources = [path.read_text("utf-8") for path in package.rglob("*.py")]
    about = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    sentence = " ".join(about.partition("\n\n")[0].split())
    uses = {name for source in sources for name in _IMPORT.findall(source)} - {package.name}
    lines = sum(source.count("\n") for source in sources)
    imports = f"imports {', '.join(sorted(uses))}" if uses else "imports no other package"
    return (
        f'<div class="package"><b>{package.name}</b> <small>{lines:,} lines</small>'
        f"<p>{html.escape(sentence)}</p><small>{imports}</small></div>"
    )
