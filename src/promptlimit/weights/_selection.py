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
from scipy.special import ndtri, ndtri_exp, xlogy

from promptlimit._arrays import Array
from promptlimit.weights._transforms import correlations

_STEP = 1.0 / 3.0
"""In u, and in g over the sharpness: both integrals are then right to 1e-10."""

_WIDEST_STEP = 0.7
_REACH = 8.6
"""Standard deviations beyond which a normal law has no mass that counts."""

_LEFT = 15.0
"""How far below -log L the integrals over u begin: integrands fall like e^{2u} there."""

_LARGEST = 300.0
"""What an exponent is cut to: of $e^{-e^x}$ nothing is left there, and $e^{2x}$ is a number."""

SHARPEST = 40.0
"""The largest sharpness: the work grows like its cube, and exponents like its square."""

_NEGLIGIBLE = 33.0
"""Minus the logarithm of what may be left out on the right."""

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
        offsets = self.shifts - total - 0.5 * sigma**2
        u = self._places(offsets, lengths)
        drift, heat, heat_along, heat_square, gone = self._transforms(offsets, u)
        log_phi = np.log1p(-np.minimum(gone, 1.0 - 1e-16))
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

    def _places(self, offsets: Array, lengths: Array) -> Array:
        """Return the nodes in u that these lengths need."""
        shortest, longest = float(lengths.min()), float(lengths.max())
        # All tokens below a score: phi^L is negligible, whichever components they are of ...
        last = -float(offsets.min()) - self.sharpness * float(ndtri_exp(-_NEGLIGIBLE / shortest))
        share = _NEGLIGIBLE / (shortest * self.weights)
        if (share < 0.5).any():  # ... or because enough of one component lie above it
            likely = share < 0.5
            scores = offsets[likely] - self.sharpness * ndtri(share[likely])
            last = min(last, -float(scores.max()))
        first = -math.log(longest) - _LEFT - self.sharpness
        return np.arange(first, max(last, first) + 4.0, _STEP)

    def _top(self, offsets: Array, first: float) -> float:
        r"""Return where g ends: $e^{2x}$ moves it to $2\sigma$, unless $e^{-e^x}$ cuts it off."""
        sigma = self.sharpness
        if sigma == 0.0:
            return _REACH
        cut = (5.0 - first - float(offsets.max())) / sigma
        return max(sigma + _REACH, min(2.0 * sigma + _REACH, cut))

    def _transforms(self, offsets: Array, u: Array) -> tuple[Array, Array, Array, Array, Array]:
        r"""Return $a_1[1_k-\alpha_k]$, $a_2[h^j1_k]$ for j = 0, 1, 2, [k, u], and $1-\varphi$, [u].

        Where tilted tokens have $e^x$ below 1 these are means of $e^{-e^x}-1$ over each component,
        tilted, so that no digits are lost in long prompts; beyond, means over the plain components,
        where $e^{-e^x}-1$ would be near -1 and lose them for sharp heads.
        """
        sigma, (alpha, _) = self.sharpness, self.gates
        scores = _Scores.at(sigma, offsets, u, self._top(offsets, float(u[0])))
        plain, tilted = scores.densities(0.0, sigma), scores.densities(sigma, sigma)
        apart = float(np.sum(xlogy(alpha, alpha / self.weights)))
        small = u <= -0.5 * sigma**2 - apart  # the mean of x over tilted tokens is below 0
        near, far, scale = slice(0, small.sum()), slice(small.sum(), u.size), np.exp(u[small])
        rate = np.exp(np.minimum(scores.x, _LARGEST))  # e^x
        lost = np.expm1(-rate)
        kept = rate * (1.0 + lost)  # e^x e^{-e^x}
        every = slice(0, u.size)
        drift, heat = np.empty((offsets.size, u.size)), np.empty((offsets.size, u.size, 3))
        means = scores.sums(lost, np.column_stack([plain[:, 0], tilted[:, 0]]), every)
        gone, first = -self.weights @ means[..., 0], scale * means[:, near, 1]
        drift[:, near] = alpha[:, None] * (first - alpha @ first)
        first = self.weights[:, None] * scores.sums(kept, plain[:, :1], far)[..., 0]
        drift[:, far] = first - alpha[:, None] * first.sum(axis=0)
        heat[:, near] = np.outer(alpha, scale)[..., None] * scores.sums(kept, tilted, near)
        heat[:, far] = self.weights[:, None, None] * scores.sums(kept * rate, plain, far)
        return drift, heat[..., 0], heat[..., 1], heat[..., 2], gone


@dataclasses.dataclass(frozen=True)
class _Scores:
    """Nodes in g, and the exponents x of every component there.

    Where x takes the same steps along g as along u, it depends on the sum of the two indices alone:
    means over g are then correlations, and n nodes of each ask for 2n exponentials, not n squared.

    Attributes:
        g: the nodes.
        step: between them.
        x: [k, u + g - 1] where the steps are the same, else [k, u, g].
    """

    g: Array
    step: float
    x: Array

    @classmethod
    def at(cls, sharpness: float, offsets: Array, u: Array, top: float) -> "_Scores":
        """Return the nodes up to `top`, and x there."""
        same = sharpness * _WIDEST_STEP >= _STEP
        step = _STEP / sharpness if same else _WIDEST_STEP
        g = np.arange(-_REACH, top + step, step)
        if same:
            lowest = offsets[:, None] + (u[0] + sharpness * g[0])
            return cls(g, step, lowest + _STEP * np.arange(u.size + g.size - 1))
        return cls(g, step, (offsets[:, None] + u)[..., None] + sharpness * g)

    def densities(self, mean: float, sharpness: float) -> Array:
        r"""Return the normal density about a mean times $h^j$ and the step, j = 0, 1, 2, [g, j]."""
        density = self.step / math.sqrt(2 * math.pi) * np.exp(-0.5 * (self.g - mean) ** 2)
        h = self.g - sharpness
        return np.column_stack([density, density * h, density * h**2])

    def sums(self, values: Array, densities: Array, rows: slice) -> Array:
        """Return the sums over g at some of the nodes in u, of values at x: [k, rows, j]."""
        if values.ndim == 3:
            return values[:, rows] @ densities
        if rows.start == rows.stop:
            return np.zeros((len(values), 0, densities.shape[1]))
        return correlations(values[:, rows.start : rows.stop + self.g.size - 1], densities)
