"""Colours of figures for a dark page: the same hues, light enough to be read there."""

import colorsys
import math
from collections.abc import Iterable

from promptlimit.reporting.page._svg import Drawing

CARD_AT_NIGHT = "#1b1e24"
"""What figures lie on when the page is dark; the style sheet says the same."""

_LEAST_CONTRAST, _MOST_CONTRAST = 4.5, 13.0
_PALER = 0.8
_MOST_FILLS = 24


def is_painted(drawing: Drawing) -> bool:
    """Return whether a drawing is a map in many colours, whose surfaces must keep them."""
    return len(drawing.fills) > _MOST_FILLS


def night_rules(drawings: Iterable[Drawing]) -> str:
    """Return style rules that give each colour of the drawings its look on a dark page."""
    rules = set()
    for drawing in drawings:
        for key, colours in (("fill", drawing.fills), ("stroke", drawing.strokes)):
            for colour in colours:
                scope = _scope(colour, key)
                dark = at_night(colour, is_line=key == "stroke")
                if dark != colour:
                    rules.add(f'{scope} [{key}="{colour}"]{{{key}:light-dark({colour},{dark})}}')
    return "\n".join(sorted(rules))


def _scope(colour: str, key: str) -> str:
    """Greys are ink wherever they are; hues and white are ink only where nothing is painted."""
    return ".drawn" if is_grey(colour) and key == "fill" else ".drawn:not(.painted)"


def is_grey(colour: str) -> bool:
    """Return whether a colour has no hue to speak of.

    >>> is_grey("#222222"), is_grey("#0072b2")
    (True, False)
    """
    channels = _channels(colour)
    return max(channels) - min(channels) < 16


def at_night(colour: str, *, is_line: bool = False) -> str:
    """Return a colour's look on the dark card.

    Greys have the contrast there that they had on white: what was ink is bright, what was a faint
    grid is faint. Hues are lightened to a contrast that keeps their order. White letters lie on
    something painted and stay; white lines are gaps, and close.

    >>> at_night("#eeeeee"), at_night("#ffffff"), at_night("#ffffff", is_line=True)
    ('#272a31', '#ffffff', '#1b1e24')
    """
    if is_grey(colour):
        if min(_channels(colour)) >= 250:
            return CARD_AT_NIGHT if is_line else colour
        return _lightened(CARD_AT_NIGHT, min(contrast(colour, "#ffffff"), _MOST_CONTRAST))
    return _lightened(colour, math.hypot(contrast(colour, CARD_AT_NIGHT), _LEAST_CONTRAST))


def _lightened(colour: str, wanted: float) -> str:
    """Return the darkest shade of a colour with the contrast wanted, a little paler, or white."""
    hue, lightness, saturation = colorsys.rgb_to_hls(*(c / 255 for c in _channels(colour)))
    for step in range(201):
        lighter = lightness + (1 - lightness) * step / 200
        shade = _hex(255 * c for c in colorsys.hls_to_rgb(hue, lighter, _PALER * saturation))
        if contrast(shade, CARD_AT_NIGHT) >= wanted:
            return shade
    return "#ffffff"


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as web guidelines (WCAG) define it.

    >>> round(contrast("#000000", "#ffffff"), 9)
    21.0
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    linear = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in (channel / 255 for channel in _channels(colour))
    )
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def _hex(channels: Iterable[float]) -> str:
    return "#" + "".join(f"{round(channel):02x}" for channel in channels)
