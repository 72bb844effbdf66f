r"""Distances between trajectories, and the effect of finite prompts on flows.

$R_L$ is the risk over prompts of length $L$, which may be infinite, and $\theta_L(t)$ its gradient
flow. U is the score matrix of a head and V its value matrix. "The paper" is Boursier and Boyer,
arXiv:2512.11784.
"""

import math
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import (
    ArrayLike,
    Number,
    increasing_lengths,
    real_number,
    with_numpy_defaults,
)
from promptlimit.attention import AbstractAttention, SoftmaxAttention
from promptlimit.dynamics._flow import gradient_flow
from promptlimit.dynamics._plan import FlowPlan, require_count, require_positive
from promptlimit.errors import ArgumentError
from promptlimit.results import FlowReport, OfOneHead, Result, Trajectory, axis, variable
from promptlimit.tasks import (
    SHARPNESS_RANGES,
    AbstractObjective,
    AbstractTask,
    RiskProblem,
    exact_objectives,
    require_lengths,
    require_points,
    require_task,
)

_FIRST_LENGTH, _LAST_LENGTH = 8, 2**40


class TrajectoryGap(Result):
    r"""Squared distances between two trajectories a and b at their common times.

    Shapes are for one length; with several lengths, an axis of lengths comes first.

    Attributes:
        times: the common times, [n].
        lengths: $L$ of `a`, or of `b` if only `b` has several lengths.
        merged: $\|U_a-U_b\|_F^2+\|V_a-V_b\|_F^2$, [n]; None if an attention is not one head.
        parameters: the squared distance of the trained arrays, [n]; None if the names or shapes
            of the arrays differ between the trajectories.
        value: `merged`, or `parameters` if `merged` is None, [n].
    """

    times: np.ndarray = axis("time", "t", scale="symlog")
    lengths: float | np.ndarray = axis("length", "L", scale="log")
    merged: OfOneHead = variable("length", "time")
    parameters: np.ndarray | None = variable("length", "time")
    value: np.ndarray = variable("length", "time", label="squared distance", scale="log")


@with_numpy_defaults
def trajectory_gap(a: Trajectory, b: Trajectory) -> TrajectoryGap:
    r"""Return the squared distance between two trajectories at their common times.

    `merged` compares the matrices U and V of single heads. `parameters` compares trained arrays,
    which is meaningful only for trajectories from the same start: the factors of U are not unique,
    because $(K,Q)\to(RK,R^{-\top}Q)$ does not change U, and the order of heads is arbitrary.

    Args:
        a: a trajectory, at one or several lengths.
        b: another trajectory. Single heads must have the same dimensions; other attentions must
            have trained arrays of the same names and shapes. Two trajectories at several lengths
            must have the same lengths. A trajectory at one length is compared with each length of
            the other.
    """
    times, in_a, in_b = np.intersect1d(a.times, b.times, return_indices=True)
    if times.size == 0:
        raise ArgumentError("b", "must share a time with `a`, got none. Request the same times.")
    axes = [np.ndim(path.lengths) for path in (a, b)]
    lengths = a.lengths if axes[0] >= axes[1] else b.lengths
    if all(axes) and not np.array_equal(a.lengths, b.lengths):
        raise ArgumentError(
            "b", f"must have the lengths of `a`, {a.lengths}, or a single length, got {b.lengths}."
        )

    def squared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        difference = one.take(in_a, axis=axes[0]) - other.take(in_b, axis=axes[1])
        return (difference**2).sum(axis=tuple(range(max(axes) + 1, difference.ndim)))

    merged = None
    if a.key_query is not None and b.key_query is not None:
        _require_one_shape(a, b)
        merged = np.sum(
            [squared(*pair) for pair in zip(a.merged(), b.merged(), strict=True)], axis=0
        )
    moved = [
        {name: array.shape[count + 1 :] for name, array in path.parameters.items()}
        for path, count in zip((a, b), axes, strict=True)
    ]
    if moved[0] != moved[1]:
        if merged is None:
            raise ArgumentError(
                "b",
                f"must have parameters of the same names and shapes as `a` unless both are single "
                f"heads: expected {_shapes(moved[0])}, got {_shapes(moved[1])}.",
            )
        return TrajectoryGap(times, lengths, merged, None, merged)
    distances = [squared(a.parameters[name], b.parameters[name]) for name in a.parameters]
    parameters = np.sum(distances, axis=0)
    value = parameters if merged is None else merged
    return TrajectoryGap(times, lengths, merged, parameters, value)


def _require_one_shape(a: Trajectory, b: Trajectory) -> None:
    """Raise an error if the heads of two trajectories have U or V of different shapes."""
    shapes = [tuple(matrix.shape[-2:] for matrix in path.merged()) for path in (a, b)]
    if shapes[0] != shapes[1]:
        raise ArgumentError(
            "b",
            "must have the shapes of `a`, U {} and V {}, got {} and {}.".format(
                *shapes[0], *shapes[1]
            ),
        )


def _shapes(parameters: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in parameters.items())


class BallGap(Result):
    r"""The largest differences between $R_L$ and $R_\infty$ over random points of a ball.

    The ball is centred at 0 in the parameters $(U,v)$ of a head whose value matrix V has the single
    row v. The maxima over random points are lower bounds on the suprema over the ball.

    Attributes:
        radius: the radius of the ball.
        risk: the maximum of $|R_L-R_\infty|$ over the random points.
        gradient: $g(L)$, the maximum of $\|\nabla R_L-\nabla R_\infty\|$.
        lipschitz: $\beta$, the maximum of $\|\nabla^2R_\infty\|_{op}$.
    """

    radius: float
    risk: float
    gradient: float
    lipschitz: float


def ball_gap(
    task: AbstractTask,
    length: Number,
    radius: Number,
    *,
    key: PRNGKeyArray,
    draws: int = 64,
    points: int = 1024,
) -> BallGap:
    r"""Return the largest differences of $R_L$ and $R_\infty$ at random points of a ball.

    Args:
        task: a task with an exact risk, such as `LinearRegression`.
        length: $L$.
        radius: the radius of the ball; half of the random points are on its surface.
        key: the random key.
        draws: the number of random points of the ball.
        points: the number of quadrature points for the risk.
    """
    require_task(task)
    require_positive(radius=radius)
    require_count(draws=draws)
    require_points(points)
    dim = task.token_dim
    with jax.enable_x64(True):
        directions = jax.random.normal(key, (draws, dim * dim + dim))
        directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
        reach = jnp.where(jnp.arange(draws) % 2 == 0, 1.0, jnp.linspace(0.1, 1.0, draws))
        where = radius * reach[:, None] * directions
        head = SoftmaxAttention(jnp.zeros((dim, dim)), jnp.zeros((1, dim)))
        lengths = require_lengths([length, math.inf]).tolist()
        problems = [RiskProblem(head, task, np.array([tokens])) for tokens in lengths]
        found = [exact_objectives(problem, points) for problem in problems]
        risks = [risk for risk in found if risk is not None]
        if len(risks) < len(lengths):
            raise ArgumentError(
                "task",
                "must have an exact risk for one head at both lengths, got "
                f"{type(task).__name__}. Implement `closed_risk`, or register a rule of "
                "`tasks.OBJECTIVE`.",
            )
        for max_sharpness in SHARPNESS_RANGES:
            finite, limit = (risk(max_sharpness) for risk in risks)
            largest = [float(jnp.max(gaps)) for gaps in _ball_gaps(finite, limit, where)]
            if np.isfinite(largest).all():
                return BallGap(float(radius), *largest)
    raise ArgumentError(
        "radius",
        f"must be so small that scores have a standard deviation below "
        f"{SHARPNESS_RANGES[-1]:g} in the whole ball, got {radius:g}. Take a smaller ball.",
    )


@eqx.filter_jit
def _ball_gaps(
    finite: AbstractObjective, limit: AbstractObjective, where: Float[Array, "draws n"]
) -> tuple[Array, Array, Array]:
    r"""Return $|R_L-R_\infty|$, $\|\nabla R_L-\nabla R_\infty\|$ and $\|\nabla^2R_\infty\|_{op}$.

    Each result is [draws]; a row of `where` contains the entries of U and v.
    """
    dim = (math.isqrt(1 + 4 * where.shape[1]) - 1) // 2

    def risk(objective: AbstractObjective, vector: Array) -> Array:
        key_query, value = vector[: dim * dim].reshape(dim, dim), vector[None, dim * dim :]
        return objective(SoftmaxAttention(key_query, value))

    def at(vector: Array) -> tuple[Array, Array, Array]:
        one, slope = jax.value_and_grad(lambda x: risk(finite, x))(vector)
        other, limit_slope = jax.value_and_grad(lambda x: risk(limit, x))(vector)
        curvature = jnp.linalg.norm(jax.hessian(lambda x: risk(limit, x))(vector), 2)
        return jnp.abs(one - other), jnp.linalg.norm(slope - limit_slope), curvature

    return jax.lax.map(at, where)


class LimitBand(Result):
    r"""The distance between the flows over finite and infinite prompts, and the bound of Lemma E.1.

    The bound contains $g(L)$ and $\beta$ of a `BallGap`. These are maxima over random points, so
    the result is an estimate of the bound of the paper.

    Attributes:
        times: t, the finite common times, [n].
        distance: $\|\theta_L(t)-\theta_\infty(t)\|$, [n].
        bound: $g(L)\,t\,e^{\beta t}$, [n].
    """

    times: NDArray[np.float64] = axis("time", "t")
    distance: NDArray[np.float64] = variable("time")
    bound: NDArray[np.float64] = variable("time")


def limit_band(finite: Trajectory, infinite: Trajectory, gap: BallGap) -> LimitBand:
    r"""Return the distance between $\theta_L$ and $\theta_\infty$, and the bound of Lemma E.1.

    Args:
        finite: $\theta_L$ at one length, from a start whose trained arrays are U and V.
        infinite: $\theta_\infty$, from the same start.
        gap: $g(L)$ and $\beta$ on a ball that contains both flows.
    """
    if np.ndim(finite.lengths):
        raise ArgumentError(
            "finite",
            f"must be a flow at one length, got {np.size(finite.lengths)} lengths.",
        )
    apart = trajectory_gap(finite, infinite)
    if apart.parameters is None:
        raise ArgumentError("finite", "must have the parameters of `infinite`, got others.")
    times = apart.times[np.isfinite(apart.times)]
    distance = np.sqrt(apart.parameters[: times.size])
    with np.errstate(over="ignore"):  # an infinite bound is still a bound
        bound = gap.gradient * times * np.exp(gap.lipschitz * times)
    return LimitBand(times, distance, bound)


def excess_risk(
    start: AbstractAttention,
    task: AbstractTask,
    length: Number,
    *,
    rtol: float = 1e-6,
    points: int = 4096,
) -> float:
    r"""Return $\lim_tR_L(\theta_L(t))-\lim_tR_\infty(\theta_\infty(t))$ for flows from `start`.

    Args:
        start: the attention at time 0.
        task: a task with an exact risk, such as `LinearRegression`.
        length: $L$.
        rtol: as in `FlowPlan`.
        points: as in `FlowPlan`.
    """
    plan = FlowPlan([math.inf], rtol=rtol, points=points, parameter_error=False)
    finite, limit = gradient_flow(start, task, [length, math.inf], plan).value[:, -1]
    return float(finite - limit)


def smallest_length(
    start: AbstractAttention,
    task: AbstractTask,
    excess: Number,
    *,
    ratio: Number = 1.0625,
    rtol: float = 1e-6,
    points: int = 4096,
) -> int:
    r"""Return $L(\epsilon)$, the smallest length with `excess_risk` at most $\epsilon$.

    Theorem 4.3 of the paper concerns this length. It is found by bisection in the logarithm of the
    length, up to the factor `ratio`.

    Args:
        start: the attention at time 0.
        task: a task with an exact risk, such as `LinearRegression`.
        excess: $\epsilon$, the largest excess risk.
        ratio: the largest ratio of the result to a length that is known to be too short.
        rtol: as in `FlowPlan`.
        points: as in `FlowPlan`.
    """
    ratio = real_number("ratio", ratio)
    if not ratio >= 1.0:
        raise ArgumentError("ratio", f"must be at least 1, got {ratio}.")
    if not real_number("excess", excess) > 0.0:
        raise ArgumentError(
            "excess", f"must be positive, got {excess}. No finite prompt reaches the limit."
        )

    def excess_at(length: int) -> float:
        return excess_risk(start, task, length, rtol=rtol, points=points)

    below, above = 0, _FIRST_LENGTH
    while (reached := excess_at(above)) > excess:
        if above >= _LAST_LENGTH:
            raise ArithmeticError(
                f"`excess` must be at least {reached:.3g}, the excess risk at length "
                f"{_LAST_LENGTH}, got {excess:g}. Try another start."
            )
        # The excess falls like 1/L.
        below, above = above, math.ceil(above * min(max(1.1 * reached / excess, 2.0), 64.0))
    while above > max(below + 1, ratio * below):
        middle = min(math.ceil(math.sqrt(max(below, 1) * above)), above - 1)
        if excess_at(middle) <= excess:
            above = middle
        else:
            below = middle
    return above


def flow_report(
    start: AbstractAttention,
    task: AbstractTask,
    lengths: ArrayLike,
    plan: FlowPlan,
    *,
    folder: str | Path | None = None,
    watch: Callable[[str, int, int], None] | None = None,
) -> FlowReport:
    """Return the gradient flows from one start at several lengths and over infinite prompts.

    Args:
        start: the attention at time 0.
        task: the law of prompts and the loss.
        lengths: increasing prompt lengths; an infinite length is added.
        plan: times and accuracy of the flows.
        folder: as for `gradient_flow`.
        watch: called with a label of the current length, the number of finished lengths and the
            number of all lengths.

    >>> import numpy as np, promptlimit as pl
    >>> task = pl.LinearRegression(np.eye(2))
    >>> start = pl.dynamics.block_start(task, 0.5, kernel="linear")
    >>> report = flow_report(start, task, [10], pl.dynamics.FlowPlan([0.0, 1.0]))
    >>> print(report.lengths, report.value.shape, report.kinds)
    [10. inf] (2, 2) ('exact', 'limit')
    """
    counts = np.append(increasing_lengths(lengths), math.inf)
    flows = []
    for done, length in enumerate(counts.tolist()):
        if watch is not None:
            watch(f"L = {length:.15g}", done, counts.size)
        flows.append(gradient_flow(start, task, length, plan, folder=folder))
    distances = [trajectory_gap(flow, flows[-1]).value for flow in flows]
    return FlowReport(
        times=flows[-1].times,
        lengths=counts,
        value=np.stack([flow.value for flow in flows]),
        error=np.stack([flow.error for flow in flows]),
        squared_distance=np.stack(distances),
        arrival_time=np.array([flow.arrival_time for flow in flows]),
        kinds=tuple(flow.kind for flow in flows),
    )
