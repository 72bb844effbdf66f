"""Draw figures from results or arrays, and render them as files."""

import io
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from promptlimit.reporting import _head_figures, _result_figures
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
    Training,
)

Format = Literal["png", "svg", "pdf"]
FORMATS: tuple[Format, ...] = ("png", "svg", "pdf")
QUICK_FORMATS: tuple[Format, ...] = ("svg",)
"""The formats that pages require; quick mode writes no others."""

_MARGIN = 0.1  # inches around the figure

# Without these metadata, the same figure has the same bytes in every run.
_UNDATED: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


_FIGURES: dict[type[Result], Callable[[Mapping[str, np.ndarray]], Figure]] = {
    DenoisingReport: _result_figures.denoise_curve,
    FlowReport: _result_figures.flow,
    GapReport: _result_figures.gap_curve,
    ImportanceSampling: _result_figures.importance,
    StackReport: _result_figures.stack_curve,
    StreamReport: _result_figures.stream_curve,
    TemperatureTable: _result_figures.temperature,
}
"""The function that draws a result, by class; other results are drawn by their method `plot`."""


def figure_of(result: Result) -> Figure | None:
    """Return the figure of a result; None if it has no figure."""
    if isinstance(result, AbstractKindReport) and not result.curves:
        return None
    drawing = _FIGURES.get(type(result))
    with theme():
        if isinstance(result, Training):  # the arrays of a training lack the names of its starts
            return _result_figures.training(result.to_arrays(), result.kernels)
        if drawing is not None:
            return drawing(result.to_arrays())
        try:
            drawn: Any = result.plot().figure
        except TypeError:
            return None
    return drawn


def draw(name: str, data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure with a name, such as "gap_curve" or "heads_map", drawn from its arrays."""
    module = _result_figures if hasattr(_result_figures, name) else _head_figures
    with theme():
        return getattr(module, name)(data)


def render(figure: Figure, *formats: Format) -> list[bytes]:
    """Return the content of the figure's file in each format.

    The layout is the same in all formats. A given figure always gives the same bytes.
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
