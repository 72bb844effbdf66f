r"""Claims on two softmax heads with opposite scores, on in-context linear regression.

The regression has $d$ isotropic covariates, label noise of variance $s^2$ and regression weights
of variance $\tau^2=1/d$. At the query $x_q$, the two heads have the scores
$\pm u\langle x,x_q\rangle$ and the values $\pm by$ of tokens $(x,y)$.
"""

import math
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from matplotlib.figure import Figure

from promptlimit.attention import MultiHead, SoftmaxAttention
from promptlimit.reporting import CONTRAST, LIMIT, THIRD, plot_series
from promptlimit.studies import Check, Setting, at_most, control_at_least
from promptlimit.studies.prompts import STUDY
from promptlimit.tasks import LinearRegression, linear_optimum, risk, train_test_risk

_DIM, _NOISE = 5, 0.1
_TASK = LinearRegression(np.eye(_DIM), noise_variance=_NOISE, prior_variance=1.0 / _DIM)
_CONSTANT = _DIM + 1.0 + _DIM * _NOISE
"""The constant $c = d + 1 + ds^2$; linear attention has the error $s^2+c/(L+c)$."""


def _two_heads(length: int, score: float) -> float:
    r"""Return the least mean squared error over b of two heads with u = `score`.

    The error is a quadratic function of b, with the value $s^2+d\tau^2$ at b = 0. It is computed at
    two other values of b.
    """
    at_zero, gain = _NOISE + 1.0, 0.5 / score

    def above(b: float) -> float:
        scores, values = np.diag([1.0] * _DIM + [0.0]), np.diag([0.0] * _DIM + [1.0])
        with jax.enable_x64(True):
            heads = [SoftmaxAttention(sign * score * scores, sign * b * values) for sign in (1, -1)]
            return float(risk(MultiHead(heads), _TASK, length, rtol=1e-7).mse) - at_zero

    once, twice = above(gain), above(2.0 * gain)
    square, slope = (twice - 2.0 * once) / 2.0, (4.0 * once - twice) / 2.0
    return at_zero - slope**2 / (4.0 * square)


def _linear(length: int) -> float:
    return float(linear_optimum(_TASK, length).mse)


def _one_head(length: int) -> float:
    return float(train_test_risk(_TASK, length, length).mse[0, 0])


@STUDY.claim(1, reference="tasks.md, section 3; He et al., arXiv 2503.12734")
def small_opposite_heads(setting: Setting) -> Iterator[Check]:
    r"""As $u\to0$, the prediction of two softmax heads with scores $\pm u\langle x,x_q\rangle$ and
    opposite values depends on the prompt only through the empirical covariance of $x$ and $y$. On
    isotropic regression their least error tends to that of linear attention over $L-1$ tokens.
    Tested for $d=5$.
    """
    lengths = [40] if setting.quick else [10, 40, 100]
    small = 0.01
    errors = {length: _two_heads(length, small) for length in lengths}
    distances = {length: abs(errors[length] - _linear(length - 1)) for length in lengths}
    halved = abs(_two_heads(40, 2.0 * small) - _linear(39)) / distances[40]
    yield at_most(
        f"$u = {small}$: largest distance of the error from that of linear attention over $L-1$ "
        "tokens",
        max(distances.values()),
        1e-4,
        basis="theory: $u^2=10^{-4}$",
    )
    yield at_most(
        "$L = 40$: order in $u$ of this distance minus 2, estimated from $u = 0.02$ and $0.01$",
        abs(math.log2(halved) - 2.0),
        0.1,
        basis="theory: corrections of relative order $Lu^2=0.016$; margin 6",
    )
    yield control_at_least(
        "$L = 40$, $u = 0.01$: distance of the error from that of linear attention over $L$ tokens",
        abs(errors[40] - _linear(40)),
        1e-3,
        basis="theory: $c/L^2=0.004$; margin 4",
    )


@STUDY.claim(2, reference="tasks.md, section 3")
def two_heads_miss(setting: Setting) -> Iterator[Check]:
    r"""On isotropic regression with $d$ covariates, label noise of variance $s^2$ and regression
    weights of variance $1/d$, the error of two opposite softmax heads exceeds that of linear
    attention by $c/L^2$ to leading order, with $c=d+1+ds^2$. The error of one softmax head exceeds
    it by a term of order $1/L$. Tested for $d=5$ and $s^2=0.1$.
    """
    lengths = [1000] if setting.quick else [1000, 3000]
    for length in lengths:
        two = _two_heads(length, 0.4 / math.sqrt(length)) - _linear(length)
        yield at_most(
            f"$L = {length}$: relative difference of $c$ and $L^2$ times the difference between "
            "the errors of two heads and of linear attention",
            abs(length**2 * two / _CONSTANT - 1.0),
            3.0 * _CONSTANT / length,
            basis="theory: corrections of relative order $2c/L$",
        )
    one = 1000 * (_one_head(1000) - _linear(1000)) / _CONSTANT
    yield control_at_least(
        "$L = 1000$: the difference between one head and linear attention, times $L/c$",
        one,
        0.1,
        basis="theory: of order 1; $c/L=0.0065$ if it were of order $1/L^2$",
    )


@STUDY.figure("Heads on in-context regression", reference="tasks.md, section 3")
def heads_on_regression(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean squared error, with the noise variance subtracted, of the best softmax head, of two
    opposite softmax heads with scores $\pm0.4\langle x,x_q\rangle/\sqrt L$ and the best gain, and
    of linear attention, for $d=5$ covariates and noise variance 0.1. To leading order, two heads
    and linear attention differ by $6.5/L^2$. All numbers are exact.
    """
    lengths = np.array([10, 100] if setting.quick else [10, 20, 40, 70, 100, 200, 400, 1000])
    return {
        "lengths": lengths,
        "one": np.array([_one_head(length) for length in lengths.tolist()]) - _NOISE,
        "two": np.array([_two_heads(one, 0.4 / math.sqrt(one)) for one in lengths.tolist()])
        - _NOISE,
        "linear": np.array([_linear(length) for length in lengths.tolist()]) - _NOISE,
    }


@heads_on_regression.drawing
def draw_heads_on_regression(data: Mapping[str, np.ndarray]) -> Figure:
    """Draw errors on the left, and their differences from linear attention on the right."""
    figure = Figure(figsize=(8.6, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    lines = {
        "one": ("one softmax head", THIRD),
        "two": ("two softmax heads", CONTRAST),
        "linear": ("linear attention", LIMIT),
    }
    for name, (label, colour) in lines.items():
        dashes = {"dashes": (4, 2)} if name == "linear" else {}
        plot_series(left, data["lengths"], data[name], label, color=colour, **dashes)
        if name != "linear":
            right.plot(data["lengths"], data[name] - data["linear"], color=colour)
    for axis, label in ((left, "error above the noise"), (right, "error above linear attention")):
        axis.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt", ylabel=label)
    left.legend()
    return figure
