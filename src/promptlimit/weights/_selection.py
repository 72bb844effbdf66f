r"""Which component of a mixture a finite prompt selects, exactly and for all lengths at once.

Tokens come from $\sum_k\pi_kN(m_k,S)$, components of one covariance, and a softmax head reads them
at a tilt t. Its weights see a token through its component and one coordinate g, standard normal
inside the component: the score is $\langle m_k,t\rangle+\sigma g$, $\sigma^2=t'St$. Let $N_k$ be
the weight on component k, $\alpha_k$ its limit, and $B=\sum_lp_lg_l-\sigma$. What the head reads,
$\sum_lp_lz_l$, is then off its limit by

    sum_k (N_k - alpha_k) m_k + S^{1/2} (e B + across),   e = S^{1/2} t / sigma,

where, given the weights, `across` is normal of covariance $S_2(I-ee')$, $S_2=\sum_lp_l^2$. So all
first and second moments follow from those of $N_k$, $B$ and $S_2$, which depend on $\sigma$, the
$\langle m_k,t\rangle$, the weights and L alone (derived here).

With the scores normalised to $E\,e^s=1$, $x=s+u$, $\varphi(u)=E\,e^{-e^x}$ and
$a_j[F]=E[F\,e^{jx}e^{-e^x}]$, for F and G of one token, centred under the tilted law,

    E sum p F            = L int a_1[F] phi^{L-1} du
    E sum p F  sum p G   = L int a_2[FG] phi^{L-1} du + L(L-1) int a_1[F] a_1[G] phi^{L-2} du.

Under the tilted law component k has mass $\alpha_k$ and $h=g-\sigma$ is standard normal in each, so
that $a_1[h]=-\sigma a_2[1]$ by Stein, and $a_1[1_k-\alpha_k]$ is a difference of
$E_k(1-e^{-e^x})$ between components: no digits are lost however long the prompt.
"""

import dataclasses
import functools
import math

import numpy as np

from promptlimit._arrays import Array
from promptlimit.weights._gaussian_score import GaussianScore, log_from, score_window

_STEP = 1.0 / 3.0
"""In u: risks average selections over thousands of tilts, for which a precision of 1e-10 is enough.
`prompt_integrals`, with the components as values, takes three times as long for a tilt."""

SHARPEST = 40.0
"""The largest sharpness: exponents grow like its square."""

_DIGITS = 10
"""Decimals to which tilts must agree to be taken for one."""


@dataclasses.dataclass(frozen=True)
class Selection:
    r"""First and second moments of what the weights select, at n tilts and l lengths.

    Attributes:
        masses: $E(N_k-\alpha_k)$, [n, l, k].
        products: $E(N_k-\alpha_k)(N_j-\alpha_j)$, [n, l, k, k].
        along: $E(N_k-\alpha_k)B$, [n, l, k].
        score: $E\,B^2$, [n, l].
        participation: $E\,S_2$, [n, l].
    """

    masses: Array
    products: Array
    along: Array
    score: Array
    participation: Array


def selection(sharpness: Array, shifts: Array, weights: Array, lengths: Array) -> Selection:
    r"""Return the moments of selection for tokens whose components share their covariance.

    Args:
        sharpness: $\sigma$, [n].
        shifts: $\langle m_k,t\rangle$, [n, k].
        weights: $\pi_k$, [k], positive.
        lengths: L, [l]: from 1 on, or infinite.
    """
    # Components of one weight may change places, and a shift of all shifts changes nothing.
    alike = (weights[:, None] == weights).argmax(axis=1)  # the first of the same weight
    order = np.lexsort((shifts, np.broadcast_to(alike, shifts.shape)))
    rows = np.column_stack([sharpness, np.take_along_axis(shifts, order, axis=1)])
    rows[:, 1:] -= rows[:, 1:2]
    _, kept, places = np.unique(rows.round(_DIGITS), axis=0, return_index=True, return_inverse=True)
    sorted_weights = weights[np.argsort(alike, kind="stable")]
    moments = _kept_moments(rows[kept].tobytes(), sorted_weights.tobytes(), lengths.tobytes())
    masses, products, along, score, participation = (part[places.ravel()] for part in moments)
    back = np.argsort(order, axis=1)[:, None]
    products = np.take_along_axis(products, back[..., None], axis=2)
    return Selection(
        np.take_along_axis(masses, back, axis=2),
        np.take_along_axis(products, back[:, :, None], axis=3),
        np.take_along_axis(along, back, axis=2),
        score,
        participation,
    )


@functools.lru_cache(maxsize=4)
def _kept_moments(rows: bytes, weights: bytes, lengths: bytes) -> tuple[Array, ...]:
    """Return the moments in the order of `Selection`, at rows of a sharpness and its shifts."""
    masses, tokens = np.frombuffer(weights), np.frombuffer(lengths)
    kinds, size = masses.size, tokens.size
    table = np.frombuffer(rows).reshape(-1, 1 + kinds)
    shapes = ((kinds,), (kinds, kinds), (kinds,), (), ())
    arrays = tuple(np.zeros((len(table), size, *shape)) for shape in shapes)
    drawn, alone = np.isfinite(tokens) & (tokens > 1.0), tokens == 1.0
    for place, (sharpness, *shifts) in enumerate(table):
        tilt = _Tilt(float(sharpness), np.array(shifts), masses)
        for which, moments in ((alone, tilt.one_token), (drawn, tilt.prompts)):
            if which.any():
                for array, row in zip(arrays, moments(tokens[which]), strict=True):
                    array[place, which] = row
    return arrays


@dataclasses.dataclass(frozen=True)
class _Tilt:
    r"""One tilt: $\sigma$, $\langle m_k,t\rangle$ and $\pi_k$."""

    sharpness: float
    shifts: Array
    weights: Array

    @property
    def gates(self) -> tuple[Array, float]:
        r"""$\alpha_k$, and $\log\sum_k\pi_ke^{\langle m_k,t\rangle}$."""
        logs = np.log(self.weights) + self.shifts
        top = float(logs.max())
        total = top + math.log(np.exp(logs - top).sum())
        return np.exp(logs - total), total

    def one_token(self, _: Array) -> tuple[Array, ...]:
        """Return the moments of one token, which has all the weight."""
        alpha = self.gates[0]
        away = np.eye(alpha.size) - alpha
        mean = self.weights - alpha
        products = np.einsum("j,jk,jl->kl", self.weights, away, away)
        score = np.array(1.0 + self.sharpness**2)
        return mean, products, -self.sharpness * mean, score, np.array(1.0)

    def prompts(self, lengths: Array) -> tuple[Array, ...]:
        """Return the moments of prompts of at least two tokens, by trapezoidal rules."""
        sigma, (alpha, total) = self.sharpness, self.gates
        offsets = (self.shifts - total - 0.5 * sigma**2).tolist()
        ends = float(lengths.max()), float(lengths.min())
        lows, highs = zip(*(score_window(c, sigma, *ends) for c in offsets), strict=True)
        numbers = np.arange(math.floor(min(lows) / _STEP), math.ceil(max(highs) / _STEP) + 1)
        u = np.multiply(_STEP, numbers, dtype=np.float64)
        parts = [GaussianScore(offset, sigma, u) for offset in offsets]
        moments = self.weights[:, None] * np.stack(
            [part.moments((1, 2), 2, sigma) for part in parts], axis=2
        )
        heat, heat_along, heat_square = moments[1]
        drift, log_phi = self._drift(parts, moments[0, 0])
        one = _STEP * lengths[:, None] * np.exp((lengths - 1.0)[:, None] * log_phi)
        pairs = lengths * (lengths - 1.0)
        two = _STEP * pairs[:, None] * np.exp((lengths - 2.0)[:, None] * log_phi)
        square = heat.sum(axis=0)  # a_2[1]
        fall = -sigma * square  # a_1[h]
        away = np.eye(alpha.size) - alpha[:, None]  # [k, j]: 1_k - alpha_k in component j
        inside = (away[:, None] * away).reshape(-1, alpha.size) @ heat
        outer = (drift[:, None] * drift).reshape(-1, u.size)
        products = (one @ inside.T + two @ outer.T).reshape(-1, alpha.size, alpha.size)
        along = one @ (away @ heat_along).T + (two * fall) @ drift.T
        score = one @ heat_square.sum(axis=0) + two @ fall**2
        return one @ drift.T, products, along, score, one @ square

    def _drift(self, parts: list[GaussianScore], mass: Array) -> tuple[Array, Array]:
        r"""Return $a_1[1_k-\alpha_k]$ from $a_1[1_k]$, [k, u], and $\log\varphi$, [u].

        Where $E[x(1-e^{-x})]$ is the smaller, it takes the place of $-E[xe^{-x}]$, to which it adds
        what the tilted law makes zero: no digits are lost in long prompts.
        """
        alpha = self.gates[0][:, None]
        rows = np.array([(*part.kept_and_lost, part.missing) for part in parts])
        kept, lost, missing = self.weights[:, None] * rows.transpose(1, 0, 2)
        direct, other = mass - alpha * mass.sum(axis=0), missing - alpha * missing.sum(axis=0)
        drift = np.where(mass.sum(axis=0) <= missing.sum(axis=0), direct, -other)
        return drift, log_from(kept.sum(axis=0), lost.sum(axis=0))
