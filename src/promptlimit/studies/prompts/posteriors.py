"""Claims on softmax weights that are posterior probabilities, and on importance weights."""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from promptlimit.lengths import importance_sampling
from promptlimit.measures import Gaussian
from promptlimit.reporting import CONTRAST, FAINT, LIMIT, THIRD, plot_series, shades
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    beyond_errors,
    control_at_least,
    distance_in_errors,
    within_errors,
)
from promptlimit.studies.prompts import STUDY
from promptlimit.tasks import InContextBigram, SingleLocation, bayes_risk, risk


@STUDY.claim(3, reference="tasks.md, section 7")
def induction_sink(setting: Setting) -> Iterator[Check]:
    r"""Let each prompt be a Markov chain of $n$ symbols whose transition rows are drawn from
    Dirichlet($\alpha$), and let an induction head average the symbols that follow earlier
    occurrences of the last symbol (matches). With a sink whose value is the uniform distribution
    and whose weight is $n\alpha$ times that of a match, the head is the Bayes predictor. Tested for
    $n = 2$.
    """
    cases = [(1.0, 8), (0.5, 12)] if setting.quick else [(1.0, 8), (0.5, 12), (2.0, 30)]
    best = []
    for alpha, length in cases:
        task = InContextBigram(2, alpha)
        # The risk is flat at its minimum, so the error of x is the square root of rounding error.
        found = minimize_scalar(
            lambda x, task=task, length=length: float(
                risk(task.head(sink=math.exp(x)), task, length).value
            ),
            bracket=(math.log(task.bayes_sink) - 0.5, math.log(task.bayes_sink) + 0.4),
            tol=1e-9,
        )
        best.append(abs(math.exp(found.x) / task.bayes_sink - 1.0))
    task = InContextBigram(2, 1.0)
    prompts = 40_000
    errors = _simulated_errors(8, prompts, np.random.default_rng(setting.seed))
    exact, half = (float(risk(task.head(sink=sink), task, 8).mse) for sink in (2.0, 0.5))
    yield at_most(
        rf"relative distance of the best sink from $n\alpha$, {len(cases)} cases",
        max(best),
        1e-5,
        basis="square root of the rounding error of the risk, $10^{-7}$; margin 100",
    )
    yield within_errors(
        "$n = 2$: exact risk with this sink compared with the error of the posterior mean over "
        f"{prompts:,} simulated prompts of 8 symbols",
        distance_in_errors(errors, exact),
    )
    yield beyond_errors(
        "the same errors compared with the risk for a sink of a quarter of the weight",
        distance_in_errors(errors, half),
    )
    yield control_at_least(
        "a sink of a quarter of the weight: relative excess of the risk",
        half / exact - 1.0,
        0.05,
        basis="exact numbers; stated margin",
    )


def _simulated_errors(length: int, prompts: int, rng: np.random.Generator) -> np.ndarray:
    """Return the squared errors of the posterior mean in simulated prompts of two symbols.

    Transition rows are uniform (alpha = 1). The posterior mean predicts the law of the next symbol.
    """
    rows = rng.uniform(size=(prompts, 2))  # the probability of symbol 0 after each symbol
    state = rng.integers(0, 2, size=prompts)
    counts = np.zeros((prompts, 2, 2))
    places = np.arange(prompts)
    for _ in range(length - 1):
        after = (rng.uniform(size=prompts) >= rows[places, state]).astype(np.int64)
        counts[places, state, after] += 1.0
        state = after
    seen = counts[places, state]
    mean = (seen[:, 0] + 1.0) / (seen.sum(axis=1) + 2.0)
    return 2.0 * (mean - rows[places, state]) ** 2


@STUDY.claim(7, reference="tasks.md, section 7")
def nishimori(setting: Setting) -> Iterator[Check]:
    r"""In single-location regression of signal $\nu$, the softmax weights $p_l$ at inverse
    temperature $\beta = \sqrt\nu$ are posterior probabilities of the place of the informative
    token. The mean weight of the informative token is therefore $\mathbb{E}\sum_lp_l^2$, and the
    Bayes risk, as a mean squared error, is one minus this weight.
    """
    cells = [(4.0, 30), (9.0, 1000), (25.0, 10**6)]
    apart, warm = [], []
    for signal, length in cells:
        task, beta = SingleLocation(signal), math.sqrt(signal)
        bayes = float(bayes_risk(task, length).mse)
        apart.append(abs(float(risk(task.head(beta), task, length).mse) / bayes - 1.0))
        warm.append(float(risk(task.head(1.5 * beta), task, length).mse) / bayes - 1.0)
    prompts, length = (4000 if setting.quick else 20_000), 30
    rng = np.random.default_rng(setting.seed)
    scores = rng.normal(size=(prompts, length))
    scores[:, 0] += 2.0
    weights = softmax(2.0 * scores, axis=1)
    difference = weights[:, 0] - (weights**2).sum(axis=1)
    yield at_most(
        r"largest relative difference between the mean squared error at $\beta = \sqrt\nu$ and the "
        rf"Bayes risk $1 - \mathbb{{E}}p_0$, where $p_0$ is the weight of the informative token, "
        f"{len(cells)} cases",
        max(apart),
        1e-9,
        basis="numerical error of two integrals",
    )
    yield within_errors(
        rf"$\mathbb{{E}}p_0 - \mathbb{{E}}\sum_lp_l^2$ over {prompts:,} simulated prompts",
        distance_in_errors(difference, 0.0),
    )
    yield control_at_least(
        r"$\beta = 1.5\sqrt\nu$: smallest relative excess over the Bayes risk",
        min(warm),
        0.01,
        basis="exact numbers; stated margin",
    )


@STUDY.claim(9, reference="importance.md, Weights with infinite variance")
def importance_rates(setting: Setting) -> Iterator[Check]:
    r"""Let $p_i$ be the weights of self-normalised importance sampling with $n$ draws from
    $\mathcal{N}(0, s^2)$ for the target $\mathcal{N}(0, 1)$. For $s^2 > 1/2$,
    $n\,\mathbb{E}\sum_ip_i^2$ tends to $s^2/\sqrt{2s^2 - 1}$. For $s^2 \le 1/2$ the importance
    ratios have infinite variance, and $\mathbb{E}\sum_ip_i^2$ falls like $n^{-\kappa}$ with $\kappa
    = 1/(1 - s^2) - 1$, up to logarithms. Tested at $s = 0.6$, 0.8 and 1.5.
    """
    wide = [(s, _sampled(s, [1e8])) for s in (0.8, 1.5)]
    limits = [abs(1e8 / found.effective_samples[0] / _constant(s) - 1.0) for s, found in wide]
    narrow = _sampled(0.6, [1e9, 2e9, 1e21, 2e21])
    logs = np.log2(narrow.effective_samples)
    slopes = [float(logs[1] - logs[0]), float(logs[3] - logs[2])]
    kappa = 1.0 / 0.64 - 1.0
    yield at_most(
        r"$n = 10^8$: largest relative difference from $s^2/\sqrt{2s^2-1}$, $s = 0.8$ and $1.5$",
        max(limits),
        1e-2,
        basis="at $s = 0.8$ the weights have moments below 2.78, so that the correction is of "
        "order $n^{-0.78}$ up to logarithms: $10^{-6}$; stated margin",
    )
    yield at_most(
        r"$s = 0.6$: distance of the local exponent at $n = 10^{21}$ from $\kappa = 0.5625$",
        abs(slopes[1] - kappa),
        1.0 / math.log(1e21),
        basis=r"a factor $\log n$ changes the local exponent by $1/\log n$ at most",
    )
    yield at_most(
        r"$s = 0.6$: distance of the local exponent from $\kappa$ at $n = 10^{21}$ divided by that "
        "at $n = 10^9$",
        abs(slopes[1] - kappa) / abs(slopes[0] - kappa),
        0.75,
        basis=r"distances fall like $1/\log n$: a ratio of 9/21; stated margin",
    )
    yield control_at_least(
        r"$s = 0.6$: distance of the local exponent at $n = 10^{21}$ from 1",
        1.0 - slopes[1],
        0.3,
        basis=r"$1 - \kappa = 0.4375$, less $1/\log n$; stated margin",
    )


def _sampled(deviation: float, draws: list[float]):
    proposal = Gaussian([0.0], [[deviation**2]])
    return importance_sampling(proposal, Gaussian([0.0], [[1.0]]), draws)


def _constant(deviation: float) -> float:
    return deviation**2 / math.sqrt(2.0 * deviation**2 - 1.0)


# ---------------------------------------------------------------- figures


@STUDY.figure("An induction head and the Bayes predictor", reference="tasks.md, section 7")
def induction_head(setting: Setting) -> dict[str, np.ndarray]:
    r"""Mean squared distance between the prediction of an induction head and the law of the next
    symbol, for chains of two symbols whose transition rows are drawn uniformly for each prompt.
    With a sink of twice the weight of a match, the head is the Bayes predictor. With another sink
    its error is larger at short prompts. At a finite inverse temperature $\beta$ the head also
    attends to symbols that do not follow a match, and its error is larger at long prompts.
    """
    task = InContextBigram(2, 1.0)
    lengths = np.unique(
        np.geomspace(3, 24 if setting.quick else 120, 5 if setting.quick else 14).round()
    )
    return {
        "lengths": lengths,
        "bayes": np.asarray(bayes_risk(task, lengths).mse),
        "small_sink": np.asarray(risk(task.head(sink=0.1), task, lengths).mse),
        "soft": np.asarray(risk(task.head(2.0), task, lengths).mse),
    }


@induction_head.drawing
def draw_induction_head(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    lines = {
        "soft": ("β = 2, no sink", CONTRAST),
        "small_sink": ("β infinite, sink 0.1", THIRD),
        "bayes": ("β infinite, sink 2: Bayes", LIMIT),
    }
    for name, (label, colour) in lines.items():
        plot_series(axis, data["lengths"], data[name], label, color=colour)
    axis.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt")
    axis.set_ylabel("mean squared error")
    axis.legend()
    return figure


@STUDY.figure(
    "Effective sample size against dimension", reference="importance.md, ESS against dimension"
)
def effective_samples(setting: Setting) -> dict[str, np.ndarray]:
    r"""Effective sample size of $n$ particles against the dimension $d$. The proposal is the prior
    $\mathcal{N}(0, I_d)$. The target is the posterior after an observation of each coordinate with
    noise variance 1, one standard deviation from its mean. Solid lines show $1/\mathbb{E}S_2$ and
    dashed lines $\mathbb{E}(1/S_2)$, both exact, where $S_2$ is the sum of squared weights. Dotted:
    $n/(1 + \chi^2)$, the formula for large $n$, where $\chi^2$ is the divergence of the target from
    the proposal.
    """
    dims = np.array([1, 4, 10] if setting.quick else [1, 2, 4, 7, 10, 15, 20, 30, 40])
    draws = np.array([100.0, 1e4] if setting.quick else [100.0, 1e4, 1e6])
    found = []
    for dim in dims.tolist():
        posterior = Gaussian(np.full(dim, math.sqrt(0.5)), 0.5 * np.eye(dim))
        prior = Gaussian(np.zeros(dim), np.eye(dim))
        found.append(importance_sampling(prior, posterior, draws, functions=None))
    # In one coordinate the weight w of N(m, 1/2) against N(0, 1) has the second moment
    # (2/sqrt 3) e^{2 m^2 / 3}, and m^2 = 1/2.
    growth = 2.0 / math.sqrt(3.0) * math.exp(1.0 / 3.0)
    return {
        "dims": dims,
        "draws": draws,
        "inverse": np.stack([one.effective_samples for one in found], axis=1),
        "mean": np.stack([one.mean_effective_samples for one in found], axis=1),
        "formula": draws[:, None] / growth ** dims[None, :],
    }


@effective_samples.drawing
def draw_effective_samples(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    rows = zip(
        shades(len(data["draws"])),
        data["draws"],
        data["inverse"],
        data["mean"],
        data["formula"],
        strict=True,
    )
    for colour, draws, inverse, mean, formula in rows:
        label = f"$n = 10^{{{math.log10(draws):.0f}}}$"
        plot_series(axis, data["dims"], inverse, label, color=colour)
        axis.plot(data["dims"], mean, color=colour, dashes=(4, 2), linewidth=0.9)
        axis.plot(data["dims"], formula, color=colour, dashes=(1, 2), linewidth=0.9)
    axis.axhline(1.0, color=FAINT, linewidth=0.9)
    axis.set(yscale="log", xlabel="dimension", ylabel="effective sample size", ylim=(0.5, None))
    axis.legend()
    return figure
