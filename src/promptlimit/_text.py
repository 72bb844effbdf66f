"""Tables as plain text, for terminals. Only the standard library is imported."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def text_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows under their names: texts to the left, numbers to the right.

    A value that is missing or NaN is left empty.

    >>> print(text_table([{"L": 10, "gap": 0.25}, {"L": 1000}]))
       L   gap
      10  0.25
    1000
    """
    table = list(rows)
    names = list(dict.fromkeys(name for row in table for name in row))
    left = [any(isinstance(row.get(name), str) for row in table) for name in names]
    return aligned(names, [[_cell(row.get(name), name) for name in names] for row in table], left)


def aligned(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[bool] = ()
) -> str:
    """Return columns as wide as their widest entry; a narrow terminal cuts no digits.

    Args:
        headings: one per column.
        rows: the entries.
        left: whether each column is aligned left; by default none is.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    sides = [*left, *[False] * (len(widths) - len(left))]
    lines = []
    for row in (headings, *rows):
        cells = zip(row, widths, sides, strict=True)
        shown = [cell.ljust(width) if side else cell.rjust(width) for cell, width, side in cells]
        lines.append("  ".join(shown).rstrip())
    return "\n".join(lines)


def _cell(value: Any, name: str) -> str:
    """Return six digits of a number, two of an error."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    digits = 2 if name.startswith("±") else 6
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
