"""A figure as a part of a page: drawing, caption, files, origin."""

import os
from collections.abc import Sequence
from urllib.parse import quote

from promptlimit.reporting.page._anchors import claim_anchor, figure_anchor
from promptlimit.reporting.page._html import Html, element, joined, separated
from promptlimit.reporting.page._night import is_painted
from promptlimit.reporting.page._origin import origin_lines
from promptlimit.reporting.page._stored import StoredFigure
from promptlimit.reporting.page._svg import Drawing
from promptlimit.results import ClaimResult


def figure_section(figure: StoredFigure, claims: Sequence[ClaimResult]) -> Html:
    """Return a figure with its title, the claims beside it, drawing, caption, files and origin."""
    anchor = figure_anchor(figure.name)
    links = (element("a", f"claim {c.number}", href=f"#{claim_anchor(c.number)}") for c in claims)
    above = [*([figure.reference] if figure.reference else []), *links]
    reference = element("p", separated(above), class_="reference") if above else ""
    return element(
        "article",
        element("header", element("h3", figure.title)),
        reference,
        element(
            "figure",
            _frame(figure, anchor),
            element("figcaption", figure.caption, id=f"{anchor}-caption"),
            class_="plot",
        ),
        _downloads(figure),
        origin_lines(figure.origin),
        class_="figure-section",
        id=anchor,
    )


def _frame(figure: StoredFigure, anchor: str) -> Html:
    if figure.drawing is None:
        return element("p", figure.problem, class_="problem")
    return drawing_frame(figure.drawing, figure.title, anchor)


def drawing_frame(drawing: Drawing, title: str, anchor: str) -> Html:
    """Return the frame a reader can zoom in; its caption has the id `ANCHOR-caption`."""
    return element(
        "div",
        drawing.markup,
        class_="frame drawn painted" if is_painted(drawing) else "frame drawn",
        tabindex="0",
        role="img",
        aria_label=title,
        aria_describedby=f"{anchor}-caption",
    )


def _downloads(figure: StoredFigure) -> Html:
    if not figure.downloads:
        return Html()
    links = (
        element(
            "a", ending.upper(), href=f"figures/{quote(os.fsencode(f'{figure.name}.{ending}'))}"
        )
        for ending in figure.downloads
    )
    return element("p", element("span", "Files"), joined(*links), class_="downloads")
