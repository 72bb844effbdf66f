"""Figures into files, in every format at once."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def figure_paths(stem: Path) -> list[Path]:
    """Return the files of a figure, `stem` with each ending."""
    from promptlimit.reporting import FORMATS

    return [stem.with_name(f"{stem.name}.{extension}") for extension in FORMATS]


def write_figure(name: str, data: "dict[str, np.ndarray]", stem: Path) -> list[Path]:
    """Draw the figure of that name from its arrays; return the files, `stem` with each ending."""
    from promptlimit.reporting import FORMATS, draw, render
    from promptlimit.storage import write_bytes

    figure, paths = draw(name, data), figure_paths(stem)
    for path, content in zip(paths, render(figure, *FORMATS), strict=True):
        write_bytes(path, content)
    return paths
