"""A drawing of our own, made to stand inside a page.

The page forbids inline styles and holds several drawings: style declarations become attributes, and
ids that are referred to get a prefix of their own. All others go, but for those that name a series,
axes or ticks, whose labels stay in sight when a reader looks closer.
"""

import re
import xml.etree.ElementTree as ET

from markupsafe import Markup

from promptlimit.reporting._theme import PAINTED, SERIES

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_UNSHOWN = {f"{_SVG}metadata", f"{_SVG}style"}
_LINK = re.compile(r"url\(#([^)]+)\)")
_FONT = re.compile(r"(?P<words>(?:[a-z0-9-]+\s+)*?)(?P<size>[\d.]+px)\s+(?P<family>.+)")
_WHITE = "#ffffff"


def inline(content: bytes, prefix: str) -> Markup:
    """Return an SVG file of Matplotlib as markup for a page.

    Args:
        content: the file, drawn by this library.
        prefix: begins every id, so that those of two drawings on one page are never the same.
    """
    root = ET.fromstring(content)  # noqa: S314  # drawn here, from numbers
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _UNSHOWN]:
            parent.remove(child)
    _mark_paper(root)
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
        if node.tag != "tspan":  # white space between shapes
            node.tail = None
            node.text = node.text if node.tag == "text" else None
        _declare(node)
    names = _names(root, prefix)
    for node in root.iter():
        _refer(node, names)
    box = root.get("viewBox", "0 0 1 1")
    root.attrib = {
        "viewBox": box,
        "width": box.split()[2],
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
        "aria-hidden": "true",
        "focusable": "false",
    }
    return Markup(ET.tostring(root, encoding="unicode"))  # noqa: S704  # drawn here


def _mark_paper(root: ET.Element) -> None:
    """Mark the white backgrounds of figure and axes, which the page leaves out."""
    for node in root.iter(f"{_SVG}g"):
        if node.get("id", "").startswith("patch_"):
            for path in node.iter(f"{_SVG}path"):
                if f"fill: {_WHITE}" in path.get("style", ""):
                    path.set("class", "paper")


def _declare(node: ET.Element) -> None:
    """Turn the declarations of a style into attributes."""
    for declaration in node.attrib.pop("style", "").split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font" and (font := _FONT.fullmatch(value)):
            words = font["words"].split()
            if "italic" in words or "oblique" in words:
                node.set("font-style", "italic")
            for weight in (word for word in words if word == "bold" or word.isdecimal()):
                node.set("font-weight", weight)
            node.set("font-size", font["size"])
            node.set("font-family", font["family"])
        elif key:
            node.set(key, value)


def _names(root: ET.Element, prefix: str) -> dict[str, str]:
    """Return a name for each id that the drawing refers to."""
    targets: dict[str, str] = {}
    for node in root.iter():
        links = [value[1:] for key, value in node.items() if key == f"{_XLINK}href"]
        links += [match[1] for value in node.attrib.values() if (match := _LINK.fullmatch(value))]
        for link in links:
            targets.setdefault(link, f"{prefix}{len(targets)}")
    return targets


def _refer(node: ET.Element, names: dict[str, str]) -> None:
    """Give an element and what it refers to their names on the page."""
    name = node.attrib.pop("id", "")
    if name in names:
        node.set("id", names[name])
    if name.startswith(("xtick_", "ytick_")):
        node.set("data-tick", name[0])
    if name.startswith("axes_"):
        node.set("data-axes", "")
    if name == PAINTED:
        node.set("class", PAINTED)
    if name.startswith(SERIES):
        node.set("data-series", name.removeprefix(SERIES))
    for key, value in list(node.items()):
        if match := _LINK.fullmatch(value):
            node.set(key, f"url(#{names[match[1]]})")
    link = node.attrib.pop(f"{_XLINK}href", "")
    if link.startswith("#"):
        node.set("href", f"#{names[link[1:]]}")
    elif link.startswith("data:"):
        node.set("href", link)
