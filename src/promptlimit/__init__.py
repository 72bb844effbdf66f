"""The infinite-prompt limit of attention, and the exact effect of a finite prompt.

A prompt is a probability measure, and attention is the gradient of its log-Laplace transform.
Therefore the same attention object accepts a list of tokens or the law from which they are drawn.

Import the package with `import promptlimit as pl`. Names load on first use, so jax is not imported
until a name needs it.
"""

import difflib
import importlib

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_PACKAGES = ("results", "errors", "rules", "measures", "prompts", "tasks", "dynamics", "lengths")
_PACKAGES += ("weights",)


def __getattr__(name: str) -> object:
    if name in __all__:
        return _load(name)
    message = f"promptlimit has no attribute '{name}'"
    if not name.startswith("_"):
        packages = (f"promptlimit.{package}" for package in _PACKAGES)
        homes = [home for home in packages if hasattr(importlib.import_module(home), name)]
        likely = [f"{home}.{name}" for home in homes] or difflib.get_close_matches(name, __all__, 1)
        message += f"; did you mean {likely[0]}?" if likely else ""
    raise AttributeError(message)
