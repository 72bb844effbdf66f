"""Parameters along training: where they were, what they cost, and how sure that is."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np

from promptlimit.results._curves import Variables, axes_for, dataset, draw_curve, stretch
from promptlimit.results._files import InputFileError
from promptlimit.results._kinds import Kind
from promptlimit.results._run_folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PREFIX = "parameters."
_CURVES = ("value", "gradient_norms", "error")


@dataclass(frozen=True)
class Trajectory:
    r"""The parameters of one head along training, at n times.

    Attributes:
        times: when, [n]; the last may be infinite, which is the time of arrival and after.
        parameters: the matrices that moved, by name, each [n, rows, columns].
        key_query: the merged $U$, [n, token_dim, query_dim].
        value_matrix: the merged $V$, or $OV$, [n, output_dim, token_dim].
        value: the risk $R_L$ at each time, [n].
        gradient_norms: $\|\nabla R_L\|$ in the matrices that moved, [n].
        error: of `value`, [n]: how far they are from the same risks on a second, independent set
            of points or prompts; 0 for a closed form.
        arrived: when the gradient fell below the threshold, after which nothing moves; None when
            it did not.
        kind: "exact", "limit" or "estimate", as for a risk.
        length: $L$, the number of tokens of a prompt.
        config: all that decides the trajectory, as plain numbers and strings.
    """

    times: np.ndarray
    parameters: Mapping[str, np.ndarray]
    key_query: np.ndarray
    value_matrix: np.ndarray
    value: np.ndarray
    gradient_norms: np.ndarray
    error: np.ndarray
    arrived: float | None
    kind: Kind
    length: float
    config: Mapping[str, object]

    def save(self, folder: str | Path) -> Path:
        """Write the trajectory into a folder of its own inside `folder`, and return that.

        The folder's name is the hash of the configuration: the same training is written once.
        """
        arrays = {name: getattr(self, name) for name in ("key_query", "value_matrix", *_CURVES)}
        arrays |= {_PREFIX + name: array for name, array in self.parameters.items()}
        arrays["arrived"] = np.array([] if self.arrived is None else [self.arrived])
        return RunFolder(folder, self.config).save(arrays)

    @classmethod
    def load(cls, path: str | Path) -> "Trajectory":
        """Return the trajectory in a folder that `save` made, or say why it cannot be used."""
        run = RunFolder.at(path)
        arrays = run.load()
        try:
            return _trajectory(run.config, arrays)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as problem:
            raise InputFileError(
                f"{path} must hold a trajectory, but {problem or type(problem).__name__}."
            ) from None

    def as_json(self) -> dict[str, object]:
        """Return times and curves as plain numbers; infinite times and lengths are null."""
        return {
            "length": _finite(self.length),
            "kind": self.kind,
            "arrived": self.arrived,
            "times": [_finite(time) for time in self.times.tolist()],
            **{name: getattr(self, name).tolist() for name in _CURVES},
        }

    def plot(self, ax: "Axes | None" = None, **style: Any) -> "Axes":
        """Draw the risk against time, with its error; an infinite time is a dashed level.

        Args:
            ax: matplotlib's axes; new ones when None.
            style: of the line, as for `ax.plot`.
        """
        drawn = axes_for(ax, x="time", y="risk")
        stretch(drawn, self.times)
        label = f"L = {self.length:g}"
        draw_curve(drawn, self.times, self.value, self.error, **{"label": label, **style})
        return drawn

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset` of risks, errors, gradient norms and matrices by time."""
        variables: Variables = {name: (("time",), getattr(self, name)) for name in _CURVES}
        variables["key_query"] = (("time", "token", "query"), self.key_query)
        variables["value_matrix"] = (("time", "output", "token"), self.value_matrix)
        for name, array in self.parameters.items():
            variables[_PREFIX + name] = (("time", f"{name}.row", f"{name}.column"), array)
        known = {"kind": self.kind, "length": self.length}
        return dataset(variables, {"time": self.times}, known)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _trajectory(config: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> Trajectory:
    listed = config["times"]
    if not isinstance(listed, list):
        raise ValueError("its times are not a list")
    times = np.array([float(time) for time in listed])
    kind = config["kind"]
    if kind not in get_args(Kind):
        raise ValueError(f"its kind is {kind!r}")
    parameters = {
        name.removeprefix(_PREFIX): array
        for name, array in arrays.items()
        if name.startswith(_PREFIX)
    }
    for name, array in arrays.items():
        axes = 1 if name in _CURVES else 3
        if name != "arrived" and (array.ndim != axes or array.shape[:1] != times.shape):
            raise ValueError(f"'{name}' does not have one entry for each time")
    return Trajectory(
        times=times,
        parameters=parameters,
        key_query=arrays["key_query"],
        value_matrix=arrays["value_matrix"],
        **{name: arrays[name] for name in _CURVES},
        arrived=float(arrays["arrived"][0]) if arrays["arrived"].size else None,
        kind=cast(Kind, kind),
        length=float(cast(float, config["length"])),
        config=config,
    )
