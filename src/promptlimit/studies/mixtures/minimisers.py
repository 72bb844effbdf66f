r"""Claims on gradient flow near two families of minimisers of discrimination.

Claim 3 (`experts`) defines the effective coordinates $(w,b,r,s)$ of a head. Heads of the first
family of minimisers have $r=0$, so that the score is affine. Heads of the second family have a
*constant gate*: $s=0$, so that $\sigma(s_0+\langle s,x\rangle)$ is constant. The module
`discrimination` defines the classes `C1`, `THREE` and `BALANCED`.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit._arrays import Array
from promptlimit.reporting import CONTRAST, INK, LIMIT
from promptlimit.studies import Check, Setting, at_least, at_most, control_at_least, control_at_most
from promptlimit.studies.mixtures import STUDY
from promptlimit.studies.mixtures.discrimination import (
    BALANCED,
    C1,
    THREE,
    Classes,
    distances,
    head_with_constant_gate,
    head_without_gain,
    nullity,
    parameters,
    slowest,
    valley,
)

_COUNT = (
    "a count; a cut at $10^{-9}$ separates eigenvalues of $10^{-3}$ and more from rounding error"
)


def _tangent_dim(classes: Classes, theta: Array) -> float:
    """Return the dimension of the tangent space: d² + 2d + 1 minus the rank of d(w, b, r)/dθ."""
    equations = classes.jacobian(theta)[: classes.dim + 2]
    return theta.size - float(np.linalg.matrix_rank(equations, tol=1e-10))


def _shut_gate(classes: Classes) -> Array:
    """Return the head of `head_without_gain` with u₁₂ changed so that s = 0."""
    theta, d = head_without_gain(classes), classes.dim
    U = classes.split(theta)[0]
    theta[d * d : -d - 1] = -U @ classes.difference / 2.0
    return theta


@STUDY.claim(9, reference="Theorem 3.5, first part")
def hessian_kernel(setting: Setting) -> Iterator[Check]:
    r"""At minimisers with $r = 0$ and $s \ne 0$ (effective coordinates of claim 3), the kernel of
    the Hessian is the tangent space of the set of minimisers. Its dimension is $d^2 + d - 1$.
    Tested for $d = 2, 3$.
    """
    for classes in (C1, THREE):
        d, theta = classes.dim, head_without_gain(classes)
        kernel = nullity(classes, theta)
        yield at_most(
            f"$d = {d}$: difference between the dimension of the kernel and $d^2 + d - 1$",
            abs(kernel - d * d - d + 1),
            0.0,
            basis=_COUNT,
        )
        yield at_most(
            f"$d = {d}$: difference between the dimensions of the kernel and of the tangent space",
            abs(kernel - _tangent_dim(classes, theta)),
            0.0,
            basis=_COUNT,
        )
    yield control_at_least(
        "additional dimensions of the kernel at $s = 0$",
        nullity(C1, _shut_gate(C1)) - 5,
        1.0,
        basis=_COUNT,
    )


_TIMES = np.linspace(0.0, 2000.0, 41)


def _rate(values: np.ndarray) -> float:
    """Return minus the slope of the logarithm at late times, before values reach rounding error."""
    late = slice(20, 33)
    return -float(np.polyfit(_TIMES[late], np.log(values[late]), 1)[0])


@STUDY.claim(10, reference="Theorem 3.5")
def exponential_convergence(setting: Setting) -> Iterator[Check]:
    r"""Near minimisers with $r = 0$ and $s \ne 0$ (effective coordinates of claim 3) gradient flow
    converges exponentially. Its rate is the least positive eigenvalue of the Hessian at its limit.
    """
    # The first start is a minimiser plus 1e-3 in the slowest direction and 5e-4 in a random
    # direction. Positive eigenvalues of the Hessian at this minimiser are 0.0070, 0.035 and larger.
    # The second start has an s of norm 1e-3 in a random direction; at least 0.35 of s is left after
    # the fast decay.
    rng = np.random.default_rng(setting.seed)
    minimiser = head_without_gain(C1, np.array([1.0, 0.0]))
    other, turn = rng.normal(size=9), rng.normal(size=2)
    noise = 1e-3 * (slowest(C1, minimiser) + 0.5 * other / np.linalg.norm(other))
    opened = np.zeros(9)
    opened[4:6] = 0.5e-3 * turn / np.linalg.norm(turn)
    states = C1.flow(minimiser + noise, _TIMES)
    eigenvalues = np.linalg.eigvalsh(C1.hessian(states[-1]))
    least = float(eigenvalues[eigenvalues > 1e-6][0])
    distance, _ = distances(C1, states)
    _, excluded = distances(C1, C1.flow(head_with_constant_gate(C1) + opened, _TIMES))
    yield at_most(
        "ratio of the rate of the flow to the least positive eigenvalue of the Hessian, "
        "distance from 1",
        abs(_rate(distance) / least - 1.0),
        0.01,
        basis="theory: of the order of the distance at the start, $10^{-3}$; margin 10",
    )
    yield at_most(
        "distance of the flow from the minimisers at the end",
        distance[-1],
        1e-8,
        basis=r"theory: $10^{-3}e^{-14} = 8 \times 10^{-10}$; margin 10",
    )
    yield control_at_least(
        "start near a constant gate, which the theorem excludes: distance of the flow from "
        "the minimisers at the end",
        excluded[-1],
        1e-4,
        basis=r"theory: $3.5 \times 10^{-4}$ is left, and changes like ${|s|}^3$; margin 3",
    )


_OPENED = np.array([0.3, 0.2])


def along_the_valley(classes: Classes, theta: Array) -> Array:
    """Return a head of the second family after changing s to `_OPENED` and w by -r σ'(s₀) s.

    The change of w cancels the effect of s on the score to first order.
    """
    U, _, v, label = classes.split(theta)
    gain, p = classes.coordinates(theta)[classes.dim + 1], classes.positive
    moved = U + np.outer(-gain * p * (1.0 - p) * _OPENED, v) / (v @ classes.cov @ v)
    return parameters(moved, (_OPENED - moved @ classes.difference) / 2.0, v, float(label))


def exponents(classes: Classes, theta: Array, end: float) -> tuple[float, float]:
    """Return minus the log-log slopes of |s| and of the excess in time, at the end of a flow."""
    times = np.array([0.0, end / 4.0, end])
    states = classes.flow(along_the_valley(classes, theta), times)
    rows = [classes.coordinates(state) for state in states[1:]]
    gates = [float(np.linalg.norm(row[classes.dim + 2 :])) for row in rows]
    excesses = [classes.excess(row) for row in rows]
    first, second = (-float(np.log(b / a) / np.log(4.0)) for a, b in (gates, excesses))
    return first, second


@STUDY.claim(11, reference="Section 3.3")
def constant_gate(setting: Setting) -> Iterator[Check]:
    r"""At minimisers with a constant gate ($s = 0$) and $r \ne 0$ (effective coordinates of claim
    3), the dimension of the kernel of the Hessian exceeds that of the tangent space of the
    minimisers by $d$. The preprint leaves the rate of the flow there open: ${|s|}$ falls like
    $t^{-1/2}$ and the excess risk like $t^{-2}$; for balanced classes ($\pi = 1/2$) they fall like
    $t^{-1/4}$ and $t^{-3/2}$ (derived here).
    """
    end = 1e7 if setting.quick else 1e8
    balanced = parameters(np.eye(2), np.array([-0.5, 0.5]), np.array([1.0, -1.0]), 1.0)
    gate, excess = exponents(C1, head_with_constant_gate(C1), end)
    slow_gate, slow_excess = exponents(BALANCED, balanced, end)
    extra = [nullity(c, head_with_constant_gate(c)) - c.dim**2 for c in (C1, THREE)]
    regular = nullity(C1, head_without_gain(C1)) - 5
    yield at_most(
        "$d = 2, 3$: largest difference between $d^2 + d$ and the number of zero eigenvalues of "
        "the Hessian",
        max(abs(extra[0] - 2), abs(extra[1] - 3)),
        0.0,
        basis=_COUNT,
    )
    yield at_most(
        r"${|s|}$, $\pi = 0.6$: distance of its exponent in $t$ from $-1/2$ (derived here)",
        abs(gate - 0.5),
        0.02,
        basis="theory: corrections of order ${|s|}$, 0.004 at $t = 10^7$; margin 5",
    )
    yield at_most(
        r"excess risk, $\pi = 0.6$: distance of its exponent from $-2$",
        abs(excess - 2.0),
        0.05,
        basis="as above; the excess is of order ${|s|}^4$",
    )
    yield at_most(
        r"${|s|}$, $\pi = 1/2$: distance of its exponent in $t$ from $-1/4$ (derived here)",
        abs(slow_gate - 0.25),
        0.01,
        basis="theory: corrections of order ${|s|}^2$, below $10^{-3}$; margin 10",
    )
    yield at_most(
        r"excess risk, $\pi = 1/2$: distance of its exponent from $-3/2$",
        abs(slow_excess - 1.5),
        0.03,
        basis="as above; the excess is of order ${|s|}^6$",
    )
    yield control_at_most(
        r"minimiser with $r = 0$ and $s \ne 0$: dimension of the kernel of the Hessian minus that "
        "of the tangent space, which must be 0",
        regular,
        0.0,
        basis=_COUNT,
    )


GATE = np.array([10.0, 10.0])
"""The block u₁₂ of the first point. The table of the preprint may mean this block or (1, 0)."""
NOISE = 1e-6
SLOW, FLAT = 0.3, 0.5
"""The smallest accepted components of the noise in the slowest and in the flat directions, in
standard deviations."""


def noise_at(seed: int) -> Array:
    """Return normal noise with large components in the slowest and in the flat directions.

    Noise whose components are below `SLOW` or `FLAT` (a third of all draws) is drawn again.
    """
    rng = np.random.default_rng(seed)
    slow, flat = slowest(C1, head_without_gain(C1, GATE)), valley(C1, head_with_constant_gate(C1))
    while True:
        noise = rng.normal(size=9)
        if abs(slow @ noise) >= SLOW and np.linalg.norm(flat @ noise) >= FLAT:
            return NOISE * noise


def distance_curves(seed: int, times: Array) -> tuple[Array, Array]:
    """Return the distances of both flows from the family near which they start, [times] each."""
    noise = noise_at(seed)
    first = C1.flow(head_without_gain(C1, GATE) + noise, times, rtol=1e-8)
    second = C1.flow(head_with_constant_gate(C1) + noise, times, rtol=1e-8)
    return distances(C1, first)[0], distances(C1, second)[1]


@STUDY.claim(21, reference="Figure 1")
def plateau(setting: Setting) -> Iterator[Check]:
    r"""If noise of size $10^{-6}$ is added to a minimiser with $r = 0$, the distance of gradient
    flow from the family of such minimisers falls exponentially. For a minimiser with a constant
    gate ($s = 0$) the distance stays on a plateau, because components of this size in the flat
    directions of claim 11 hardly decay.
    """
    # Positive eigenvalues are 0.0215, 0.042 and larger at the first point, and 0.051 and larger at
    # the second point. In units of `NOISE`, a step of norm 1 from the second point in a flat
    # direction leads to a distance of 1.46 from the family; noise of norm 5 leads to 13.
    times = np.linspace(0.0, 1000.0, 26)
    first, second = distance_curves(setting.seed, times)
    middle = first[5:16]
    straight = np.polyfit(times[5:16], np.log(middle), 1)
    bend = np.abs(np.polyval(straight, times[5:16]) - np.log(middle)).max()
    yield at_most(
        "minimisers with $r = 0$: ratio of the distance at $t = 1000$ to that at $t = 0$",
        first[-1] / first[0],
        1e-4,
        basis="theory: $e^{-21}$, plus what the solver's $10^{-8}$ leaves; margin",
    )
    yield at_most(
        "minimisers with $r = 0$: largest difference between the logarithm of the distance "
        "and a straight line, $t$ from 200 to 600",
        bend,
        0.5,
        basis=r"theory: at most $\log(1 + e^{-4.2} \cdot 4/0.3) = 0.18$, from the second "
        "direction",
    )
    yield at_least(
        "minimisers with a constant gate: ratio of the distance at $t = 1000$ to that at $t = 0$",
        second[-1] / second[0],
        0.02,
        basis=r"theory: $1.46 \cdot 0.5$ over 13, at least 0.055",
    )
    yield at_least(
        "minimisers with a constant gate: ratio of the distance at $t = 1000$ to that at "
        "$t = 120$, a plateau",
        second[-1] / second[3],
        0.9,
        basis="theory: $e^{-6}$ of the rest is left at $t = 120$; margin",
    )
    yield control_at_most(
        "minimisers with $r = 0$: ratio of the distance at $t = 1000$ to that at $t = 120$, "
        "which must not be a plateau",
        first[-1] / first[3],
        0.5,
        basis="theory: $e^{-19}$",
    )


@STUDY.figure(
    "Back to one family of minimisers, not to the other", reference="Figure 1", section="paper"
)
def minimiser_distances(setting: Setting) -> dict[str, np.ndarray]:
    r"""Distance of gradient flow from a family of minimisers. The flow starts at a minimiser plus
    noise of size $10^{-6}$ ($d = 2$, $\pi = 0.6$). For the family with $r = 0$ the distance falls
    exponentially (Theorem 3.5), down to rounding error. For the family with a constant gate, the
    risk is flat to fourth order in $d$ directions, and noise of this size in these directions
    hardly decays. The flow replaces ten million steps of $10^{-4}$. The preprint does not state
    $u_{12}$ of the first point (here $(10, 10)$), the number of steps and the seeds.
    """
    times = np.linspace(0.0, 1000.0, 101)
    seeds = range(setting.seed, setting.seed + (1 if setting.quick else 3))
    curves = [distance_curves(seed, times) for seed in seeds]
    first, second = (np.stack(rows) for rows in zip(*curves, strict=True))
    return {"times": times, "first": first, "second": second}


@minimiser_distances.drawing
def draw_minimiser_distances(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axis = figure.subplots()
    words = (
        ("first", LIMIT, "r = 0: exponential"),
        ("second", CONTRAST, "constant gate: a plateau"),
    )
    for name, colour, label in words:
        for row in data[name]:
            axis.plot(data["times"], np.maximum(row, 1e-17), color=colour)
        place = 30 if name == "first" else 45
        axis.annotate(
            label,
            (data["times"][place], data[name][0, place]),
            xytext=(8, 10),
            textcoords="offset points",
            color=colour,
        )
    axis.set(yscale="log", xlim=(0.0, 1000.0))
    axis.set_xlabel("time of the flow")
    axis.set_ylabel("distance from the minimisers", color=INK)
    return figure
