"""Find the module that draws a figure, and turn the figure into bytes."""

import importlib
import io
from collections.abc import Mapping
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from promptlimit.reporting._theme import theme

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")

# What would make the same figure differ from run to run.
_UNDATED: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def draw(name: str, data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure of that name, drawn from its arrays by `reporting.figures.NAME`."""
    module = importlib.import_module(f"promptlimit.reporting.figures.{name}")
    with theme():
        return module.draw(data)


def render(figure: Figure, format: Format) -> bytes:  # noqa: A002  # matplotlib's own word
    """Return the figure as a file's content; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with theme():
        figure.savefig(buffer, format=format, metadata=_UNDATED[format], bbox_inches="tight")
    return buffer.getvalue()
