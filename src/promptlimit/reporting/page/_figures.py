"""A figure as a part of a page: drawing, caption, files, origin."""

import re
from urllib.parse import quote

from promptlimit.reporting.page._html import Html, element, joined
from promptlimit.reporting.page._night import is_painted
from promptlimit.reporting.page._origin import origin_lines
from promptlimit.reporting.page._stored import StoredFigure


def figure_anchor(name: str) -> str:
    """Return where on the page a figure is."""
    return "figure-" + re.sub("[^A-Za-z0-9_-]", "-", name)


def figure_section(figure: StoredFigure) -> Html:
    """Return a figure with its title, drawing, caption, files and origin."""
    anchor = figure_anchor(figure.name)
    reference = element("p", figure.reference, class_="reference") if figure.reference else ""
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
    return element(
        "div",
        figure.drawing.markup,
        class_="frame drawn painted" if is_painted(figure.drawing) else "frame drawn",
        tabindex="0",
        role="img",
        aria_label=figure.title,
        aria_describedby=f"{anchor}-caption",
    )


def _downloads(figure: StoredFigure) -> Html:
    if not figure.downloads:
        return Html()
    links = (
        element("a", ending.upper(), href=f"figures/{quote(f'{figure.name}.{ending}', safe='')}")
        for ending in figure.downloads
    )
    return element("p", element("span", "Files"), joined(*links), class_="downloads")
