r"""Claims on regression in context by several layers.

A layer $U=\mathrm{diag}(aI,0)$, $V=\mathrm{diag}(0,-\beta/a)$ is a step of gradient descent of size
$\beta$ on the regression of the prompt.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from promptlimit.attention import KernelName, Layer, LinearAttention, SoftmaxAttention, Stack
from promptlimit.reporting import plot_series, shades
from promptlimit.studies import (
    Check,
    Setting,
    amended,
    at_most,
    control_at_least,
)
from promptlimit.studies.depth import STUDY
from promptlimit.studies.depth.flows import random_covariance
from promptlimit.tasks import LinearRegression, RotatedRegression, bayes_risk, linear_optimum, risk

_HEADS = {"softmax": SoftmaxAttention, "linear": LinearAttention}


def descent_stack(
    steps: list[float], dim: int, kernel: KernelName, sharpness: float = 1.0
) -> Stack:
    r"""Return a stack of layers $U=\mathrm{diag}(aI,0)$, $V=\mathrm{diag}(0,-\beta_l/a)$.

    The `steps` are $\beta_l$, and `sharpness` is $a$. The infinite-prompt limit does not depend on
    $a$. The last layer also changes the sign of the label, so that the output is the prediction.
    """
    key_query = np.diag([sharpness] * dim + [0.0])
    layers = []
    for place, step in enumerate(steps):
        sign = -1.0 if place == len(steps) - 1 else 1.0
        value = np.diag([0.0] * dim + [-sign * step / sharpness])
        head = _HEADS[kernel](key_query, value)
        layers.append(Layer(head, np.diag([1.0] * dim + [sign])))
    return Stack(layers)


def softmax_errors(
    rng: np.random.Generator,
    *stacks: list[float],
    dim: int,
    length: int,
    prompts: int,
    sharpness: float,
    noise_variance: float = 0.1,
    prior_variance: float = 0.2,
) -> NDArray[np.float64]:
    r"""Return squared errors of softmax stacks on the same simulated prompts, [stack, prompt].

    Each stack is a list of steps $\beta_l$, and $a$ is `sharpness`. The errors do not include the
    noise of the query's label. Layers do not change the covariates, so all layers smooth the labels
    with the same softmax weights (a Nadaraya-Watson estimator with kernel
    $e^{a\langle x,x'\rangle}$).
    """
    weights = np.sqrt(prior_variance) * rng.normal(size=(prompts, dim, 1))
    x = rng.normal(size=(prompts, length + 1, dim))
    answers = (x @ weights)[..., 0]
    labels = answers[:, :-1] + np.sqrt(noise_variance) * rng.normal(size=(prompts, length))
    scores = sharpness * x @ x[:, :-1].mT
    scores -= scores.max(axis=2, keepdims=True)
    smoothing = np.exp(scores, out=scores)
    smoothing /= smoothing.sum(axis=2, keepdims=True)
    squares = []
    for steps in stacks:
        left, label = labels, np.zeros(prompts)
        for step in steps:
            read = step / sharpness * (smoothing @ left[..., None])[..., 0]
            left, label = left - read[:, :-1], label - read[:, -1]
        squares.append((-label - answers[:, -1]) ** 2)
    return np.array(squares)


@STUDY.claim(
    7, reference="Bordelon, Letey and Pehlevan 2025, read in summaries; Hankel system derived here"
)
def depth_in_the_limit(setting: Setting) -> Iterator[Check]:
    r"""If all infinite prompts have the same covariance, a single layer solves the regression, and
    more layers do not help. If the covariance is rotated from prompt to prompt, the number of
    layers that solve the regression is the number of its distinct eigenvalues, and fewer layers do
    not solve it. Tested for three distinct eigenvalues.
    """
    rng = np.random.default_rng(setting.seed)
    spectrum = [1.0, 0.5, 0.25]
    rotated = RotatedRegression(spectrum)
    fixed = LinearRegression(random_covariance(rng, 4), noise_variance=0.1)
    optima = [linear_optimum(fixed, math.inf, depth=depth) for depth in (1, 3)]
    three = linear_optimum(rotated, math.inf, depth=3).attention
    # Softmax layers with the same steps have the same limit.
    stacks = (descent_stack([1.0, 2.0, 4.0], 3, "softmax"), three)
    solving = [float(risk(stack, rotated, math.inf).mse) for stack in stacks]
    solved = [float(best.mse) - 0.1 for best in optima]
    two = float(linear_optimum(rotated, math.inf, depth=2).mse)
    yield at_most(
        "one covariance: excess of the best single layer and of the best three layers, the larger "
        "of the two",
        max(solved),
        1e-12,
        basis="rounding error: $10^{-16}$ times condition numbers of at most 4; margin 1000",
    )
    yield at_most(
        "rotated covariance with spectrum $(1, 1/2, 1/4)$: excess of the best three linear layers "
        "and of three softmax layers, the larger of the two",
        max(solving),
        1e-24,
        basis="rounding error, squared: residuals of $10^{-15}$; margin 1000 before squaring",
    )
    yield control_at_least(
        "rotated covariance with spectrum $(1, 1/2, 1/4)$: excess of the best two linear layers",
        two,
        0.01,
        basis="Hankel system of order 2: 0.0274; margin 2.7",
    )


def residual_flow(start: Sequence[float], times: np.ndarray) -> np.ndarray:
    r"""Return the solution $e_l(t)$ of $e_l'=-\partial_l\frac12\prod_ke_k^2$, [layers, times]."""

    def motion(_: float, residuals: np.ndarray) -> np.ndarray:
        others = [np.delete(residuals, place).prod() for place in range(residuals.size)]
        return -residuals.prod() * np.array(others)

    end = float(times[-1])
    solution = solve_ivp(motion, (0, end), start, "LSODA", times, rtol=1e-10, atol=1e-14)
    return solution.y


def _slope(start: Sequence[float], times: np.ndarray) -> float:
    """Return the log-log slope of the risk between the last two times."""
    risks = 0.5 * residual_flow(start, times).prod(axis=0) ** 2
    return float(np.diff(np.log(risks[-2:]))[0] / np.diff(np.log(times[-2:]))[0])


@STUDY.claim(8, reference="Bordelon, Letey and Pehlevan 2025 for the setting")
def tied_layers(setting: Setting) -> Iterator[Check]:
    r"""Consider $K$ layers with steps $\beta_l$ over infinite prompts whose covariance is
    $\lambda I$, and let $e_l = 1 - \lambda\beta_l$. Gradient flow on the steps conserves $e_l^2 -
    e_k^2$. From equal steps the risk falls like $t^{-K/(K-1)}$, from unequal steps exponentially
    (derived here). Tested for $K = 2$, and for $K = 3$ equal steps.
    """
    late = np.array([0.0, 1e5, 1e6])
    untied = residual_flow([0.9, 0.5], np.array([0.0, 5.0, 20.0, 40.0]))
    gaps = untied[0] ** 2 - untied[1] ** 2
    risks = 0.5 * untied.prod(axis=0) ** 2
    rate = float(np.log(risks[1] / risks[2]) / 15)
    steps = 1 - untied[:, 1]
    task = LinearRegression([[1.0]])
    known = risk(descent_stack(steps.tolist(), 1, "softmax"), task, math.inf).value
    slopes = [_slope([0.7] * 2, late), _slope([0.7] * 3, late)]
    tied = 0.5 * residual_flow([0.7] * 2, np.array([0.0, 40.0]))[:, 1].prod() ** 2
    yield at_most(
        "$K = 2, 3$, equal steps: largest distance of the log-log slope of the risk from "
        "$-K/(K - 1)$",
        max(abs(slopes[0] + 2), abs(slopes[1] + 1.5)),
        1e-3,
        basis="theory: corrections of order $1/t = 10^{-5}$; solver $10^{-10}$; margin 100",
    )
    yield at_most(
        "$K = 2$, unequal steps: range of $e_1^2 - e_2^2$ along the flow",
        float(np.ptp(gaps)),
        1e-8,
        basis="solver: tolerance $10^{-10}$; margin 100",
    )
    yield at_most(
        "$K = 2$, unequal steps: relative distance of the exponential rate from $2(e_1^2 - e_2^2)$",
        abs(rate / (2 * gaps[0]) - 1),
        0.1,
        basis="theory: of order $e_2^2/(e_1^2 - e_2^2)$ at $t = 5$, a few hundredths",
    )
    yield at_most(
        r"$K = 2$, unequal steps: risk of the stack compared with $\frac{1}{2}e_1^2e_2^2$, "
        "relative difference",
        abs(known / risks[1] - 1),
        1e-9,
        basis="rounding error: $10^{-16}$ over residuals of $10^{-2}$; margin $10^4$",
    )
    yield control_at_least(
        "$K = 2$: ratio of the risk from equal steps to that from unequal steps at $t = 40$",
        tied / risks[-1],
        1e3,
        basis=r"theory: $1/(8t^2) = 8 \times 10^{-5}$ over "
        r"$e^{-2 \cdot 0.56 \cdot 40} = 4 \times 10^{-20}$",
    )


@STUDY.claim(
    9,
    reference="Ahn et al. 2023 and von Oswald et al. 2023 for the layers; optimum derived here",
    expected="holds with a change",
    evidence="$K$ linear layers apply a polynomial of degree $K$ with real roots to the second "
    "moment of the prompt, one root per layer. The best polynomial approaches ridge regression, "
    "and without noise its roots are real. With noise, ridge regression corresponds to the "
    r"function $c/(\lambda + c)$ of an eigenvalue $\lambda$ of the second moment. Its logarithm is "
    "convex, whereas the logarithm of a product of real factors is concave between its zeros. "
    "From depth 5 on ($d = 5$, $L = 40$) some roots of the best polynomial are therefore complex, "
    "the best real steps coincide in pairs, and the risk of the stack stays above the Bayes risk. "
    "Relative to the Bayes risk minus the noise, the difference is a few thousandths at $L = 40$ "
    "and a twentieth at $L = 10$.",
)
def depth_and_ridge(setting: Setting) -> Iterator[Check]:
    r"""At every length, the best stack of linear layers approaches ridge regression, which is the
    Bayes predictor, as the number of layers grows.
    """
    depth = 8 if setting.quick else 12
    lengths = (40,) if setting.quick else (10, 40, 400)
    noisy = LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    clean = LinearRegression(np.eye(5), prior_variance=0.2)
    steps, polynomials, shallow = [], [], []
    for length in lengths:
        bayes = bayes_risk(noisy, length, points=4096)
        least = float(bayes.mse)
        own = least - 0.1
        deep, one = linear_optimum(noisy, length, depth=depth), linear_optimum(noisy, length)
        steps.append((float(deep.mse) - least) / own)
        error = 2 * float(bayes.error) / own
        polynomials.append((2 * deep.bound - least) / own - 2 * error)
        shallow.append((float(one.mse) - least) / own)
    exact = float(linear_optimum(clean, 40, depth=depth).mse)
    yield at_most(
        f"with noise: largest excess of {depth} layers over the Bayes risk, relative to the "
        "Bayes risk above the noise",
        max(steps),
        1e-3,
        basis="the statement's 0, with an allowance of a thousandth for the approach",
    )
    yield amended(
        at_most(
            "with noise: largest excess of the best polynomials over the Bayes risk, relative "
            "to the Bayes risk above the noise",
            max(polynomials),
            0.02,
            basis="stated: a third of the tolerance for the layers",
        )
    )
    yield amended(
        at_most(
            f"with noise: largest excess of {depth} layers over the Bayes risk, relative to the "
            "Bayes risk above the noise",
            max(steps),
            0.06,
            basis="the twentieth at $L = 10$ of the evidence; margin 1.2",
        )
    )
    yield amended(
        at_most(
            "without noise: mean squared error at $L = 40$",
            exact,
            1e-4,
            basis="a thousandth of the noise variance 0.1 of the other task",
        )
    )
    yield control_at_least(
        "with noise: smallest excess of a single layer over the Bayes risk, relative to the "
        "Bayes risk above the noise",
        min(shallow),
        1.0,
        basis="stated: the excess of one layer is larger than the Bayes risk above the noise",
    )


_AHN = 20


@STUDY.figure(
    "What more linear layers are worth", reference="Ahn et al. 2023; optimum derived here"
)
def depth_and_length(setting: Setting) -> dict[str, np.ndarray]:
    r"""Left: the least mean squared error of $K$ linear layers, minus the noise variance, on the
    regression of Boursier and Boyer ($d = 5$, noise variance 0.1), against the depth $K$. Dashed:
    the Bayes predictor (ridge regression) at the same length. Dotted: the best polynomial of degree
    $K$, which layers with real steps do not reach at large depth. Right: the least mean squared
    error in the protocol of Ahn et al. ($d = 5$, 20 tokens, no noise), for layers that update only
    the labels, and for layers that also update the covariates (GD++). All numbers are exact.
    """
    depths = np.arange(1, 5 if setting.quick else 9)
    lengths = np.array([10.0, 40.0]) if setting.quick else np.array([10.0, 40.0, 160.0, 640.0])
    task = LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    setting.report("the best linear layers")
    columns = [linear_optimum(task, lengths, depth=int(depth)) for depth in depths]
    protocol = LinearRegression(np.eye(5))
    still = [linear_optimum(protocol, _AHN, depth=int(depth)).mse for depth in depths[:5]]
    moving_depths = depths[: 2 if setting.quick else 3]
    moving = [
        linear_optimum(protocol, _AHN, depth=int(depth), moving_covariates=True).mse
        for depth in moving_depths
    ]
    return {
        "depths": depths,
        "lengths": lengths,
        "mse": np.array([best.mse for best in columns]),
        "bound": np.array([2 * best.bound for best in columns]),
        "bayes": np.asarray(bayes_risk(task, lengths).mse),
        "still_depths": depths[:5],
        "still": np.array(still),
        "moving_depths": moving_depths,
        "moving": np.array(moving),
    }


_NOISE = 0.1


@depth_and_length.drawing
def draw_depth_and_length(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.4, 1.0))
    _draw_lengths(left, data)
    _draw_protocol(right, data)
    return figure


def _draw_lengths(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    depths = data["depths"]
    for place, colour in enumerate(shades(data["lengths"].size)):
        label = f"L = {data['lengths'][place]:g}"
        excess, bound = (data[name][:, place] - _NOISE for name in ("mse", "bound"))
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "color": colour}
        plot_series(axis, depths, excess, label, **style)
        axis.plot(depths, bound, color=colour, linestyle=":", linewidth=1)
        axis.axhline(data["bayes"][place] - _NOISE, color=colour, dashes=(4, 2), linewidth=0.8)
    axis.set(yscale="log", xlabel="depth $K$", ylabel="least mean squared error, less the noise")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="upper right", ncols=2)


def _draw_protocol(axis: Axes, data: Mapping[str, np.ndarray]) -> None:
    dark, light = shades(2)
    for name, label, colour, marker in (
        ("still", "labels alone", dark, "o"),
        ("moving", "covariates too (GD++)", light, "D"),
    ):
        style: dict[str, Any] = {"marker": marker, "markersize": 4, "color": colour}
        plot_series(axis, data[f"{name}_depths"], data[name], label, **style)
    axis.set(yscale="log", xlabel="depth $K$", ylabel="least mean squared error")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(loc="upper right")


_STEPS = {1: [0.9], 2: [0.5, 0.4], 4: [0.5, 0.4, 0.6, 0.3]}
_SHARPNESS = 0.35


@STUDY.figure(
    "Softmax layers and their limit",
    reference="von Oswald et al. 2023 for the layers; limit derived here",
)
def softmax_stacks(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean squared error, minus the noise variance, of softmax stacks whose layers take gradient
    steps in context ($d = 5$, noise variance 0.1). All stacks have the same simulated prompts, and
    bands show one standard error. Dashed: the exact infinite-prompt limits. The steps were chosen
    by hand: 0.9 for one layer; 0.5, 0.4 for two; and 0.5, 0.4, 0.6, 0.3 for four. Depth helps at
    short prompts, where several small steps smooth more than one large step.
    """
    rng = np.random.default_rng(setting.seed)
    lengths = np.array([25, 100]) if setting.quick else np.array([25, 50, 100, 200, 400])
    scores = 2e6 if setting.quick else 2e7
    task = LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    mse, error = np.empty((2, len(_STEPS), lengths.size))
    for place, length in enumerate(lengths.tolist()):
        setting.report(f"softmax layers on {length} drawn tokens")
        count = int(min(4000, scores / length**2))
        squares = softmax_errors(
            rng, *_STEPS.values(), dim=5, length=length, prompts=count, sharpness=_SHARPNESS
        )
        mse[:, place] = squares.mean(axis=1)
        error[:, place] = squares.std(axis=1, ddof=1) / math.sqrt(count)
    stacks = [descent_stack(steps, 5, "softmax", _SHARPNESS) for steps in _STEPS.values()]
    limits = [float(risk(stack, task, math.inf).mse) - 0.1 for stack in stacks]
    return {
        "depths": np.array(list(_STEPS)),
        "lengths": lengths,
        "mse": mse,
        "error": error,
        "limits": np.array(limits),
    }


@softmax_stacks.drawing
def draw_softmax_stacks(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for place, colour in enumerate(shades(data["depths"].size)):
        label = f"{data['depths'][place]:g} layers" if place else "one layer"
        style: dict[str, Any] = {"marker": "o", "markersize": 4, "color": colour}
        plot_series(axis, data["lengths"], data["mse"][place], label, **style)
        low, high = (data["mse"][place] + side * data["error"][place] for side in (-1, 1))
        axis.fill_between(data["lengths"], low, high, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(data["limits"][place], color=colour, dashes=(4, 2), linewidth=0.8)
    axis.set(xscale="log", yscale="log")
    axis.set_xticks(data["lengths"], [f"{length:g}" for length in data["lengths"]])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("length $L$")
    axis.set_ylabel("mean squared error, less the noise")
    axis.legend(loc="upper right")
    return figure
