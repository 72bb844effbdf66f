"""Ticks that take little time to draw: powers in plain letters, unlabelled ticks in one stroke."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.axis import Axis, XAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import Formatter, LogFormatterMathtext, NullLocator
from numpy.typing import NDArray

_POWER = re.compile(r"(?P<factor>-?(?:[\d.]+\\times)?)(?P<base>\d+)\^\{(?P<exponent>-?\d+)\}")
_ROUNDED = 1e-10  # as part of an axis: what rounding may move a tick beyond its end
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_powers_plainly(figure: Figure) -> None:
    """Let every logarithmic axis write 2×10⁻³: it reads as well as a formula, and faster."""
    for axis in _axes(figure):
        major, minor = axis.get_major_formatter(), axis.get_minor_formatter()
        if isinstance(major, LogFormatterMathtext):
            axis.set_major_formatter(_Plain(major))
        if isinstance(minor, LogFormatterMathtext):
            axis.set_minor_formatter(_Plain(minor))


@contextmanager
def minor_ticks_in_one_stroke(figure: Figure) -> Generator[None]:
    """Hide minor ticks without labels while a figure is laid out, and mark their places then.

    A tick is three lines and two texts, of which one mark is seen; a figure has hundreds.
    """
    unlabelled = [axis for axis in _axes(figure) if not _has_minor_labels(axis)]
    locators = [axis.get_minor_locator() for axis in unlabelled]
    for axis in unlabelled:
        axis.set_minor_locator(NullLocator())
    yield
    for axis, locator in zip(unlabelled, locators, strict=True):
        axis.set_minor_locator(locator)  # all first: axes that share a scale share their locators
    places = [_minor_places(axis) for axis in unlabelled]
    for axis, place in zip(unlabelled, places, strict=True):
        _mark(axis, place)
        axis.set_minor_locator(NullLocator())


def _axes(figure: Figure) -> list[Axis]:
    return [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]


def _has_minor_labels(axis: Axis) -> bool:
    return any(axis.get_minor_formatter().format_ticks(axis.get_minorticklocs().tolist()))


def _minor_places(axis: Axis) -> NDArray[np.float64]:
    """Return where ticks are seen, those at an end of the axis among them."""
    scaled = axis.get_transform().transform
    places = axis.get_minorticklocs()
    low, high = sorted(scaled(axis.get_view_interval()))
    return places[np.abs(scaled(places) - (low + high) / 2) <= (0.5 + _ROUNDED) * (high - low)]


def _mark(axis: Axis, places: NDArray[np.float64]) -> None:
    """Draw what ticks would draw at these places, on each side where they would."""
    if not places.size:
        return
    tick = axis.get_minor_ticks(1)[0]
    for mark in (tick.tick1line, tick.tick2line):
        if not mark.get_visible():
            continue
        x, y = (np.broadcast_to(mark.get_data(orig=True)[i], places.shape) for i in (0, 1))
        marks = Line2D(*((places, y) if isinstance(axis, XAxis) else (x, places)))
        marks.update_from(mark)
        marks.set(clip_on=False, in_layout=False, zorder=axis.get_zorder())
        axis.axes.add_artist(marks)


class _Plain(Formatter):
    """What another formatter says, without formulas where it writes a power."""

    def __init__(self, formatter: Formatter):
        self._formatter = formatter

    def __call__(self, x: float, pos: int | None = None) -> str:
        return plain_power(self._formatter(x, pos))

    def set_axis(self, axis: Any) -> None:
        super().set_axis(axis)
        self._formatter.set_axis(axis)

    def set_locs(self, locs: Any) -> None:
        self._formatter.set_locs(locs)


def plain_power(label: str) -> str:
    r"""Return `$\mathdefault{2\times10^{-3}}$` as 2×10⁻³, and any other label as it is."""
    formula = label.removeprefix(r"$\mathdefault{").removesuffix("}$")
    if formula == "0":
        return formula
    power = _POWER.fullmatch(formula)
    if power is None:
        return label
    factor = power["factor"].replace("-", "\N{MINUS SIGN}").replace(r"\times", "×")
    return f"{factor}{power['base']}{power['exponent'].translate(_RAISED)}"
