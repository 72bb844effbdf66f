"""Numbers are shown to the digits they have, and figures in the order of theirs."""

import math

import pytest

from promptlimit.reporting.page._numbers import number
from promptlimit.reporting.page._stored import Origin, StoredFigure, _place


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.3456, "12.3"),
        (0.0123456, "0.0123"),
        (-1234.56, "−1235"),
        (9.8765e-8, "9.88 × 10<sup>−8</sup>"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (math.nan, "not a number"),
        (0.0, "0"),
    ],
)
def test_a_number_is_shown_to_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def figure(name: str, reference: str, *, beyond: bool = False) -> StoredFigure:
    origin = Origin("", {}, None, "")
    return StoredFigure(name, "title", "A caption.", reference, beyond, origin, None, "", ())


def test_figures_come_by_number_then_those_without_then_those_beyond_the_paper() -> None:
    figures = [
        figure("a", "docs", beyond=True),
        figure("b", "Figure 10"),
        figure("c", "Figure 2"),
        figure("d", "Appendix"),
    ]
    assert [each.name for each in sorted(figures, key=_place)] == ["c", "b", "d", "a"]
