"""The packages that promptlimit requires, from its metadata, and their installed versions.

This module imports only the standard library, because any other package may be missing.
"""

import importlib.metadata
import re

from promptlimit._version import __version__

_OWN = "promptlimit"
_AT_LEAST = ("jax", "jaxlib")  # jaxlib is installed with jax, and has its own version


def package_versions() -> dict[str, str | None]:
    """Return the versions of this package and of its requirements; a missing package has None.

    A source tree that was never installed has no list of requirements. The result then contains
    only this package, jax and jaxlib.
    """
    needed = [name for name, extra in _requirements() if extra is None]
    versions = {name: _version(name) for name in (*_AT_LEAST, *needed)}
    return {_OWN: __version__, **versions}


def extra_versions() -> dict[str, dict[str, str | None]]:
    """Return the versions of the packages of each extra; a missing package has None."""
    extras: dict[str, dict[str, str | None]] = {}
    for name, extra in _requirements():
        if extra is not None:
            extras.setdefault(extra, {})[name] = _version(name)
    return extras


def installed_version() -> str | None:
    """Return the installed version of this package, or None if it is not installed.

    In an editable installation it may differ from the version of the source.
    """
    return _version(_OWN)


def _requirements() -> list[tuple[str, str | None]]:
    """Return the name of each required package and the extra that requires it, if any.

    The requirement `tokenizers>=0.23.3; extra == 'heads'` becomes `("tokenizers", "heads")`.
    """
    try:
        lines = importlib.metadata.requires(_OWN) or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    requirements = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        name = re.match(r"[\w.-]+", requirement.strip())
        extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", marker)
        if name is not None:
            requirements.append((name[0], None if extra is None else extra[1]))
    return requirements


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
