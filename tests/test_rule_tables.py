"""The tables of the documentation are those of the code."""

import pathlib

import pytest

from promptlimit.concentration import GAPS
from promptlimit.finite import GRADIENT_MOMENTS, OUTPUT_LAW, PROMPT_MOMENTS
from promptlimit.tasks import OBJECTIVE, RISK, RISK_GRADIENT

DOCS = pathlib.Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("page", "quantity"),
    [
        ("finite.md", PROMPT_MOMENTS),
        ("finite.md", GRADIENT_MOMENTS),
        ("gaps.md", GAPS),
        ("finite.md", OUTPUT_LAW),
        ("tasks.md", RISK),
        ("tasks.md", OBJECTIVE),
    ],
    ids=lambda given: getattr(given, "name", given),
)
def test_a_page_shows_the_rules_that_are_applied(page, quantity):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert f"<!-- table: {quantity.name} -->\n\n{quantity.table()}\n" in text


@pytest.mark.parametrize(
    "quantity",
    [PROMPT_MOMENTS, GRADIENT_MOMENTS, GAPS, OUTPUT_LAW, RISK, RISK_GRADIENT, OBJECTIVE],
)
def test_every_quantity_can_always_be_simulated(quantity):
    assert quantity.rules[-1].kind == "estimate"
    assert quantity.rules[-1].obstacle(None) is None
