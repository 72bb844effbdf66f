"""The page in a real browser: from disk, alone, and in a reader's hands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="playwright is not installed: pip install playwright")

from playwright.sync_api import Locator, Page, expect

from promptlimit.claims import ReportFolder
from promptlimit.reporting import report_pages
from reporting.page.stored_results import STUDY, plot, write_results
from reporting.page.visits import NEEDS_BROWSER, Visit

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return where the page of a small folder of results lies."""
    path = write_results(tmp_path_factory.mktemp("page") / "report", tuple(range(1, 20)))
    folder, drawing = ReportFolder(path), plot()
    drawings = {(STUDY, name): drawing for name in ("gaps", "more")}
    first = folder.save_pages(report_pages(folder.read(), drawings))
    return (first.parent / STUDY / "index.html").as_uri()


@pytest.fixture
def opened(visit: Visit, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open the page at a width, and afterwards see that it was quiet and stayed at home."""
    with visit(address, getattr(request, "param", 1280)) as page:
        yield page


def area(shown: Locator) -> float:
    box = shown.bounding_box()
    return box["width"] * box["height"] if box else 0.0


def test_figures_and_claims_are_seen(opened: Page, tmp_path: Path) -> None:
    assert opened.title() == "Gaps & <risks>"
    assert opened.locator(".tally").first.inner_text().split() == ["19", "holds"]
    assert opened.locator("article.claim").count() == 19
    drawings = opened.locator(".frame > svg")
    assert drawings.count() == 2
    for i in range(2):
        assert area(drawings.nth(i)) > 400 * 200
        assert area(drawings.nth(i).locator("[data-series]").first) > 0
    opened.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_the_contents_lead_to_the_evidence_and_follow(opened: Page) -> None:
    claim = opened.locator("#claim-17")
    expect(claim.locator(".checks")).to_be_hidden()
    link = opened.locator(".contents a", has_text="17. ")
    link.click()
    expect(claim.locator("h3")).to_be_in_viewport()
    expect(claim.locator(".checks")).to_be_visible()
    expect(link).to_have_attribute("aria-current", "true")
    opened.locator("#figure-more").scroll_into_view_if_needed()
    opened.mouse.wheel(0, 10_000)
    expect(link).not_to_have_attribute("aria-current", "true")


def test_formulas_are_drawn_and_the_first_page_leads_to_the_study(
    visit: Visit, address: str
) -> None:
    with visit(address, home=address.rpartition(STUDY)[0]) as page:
        box = page.locator("#claim-4 .statement math").bounding_box()
        assert box is not None
        assert box["width"] > 10
        page.locator("footer a", has_text="All studies").click()
        expect(page.locator("h1")).to_have_text("Studies of attention over long prompts")
        page.locator(".counts a").click()
        expect(page.locator("h1")).to_have_text("Gaps & <risks>")


def test_a_curve_can_be_hidden_and_shown(opened: Page) -> None:
    figure = opened.locator("#figure-gaps")
    curve = figure.locator(".frame [data-series='L = 10']")
    box = figure.get_by_label("L = 10", exact=True)
    assert figure.get_by_label("L = 1000 <b>").is_checked()
    assert curve.is_visible()
    box.uncheck()
    assert not curve.is_visible()
    assert opened.locator("#figure-more .frame [data-series='L = 10']").is_visible()
    box.check()
    assert curve.is_visible()


def test_a_figure_can_be_zoomed_moved_and_reset_by_keys_buttons_and_wheel(opened: Page) -> None:
    figure = opened.locator("#figure-gaps")
    drawing = figure.locator(".frame > svg")

    def seen() -> list[float]:
        return [float(part) for part in str(drawing.get_attribute("viewBox")).split()]

    whole = seen()
    figure.get_by_role("button", name="Zoom in").click()
    assert seen()[2] == pytest.approx(whole[2] / 1.5)
    figure.locator(".frame").focus()
    before = seen()
    opened.keyboard.press("ArrowRight")
    assert seen()[0] > before[0]
    opened.keyboard.press("0")
    assert seen() == whole
    opened.keyboard.press("+")
    assert seen()[2] == pytest.approx(whole[2] / 1.4)
    figure.get_by_role("button", name="Show the whole figure").click()
    figure.get_by_role("button", name="Enlarge").click()
    enlarged = opened.locator("dialog .frame > svg")
    assert area(enlarged) > 1000 * 400
    enlarged.hover()
    opened.mouse.wheel(0, -300)
    expect(opened.locator("dialog .frame")).to_have_class("frame drawn zoomed")
    opened.keyboard.press("Escape")
    expect(opened.locator("dialog")).to_have_count(0)
    assert seen() == whole
    assert area(figure.locator(".frame > svg")) > 400 * 200


def test_the_labels_of_ticks_stay_in_sight_and_of_one_size(opened: Page) -> None:
    figure = opened.locator("#figure-gaps")
    frame, labels = figure.locator(".frame"), figure.locator(".frame .tick")

    def seen() -> list[tuple[str, float]]:
        edges = frame.bounding_box()
        boxes = [(label.inner_html(), label.bounding_box()) for label in labels.all()]
        return [
            (words, box["height"])
            for words, box in boxes
            if edges and box
            and edges["x"] <= box["x"] and box["x"] + box["width"] <= edges["x"] + edges["width"]
            and edges["y"] <= box["y"] and box["y"] + box["height"] <= edges["y"] + edges["height"]
        ]  # fmt: skip

    whole = dict(seen())
    assert len(whole) == labels.count() > 4
    for _ in range(3):
        figure.get_by_role("button", name="Zoom in").click()
    closer = dict(seen())
    assert 1 < len(closer) < len(whole)
    assert all(0.9 < closer[words] / whole[words] < 1.7 for words in closer)  # all else: 3.4
    sides = [label.evaluate("node => node.getBoundingClientRect().x") for label in labels.all()]
    left, bottom = frame.evaluate(
        "node => [node.getBoundingClientRect().left, node.getBoundingClientRect().bottom]"
    )
    assert any(0 <= side - left < 8 for side in sides)  # those of the vertical axis
    below = [label.evaluate("n => n.getBoundingClientRect().bottom") for label in labels.all()]
    assert any(0 <= bottom - edge < 12 for edge in below)  # those of the horizontal axis


def test_in_print_a_section_begins_on_a_page_of_its_own(opened: Page) -> None:
    opened.emulate_media(media="print")
    breaks = "element => getComputedStyle(element).breakBefore"
    assert opened.locator("#figures").evaluate(breaks) == "page"
    assert opened.locator("#claims").evaluate(breaks) == "auto"


def test_the_page_turns_dark_and_its_figures_with_it(opened: Page) -> None:
    style = "element => getComputedStyle(element).{}"
    drawing = opened.locator("#figure-gaps .frame > svg")
    chip = opened.locator("#figure-gaps .chip svg").first

    def look() -> tuple[str, str, str]:
        body = opened.locator("body").evaluate(style.format("backgroundColor"))
        return (body, *(part.evaluate(style.format("filter")) for part in (drawing, chip)))

    by_day = ("rgb(250, 249, 246)", "none", "none")
    assert look() == by_day
    opened.get_by_role("button", name="Dark").click()
    turned = "invert(1) hue-rotate(180deg)"
    assert look() == ("rgb(20, 22, 26)", turned, turned)
    opened.emulate_media(media="print")
    assert look()[1:] == by_day[1:]
    opened.emulate_media(media="screen")
    opened.get_by_role("button", name="Light").click()
    assert look() == by_day
    opened.emulate_media(color_scheme="dark")
    assert look() == by_day  # the reader has chosen


@pytest.mark.parametrize("opened", [390], indirect=True)
def test_the_menu_is_whole_on_a_small_screen(opened: Page) -> None:
    menu = opened.locator(".bar nav")
    assert menu.evaluate("node => node.scrollWidth <= node.clientWidth")
    for link in menu.locator("a").all():
        expect(link).to_be_in_viewport(ratio=1.0)


@pytest.mark.parametrize("opened", [375, 820], indirect=True)
def test_nothing_runs_over_the_edge_of_a_small_screen(opened: Page, tmp_path: Path) -> None:
    width, seen = opened.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width == seen
    opened.screenshot(path=tmp_path / "narrow.png")
    assert (tmp_path / "narrow.png").stat().st_size > 10_000
