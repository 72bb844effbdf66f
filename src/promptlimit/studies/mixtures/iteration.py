r"""Claims on iterated denoising, which has one limit or two.

The Bayes denoiser of two points $c\pm\delta$ under noise of standard deviation $\xi$ is applied
repeatedly to a query. The strength is $\lambda=|\delta|/\xi$.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from promptlimit.reporting import CONTRAST, FAINT, INK, LIMIT, plot_series, selectable
from promptlimit.studies import Check, Setting, at_most, control_at_least
from promptlimit.studies.mixtures import STUDY
from promptlimit.tasks import Denoising

WEAK_NOISE, STRONG_NOISE = 2.5, 4.0
r"""The standard deviations $\xi$ of the panels of Figure 3, which the preprint does not state."""


def figure_points(noise: float) -> Denoising:
    r"""Return the points $\pm(0,3)$ of Figure 3 under noise of standard deviation $\xi$."""
    means = [[0.0, 3.0], [0.0, -3.0]]
    return Denoising(means, [0.5, 0.5], within_variance=0, noise_variance=noise**2)


def denoised(task: Denoising, queries: np.ndarray) -> np.ndarray:
    r"""Return $c+\delta\tanh(\langle z-c,\delta\rangle/\xi^2+o)$ for the points $c\pm\delta$.

    Here $o=\frac12\log(\pi_1/\pi_2)$ for the weights $\pi_1$ and $\pi_2$ of the points.
    """
    centre, half = task.means.mean(axis=0), 0.5 * (task.means[0] - task.means[1])
    odds = 0.5 * np.log(task.weights[0] / task.weights[1])
    along = (queries - centre) @ half / task.noise_variance + odds
    return centre + np.tanh(along)[:, None] * half


def iterated(task: Denoising, queries: np.ndarray, steps: int) -> np.ndarray:
    """Return the path of each query under iterated denoising, [steps + 1, n, d]."""
    path = [queries]
    for _ in range(steps):
        path.append(denoised(task, path[-1]))
    return np.stack(path)


def attractor(strength: float) -> float:
    r"""Return the largest $u$ with $u=\tanh(\lambda^2u)$. It is 0 for $\lambda\le1$."""
    if strength <= 1.0:
        return 0.0
    low, high = 1e-9, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.tanh(strength**2 * middle) > middle else (low, middle)
    return 0.5 * (low + high)


_CENTRE, _HALF = np.array([0.5, -1.0, 2.0]), np.array([1.0, 2.0, -2.0])


def law(strength: float, weight: float = 0.5) -> Denoising:
    r"""Return two points $c\pm\delta$ under noise of standard deviation $|\delta|/\lambda$."""
    noise = (np.linalg.norm(_HALF) / strength) ** 2
    means = [_CENTRE + _HALF, _CENTRE - _HALF]
    return Denoising(means, [weight, 1 - weight], within_variance=0, noise_variance=noise)


def _farthest(strength: float, starts: np.ndarray, steps: int) -> float:
    """Return the largest distance of the end of a path from the attractor nearer to its start."""
    task = law(strength)
    ends = iterated(task, starts, steps)[-1]
    sides = np.sign((starts - _CENTRE) @ _HALF)[:, None]
    targets = _CENTRE + sides * attractor(strength) * _HALF
    return float(np.abs(ends - targets).max())


@STUDY.claim(19, reference="Proposition 4.3")
def iterated_denoising(setting: Setting) -> Iterator[Check]:
    r"""Iterates of the Bayes denoiser of two balanced points $c \pm \delta$ converge to the
    midpoint $c$ if $\lambda = {|\delta|}/\xi \le 1$, and otherwise to $c + u\delta$ or $c -
    u\delta$, where $u > 0$ and $u = \tanh(\lambda^2u)$. At $\lambda = 1$ the distance from $c$
    falls like $\sqrt{3/(2n)}\,{|\delta|}$ in the number $n$ of steps, and the two points need not
    have equal norms (both derived here).
    """
    rng = np.random.default_rng(setting.seed)
    starts = _CENTRE + 2.0 * rng.normal(size=(40, 3))
    task = law(1.3)
    one_step = np.abs(denoised(task, starts) - np.stack([task.bayes(z) for z in starts])).max()
    count, u = (20_000 if setting.quick else 200_000), 1.0
    for _ in range(count):
        u = math.tanh(u)
    uneven = law(0.8, 0.3)
    leftover = np.linalg.norm(iterated(uneven, starts, 400)[-1] - _CENTRE, axis=1).min()
    yield at_most(
        "one step compared with the Bayes predictor: largest difference",
        one_step,
        1e-9,
        basis="rounding error: $10^{-16}$ times numbers of at most 100; margin $10^5$",
    )
    yield at_most(
        r"$\lambda = 0.8$: largest distance from the midpoint",
        _farthest(0.8, starts, 400),
        1e-9,
        basis="theory: a factor of 0.64 per step, 400 steps; rounding error of $10^{-15}$",
    )
    yield at_most(
        r"$\lambda = 1.2$ and 3: largest distance from $c \pm u\delta$",
        max(_farthest(strength, starts, 400) for strength in (1.2, 3.0)),
        1e-9,
        basis=r"theory at $\lambda = 1.2$: a factor of 1.44 per step away from 0, then 0.59 per "
        "step towards the limit: starts at $10^{-50}$ or more arrive",
    )
    yield at_most(
        r"$\lambda = 1$: ${|u_n\sqrt{2n/3} - 1|}$ after $n$ steps",
        abs(u * math.sqrt(2 * count / 3) - 1),
        1e-3 if setting.quick else 1e-4,
        basis=r"theory: the next order is 0.3 times $\log n/n$; margin 5",
    )
    yield control_at_least(
        r"$\pi = 0.3$: smallest distance from the midpoint",
        leftover,
        0.1,
        basis=r"theory: $u = \tanh(\lambda^2u + o)$ with $o = -0.42$ has ${|u|}$ above 0.4; "
        "margin 10",
    )


_OFF_THE_LINE = 1e-3
"""The least distance of starts from the line between the basins. Paths on this line end at 0."""


def _ends(noise: float, starts: np.ndarray) -> np.ndarray:
    return iterated(figure_points(noise), starts, 300)[-1]


@STUDY.claim(23, reference="Figure 3")
def noise_regimes(setting: Setting) -> Iterator[Check]:
    r"""For the two points $\pm(0, 3)$, iterated denoising has two attractors if $\xi < 3$, and
    converges to the midpoint if $\xi \ge 3$. The preprint does not state $\xi$ for its panels;
    tested at four values from 2.5 to 4.
    """
    rng = np.random.default_rng(setting.seed)
    starts = rng.uniform(-6.0, 6.0, size=(200, 2))
    starts[:, 1] = np.sign(starts[:, 1]) * np.maximum(np.abs(starts[:, 1]), _OFF_THE_LINE)
    weak, strong = _ends(WEAK_NOISE, starts), _ends(STRONG_NOISE, starts)
    u = attractor(3.0 / WEAK_NOISE)
    targets = np.stack([0 * starts[:, 0], 3 * u * np.sign(starts[:, 1])], axis=1)
    below, above = (_ends(noise, starts) for noise in (2.9, 3.1))
    yield at_most(
        rf"$\xi = {WEAK_NOISE:g}$: largest distance from $\pm um$, $m = (0, 3)$",
        np.abs(weak - targets).max(),
        1e-9,
        basis="theory: a factor of 1.44 per step away from 0, then 0.59 per step towards "
        "the limit: starts at $10^{-3}$ or more arrive",
    )
    yield at_most(
        rf"$\xi = {STRONG_NOISE:g}$: largest distance from 0",
        np.abs(strong).max(),
        1e-9,
        basis="theory: a factor of 0.5625 per step, 300 steps",
    )
    yield at_most(
        r"$\xi = 3.1$: largest distance from 0",
        np.abs(above).max(),
        1e-3,
        basis=r"theory: a factor of 0.9365 per step, 300 steps: $2 \times 10^{-8}$; margin",
    )
    yield control_at_least(
        r"$\xi = 2.9$: smallest distance from 0",
        np.abs(below[:, 1]).min(),
        0.5,
        basis="theory: $u = 0.45$, times 3; a factor of 1.07 per step away from 0, from "
        "starts at $10^{-3}$ or more",
    )


_SIDE = 7


@STUDY.figure("Iterated denoising has one limit or two", section="paper", reference="Figure 3")
def figure_3(setting: Setting) -> dict[str, np.ndarray]:
    r"""The Bayes denoiser of the points $\pm(0, 3)$ with $\gamma = 0$, applied repeatedly from a
    grid of queries. For $\xi < 3$, queries converge to one of two attractors $\pm u(0, 3)$ with $u
    = \tanh(9u/\xi^2)$, which are closer to the midpoint than the points. For $\xi \ge 3$, all
    queries converge to the midpoint. After one step all queries are on the line through the points.
    The preprint does not state $\xi$ for its panels; here it is 2.5 and 4.
    """
    heights = np.linspace(-6.0, 6.0, 2 * _SIDE)  # none on the line between the two basins
    starts = np.stack(np.meshgrid(np.linspace(-6.0, 6.0, _SIDE), heights), axis=-1).reshape(-1, 2)
    arrays: dict[str, np.ndarray] = {}
    for name, noise in (("weak", WEAK_NOISE), ("strong", STRONG_NOISE)):
        u = 3.0 * attractor(3.0 / noise)
        ends = [[0.0, u], [0.0, -u]] if u else [[0.0, 0.0]]
        arrays |= {
            f"{name}.noise": np.array(noise),
            f"{name}.paths": iterated(figure_points(noise), starts, 60),
            f"{name}.limits": np.array(ends),
        }
    return arrays


_PANELS = (("weak", "two attractors"), ("strong", "one attractor"))
_FIRST = 0.9
"""The share of the first step that the shaft of an arrow covers."""


@figure_3.drawing
def draw_figure_3(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(8.2, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, (name, words) in zip(axes, _PANELS, strict=True):
        noise = float(data[f"{name}.noise"])
        _panel(axis, data[f"{name}.paths"], data[f"{name}.limits"])
        axis.set_title(f"ξ = {noise:g}: {words}")
    axes[0].set_ylabel("second coordinate")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _panel(axis: Axes, paths: np.ndarray, limits: np.ndarray) -> None:
    """Draw first steps as arrows and later steps as dots."""
    start, first = paths[0], paths[1]
    arrows = axis.quiver(
        *start.T,
        *(_FIRST * (first - start)).T,
        angles="xy",
        scale_units="xy",
        scale=1.0,
        width=0.0025,
        headwidth=5.0,
        color=FAINT,
        zorder=1,
    )
    selectable(arrows, "first step")
    later = paths[2:].reshape(-1, 2)
    plot_series(
        axis, later[:, 0], later[:, 1], "later steps", ".", color=CONTRAST, markersize=2.5, zorder=2
    )
    plot_series(
        axis, limits[:, 0], limits[:, 1], "limits", "*", color=LIMIT, markersize=13, zorder=4
    )
    means = np.zeros(2), np.array([3.0, -3.0])
    plot_series(axis, *means, "±m", "o", mfc="none", color=INK, markersize=9, zorder=3)
    axis.set_xlabel("first coordinate")
    axis.set_aspect("equal")
