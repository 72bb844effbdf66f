"""A drawing from a file shows shapes and letters, and can do nothing."""

import re
from xml.etree import ElementTree as ET

import pytest

from promptlimit.reporting.page._night import at_night, contrast, is_grey, night_rules
from promptlimit.reporting.page._svg import Drawing, SvgError, safe_drawing
from reporting.page.stored_results import plot

_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def svg(inside: str) -> bytes:
    return f'<svg {_NAMESPACES} viewBox="0 0 10 10">{inside}</svg>'.encode()


@pytest.fixture(scope="module")
def drawn() -> Drawing:
    return safe_drawing(plot(), "f0-")


def test_a_plot_of_matplotlib_keeps_its_shapes_letters_and_series(drawn: Drawing) -> None:
    assert drawn.series == ("L = 10", "L = 1000 <b>")
    assert {"#0072b2", "#222222"} <= drawn.strokes
    root = ET.fromstring(drawn.markup)  # noqa: S314  # our own
    before = ET.fromstring(plot())  # noqa: S314  # our own
    for tag in ("path", "use", "text", "clipPath"):
        kept = len(root.findall(f".//{tag}"))
        assert kept == len(before.findall(f".//{{http://www.w3.org/2000/svg}}{tag}")) > 0
    assert (
        "".join(root.itertext()).split()
        == "".join(
            text
            for node in before.iter("{http://www.w3.org/2000/svg}text")
            for text in node.itertext()
        ).split()
    )


def test_no_style_no_foreign_id_and_no_metadata_are_left(drawn: Drawing) -> None:
    assert not re.search(r"<style| style=|<metadata|xmlns|<!", drawn.markup)
    ids = re.findall(r' id="([^"]*)"', drawn.markup)
    assert ids
    assert all(name.startswith("f0-") for name in ids)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'(?:href="|url\()#([^")]*)', drawn.markup)
    assert set(targets) == set(ids)


def test_a_picture_inside_the_file_and_a_font_in_short_are_kept() -> None:
    picture = '<image width="2" height="2" xlink:href="data:image/png;base64,iVBORw0KGgo="/>'
    text = "<text style=\"font: italic 700 10px 'DejaVu Sans', sans-serif; fill: #FF0000\">a</text>"
    drawn = safe_drawing(svg(picture + text), "p-")
    assert 'href="data:image/png;base64,iVBORw0KGgo="' in drawn.markup
    assert 'font-style="italic" font-weight="700" font-size="10px"' in drawn.markup
    assert drawn.fills == {"#ff0000", "#000000"}


def test_the_paint_of_a_shape_that_is_used_stands_with_its_use() -> None:
    shapes = "<defs><path id='a' d='M0 0' stroke='#222222'/></defs><path id='b' fill='#00ff00'/>"
    uses = "<use href='#a' stroke='#ff0000' fill='#0000ff'/><use href='#b'/>"
    markup = safe_drawing(svg(shapes + uses), "p-").markup
    assert '<path d="M0 0" id="p-0">' in markup
    assert '<use stroke="#222222" fill="#0000ff" href="#p-0">' in markup
    assert '<path fill="#00ff00" id="p-1">' in markup


@pytest.mark.parametrize(
    ("inside", "reason"),
    [
        ("<script>alert(1)</script>", "it holds <script>"),
        ("<foreignObject><p>x</p></foreignObject>", "it holds <foreignObject>"),
        ("<a xlink:href='https://example.org'><path d='M0 0'/></a>", "it holds <a>"),
        ("<animate attributeName='x'/>", "it holds <animate>"),
        ("<svg viewBox='0 0 1 1'/>", "it holds <svg>"),
        ("<p xmlns='http://www.w3.org/1999/xhtml'/>", "it holds <{http://www.w3.org/1999/xhtml}p>"),
        ("<path onclick='alert(1)'/>", "it holds the event handler 'onclick'"),
        ("<path ONLOAD='alert(1)'/>", "it holds the event handler 'ONLOAD'"),
        (
            "<use xlink:href='https://example.org/a.svg#b'/>",
            "it points to 'https://example.org/a.svg#b'",
        ),
        ("<image href='https://example.org/a.png'/>", "it points to 'https://example.org/a.png'"),
        (
            "<image href='data:image/svg+xml;base64,AAAA'/>",
            "it points to 'data:image/svg+xml;base64,AAAA'",
        ),
        (
            "<image href='data:image/png;base64,AAAA, https://example.org/'/>",
            "it points to 'data:image/png;base64,AAAA, https://exam'",
        ),
        ("<path href='javascript:alert(1)'/>", "it points to 'javascript:alert(1)'"),
        (
            "<path style='fill: url(https://example.org/x)'/>",
            "its fill is 'url(https://example.org/x)'",
        ),
        ("<path fill='URL(//example.org)'/>", "its fill is 'URL(//example.org)'"),
        ("<path clip-path='url(#absent)'/>", "it refers to 'absent', which is not in it"),
        ("<g id='a'/><use href='#a'/>", "it uses the <g> 'a' more than once"),
        ("<g>" * 50 + "</g>" * 50, "its elements are nested more than 40 deep"),
    ],
)
def test_what_could_run_or_load_is_refused(inside: str, reason: str) -> None:
    with pytest.raises(SvgError) as caught:
        safe_drawing(svg(inside), "p-")
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "it is not UTF-8 text"),
        (b'<!DOCTYPE svg [<!ENTITY a "b">]><svg/>', "it defines entities of its own"),
        (b"<html/>", "its outermost element is not svg"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "it has no viewBox of four numbers"),
        (
            b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 nan 1"/>',
            "its viewBox is not one of a figure",
        ),
        (b"<svg", "it is not well-formed XML (unclosed token: line 1, column 0)"),
    ],
)
def test_what_is_no_drawing_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(SvgError) as caught:
        safe_drawing(content, "p-")
    assert str(caught.value) == reason


def test_letters_and_series_that_look_like_markup_are_escaped() -> None:
    inside = "<g id='series:&quot;&gt;&lt;script&gt;'><text>&lt;script&gt; &amp;</text></g>"
    markup = safe_drawing(svg(inside), "p-").markup
    assert "<script" not in markup
    assert 'data-series="&quot;&gt;&lt;script&gt;"' in markup


@pytest.mark.parametrize("colour", ["#0072b2", "#d55e00", "#440154", "#000000", "#222222"])
def test_ink_is_readable_on_a_dark_page(colour: str) -> None:
    assert contrast(at_night(colour), "#1b1e24") >= 4.5


def test_greys_keep_the_contrast_they_had_on_white() -> None:
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=1e-3)  # a known pair
    for colour in ("#eeeeee", "#b8b8b8", "#777777"):
        before, after = contrast(colour, "#ffffff"), contrast(at_night(colour), "#1b1e24")
        assert is_grey(colour)
        assert before <= after < 1.06 * before


def test_hues_keep_their_order_in_brightness() -> None:
    viridis = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
    looks = [contrast(at_night(colour), "#1b1e24") for colour in viridis]
    assert looks == sorted(looks)


def test_night_rules_name_each_colour_once(drawn: Drawing) -> None:
    rules = night_rules([drawn, drawn]).splitlines()
    assert len(rules) == len(set(rules))
    assert '.drawn [fill="#222222"]{fill:light-dark(#222222,' in "".join(rules)
