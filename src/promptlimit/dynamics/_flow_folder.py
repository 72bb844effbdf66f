"""Trajectories of gradient flows in run folders, validated when read."""

from collections.abc import Mapping
from typing import Any, cast, get_args

import numpy as np

from promptlimit.errors import InputFileError
from promptlimit.results import Kind, Trajectory
from promptlimit.storage import RunFolder, pack_nonfinite, unpack_nonfinite

_PREFIX = "parameters."
_CURVES = ("value", "gradient_norms", "error", "parameter_error")
_MERGED = ("key_query", "value_matrix")
FLOW_ARRAYS = (*_MERGED, *_CURVES)


def save_flow(run: RunFolder, flow: Trajectory) -> None:
    """Write a trajectory at one length into the folder of its run."""
    named = {name: getattr(flow, name) for name in FLOW_ARRAYS}
    arrays = {name: array for name, array in named.items() if array is not None}
    arrays |= {_PREFIX + name: array for name, array in flow.parameters.items()}
    run.save(pack_nonfinite({**arrays, "arrived": np.array(flow.arrived)}))


def load_flow(run: RunFolder) -> Trajectory:
    """Return the trajectory of a finished run; raise `InputFileError` if it is damaged."""
    arrays = unpack_nonfinite(run.load())
    try:
        return _trajectory(RunFolder.at(run.path).config, arrays)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as problem:
        raise InputFileError(
            f"{run.path} must contain a trajectory, but {problem or type(problem).__name__}."
        ) from None


def _trajectory(config: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> Trajectory:
    listed = config["times"]
    if not isinstance(listed, list):
        raise ValueError("its times are not a list")
    times = np.array([float(time) for time in listed])
    kind = config["kind"]
    if kind not in get_args(Kind):
        raise ValueError(f"its kind is {kind!r}")
    for name, array in arrays.items():
        axes = 1 if name in _CURVES else 3 if name in _MERGED else array.ndim
        if name != "arrived" and (array.ndim != axes or array.shape[:1] != times.shape):
            raise ValueError(f"'{name}' does not have one entry for each time")
    if ("key_query" in arrays) != ("value_matrix" in arrays):
        raise ValueError("it has only one of key_query and value_matrix")
    optional: dict[str, Any] = {name: arrays.get(name) for name in (*_MERGED, "parameter_error")}
    return Trajectory(
        times=times,
        lengths=float(cast(float, config["lengths"])),
        parameters={
            name.removeprefix(_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(_PREFIX)
        },
        **optional,
        **{name: arrays[name] for name in ("value", "gradient_norms", "error")},
        arrived=arrays["arrived"].item(),
        kind=cast(Kind, kind),
        config=config,
    )
