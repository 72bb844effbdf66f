"""The packages of the extra `heads`, imported when a model is opened and not before."""

import importlib
from types import ModuleType

INSTALL = "pip install 'promptlimit[heads]'"


class MissingExtraError(ImportError):
    """A package of the extra `heads` is not installed; the message says how to get it."""


def extra(package: str) -> ModuleType:
    """Return safetensors, tokenizers or gguf, or say which command installs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingExtraError(
            f"trained models must be read with the package {package.partition('.')[0]}, "
            f"which is not installed. Run {INSTALL}."
        ) from None
