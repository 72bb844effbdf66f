r"""Exact moments of the weights that a softmax head assigns to the components of a mixture.

Tokens come from $\sum_k\pi_kN(m_k,S)$, whose components have the same covariance, and the head has
the tilt t. In component k a token has the score $\langle m_k,t\rangle+\sigma g$ with
$\sigma^2=t'St$ and g standard normal. Let $p_l$ be the softmax weights, $N_k$ the sum of the
weights of the tokens from component k, $\alpha_k$ the limit of $N_k$, $B=\sum_lp_lg_l-\sigma$ and
$S_2=\sum_lp_l^2$. The first and second moments of outputs follow from the moments of $N_k$ and B,
and from $E\,S_2$ (docs/mixtures-theory.md). Risks average over thousands of tilts, for which
`prompt_integrals` would take 2.5 to 7 times as long.

Shift the scores s such that $E\,e^s=1$, and let $x=e^{s+u}$, $\varphi(u)=E\,e^{-x}$ and
$a_j[F]=E[F\,x^je^{-x}]$. For functions F and G of one token with mean zero under the tilted law,

    E sum p F            = L int a_1[F] phi^{L-1} du
    E sum p F  sum p G   = L int a_2[FG] phi^{L-1} du + L(L-1) int a_1[F] a_1[G] phi^{L-2} du.

Two such functions are $h=g-\sigma$, with $a_1[h]=-\sigma a_2[1]$ by Stein's lemma, and
$1_k-\alpha_k$, where $1_k$ is 1 for tokens of component k and 0 for other tokens.
"""

import dataclasses
import functools
import math

import numpy as np

from promptlimit._arrays import Array
from promptlimit.weights._brackets import brackets
from promptlimit.weights._gaussian_score import MixtureScore, mixture_window

_STEP = 1.0 / 3.0
"""The step in u, for a precision of 1e-10."""

SHARPEST = 40.0
"""The largest sharpness. Exponents grow like its square."""

_DIGITS = 10
"""The number of decimals to which tilts must agree to be computed once."""


@dataclasses.dataclass(frozen=True)
class Selection:
    r"""First and second moments of the weights of components, at n tilts and l lengths.

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
    r"""Return the moments of selection for a mixture with one covariance.

    Tilts that are equal up to an exchange of components of equal weight are computed once, which
    makes averages over symmetric lattices three times faster (benchmarks/denoising.py).

    Args:
        sharpness: $\sigma$, [n].
        shifts: $\langle m_k,t\rangle$, [n, k].
        weights: $\pi_k$, [k], positive.
        lengths: L, [l]: at least 1, or infinite.
    """
    # Moments do not change if a constant is added to all shifts.
    alike = (weights[:, None] == weights).argmax(axis=1)  # the first component of equal weight
    order = np.lexsort((shifts, np.broadcast_to(alike, shifts.shape)))
    rows = np.column_stack([sharpness, np.take_along_axis(shifts, order, axis=1)])
    rows[:, 1:] -= rows[:, 1:2]
    _, kept, places = np.unique(rows.round(_DIGITS), axis=0, return_index=True, return_inverse=True)
    sorted_weights = weights[np.argsort(alike, kind="stable")]
    moments = _cached_moments(rows[kept].tobytes(), sorted_weights.tobytes(), lengths.tobytes())
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
def _cached_moments(rows: bytes, weights: bytes, lengths: bytes) -> tuple[Array, ...]:
    """Return the fields of `Selection`; each row contains a sharpness and the shifts."""
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
        """Return the moments over prompts of at least two tokens."""
        sigma, (alpha, total) = np.full_like(self.shifts, self.sharpness), self.gates
        offsets = self.shifts - total - 0.5 * sigma**2
        low, high = mixture_window(offsets, sigma, float(lengths.max()), float(lengths.min()))
        numbers = np.arange(math.floor(low / _STEP), math.ceil(high / _STEP) + 1)
        u = np.multiply(_STEP, numbers, dtype=np.float64)
        score = MixtureScore.of(self.weights, offsets, sigma, u)
        away = np.eye(alpha.size) - alpha[:, None]  # [k, j]: 1_k - alpha_k in component j
        drift = score.drift(away)
        ((heat, heat_along, heat_square),) = score.moments((2,), 2)
        square = heat.sum(axis=0)  # a_2[1]
        fall = -self.sharpness * square  # a_1[h]
        quantities = {
            "masses": {1: drift},
            "products": {1: (away[:, None] * away) @ heat, 2: drift[:, None] * drift},
            "along": {1: away @ heat_along, 2: drift * fall},
            "score": {1: heat_square.sum(axis=0), 2: fall**2},
            "participation": {1: square},
        }
        found = brackets(quantities, u, score.log_phi, lengths).values()
        return tuple(np.moveaxis(rules.mean(axis=-2), -1, 0) for rules in found)
