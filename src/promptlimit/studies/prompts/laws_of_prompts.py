"""Claims on known tokens, slopes, chains and draws without replacement.

A known token is in every prompt. With a slope m, the score of a token falls by m per position.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.attention import SoftmaxAttention
from promptlimit.finite import prompt_moments
from promptlimit.measures import Empirical, Gaussian
from promptlimit.prompts import MarkovChain, Prompt, WithoutReplacement
from promptlimit.reporting import LIMIT, plot_series, shades
from promptlimit.studies import Check, Setting, at_most, control_at_least
from promptlimit.studies.prompts import STUDY

HEAD = SoftmaxAttention([[1.0]], [[1.0]])
NORMAL = Gaussian([0.0], [[1.0]])

_MILD = 0.5
"""The sharpness of the head in the claim on slopes."""

_LEADING = math.exp(_MILD**2) * (1.0 + _MILD**2)
r"""The constant $c=e^{\sigma^2}(1+\sigma^2)$ at sharpness $\sigma$ = `_MILD`.

The mean squared error over $L$ standard normal tokens is $c/L$ to leading order.
"""


@STUDY.claim(4, reference="prompts.md, Known tokens, sinks, offsets and slopes")
def slope(setting: Setting) -> Iterator[Check]:
    r"""ALiBi with slope $m$ lowers the score of a token at distance $j$ by $mj$. The output then
    remains random as prompts grow. With $\omega_j = e^{-mj}$, the effective number of tokens of an
    infinite prompt is $(\sum_j\omega_j)^2/\sum_j\omega_j^2 = \coth(m/2)$ at equal scores. For small
    $m$ the mean squared error over an infinite prompt is $c\tanh(m/2)$, if without a slope it is
    $c/L$ over $L$ tokens to leading order. Tested at sharpness 1/2.
    """
    slopes = (0.04, 0.02) if setting.quick else (0.04, 0.02, 0.01)
    endless = [_sloped(m, math.inf) for m in slopes]
    off = [
        mse / (math.tanh(m / 2.0) * _LEADING) - 1.0 for m, mse in zip(slopes, endless, strict=True)
    ]
    positions = np.exp(-slopes[-1] * np.arange(20_000))
    window = positions.sum() ** 2 / (positions**2).sum()
    yield at_most(
        r"relative difference between the sum over positions and $\coth(m/2)$",
        abs(window * math.tanh(slopes[-1] / 2.0) - 1.0),
        1e-12,
        basis="rounding error of sums of 20,000 terms",
    )
    yield at_most(
        f"$m = {slopes[-1]:g}$: relative difference between an infinite prompt and 10,000 tokens",
        abs(_sloped(slopes[-1], 10_000.0) / endless[-1] - 1.0),
        1e-10,
        basis=r"tokens at distance $10^4$ have weights of about $e^{-100}$; numerical error",
    )
    extrapolated = 2.0 * off[-1] - off[-2]
    yield at_most(
        r"mean squared error divided by $c\tanh(m/2)$, extrapolated from "
        f"$m = {slopes[-2]:g}$ and ${slopes[-1]:g}$ to 0: distance from 1",
        abs(extrapolated),
        2.0 * off[-2] ** 2,
        basis=f"a correction of order $m$, {off[-2]:.2g} at the larger slope; twice its square",
    )
    plain = float(prompt_moments(HEAD, NORMAL, [_MILD], 1e6).mse)
    yield control_at_least(
        "error of an infinite prompt with the smallest slope, divided by the error of a million "
        "tokens without a slope",
        endless[-1] / plain,
        100.0,
        basis=r"the ratio is about $10^6\tanh(m/2) \ge 10^4$",
    )


def _sloped(m: float, length: float) -> float:
    return float(prompt_moments(HEAD, Prompt(NORMAL, slope=m), [_MILD], length).mse)


_TRANSITIONS = np.array([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.1, 0.4, 0.5]])
_STATES = np.array([[0.0, 1.0], [1.2, 0.0], [-0.7, 2.0]])
_READS = SoftmaxAttention([[1.0], [0.0]], [[0.0, 1.0]])


@STUDY.claim(5, reference="prompts.md, Markov chains")
def chain(setting: Setting) -> Iterator[Check]:
    r"""Over a Markov chain the limit $T$ of attention depends on the transitions only through the
    stationary law $\pi$. Let $s$ and $v$ be the scores and values of the states, and $\psi =
    e^s(v - T)/\pi e^s$. The variance times $L$ tends to the sum over all lags of the
    autocovariances of $\psi$, which depends on every power of the transitions. Tested for two
    chains of three states.
    """
    lazy = 0.5 * (_TRANSITIONS + np.eye(3))
    found = [
        prompt_moments(_READS, MarkovChain(_STATES, matrix), [1.0], 1e8)
        for matrix in (_TRANSITIONS, lazy)
    ]
    limits = [moments.limit for moments in found]
    scaled = [1e8 * float(moments.mse) for moments in found]
    sums = [_over_lags(matrix) for matrix in (_TRANSITIONS, lazy)]
    alone = [_over_lags(matrix, lags=0) for matrix in (_TRANSITIONS, lazy)]
    yield at_most(
        "distance between the limits of two chains with one stationary law",
        float(np.abs(limits[0] - limits[1]).max()),
        1e-12,
        basis="rounding error of the stationary laws",
    )
    yield at_most(
        "$L = 10^8$: largest relative difference between $L$ times the error and the sum over lags",
        max(abs(one / two - 1.0) for one, two in zip(scaled, sums, strict=True)),
        1e-5,
        basis="corrections of order $1/L$; margin 1000",
    )
    yield control_at_least(
        "$L = 10^8$: smallest relative difference between $L$ times the error and the covariance "
        "at lag 0",
        min(abs(one / two - 1.0) for one, two in zip(scaled, alone, strict=True)),
        0.2,
        basis="a chain that stays in a state with probability 1/2 or more; stated margin",
    )


def _over_lags(matrix: np.ndarray, lags: int = 400) -> float:
    r"""Return $\sum_k\mathrm{Cov}(\psi_0,\psi_k)$ over lags up to `lags` in both directions."""
    law = np.linalg.matrix_power(matrix, 4096)[0]
    weights = np.exp(_STATES[:, 0])
    weights = weights / (law @ weights)
    psi = weights * (_STATES[:, 1] - law @ (weights * _STATES[:, 1]))
    total, moved = law @ psi**2, psi
    for _ in range(lags):
        moved = matrix @ moved
        total += 2.0 * (law * psi) @ moved
    return float(total)


@STUDY.claim(6, reference="prompts.md, Known tokens, sinks, offsets and slopes")
def known_tokens(setting: Setting) -> Iterator[Check]:
    r"""Known tokens, which are in every prompt, with scores $s_f$ and values $v_f$ change the limit
    of $L$ times the bias by $\sum_fe^{s_f-\Lambda(t)}(v_f - T)$, and do not change the limit of $L$
    times the covariance. Here $\Lambda(t)$ is the log-Laplace transform of the law of the other
    tokens at the tilt $t$, and $T$ is the limit of the output. Tested for two known tokens.
    """
    fixed = [[2.0], [-1.0]]
    lengths = [10, 1e6]
    with_tokens = prompt_moments(HEAD, Prompt(NORMAL, fixed=fixed), [1.0], lengths)
    without = prompt_moments(HEAD, NORMAL, [1.0], lengths)
    moved = 1e6 * float(with_tokens.bias[1, 0] - without.bias[1, 0])
    expected = sum(math.exp(score - 0.5) * (score - 1.0) for (score,) in fixed)
    change = np.abs(with_tokens.cov[:, 0, 0] / without.cov[:, 0, 0] - 1.0)
    yield at_most(
        r"$L = 10^6$: relative difference between the change of $L$ times the bias and the formula",
        abs(moved / expected - 1.0),
        1e-3,
        basis="corrections of order $1/L$; margin 1000",
    )
    yield at_most(
        "$L = 10^6$: relative change of the variance",
        change[1],
        1e-3,
        basis="of order $1/L$; margin 1000",
    )
    yield control_at_least(
        "$L = 10$: relative change of the variance",
        change[0],
        0.1,
        basis="two of twelve tokens are known; stated margin",
    )


@STUDY.claim(8, reference="prompts.md, Draws without replacement")
def without_replacement(setting: Setting) -> Iterator[Check]:
    r"""If $n$ of $N$ tokens are drawn without replacement, the mean squared error is $(N - n)/(N -
    1)$ times that of draws with replacement: exactly for equal scores, and up to corrections of
    order $1/n$ otherwise. Tested for $n = N/2$.
    """
    sizes = (40, 160)
    equal = [_finite_factor(size, 0.0) / _factor(size) - 1.0 for size in (10, *sizes)]
    tilted = [abs(_finite_factor(size, 1.0) / _factor(size) - 1.0) for size in sizes]
    yield at_most(
        "equal scores: largest relative difference between the ratio and the factor",
        max(map(abs, equal)),
        1e-10,
        basis="numerical error",
    )
    yield at_most(
        "other scores, half of the tokens drawn: difference from the factor at $N = 160$ divided "
        "by that at $N = 40$",
        tilted[1] / tilted[0],
        0.5,
        basis="corrections of order $1/n$: a ratio of 1/4; margin 2",
    )
    yield control_at_least(
        "equal scores, $N = 10$: relative difference from $(N - n)/N$",
        abs(_finite_factor(10, 0.0) / 0.5 - 1.0),
        0.1,
        basis="$N/(N - 1) - 1 = 1/9$ exactly",
    )


def _factor(size: int) -> float:
    return (size - size // 2) / (size - 1.0)


def _finite_factor(size: int, tilt: float) -> float:
    """Return the ratio of the errors without and with replacement, for half of the tokens."""
    tokens = np.linspace(-1.0, 1.0, size)[:, None]
    laws = WithoutReplacement(tokens), Empirical(tokens)
    errors = [prompt_moments(HEAD, law, [tilt], size // 2).mse for law in laws]
    return float(errors[0] / errors[1])


@STUDY.figure(
    "The window of ALiBi", reference="prompts.md, Known tokens, sinks, offsets and slopes"
)
def alibi_window(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean squared error of one softmax head over standard normal tokens, at sharpness 1/2, if
    scores fall by $m$ per position. For $m = 0$ the error falls like $c/L$ with a constant $c$; for
    $m > 0$ it tends to the value of an infinite prompt. Dashed: $c\tanh(m/2)$, the leading order of
    the error over $\coth(m/2)$ tokens without a slope.
    """
    slopes = np.array([0.0, 0.03, 0.1, 0.3, 1.0])
    lengths = np.unique(np.geomspace(2, 3000, 6 if setting.quick else 25).round())
    rows = [prompt_moments(HEAD, Prompt(NORMAL, slope=m), [_MILD], lengths).mse for m in slopes]
    levels = np.tanh(slopes / 2.0) * _LEADING
    return {"slopes": slopes, "lengths": lengths, "mse": np.stack(rows), "levels": levels}


@alibi_window.drawing
def draw_alibi_window(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = [LIMIT, *shades(len(data["slopes"]) - 1)]
    for colour, m, row, level in zip(
        colours, data["slopes"], data["mse"], data["levels"], strict=True
    ):
        label = f"m = {m:g}" if m else "no slope"
        plot_series(axis, data["lengths"], row, label, color=colour)
        if 0.0 < m <= 0.3:
            axis.axhline(level, color=colour, dashes=(4, 2), linewidth=0.9)
    axis.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt")
    axis.set_ylabel("mean squared error")
    axis.legend()
    return figure
