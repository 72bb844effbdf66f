"""Claim 17: linear attention of any depth stays above Bayes, and what of that is an intercept."""

from collections.abc import Sequence

import numpy as np

from promptlimit.attention import LinearAttention, MultiHead
from promptlimit.measures import Empirical
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.mixtures._denoising import figure_law, least_gaps, limit_excess
from promptlimit.tasks import Denoising, query_points

_POINTS = 4096
_DEPTH = 3


def deep_matrix(rng: np.random.Generator, task: Denoising) -> tuple[np.ndarray, float]:
    """Return the matrix of three layers of linear heads, and how far their outputs are from it.

    A layer moves the query and the tokens of the prompt alike. The distance is relative to the
    largest output.
    """
    dim, (tokens, _, _) = task.token_dim, query_points(task, 64)
    total, off = np.eye(dim), 0.0
    for _ in range(_DEPTH):
        size = np.linalg.norm(tokens.T @ tokens) / len(tokens)
        matrices = rng.normal(size=(2, 2, dim, dim))
        layer = MultiHead([LinearAttention(u / size, v) for u, v in matrices])
        queries = np.concatenate([np.eye(dim), 3.0 * rng.normal(size=(5, dim))])
        outputs = np.stack([np.asarray(layer(Empirical(tokens), z)) for z in queries])
        step = outputs[:dim].T
        off = max(off, float(np.abs(outputs - queries @ step.T).max() / np.abs(outputs).max()))
        total, tokens = step @ total, tokens @ step.T
    return total, off


def decide(setting: Setting) -> Sequence[Check]:
    """Return gaps of linear and affine maps at the law of Figure 2, and without means."""
    rng = np.random.default_rng(setting.seed)
    task = figure_law()
    linear, affine = least_gaps(task)
    clean = (task.means.T * task.weights) @ task.means + task.within_variance * np.eye(2)
    second = clean + task.noise_variance * np.eye(2)
    inverse = np.linalg.inv(second)
    best = LinearAttention(inverse @ clean @ inverse, np.eye(2))
    reached = limit_excess(best, task)
    z, weights, bayes = query_points(task, _POINTS)
    deep, off = deep_matrix(rng, task)
    above = float(weights @ np.sum((z @ deep.T - bayes) ** 2, axis=1)) / linear - 1.0
    centred = Denoising([[0, 0], [0, 0]], [0.5, 0.5], within_variance=1, noise_variance=4)
    return [
        Check(
            "least excess of a linear map over the Bayes denoiser",
            linear,
            ">=",
            1.0,
            basis="stated margin; 1.64 by quadrature",
        ),
        Check(
            "excess of the best single linear head, distance from the least excess of a linear map",
            abs(reached - linear),
            "<=",
            1e-10,
            basis="rounding error: 4,096 nodes of one quadrature; margin $10^4$",
        ),
        Check(
            "three layers of two linear heads: relative distance from a linear map",
            off,
            "<=",
            1e-10,
            basis="rounding error: $10^{-15}$; margin $10^5$",
        ),
        Check(
            "three layers of two linear heads: excess minus the least excess, relative to the "
            "latter",
            above,
            ">=",
            -1e-12,
            basis="theory: no linear map is closer; rounding error",
        ),
        Check(
            "share of the least excess of a linear map that an intercept removes",
            1 - affine / linear,
            ">=",
            0.9,
            basis="the nine tenths of the statement",
        ),
        Check(
            "both means 0: least excess of a linear map",
            least_gaps(centred)[0],
            "<=",
            1e-20,
            role="control",
            basis="theory: 0, since the Bayes denoiser is linear; rounding error, squared",
        ),
    ]


CLAIM = Claim(
    number=17,
    name="linear-stays-above",
    statement="Linear attention of any depth and with any number of heads is linear in the "
    "query and stays a fixed distance above the Bayes denoiser. At the law of Figure 2, nine "
    "tenths of that distance is due to the missing intercept (derived here): the best affine "
    "map, for which a head with uniform weights supplies the intercept, is that much closer.",
    reference="Theorem 4.1",
    decide=decide,
)
