r"""Claims on the entropy and the log-partition function of prompts of Gaussian scores.

A prompt has $L$ independent scores $s_i\sim N(0,\sigma^2)$; $\sigma$ is the sharpness. Its
log-partition function is $\ln Z=\ln\sum_ie^{s_i}$. The softmax weights $p_i=e^{s_i}/Z$ have the
entropy $H$ and the sum of squares $S_2$.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np
from matplotlib.figure import Figure

from promptlimit.lengths import entropy_prediction, length_statistics
from promptlimit.reporting import plot_series, selectable, shades
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    beyond_errors,
    control_at_least,
    distance_in_errors,
    rejected,
    share_at_least,
    within_errors,
)
from promptlimit.studies.lengths import STUDY
from promptlimit.weights import weight_statistics

_TOKENS_AT_ONCE = 2**21


STATISTICS = ("log_partition", "log_partition_variance", "entropy", "entropy_variance")


def simulated(
    sigma: float, length: int, prompts: int, rng: np.random.Generator, margin: float | None = None
) -> dict[str, np.ndarray]:
    r"""Return statistics of simulated prompts of Gaussian scores, by name, [prompt] each.

    The scores have the standard deviation $\sigma$. If `margin` is given, the prompts have one more
    token, the needle, whose score is `margin`, and the weight of the needle is also returned.
    """
    log_z, entropies, needles = [], [], []
    for start in range(0, prompts, max(1, _TOKENS_AT_ONCE // length)):
        count = min(max(1, _TOKENS_AT_ONCE // length), prompts - start)
        scores = sigma * rng.normal(size=(count, length))
        top = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - top)
        total = powers.sum(axis=1)
        log_partition = top[:, 0] + np.log(total)
        log_z.append(log_partition)
        entropies.append(log_partition - (powers * scores).sum(axis=1) / total)
        if margin is not None:
            needles.append(1.0 / (1.0 + np.exp(log_partition - margin)))
    columns = {"log_partition": np.concatenate(log_z), "entropy": np.concatenate(entropies)}
    for name in ("log_partition", "entropy"):
        columns[f"{name}_variance"] = (columns[name] - columns[name].mean()) ** 2
    if needles:
        columns["needle"] = np.concatenate(needles)
    return columns


_SHORT = ((0.5, 2, 100_000), (1.0, 100, 250_000), (4.0, 10, 40_000))
_LONG = ((2.0, 1000, 64_000), (4.0, 1000, 40_000))
"""The sharpness, the length and the number of prompts of each of five comparisons.

Among the four `STATISTICS`, the squared deviations have the largest skewness: about 6, 22, 4, 12
and 9 in the five comparisons. With these numbers of prompts, the allowance `SKEWNESS` of
statistical checks (`studies._checks`) is sufficient.
"""


@STUDY.claim(1, reference="lengths.md, sections 1 and 2")
def simulated_prompts(setting: Setting) -> Iterator[Check]:
    r"""For prompts of $L$ Gaussian scores of standard deviation $\sigma$, let $Z$ be the sum of
    their exponentials and $H$ the entropy of the softmax weights. The means and variances of $\ln
    Z$ and $H$ are integrals that can be computed at a cost that does not depend on $L$.
    """
    rng = np.random.default_rng(setting.seed)
    for sigma, length, prompts in _SHORT if setting.quick else _SHORT + _LONG:
        draws = simulated(sigma, length, prompts, rng)
        name = (
            rf"$\sigma = {sigma:g}$, $L = {length}$: four statistics compared with {prompts:,} "
            "simulated prompts"
        )
        exact = length_statistics(sigma, length)
        yield within_errors(
            name, [distance_in_errors(draws[one], getattr(exact, one)) for one in STATISTICS]
        )
    sigma, length, prompts = _SHORT[-1]
    log_z = simulated(sigma, length, prompts, rng)["log_partition"]
    annealed = distance_in_errors(log_z, math.log(length) + 0.5 * sigma**2)
    name = (
        rf"$\sigma = {sigma:g}$, $L = {length}$: $\ln \mathbb{{E}}Z$ instead of "
        r"$\mathbb{E}\ln Z$"
    )
    yield beyond_errors(name, annealed)


_STEP = 1e-3


@STUDY.claim(2, reference="lengths.md, section 1")
def derivatives(setting: Setting) -> Iterator[Check]:
    r"""Let $L$ tokens have independent scores $\sigma g_i$ with $g_i$ standard normal, let $Z =
    \sum_i e^{\sigma g_i}$, let $p_i$ be the softmax weights, $S_2 = \sum_i p_i^2$ and $A = \sum_i
    p_i g_i$. Then $\frac{d}{d\sigma}\mathbb{E}\ln Z = \sigma(1 - \mathbb{E}S_2)$ and
    $\frac{d}{d\sigma}\mathrm{Var}(\ln Z) = 2\,\mathrm{Cov}(\ln Z, A)$.
    """
    sigma = np.array([0.5, 2.0, 6.0] if setting.quick else [0.5, 1.0, 2.0, 4.0, 6.0, 12.0])
    lengths = np.array([2.0, 100.0, 1e6, 1e12])
    near = [
        length_statistics(sigma[:, None] + shift * _STEP, lengths) for shift in (-2, -1, 0, 1, 2)
    ]
    weights = weight_statistics(sigma[:, None], lengths)
    shrinkage, energy = weights.shrinkage, weights.score_error
    variance = energy - (sigma[:, None] * weights.participation) ** 2
    slopes = {
        name: _slope([getattr(one, name) for one in near])
        for name in ("log_partition", "log_partition_variance")
    }
    here = near[2]
    terms = here.log_partition_variance + sigma[:, None] ** 2 * variance - here.entropy_variance
    covariance = terms / (2.0 * sigma[:, None])
    scale = np.sqrt(here.log_partition_variance * variance)
    mean_score = sigma[:, None] * shrinkage
    off = np.abs(slopes["log_partition"] / mean_score - 1.0).max()
    off_variance = (np.abs(slopes["log_partition_variance"] - 2.0 * covariance) / scale).max()
    without = np.abs(slopes["log_partition"] / sigma[:, None] - 1.0).max()
    yield at_most(
        r"$\frac{d}{d\sigma}\mathbb{E}\ln Z$ compared with $\sigma(1 - \mathbb{E}S_2)$: "
        "largest relative difference",
        off,
        1e-8,
        basis="rounding error: integrals are exact to $10^{-12}$ and divided by the step "
        "$10^{-3}$; margin 10",
    )
    yield at_most(
        r"$\frac{d}{d\sigma}\mathrm{Var}(\ln Z)$ compared with $2\,\mathrm{Cov}(\ln Z, A)$: "
        "largest relative difference",
        off_variance,
        1e-7,
        basis="as above; the variance is a difference of two terms that are ten times larger",
    )
    yield control_at_least(
        r"$\frac{d}{d\sigma}\mathbb{E}\ln Z$ compared with $\sigma$, which omits "
        r"$\mathbb{E}S_2$: largest relative difference",
        without,
        0.1,
        basis=r"with two tokens $\mathbb{E}S_2$ is at least $1/2$; margin 5",
    )


def _slope(rows: list[np.ndarray]) -> np.ndarray:
    """Return the derivative at the middle of five points in steps of `_STEP`."""
    return (8.0 * (rows[3] - rows[1]) - (rows[4] - rows[0])) / (12.0 * _STEP)


def share(s: float, length: float) -> float:
    r"""Return $E\,H/\ln L$ at $\sigma^2=s\ln L$."""
    sigma = math.sqrt(s * math.log(length))
    return float(length_statistics(sigma, length).entropy) / math.log(length)


def participation(s: float, length: float) -> float:
    r"""Return $E\,S_2$ at $\sigma^2=s\ln L$."""
    return float(weight_statistics(math.sqrt(s * math.log(length)), length).participation)


@STUDY.claim(3, reference="lengths.md, section 2; known of the random energy model")
def entropy_share(setting: Setting) -> Iterator[Check]:
    r"""If the sharpness grows with the length like $\sigma^2 = s\ln L$, the mean entropy of the
    weights divided by $\ln L$ tends to $1 - s/2$ for $s < 2$, and to 0 for $s \ge 2$. It converges
    quickly for $s < 1$ and slowly for $s > 1$: at $s = 1.5$ the distance from the limit is still
    0.02 at $10^{24}$ tokens. Tested at four values of $s$ from 0.5 to 4.
    """
    # By the derivative of E ln Z the entropy is E H = ln L - σ²/2 + σ² E S₂ - ∫₀^σ t E S₂(t) dt.
    # E S₂ grows with the sharpness, so the integral is between 0 and σ²/2 times E S₂. The share
    # E H/ln L therefore exceeds 1 - s/2 by at least s E S₂/2 and at most s E S₂.
    slow = [share(1.5, length) for length in (1e6, 1e12, 1e24)]
    falls = max(later - earlier for earlier, later in itertools.pairwise(slow))
    frozen = [share(4.0, length) for length in (1e6, 1e24)]
    yield from (
        at_most(
            f"$s = {s:g}$, $L = 10^{{{math.log10(length):g}}}$: distance of the share "
            r"$\mathbb{E}H/\ln L$ from "
            f"{1 - s / 2:g}",
            abs(share(s, length) - (1 - s / 2)),
            participation(s, length) * s,
            basis=r"theory: at most $s\,\mathbb{E}S_2$, which is computed by another integral",
        )
        for s, length in ((0.5, 1e6), (1.0, 1e12), (1.5, 1e24))
    )
    yield at_most(
        r"$s = 0.5$, $L = 10^6$: $\mathbb{E}S_2$",
        participation(0.5, 1e6),
        2e-3,
        basis="theory: $L^{s-1} = 10^{-3}$ to leading order below $s = 2/3$; margin 2",
    )
    yield at_most(
        "$s = 1.5$, $L = 10^6, 10^{12}, 10^{24}$: change of the share, which falls towards $1/4$, "
        "from one length to the next; the smaller fall of the two",
        falls,
        -0.02,
        basis=r"theory: $s\,\mathbb{E}S_2 \sim 0.42\,s\,L^{-1/48}/\sigma$ falls by 0.033 "
        "from $10^{12}$ on; margin 1.5",
    )
    yield at_most(
        "$s = 4$: ratio of the share at $L = 10^{24}$ to that at $L = 10^6$",
        frozen[1] / frozen[0],
        0.5,
        basis=r"theory: the entropy stays finite, so its share falls like $1/\ln L$, to "
        "$1/4$; margin 2",
    )
    yield control_at_least(
        "$s = 1.5$, $L = 10^{24}$: distance of the share from the wrong limit $1 - s$",
        abs(slow[-1] + 0.5),
        0.5,
        basis="the limits $1/4$ and $-1/2$ are 0.75 apart; margin 1.5",
    )


_LENGTHS = np.array([64.0, 4096.0, 65536.0])
_DOWN = np.array([8.0])
_SHARE = 0.8
"""The share of lists of scores whose predictions must be within two standard errors.

For normal errors with a known standard error, this share would be 95%. It is smaller here, because
the standard error is estimated from a few hundred lognormal weights.
"""


@STUDY.claim(7, reference="lengths.md, section 3")
def prediction(setting: Setting) -> Iterator[Check]:
    r"""A list of $N$ scores of one query predicts the mean entropy at other lengths $L$ to within
    two standard errors, for at least four of five lists with $S_2 = \sum_i p_i^2 < 0.1$, where
    $p_i$ are the softmax weights. The simpler prediction, the measured entropy plus $\ln(L/N)$,
    fails for $L < N$. Tested for standard normal scores, and the simpler prediction at sharpness 2
    and $L = 8$.
    """
    rng = np.random.default_rng(setting.seed + 2)
    count, lists = (256, 40) if setting.quick else (512, 100)
    held = _covered(rng.normal(size=(lists, count)), 1.0, _LENGTHS, "value")
    naive = _covered(rng.normal(size=(lists, count)), 2.0, _DOWN, "naive")
    missed = share_at_least(
        r"measured entropy plus $\ln(L/N)$, $\sigma = 2$, $L = 8$: lists of "
        f"$N = {count}$ scores whose prediction is within two standard errors",
        naive,
        _SHARE,
    )
    yield share_at_least(
        rf"$\sigma = 1$, three lengths: lists of $N = {count}$ scores whose "
        "predictions are within two standard errors",
        held,
        _SHARE,
    )
    yield rejected(missed)


def _covered(
    lists: np.ndarray, sigma: float, lengths: np.ndarray, name: Literal["value", "naive"]
) -> list[bool]:
    """Return whether each list with S₂ < 0.1 predicts every length within two standard errors.

    Scores are `sigma` times the rows of `lists`. The prediction "naive" is the measured entropy
    plus ln(L/N).
    """
    truth = length_statistics(sigma, lengths).entropy
    drawn = [entropy_prediction(sigma * row, lengths) for row in lists]
    counted = [one for one in drawn if one.participation < 0.1]
    return [bool(np.all(np.abs(getattr(c, name) - truth) <= 2.0 * c.error)) for c in counted]


_SHARES = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 4.0])


@STUDY.figure(
    "The entropy along fixed distances to freezing",
    reference="lengths.md, section 2",
    name="entropy_share",
)
def entropy_shares(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean entropy of the softmax weights divided by $\ln L$ if the sharpness grows with the
    length like $\sigma^2 = s\ln L$, exact up to $L = 10^{30}$. Dashed: the limit, $1 - s/2$ for $s
    \le 2$ and 0 beyond. Near freezing ($s = 2$) the distance from the limit falls so slowly that it
    is large at every context length in use.
    """
    lengths = 10.0 ** (np.array([1, 4, 12, 24]) if setting.quick else np.arange(1, 31))
    sigma = np.sqrt(_SHARES[:, None] * np.log(lengths))
    entropy = length_statistics(sigma, lengths).entropy
    return {"s": _SHARES, "lengths": lengths, "share": entropy / np.log(lengths)}


@entropy_shares.drawing
def draw_entropy_share(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    for colour, s, row in zip(shades(len(data["s"])), data["s"], data["share"], strict=True):
        label = f"s = {s:g}"
        plot_series(axis, data["lengths"], row, label, color=colour)
        limit = axis.axhline(max(1.0 - s / 2.0, 0.0), color=colour, dashes=(4, 2), linewidth=0.8)
        selectable(limit, label)
    axis.set(xscale="log", ylim=(-0.02, 1.0))
    axis.set_xlabel("length $L$")
    axis.set_ylabel(r"$E\,H/\ln L$ at $\sigma^2=s\,\ln L$")
    axis.legend(ncols=3, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    return figure
