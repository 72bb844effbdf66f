r"""Moments of softmax weights as brackets: integrals of products of transforms of one score.

A product of sums over tokens, multiplied out, is a sum over the patterns of equal indices. A
pattern with b distinct tokens contributes the bracket $[f]_b/(K-1)!$, where K is the total power of
the weights and f a product of b transforms. `brackets` integrates; each of the functions after it
returns integrands `{b: f / (K-1)!}` by name.

Notation: $a_{k,j}$ is a transform about $g=\sigma$ and $c_{k,j}$ one about a centre that moves with
u (`ScoreTransforms`), $S_k=\sum p_l^k$, $A=\sum p_lg_l$, $V=\sum p_l(g_l-A)^2$ and $m=V-1$.
All formulas are derived in docs/finite.md; they are arranged so that no digits cancel, with two
forms where one alone would: `spread_error` and `spread_participation` for weights spread over
many tokens ($V\approx1$), `frozen_...` for weights on a few ($V\approx0$).
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from promptlimit.weights._gaussian_score import GaussianScore, blocked_product
from promptlimit.weights._score_law import log_from

Integrands = Mapping[int, NDArray[np.float64]]

HIGHEST = (4, 4)
"""The largest k and the largest j of the transforms."""

_CENTRED_ABOVE = 4.0
_CENTRED = tuple((k, j) for k, degree in ((1, 2), (2, 4), (3, 2)) for j in range(degree + 1))
"""The indices (k, j) of the $c_{k,j}$ that statistics need."""


@dataclasses.dataclass(frozen=True)
class ScoreTransforms:
    r"""Transforms of one score $\sigma g$ at the nodes u, with $x=e^{\sigma g+u}$.

    Attributes:
        sharpness: $\sigma$.
        log_phi: $\log\varphi(u)$, accurate relatively at both ends.
        about_sharpness: $a_{k,j}=E[(g-\sigma)^jx^ke^{-x}]$ at `[k - 1, j]`.
        about_centre: $c_{k,j}=E[(g-c(u))^jx^ke^{-x}]$ at `[k - 1, j]`; entries that no statistic
            needs may be NaN.
    """

    sharpness: float
    log_phi: NDArray[np.float64]
    about_sharpness: NDArray[np.float64]
    about_centre: NDArray[np.float64]


def score_transforms(
    sharpness: float, u: NDArray[np.float64], highest: tuple[int, int] = HIGHEST
) -> ScoreTransforms:
    r"""Return $\varphi$, $a_{k,j}$ and $c_{k,j}$ at evenly spaced u.

    Formulas that do not change when all g are shifted lose no digits if the centre is near the
    scores that matter: for sharp scores, $c=-u/\sigma$ above $u=-\sigma^2$.

    Args:
        sharpness: $\sigma > 0$.
        u: the nodes, [u].
        highest: the largest k and j of $a_{k,j}$; $c_{k,j}$ is complete only at `HIGHEST`.
    """
    score = GaussianScore(0.0, sharpness, u)
    moments = score.moments(tuple(range(1, highest[0] + 1)), highest[1], sharpness)
    centred = moments
    first = int(np.searchsorted(u, -(sharpness**2), side="right"))
    if sharpness > _CENTRED_ABOVE and highest == HIGHEST and first < u.size:
        first = min(first, u.size - 2)  # the step needs two nodes
        centred = moments.copy()
        centred[..., first:] = np.nan
        powers, degrees = np.transpose(_CENTRED)
        near = GaussianScore(0.0, sharpness, u[first:]).log_moments(_CENTRED)
        centred[powers - 1, degrees, first:] = near / sharpness ** degrees[:, None]
    return ScoreTransforms(sharpness, log_from(*score.kept_and_lost), moments, centred)


def brackets(
    quantities: Mapping[str, Integrands],
    u: NDArray[np.float64],
    log_phi: NDArray[np.float64],
    lengths: NDArray[np.float64],
    *,
    known: NDArray[np.float64] | float = 0.0,
) -> dict[str, NDArray[np.float64]]:
    r"""Return sums of brackets $[f]_b=L(L-1)\cdots(L-b+1)\int f\varphi^{L-b}e^{-c}du$ by name.

    Args:
        quantities: $\{b: f\}$ by name, each f of shape [..., u].
        u: evenly spaced nodes, [u].
        log_phi: $\log\varphi$, [u].
        lengths: L, [n].
        known: c, the sum of $e^{s+u}$ over tokens that every prompt contains, [u].

    Returns:
        The sums by even and by odd nodes, [..., 2, n].
    """
    total: dict[str, NDArray[np.float64]] = {}
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

    def __init__(self, table: NDArray[np.float64]):
        self._table = table

    def __getitem__(self, index: tuple[int, int]) -> NDArray[np.float64]:
        power, moment = index
        return self._table[power - 1, moment]


def output_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return the statistics that moments of outputs need, sums of positive terms.

        E S_2        = [a20]_1
        1 - E S_2    = [a10^2]_2
        E (A-sigma)^2 = [a22]_1 + [(sigma a20)^2]_2

    with $A=\sum p_lg_l$.
    """
    a, sigma = _Indexed(transforms.about_sharpness), transforms.sharpness
    return {
        "participation": {1: a[2, 0]},
        "shrinkage": {2: a[1, 0] ** 2},
        "score_error": {1: a[2, 2], 2: (sigma * a[2, 0]) ** 2},
    }


def power_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return the statistics of powers of the weights alone, sums of positive terms.

        E S_3        = [a30]_1 / 2
        E S_2^2      = ([a40]_1 + [a20^2]_2) / 6
        E tr W^2     = ([2 a20^2]_2 + [a20 a10^2]_3) / 6

    with $W=\mathrm{diag}(p)-pp^\top$.
    """
    a = _Indexed(transforms.about_sharpness)
    return {
        "cubic_participation": {1: a[3, 0] / 2},
        "participation_square": {1: a[4, 0] / 6, 2: a[2, 0] ** 2 / 6},
        "coupling": {2: a[2, 0] ** 2 / 3, 3: a[2, 0] * a[1, 0] ** 2 / 6},
    }


def residual_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return the residual of the spread, a sum of positive terms.

        E rho        = ([2 (c20 c22 - c21^2)]_2 + [c10^2 c22 - 2 c10 c11 c21 + c11^2 c20]_3) / 6

    with $\rho=\sum p^2(g-A)^2$.
    """
    c = _Indexed(transforms.about_centre)
    pair = 2 * (c[2, 0] * c[2, 2] - c[2, 1] ** 2)
    triple = c[1, 0] ** 2 * c[2, 2] - 2 * c[1, 0] * c[1, 1] * c[2, 1] + c[1, 1] ** 2 * c[2, 0]
    return {"residual": {2: pair / 6, 3: triple / 6}}


def spread_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return $E\,m^2$ and $E[m S_2]$ by the forms for many tokens, and the size of their terms.

    With $b=\sigma^2(a_{30}-a_{20})$, $Y=\sum p(h^2-1)$, $B=A-\sigma$, $h=g-\sigma$, $m=Y-B^2$:

        E Y^2    = [a24 - 2 a22 + a20]_1 + [b^2]_2
        E Y B^2  = {[a34 - a32]_1 + [a22 b - 2 sigma a20 (a23 - a21)]_2 + [sigma^2 b a20^2]_3} / 2
        E B^4    = {[a44]_1 + [3 a22^2 - 4 sigma a20 a33]_2 + [6 sigma^2 a22 a20^2]_3
                    + [sigma^4 a20^4]_4} / 6
        E B^2 S2 = {[a42]_1 + [a22 a20 - 2 sigma a20 a31]_2 + [sigma^2 a20^3]_3} / 6
        E m^2    = E Y^2 - 2 E Y B^2 + E B^4
        E[m S2]  = {[a32 - a30]_1 + [b a20]_2} / 2 - E B^2 S2
    """
    a, sigma = _Indexed(transforms.about_sharpness), transforms.sharpness
    lead = sigma * a[2, 0]
    b = sigma**2 * (a[3, 0] - a[2, 0])
    y_square = {1: a[2, 4] - 2 * a[2, 2] + a[2, 0], 2: b**2}
    y_b_square = {
        1: a[3, 4] - a[3, 2],
        2: a[2, 2] * b - 2 * lead * (a[2, 3] - a[2, 1]),
        3: b * lead**2,
    }
    b_fourth = {
        1: a[4, 4] / 6,
        2: (3 * a[2, 2] ** 2 - 4 * lead * a[3, 3]) / 6,
        3: a[2, 2] * lead**2,
        4: lead**4 / 6,
    }
    b_square_s2 = {
        1: a[4, 2] / 6,
        2: (a[2, 2] * a[2, 0] - 2 * lead * a[3, 1]) / 6,
        3: lead**2 * a[2, 0] / 6,
    }
    y_s2 = {1: (a[3, 2] - a[3, 0]) / 2, 2: b * a[2, 0] / 2}
    return {
        "spread_error": _combined((1, y_square), (-1, y_b_square), (1, b_fourth)),
        "spread_error_size": _combined((1, _sizes(y_square)), (1, _sizes(b_fourth))),
        "spread_participation": _combined((1, y_s2), (-1, b_square_s2)),
        "spread_participation_size": _combined((1, _sizes(y_s2)), (1, _sizes(b_square_s2))),
    }


def frozen_statistics(transforms: ScoreTransforms) -> dict[str, Integrands]:
    r"""Return $E V$, $E V^2$, $E[V S_2]$, which are small when a few tokens have most weight.

    From $V=\frac12\sum p_lp_m(g_l-g_m)^2$, with $v=c_{12}c_{10}-c_{11}^2$:

        E V      = [v]_2
        E V^2    = {[2 c20 c24 - 8 c21 c23 + 6 c22^2]_2 / 2 + [q]_3 + [v^2]_4} / 6,
                   q = E F_2 (c12 - 2 (g-c) c11 + (g-c)^2 c10)^2
        E[V S_2] = {[c32 c10 - 2 c31 c11 + c30 c12]_2 + [c20 v]_3} / 6

    Then $E m^2=1-2EV+EV^2$ and $E[mS_2]=E[VS_2]-ES_2$.
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
    r"""Return quantities with known values: the total mass and Stein's identities.

        [a10]_1 = 1,    a_{k,1} = sigma ((k-1) a_{k,0} - a_{k+1,0}),  k below the highest

    The error of the latter is measured relative to $\sqrt{a_{k,0}a_{k,2}}$.
    """
    a, sigma = _Indexed(transforms.about_sharpness), transforms.sharpness
    residuals: dict[str, Integrands] = {"mass": {1: a[1, 0]}}
    for k in range(1, len(transforms.about_sharpness)):
        expected = sigma * ((k - 1) * a[k, 0] - a[k + 1, 0])
        residuals[f"stein_{k}"] = {1: a[k, 1] - expected}
        residuals[f"stein_{k}_size"] = {1: np.sqrt(a[k, 0] * a[k, 2])}
    return residuals


def _sizes(integrands: Integrands) -> Integrands:
    return {blocks: np.abs(values) for blocks, values in integrands.items()}


def _combined(*terms: tuple[float | int, Integrands]) -> Integrands:
    total: dict[int, NDArray[np.float64]] = {}
    for factor, integrands in terms:
        for blocks, values in integrands.items():
            total[blocks] = total.get(blocks, 0.0) + factor * values
    return total
