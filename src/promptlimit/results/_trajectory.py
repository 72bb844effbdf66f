"""Parameters along training: where they were, what they cost, and how sure that is."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from promptlimit.errors import ArgumentError
from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, axis, scalar, variable

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
