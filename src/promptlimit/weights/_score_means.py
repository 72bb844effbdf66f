r"""Means over one score of what the length of a prompt acts on: no prompt and no length here.

A token has the score $s$; with $t=s+u$, $x=e^t$, $\bar x=Ex=e^{u+\Lambda}$, $\Lambda=\ln Ee^s$, and
$F_k[f]=E[f\,x^ke^{-x}]$, every statistic of $\ln Z$ and of the entropy over L tokens is an integral
over u of products of $\varphi=Ee^{-x}$ and of the means below (derived in docs/lengths.md). Scores
are Gaussian, mixed of Gaussians, or listed; all are NumPy.
"""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
from scipy.special import ndtr

from promptlimit._arrays import Array, as_float64
from promptlimit.weights._transforms import STEP, correlations, lowest_t

MEANS_STEP = STEP
"""From one node u to the next."""

_NARROW = 0.5
"""Sharpness up to which a Gaussian score is a list of scores, by the trapezoidal rule."""

_LARGEST_NARROW_STEP = 0.33
_RANGE = 9.0
_LARGEST_T, _LARGEST_SLOW_T = 5.0625, 40.125
_LEFT = 70.0
_TINY, _LARGEST_EXPONENT = 1e-300, 300.0
_LARGEST_CENTRED = 30.0
"""Of $\bar x$, up to which differences from it are exponentiated."""

_ENTRIES_AT_ONCE = 2**18
_ROUNDING = 2.0**-50


@dataclasses.dataclass(frozen=True)
class PartitionMeans:
    r"""Means over one score at evenly spaced u, [u] each.

    Attributes:
        u: the nodes.
        log_mean: $\Lambda$.
        tilted_mean: $\Lambda'=E[s\,e^s]/E\,e^s$.
        log_phi: $\ln\varphi$.
        excess: $\psi=\ln\varphi+\bar x$, what the annealed exponent leaves; never negative.
        slope: $\psi'=\bar x-F_1[1]/\varphi$.
        mass: $F_1[1]$.
        drift: $F_1[s-\Lambda']$, never positive.
        log_mass: $F_1[t]$.
        square: $F_2[1]$.
        lean: $F_2[s-\Lambda']$.
        spread: $F_2[(s-\Lambda')^2]$.
        log_square: $F_2[t]$.
        log_squares: $F_2[t^2]$.
        rounding: about the largest relative rounding error of `excess`, `drift` and `spread`.
    """

    u: Array
    log_mean: float
    tilted_mean: float
    log_phi: Array
    excess: Array
    slope: Array
    mass: Array
    drift: Array
    log_mass: Array
    square: Array
    lean: Array
    spread: Array
    log_square: Array
    log_squares: Array
    rounding: Array

    @property
    def step(self) -> float:
        """From one node to the next."""
        return float(self.u[1] - self.u[0])


_KEPT = ("mass", "log_mass", "square", "lean", "spread", "log_square", "log_squares")
_LINEAR = ("phi", "complement", "remainder", "missing", "drift", "drift_missing", *_KEPT)
r"""Means that add up over a mixture; `complement` is $1-\varphi$, `remainder` $E[e^{-x}-1+x]$,
`missing` $E[x(1-e^{-x})]$, `drift_missing` $-E[(s-\Lambda')x(1-e^{-x})]$: the drift again."""


def gaussian_score_means(
    weights: Array, means: Array, sharpness: Array, nodes: tuple[int, int], longest: float
) -> PartitionMeans:
    r"""Return the means for scores $\sum_kw_kN(m_k,\sigma_k^2)$.

    Args:
        weights: $w_k$, of sum one.
        means: $m_k$.
        sharpness: $\sigma_k$, zero for an atom.
        nodes: the first and the last index of $u$ = `STEP` times an index.
        longest: the length up to which L times the logarithm of $\varphi$ is to be accurate.
    """
    u = np.multiply(STEP, np.arange(nodes[0], nodes[1] + 1), dtype=np.float64)
    masses = np.log(weights) + means + 0.5 * sharpness**2
    log_mean = float(np.logaddexp.reduce(masses))
    shares = np.exp(masses - log_mean)
    tilted_mean = float(shares @ (means + sharpness**2))
    wide = sharpness > _NARROW
    listed = _as_list(weights[~wide], means[~wide], sharpness[~wide])
    if not wide.any():
        return listed_score_means(*listed, u)
    total: dict[str, Array] = {name: np.zeros(u.size) for name in _LINEAR}
    for w, m, sigma in zip(weights[wide], means[wide], sharpness[wide], strict=True):
        part = _wide_means(float(m), float(sigma), u, tilted_mean, longest)
        total = {name: total[name] + w * part[name] for name in _LINEAR}
    if listed[0].size:
        part = _listed_sums(*listed, u, (log_mean, tilted_mean), whole=False)
        total = {name: total[name] + part[name] for name in _LINEAR}
    return assembled(u, log_mean, tilted_mean, total)


def listed_score_means(weights: Array, scores: Array, u: Array) -> PartitionMeans:
    r"""Return the means for scores $s_i$ of probabilities $w_i$; sums of terms of one sign."""
    masses = np.log(weights) + scores
    log_mean = float(np.logaddexp.reduce(masses))
    tilted_mean = float(np.exp(masses - log_mean) @ scores)
    sums = _listed_sums(weights, scores, u, (log_mean, tilted_mean), whole=True)
    return assembled(u, log_mean, tilted_mean, sums)


def assembled(
    u: Array,
    log_mean: float,
    tilted_mean: float,
    sums: dict[str, Array],
    rounding: Array | float = _ROUNDING,
) -> PartitionMeans:
    r"""Return the means from those that add up.

    $\psi=E[e^{-x}-1+x]+\{\ln(1-\delta)+\delta\}$ with $\delta=1-\varphi$, and
    $\psi'=(E[x(1-e^{-x})]-\delta\bar x)/\varphi$ for small $\bar x$, unless `sums` has them about a
    centre.
    """
    phi, complement = np.maximum(sums["phi"], _TINY), sums["complement"]
    small = complement < 0.5
    log_phi = np.where(small, np.log1p(-np.where(small, complement, 0.0)), np.log(phi))
    mean = np.exp(np.minimum(u + log_mean, _LARGEST_EXPONENT))
    excess, slope, drift = log_phi + mean, mean - sums["mass"] / phi, sums["drift"]
    if "excess" in sums:
        near = mean <= _LARGEST_CENTRED
        excess = np.where(near, np.log1p(sums["excess"]), excess)
        slope = np.where(near, sums["slope"] / phi, slope)
    else:
        excess = np.where(small, sums["remainder"] + _log_rest(complement), excess)
        slope = np.where(mean <= 1.0, (sums["missing"] - complement * mean) / phi, slope)
        drift = np.where(sums["missing"] <= sums["mass"], sums["drift_missing"], drift)
    kept = {name: sums[name] for name in _KEPT}
    lost = np.broadcast_to(rounding, u.shape)
    return PartitionMeans(
        u, log_mean, tilted_mean, log_phi, excess, slope, drift=drift, **kept, rounding=lost
    )


def _log_rest(small: Array) -> Array:
    r"""Return $\ln(1-\delta)+\delta$, without cancellation."""
    delta = np.minimum(small, 0.1)
    series = np.zeros_like(delta)
    for power in range(18, 1, -1):
        series = 1.0 / power + delta * series
    plain = np.log1p(-np.minimum(small, 0.5)) + small
    return np.where(small <= 0.1, -(delta**2) * series, plain)


def exponential_rest(y: Array) -> Array:
    r"""Return $e^{-y}-1+y$, without cancellation."""
    near = np.clip(y, -0.05, 0.05)
    series = np.zeros_like(near)
    for divisor in (40320.0, -5040.0, 720.0, -120.0, 24.0, -6.0, 2.0):
        series = 1.0 / divisor + near * series
    return np.where(np.abs(y) <= 0.05, near**2 * series, np.expm1(-y) + y)


def _as_list(weights: Array, means: Array, sharpness: Array) -> tuple[Array, Array]:
    """Return weights and scores of narrow Gaussians by the trapezoidal rule; an atom is itself."""
    all_weights, all_scores = [np.empty(0)], [np.empty(0)]
    for w, m, sigma in zip(weights, means, sharpness, strict=True):
        g, normal = np.zeros(1), np.ones(1)
        if sigma > 0.0:
            step = min(STEP / sigma, _LARGEST_NARROW_STEP)
            reach = _RANGE + 2.0 * sigma
            g = step * np.arange(math.floor(-_RANGE / step), math.ceil(reach / step) + 1)
            normal = step * np.exp(-0.5 * g * g) / math.sqrt(2.0 * math.pi)
        all_weights.append(w * normal)
        all_scores.append(m + sigma * g)
    return np.concatenate(all_weights), np.concatenate(all_scores)


def _listed_sums(
    weights: Array, scores: Array, u: Array, centre: tuple[float, float], *, whole: bool
) -> dict[str, Array]:
    r"""Return all sums over listed scores, [u] each.

    Args:
        weights: of the scores.
        scores: $s_i$.
        u: the nodes.
        centre: $\Lambda$ and $\Lambda'$ of the whole law.
        whole: whether the list is the whole law; then sums that would cancel are taken about a
            centre, and are those that `assembled` prefers.
    """
    pieces = []
    apart = scores - centre[1]
    moments = weights[:, None] * apart[:, None] ** np.arange(3)
    for part in _blocks(u.size, scores.size):
        t = np.minimum(u[part, None] + scores, _LARGEST_EXPONENT)
        x = np.exp(t)
        left = np.exp(-x)
        lost, first = -np.expm1(-x), x * left
        second = x * first
        square, lean, spread = (second @ moments).T
        sums = {
            "phi": left @ weights,
            "complement": lost @ weights,
            "mass": first @ weights,
            "log_mass": (t * first) @ weights,
            "square": square,
            "lean": lean,
            "spread": spread,
            "log_square": (t * second) @ weights,
            "log_squares": (t * t * second) @ weights,
        }
        if whole:
            pieces.append(
                sums | _centred_sums(weights, scores, u[part, None], x=x, left=left, centre=centre)
            )
            continue
        sums["remainder"] = exponential_rest(x) @ weights
        sums["missing"], sums["drift_missing"] = ((x * lost) @ (moments[:, :2] * [1.0, -1.0])).T
        sums["drift"] = first @ moments[:, 1]
        pieces.append(sums)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _centred_sums(
    weights: Array,
    scores: Array,
    u: Array,
    *,
    x: Array,
    left: Array,
    centre: tuple[float, float],
) -> dict[str, Array]:
    r"""Return sums of terms of one sign, for the scores of a whole law.

    `excess` is $E[e^{-(x-\bar x)}-1+(x-\bar x)]$, `slope` is $E[(\bar x-x)(e^{-x}-e^{-\bar x})]$,
    and `drift` $E[(s-\Lambda')x(e^{-x}-e^{-x'})]$, $x'=e^{u+\Lambda'}$, which is
    $F_1[s-\Lambda']$ because $E[(s-\Lambda')x]=0$.
    """
    mean, middle = (np.exp(np.minimum(u + level, _LARGEST_EXPONENT)) for level in centre)
    off_mean, off_middle = (np.expm1(scores - level) for level in centre)
    drift = x * _damping_apart(left, middle, off_middle)
    slope = _damping_apart(left, mean, off_mean) @ (off_mean * weights)
    return {
        "excess": exponential_rest(np.minimum(mean, _LARGEST_CENTRED) * off_mean) @ weights,
        "slope": -mean[:, 0] * slope,
        "drift": drift @ (weights * (scores - centre[1])),
    }


def _damping_apart(left: Array, centre: Array, off: Array) -> Array:
    r"""Return $e^{-x}-e^{-c}$ from $e^{-x}$, the centre c and $x/c-1$, without cancellation."""
    near = np.minimum(centre, _LARGEST_CENTRED)
    precise = np.exp(-near) * np.expm1(-near * off)
    return np.where(centre <= _LARGEST_CENTRED, precise, left - np.exp(-centre))


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    size = max(1, _ENTRIES_AT_ONCE // columns)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _wide_means(
    mean: float, sigma: float, u: Array, tilted_mean: float, longest: float
) -> dict[str, Array]:
    r"""Return the sums for $N(m,\sigma^2)$ by convolution, all of positive terms.

    With $g=(t-u-m)/\sigma$ and $\Phi$ the normal distribution function,
    $\varphi=\int F_1(t)\Phi(g)dt$, $E[x(1-e^{-x})]=\bar x\int F_1(t)\Phi(\sigma-g)dt$ and
    $E[e^{-x}-1+x]=\bar x\int k'(t)\Phi(\sigma-g)dt$, $k=1-(1-e^{-x})/x$. By Stein's lemma
    $F_1[s-m-\sigma^2]=-\sigma^2F_2[1]$.
    """
    lowest = min(lowest_t(sigma, float(u[0]) + mean, longest), -math.log(longest) - _LEFT)
    t_first = math.floor(lowest / STEP)
    t = as_float64(STEP * np.arange(t_first, math.ceil(_LARGEST_SLOW_T / STEP)))
    few = t < _LARGEST_T
    first = round(float(u[0]) / STEP)
    g = (STEP * (t_first - first + np.arange(1 - u.size, t.size)) - mean) / sigma
    near = g[: u.size + int(few.sum()) - 1]
    damped = np.exp(t[few] - np.exp(t[few]))
    twice = np.exp(t[few]) * damped
    signals = np.stack([damped, t[few] * damped, twice, t[few] * twice, t[few] ** 2 * twice], 1)
    density = np.exp(-0.5 * near * near) * (STEP / (sigma * math.sqrt(2.0 * math.pi)))
    powers = density * (near - sigma) ** np.arange(3)[:, None]
    zeroth, lean, spread = correlations(powers, signals)[:, ::-1].transpose(0, 2, 1)
    phi, complement = correlations(STEP * ndtr(np.stack([near, -near])), damped[:, None])[..., 0]
    x = np.exp(t)
    slow = np.stack([np.where(few, x * np.exp(-x), 0.0), exponential_rise(x)], 1)
    missing, remainder = correlations(STEP * ndtr(sigma - g)[None], slow)[0, ::-1].T
    average = np.exp(np.minimum(u + mean + 0.5 * sigma**2, _LARGEST_EXPONENT))
    off = mean + sigma**2 - tilted_mean
    off *= abs(off) > _ROUNDING * (abs(mean) + sigma**2)  # one Gaussian alone is not off itself
    return {
        "phi": phi[::-1],
        "complement": complement[::-1],
        "remainder": average * remainder,
        "missing": average * missing,
        "mass": zeroth[0],
        "drift": -(sigma**2) * zeroth[2] + off * zeroth[0],
        "drift_missing": -(sigma**2) * zeroth[2] - off * average * missing,
        "log_mass": zeroth[1],
        "square": zeroth[2],
        "lean": sigma * lean[2] + off * zeroth[2],
        "spread": sigma**2 * spread[2] + 2.0 * off * sigma * lean[2] + off**2 * zeroth[2],
        "log_square": zeroth[3],
        "log_squares": zeroth[4],
    }


def exponential_rise(x: Array) -> Array:
    r"""Return $(1-e^{-x})/x-e^{-x}$, without cancellation."""
    near, far = np.minimum(x, 0.05), np.maximum(x, 0.05)
    series = np.zeros_like(near)
    for n in range(8, 0, -1):
        series = (-1.0) ** (n + 1) * n / math.factorial(n + 1) + near * series
    return np.where(x <= 0.05, near * series, -np.expm1(-far) / far - np.exp(-far))
