"""Which packages this one stands on, by its own metadata, and which versions of them are there.

Nothing but Python is needed to say so: any of them may be the one that is missing.
"""

import importlib.metadata
import re

from promptlimit._version import __version__

_OWN = "promptlimit"
_AT_LEAST = ("jax", "jaxlib")  # jaxlib comes with jax, and has a version of its own
_FOR_DEVELOPERS = ("dev", "docs")


def package_versions() -> dict[str, str | None]:
    """Return the version of this package and of each that it needs, None where one is missing.

    An installed package knows what it needs: an editable one, what it needed when it was installed.
    A source tree that was never installed does not, and of it jax and jaxlib alone are told.
    """
    needed = [name for name, extra in _requirements() if extra is None]
    versions = {name: _version(name) for name in (*_AT_LEAST, *needed)}
    return {_OWN: __version__, **versions}


def extra_versions() -> dict[str, dict[str, str | None]]:
    """Return the versions of the packages of each extra a user may ask for, None where missing."""
    extras: dict[str, dict[str, str | None]] = {}
    for name, extra in _requirements():
        if extra is not None and extra not in _FOR_DEVELOPERS:
            extras.setdefault(extra, {})[name] = _version(name)
    return extras


def installed_version() -> str | None:
    """Return the version of this package that was installed, None where it runs without that.

    An editable package that was not installed again may say another than its source does.
    """
    return _version(_OWN)


def _requirements() -> list[tuple[str, str | None]]:
    """Return the names of the packages this one asks for, with the extra that does, None for all.

    For `tokenizers>=0.23.3; extra == 'heads'`, that is `("tokenizers", "heads")`.
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
