"""Convert SVG files of Matplotlib to markup inside a page, and validate them.

A page forbids inline styles, so style declarations become attributes. A page contains several
drawings, so the ids that a drawing refers to get a prefix that differs between drawings. The ids of
series, axes and ticks become attributes, which the script of the page uses to hide series and to
zoom. All other ids are removed.

A file from disk may have any origin: `is_drawing` returns whether it is safe to show.
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

_HEAD = b'<?xml version="1.0" encoding="utf-8" standalone="no"?>'
_ELEMENTS = {
    f"{_SVG}{name}"
    for name in ("svg", "defs", "g", "path", "use", "clipPath", "rect", "text", "tspan", "image")
}
_PLACES = {"d", "x", "y", "width", "height", "viewBox", "transform", "clip-path", "version"}
_LOOKS = {"opacity", "fill", "stroke", "font", "text-anchor", "image-rendering"}
_PLAIN = re.compile(r"[\w\s#.,+%()'-]*")
_PICTURE = re.compile(r"data:image/png;base64,[\w\s+/=]*")
_DEEPEST = 30


def is_drawing(content: bytes) -> bool:
    """Return whether an SVG file contains only shapes, text and embedded images.

    The result is true for figures of this library, and false for a file that links to another file.
    """
    if not content.startswith(_HEAD) or b"<!ENTITY" in content:
        return False
    try:
        root = ET.fromstring(content)  # noqa: S314  # no entities
    except ET.ParseError:
        return False
    _drop_unshown(root)
    level = [root]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in node]
    shapes = {f"#{node.get('id')}" for node in root.iter(f"{_SVG}path")}
    return not level and all(_is_harmless(node, shapes) for node in root.iter())


def _is_harmless(node: ET.Element, shapes: set[str]) -> bool:
    """Return whether an element is allowed; links may only refer to shapes or embedded images."""
    if node.tag not in _ELEMENTS:
        return False
    for key, value in node.items():
        if key == "id":
            continue
        if key == f"{_XLINK}href":
            if not (value in shapes or _PICTURE.fullmatch(value)):
                return False
        elif key == "style":
            declarations = (part.partition(":") for part in value.split(";") if part.strip())
            if not all(_is_look(name.strip(), look) for name, _, look in declarations):
                return False
        elif key not in _PLACES or not _is_plain(value):
            return False
    return True


def _is_look(name: str, value: str) -> bool:
    return (name in _LOOKS or name.partition("-")[0] in _LOOKS) and _is_plain(value)


def _is_plain(value: str) -> bool:
    """Return whether a value consists of numbers and words, or is a link within the drawing."""
    return bool(_LINK.fullmatch(value) or (_PLAIN.fullmatch(value) and "url" not in value.lower()))


def _drop_unshown(root: ET.Element) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _UNSHOWN]:
            parent.remove(child)


def inline(content: bytes, prefix: str) -> Markup:
    """Return an SVG file of Matplotlib as markup for a page.

    Args:
        content: the content of the file. If it was read from disk, `is_drawing` must be true.
        prefix: the beginning of every id; it must be different for each drawing on a page.
    """
    root = ET.fromstring(content)  # noqa: S314  # drawn here, from numbers
    _drop_unshown(root)
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
    """Mark the white backgrounds of figure and axes, which the page does not show."""
    for node in root.iter(f"{_SVG}g"):
        if node.get("id", "").startswith("patch_"):
            for path in node.iter(f"{_SVG}path"):
                if f"fill: {_WHITE}" in path.get("style", ""):
                    path.set("class", "paper")


def _declare(node: ET.Element) -> None:
    """Replace the style of an element by attributes, with one attribute per property of a font."""
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
    """Return a new name for each id that the drawing refers to."""
    targets: dict[str, str] = {}
    for node in root.iter():
        links = [value[1:] for key, value in node.items() if key == f"{_XLINK}href"]
        links += [match[1] for value in node.attrib.values() if (match := _LINK.fullmatch(value))]
        for link in links:
            targets.setdefault(link, f"{prefix}{len(targets)}")
    return targets


def _refer(node: ET.Element, names: dict[str, str]) -> None:
    """Replace the id and the links of an element by the new names."""
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
