"""Results as pictures and as labelled arrays, by packages that are loaded when asked for."""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXTRAS = {"xarray": "xarray"}

Variables: TypeAlias = dict[str, tuple[tuple[str, ...], Any]]
"""Arrays by name, each with the names of its axes."""


class MissingPackageError(ImportError):
    """A package that a result needs for this is not installed; the message says how to get it."""


def package(name: str, purpose: str) -> ModuleType:
    """Return a package, or say which command installs it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        root = name.partition(".")[0]
        wanted = f"'promptlimit[{_EXTRAS[root]}]'" if root in _EXTRAS else root
        raise MissingPackageError(
            f"`{purpose}` must have the package {root}, which is not installed. "
            f"Run pip install {wanted}."
        ) from None


def axes_for(ax: "Axes | None", *, x: str, y: str) -> "Axes":
    """Return the axes to draw in, new ones when None, named and with a logarithmic y."""
    drawn: Any = ax
    if ax is None:
        drawn = package("matplotlib.pyplot", "plot").subplots(layout="constrained")[1]
    drawn.set(xlabel=x, ylabel=y, yscale="log")
    return drawn


def draw_curve(ax: "Axes", x: np.ndarray, y: np.ndarray, error: np.ndarray, **style: Any) -> None:
    """Draw y against x with a band of one error; what is at infinity is a dashed level."""
    inside = np.isfinite(x)
    (line,) = ax.plot(x[inside], y[inside], **style)
    low, high = y[inside] - error[inside], y[inside] + error[inside]
    if np.any(error[inside] > 0):
        ax.fill_between(x[inside], low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    for level in y[~inside]:
        ax.axhline(level, color=line.get_color(), linestyle="--", linewidth=1)


def stretch(ax: "Axes", times: np.ndarray) -> None:
    """Make the axis of times logarithmic beyond the first that is not zero."""
    positive = times[(times > 0) & np.isfinite(times)]
    if positive.size > 1:
        ax.set_xscale("symlog", linthresh=float(positive[0]))


def length_axes(lengths: object) -> tuple[str, ...]:
    """Return names for the axes of an array of lengths: one has a plain name."""
    count = np.ndim(np.asarray(lengths))
    return ("length",) if count == 1 else tuple(f"length_{i}" for i in range(count))


def parameter_axes(name: str, count: int) -> tuple[str, ...]:
    """Return names for the axes of a parameter: the rows and columns of a matrix, or numbers."""
    words = ("row", "column") if count <= 2 else tuple(f"axis_{i}" for i in range(count))
    return tuple(f"{name}.{word}" for word in words[:count])


def dataset(
    variables: Variables,
    coordinates: Mapping[str, Any],
    attributes: Mapping[str, Any],
) -> Any:
    """Return an `xarray.Dataset` of named arrays with named axes."""
    return package("xarray", "to_xarray").Dataset(variables, coordinates, attributes)
