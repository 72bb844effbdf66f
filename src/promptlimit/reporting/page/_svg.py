"""A drawing from a file, made safe to stand inside a page.

Only what a plot is made of passes: shapes, text, clips, and pictures held in the file itself.
Style declarations become attributes one by one, so that the page can forbid inline styles
altogether. What could run, load or be mistaken for the page's own parts makes the file refused as a
whole: a drawing that holds a script is not the drawing that was written.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass

from promptlimit.reporting.page._html import Html, escaped

SERIES = "series:"
"""An element whose id starts so is one a reader may hide; the rest of the id is its label."""

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_SHAPES = frozenset({"path", "rect", "circle", "ellipse", "line", "polyline", "polygon"})
_ELEMENTS = _SHAPES | {"svg", "g", "defs", "clipPath", "pattern", "text", "tspan", "use", "image"}
_UNSHOWN = frozenset({"metadata", "style", "title", "desc"})
_PAINTS = frozenset({"fill", "stroke"})
_STYLES = _PAINTS | {
    "fill-opacity", "fill-rule", "clip-rule", "stroke-width", "stroke-opacity", "stroke-dasharray",
    "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit", "opacity",
    "font-size", "font-family", "font-style", "font-weight", "text-anchor",
}  # fmt: skip
_GEOMETRY = frozenset({
    "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "ry", "dx", "dy", "width",
    "height", "points", "transform", "clip-path", "clipPathUnits", "patternUnits",
    "patternTransform", "patternContentUnits", "preserveAspectRatio", "rotate",
})  # fmt: skip
_SAFE = re.compile(r"""[-+#%.,()'"/\w\s]*""")
_LOCAL = re.compile(r"url\(#([^()'\"\s]+)\)")
_COLOUR = re.compile("#[0-9A-Fa-f]{6}")
_PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]*")
_FONT = re.compile(r"(?P<before>(?:[a-z0-9-]+\s+)*?)(?P<size>[\d.]+px)\s+(?P<family>.+)")
_WHITE = frozenset({"#ffffff", "#fff", "white"})
_DEEPEST, _MOST = 40, 200_000


class SvgError(ValueError):
    """A file is not a drawing this page shows; the message continues "it ..."."""


@dataclass(frozen=True)
class Drawing:
    """A drawing that may stand in a page.

    Attributes:
        markup: the `svg` element.
        fills: the colours surfaces and letters have.
        strokes: the colours lines have.
        series: labels of what a reader may hide, in the order of drawing.
    """

    markup: Html
    fills: frozenset[str]
    strokes: frozenset[str]
    series: tuple[str, ...]


def safe_drawing(content: bytes, prefix: str) -> Drawing:
    """Return the drawing an SVG file holds, or raise `SvgError`.

    Args:
        content: the file.
        prefix: begins every id, so that those of two drawings on one page are never the same.
    """
    root = _parsed(content)
    box = _view_box(root)
    nodes = list(_walk(root, 0))
    writer = _Writer(_referred(nodes, prefix), _stored_paints(root))
    writer.open_root(box)
    for child in root:
        writer.write(child, parent_id="")
    writer.parts.append("</svg>")
    return Drawing(
        markup=Html("".join(writer.parts)),
        fills=frozenset(writer.colours["fill"]),
        strokes=frozenset(writer.colours["stroke"]),
        series=tuple(dict.fromkeys(writer.series)),
    )


def _parsed(content: bytes) -> ET.Element:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SvgError("it is not UTF-8 text") from None
    if "<!ENTITY" in text:
        raise SvgError("it defines entities of its own")
    try:
        root = ET.fromstring(text)  # noqa: S314  # no entities, and the text's size is bounded
    except ET.ParseError as problem:
        raise SvgError(f"it is not well-formed XML ({problem})") from None
    if root.tag != f"{_SVG}svg":
        raise SvgError("its outermost element is not svg")
    return root


def _view_box(root: ET.Element) -> tuple[float, float, float, float]:
    try:
        left, top, width, height = (float(part) for part in root.get("viewBox", "").split())
    except ValueError:
        raise SvgError("it has no viewBox of four numbers") from None
    if not (0 < width < 1e5 and 0 < height < 1e5 and abs(left) < 1e5 and abs(top) < 1e5):
        raise SvgError("its viewBox is not one of a figure")
    return left, top, width, height


def _walk(node: ET.Element, depth: int) -> Iterator[ET.Element]:
    """Yield every element that will be shown; refuse those that have no place in a plot."""
    if depth > _DEEPEST:
        raise SvgError(f"its elements are nested more than {_DEEPEST} deep")
    tag = node.tag.removeprefix(_SVG)
    if tag in _UNSHOWN:
        return
    if tag not in _ELEMENTS or (tag == "svg" and depth):
        raise SvgError(f"it holds <{tag[:40]}>")
    yield node
    for child in node:
        yield from _walk(child, depth + 1)


def _referred(nodes: list[ET.Element], prefix: str) -> dict[str, str]:
    """Return the page's own name for each id the drawing refers to.

    What is used twice must be one shape: a `use` of groups of `use` could grow without end.
    """
    if len(nodes) > _MOST:
        raise SvgError(f"it holds more than {_MOST} elements")
    kinds = {node.get("id"): node.tag.removeprefix(_SVG) for node in nodes if node.get("id")}
    wanted: dict[str, str] = {}
    for node in nodes:
        for target in _targets(node):
            if target not in kinds:
                raise SvgError(f"it refers to '{target[:40]}', which is not in it")
            if node.tag == f"{_SVG}use" and kinds[target] not in _SHAPES:
                raise SvgError(f"it uses the <{kinds[target]}> '{target[:40]}' more than once")
            wanted.setdefault(target, f"{prefix}{len(wanted)}")
    return wanted


def _stored_paints(root: ET.Element) -> dict[str, dict[str, str]]:
    """Return the paints of shapes that are there only to be used, by id.

    A style sheet cannot reach these where they are used, so they are written with the use. That
    changes nothing else: a shape's own paint comes before that of its use.
    """
    return {
        node.get("id", ""): {key: paint for key, paint in _attributes(node) if key in _PAINTS}
        for store in root.iter(f"{_SVG}defs")
        for node in store.iter()
        if node.get("id") and node.tag.removeprefix(_SVG) in _SHAPES
    }


def _targets(node: ET.Element) -> Iterator[str]:
    link = _link(node)
    if link.startswith("#"):
        yield link[1:]
    for _, value in _attributes(node):
        if match := _LOCAL.fullmatch(value):
            yield match[1]


def _link(node: ET.Element) -> str:
    """Return where an element points: inside the file, or to a picture the file holds."""
    links = [node.attrib[key] for key in ("href", f"{_XLINK}href") if key in node.attrib]
    for link in links:
        tag = node.tag.removeprefix(_SVG)
        inside = tag == "use" and link.startswith("#")
        if not inside and not (tag == "image" and _PICTURE.fullmatch(link)):
            raise SvgError(f"it points to '{link[:40]}'")
    return links[0] if links else ""


def _attributes(node: ET.Element) -> Iterator[tuple[str, str]]:
    """Yield what shapes and colours an element, style declarations included, each checked."""
    for key, value in node.attrib.items():
        if key.lower().startswith("on"):
            raise SvgError(f"it holds the event handler '{key[:40]}'")
        if key == "style":
            yield from _declarations(value)
        elif key in _GEOMETRY or key in _STYLES:
            yield key, _checked(key, value)


def _declarations(style: str) -> Iterator[tuple[str, str]]:
    for declaration in style.split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font":
            yield from _font(value)
        elif key in _STYLES or key == "clip-path":
            yield key, _checked(key, value)


def _font(value: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a `font` shorthand, which is no attribute itself."""
    match = _FONT.fullmatch(value)
    if match is None:
        return
    for word in match["before"].split():
        if word in {"italic", "oblique"}:
            yield "font-style", word
        elif word == "bold" or word.isdecimal():
            yield "font-weight", word
    yield "font-size", match["size"]
    yield "font-family", _checked("font-family", match["family"])


def _checked(key: str, value: str) -> str:
    plain = _SAFE.fullmatch(value) and "url" not in value.lower()
    if not plain and not (key in {*_PAINTS, "clip-path"} and _LOCAL.fullmatch(value)):
        raise SvgError(f"its {key} is '{value[:40]}'")
    return value


class _Writer:
    """Writes elements that passed, and gathers what the page wants to know of them."""

    def __init__(self, names: dict[str, str], stored_paints: dict[str, dict[str, str]]):
        self.parts: list[str] = []
        self.colours: dict[str, set[str]] = {"fill": set(), "stroke": set()}
        self.series: list[str] = []
        self._names = names
        self._stored_paints = stored_paints

    def open_root(self, box: tuple[float, float, float, float]) -> None:
        """Open the `svg` element: its box alone says how large it is.

        The joins and caps are those of the style sheet Matplotlib puts into its files; what has
        no fill of its own is black, and says so.
        """
        self.colours["fill"].add("#000000")
        view = " ".join(f"{side:g}" for side in box)
        self.parts.append(
            f'<svg viewBox="{view}" width="{box[2]:g}" stroke-linejoin="round" '
            'stroke-linecap="butt" fill="#000000" aria-hidden="true" focusable="false">'
        )

    def write(self, node: ET.Element, *, parent_id: str) -> None:
        """Write an element and what is in it."""
        tag = node.tag.removeprefix(_SVG)
        if tag in _UNSHOWN:
            return
        name = node.get("id", "")
        attributes = self._painted(node, name)
        if parent_id.startswith("patch_") and attributes.get("fill") in _WHITE:
            attributes |= {"class": "paper"}
        if name.startswith(SERIES):
            self.series.append(name.removeprefix(SERIES))
            attributes |= {"data-series": name.removeprefix(SERIES)}
        if name in self._names:
            attributes |= {"id": self._names[name]}
        self.parts.append(f"<{tag}")
        for key, value in attributes.items():
            self.parts.append(f' {key}="{escaped(self._local(key, value))}"')
        if link := _link(node):
            target = f"#{self._names[link[1:]]}" if link.startswith("#") else link
            self.parts.append(f' href="{escaped(target)}"')
        self.parts.append(">")
        self._write_content(node, tag, name)
        self.parts.append(f"</{tag}>")

    def _painted(self, node: ET.Element, name: str) -> dict[str, str]:
        """Return an element's attributes; stored shapes give their paints to those who use them."""
        attributes = dict(_attributes(node))
        if name in self._stored_paints:
            return {key: value for key, value in attributes.items() if key not in _PAINTS}
        return attributes | self._stored_paints.get(_link(node).removeprefix("#"), {})

    def _write_content(self, node: ET.Element, tag: str, name: str) -> None:
        lettered = tag in {"text", "tspan"}
        if lettered:
            self.parts.append(escaped(node.text or ""))
        for child in node:
            self.write(child, parent_id=name)
            if lettered:
                self.parts.append(escaped(child.tail or ""))

    def _local(self, key: str, value: str) -> str:
        if match := _LOCAL.fullmatch(value):
            return f"url(#{self._names[match[1]]})"
        if key in self.colours and _COLOUR.fullmatch(value):
            value = value.lower()
            self.colours[key].add(value)
        return value
