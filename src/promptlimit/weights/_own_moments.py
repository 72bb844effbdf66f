r"""Moments of up to four softmax weights over Gaussian tokens, with the query as one more token.

The query has weight $p_0$ and score $s_0$, measured from the mean of the others', which are
$\sigma g_l$. With $h_l=g_l-\sigma$, a monomial is a product of the sums over the other tokens

    0  p_0              B  sum p h          Y  sum p (h^2-1)
    S  sum p^2          H  sum p^2 h        Q  sum p^2 h^2        C  sum p^3

written as a word: "0BB" is $p_0B^2$. Multiplied out, it is a sum over the set partitions of its
sums into b blocks of equal indices, and with $c=e^{u+s_0}$ and K the number of its weights,

$$E[p_0^i\prod_f\sum_lp_l^{k_f}P_f(h_l)]=\frac1{(K-1)!}\sum_{\text{partitions}}L(L-1)\cdots(L-b+1)
\int c^ie^{-c}\varphi^{L-b}\prod_{\text{blocks}}a_{k}[P]\,du,$$

where k and P are the sum and the product of a block's powers and polynomials, and
$a_k[P]=E[P(h)x^ke^{-x}]$. By Stein's identity $a_1[h]=-\sigma a_2[1]$ and
$a_1[h^2-1]=\sigma^2(a_3[1]-a_2[1])$, which keeps the digits at large L (docs/finite.md).
"""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.weights._brackets import ScoreTransforms, brackets, score_transforms
from promptlimit.weights._functional import KnownTokens, nodes_of, rule_error
from promptlimit.weights._gaussian_score import score_window

_TOLERANCE = 1e-9
_ROUNDING = 4 * np.finfo(np.float64).eps

_SUMS: dict[str, tuple[int, tuple[float, ...]]] = {
    "B": (1, (0.0, 1.0)),
    "Y": (1, (-1.0, 0.0, 1.0)),
    "S": (2, (1.0,)),
    "H": (2, (0.0, 1.0)),
    "Q": (2, (0.0, 0.0, 1.0)),
    "C": (3, (1.0,)),
}
"""The power of the weights of each sum, and the coefficients of its polynomial in h."""


class OwnMoment(NamedTuple):
    """A mean over prompts and its numerical error, [n] each."""

    value: Array
    error: Array


def own_token_moments(
    monomials: Collection[str], sharpness: float, own_score: float, lengths: Array
) -> dict[str, OwnMoment]:
    r"""Return the means of monomials at $(\sigma, s_0)$ over L other tokens, by name.

    Args:
        monomials: words in the letters above, with at most four weights.
        sharpness: $\sigma$.
        own_score: $s_0$.
        lengths: $L$, [n], finite.

    Raises:
        AccuracyError: the weights do not add up to one within 1e-9.
    """
    own_token = KnownTokens(np.array([own_score]), np.zeros((1, 0)))
    window = score_window(0.0, sharpness, float(lengths.max()), float(lengths.min()))
    u = nodes_of([window, own_token.window()])
    transforms = score_transforms(sharpness, u)
    c = own_token.at(u).x[:, 0]
    terms: dict[str, Mapping[int, Array]] = {"mass": {0: c, 1: transforms.about_sharpness[0, 0]}}
    for word in monomials:
        parts = _integrands(word, transforms, c)
        terms[word] = parts
        terms[f"size of {word}"] = {blocks: np.abs(part) for blocks, part in parts.items()}
    found = brackets(terms, u, transforms.log_phi, lengths, known=c)
    lost = np.abs(found["mass"].mean(axis=0) - 1.0)
    worst = int(np.argmax(lost))
    if not lost[worst] <= _TOLERANCE:
        raise AccuracyError(
            f"the weights must have sum one, got an error of {lost[worst]:.1e} at sharpness "
            f"{sharpness:g}, own score {own_score:g}, length {lengths[worst]:g}."
        )
    moments = {}
    for word in monomials:
        size = found[f"size of {word}"].mean(axis=0)
        error = rule_error(found[word], size) + (lost + _ROUNDING) * size
        moments[word] = OwnMoment(found[word].mean(axis=0), error)
    return moments


def _integrands(word: str, transforms: ScoreTransforms, c: Array) -> dict[int, Array]:
    """Return the integrands of a monomial by their number of blocks."""
    sums = [_SUMS[letter] for letter in word if letter != "0"]
    own = len(word) - len(sums)
    weights = own + sum(power for power, _ in sums)
    total: dict[int, Array] = {}
    for partition in _partitions(len(sums)):
        part = c**own / math.factorial(weights - 1)
        for block in partition:
            part = part * _transform([sums[i] for i in block], transforms)
        total[len(partition)] = total.get(len(partition), 0.0) + part
    return total


def _transform(block: list[tuple[int, tuple[float, ...]]], transforms: ScoreTransforms) -> Array:
    """Return the transform of the product of sums with equal indices."""
    a, sigma = transforms.about_sharpness, transforms.sharpness
    if block == [_SUMS["B"]]:
        return -sigma * a[1, 0]
    if block == [_SUMS["Y"]]:
        return sigma**2 * (a[2, 0] - a[1, 0])
    power = sum(one for one, _ in block)
    product = np.ones(1)
    for _, polynomial in block:
        product = np.convolve(product, polynomial)
    return np.tensordot(product, a[power - 1, : product.size], axes=1)


def _partitions(count: int) -> Iterator[list[list[int]]]:
    """Yield the partitions of the numbers below `count` into blocks."""
    if count == 0:
        yield []
        return
    last = count - 1
    for smaller in _partitions(last):
        for place, block in enumerate(smaller):
            yield [*smaller[:place], [*block, last], *smaller[place + 1 :]]
        yield [*smaller, [last]]
