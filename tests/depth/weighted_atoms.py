"""Stacks on weighted atoms in plain NumPy, with complex weights: an oracle for every expansion.

A prompt's law is replaced by atoms of a Gauss-Hermite rule. One atom gets more weight, and the
output is differentiated in it on a complex circle: its first derivative is the influence of a
token there, and half its second, averaged, is the bias to order 1/L. No formula is shared with the
library.
"""

import itertools

import numpy as np


def atoms(mean, cov, nodes):
    """Return the points [n, d] and weights [n] of a tensor rule for N(mean, cov)."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    grid = np.array(list(itertools.product(x, repeat=len(mean))))
    weights = np.array(list(itertools.product(w / w.sum(), repeat=len(mean)))).prod(axis=1)
    return mean + grid @ np.linalg.cholesky(cov).T, weights


def outputs(layers, points, weights, query):
    """Return the output [p, e] for weights [p, n], layers of (residual, [(U, V), ...])."""
    tokens = np.broadcast_to(points, (len(weights), *points.shape)).astype(weights.dtype)
    rows = np.concatenate(
        [tokens, np.broadcast_to(query, (len(weights), 1, len(query)))], axis=1
    ).astype(weights.dtype)
    for residual, heads in layers:
        tokens = rows[:, :-1]
        images = rows @ residual.T
        for key_query, value in heads:
            scores = np.exp(rows @ key_query.T @ np.swapaxes(tokens, 1, 2)) * weights[:, None]
            images = images + scores @ tokens @ value.T / scores.sum(axis=2, keepdims=True)
        rows = images
    return rows[:, -1]


def influences(layers, points, weights, query, turns=8):
    """Return the output [e], the influence of every atom [n, e], and half its second derivative.

    Far atoms have poles near: the circle of an atom shrinks with its weight.
    """
    circle = 0.02 * np.exp(2j * np.pi * np.arange(turns) / turns)
    radii = 0.02 * weights[:, None] ** 0.6
    values = []
    for i in range(len(points)):
        steps = circle * weights[i] ** 0.6
        moved = (1.0 - steps)[:, None] * weights
        moved[:, i] += steps
        values.append(outputs(layers, points, moved, query))
    series = np.fft.fft(np.stack(values, axis=1), axis=0) / turns
    return series[0, 0].real, series[1].real / radii, series[2].real / radii**2
