r"""Gradient descent at $L=\infty$ in the law of Figures 4 and 5: d = 20, m = ±e₁, Γ = I, π = 1/2.

Stochastic: each step draws a batch of queries with their labels. Exact: the gradient of the risk,
which is a double integral in any dimension, by Price's theorem.
"""

import functools
from typing import Literal, NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from promptlimit._arrays import Array

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
