"""Where on a page things are: one rule for those who put them there and those who point to them."""

import re


def claim_anchor(number: int) -> str:
    """Return where the claim of a number is."""
    return f"claim-{number}"


def figure_anchor(name: str) -> str:
    """Return where the figure of a name is.

    >>> figure_anchor("gap curve")
    'figure-gap-curve'
    """
    return "figure-" + re.sub("[^A-Za-z0-9_-]", "-", name)
