"""Tables and values as plain text, for terminals and messages."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def text_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with one row per mapping and one column per name.

    Columns of strings are aligned left, and columns of numbers right. The cell of a missing value
    or NaN is empty.

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
    """Return a table with columns as wide as their widest entry.

    Args:
        headings: the heading of each column.
        rows: the entries of each row.
        left: whether each column is aligned left; by default all columns are aligned right.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    sides = [*left, *[False] * (len(widths) - len(left))]
    lines = []
    for row in (headings, *rows):
        cells = zip(row, widths, sides, strict=True)
        padded = [cell.ljust(width) if side else cell.rjust(width) for cell, width, side in cells]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def shown(value: object) -> str:
    """Return a value for messages, at most 40 characters; text is in quotes.

    >>> print(shown("1%"), shown(2.0))
    '1%' 2.0
    """
    return " ".join((repr(value) if isinstance(value, str) else str(value)).split())[:40]


def _cell(value: Any, name: str) -> str:
    """Return a float with six digits, or with two if the name of the column starts with ±."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    digits = 2 if name.startswith("±") else 6
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
