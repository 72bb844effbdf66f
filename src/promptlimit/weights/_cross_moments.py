r"""The exact cross moment of the errors of two heads on one prompt.

Head h reads the prompt at tilt $t_h$ and is off its limit by $\varepsilon_h=\sum_lp^h_ly_h(z_l)$,
$y_h(z)=V_hz-T_h$. With scores $s_h=\langle t_h,z\rangle-\Lambda(t_h)$ of one token,
$e_1=e^{s_1+u}$, $e_2=e^{s_2+v}$, $K=e^{-e_1-e_2}$ and $\varphi(u,v)=E\,K$ (derived here),

    E<eps_1, eps_2> = L iint E[e_1 e_2 <y_1, y_2> K] phi^{L-1} du dv
                      + L(L-1) iint <E[e_1 y_1 K], E[e_2 y_2 K]> phi^{L-2} du dv.

Tokens come from $\sum_k\pi_kN(m_k,S)$. The scores depend on two coordinates of the whitened token,
those in the span of the whitened tilts, over which a trapezoidal rule has a negligible error; the
other coordinates are independent of the weights. Every mean above is then a product of two
matrices, nodes by u and nodes by v.

The integral is over two variables, so its cost is the square of that of `prompt_integrals`, and
risks average it over many queries: its step and its window follow from the requested precision.
"""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from promptlimit._arrays import Array
from promptlimit._inputs import require_choice
from promptlimit.errors import ArgumentError


class Spacing(NamedTuple):
    """Steps and ranges of the two rules.

    Attributes:
        laplace: the step in u and v.
        nodes: the step in the coordinates of a token, times the larger sharpness.
        widest: the largest step in those coordinates.
        reach: how many standard deviations the nodes cover.
        left: how far below -log L the integrals begin.
    """

    laplace: float
    nodes: float
    widest: float
    reach: float
    left: float


SPACINGS = {
    "fine": Spacing(1.0 / 3.0, 0.35, 0.6, 8.2, 22.0),
    "coarse": Spacing(0.6, 0.6, 0.8, 5.6, 14.0),
    "rough": Spacing(0.8, 0.9, 1.0, 5.0, 11.0),
}
"""Relative errors below about 1e-9, 1e-3 and 1e-2."""

_MOST_NODES = 2**17
"""The largest number of nodes: with more, the kernels would take gigabytes."""


class MixtureTokens(NamedTuple):
    r"""Tokens of $\sum_k\pi_kN(m_k,RR')$, R symmetric.

    Attributes:
        means: $m_k$, [k, d].
        weights: $\pi_k$, [k].
        root: $R$, [d, d].
    """

    means: Array
    weights: Array
    root: Array


def cross_moment(
    tokens: MixtureTokens,
    tilts: tuple[Array, Array],
    values: tuple[Array, Array],
    lengths: Array,
    *,
    spacing: str = "fine",
) -> Array:
    r"""Return $E\langle\varepsilon_1,\varepsilon_2\rangle$ at each length, [l].

    Args:
        tokens: the law of a token.
        tilts: $t_1$ and $t_2$, [d] each.
        values: $V_1$ and $V_2$, [e, d] each.
        lengths: L, [l]: from 1 on, or infinite.
        spacing: "fine"; "coarse", a tenth of the work; or "rough", a fiftieth.
    """
    require_choice("spacing", spacing, SPACINGS)
    moments = np.zeros(lengths.size)
    drawn = np.isfinite(lengths)
    if drawn.any():
        pair = _HeadPair(tokens, tilts, values, SPACINGS[spacing])
        moments[drawn] = pair.moments(lengths[drawn])
    return moments


@dataclasses.dataclass(frozen=True)
class _HeadPair:
    """Two heads on one prompt."""

    tokens: MixtureTokens
    tilts: tuple[Array, Array]
    values: tuple[Array, Array]
    spacing: Spacing

    def moments(self, lengths: Array) -> Array:
        """Return the cross moments by the double integral."""
        points, weights, across = self._nodes()
        scores, outputs = zip(
            *(self._tilted(points, weights, head) for head in (0, 1)), strict=True
        )
        u, v = (self._places(score, weights, lengths) for score in scores)
        first, second = _Kernel(scores[0], u), _Kernel(scores[1], v)
        products = np.sum(outputs[0] * outputs[1], axis=1) + across
        joint = (first.heat * (weights * products)[:, None]).T @ second.heat
        gone = weights @ first.lost
        missed = gone[:, None] + (first.kept * weights[:, None]).T @ second.lost
        log_phi = np.log1p(-np.minimum(missed, 1.0 - 1e-16))
        left = [_drift(first, second, weights, y) for y in outputs[0].T]
        right = [_drift(second, first, weights, y).T for y in outputs[1].T]
        apart = sum(a * b for a, b in zip(left, right, strict=True))
        area = self.spacing.laplace**2
        return np.array(
            [
                area
                * (
                    length * np.sum(joint * np.exp((length - 1.0) * log_phi))
                    + length * (length - 1.0) * np.sum(apart * np.exp((length - 2.0) * log_phi))
                )
                for length in lengths
            ]
        )

    def _whitened(self, head: int) -> Array:
        return self.tokens.root @ self.tilts[head]

    def _nodes(self) -> tuple[Array, Array, float]:
        r"""Return tokens [n, d], their masses [n], and $\mathrm{tr}\,V_1R(I-QQ')RV_2'$.

        The columns of Q are an orthonormal basis of the span, so nearly equal tilts do no harm.
        """
        spacing, root = self.spacing, self.tokens.root
        both = np.stack([self._whitened(0), self._whitened(1)])
        _, sizes, axes = np.linalg.svd(both, full_matrices=False)
        seen_axes = int((sizes > 1e-12 * sizes[0]).sum())
        basis = axes[: max(1, seen_axes)]  # any direction where both tilts vanish
        sharpness = max(float(np.linalg.norm(tilt)) for tilt in both)
        step = min(spacing.widest, spacing.nodes / max(sharpness, 1e-300))
        centres = np.stack([np.zeros(both.shape[1]), *both, both.sum(axis=0)])
        seen = centres @ basis.T
        lines = [
            np.arange(low - spacing.reach, high + spacing.reach + step, step)
            for low, high in zip(seen.min(axis=0), seen.max(axis=0), strict=True)
        ]
        if math.prod(line.size for line in lines) > _MOST_NODES:
            raise ArgumentError(
                "attention",
                "must have milder scores where two of its heads read one prompt at "
                f"different tilts, got standard deviation {sharpness:.3g}. Scale its key-query "
                "matrices down, or pass kind='estimate' and a key to `risk`.",
            )
        grid: np.ndarray = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1).reshape(
            -1, len(lines)
        )
        mass = np.exp(-0.5 * np.sum(grid**2, axis=1)) * (step / math.sqrt(2 * math.pi)) ** len(
            lines
        )
        near = ((grid[:, None, :] - seen) ** 2).sum(axis=2).min(axis=1) < spacing.reach**2
        grid, mass = grid[near], mass[near]
        points = self.tokens.means[:, None] + grid @ basis @ root
        masses = self.tokens.weights[:, None] * mass
        left, right = (value @ root for value in self.values)
        across = np.sum(left * right) - np.sum((left @ basis.T) * (right @ basis.T))
        return points.reshape(-1, root.shape[0]), masses.ravel(), float(across)

    def _tilted(self, points: Array, weights: Array, head: int) -> tuple[Array, Array]:
        r"""Return scores, [n], with $E\,e^s=1$ over the nodes, and $y_h=V_hz-T_h$ there, [n, e]."""
        scores = points @ self.tilts[head]
        scores = scores - logsumexp(scores, b=weights)
        limit = (weights * np.exp(scores)) @ points
        return scores, (points - limit) @ self.values[head].T

    def _places(self, scores: Array, weights: Array, lengths: Array) -> Array:
        """Return the nodes in u that these lengths need for one head."""
        step = self.spacing.laplace
        first = -math.log(lengths.max()) - self.spacing.left
        likely = scores[weights > 1e-13]
        last = -float(likely.min()) + 3.0
        shortest = float(lengths.min())
        if shortest > 200.0:  # forty tokens above some score make the integrand zero beyond it
            order = np.argsort(scores)[::-1]
            above = np.cumsum(weights[order])
            last = -float(scores[order][np.searchsorted(above, 40.0 / shortest)]) + 3.0
        index = np.arange(math.floor(first / step), math.ceil(last / step) + 1)
        return np.asarray(step * index, dtype=np.float64)


class _Kernel:
    r"""Functions of the scores of nodes and of u, [n, u] each.

    Attributes:
        rate: $e^{s+u}$.
        lost: $1-e^{-e^{s+u}}$.
        kept: $e^{-e^{s+u}}$.
        heat: $e^{s+u}e^{-e^{s+u}}$.
        small: where $u\le0$.
    """

    def __init__(self, scores: Array, places: Array):
        self.small = places <= 0.0
        self.rate = np.exp(np.minimum(scores[:, None] + places, 700.0))
        self.lost = -np.expm1(-self.rate)
        self.kept = np.exp(-self.rate)
        self.heat = self.rate * self.kept


def _drift(own: _Kernel, other: _Kernel, weights: Array, errors: Array) -> Array:
    r"""Return $E[e_1y_1K]$, own places by others'; for $u\le0$ as $-E[e_1y_1(1-K)]$.

    The two are equal since $E\,e^{s_1}y_1=0$, and the second loses no digits.
    """
    mass = (weights * errors)[:, None]
    direct = (own.heat[:, ~own.small] * mass).T @ other.kept
    rate = own.rate[:, own.small] * mass
    lost = own.lost[:, own.small]
    centred = -np.sum(rate * lost, axis=0)[:, None] - (rate * own.kept[:, own.small]).T @ other.lost
    return np.concatenate([centred, direct])
