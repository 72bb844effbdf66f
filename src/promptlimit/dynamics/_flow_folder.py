"""Trajectories of gradient flows in run folders, which are not trusted when read."""

from collections.abc import Mapping
from typing import cast, get_args

import numpy as np

from promptlimit.errors import InputFileError
from promptlimit.results import Kind, Trajectory
from promptlimit.storage import RunFolder

_PREFIX = "parameters."
_CURVES = ("value", "gradient_norms", "error")
_MERGED = ("key_query", "value_matrix")
_OF_PARAMETERS = "parameter_error"


def save_flow(run: RunFolder, flow: Trajectory) -> None:
    """Write a trajectory into the folder of its run."""
    named = {name: getattr(flow, name) for name in (*_MERGED, *_CURVES, _OF_PARAMETERS)}
    arrays = {name: array for name, array in named.items() if array is not None}
    arrays |= {_PREFIX + name: array for name, array in flow.parameters.items()}
    arrays["arrived"] = np.array([] if flow.arrived is None else [flow.arrived])
    run.save(arrays)


def load_flow(run: RunFolder) -> Trajectory:
    """Return the trajectory of a finished run, or raise `InputFileError`: one sentence."""
    arrays = run.load()
    try:
        return _trajectory(RunFolder.at(run.path).config, arrays)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as problem:
        raise InputFileError(
            f"{run.path} must hold a trajectory, but {problem or type(problem).__name__}."
        ) from None


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
        axes = 1 if name in (*_CURVES, _OF_PARAMETERS) else 3 if name in _MERGED else array.ndim
        if name != "arrived" and (array.ndim != axes or array.shape[:1] != times.shape):
            raise ValueError(f"'{name}' does not have one entry for each time")
    if ("key_query" in arrays) != ("value_matrix" in arrays):
        raise ValueError("it has one of key_query and value_matrix, which come together")
    return Trajectory(
        times=times,
        parameters=parameters,
        key_query=arrays.get("key_query"),
        value_matrix=arrays.get("value_matrix"),
        **{name: arrays[name] for name in _CURVES},
        arrived=float(arrays["arrived"][0]) if arrays["arrived"].size else None,
        kind=cast(Kind, kind),
        length=float(cast(float, config["length"])),
        config=config,
        parameter_error=arrays.get(_OF_PARAMETERS),
    )
