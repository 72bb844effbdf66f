"""The map of the packages, read off the code: layers from pyproject.toml, imports from sources."""

import ast
import html
import tomllib
from pathlib import Path


def drawing(root: Path) -> str:
    """Return the map as HTML: a row for each layer, a box for each package."""
    source = root / "src" / "promptlimit"
    rows = []
    for layer in _layers(root):
        packages = [name.strip() for name in layer.split("|")]
        shown = [_box(source / name) for name in packages if (source / name).is_dir()]
        if shown:
            rows.append('<div class="layer">' + "".join(shown) + "</div>")
    return '<div class="architecture">' + "".join(rows) + "</div>"


def _layers(root: Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    return next(contract["layers"] for contract in contracts if contract["type"] == "layers")


def _box(package: Path) -> str:
    files = list(package.rglob("*.py"))
    trees = [ast.parse(path.read_text("utf-8")) for path in files]
    about = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    sentence = " ".join(about.partition("\n\n")[0].split())
    uses = sorted({name for tree in trees for name in _imports(tree)} - {package.name})
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in files)
    stands_on = f"stands on {', '.join(uses)}" if uses else "stands on nothing of ours"
    return (
        f'<div class="package"><b>{package.name}</b> <small>{lines:,} lines</small>'
        f"<p>{html.escape(sentence)}</p><small>{stands_on}</small></div>"
    )


def _imports(tree: ast.Module) -> set[str]:
    """Return the packages of ours that a module imports."""
    modules = (node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    parts = (module.split(".") for module in modules)
    return {part[1] for part in parts if part[0] == "promptlimit" and len(part) > 1 and part[1][0] != "_"}
