"""Draw figures from results or arrays, and render them as files."""

import importlib
import io
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from promptlimit.reporting._theme import theme
from promptlimit.results import (
    AbstractKindReport,
    DenoisingReport,
    FlowReport,
    GapReport,
    ImportanceSampling,
    Result,
    StackReport,
    StreamReport,
    TemperatureTable,
)

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
QUICK_FORMATS: tuple[Format, ...] = ("svg",)
"""The formats of quick mode: the page needs SVG only."""

_MARGIN = 0.1  # inches around the figure

# Metadata that would make the same figure differ from run to run.
_UNDATED: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


_FIGURES: dict[type[Result], str] = {
    DenoisingReport: "denoise_curve",
    FlowReport: "flow",
    GapReport: "gap_curve",
    ImportanceSampling: "importance",
    StackReport: "stack_curve",
    StreamReport: "stream_curve",
    TemperatureTable: "temperature",
}
"""Results with a figure in `reporting.figures`; the others are drawn by their own `plot`."""


def figure_of(result: Result) -> Figure | None:
    """Return the figure of a result; None for a result without an axis to draw."""
    if isinstance(result, AbstractKindReport) and not result.curves:
        return None
    name = _FIGURES.get(type(result))
    if name is not None:
        return draw(name, result.to_arrays())
    try:
        with theme():
            drawn: Any = result.plot().figure
    except TypeError:
        return None
    return drawn


def draw(name: str, data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure of that name, drawn from its arrays by `reporting.figures.NAME`."""
    module = importlib.import_module(f"promptlimit.reporting.figures.{name}")
    with theme():
        return module.draw(data)


def render(figure: Figure, *formats: Format) -> list[bytes]:
    """Return the figure as the content of files; the same figure gives the same bytes.

    It is laid out once, so that no format moves it for the next.
    """
    with theme():
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
        figure.set_layout_engine(None)
        inked = figure.get_tightbbox().padded(_MARGIN)
        return [_file(figure, ending, inked) for ending in formats]


def _file(figure: Figure, format: Format, inked: Bbox) -> bytes:  # noqa: A002  # matplotlib's word
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, metadata=_UNDATED[format], bbox_inches=inked)
    return buffer.getvalue()
