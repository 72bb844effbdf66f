"""Markup that cannot be mistaken for text: what is not `Html` is escaped on its way in."""

import html
import re
from collections.abc import Iterable

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Html(str):
    """Text that is markup already, and is not escaped again."""

    __slots__ = ()


def escaped(text: str) -> Html:
    """Return text as markup that shows it, whatever it holds.

    >>> escaped("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    if isinstance(text, Html):
        return text
    return Html(html.escape(_UNPRINTABLE.sub("\ufffd", text), quote=True))


def joined(*parts: str) -> Html:
    """Return the parts one after the other, those that are plain text escaped."""
    return Html("".join(escaped(part) for part in parts))


def separated(parts: Iterable[str]) -> Html:
    """Return the parts with a dot between them, those that are plain text escaped."""
    return Html(" · ".join(escaped(part) for part in parts))


def element(tag: str, *content: str, **attributes: str | bool | None) -> Html:
    """Return an element; `class_` and `data_x` stand for `class` and `data-x`, None for nothing.

    >>> element("a", "1 < 2", href="#top", class_="quiet", hidden=True)
    '<a href="#top" class="quiet" hidden>1 &lt; 2</a>'
    """
    return Html(f"{opening(tag, **attributes)}{joined(*content)}</{tag}>")


def opening(tag: str, **attributes: str | bool | None) -> Html:
    """Return the opening tag alone, which is all there is of elements without content."""
    text = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{tag}{text}>")


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
