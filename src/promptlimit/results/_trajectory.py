"""Parameters along training: where they were, what they cost, and how sure that is."""

from collections.abc import Mapping
from pathlib import Path
from typing import (
    Any,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    runtime_checkable,
)

import numpy as np

from promptlimit.errors import ArgumentError, InputFileError
from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, axis, scalar, variable
from promptlimit.results._run_folder import RunFolder

_PREFIX = "parameters."
_CURVES = ("value", "gradient_norms", "error")
_MERGED = ("key_query", "value_matrix")
_OF_PARAMETERS = "parameter_error"

OfOneHead: TypeAlias = np.ndarray | Any
"""An array, or None where there is not one head; `Any` spares those who know that there is."""


@runtime_checkable
class HasArrays(Protocol):
    """What can be given other arrays by their names, as an attention can."""

    def with_arrays(self, arrays: Mapping[str, Any], /) -> Any:
        """Return the same with these arrays."""
        ...


HasArraysT = TypeVar("HasArraysT", bound=HasArrays)


class Trajectory(Result):
    r"""The parameters of an attention along training, at n times.

    Attributes:
        times: when, [n]; the last may be infinite, which is the time of arrival and after.
        parameters: the arrays that moved, by name, such as "value" or "heads[0].value", each
            [n, ...].
        key_query: the merged $U$, [n, token_dim, query_dim]; None where there is more than one head
            or a residual.
        value_matrix: the merged $V$, or $OV$, [n, output_dim, token_dim]; None as for `key_query`.
        value: the risk $R_L$ at each time, [n].
        gradient_norms: $\|\nabla R_L\|$ in the arrays that moved, [n].
        error: of `value`, [n]: the largest distance from the same risks on independent sets of
            points or prompts; 0 for a closed form.
        arrived: when the gradient fell below the threshold, after which nothing moves; None when
            it did not.
        kind: "exact", "limit" or "estimate", as for a risk.
        length: $L$, the number of tokens of a prompt.
        config: all that decides the trajectory, as plain numbers and strings.
        parameter_error: of the parameters as one vector, [n]: twice the distance from a flow over
            independent points; 0 for a closed form, None where it was not measured.
    """

    times: np.ndarray = axis("time", "t", scale="symlog")
    parameters: Mapping[str, np.ndarray] = variable("time", bulk=True)
    key_query: OfOneHead = variable("time", "token", "query", bulk=True)
    value_matrix: OfOneHead = variable("time", "output", "token", bulk=True)
    value: np.ndarray = variable("time", label="risk", scale="log")
    gradient_norms: np.ndarray = variable("time")
    error: np.ndarray = variable("time")
    arrived: float | None
    kind: Kind
    length: float
    config: Mapping[str, object] = scalar(bulk=True)
    parameter_error: np.ndarray | None = variable("time", default=None)

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the merged U and V of one head at all times; an error for other attentions."""
        if self.key_query is None or self.value_matrix is None:
            raise ArgumentError(
                "key_query",
                "and `value_matrix` must be those of one head, got a trajectory of "
                f"{', '.join(self.parameters)}. Its arrays are in `parameters`.",
            )
        return self.key_query, self.value_matrix

    def attention(self, start: HasArraysT, place: int = -1) -> HasArraysT:
        """Return the attention at one of the times: `start` with the parameters it had there.

        Args:
            start: what the trajectory started from, or another attention with the same arrays.
            place: which of `times`, the last by default.

        >>> import math, jax.numpy as jnp, promptlimit as pl
        >>> task = pl.LinearRegression(jnp.eye(2))
        >>> start = pl.dynamics.block_start(task, 0.5)
        >>> flow = pl.gradient_flow(start, task, math.inf, [0.0, math.inf])
        >>> print(f"{pl.risk(flow.attention(start), task, math.inf).value:.9f}")
        0.000000000
        """
        if not -self.times.size <= place < self.times.size:
            raise ArgumentError(
                "place",
                f"must be one of {self.times.size} times, from 0 or from the end, got {place}.",
            )
        return start.with_arrays({name: array[place] for name, array in self.parameters.items()})

    def save(self, folder: str | Path) -> Path:
        """Write the trajectory into a folder of its own inside `folder`, and return that.

        The folder's name is the hash of the configuration: the same training is written once.
        """
        named = {name: getattr(self, name) for name in (*_MERGED, *_CURVES, _OF_PARAMETERS)}
        arrays = {name: array for name, array in named.items() if array is not None}
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
