"""Numbers and formulas as HTML."""

import functools
import math
import re
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markupsafe import Markup, escape

_BEFORE_FUNCTION = re.compile(r"(?<=[\w)}]) ?(?=\\(?:ln|log|tanh)\b)")
_FUNCTION = re.compile(r"\\(?:ln|log|tanh)\b(?! ?(?:[(^_]|$))")
"""A function whose argument has no parentheses; the converter omits the space between them."""
_CORRECTED = {"~": ("mo", "∼"), "∞": ("mi", "∞")}
"""The correct element for symbols that the converter misclassifies: ~ and ∞."""
_MATHML = "{http://www.w3.org/1998/Math/MathML}"
_ELEMENTS = {
    *("math", "mfrac", "mi", "mn", "mo", "mover", "mpadded", "mroot", "mrow", "mspace", "msqrt"),
    *("mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"),
}
_ATTRIBUTES = {
    *("accent", "columnalign", "display", "displaystyle", "fence", "form", "linethickness"),
    *("lspace", "mathvariant", "maxsize", "minsize", "movablelimits", "rowspacing", "rspace"),
    *("scriptlevel", "separator", "stretchy", "width"),
}


def measured(value: float, error: float | None) -> Markup:
    """Return a number, with its error if it has one.

    >>> measured(0.0134, 0.00034), measured(2.0e-7, 3.1e-8)
    (Markup('0.0134 ± 0.00034'), Markup('2 × 10<sup>−7</sup> ± 3.1 × 10<sup>−8</sup>'))
    """
    if error is None:
        return number(value)
    least = 1e-7 if _is_plain(value, 1e-3) else 1e-3
    return Markup("{} ± {}").format(number(value), number(error, 2, least))


def number(value: float, digits: int = 3, least: float = 1e-3) -> Markup:
    """Return a number with `digits` significant digits.

    Absolute values below `least` or from 1e5 on are written with a power of ten.

    >>> number(0.0123), number(1.2e-7), number(-3e12)
    (Markup('0.0123'), Markup('1.2 × 10<sup>−7</sup>'), Markup('−3 × 10<sup>12</sup>'))
    """
    if math.isnan(value):
        return Markup("not a number")
    if math.isinf(value):
        return _signed("∞" if value > 0 else "-∞")
    if _is_plain(value, least):
        decimals = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{decimals}f}"
        return _signed(text.rstrip("0").rstrip(".") if "." in text else text)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    power = Markup("10<sup>{}</sup>").format(_signed(str(int(exponent))))
    if mantissa in {"1", "-1"}:
        return _signed(mantissa.removesuffix("1")) + power
    return Markup("{} × {}").format(_signed(mantissa), power)


def _is_plain(value: float, least: float) -> bool:
    return value == 0 or least <= abs(value) < 1e5


def _signed(text: str) -> Markup:
    return Markup("{}").format(text.replace("-", "−"))


def formula(text: str) -> Markup:
    """Return text with the TeX between dollar signs as MathML; invalid TeX is left unchanged.

    >>> print(formula("a < b for $x^2$"))
    a &lt; b for <math><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow></math>
    """
    pieces = text.split("$")
    if len(pieces) % 2 == 0:  # a dollar sign without its partner
        return escape(text)
    shown = escape(pieces[0].replace(" - ", " − "))
    for tex, words in zip(pieces[1::2], pieces[2::2], strict=True):
        mark = words[:1] if words[:1] in tuple(".,;:") else ""  # stays on the line of the formula
        math = Markup("<span>{}{}</span>").format(_mathml(tex), mark) if mark else _mathml(tex)
        shown += math + escape(words.removeprefix(mark).replace(" - ", " − "))
    return shown


@functools.cache
def _mathml(tex: str) -> Markup:
    """Return TeX as MathML. Tags are validated, because the converter does not escape all input."""
    spaced = _FUNCTION.sub(r"\g<0>\,", _BEFORE_FUNCTION.sub(r"\,", tex))
    try:
        tree = ElementTree.fromstring(convert(spaced))  # noqa: S314  # MathML without a document type
    except Exception:  # the errors of the converter have no common class
        return escape(f"${tex}$")
    for part in tree.iter():
        name = part.tag.removeprefix(_MATHML)
        if (
            name not in _ELEMENTS
            or set(part.attrib) - _ATTRIBUTES
            or (name == "math") != (part is tree)
        ):
            return escape(f"${tex}$")
    tree.attrib.pop("display", None)
    for part in tree.iter():
        part.tag = part.tag.removeprefix(_MATHML)
        if part.text == "/":  # around which browsers add the space of a relation
            part.attrib |= {"lspace": "0", "rspace": "0"}
        part.tag, part.text = _CORRECTED.get(part.text or "", (part.tag, part.text))
    return Markup(ElementTree.tostring(tree, encoding="unicode"))  # noqa: S704  # checked above


def two_digits(value: float) -> str:
    """Return a number with two digits after the point.

    >>> two_digits(-0.126)
    '−0.13'
    """
    return f"{value:.2f}".replace("-", "−")


def duration(seconds: float) -> str:
    """Return a duration as text.

    >>> duration(0.234), duration(8.1), duration(125.0), duration(7300.0)
    ('0.23 s', '8 s', '2 min 5 s', '2 h 1 min')
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 1:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
