"""A drawing of the library keeps its shapes, letters and series on a page that forbids styles."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from markupsafe import Markup
from matplotlib.figure import Figure

from promptlimit.reporting import plot_series, render
from promptlimit.reporting.page._svg import inline, is_drawing
from reporting.page.stored_results import plot

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> Markup:
    return inline(plot(), "f0-")


def test_a_plot_keeps_its_shapes_letters_and_series(drawn: Markup) -> None:
    root = ET.fromstring(drawn)  # noqa: S314  # our own
    before = ET.fromstring(plot())  # noqa: S314  # our own
    for tag in ("path", "use", "text", "clipPath"):
        kept = len(root.findall(f".//{tag}"))
        assert kept == len(before.findall(f".//{SVG}{tag}")) > 0
    letters = [text for node in before.iter(f"{SVG}text") for text in node.itertext()]
    assert "".join(root.itertext()) == "".join(letters)
    series = [node.get("data-series") for node in root.iter() if node.get("data-series")]
    assert series == ["L = 10", "L = 1000 <b>"]
    assert {"#0072b2", "#222222"} <= {node.get("stroke") for node in root.iter()}


def test_the_label_of_a_series_is_shown_without_tex() -> None:
    figure = Figure()
    plot_series(figure.subplots(), np.arange(2), np.arange(2), "$L = 10^{-12}$", color="#0072b2")
    drawn = inline(render(figure, "svg")[0], "p-")
    assert re.findall('data-series="([^"]*)"', drawn) == ["L = 10⁻¹²"]


def test_no_style_no_foreign_id_and_no_metadata_are_left(drawn: Markup) -> None:
    assert not re.search(r"<style| style=|<metadata|xmlns|<!", drawn)
    ids = re.findall(r' id="([^"]*)"', drawn)
    assert ids
    assert all(name.startswith("f0-") for name in ids)
    assert len(ids) == len(set(ids))
    targets = re.findall(r'(?:href="|url\()#([^")]*)', drawn)
    assert set(targets) == set(ids)


def test_pictures_fonts_and_white_backgrounds_are_kept_as_such() -> None:
    figure = Figure()
    axis = figure.subplots()
    axis.imshow(np.eye(3))
    axis.set_title("slanted", style="italic", weight="bold")
    content = render(figure, "svg")[0]
    assert is_drawing(content)
    drawn = inline(content, "p-")
    assert 'href="data:image/png;base64,' in drawn
    assert re.search(r'font-style="italic" font-weight="(bold|700)" font-size="[\d.]+px"', drawn)
    assert len(re.findall('class="paper"', drawn)) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<defs>", "<script>alert(1)</script><defs>"),
        ("<defs>", '<a xlink:href="https://example.org"/><defs>'),
        (
            "<defs>",
            '<foreignObject><p xmlns="http://www.w3.org/1999/xhtml"/></foreignObject><defs>',
        ),
        ("<defs>", '<b:script xmlns:b="http://www.w3.org/1999/xhtml">alert(1)</b:script><defs>'),
        ("<defs>", '<animate attributeName="href" values="javascript:alert(1)"/><defs>'),
        ("<defs>", '<image xlink:href="https://example.org/p.png"/><defs>'),
        ("<defs>", '<image xlink:href="data:image/svg+xml;base64,PHN2Zy8+"/><defs>'),
        ("<defs>", '<g id="g"/><use xlink:href="#g"/><defs>'),
        ("<defs>", '<use href="javascript:alert(1)"/><defs>'),
        ("<defs>", '<g onload="alert(1)"/><defs>'),
        ("<defs>", '<g style="background: red"/><defs>'),
        ("<defs>", '<g style="fill: url(https://example.org#a)"/><defs>'),
        ("<defs>", '<g clip-path="url(other.svg#a)"/><defs>'),
        ("<defs>", f"{'<g>' * 40}{'</g>' * 40}<defs>"),
        ("<svg ", '<!DOCTYPE svg [<!ENTITY a "aaaa">]><svg '),
        ("</svg>", ""),
        ('encoding="utf-8"', 'encoding="utf-7"'),
    ],
)
def test_a_file_of_another_drawing_program_or_another_mind_is_no_drawing(
    old: str, new: str
) -> None:
    ours = plot()
    assert is_drawing(ours)
    theirs = ours.replace(old.encode(), new.encode(), 1)
    assert theirs != ours
    assert not is_drawing(theirs)
