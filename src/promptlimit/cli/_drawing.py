"""Figures into files, in every format at once."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def write_figure(name: str, data: "dict[str, np.ndarray]", out: Path) -> list[Path]:
    """Draw the figure of that name from its arrays and write it under `out`; return the files."""
    from promptlimit.reporting import FORMATS, draw, render
    from promptlimit.results import write_bytes

    figure = draw(name, data)
    paths = [out / "figures" / f"{name}.{extension}" for extension in FORMATS]
    for path, extension in zip(paths, FORMATS, strict=True):
        write_bytes(path, render(figure, extension))
    return paths
