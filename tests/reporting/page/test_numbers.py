"""Numbers are shown to the digits they have."""

import math

import pytest
from markupsafe import escape

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
        ("the risk - its limit", "the risk − its limit"),
        ("`key_query` of a well-known head_dim", "`key_query` of a well-known head_dim"),
        ("x^<b>_<i>", "x^&lt;b&gt;_&lt;i&gt;"),
        ("from $L=1$ on", "from <math><mrow><mi>L</mi><mo>=</mo><mn>1</mn></mrow></math> on"),
        ("at $L$, or", "at <span><math><mrow><mi>L</mi></mrow></math>,</span> or"),
        (
            r"$x \sim \infty$",
            "<math><mrow><mi>x</mi><mo>∼</mo><mi>∞</mi></mrow></math>",
        ),
        ("a price of 5$ & more", "a price of 5$ &amp; more"),
        (r"wrong: $\frac{$", r"wrong: $\frac{$"),
        (r"$\text{</mtext><script>x</script>}$", None),
        (r"$\text{<mi>}$", None),
        (r"$\text{<math></math>}$", None),
        (r"$\text{<mi onclick='a'></mi>}$", None),
        (r"$\href{javascript:alert(1)}{x}$", None),
        (r"$\style{x}{y}$", None),
        ("$" + "{" * 5000 + "}" * 5000 + "$", None),
    ],
)
def test_formulas_become_mathml_and_words_stay_words(text: str, shown: str | None) -> None:
    assert formula(text) == (escape(text) if shown is None else shown)
