"""Compute mixture_reference.json: prompt moments of mixtures in 60-digit arithmetic.

Everything is the textbook formula, uncentred and without Stein's identity: raw moments
E T_L, E T_L T_L' and E sum p^2 from E[z^j e^{kx} exp(-e^x)], then subtraction at the end. Both
integrals are trapezoidal sums of step 0.08, whose error is near exp(-pi^2 / 0.08) = 3e-54.

Run: python tests/finite/mixture_reference.py   (takes some minutes)
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from mpmath import mp, mpf

STEP = mpf("0.08")
DIGITS = 25

MIXTURE: dict[str, Any] = {
    "weights": [0.25, 0.625, 0.125],
    "means": [[0.5, -1.0], [-0.75, 0.25], [1.5, 2.0]],
    "covs": [[[1.0, 0.5], [0.5, 0.75]], [[0.0, 0.0], [0.0, 0.0]], [[0.25, -0.25], [-0.25, 0.25]]],
}
CASES: list[dict[str, Any]] = [
    {"tilt": [0.5, 0.25], "lengths": [2, 7, 1000], "query": None},
    {"tilt": [1.5, -0.5], "lengths": [2, 30, 1e6], "query": None},
    {"tilt": [1.5, -0.5], "lengths": [1, 30, 1e6], "query": [1.0, -2.0]},
    {"tilt": [5.0, 3.0], "lengths": [3, 1e4, 1e12], "query": None},
    {"tilt": [5.0, 3.0], "lengths": [3, 1e4, 1e12], "query": [0.5, 0.25]},
]


def dot(a, b):
    return sum((x * y for x, y in zip(a, b, strict=True)), mpf(0))


def kernel(x):
    power = mp.exp(x)
    phi = mp.exp(-power)
    return phi, power * phi, power * power * phi


def atom_averages(grid, score):
    """Return phi, a10, a11, a20, a21, a22 at each u for a component without spread."""
    rows = [kernel(u + score) for u in grid]
    return [(phi, a1, mpf(0), a2, mpf(0), mpf(0)) for phi, a1, a2 in rows]


def narrow_averages(grid, score, sigma):
    """Return the same with g-moments by a sum over g of its own step."""
    step = mpf("0.15")
    g = [k * step for k in range(-100, 101)]
    weight = [step / mp.sqrt(2 * mp.pi) * mp.exp(-(x**2) / 2) for x in g]
    once = [w * x for w, x in zip(weight, g, strict=True)]
    twice = [w * x for w, x in zip(once, g, strict=True)]
    rows = []
    for u in grid:
        line = [kernel(u + score + sigma * x) for x in g]
        phi, first, second = (list(column) for column in zip(*line, strict=True))
        pairs = [(phi, weight), (first, weight), (first, once)]
        pairs += [(second, weight), (second, once), (second, twice)]
        rows.append(tuple(mp.fdot(*pair) for pair in pairs))
    return rows


def spread_averages(grid, score, sigma):
    """Return the same where the step of u serves for g: each kernel is evaluated once."""
    if STEP / sigma > mpf("0.15"):
        return narrow_averages(grid, score, sigma)
    low, high = int(-15 * sigma / STEP), int((15 + 2 * sigma) * sigma / STEP)
    offsets = range(low, high + 1)
    g = [k * STEP / sigma for k in offsets]
    weight = [STEP / sigma / mp.sqrt(2 * mp.pi) * mp.exp(-(x**2) / 2) for x in g]
    once = [w * x for w, x in zip(weight, g, strict=True)]
    twice = [w * x for w, x in zip(once, g, strict=True)]
    line = [kernel(grid[0] + score + k * STEP) for k in range(low, high + len(grid))]
    phis, firsts, seconds = (list(column) for column in zip(*line, strict=True))
    n = len(g)
    return [
        (
            mp.fdot(phis[j : j + n], weight),
            mp.fdot(firsts[j : j + n], weight),
            mp.fdot(firsts[j : j + n], once),
            mp.fdot(seconds[j : j + n], weight),
            mp.fdot(seconds[j : j + n], once),
            mp.fdot(seconds[j : j + n], twice),
        )
        for j in range(len(grid))
    ]


def transforms(case, grid):
    """Return phi, E[a1], E[z a1], E[a2], E[zz' a2] of the mixture at each u, and the limit."""
    tilt = [mpf(x) for x in case["tilt"]]
    total = [[mpf(0)] * 9 for _ in grid]
    normaliser, limit = mpf(0), [mpf(0), mpf(0)]
    for weight, mean, cov in zip(*(MIXTURE[k] for k in ("weights", "means", "covs")), strict=True):
        m = [mpf(x) for x in mean]
        pull = [dot([mpf(x) for x in row], tilt) for row in cov]
        score, variance = dot(m, tilt), dot(pull, tilt)
        sigma = mp.sqrt(variance)
        along = [x / sigma if sigma else mpf(0) for x in pull]
        table = spread_averages(grid, score, sigma) if sigma else atom_averages(grid, score)
        tilted = weight * mp.exp(score + variance / 2)
        normaliser += tilted
        limit = [t + tilted * (a + b) for t, a, b in zip(limit, m, pull, strict=True)]
        for row, (phi, a10, a11, a20, a21, a22) in zip(total, table, strict=True):
            terms = [phi, a10, *(m[i] * a10 + along[i] * a11 for i in (0, 1)), a20]
            for i, j in ((0, 0), (0, 1), (1, 1)):
                residual = mpf(cov[i][j]) - along[i] * along[j]
                mixed = m[i] * along[j] + along[i] * m[j]
                terms.append(
                    (m[i] * m[j] + residual) * a20 + mixed * a21 + along[i] * along[j] * a22
                )
            for k, term in enumerate(terms):
                row[k] += weight * term
    return total, [x / normaliser for x in limit]


def moments(case, length, grid, table, limit):
    """Return the raw mean, second moment about the limit, and participation."""
    count = mpf(length)
    query = case["query"]
    mass = participation = mpf(0)
    mean, raw = [mpf(0)] * 2, [mpf(0)] * 3
    for u, (phi, a1, v0, v1, a2, *square) in zip(grid, table, strict=True):
        if phi == 0:
            continue
        c = mpf(0) if query is None else mp.exp(u + dot(map(mpf, query), map(mpf, case["tilt"])))
        left = mp.exp(-c) * STEP
        one = count * phi ** (count - 1) * left
        two = count * (count - 1) * phi ** (count - 2) * left if count > 1 else mpf(0)
        own = phi**count * left * c
        q = [mpf(0)] * 2 if query is None else [mpf(x) for x in query]
        mass += one * a1 + own
        participation += one * a2 + own * c
        mean = [m + one * v + own * x for m, v, x in zip(mean, (v0, v1), q, strict=True)]
        for k, (i, j) in enumerate(((0, 0), (0, 1), (1, 1))):
            v = (v0, v1)
            raw[k] += one * square[k] + two * v[i] * v[j] + own * c * q[i] * q[j]
            raw[k] += one * c * (q[i] * v[j] + v[i] * q[j])
    assert abs(mass - 1) < mpf(10) ** -35, mass
    second = [
        raw[k] - limit[i] * mean[j] - mean[i] * limit[j] + limit[i] * limit[j]
        for k, (i, j) in enumerate(((0, 0), (0, 1), (1, 1)))
    ]
    bias = [m - t for m, t in zip(mean, limit, strict=True)]
    return {"length": length, "bias": bias, "second": second, "participation": [participation]}


def printed(value):
    return [mp.nstr(x, DIGITS) for x in value] if isinstance(value, list) else value


def reference() -> list[dict[str, Any]]:
    mp.dps = 60
    grid = [STEP * k for k in range(int(mpf(-200) / STEP), int(mpf(120) / STEP))]
    tables = {}
    results = []
    for case in CASES:
        tilt = tuple(case["tilt"])
        if tilt not in tables:
            tables[tilt] = transforms(case, grid)
        table, limit = tables[tilt]
        rows = [moments(case, length, grid, table, limit) for length in case["lengths"]]
        rows = [{key: printed(value) for key, value in row.items()} for row in rows]
        results.append({**MIXTURE, **case, "limit": printed(limit), "rows": rows})
    return results


if __name__ == "__main__":
    target = pathlib.Path(__file__).with_suffix(".json")
    target.write_text(json.dumps(reference(), indent=1) + "\n")
