"""Numbers are shown to the digits they have."""

import math

import pytest

from promptlimit.reporting.page._numbers import formula, number


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lim R_L - R*", "lim R<sub>L</sub> − R*"),
        ("∇_U T_i = C v_i z'", "∇<sub>U</sub> T<sub>i</sub> = C v<sub>i</sub> z&#39;"),
        ("entries 2^-|i-j|, L^-κ", "entries 2<sup>−|i−j|</sup>, L<sup>−κ</sup>"),
        ("tr(Σ⁻²)^(-1/4) diag", "tr(Σ⁻²)<sup>−1/4</sup> diag"),
        ("`key_query` of a well-known head_dim", "`key_query` of a well-known head_dim"),
        ("x^<b>_<i>", "x^&lt;b&gt;_&lt;i&gt;"),
    ],
)
def test_formulas_are_set_and_words_are_left(text: str, shown: str) -> None:
    assert formula(text) == shown
