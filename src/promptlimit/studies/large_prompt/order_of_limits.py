r"""Long training and long prompts: the two limits of the parameters do not commute.

In the setting of the experiments, heads along the flow from a block start have the form
$U=\mathrm{diag}(aI,0)$ with last row $(0,b)$ of $V$. The flow is therefore a differential equation
for $(a,b)$, with the exact risk `IsotropicRisk`. The infinite-prompt risk $R_\infty$ is smallest on
the curve $b=1/a$, where the risk over $L$ tokens exceeds it by $C(a^2)/2L$ to leading order.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq, minimize_scalar

from promptlimit._arrays import Number
from promptlimit.attention import SoftmaxAttention
from promptlimit.dynamics import FlowPlan, StabilisedRungeKutta, gradient_flow
from promptlimit.reporting import INK, LINEAR, plot_series, selectable, shades
from promptlimit.rules import unwrap
from promptlimit.studies import Check, Setting, at_most, control_at_least, control_at_most
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.studies.large_prompt.study import DIM
from promptlimit.tasks import linear_optimum
from promptlimit.tasks.regression import IsotropicRisk, isotropic_risks

_START = (DIM**-0.5, 1.0)
END = (DIM**-0.25, DIM**0.25)
"""The end (a, b) of the infinite-prompt flow (Remark 5.3)."""

_LENGTHS = (100, 1000, 10_000, 10**6, 10**8)
_SLOW_LENGTHS = (1e8, 1e10, 1e12)
"""The lengths at which `leaving_time` is compared with its leading order in L."""

_TOLERANCE = 1e-9
NEAR, FAR = 0.5, 1.0
"""Distances from `END` at which claim 22 uses `leaving_time`."""


def excess_constant(o: float) -> float:
    r"""Return $C(o)$ with $o=a^2$, for the head with $b=1/a$.

    To leading order, the mean squared error of this head over $L$ tokens exceeds its limit by
    $C/L$.
    """
    rest = 1 - 2 * o
    return rest ** (-DIM / 2) * (1 + protocol_task("identity").noise_variance + o / rest) / o


def _constant_slope(o: float) -> float:
    """Return the derivative of `excess_constant`."""
    rest, noise = 1 - 2 * o, protocol_task("identity").noise_variance
    bracket = (1 + noise) / o + 1 / rest
    slope = -(1 + noise) / o**2 + 2 / rest**2
    return rest ** (-DIM / 2) * (DIM / rest * bracket + slope)


@functools.cache
def best_square() -> float:
    """Return the minimiser o of `excess_constant`."""
    start = minimize_scalar(excess_constant, bounds=(0.01, 0.4), method="bounded").x
    return float(brentq(_constant_slope, 0.9 * start, 1.1 * start))


def shortfall() -> float:
    r"""Return the limit $C-(1-2o)^{-d/2-1}$ of $L(1-ab)$ at the head of smallest risk."""
    o = best_square()
    return excess_constant(o) - (1 - 2 * o) ** (-DIM / 2 - 1)


def distance(a: float | np.ndarray, b: float | np.ndarray, other: tuple = END) -> np.ndarray:
    r"""Return the distance of the parameters $(aI,b)$ from those at `other`, by default `END`."""
    return np.asarray(np.sqrt(DIM * (a - other[0]) ** 2 + (b - other[1]) ** 2))


@functools.cache
def flow_risk(length: Number) -> IsotropicRisk:
    """Return the risk over prompts of a length, as a function of (a, b)."""
    return isotropic_risks(protocol_task("identity"), [float(length)])[0]


def _slopes(length: Number, kernel: str):
    """Return the velocity of (a, b) along a flow, as a function of time and (a, b)."""
    task = protocol_task("identity")
    prior, noise = task.prior_variance, task.noise_variance
    if kernel == "softmax" and math.isfinite(length):
        gradient = flow_risk(length).gradient
    else:
        # 2R = s^2 + p d ((1 - ab)^2 + (ab)^2 c / L) with c = d + 1 + s^2 / p, the prior variance p
        # and the noise variance s^2
        cost = 0.0 if math.isinf(length) else (DIM + 1 + noise / prior) / length

        def gradient(a: float, b: float) -> tuple[float, float]:
            slope = prior * DIM * (a * b * (1 + cost) - 1)
            return slope * b, slope * a

    def velocity(_: float, state: np.ndarray) -> list[float]:
        by_a, by_b = gradient(*state)
        return [-by_a / DIM, -by_b]

    return velocity


def flow(
    length: Number, times: Sequence[Number] | np.ndarray, kernel: str = "softmax"
) -> np.ndarray:
    """Return (a, b) along the flow at increasing times, [2, time]."""
    found = solve_ivp(
        _slopes(length, kernel), (0.0, float(times[-1])), np.array(_START),
        t_eval=np.asarray(times), method="LSODA", rtol=_TOLERANCE, atol=1e-3 * _TOLERANCE,
    )  # fmt: skip
    return found.y


def leaving_time(length: Number, far: Number) -> float:
    """Return the time at which the flow, after approaching `END`, is at distance `far` again."""

    def left(_: float, state: np.ndarray) -> float:
        return float(distance(*state)) - far

    left.direction, left.terminal = 1, True  # ty: ignore[missing-attribute]
    found = solve_ivp(
        _slopes(length, "softmax"), (0.0, 10 * length + 1e4), np.array(_START), events=left,
        method="LSODA", rtol=_TOLERANCE, atol=1e-3 * _TOLERANCE,
    )  # fmt: skip
    return float(found.t_events[0][0])


def slow_law(far: Number) -> float:
    r"""Return the limit of $t_L/L$, where $t_L$ is the `leaving_time` of the flow.

    It is the integral of $dt/L$ along the minima $b=1/a$ of $R_\infty$, where the flow over long
    prompts satisfies $(d+a^{-4})\dot a=-\frac1{2L}\frac{dC(a^2)}{da}$ to leading order.
    """
    end = END[0]
    first = brentq(
        lambda a: float(distance(a, 1 / a)) - far, math.sqrt(best_square()), end * (1 - 1e-9)
    )
    return quad(lambda a: 2 * (DIM + a**-4) / (2 * a * _constant_slope(a * a)), first, end)[0]


def apart() -> float:
    """Return the distance between the limits of the parameters in the two orders."""
    a = math.sqrt(best_square())
    return float(distance(a, 1 / a))


def slowest_exponent() -> float:
    r"""Return $\kappa-1$ at the end of the infinite-prompt flow, $\kappa=\sqrt{1/a^2+1/4}-1/2$.

    Prompts in which a few tokens have almost all the weight add corrections of relative order
    $L^{1-\kappa}$ to the leading order $C/L$ of the excess. As the flow moves to smaller a,
    $\kappa$ grows.
    """
    return math.sqrt(1 / END[0] ** 2 + 0.25) - 1.5


def _library_distance(length: int, time: float) -> tuple[float, float]:
    """Return the distance of a `gradient_flow` from `END` at `time`, and its standard error."""
    key_query, value = np.zeros((DIM + 1, DIM + 1)), np.zeros((DIM + 1, DIM + 1))
    key_query[:DIM, :DIM], value[DIM, DIM] = _START[0] * np.eye(DIM), _START[1]
    plan = FlowPlan([0.0, time], solver=StabilisedRungeKutta(), points=4096, rtol=1e-5)
    found = gradient_flow(
        SoftmaxAttention(key_query, value), protocol_task("identity"), length, plan
    )
    U, V = found.merged()
    end = END[0] * np.eye(DIM)
    square = ((U[-1, :DIM, :DIM] - end) ** 2).sum() + (V[-1, -1, -1] - END[1]) ** 2
    return math.sqrt(square), float(unwrap(found.parameter_error)[-1])


@STUDY.claim(22, reference="Section 4, after Theorem 4.3, and Figure 3")
def order_of_limits(setting: Setting) -> Iterator[Check]:
    r"""There are times $t_L \to \infty$ such that the parameters $\theta_L(t_L)$ of the flow over
    $L$ tokens tend to the end of the infinite-prompt flow. In the setting of the experiments such
    times must grow more slowly than $L$ (derived here): at times of order $L$, softmax attention
    moves along the minima of $R_\infty$ to a point at a distance of 1.517, so that
    $\lim_L\lim_t\theta_L(t) \ne \lim_t\lim_L\theta_L(t)$, although the risks agree. For linear
    attention the two limits agree.
    """
    longest = _LENGTHS[-1]
    best = flow_risk(longest).best()
    last, before = (float(distance(*flow_risk(n).best())) for n in (longest, longest // 10))
    yield at_most(
        "$D(L)$, the distance of the end of training from the end of the infinite-prompt flow: "
        f"$|D(10^8) - {apart():.4f}|$, the distance from its limit, over $|D(10^8) - D(10^7)|$",
        abs(last - apart()) / abs(last - before),
        0.2,
        basis="theory: corrections of order $1/L$ leave a ninth of the last change; logarithmic "
        "factors add less than another ninth",
    )
    ended = flow(1000, [0.0, 1e7])[:, -1]
    yield at_most(
        "$L = 1000$: distance of the flow at $t = 10^7$ from the head of smallest risk",
        float(distance(*ended, flow_risk(1000).best())),
        1e-5,
        basis="the tolerance of the solver, $10^{-9}$, with a margin for the flat minimum",
    )
    floor = 0.5 * protocol_task("identity").noise_variance
    excess = [
        (flow_risk(longest).risk(*head) - floor) * 2 * longest / excess_constant(head[0] ** 2)
        for head in (best, END)
    ]
    yield at_most(
        "$L = 10^8$: excess risk divided by its leading order $C(a^2)/2L$, larger value at the "
        "ends of the two flows",
        max(excess),
        1.001,
        basis="theory: $L$ times the excess rises to $C(a^2)/2$ as prompts grow; rounding",
    )
    lengths = _LENGTHS[:3] if setting.quick else _LENGTHS
    early = np.array([float(distance(*flow(n, [0.0, 2 * n**0.25])[:, -1])) for n in lengths[1:]])
    yield at_most(
        "distance from the end of the infinite-prompt flow at $t_L = 2L^{1/4}$: largest ratio "
        "from one length to the next",
        float((early[1:] / early[:-1]).max()),
        1.0,
        basis="the statement: the distance falls, since $t_L$ grows more slowly than $L$",
    )
    fixed = _distances_at(10.0, lengths)
    yield at_most(
        "distance between the flows over $L$ tokens and over infinitely many at $t = 10$: largest "
        "ratio from one length to the next",
        float((fixed[1:] / fixed[:-1]).max()),
        1.0,
        basis="Theorem 4.3 on $[0, T]$: the distance falls",
    )
    late = np.array([leaving_time(n, FAR) / n / slow_law(FAR) - 1 for n in _SLOW_LENGTHS])
    yield at_most(
        f"$r(L)$, the relative difference of $t_L/L$ from its limit ${slow_law(FAR):.5f}$, where "
        f"$t_L$ is the time at which the distance is {FAR:g}: largest ratio of $r$ from one of the "
        "lengths $10^8, 10^{10}, 10^{12}$ to the next",
        float(np.abs(late[1:] / late[:-1]).max()),
        (_SLOW_LENGTHS[1] / _SLOW_LENGTHS[0]) ** -slowest_exponent(),
        basis=r"theory: corrections fall like $L^{1-\kappa}$ or faster along the way, "
        rf"$\kappa - 1 = {slowest_exponent():.3f}$ at its beginning",
    )
    if not setting.quick:
        time = leaving_time(1000, NEAR)
        found, error = _library_distance(1000, time)
        yield at_most(
            f"flow of the full matrices at $L = 1000$ and $t = {time:.4f}$, when the distance is "
            f"{NEAR:g}: difference of its distance, in standard errors of the quadrature",
            abs(found - NEAR) / error,
            4.0,
            basis="four standard errors; the points do not depend on the seed",
        )
    linear = max(n * float(distance(*_linear_end(n))) for n in (10**3, 10**4, 10**6))
    yield control_at_most(
        "linear attention: $L$ times the distance between the end of training and the end of "
        "the infinite-prompt flow, largest over $L = 10^3, 10^4, 10^6$",
        linear,
        _linear_constant(),
        basis=r"theory: $c_0d^{1/4}/\sqrt2$ with $c_0 = d + 1 + ds^2$",
    )
    drifted = flow(1e4, [0.0, 1e5])[:, -1]
    yield control_at_least(
        "softmax attention at $t = 10L$, $L = 10^4$, where no convergence is claimed: distance "
        "from the end of the infinite-prompt flow",
        float(distance(*drifted)),
        FAR,
        basis=f"theory: this distance is reached at ${slow_law(FAR):.3f}L$ in the limit",
    )


def _linear_end(length: Number) -> tuple[float, float]:
    best = linear_optimum(protocol_task("identity"), length)
    return float(best.key_query[0, 0, 0]), float(best.value_matrix[0, -1, -1])


def _linear_constant() -> float:
    task = protocol_task("identity")
    return (DIM + 1 + task.noise_variance / task.prior_variance) * DIM**0.25 / math.sqrt(2)


def _distances_at(time: Number, lengths: Sequence[Number], kernel: str = "softmax") -> np.ndarray:
    limit = flow(math.inf, [0.0, time])[:, -1]
    return np.array(
        [float(distance(*flow(n, [0.0, time], kernel)[:, -1], tuple(limit))) for n in lengths]
    )


@STUDY.figure("Long training and long prompts", reference="Section 4 and Figure 3")
def limits_apart(setting: Setting) -> dict[str, np.ndarray]:
    r"""Distance between the parameters along the flow over $L$ tokens and along the flow over an
    infinite prompt, from the same block start, against the time. At a fixed time the distance falls
    with $L$, as Theorem 4.3 states. At times of order $L$, softmax attention moves along the minima
    of the infinite-prompt risk, by a distance that tends to 1.517 for long prompts (dotted). For
    linear attention (dashed) the distance remains of order $1/L$.
    """
    lengths = _LENGTHS[::2] if setting.quick else _LENGTHS
    count = 60 if setting.quick else 240
    rows = {"softmax": [], "linear": []}
    times = []
    for length in lengths:
        own = np.geomspace(0.1, 100.0 * length, count)
        at = np.concatenate([[0.0], own])
        limit = flow(math.inf, at)[:, 1:]
        times.append(own)
        for kernel, row in rows.items():
            row.append(distance(*flow(length, at, kernel)[:, 1:], tuple(limit)))
    return {
        "lengths": np.array(lengths, dtype=np.float64),
        "times": np.array(times),
        "apart": np.array(apart()),
        **{kernel: np.array(row) for kernel, row in rows.items()},
    }


@limits_apart.drawing
def draw_limits_apart(data: Mapping[str, np.ndarray]) -> Figure:
    """Return distances against times."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axis = figure.subplots()
    for place, colour in enumerate(shades(len(data["lengths"]))):
        exponent = round(math.log10(data["lengths"][place]))
        name = f"$L = 10^{{{exponent}}}$"
        times = data["times"][place]
        plot_series(axis, times, data["softmax"][place], name, color=colour)
        dashed = axis.plot(times, data["linear"][place], color=LINEAR, dashes=(4, 2), lw=1.0)
        selectable(dashed, name)
    axis.plot([], [], color=LINEAR, dashes=(4, 2), lw=1.0, label="linear attention")
    axis.axhline(float(data["apart"]), color=INK, dashes=(1, 2), linewidth=1.2)
    axis.set(xscale="log", yscale="log", xlabel="time $t$", ylim=(1e-8, 100.0))
    axis.set_ylabel("distance from the infinite-prompt flow")
    axis.legend(fontsize=9, loc="upper left", ncols=3)
    return figure
