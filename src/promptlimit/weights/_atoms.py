r"""Finitely many tokens, each with its probability, as integrals over prompts ask for them.

$F_k[f](u)=\sum_iw_if(z_i)x_i^ke^{-x_i}$, $x_i=e^{s_i+u}$: plain sums. A place is a token.
"""

import dataclasses
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy.special import softmax

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.weights._prompts import (
    EPSILON,
    LARGEST_EXPONENT,
    NEGLIGIBLE,
    SMALLEST,
    AbstractProducts,
    AbstractScoreLaw,
    Scores,
    even_and_odd,
)

_WIDEST = 2.0**13
"""Range of u beyond which scores are too far apart to be summed over."""

_ENTRIES_AT_ONCE = 2**20
_ROUNDING = 8.0 * EPSILON


@dataclasses.dataclass(frozen=True)
class Atoms(AbstractScoreLaw):
    r"""The law $\sum_iw_i\delta_{z_i}$ along a tilt.

    Attributes:
        weights: $w_i$, positive, [j].
        tokens: $z_i$, [j, d].
        tilt: $t$, [d].
    """

    weights: Array
    tokens: Array
    tilt: Array

    @cached_property
    def heaviest(self) -> int:
        """The token of largest tilted weight."""
        return int(np.argmax(np.log(self.weights) + self.tokens @ self.tilt))

    @cached_property
    def token_scores(self) -> Array:
        r"""$s_i=\langle t,z_i\rangle$ from that of the heaviest token, [j]."""
        return (self.tokens - self.tokens[self.heaviest]) @ self.tilt

    @property
    def offset(self) -> float:
        """The score of the heaviest token."""
        return float(self.tokens[self.heaviest] @ self.tilt)

    def score_of(self, token: Array) -> float:
        return float(token @ self.tilt) - self.offset

    @property
    def log_mean(self) -> float:
        r"""$\Lambda(t)$, from that score."""
        return float(np.logaddexp.reduce(np.log(self.weights) + self.token_scores))

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which something is left of $1-\phi^L$ and of $\phi^L$.

        $1-\phi\le Ee^{s+u}$, and $\phi\le e^{-e^{u+s}}$ for the least score.
        """
        low = -NEGLIGIBLE - math.log(longest) - self.log_mean
        high = math.log(NEGLIGIBLE / shortest) + 0.5 - float(self.token_scores.min())
        if not high - low <= _WIDEST:
            raise AccuracyError(
                "scores must lie within a few thousand of each other to be integrated over, got "
                f"a range of {high - low:.3g}. Scale the attention down.",
                argument="attention",
            )
        return low, high

    def scores(self, u: Array) -> Scores:
        """Return the transforms of one score at evenly spaced u."""
        log_phi, mass = np.empty((2, u.size))
        for part in self._blocks(u):
            power = self._powers(u[part])
            phi, complement = np.exp(-power) @ self.weights, -np.expm1(-power) @ self.weights
            near_one = complement < 0.5
            small = np.log(np.maximum(phi, SMALLEST))
            log_phi[part] = np.where(near_one, np.log1p(-np.minimum(complement, 0.5)), small)
            mass[part] = (power * np.exp(-power)) @ self.weights
        rounding = _ROUNDING * np.minimum(np.abs(log_phi), 1.0)
        return Scores(u, log_phi, rounding, mass)

    def products(self, power: int, u: Array, weights: Array) -> "AtomProducts":
        """Return $F_k$, k = `power`, summed over even and over odd u with weights, [n, u]."""
        shares = np.zeros((2, weights.shape[0], self.weights.size))
        density = np.empty(u.size)
        for part in self._blocks(u):
            x = self._powers(u[part])
            kernel = x**power * np.exp(-x) * self.weights
            here = weights[:, part]
            shares += np.stack([here[:, at] @ kernel[at] for at in even_and_odd(part)])
            density[part] = kernel.sum(axis=1)
        rounding = _ROUNDING * shares.sum(axis=0)
        return AtomProducts(shares, rounding, density, self, u, power)

    def ends(self, value: Array) -> tuple[Array, Array, Array]:
        r"""Return $V\nabla\Lambda(t)$, $V\nabla\Lambda(0)$ and $V\nabla^2\Lambda(0)V'$."""
        tilted = softmax(np.log(self.weights) + self.token_scores)
        mean = self.weights @ self.tokens
        centred = (self.tokens - mean) @ value.T
        cov = (self.weights[:, None] * centred).T @ centred
        return value @ (tilted @ self.tokens), value @ mean, cov

    def readings(
        self, value: Array, limit: Array, products: AbstractProducts
    ) -> Iterator[tuple[slice, Array, Array, Array, Array]]:
        """Yield tokens, and Vz - T of each, which does not vary.

        Differences from the token of largest tilted weight, to which T may be close: no error.
        """
        count, outputs = self.weights.size, limit.size
        tilted = softmax(np.log(self.weights) + self.token_scores)
        apart = self.tokens - self.tokens[self.heaviest]
        centred = (apart - tilted @ apart) @ value.T
        block = max(1, _ENTRIES_AT_ONCE // outputs**2)
        for start in range(0, products.shares.shape[2], block):
            part = slice(start, min(start + block, count))
            still = np.zeros((part.stop - part.start, outputs, outputs))
            exact = np.zeros(still.shape[0])
            yield part, centred[part], still, exact, exact

    def _powers(self, u: Array) -> Array:
        return np.exp(np.minimum(u[:, None] + self.token_scores, LARGEST_EXPONENT))

    def _blocks(self, u: Array) -> Iterator[slice]:
        size = max(1, _ENTRIES_AT_ONCE // self.weights.size)
        for start in range(0, u.size, size):
            yield slice(start, min(start + size, u.size))


@dataclasses.dataclass(frozen=True)
class AtomProducts(AbstractProducts):
    """Sums over tokens."""

    law: Atoms
    u: Array
    power: int

    def lower(self, centred: Array, blur: Array) -> tuple[Array, Array]:  # noqa: ARG002  # exact here
        r"""Return $F_{k-1}$, [u, e], of f at the tokens, [j, e], and its error, [u].

        As $E[fx^{k-1}]=0$, $E[f x^{k-1}e^{-x}]=-E[fx^{k-1}(1-e^{-x})]$: the smaller sum is taken.
        """
        law, below = self.law, self.power - 1
        lowered, lost = np.empty((self.u.size, centred.shape[1])), np.empty(self.u.size)
        size = np.linalg.norm(centred, axis=1)
        for part in law._blocks(self.u):
            x = law._powers(self.u[part])
            direct = x**below * np.exp(-x) * law.weights
            other = -(x**below) * np.expm1(-x) * law.weights
            sizes = direct @ size, other @ size
            smaller = sizes[0] <= sizes[1]
            lowered[part] = np.where(smaller[:, None], direct @ centred, -(other @ centred))
            lost[part] = _ROUNDING * np.minimum(*sizes)
        return lowered, lost
