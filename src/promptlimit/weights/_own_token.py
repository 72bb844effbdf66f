r"""Moments of up to four softmax weights over Gaussian tokens, with or without the query.

The L tokens have scores $\sigma g_l$ with independent standard normal $g_l$, and weights $p_l$. A
query inside the prompt has the score $s_0$ and the weight $p_0$. A moment is the mean of a product
of sums over tokens. Its name is a word in the letters of `monomial` (`_brackets`), such as "0BB"
for $E\,p_0B^2$ with $B=\sum_lp_l(g_l-\sigma)$.
"""

import dataclasses
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.weights._brackets import (
    HIGHEST,
    Integrands,
    brackets,
    monomial,
    score_transforms,
    sizes,
)
from promptlimit.weights._functional import KnownTokens, nodes_of, rule_error
from promptlimit.weights._gaussian_score import score_window

_TOLERANCE = 1e-9
_ROUNDING = 4 * np.finfo(np.float64).eps

_SMALLEST = 1e-6
"""The smallest sharpness. It replaces smaller values."""


class WeightMoment(NamedTuple):
    """A mean over prompts and its numerical error, [n] each."""

    value: Array
    error: Array


def weight_moments(
    words: Collection[str],
    sharpness: float,
    lengths: Array,
    own_score: float | None = None,
    highest: tuple[int, int] = HIGHEST,
) -> dict[str, WeightMoment]:
    r"""Return the mean over prompts of each word in `words`.

    Args:
        words: products of sums over tokens, in the letters of `monomial`.
        sharpness: $\sigma$, positive.
        lengths: $L$, [n], finite.
        own_score: the score $s_0$ of the query; None if the prompt does not contain the query.
        highest: the largest k and j of the transforms $a_{k,j}$ (`ScoreTransforms`) that the words
            require.

    Raises:
        AccuracyError: the weights do not add up to one within 1e-9.
    """
    windows = [score_window(0.0, sharpness, float(lengths.max()), float(lengths.min()))]
    query = None
    if own_score is not None:
        query = KnownTokens(np.array([own_score]), np.zeros((1, 0)))
        windows.append(query.window())
    u = nodes_of(windows)
    c = np.zeros_like(u) if query is None else query.exponentials(u)[:, 0]
    transforms = score_transforms(sharpness, u, highest)
    terms: dict[str, Integrands] = {"mass": {0: c, 1: transforms.about_sharpness[0, 0]}}
    for word in words:
        terms[word] = monomial(word, transforms, c)
        terms[f"size of {word}"] = sizes(terms[word])
    found = brackets(terms, u, transforms.log_phi, lengths, known=c)
    mass_error = np.abs(found["mass"].mean(axis=0) - 1.0)
    worst = int(np.argmax(mass_error))
    if not mass_error[worst] <= _TOLERANCE:
        raise AccuracyError(
            f"the weights must have sum one, got an error of {mass_error[worst]:.1e} at sharpness "
            f"{sharpness:g}, score of the query {own_score}, length {lengths[worst]:g}."
        )
    moments = {}
    for word in words:
        size = found[f"size of {word}"].mean(axis=0)
        error = rule_error(found[word], size) + (mass_error + _ROUNDING) * size
        moments[word] = WeightMoment(found[word].mean(axis=0), error)
    return moments


@dataclasses.dataclass(frozen=True)
class OwnTokenStatistics:
    r"""Means over prompts that contain the query, [n] each. Sums over l exclude the query.

    Attributes:
        own: $E\,p_0$.
        own_square: $E\,p_0^2$.
        participation: $E\sum_lp_l^2$.
        score_error: $E(\sum_lp_l(g_l-\sigma))^2$.
        coupling: $E\,p_0\sum_lp_l(g_l-\sigma)$.
    """

    own: Array
    own_square: Array
    participation: Array
    score_error: Array
    coupling: Array


def own_token_statistics(sharpness: Array, own_score: Array, length: float) -> OwnTokenStatistics:
    r"""Return the statistics at $(\sigma,s_0)$, [n] each, for prompts of L tokens and the query.

    L may be zero. The bias of a stack needs the statistics at about a thousand points, for which
    `prompt_integrals` would take four to six times as long.
    """
    if length == 0.0:  # the query has all the weight
        one, none = np.ones(sharpness.size), np.zeros(sharpness.size)
        return OwnTokenStatistics(one, one, none, none, none)
    words, lengths = ("0", "00", "S", "BB", "0B"), np.array([length])
    rows = []
    for sigma, own in zip(sharpness.tolist(), own_score.tolist(), strict=True):
        found = weight_moments(words, max(sigma, _SMALLEST), lengths, own, (2, 2))
        rows.append([found[word].value[0] for word in words])
    return OwnTokenStatistics(*np.array(rows).T)
