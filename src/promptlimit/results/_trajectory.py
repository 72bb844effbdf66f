"""Trajectories of training: parameters, risks and their errors."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from promptlimit.errors import ArgumentError
from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, axis, scalar, variable

OfOneHead: TypeAlias = np.ndarray | Any
"""An array, or None for an attention that is not one head; `Any` avoids checks for None."""


@runtime_checkable
class HasArrays(Protocol):
    """An object whose arrays can be replaced by name, such as an attention."""

    def with_arrays(self, arrays: Mapping[str, Any], /) -> Any:
        """Return the object with these arrays."""
        ...


HasArraysT = TypeVar("HasArraysT", bound=HasArrays)


class Trajectory(Result):
    r"""The parameters of an attention along training, at n times, for one prompt length or several.

    The shapes are those for one length. For several lengths, arrays other than `times` begin with
    an axis of lengths, and `at(length)` returns the trajectory at one of them.

    Attributes:
        times: the times, [n]; at an infinite last time the values are those after arrival.
        lengths: $L$, the number of tokens of a prompt; one number or several.
        parameters: the trained arrays by name, such as "value" or "heads[0].value", each
            [n, ...].
        key_query: the merged $U$, [n, token_dim, query_dim]; None if the attention is not one head.
        value_matrix: the merged $V$, or $OV$ if the head has an output matrix $O$,
            [n, output_dim, token_dim]; None if the attention is not one head.
        value: the risk $R_L$ at each time, [n], averaged over the points or prompts with which the
            flow is computed.
        gradient_norms: $\|\nabla R_L\|$ with respect to the trained arrays, [n].
        error: one standard error of `value` over independent sets of points or prompts, widened by
            Student's law, [n]; 0 for a closed form.
        parameter_error: one standard error of the vector $\theta$ of all parameters, [n]:
            $\|\theta-\theta'\|/\sqrt2$, where $\theta'$ belongs to a second flow, over an
            independent point set. The error is 0 for a closed form, NaN at times that the second
            flow does not reach, and None if it was not measured.
        arrival_time: the time at which the norm of the gradient fell below the threshold and the
            flow stopped; NaN if it did not.
        kind: "exact", "limit" or "estimate", as for a risk; "estimate" if the risk at any of
            several lengths is simulated.
        config: everything that determines the trajectory, as plain numbers and strings.
    """

    times: np.ndarray = axis("time", "t", scale="symlog")
    lengths: float | np.ndarray = axis("length", "L", scale="log")
    parameters: Mapping[str, np.ndarray] = variable("length", "time", bulk=True)
    key_query: OfOneHead = variable("length", "time", "token", "query", bulk=True)
    value_matrix: OfOneHead = variable("length", "time", "output", "token", bulk=True)
    value: np.ndarray = variable("length", "time", label="risk", scale="log")
    gradient_norms: np.ndarray = variable("length", "time")
    error: np.ndarray = variable("length", "time")
    parameter_error: np.ndarray | None = variable("length", "time")
    arrival_time: float | np.ndarray = variable("length")
    kind: Kind
    config: Mapping[str, object] = scalar(bulk=True)

    def merged(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the merged U and V at all times; raise an error unless there is one head."""
        if self.key_query is None or self.value_matrix is None:
            raise ArgumentError(
                "key_query",
                "and `value_matrix` must belong to one head, got a trajectory of "
                f"{', '.join(self.parameters)}. Its arrays are in `parameters`.",
            )
        return self.key_query, self.value_matrix

    def attention(self, start: HasArraysT, place: int = -1) -> HasArraysT:
        """Return the attention at one of the times, which is `start` with the recorded parameters.

        Args:
            start: the start of the trajectory, or another attention with the same arrays.
            place: the index in `times`; the last by default.

        >>> import math, jax.numpy as jnp, promptlimit as pl
        >>> task = pl.LinearRegression(jnp.eye(2))
        >>> start = pl.dynamics.block_start(task, 0.5)
        >>> flow = pl.gradient_flow(start, task, math.inf, [0.0, math.inf])
        >>> print(f"{pl.risk(flow.attention(start), task, math.inf).value:.9f}")
        0.000000000
        """
        if np.ndim(self.lengths):
            raise ArgumentError(
                "place",
                "must belong to one trajectory, got many lengths. Select one first, as in "
                f"at({np.ravel(self.lengths)[0]:g}).attention(start).",
            )
        if not -self.times.size <= place < self.times.size:
            raise ArgumentError(
                "place",
                f"must be one of {self.times.size} times, from 0 or from the end, got {place}.",
            )
        return start.with_arrays({name: array[place] for name, array in self.parameters.items()})
