"""Numbers as a reader writes them."""

import math

from promptlimit.reporting.page._html import Html, element, joined


def number(value: float, digits: int = 3) -> Html:
    """Return a number to some digits, with a power of ten where that is shorter.

    >>> number(0.0123), number(1.2e-7), number(-3e12)
    ('0.0123', '1.2 × 10<sup>−7</sup>', '−3 × 10<sup>12</sup>')
    """
    if math.isnan(value):
        return Html("not a number")
    if math.isinf(value):
        return Html("∞" if value > 0 else "−∞")
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        decimals = 0 if value == 0 else max(0, digits - 1 - math.floor(math.log10(abs(value))))
        text = f"{value:.{decimals}f}"
        return _signed(text.rstrip("0").rstrip(".") if "." in text else text)
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    power = element("sup", _signed(str(int(exponent))))
    if mantissa in {"1", "-1"}:
        return joined(_signed(mantissa.removesuffix("1")), "10", power)
    return joined(_signed(mantissa), " × 10", power)


def _signed(text: str) -> Html:
    return Html(text.replace("-", "−"))


def duration(seconds: float) -> str:
    """Return a time span in words.

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
