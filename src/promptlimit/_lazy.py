"""Names of a package that load on first use (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], namespace: dict[str, Any]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: its name.
        homes: the module that each name is from, seen from the package; one dot is one up.
        namespace: the package's globals, where a name stays once it is loaded.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(f".{homes[name]}", package), name)
        namespace[name] = value
        return value

    return load, lambda: sorted(homes)
