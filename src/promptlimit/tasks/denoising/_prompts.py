r"""The excess of softmax heads that denoise over prompts of L tokens.

The layer is $f_L(z)=Cz+\sum_hV_hA_L^h$, where $A_L^h$ is the softmax average of head h, before its
value matrix $V_h$ is applied. Let $A^h$ and f be the limits of $A_L^h$ and $f_L$, and let
$\varepsilon_h=A_L^h-A^h$. Let $f^*$ be the Bayes predictor. Prompt and query are independent, so
the excess is

$$E|f_L-f^*|^2=E_z\Big\{|f-f^*|^2+2\langle f-f^*,\textstyle\sum_hV_hE\varepsilon_h\rangle
+\sum_{h,j}E\langle V_h\varepsilon_h,V_j\varepsilon_j\rangle\Big\}.$$

The terms of one head follow from the moments of `weights.selection`. The terms of two heads are
double integrals, which are zero if $V_h^\top V_j=0$. docs/mixtures-theory.md contains the
derivation.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from promptlimit._arrays import Array, as_float64
from promptlimit._quadrature import legendre_gauss, mixture_lattice, radius_gauss
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import GaussianParts
from promptlimit.rules import unwrap
from promptlimit.tasks.denoising._limit_risk import (
    is_scalar,
    query_points,
    span,
)
from promptlimit.tasks.denoising._task import AbstractDenoising, softmax_rows
from promptlimit.weights import (
    SHARPEST,
    SPACINGS,
    HeadPair,
    PairTokens,
    Spacing,
    listed_pairs,
    pair_integrals,
    selection,
)

_REACH = 6.5
"""The smallest extent of a lattice around each mean, in standard deviations of a query."""

_LIGHT = 1e-4
"""Weight of a query below which the cross moments of two heads are computed roughly."""

_OMITTED_WEIGHT = 1e-6
"""Weight of a query below which the cross moments, which take most of the time, are omitted."""

_SAME = 1e-12  # relative difference up to which matrices are considered equal
_MOST_PLACES = 2e6  # largest number of points of a lattice
_RADII = 10  # number of nodes for the norm orthogonal to the span of the means
_ANGLES = 24  # number of angles in polar coordinates


class TiltedHeads(NamedTuple):
    r"""Softmax heads with distinct key-query matrices $U_h$, and a residual.

    Attributes:
        tilts: the key-query matrices $U_h$, [heads, d, d].
        values: the value matrices $V_h$, [heads, d, d].
        residual: the residual $C$, [d, d].
    """

    tilts: Array
    values: Array
    residual: Array


def tilted_heads(attention: AbstractAttention) -> TiltedHeads:
    """Return the softmax heads of an attention, with the values of heads with equal U added."""
    heads, residual = unwrap(attention.as_heads()), attention.residual_matrix()
    by_tilt: dict[bytes, list[Array]] = {}
    for head in heads:
        tilt, value = as_float64(head.key_query) + 0.0, as_float64(head.value)
        place = by_tilt.setdefault(tilt.tobytes(), [tilt, np.zeros_like(value)])
        place[1] = place[1] + value
    tilts, values = (np.stack(column) for column in zip(*by_tilt.values(), strict=True))
    dim = tilts.shape[1]
    return TiltedHeads(
        tilts, values, np.zeros((dim, dim)) if residual is None else as_float64(residual)
    )


class QueryRule(NamedTuple):
    """A quadrature rule for averages over queries; each of its two halves is also a rule.

    Attributes:
        points: the queries, [n, d].
        weights: the weights of the queries, with sum one, [n].
        half: the half to which each query belongs, 0 or 1, [n].
        error_factor: the factor that multiplies the difference between the halves to estimate the
            error of the whole rule. It is smaller for a lattice, which is much more accurate than
            its halves.
    """

    points: Array
    weights: Array
    half: NDArray[np.int64]
    error_factor: float = 0.25


def query_rule(
    task: AbstractDenoising, heads: TiltedHeads, step: float, longest: float = 1.0
) -> QueryRule:
    r"""Return a quadrature rule for averages over queries of functions of the outputs of `heads`.

    In one and two dimensions the rule is a lattice. In more dimensions it is, if possible, the
    product of a lattice in the span of the means and a rule for the norm of the component
    orthogonal to this span. The product requires that the span has at most two dimensions and that
    all matrices act as multiples of the identity orthogonal to it. `_polar_rule` is a faster rule
    for two components and matrices that are all multiples of the identity. In all other cases the
    rule consists of Sobol' points.

    The spacing `step` of lattices is in standard deviations of a query. For long prompts, queries
    about $\sqrt{0.9\log L}$ standard deviations from a mean dominate the excess. Lattices extend
    beyond these queries for the largest length L = `longest`.
    """
    reach = max(_REACH, 4.0 + math.sqrt(0.9 * math.log(min(longest, 1e40))))
    dim, sd = task.token_dim, math.sqrt(task.query_variance)
    matrices = [*heads.tilts, *heads.values, heads.residual]
    if dim <= 2:
        nothing = np.zeros((1, dim)), np.ones(1)
        return _lattice(task, np.eye(dim), (nothing, nothing), step, reach)
    if task.weights.size == 2 and all(is_scalar(matrix) for matrix in matrices):
        return _polar_rule(task, step, reach)
    among = span(task.means)
    if len(among) <= 2 and all(_is_scalar_across(matrix, among) for matrix in matrices):
        outside = sd * np.linalg.svd(among)[2][len(among)]
        first, second = (radius_gauss(dim - len(among), count) for count in (_RADII, _RADII + 1))
        halves = (first[0][:, None] * outside, first[1]), (second[0][:, None] * outside, second[1])
        return _lattice(task, among, halves, step, reach)
    count = 2 ** max(9, round(11 - math.log2(step / 0.65)))
    halves = [query_points(task, count, replicate=half) for half in (0, 1)]
    points, weights = (np.concatenate([part[i] for part in halves]) for i in (0, 1))
    half = np.repeat([0, 1], [len(part.points) for part in halves])
    return QueryRule(points, weights / 2, half, error_factor=1.0)


def _is_scalar_across(matrix: Array, among: Array) -> bool:
    """Return whether a matrix maps span(`among`) to itself and is scalar on its complement."""
    across = np.eye(len(matrix)) - among.T @ among
    number = np.trace(across @ matrix) / np.trace(across)
    mixed = np.abs([across @ matrix - number * across, matrix @ across - number * across])
    return bool(mixed.max() <= _SAME * max(1.0, float(np.abs(matrix).max())))


def _lattice(
    task: AbstractDenoising,
    basis: Array,
    across: tuple[tuple[Array, Array], tuple[Array, Array]],
    step: float,
    reach: float,
) -> QueryRule:
    """Return the product of a lattice in the span of a basis and a rule orthogonal to the span.

    `across` contains two rules orthogonal to the span, as points and masses, one for each half of
    the lattice. So the difference between the halves includes the errors of both factors.
    """
    sd = math.sqrt(task.query_variance)
    centres = task.means @ basis.T / sd
    if not math.prod((np.ptp(centres, axis=0) + 2 * reach) / step) < _MOST_PLACES:
        raise _too_far(task)
    places, weights, parity = mixture_lattice(centres, task.weights, [step] * len(basis), reach)
    places = sd * places
    points, products, halves = [], [], []
    for half, (extra, masses) in enumerate(across):
        own = parity == half
        points.append(((places[own] @ basis)[:, None] + extra).reshape(-1, basis.shape[1]))
        products.append((weights[own][:, None] * masses).ravel())
        halves.append(np.full(products[-1].size, half))
    points, weights, half = (np.concatenate(part) for part in (points, products, halves))
    kept = weights > 0.01 * math.exp(-0.5 * reach**2)
    return QueryRule(points[kept], weights[kept] / weights[kept].sum(), half[kept])


def _too_far(task: AbstractDenoising) -> ValueError:
    """Return the error for means that are too far apart for a lattice of queries."""
    far = np.hypot.reduce(task.means / math.sqrt(task.query_variance), axis=1).max()
    return ArgumentError(
        "task",
        "must have means near enough for the quadrature over finite prompts, got one "
        f"{far:.3g} standard deviations from 0. Infinite prompts support any means.",
    )


def _polar_rule(task: AbstractDenoising, step: float, reach: float) -> QueryRule:
    r"""Return queries for two components and matrices that are multiples of the identity.

    Let e be the unit vector along the difference of the means, n the direction of the component of
    their midpoint orthogonal to e, and r the norm of the component of z orthogonal to e and n. The
    moments of selection depend only on $(\langle z,e\rangle,|z|)$. In polar coordinates of
    $(\langle z,n\rangle,r)$ these moments depend on the radius and not on the angle. The polar rule
    is 4 to 5 times as fast as the general product rule of `query_rule`
    (`benchmarks/special_paths.py`).
    """
    first, second = task.means
    distance = float(np.linalg.norm(first - second))
    e = (first - second) / distance if distance > 0.0 else np.linalg.svd(first[None])[2][-1]
    across = first - (first @ e) * e
    shift = float(np.linalg.norm(across))
    n = across / shift if shift > _SAME else np.linalg.svd(e[None])[2][1]
    w = np.linalg.svd(np.stack([e, n]))[2][2]
    halves = []
    for more in (0, 1):
        x, r, masses = _polar_plane(task, shift, step, reach, more=more)
        halves.append((np.outer(x, n) + np.outer(r, w), masses.ravel()))
    return _lattice(task, e[None], (halves[0], halves[1]), step, reach)


def _polar_plane(
    task: AbstractDenoising, shift: float, step: float, reach: float, *, more: int
) -> tuple[Array, Array, Array]:
    r"""Return x, r and their weights, [radii, angles] each.

    They are a rule for $x\sim N(\text{shift},s)$ and $r^2\sim s\chi^2_{d-2}$. The radii
    $\sqrt{x^2+r^2}$ are about `step` standard deviations apart and extend to `reach` standard
    deviations from the centre. The argument `more` is added to the number of radii.
    """
    s, freedom = task.query_variance, task.token_dim - 2
    sd = math.sqrt(s)
    centre = math.hypot(shift, math.sqrt(freedom * s))
    low, high = max(0.0, centre - reach * sd), centre + reach * sd
    count = max(8, round((high - low) / (step * sd) * 1.6))
    radius, masses = legendre_gauss(low, high, count + more)
    angle = math.pi * (np.arange(_ANGLES) + 0.5) / _ANGLES
    x, r = radius[:, None] * np.cos(angle), radius[:, None] * np.sin(angle)
    log_density = (freedom - 1) * np.log(r) - ((x - shift) ** 2 + r**2) / (2 * s)
    log_density -= (0.5 * freedom - 1) * math.log(2) + gammaln(0.5 * freedom)
    log_density -= 0.5 * freedom * math.log(s) + 0.5 * math.log(2 * math.pi * s)
    polar = np.exp(log_density) * radius[:, None] * (math.pi / _ANGLES)
    return x, r, polar * masses[:, None]


def prompt_excess(
    task: AbstractDenoising,
    heads: TiltedHeads,
    lengths: Array,
    rule: QueryRule,
    *,
    spacing: str = "coarse",
) -> tuple[Array, Array]:
    r"""Return $E|f_L-f^*|^2$ at each length, and its error.

    The lengths, [l], may be infinite. `spacing`, a name in `weights.SPACINGS`, determines the
    accuracy of the integrals for two heads.
    """
    moments = [
        head_moments(task, tilt, value, lengths, rule.points)
        for tilt, value in zip(heads.tilts, heads.values, strict=True)
    ]
    outputs = rule.points @ heads.residual.T + sum(head.limit for head in moments)
    missed = outputs - task.bayes_predictions(rule.points)
    bias = sum(head.bias for head in moments)
    terms = (missed**2).sum(axis=1)[:, None] + 2.0 * np.einsum("ni,nli->nl", missed, bias)
    terms = terms + sum(head.square for head in moments)
    lost = np.zeros(lengths.size)
    covs = np.stack([task.token_variance * np.eye(task.token_dim)] * task.weights.size)
    tokens = GaussianParts(task.weights, task.means, covs)
    seen = rule.weights > _OMITTED_WEIGHT
    for i, j in zip(*np.triu_indices(len(moments), 1), strict=True):
        values = heads.values[i], heads.values[j]
        if np.abs(values[0].T @ values[1]).max() <= _SAME * np.abs(values).max() ** 2:
            continue
        rules = [SPACINGS[spacing if weight > _LIGHT else "rough"] for weight in rule.weights[seen]]
        rows = [
            _cross_moments(
                tokens,
                HeadPair((heads.tilts[i] @ query, heads.tilts[j] @ query), values),
                lengths,
                at,
            )
            for query, at in zip(rule.points[seen], rules, strict=True)
        ]
        crossed = 2.0 * np.array(rows)
        terms[seen] += crossed
        sizes = np.sqrt(moments[i].square[seen] * moments[j].square[seen])
        accuracies = np.array([at.accuracy for at in rules])
        lost += 2.0 * (rule.weights[seen] * accuracies) @ sizes
        lost += rule.weights[~seen].sum() * np.abs(crossed).max(axis=0)
    whole = rule.weights @ terms
    halves = [
        (rule.weights * (rule.half == part)) @ terms / rule.weights[rule.half == part].sum()
        for part in (0, 1)
    ]
    return whole, rule.error_factor * np.abs(halves[0] - halves[1]) + lost


def _cross_moments(
    tokens: GaussianParts, pair: HeadPair, lengths: Array, spacing: Spacing
) -> Array:
    r"""Return $E\langle V_1\varepsilon_1,V_2\varepsilon_2\rangle$ at each length, [l]."""
    moments, finite = np.zeros(lengths.size), np.isfinite(lengths)
    if finite.any():
        law = listed_pairs(tokens, pair, spacing)
        prompt = [PairTokens(law, lengths[finite])]
        found = pair_integrals(prompt, law.maps, int(finite.sum()), spacing)
        moments[finite] = np.trace(found.moment, axis1=1, axis2=2)
    return moments


class HeadMoments(NamedTuple):
    r"""Moments of one head at n queries.

    Attributes:
        limit: the output over an infinite prompt, [n, d].
        bias: the mean $V\,E\varepsilon$ of finite minus limit, at each length, [n, l, d].
        square: the mean square $E|V\varepsilon|^2$ of finite minus limit, at each length, [n, l].
    """

    limit: Array
    bias: Array
    square: Array


def head_moments(
    task: AbstractDenoising, tilt: Array, value: Array, lengths: Array, queries: Array
) -> HeadMoments:
    """Return the moments of the head with U = `tilt` and V = `value` at queries [n, d]."""
    variance, means = task.token_variance, task.means
    tilts = queries @ tilt.T
    sizes = np.linalg.norm(tilts, axis=1)
    shifts = tilts @ means.T
    sharpness = math.sqrt(variance) * sizes
    if np.isfinite(lengths).any() and (largest := float(sharpness.max())) > SHARPEST:
        raise ArgumentError(
            "attention",
            f"must have scores of standard deviation at most {SHARPEST:g}, got {largest:.3g} at "
            "some query. Scale its key-query matrix down, or pass kind='estimate' with a "
            "key to `risk`.",
        )
    moments = selection(sharpness, shifts, task.weights, lengths)
    directions = np.divide(
        tilts, sizes[:, None], out=np.zeros_like(tilts), where=sizes[:, None] > 0
    )
    seen, along = means @ value.T, directions @ value.T
    gates = softmax_rows(np.log(task.weights) + shifts)
    share = moments.participation
    bias = moments.masses @ seen - variance * share[..., None] * (tilts @ value.T)[:, None]
    square = np.einsum("nlij,ij->nl", moments.products, seen @ seen.T)
    square += 2.0 * math.sqrt(variance) * np.einsum("nlk,nk->nl", moments.along, along @ seen.T)
    square += variance * (moments.score - share) * (along**2).sum(axis=1)[:, None]
    square += variance * share * np.sum(value**2)
    return HeadMoments((gates @ means + variance * tilts) @ value.T, bias, square)
