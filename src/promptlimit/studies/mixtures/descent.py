"""Claims on gradient descent in discrimination over infinite prompts, from two kinds of starts."""

import functools
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.special import expit, ndtri

from promptlimit._arrays import Array
from promptlimit.reporting import INK, LIMIT, selectable, shades
from promptlimit.studies import Check, Setting, at_least, at_most, control, rejected, share_at_least
from promptlimit.studies.mixtures import STUDY

DIM, RATE = 20, 1e-2
_BAYES_SLOPE = 2.0
_COUNT, _REACH = 80, 8.5
_LIGHT = 1e-12
StartName = Literal["gaussian", "structured"]


class Heads(NamedTuple):
    """Several heads side by side: U_11 [n, d, d], u_12 [n, d], v_21 [n, d], v_22 [n]."""

    query: Array
    label_score: Array
    value: Array
    label_value: Array


class Scores(NamedTuple):
    """Their effective coordinates: w [n, d], b [n], r [n], s [n, d]."""

    slope: Array
    intercept: Array
    gain: Array
    gate: Array


def start(name: StartName, seeds: int, rng: np.random.Generator) -> Heads:
    """Return all entries standard normal, or all zero but v_21."""
    entries = [rng.normal(size=(seeds, *shape)) for shape in ((DIM, DIM), (DIM,), (DIM,), ())]
    if name == "structured":
        entries = [entry if place == 2 else 0.0 * entry for place, entry in enumerate(entries)]
    return Heads(*entries)


def even_start() -> Heads:
    """Return one head with the size of a Gaussian start, and nothing random.

    Its entries are normal quantiles at the multiples of the golden ratio, modulo 1.
    """
    golden = (np.sqrt(5.0) - 1.0) / 2.0
    entries = ndtri(golden * np.arange(1.0, DIM**2 + 2 * DIM + 2) % 1.0)
    query, label_score, value, label_value = np.split(entries, np.cumsum([DIM**2, DIM, DIM]))
    return Heads(query.reshape(1, DIM, DIM), label_score[None], value[None], label_value)


@functools.cache
def bayes_risk() -> float:
    """Return the logistic risk of the Bayes score, 2x₁."""
    g = np.linspace(-_REACH, _REACH, 400)
    mass = np.exp(-0.5 * g**2)
    return float(mass @ np.logaddexp(0.0, -_BAYES_SLOPE * (1.0 + g)) / mass.sum())


def zero_excess() -> float:
    """Return the excess of the score 0."""
    return float(np.log(2.0)) - bayes_risk()


def scores(heads: Heads) -> Scores:
    """Return the effective coordinates, m₁ - m₋₁ = 2e₁."""
    U, u, v, label = heads
    gain = 2.0 * (v[:, 0] + label)
    slope = np.einsum("nij,nj->ni", U, v)
    return Scores(slope, -v[:, 0] - label, gain, 2.0 * (u + U[:, :, 0]))


def moved(heads: Heads, slopes: Scores, rate: float) -> Heads:
    """Return the heads after a step against a gradient in effective coordinates."""
    U, u, v, label = heads
    by_query = slopes.slope[:, :, None] * v[:, None, :]
    by_query[:, :, 0] += 2.0 * slopes.gate
    by_value = np.einsum("nij,ni->nj", U, slopes.slope)
    tied = 2.0 * slopes.gain - slopes.intercept
    by_value[:, 0] += tied
    return Heads(
        U - rate * by_query, u - rate * 2.0 * slopes.gate, v - rate * by_value, label - rate * tied
    )


def batch_slopes(heads: Heads, batch: int, rng: np.random.Generator) -> Scores:
    """Return the gradient over a fresh batch, another one for each head."""
    w, b, r, s = scores(heads)
    y = np.where(rng.random((len(b), batch)) < 0.5, 1.0, -1.0)
    x = rng.normal(size=(len(b), batch, DIM))
    x[:, :, 0] += y
    lines, gates = np.moveaxis(x @ np.stack([w, s], axis=-1), -1, 0)
    gate = expit(gates)
    wrong = -y * expit(-y * (lines + b[:, None] + r[:, None] * gate)) / batch
    bent = wrong * r[:, None] * gate * (1.0 - gate)
    slope, turn = np.moveaxis(np.stack([wrong, bent], axis=1) @ x, 1, 0)
    return Scores(slope, wrong.sum(axis=1), (wrong * gate).sum(axis=1), turn)


def _plane(w: Array, s: Array) -> tuple[Array, Array]:
    """Return nodes [n, 2] of (w'x, s'x) about its mean, and their weights."""
    grid, weights = _normal_grid()
    directions = np.stack([w, s])
    variances, axes = np.linalg.eigh(directions @ directions.T)
    root = axes * np.sqrt(np.maximum(variances, 0.0))
    return grid @ root.T, weights


@functools.cache
def _normal_grid() -> tuple[Array, Array]:
    """Return nodes [n, 2] and weights of the standard normal law of the plane, corners left out."""
    g = np.linspace(-_REACH, _REACH, _COUNT)
    mass = np.exp(-0.5 * g**2)
    grid = np.stack(np.meshgrid(g, g, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = np.outer(mass, mass).ravel()
    kept = weights > _LIGHT
    return grid[kept], weights[kept] / weights[kept].sum()


def excesses(heads: Heads) -> Array:
    """Return the logistic risks less that of Bayes, [n]."""
    risks = []
    for w, b, r, s in zip(*scores(heads), strict=True):
        spread, weights = _plane(w, s)
        losses = [
            np.logaddexp(0.0, -y * (p[:, 0] + b + r * expit(p[:, 1])))
            for y, p in ((y, spread + y * np.array([w[0], s[0]])) for y in (1.0, -1.0))
        ]
        risks.append(0.5 * float(weights @ (losses[0] + losses[1])))
    return np.array(risks) - bayes_risk()


def exact_slopes(heads: Heads) -> Scores:
    """Return the gradient of the risk itself, one head."""
    w, b, r, s = (part[0] for part in scores(heads))
    spread, weights = _plane(w, s)
    by_slope, by_gate, by_intercept, by_gain = np.zeros(DIM), np.zeros(DIM), 0.0, 0.0
    for y in (1.0, -1.0):
        p = spread + y * np.array([w[0], s[0]])
        gate = expit(p[:, 1])
        score = p[:, 0] + b + r * gate
        wrong, bend = -y * expit(-y * score), expit(score) * expit(-score)
        first = r * gate * (1.0 - gate)
        second = first * (1.0 - 2.0 * gate)
        e1, e2, h11, h12, h22, er = 0.5 * (
            weights
            @ np.stack(
                [
                    wrong,
                    wrong * first,
                    bend,
                    bend * first,
                    bend * first**2 + wrong * second,
                    wrong * gate,
                ],
                axis=1,
            )
        )
        by_slope += h11 * w + h12 * s
        by_gate += h12 * w + h22 * s
        by_slope[0] += y * e1
        by_gate[0] += y * e2
        by_intercept, by_gain = by_intercept + e1, by_gain + er
    return Scores(by_slope[None], np.array([by_intercept]), np.array([by_gain]), by_gate[None])


def descend(heads: Heads, batch: int | None, record: Array, rng: np.random.Generator) -> Array:
    """Return excesses after so many steps of descent, [record, n].

    Args:
        heads: where it starts.
        batch: queries a step; None for the exact gradient, of the first head alone.
        record: increasing numbers of steps, from 0 on.
        rng: randomness of the batches.
    """
    done, rows = 0, []
    for steps in record.astype(int).tolist():
        for _ in range(done, steps):
            slopes = exact_slopes(heads) if batch is None else batch_slopes(heads, batch, rng)
            heads = moved(heads, slopes, RATE)
        done = steps
        rows.append(excesses(heads))
    return np.array(rows)


BATCHES = (1, 16, 128)
_FAR = 0.1 * zero_excess()
"""A tenth of the excess of the score 0: starts above it are far from Bayes."""


def _ends(name: StartName, batch: int, steps: int, starts: int, seed: int) -> Array:
    """Return the excesses at the end of descent from random starts."""
    rng = np.random.default_rng([seed, batch, name == "gaussian"])
    return descend(start(name, starts, rng), batch, np.array([steps]), rng)[0]


def _stuck(words: str, excesses: Array) -> Check:
    """Return a check that nine tenths of starts are far from Bayes."""
    count = int(np.sum(excesses >= _FAR))
    return share_at_least(
        f"{words}: starts with an excess above a tenth of that of the score 0",
        count,
        excesses.size,
        0.9,
    )


@STUDY.claim(24, reference="Figure 4", quick=False)
def gaussian_starts(setting: Setting) -> Iterator[Check]:
    r"""From starts with standard normal entries, training is slow and ends far from the Bayes score
    ($d = 20$, means $\pm e_1$, learning rate $10^{-2}$). This depends on the batch size, which the
    preprint does not state: it is true with one query per step, but not with 128 queries and not
    with the exact gradient.
    """
    one = _ends("gaussian", 1, 10_000, 32, setting.seed)
    structured = _ends("structured", 1, 10_000, 32, setting.seed)
    some = _ends("gaussian", 16, 4000, 32, setting.seed)
    many = _ends("gaussian", 128, 3000, 16, setting.seed)
    exact = descend(even_start(), None, np.array([1000.0]), np.random.default_rng(0))[0, 0]
    near = int(np.sum(many < _FAR))
    yield _stuck("batch 1, 10,000 steps", one)
    yield share_at_least(
        "batch 1: pairs in which the Gaussian start has at least 1.5 times the excess of "
        "the structured start",
        int(np.sum(one >= 1.5 * structured)),
        one.size,
        0.75,
    )
    yield share_at_least(
        "pairs in which batch 1 after 10,000 steps has at least 3 times the excess of batch "
        "16 after 4,000 steps (an effect of gradient noise, derived here)",
        int(np.sum(one >= 3.0 * some)),
        one.size,
        0.75,
    )
    yield share_at_least(
        "batch 128, 3,000 steps: starts with an excess below a tenth of that of the score 0",
        near,
        many.size,
        0.9,
    )
    yield rejected(_stuck("batch 128, 3,000 steps", many))
    yield control(
        at_most(
            "excess after 1,000 steps of the exact gradient from an even start, which has no "
            "plateau",
            exact,
            _FAR,
            basis="stated: a tenth of the excess of the score 0",
        )
    )


@STUDY.claim(25, reference="Figure 5", quick=False)
def structured_starts(setting: Setting) -> Iterator[Check]:
    r"""With the blocks of claim 3 at $U_{11} = 0$, $u_{12} = 0$, $v_{22} = 0$ and $v_{21} \sim
    \mathcal{N}(0, I)$, stochastic gradient descent with learning rate $10^{-2}$ finds the Bayes
    score from nine of ten starts ($d = 20$). The preprint does not state batch size, steps and
    seeds; here a batch of 16 leaves at most a tenth of the excess of the score 0, and a batch of
    128 at most a hundredth.
    """
    rng = np.random.default_rng(setting.seed)

    def excesses(batch: int, steps: int, starts: int) -> Array:
        return descend(start("structured", starts, rng), batch, np.array([steps]), rng)[0]

    first = np.abs(excesses(1, 0, 32) - zero_excess()).max()
    still = Heads(*(0.0 * entry for entry in even_start()))
    saddle = descend(still, None, np.array([50.0]), rng)[0, 0]
    noisy = _trained("batch 1, 800 steps", excesses(1, 800, 32), 10)
    yield at_most(
        "excess before training, distance from that of the score 0",
        first,
        1e-9,
        basis=r"$U_{11} = 0$ and $v_{22} = 0$ give the score $v_1(2\sigma(0) - 1) = 0$; two "
        "quadratures to $10^{-12}$",
    )
    yield _trained("batch 16, 4,000 steps", excesses(16, 4000, 32), 10)
    yield _trained("batch 128, 1,500 steps", excesses(128, 1500, 16), 100)
    yield rejected(noisy)
    yield control(
        at_least(
            "excess from a start with $v_{21} = 0$ as well, a saddle",
            saddle,
            0.9 * zero_excess(),
            basis="theory: the gradient is 0 there, so the excess does not change; margin 0.9",
        )
    )


def _trained(name: str, excesses: Array, part: int) -> Check:
    """Return a check that nine tenths of starts have a part of the excess left, at most."""
    count = int(np.sum(excesses <= zero_excess() / part))
    words = f"{name}: starts with at most $1/{part}$ of the excess of the score 0"
    return share_at_least(words, count, excesses.size, 0.9)


def curves(name: StartName, setting: Setting) -> dict[str, np.ndarray]:
    """Return excesses along training, [batch, record, start], and along the exact gradient."""
    steps, seeds = (1000, 2) if setting.quick else (10_000, 3)
    record = np.unique(np.geomspace(1, steps, 25).round())
    runs = []
    for batch in BATCHES:
        heads = start(name, seeds, np.random.default_rng(setting.seed))
        runs.append(descend(heads, batch, record, np.random.default_rng([setting.seed, batch])))
    exact_record = record[record <= (200 if setting.quick else 2000)]
    same = start(name, seeds, np.random.default_rng(setting.seed))
    first = Heads(*(part[:1] for part in same))
    exact = descend(first, None, exact_record, np.random.default_rng(0))[:, 0]
    return {
        "batches": np.array(BATCHES),
        "steps": record,
        "excess": np.stack(runs),
        "exact_steps": exact_record,
        "exact": exact,
    }


@STUDY.figure(
    "Training from Gaussian starts", reference="Figure 4", section="paper", name="gaussian_starts"
)
def gaussian_curves(setting: Setting) -> dict[str, np.ndarray]:
    r"""Excess logistic risk over Bayes when all entries are standard normal at the start: $d = 20$,
    means $\pm e_1$, $\Gamma = I$, $\pi = 1/2$, learning rate $10^{-2}$, infinite prompts. Thin
    lines are runs, thick lines their means. The preprint does not state batch size, steps and
    seeds: shown are three batch sizes, 10,000 steps and three starts; dashed, descent by the exact
    gradient from the first of them, which has no plateau. How hard these starts are depends on the
    batch size: with one query per step the excess stays above 0.05, with 128 it is about a hundred
    times smaller.
    """
    return curves("gaussian", setting)


@STUDY.figure(
    "Training from structured starts",
    reference="Figure 5",
    section="paper",
    name="structured_starts",
)
def structured_curves(setting: Setting) -> dict[str, np.ndarray]:
    r"""Excess logistic risk over Bayes from $U_{11} = 0$, $u_{12} = 0$, $v_{22} = 0$ and $v_{21}
    \sim \mathcal{N}(0, I)$, the starts of Theorem 3.6: $d = 20$, means $\pm e_1$, $\Gamma = I$,
    $\pi = 1/2$, learning rate $10^{-2}$, infinite prompts. Thin lines are runs, thick lines their
    means. The preprint does not state batch size, steps and seeds: shown are three batch sizes,
    10,000 steps and three starts; dashed, descent by the exact gradient from the first of them.
    Each curve levels off at the noise of its batch.
    """
    return curves("structured", setting)


@gaussian_curves.drawing
@structured_curves.drawing
def draw_curves(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = shades(len(data["batches"]))
    for batch, rows, colour in zip(data["batches"], data["excess"], colours, strict=True):
        label = f"batch {batch:g}"
        runs = axis.plot(data["steps"], rows, color=colour, linewidth=0.6, alpha=0.6)
        mean = axis.plot(data["steps"], rows.mean(axis=1), color=colour, label=label)
        selectable([*runs, *mean], label)
    exact = axis.plot(
        data["exact_steps"], data["exact"], color=LIMIT, dashes=(4, 2), label="exact gradient"
    )
    selectable(exact, "exact gradient")
    axis.set(xscale="log", yscale="log")
    axis.set_xlabel("steps of descent")
    axis.set_ylabel("excess risk over Bayes", color=INK)
    axis.legend(fontsize=8)
    return figure
