"""Numbers are shown to the digits they have."""

import math

import pytest

from promptlimit.reporting.page._numbers import number


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
        (-1e-9, "−10<sup>−9</sup>"),
    ],
)
def test_a_number_is_shown_to_three_digits(value: float, text: str) -> None:
    assert number(value) == text
