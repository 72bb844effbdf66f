"""Labels of logarithmic axes in plain letters: 2×10⁻³ reads as well as a formula, and faster."""

import re
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, LogFormatterMathtext

_POWER = re.compile(r"(?P<factor>-?(?:[\d.]+\\times)?)(?P<base>\d+)\^\{(?P<exponent>-?\d+)\}")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def write_powers_plainly(figure: Figure) -> None:
    """Let every logarithmic axis of a figure write its labels in plain letters."""
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            major, minor = axis.get_major_formatter(), axis.get_minor_formatter()
            if isinstance(major, LogFormatterMathtext):
                axis.set_major_formatter(_Plain(major))
            if isinstance(minor, LogFormatterMathtext):
                axis.set_minor_formatter(_Plain(minor))


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
