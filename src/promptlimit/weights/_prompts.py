r"""Prompts of any length: all integrals over them, whatever the law of their scores.

With $Z=\sum_le^{s_l}$ and $Z^{-k}=\frac1{\Gamma(k)}\int_0^\infty\tau^{k-1}e^{-\tau Z}d\tau$,
$\tau=e^u$, the tokens of a prompt separate, and one integral over u holds every length. With
$x=e^{s+u}$, $y=Vz-T$, $\phi=Ee^{-x}$ and $F_k[f]=E[f\,x^ke^{-x}]$,

    E(T_L - T)            = L int B phi^{L-1} du,                      B = F_1[y]
    E(T_L - T)(T_L - T)'  = L int F_2[yy'] phi^{L-1} du + L(L-1) int B B' phi^{L-2} du
    E S_2                 = L int F_2[1] phi^{L-1} du.

A query inside the prompt (Remark 3.2) is one more token, of score $s_0$: with $a=e^{u+s_0}$ every
integrand gains $e^{-a}$, and with $r=Vq-T$ the own token adds $r\int ae^{-a}\phi^L$,
$rr'\int a^2e^{-a}\phi^L$ and $L\int ae^{-a}(rB'+Br')\phi^{L-1}$. Derived in docs/finite.md.
"""

import abc
import dataclasses
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array, as_float64
from promptlimit.errors import AccuracyError

STEP = 0.25
"""Spacing in u of each of two interleaved rules; all is analytic for |Im u| < pi/2."""

NEGLIGIBLE = 42.0
"""Minus the logarithm of what is dropped."""

EPSILON = float(np.finfo(np.float64).eps)
LARGEST_EXPONENT = 300.0
SMALLEST = 1e-300

Numbers = NDArray[Any]
"""Real or complex."""


@dataclasses.dataclass(frozen=True)
class Scores:
    r"""Transforms of one score: u, $\log\phi(u)$ and its rounding error, $F_1[1](u)$, [u] each."""

    u: Array
    log_phi: Array
    rounding: Array
    mass: Array

    def up_to(self, count: int) -> "Scores":
        """Return the first so many."""
        return Scores(*(getattr(self, field.name)[:count] for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class AbstractProducts(abc.ABC):
    r"""$F_k$ of anything, and $F_{k-1}$ of what has mean zero at $c=k-1$: sums over places j.

    A place is a multiple of the tilt, or a token.

    Attributes:
        shares: $\int F_k$ times `Prompts.one`, by even and odd nodes u, as weights of the means of
            f at the places, [2, n, j].
        rounding: the rounding error of `shares` of both rules, [n, j].
        density: $F_k[1]$, [u].
    """

    shares: Numbers
    rounding: Array
    density: Array

    @abc.abstractmethod
    def lower(self, centred: Numbers, blur: Array) -> tuple[Array, Array]:
        r"""Return $F_{k-1}$, [u, e], of means of f at the places, [j, e], and its error, [u].

        `blur` is the error of those means, [j].
        """

    def integral(self) -> Array:
        r"""Return $L\int F_k[1]\phi^{L-1}e^{-a}$ by the even and by the odd nodes, [2, n]."""
        return np.real(self.shares.sum(axis=2))


class AbstractScoreLaw(abc.ABC):
    r"""The law of a token, seen along a tilt: what integrals over prompts are made of."""

    @abc.abstractmethod
    def score_of(self, token: Array) -> float:
        r"""Return $\langle t,z\rangle$ of one token, measured from the offset."""

    @abc.abstractmethod
    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        r"""Return u between which something is left of $1-\phi^L$ and of $\phi^L$."""

    @abc.abstractmethod
    def scores(self, u: Array) -> Scores:
        """Return the transforms of one score at evenly spaced u."""

    @abc.abstractmethod
    def products(self, power: int, u: Array, weights: Array) -> AbstractProducts:
        """Return $F_k$, k = `power`, summed over even and over odd u with weights, [n, u]."""

    @abc.abstractmethod
    def ends(self, value: Array) -> tuple[Array, Array, Array]:
        r"""Return $V\nabla\Lambda(t)$, $V\nabla\Lambda(0)$ and $V\nabla^2\Lambda(0)V'$."""

    @property
    @abc.abstractmethod
    def offset(self) -> float:
        """The score from which scores are measured here."""

    @property
    @abc.abstractmethod
    def log_mean(self) -> float:
        r"""$\Lambda(t)$, of scores measured from the offset."""

    @abc.abstractmethod
    def readings(
        self, value: Array, limit: Array, products: AbstractProducts
    ) -> Iterator[tuple[slice, Numbers, Numbers, Array, Array]]:
        r"""Yield places, means of $Vz-T$ there, [j, e], covariances, [j, e, e], and their errors.

        T = `limit` is $V\nabla\Lambda(t)$, and the means add up to zero under the tilted law. The
        errors, [j] each, are what rounding moves the means and the traces of the second moments by.
        """


def even_and_odd(part: slice) -> list[slice]:
    """Return the even and the odd places of a part, counted from its start."""
    return [slice((rule - part.start) % 2, None, 2) for rule in (0, 1)]


@dataclasses.dataclass(frozen=True)
class Prompts:
    r"""Prompts of several lengths whose tokens have scores from one law.

    Attributes:
        law: of a token, along the tilt.
        length: L, finite, [n]; at least 2, or 1 with an own token.
        own_score: $s_0$, of a query that is a token of its prompt; None without.
    """

    law: AbstractScoreLaw
    length: Array
    own_score: float | None = None

    @cached_property
    def scores(self) -> Scores:
        r"""$\log\phi$ and $F_1[1]$ at every u that matters to one of the lengths."""
        longest, shortest = float(self.length.max()), float(self.length.min())
        low, high = self.law.window(longest, max(shortest - 1.0, 0.5))
        if self.own_score is not None:
            high = min(high, math.log(NEGLIGIBLE) + 0.5 - self.own_score)
            low = min(low, high, -NEGLIGIBLE - self.own_score)
        first, last = math.floor(low / STEP), math.ceil(high / STEP)
        u = as_float64(0.5 * STEP * np.arange(2 * first, 2 * last + 2))
        scores = self.law.scores(u)
        left = (shortest - 1.0) * scores.log_phi - self.own(u)
        some = np.flatnonzero(left > -1.5 * NEGLIGIBLE)
        if not some.size:
            raise AccuracyError(
                "the law of the scores leaves nothing to integrate. Scale the attention down."
            )
        kept = int(some[-1]) + 2
        return scores.up_to(kept + kept % 2)

    def own(self, u: Array) -> Array:
        r"""Return $a=e^{u+s_0}$, zero without an own token."""
        if self.own_score is None:
            return np.zeros_like(u)
        return np.exp(np.minimum(u + self.own_score, LARGEST_EXPONENT))

    @cached_property
    def one(self) -> Array:
        r"""$L\phi^{L-1}e^{-a}$ times the step, [n, u]."""
        return self._factor(self.length, 1.0)

    @cached_property
    def two(self) -> Array:
        r"""$L(L-1)\phi^{L-2}e^{-a}$ times the step, [n, u]."""
        return self._factor(self.length * (self.length - 1.0), 2.0)

    def _factor(self, front: Array, apart: float) -> Array:
        left = np.maximum(self.length - apart, 0.0)[:, None] * self.scores.log_phi
        return STEP * front[:, None] * np.exp(left - self.own(self.scores.u))

    @cached_property
    def squares(self) -> AbstractProducts:
        r"""$F_2$, and $F_1$ of what has mean zero at the tilt."""
        return self.law.products(2, self.scores.u, self.one)

    @cached_property
    def crossings(self) -> AbstractProducts:
        r"""$F_1$, and $F_0$ of what has mean zero."""
        return self.law.products(1, self.scores.u, self.one)
