r"""Moments of softmax weights as brackets: integrals of products of transforms of one score.

The L tokens of a prompt have scores $\sigma g_l$ with independent standard normal $g_l$, and the
softmax weights $p_l$. Consider a product of sums over tokens that contains K weights. Its mean is a
sum of terms $[f]_b/(K-1)!$, one for each pattern of equal indices in the product. Here b is the
number of distinct tokens in the pattern, and f is a product of b transforms. The bracket $[f]_b$ is
an integral (`brackets`; docs/finite.md, section 2). `Integrands` map each b to the sum of
$f/(K-1)!$ over the patterns with b tokens.

Sums over tokens are $S_k=\sum p_l^k$, $A=\sum p_lg_l$, $V=\sum p_l(g_l-A)^2$ and $m=V-1$. The
transforms $a_{k,j}$ and $c_{k,j}$ are defined in `ScoreTransforms`.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping

import numpy as np

from promptlimit._arrays import Array
from promptlimit.weights._gaussian_score import GaussianScore, blocked_product

Integrands = Mapping[int, Array]

HIGHEST = (4, 4)
"""The largest k and the largest j of the transforms."""

_CENTRED_ABOVE = 4.0
"""The sharpness above which the centre of `score_transforms` depends on u."""

_CENTRED = tuple((k, j) for k, degree in ((1, 2), (2, 4), (3, 2)) for j in range(degree + 1))
"""The indices (k, j) of the $c_{k,j}$ that statistics need."""


@dataclasses.dataclass(frozen=True)
class ScoreTransforms:
    r"""Transforms of one score $\sigma g$ at the nodes u, with $x=e^{\sigma g+u}$.

    Attributes:
        sharpness: $\sigma$.
        log_phi: $\log\varphi$ with $\varphi=E\,e^{-x}$, to full relative precision, [u].
        about_sharpness: $a_{k,j}=E[(g-\sigma)^jx^ke^{-x}]$ at `[k - 1, j]`, [k, j, u].
        about_centre: $c_{k,j}=E[(g-c)^jx^ke^{-x}]$ at `[k - 1, j]`, [k, j, u], with the centre c(u)
            of `score_transforms`. Entries that no statistic needs may be NaN.
    """

    sharpness: float
    log_phi: Array
    about_sharpness: Array
    about_centre: Array


def score_transforms(
    sharpness: float, u: Array, highest: tuple[int, int] = HIGHEST
) -> ScoreTransforms:
    r"""Return $\varphi$, $a_{k,j}$ and $c_{k,j}$ at evenly spaced u.

    Formulas in $c_{k,j}$ are valid for any centre c. They lose no digits if c is near the g that
    dominate the means. Therefore $c=-u/\sigma$ if $\sigma>4$ and $u>-\sigma^2$, else $c=\sigma$.

    Args:
        sharpness: $\sigma > 0$.
        u: the nodes, [u].
        highest: the largest k and j. Below `HIGHEST`, $c=\sigma$ at all u.
    """
    score = GaussianScore(0.0, sharpness, u)
    moments = score.moments(tuple(range(1, highest[0] + 1)), highest[1], sharpness)
    centred = moments
    first = int(np.searchsorted(u, -(sharpness**2), side="right"))
    if sharpness > _CENTRED_ABOVE and highest == HIGHEST and first < u.size:
        first = min(first, u.size - 2)  # `GaussianScore` needs two nodes
        centred = moments.copy()
        centred[..., first:] = np.nan
        powers, degrees = np.transpose(_CENTRED)
        near = GaussianScore(0.0, sharpness, u[first:]).log_moments(_CENTRED)
        centred[powers - 1, degrees, first:] = near / sharpness ** degrees[:, None]
    return ScoreTransforms(sharpness, score.log_phi, moments, centred)


def brackets(
    quantities: Mapping[str, Integrands],
    u: Array,
    log_phi: Array,
    lengths: Array,
    *,
    known: Array | float = 0.0,
) -> dict[str, Array]:
    r"""Return sums of brackets $[f]_b=L(L-1)\cdots(L-b+1)\int f\varphi^{L-b}e^{-c}du$ by name.

    Args:
        quantities: the integrands $\{b: f\}$ of each quantity by name, each f of shape [..., u].
        u: evenly spaced nodes, [u].
        log_phi: $\log\varphi$, [u].
        lengths: L, [n].
        known: c, the sum of $e^{s+u}$ over the scores s of the known tokens, [u].

    Returns:
        For each name, the sum of brackets by the even nodes and by the odd nodes, [..., 2, n].
    """
    total: dict[str, Array] = {}
    step = (u[-1] - u[0]) / (u.size - 1)
    factor = 2.0 * step * np.ones_like(lengths)
    for blocks in range(5):
        factor = factor * np.maximum(lengths - (blocks - 1), 0.0) if blocks else factor
        found = {name: each[blocks] for name, each in quantities.items() if blocks in each}
        if not found:
            continue
        exponent = np.maximum(lengths - blocks, 0.0) * log_phi[:, None]
        weights = factor * np.exp(exponent - np.reshape(known, (-1, 1)))
        rows = np.concatenate([f.reshape(-1, u.size) for f in found.values()])
        rules = [blocked_product(rows[:, rule::2], weights[rule::2]) for rule in (0, 1)]
        ends = np.cumsum([f.size // u.size for f in found.values()])
        for (name, f), both in zip(
            found.items(), np.split(np.stack(rules, axis=1), ends[:-1]), strict=True
        ):
            total[name] = total.get(name, 0.0) + both.reshape(*f.shape[:-1], 2, lengths.size)
    return {name: total[name] for name in quantities}


class _Indexed:
    """Transforms by their mathematical indices: `a[2, 0]` is $a_{2,0}$."""

    def __init__(self, table: Array):
        self._table = table

    def __getitem__(self, index: tuple[int, int]) -> Array:
        power, moment = index
        return self._table[power - 1, moment]


# ---------------------------------------------------------------- monomials


_SUMS: dict[str, tuple[int, tuple[float, ...]]] = {
    "B": (1, (0.0, 1.0)),
    "Y": (1, (-1.0, 0.0, 1.0)),
    "S": (2, (1.0,)),
    "H": (2, (0.0, 1.0)),
    "Q": (2, (0.0, 0.0, 1.0)),
    "C": (3, (1.0,)),
}
"""For each letter of `monomial`: the power of the weights and the coefficients of P(h)."""


def monomial(word: str, transforms: ScoreTransforms, own: Array | float = 1.0) -> Integrands:
    r"""Return the integrands of the mean of a product of sums over tokens.

    A product is written as a word. For example, "0BB" is $p_0B^2$. With $h_l=g_l-\sigma$ and $p_0$
    the weight of a known token of score $s_0$, the letters are

        0  p_0              B  sum p h          Y  sum p (h^2-1)
        S  sum p^2          H  sum p^2 h        Q  sum p^2 h^2        C  sum p^3

    The sum of a letter f has the form $\sum_lp_l^{k_f}P_f(h_l)$ with a power $k_f$ and a polynomial
    $P_f$. A pattern divides the sums of the word into b blocks. Sums in one block have the same
    index l, and different blocks have different indices. With $c=e^{u+s_0}$, K the number of
    weights in the word and i the number of factors $p_0$,

    $$E[p_0^i\prod_f\sum_lp_l^{k_f}P_f(h_l)]=\frac1{(K-1)!}\sum_{\text{patterns}}
    \Big[c^i\prod_{\text{blocks}}a_k[P]\Big]_b,\qquad a_k[P]=E[P(h)x^ke^{-x}],$$

    where k is the sum of the powers in a block and P the product of its polynomials.

    Args:
        word: a word with at most four weights.
        transforms: the transforms of one score.
        own: c, [u].
    """
    letters = "".join(sorted(word.replace("0", "")))
    owns = len(word) - len(letters)
    weights = owns + sum(_SUMS[letter][0] for letter in letters)
    scale = own**owns / math.factorial(weights - 1)
    total: dict[int, Array] = {}
    for blocks, count in _patterns(letters).items():
        product = np.asarray(count * scale)
        for block in blocks:
            product = product * _block(block, transforms)
        total[len(blocks)] = total.get(len(blocks), 0.0) + product
    return total


@functools.cache
def _patterns(letters: str) -> dict[tuple[str, ...], int]:
    """Return the number of patterns of `monomial`, by the letters of their blocks."""
    patterns: dict[tuple[str, ...], int] = {(): 1}
    for letter in letters:
        longer: collections.Counter[tuple[str, ...]] = collections.Counter()
        for blocks, count in patterns.items():
            longer[tuple(sorted((*blocks, letter)))] += count
            for place, block in enumerate(blocks):
                joined = (*blocks[:place], block + letter, *blocks[place + 1 :])
                longer[tuple(sorted(joined))] += count
        patterns = dict(longer)
    return patterns


def _block(letters: str, transforms: ScoreTransforms) -> Array:
    r"""Return $a_k[P]$ for one block of `monomial`.

    By Stein's identity, $a_1[h]=-\sigma a_2[1]$ and $a_1[h^2-1]=\sigma^2(a_3[1]-a_2[1])$. The left
    sides would lose digits at large L (docs/finite.md, section 2).
    """
    a, sigma = _Indexed(transforms.about_sharpness), transforms.sharpness
    if letters == "B":
        return -sigma * a[2, 0]
    if letters == "Y":
        return sigma**2 * (a[3, 0] - a[2, 0])
    power, coefficients = _product(letters)
    return np.sum([c * a[power, j] for j, c in enumerate(coefficients) if c], axis=0)


@functools.cache
def _product(letters: str) -> tuple[int, tuple[float, ...]]:
    """Return k and the coefficients of P for one block of `monomial`."""
    product = functools.reduce(np.convolve, (_SUMS[letter][1] for letter in letters), np.ones(1))
    return sum(_SUMS[letter][0] for letter in letters), tuple(product.tolist())


# ---------------------------------------------------------------- statistics of Gaussian weights


def output_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return $E\,S_2$, $1-E\,S_2=[a_{10}^2]_2$ and $E(A-\sigma)^2$, as sums of positive terms."""
    a = _Indexed(transforms.about_sharpness)
    return {
        "participation": monomial("S", transforms),
        "shrinkage": {2: a[1, 0] ** 2},
        "score_error": monomial("BB", transforms),
    }


def power_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return $E\,S_3$, $E\,S_2^2$ and $E\,\mathrm{tr}\,W^2$, as sums of positive terms.

    With $W=\mathrm{diag}(p)-pp^\top$, $E\,\mathrm{tr}\,W^2=([2a_{20}^2]_2+[a_{20}a_{10}^2]_3)/6$.
    """
    a = _Indexed(transforms.about_sharpness)
    return {
        "cubic_participation": monomial("C", transforms),
        "participation_square": monomial("SS", transforms),
        "coupling": {2: a[2, 0] ** 2 / 3, 3: a[2, 0] * a[1, 0] ** 2 / 6},
    }


def residual_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return $E\,\rho$ with $\rho=\sum p^2(g-A)^2$, as a sum of positive terms.

    $6E\rho=[2(c_{20}c_{22}-c_{21}^2)]_2+[c_{10}^2c_{22}-2c_{10}c_{11}c_{21}+c_{11}^2c_{20}]_3$.
    """
    c = _Indexed(transforms.about_centre)
    pair = 2 * (c[2, 0] * c[2, 2] - c[2, 1] ** 2)
    triple = c[1, 0] ** 2 * c[2, 2] - 2 * c[1, 0] * c[1, 1] * c[2, 1] + c[1, 1] ** 2 * c[2, 0]
    return {"residual": {2: pair / 6, 3: triple / 6}}


def spread_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return $E\,m^2$ and $E[m S_2]$, and the sizes of their terms.

    The terms are those of $m=Y-B^2$, with Y and B as in `monomial`. They are small if the weights
    are spread over many tokens, because then $V\approx1$.
    """
    square, mixed, fourth, ys, bbs = (
        monomial(word, transforms) for word in ("YY", "BBY", "BBBB", "SY", "BBS")
    )
    return {
        "spread_error": _combined((1, square), (-2, mixed), (1, fourth)),
        "spread_error_size": _combined((1, sizes(square)), (1, sizes(fourth))),
        "spread_participation": _combined((1, ys), (-1, bbs)),
        "spread_participation_size": _combined((1, sizes(ys)), (1, sizes(bbs))),
    }


def frozen_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return $E V$, $E V^2$ and $E[V S_2]$, and the sizes of their terms.

    The terms are small if a few tokens have most of the weight. Then $E\,m^2=1-2E\,V+E\,V^2$ and
    $E[mS_2]=E[VS_2]-E\,S_2$ lose no digits. With $V=\frac12\sum p_lp_n(g_l-g_n)^2$ and
    $v=c_{12}c_{10}-c_{11}^2$, the formulas are

        E V      = [v]_2
        E V^2    = {[2 c20 c24 - 8 c21 c23 + 6 c22^2]_2 / 2 + [q]_3 + [v^2]_4} / 6,
                   q = E[x^2 e^{-x} (c12 - 2 (g-c) c11 + (g-c)^2 c10)^2]
        E[V S_2] = {[c32 c10 - 2 c31 c11 + c30 c12]_2 + [c20 v]_3} / 6
    """
    c = _Indexed(transforms.about_centre)
    mean, square, mass = c[1, 1], c[1, 2], c[1, 0]
    v = square * mass - mean**2
    quartic = c[2, 0] * c[2, 4] - 4 * c[2, 1] * c[2, 3] + 3 * c[2, 2] ** 2
    q = (
        c[2, 0] * square**2
        - 4 * c[2, 1] * square * mean
        + c[2, 2] * (2 * square * mass + 4 * mean**2)
        - 4 * c[2, 3] * mean * mass
        + c[2, 4] * mass**2
    )
    shared = c[3, 2] * mass - 2 * c[3, 1] * mean + c[3, 0] * square
    return {
        "variance": {2: v},
        "variance_size": {2: square * mass},
        "variance_square": {2: quartic / 6, 3: q / 6, 4: v**2 / 6},
        "variance_square_size": {2: c[2, 0] * c[2, 4] / 2, 3: c[2, 4] * mass**2 / 3},
        "variance_participation": {2: shared / 6, 3: c[2, 0] * v / 6},
        "variance_participation_size": {2: c[3, 2] * mass / 3, 3: c[2, 0] * square * mass / 6},
    }


def identities(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return integrands whose integrals are known: the sum of weights and Stein's identities.

        [a10]_1 = 1,    a_{k,1} - sigma ((k-1) a_{k,0} - a_{k+1,0}) = 0,  k below the highest

    The integral of $\sqrt{a_{k,0}a_{k,2}}$, "stein_k_size", is the scale of the error "stein_k".
    """
    a, sigma = _Indexed(transforms.about_sharpness), transforms.sharpness
    residuals: dict[str, Integrands] = {"mass": {1: a[1, 0]}}
    for k in range(1, len(transforms.about_sharpness)):
        expected = sigma * ((k - 1) * a[k, 0] - a[k + 1, 0])
        residuals[f"stein_{k}"] = {1: a[k, 1] - expected}
        residuals[f"stein_{k}_size"] = {1: np.sqrt(a[k, 0] * a[k, 2])}
    return residuals


def sizes(integrands: Integrands) -> Integrands:
    """Return the absolute values of integrands."""
    return {blocks: np.abs(values) for blocks, values in integrands.items()}


def _combined(*terms: tuple[float | int, Integrands]) -> Integrands:
    total: dict[int, Array] = {}
    for factor, integrands in terms:
        for blocks, values in integrands.items():
            total[blocks] = total.get(blocks, 0.0) + factor * values
    return total
