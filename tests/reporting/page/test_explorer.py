"""The explorer in a real browser: its digits are the library's, its buttons do what they say."""

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")

from playwright.sync_api import Page, expect

import promptlimit as pl
from promptlimit.errors import InputFileError
from promptlimit.reporting import HeadMarks, explorer_page
from reporting.page.visits import NEEDS_BROWSER, Visit

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return where the explorer lies."""
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer_page(), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def opened(visit: Visit, address: str) -> Iterator[Page]:
    """Open the explorer."""
    with visit(address) as page:
        yield page


def shown(page: Page, tile: str) -> str:
    return page.locator(f"[data-tile={tile}]").inner_text()


def test_the_browser_computes_the_digits_of_the_library(opened: Page) -> None:
    sharpness = np.array([0.01, 0.3, 0.99, 1.0, 1.01, 2.0, 3.7, 6.0, 9.0, 12.0])
    lengths = np.unique(np.round(10.0 ** np.linspace(0.31, 18, 20)))
    cells = len(sharpness) * len(lengths)
    assert cells == 200
    rows = opened.evaluate(
        """([sharpness, lengths]) => sharpness.map((s) => {
            const head = weights.head(s, 2, 1e18);
            return lengths.map((L) => Object.values(head.at(L)));
        })""",
        [sharpness.tolist(), lengths.tolist()],
    )
    exact = pl.weight_statistics(sharpness[:, None], lengths[None, :])
    for number, name in enumerate(("participation", "shrinkage", "score_error")):
        computed = np.array(rows)[:, :, number]
        np.testing.assert_allclose(computed, getattr(exact, name), rtol=1e-10, err_msg=name)


def test_one_token_and_no_sharpness_are_closed_forms(opened: Page) -> None:
    script = "[[0, 5], [2, 1]].map(([s, L]) => Object.values(weights.head(s, 1, 9).at(L)))"
    for row, (s, length) in zip(opened.evaluate(script), ((0.0, 5), (2.0, 1)), strict=True):
        exact = pl.weight_statistics(s, length)
        assert row == pytest.approx(
            [float(exact.participation), float(exact.shrinkage), float(exact.score_error)]
        )


def test_the_python_lines_give_the_numbers_shown(opened: Page) -> None:
    opened.get_by_role("button", name="a head of 64 dimensions").click()
    expect(opened.locator("[data-tile=regime]")).to_have_text("spread")
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(opened.locator(".python code").inner_text(), {})  # noqa: S102  # our own lines
    tokens, gap, needed = map(float, told.getvalue().split())
    assert shown(opened, "tokens") == f"{tokens:.4g}"
    assert float(shown(opened, "gap")) == pytest.approx(gap, rel=1e-3)
    assert float(shown(opened, "needed").replace(",", "")) == needed
    assert shown(opened, "verdict") == "above ε"
    assert gap > 0.1


def test_sliders_keys_and_clicks_move_everything_and_the_address_remembers(opened: Page) -> None:
    before = shown(opened, "tokens")
    opened.get_by_role("slider", name="Sharpness").focus()
    opened.keyboard.press("ArrowRight")
    expect(opened.locator("[data-tile=tokens]")).not_to_have_text(before)
    assert "sharpness=2.05" in opened.url
    opened.locator(".phases svg").click(position={"x": 60, "y": 60})
    expect(opened.locator("[data-tile=regime]")).to_have_text("frozen")
    opened.reload()
    expect(opened.locator("[data-tile=regime]")).to_have_text("frozen")
    opened.locator("[name=tolerance]").fill("-4")
    expect(opened.locator("[data-tile=needed]")).to_have_text("beyond 10¹⁸")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_it_fits_a_phone(visit: Visit, address: str, scheme: str) -> None:
    with visit(address, 390, scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.locator("circle.head").count() == 72
        boxes = (page.locator(f".python {part}").bounding_box() for part in ("button", "pre"))
        button, code = boxes
        assert button is not None
        assert code is not None
        assert button["y"] + button["height"] <= code["y"]


def test_the_phase_diagram_is_painted_before_it_is_shown(visit: Visit, address: str) -> None:
    with visit(address) as page:
        assert page.locator(".phases").is_visible()
        assert page.locator(".phases canvas").get_attribute("data-painted") == "yes"


def test_names_of_heads_are_text_and_no_markup(visit: Visit, tmp_path: Path) -> None:
    marks = HeadMarks("</script><b>model", 512, ((1.0, 2.0),))
    path = tmp_path / "own.html"
    path.write_text(explorer_page(marks), encoding="utf-8")
    with visit(path.as_uri()) as page:
        assert "</script><b>model" in page.locator(".panels").inner_text()
        assert page.locator("circle.head title").last.text_content() == "layer 0, head 1"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({}, "its 'value' is not a list"),
        ({"value": []}, "its 'value' has 0 heads, not 1 to 100000"),
        ({"value": [4.0], "window": 8, "model": "m"}, "its 'value' is not a list of lists"),
        ({"value": [["x"]], "window": 8, "model": "m"}, "its 'value' is not a number"),
        ({"value": [[1.0]], "window": 0.5}, "its 'window' is 0.5, not a whole number from 1 to "),
        (
            {"value": [[-1.0]], "window": 8, "model": "m"},
            "its 'value' has -1.0, not finite and at least 0",
        ),
    ],
)
def test_an_atlas_that_is_none_is_refused(tmp_path: Path, content: object, problem: str) -> None:
    path = tmp_path / "atlas.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputFileError) as refusal:
        HeadMarks.read(path)
    assert str(refusal.value).startswith(
        f"{path} must be an atlas.json of promptlimit heads, but {problem}"
    )
