r"""Claims on needles: the weight of one relevant token, and the temperature that preserves it.

The needle is a token whose score exceeds the mean of $L$ Gaussian scores of standard deviation
$\sigma$ by the *margin* $\Delta$. $Z$ is the sum of the exponentials of these $L$ scores, and the
inverse temperature $b$ multiplies all scores.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit.lengths import (
    RULES,
    freezing_length,
    inverse_temperature,
    length_statistics,
    log_n,
    needle_margin,
    sqrt_log,
    temperature_table,
    yarn,
)
from promptlimit.reporting import FAINT, draw, plot_series, selectable, shades
from promptlimit.results import Length
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    beyond_errors,
    control_at_least,
    distance_in_errors,
    within_errors,
)
from promptlimit.studies.lengths import STUDY
from promptlimit.studies.lengths.entropy import simulated

_FROZEN = (4.0, 10, 8.0)
_SIMULATED = ((1.0, 100, 5.0), (2.0, 1000, 9.0), _FROZEN, (4.0, 1000, 14.0))
_FAR = ((1.0, 1e3, 5.0), (1.0, 1e6, 15.0), (2.0, 1e4, 10.0), (0.5, 1e3, 7.0))
"""Cases (sigma, length, margin). Those in `_FAR` have (exp(sigma^2) - 1)/length below 0.01."""


def weight(sigma: float, length: Length, margin: float) -> float:
    """Return the mean weight of a needle of this margin."""
    return float(length_statistics(sigma, length, fixed_scores=[margin]).fixed_weights[0])


def annealed_weight(
    sigma: float | np.ndarray, length: Length, margin: float | np.ndarray
) -> float | np.ndarray:
    r"""Return $1/(1+Le^{\sigma^2/2-\Delta})$, the weight of a needle if $Z$ equals its mean."""
    return 1.0 / (1.0 + length * np.exp(0.5 * sigma**2 - margin))


@STUDY.claim(4, reference="lengths.md, section 4")
def needle_weight(setting: Setting) -> Iterator[Check]:
    r"""The mean weight of a token whose score is $\Delta$ above the mean of $L$ Gaussian scores of
    standard deviation $\sigma$ is a single integral. If the sum $Z$ of the other exponentials is
    replaced by its mean, the error of this weight is at most 1% while $(e^{\sigma^2} - 1)/L$ is
    below 1%. Tested in four cases each.
    """
    rng = np.random.default_rng(setting.seed + 1)
    prompts = 4000 if setting.quick else 10_000
    drawn = {cell: simulated(cell[0], cell[1], prompts, rng, margin=cell[2]) for cell in _SIMULATED}
    distances = [
        distance_in_errors(draws["needle"], weight(*cell)) for cell, draws in drawn.items()
    ]
    off = [abs(annealed_weight(*cell) / weight(*cell) - 1.0) for cell in _FAR]
    frozen = distance_in_errors(drawn[_FROZEN]["needle"], annealed_weight(*_FROZEN))
    yield within_errors(
        f"weight of the needle in four cases, {prompts:,} simulated prompts each", distances
    )
    yield at_most(
        "largest relative error of the formula with $Z$ replaced by its mean, where "
        r"$(e^{\sigma^2} - 1)/L < 0.01$",
        max(off),
        0.01,
        basis=r"theory: $(1 - P)^2(e^{\sigma^2} - 1)/L$ to leading order, below 0.01",
    )
    yield beyond_errors(
        "the formula with $Z$ replaced by its mean, beyond freezing "
        r"($\sigma = 4$, $L = 10$)",
        frozen,
    )


_KEPT = (
    (1.0, 6.0, 0.5, 1e2),
    (1.0, 6.0, 0.5, 1e4),
    (1.0, 6.0, 0.5, 1e6),
    (1.0, 6.0, 0.9, 1e5),
    (2.0, 11.0, 0.5, 8192.0),
    (2.0, 12.0, 0.3, 1e6),
    (0.5, 4.0, 0.7, 1e9),
)
"""Cases (sigma, margin, weight of the needle, length)."""


@STUDY.claim(5, reference="lengths.md, section 4")
def needle_temperature(setting: Setting) -> Iterator[Check]:
    r"""Let the needle be one token whose score is $\Delta$ above the mean of $L$ Gaussian scores of
    standard deviation $\sigma$. If all scores are multiplied by $b = 2a/(\Delta + \sqrt{\Delta^2 -
    2\sigma^2a})$ with $a = \ln L + \ln(P/(1 - P))$, the mean weight of the needle is within 1.5% of
    $P$ as long as $a \le 0.8\,\Delta^2/(2\sigma^2)$. Factors $b$ that grow like $\ln L$ do not
    preserve this weight. Tested in seven cases, and for one factor $b \propto \ln L$.
    """
    cells = _KEPT[::2] if setting.quick else _KEPT
    by_formula, by_root = [], []
    for sigma, margin, target, length in cells:
        advantage = math.log(length) + math.log(target / (1.0 - target))
        if advantage > 0.8 * margin**2 / (2.0 * sigma**2):
            raise ValueError(f"the needle {margin} is too low for the formula")
        kept = inverse_temperature(sigma, length, margin=margin, weight=target)
        for b, column in ((float(kept.annealed), by_formula), (float(kept.value), by_root)):
            column.append(abs(weight(b * sigma, length, b * margin) / target - 1.0))
    margin = needle_margin(2.0, 8192, 0.5)
    b = float(log_n(131072, 8192))
    lost = 0.5 - weight(2.0 * b, 131072, margin * b)
    yield at_most(
        f"formula, {len(cells)} cases: largest relative error of the weight",
        max(by_formula),
        0.015,
        basis="the 1.5% of the statement",
    )
    yield at_most(
        "exact roots: largest relative error of the weight",
        max(by_root),
        1e-10,
        basis="tolerance of the root finder, $10^{-13}$ in $b$; margin 1000",
    )
    yield control_at_least(
        r"log-n rule at $\sigma = 2$, from 8192 to 131,072 tokens: decrease of the weight of the "
        "needle from 1/2",
        lost,
        0.15,
        basis="ten times the 1.5% that the statement allows",
    )


_BASE = 8192.0


@STUDY.claim(6, reference="lengths.md, section 5")
def freezing(setting: Setting) -> Iterator[Check]:
    r"""Let $b$ be the factor on the scores of a head of sharpness $\sigma$. The head freezes when
    $\sigma^2b^2/\ln L$ reaches 2. The rule $b \propto \sqrt{\ln L}$ keeps this ratio constant.
    Under the log-n rule $b = \ln L/\ln L_0$ with the base length $L_0$, the head freezes at $\ln L
    = 2(\ln L_0)^2/\sigma^2$, and under the rule of YaRN at a far smaller length. Tested at $L_0 =
    8192$.
    """
    rules = {rule.name: rule for rule in RULES}
    by_log = [math.log(freezing_length(rules["Qwen log-n"], s, _BASE)) for s in (2.0, 3.0)]
    closed = [2.0 * math.log(_BASE) ** 2 / s**2 for s in (2.0, 3.0)]
    off = max(abs(one / other - 1.0) for one, other in zip(by_log, closed, strict=True))
    lengths = np.geomspace(_BASE, 1e18, 9)
    distance = (2.0 * sqrt_log(lengths, _BASE)) ** 2 / np.log(lengths)
    frozen_at = freezing_length(rules["YaRN"], 3.0, _BASE)
    later = float(round(30 * frozen_at))
    tokens = [
        float(length_statistics(3.0 * float(rule(later, _BASE)), later).effective_tokens)
        for rule in (yarn, sqrt_log)
    ]
    yield at_most(
        r"square-root rule: change of $\sigma^2b^2/\ln L$ up to $L = 10^{18}$",
        np.ptp(distance),
        1e-12,
        basis="rounding error: $10^{-16}$ times a few operations",
    )
    yield at_most(
        r"log-n: relative difference between $\ln L$ at freezing and $2(\ln L_0)^2/\sigma^2$",
        off,
        1e-9,
        basis=r"tolerance of the root finder, $10^{-12}$ in $\ln L$; margin 1000",
    )
    yield at_most(
        r"$\sigma = 3$: ratio of $\ln L$ at freezing under YaRN to that under log-n",
        math.log(frozen_at) / by_log[1],
        0.8,
        basis=r"stated: smaller by at least a fifth of $\ln L$, a factor of 37 in $L$",
    )
    yield at_most(
        r"$\sigma = 3$, YaRN at 30 times its freezing length: effective number of tokens",
        tokens[0],
        4.0,
        basis="beyond freezing a bounded number of tokens has almost all the weight; stated margin",
    )
    yield control_at_least(
        r"$\sigma = 3$, at 30 times the freezing length of YaRN: ratio of the effective "
        "number of tokens under the square-root rule to that under YaRN",
        tokens[1] / tokens[0],
        8.0,
        basis=r"theory: $L^{1-s/2}$ effective tokens under the square-root rule, where "
        r"$s = \sigma^2/\ln L_0$; stated margin",
    )


_MARGINS = np.array([2.0, 3.0, 4.0, 5.0, 6.0])
_LENGTH = 1000.0


@STUDY.figure("A needle among a thousand tokens", reference="lengths.md, section 4")
def needles(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean weight of the needle, a token whose score is $\Delta$ above the mean of 1000 standard
    normal scores, if all scores are multiplied by $b$. Solid lines are exact. For dashed lines, the
    sum $Z$ of the exponentials of the other scores is replaced by its mean. Dashed lines are wrong
    beyond freezing, $b = \sqrt{2\ln L}$ (vertical line). A needle with a large $\Delta$ has almost
    all the weight at large $b$. A needle with a small $\Delta$ has its largest weight at a finite
    $b$, and this weight is small.
    """
    b = np.linspace(0.0, 8.0, 9 if setting.quick else 81)
    fixed = (b * _MARGINS[:, None])[..., None]
    exact = length_statistics(b, _LENGTH, fixed_scores=fixed).fixed_weights[..., 0]
    annealed = np.asarray(annealed_weight(b, _LENGTH, b * _MARGINS[:, None]))
    return {"margin": _MARGINS, "b": b, "exact": exact, "annealed": annealed}


@needles.drawing
def draw_needles(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = shades(len(data["margin"]))
    rows = zip(colours, data["margin"], data["exact"], data["annealed"], strict=True)
    for colour, margin, exact, annealed in rows:
        label = f"Δ = {margin:g}"
        plot_series(axis, data["b"], exact, label, color=colour)
        dashed = axis.plot(data["b"], annealed, color=colour, dashes=(4, 2), linewidth=0.9)
        selectable(dashed, label)
    axis.axvline(math.sqrt(2.0 * math.log(1000.0)), color=FAINT, linewidth=0.9)
    axis.set_ylim(0.0, 1.0)
    axis.set_xlabel("inverse temperature $b$")
    axis.set_ylabel("weight of the needle")
    axis.legend()
    return figure


@STUDY.figure("What keeps a needle, and what practice does", reference="lengths.md, section 5")
def temperature(setting: Setting) -> dict[str, np.ndarray]:
    r"""Factors on the scores of a head of sharpness 2 as prompts grow from 8192 tokens, and the
    resulting weight of a needle whose weight is $1/2$ at 8192 tokens. Thick lines: the factors that
    preserve the weight of the needle or the entropy, by exact root finding. The rules in use give
    all heads the same factor, but the factor that a head requires depends on its sharpness.
    """
    count = 2 if setting.quick else 15
    lengths = np.geomspace(8192.0, 1048576.0, count).round()
    return temperature_table(2.0, 8192, lengths).to_arrays()


@temperature.drawing
def draw_temperature(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    return draw("temperature", data)
