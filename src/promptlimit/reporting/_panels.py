"""What the paper's figures share: panels for laws, colours for lengths, series to hide."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import Container
from matplotlib.ticker import FuncFormatter, NullFormatter

LAWS = {
    "identity": "isotropic covariates",
    "kms": "anisotropic, as stated",
    "kms-as-coded": "anisotropic, as coded",
}


def laws_in(data: Mapping[str, np.ndarray]) -> list[str]:
    """Return the laws a figure's arrays are about, in the order of `LAWS`."""
    return [law for law in LAWS if any(name.startswith(f"{law}.") for name in data)]


def of_law(data: Mapping[str, np.ndarray], law: str) -> dict[str, np.ndarray]:
    """Return the arrays of one law under their short names."""
    start = f"{law}."
    return {name.removeprefix(start): data[name] for name in data if name.startswith(start)}


def length_colours(lengths: np.ndarray) -> dict[int, str]:
    """Return a colour for each length, from dark for short prompts to light for long ones."""
    shades = mpl.colormaps["viridis"](np.linspace(0.0, 0.86, len(lengths)))
    return {int(length): to_hex(shade) for length, shade in zip(lengths, shades, strict=True)}


def selectable(drawn: Artist | Container | list, label: str) -> None:
    """Mark what was drawn as part of a series that a reader of the page may hide."""
    if isinstance(drawn, Artist):
        drawn.set_gid(f"series:{label}")
        return
    for part in drawn:
        if part is not None:
            selectable(part, label)


def plain_lengths(axis: Axes) -> None:
    """Put lengths on the horizontal axis in plain numbers."""
    axis.set_xscale("log")
    axis.set_xticks([10, 30, 100, 300, 1000], ["10", "30", "100", "300", "1000"])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("length $L$ of the prompt")


def plain_steps(axis: Axes) -> None:
    """Put steps on the horizontal axis in plain numbers."""
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("steps of the paper’s training")
