r"""Prompts drawn from a list of tokens without replacement.

A prompt contains L of N tokens. For token i, $s_i$ is the score, $x_i=e^{s_i+u}$, and $y_i$ is the
value minus the limit. With $D_i=e^{-x_i(1-\langle a,y_i\rangle)}$, the function $\Psi$ of
`AbstractPrompt.cumulants` is $\binom NL^{-1}[\zeta^L]\prod_i(1+\zeta D_i)$, where $[\zeta^L]$
denotes the coefficient of $\zeta^L$. This coefficient is an integral over a circle $|\zeta|=r$. At
the angle $\theta$ of the circle, tokens are independent: token i is included with the complex
probability $Q_i=q_ie^{i\theta}/(1-q_i+q_ie^{i\theta})$. Here $q_i=rD_i/(1+rD_i)$ at $a=0$, and r is
such that $\sum_iq_i\approx L$.
"""

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import Array, ArrayLike, as_float64
from promptlimit._inputs import float_array
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.prompts._abstract import AbstractPrompt, Readout
from promptlimit.weights import EPSILON, NEGLIGIBLE, Cumulants

_ENTRIES_AT_ONCE = 2**20
_NODES_AT_ONCE = 16
"""The largest number of nodes u in a block; the nodes of a block share their angles."""

_USUAL_ANGLES = 32


class WithoutReplacement(AbstractPrompt):
    """L different tokens from a list of N; attention over all N tokens is the limit.

    Moments are exact. They take less than a second for a list of a thousand tokens.

    Args:
        tokens: the list, shape `[N, d]`.

    >>> import numpy as np, promptlimit as pl
    >>> tokens = np.linspace(-1.0, 1.0, 100)[:, None]
    >>> head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    >>> for law in (pl.WithoutReplacement(tokens), pl.Empirical(tokens)):
    ...     print(pl.prompt_moments(head, law, [1.0], [10, 90]).mse.round(5))
    [0.0314  0.00034]
    [0.0346  0.00339]
    """

    tokens: Float[JaxArray, "n d"]

    def __init__(self, tokens: ArrayLike):
        self.tokens = float_array("tokens", tokens, rank=2)
        if not self.tokens.size:
            raise ArgumentError(
                "tokens", f"must contain at least one token, got shape {self.tokens.shape}."
            )

    @property
    def dim(self) -> int:
        """The dimension of a token."""
        return self.tokens.shape[1]

    @property
    def token_law(self) -> AbstractMeasure:
        """The law of a token drawn from the whole list with equal probabilities."""
        return Empirical(self.tokens)

    @property
    def most_tokens(self) -> float:
        """The number N of listed tokens."""
        return float(len(self.tokens))

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[JaxArray, "length d"]:
        """Return `length` different tokens of the list."""
        return self.tokens[jax.random.permutation(key, len(self.tokens))[:length]]

    def score_range(self, head: Readout) -> tuple[float, float]:
        """Return the smallest and the largest score of a token, minus the origin."""
        scores = head.scores(as_float64(self.tokens))
        return float(scores.min()), float(scores.max())

    def cumulants(self, head: Readout, u: Array, lengths: Array) -> Cumulants:
        """Return the cumulants, by a trapezoidal rule over the angles."""
        tokens = as_float64(self.tokens)
        rows = [_cumulants(head, tokens, u, int(length)) for length in lengths]
        return Cumulants(
            *(np.stack(column) for column in zip(*rows, strict=True)),
            rounding=np.full(lengths.size, 16.0 * EPSILON),
        )


def _cumulants(head: Readout, tokens: Array, u: Array, length: int) -> tuple[Array, Array, Array]:
    x = head.exponentials(tokens, u)
    if length == len(tokens):
        y = head.features(tokens, x)
        first = np.einsum("ui,fui->uf", x, y)
        first[:, : len(y) - 2] = 0.0  # the output over all tokens is the limit
        return -x.sum(axis=1), first, np.zeros((u.size, len(y) - 1, len(y) - 1))
    block = max(1, min(_NODES_AT_ONCE, _ENTRIES_AT_ONCE // (_USUAL_ANGLES * len(tokens))))
    parts = [
        _at_nodes(head.features(tokens, some), some, length)
        for some in (x[start : start + block] for start in range(0, u.size, block))
    ]
    log_psi, first, second = (np.concatenate(column) for column in zip(*parts, strict=True))
    return log_psi, first, second


def _at_nodes(y: Array, x: Array, length: int) -> tuple[Array, Array, Array]:
    r"""Return $k_0$, $k_1$ and $k_2$ at some nodes.

    Given the angle, $k_1=\sum_iQ_ix_iy_i$ and $k_2=\sum_iQ_i(1-Q_i)x_i^2y_iy_i'$. Because
    $\sum_ix_iy_i=0$, the code replaces $Q_i$ in $k_1$ by $Q_i-L/N$, so that no digits are lost if L
    is close to N.
    """
    share = length / x.shape[1]
    log_radius = _saddle(x, length)
    flat = np.zeros((1, x.shape[1]))
    log_flat = np.array([[math.log(share / (1.0 - share))]])
    angles = _Angles.of(_included(log_radius - x))
    log_psi, mean, inclusion = _over_angles(x, log_radius, angles, length)
    log_flat, *_ = _over_angles(flat, log_flat, _Angles.of(_included(log_flat - flat)), length)
    terms, values = np.moveaxis(x * y, 0, -1), len(y) - 2
    first = inclusion @ terms
    first[..., :values] = (inclusion - share) @ terms[..., :values]
    pairs = terms[..., :-1, None] * terms[..., None, :-1]
    within = (inclusion * (1.0 - inclusion)) @ pairs.reshape(*terms.shape[:2], -1)
    some = first[..., :-1]
    second = within.reshape(*first.shape[:2], *pairs.shape[2:])
    second = second + some[..., :, None] * some[..., None, :]
    mean_first = np.real(np.einsum("ua,uaf->uf", mean, first))
    mean_second = np.real(np.einsum("ua,uafg->ufg", mean, second))
    own = mean_first[:, :-1]
    return log_psi - log_flat, mean_first, mean_second - own[:, :, None] * own[:, None, :]


def _included(log_odds: Array) -> Array:
    """Return the probabilities whose odds have these logarithms."""
    return np.exp(-np.logaddexp(0.0, -log_odds))


def _saddle(x: Array, length: int) -> Array:
    r"""Return $\log r$ such that $\sum_iq_i\approx L$, [u, 1], by Newton's method in a bracket."""
    odds = math.log(length / (x.shape[1] - length))
    low, high = x.min(axis=1) + odds, x.max(axis=1) + odds
    found = 0.5 * (low + high)
    for _ in range(60):
        q = _included(found[:, None] - x)
        excess, slope = q.sum(axis=1) - length, (q * (1.0 - q)).sum(axis=1)
        if (excess**2 < 1e-4 * slope).all():
            break
        low, high = np.where(excess < 0.0, found, low), np.where(excess < 0.0, high, found)
        step = found - excess / np.maximum(slope, 1e-300)
        found = np.where((step > low) & (step < high), step, 0.5 * (low + high))
    return found[:, None]


@dataclasses.dataclass(frozen=True)
class _Angles:
    r"""Evenly spaced angles from 0 to $\pi$, without those whose terms are negligible.

    Attributes:
        angle: the angles, starting at 0, [a].
        weights: 2 for an angle that also represents its negative, else 1, [a].
        count: the number of angles on the whole circle, including negligible ones.
    """

    angle: Array
    weights: Array
    count: int

    @staticmethod
    def of(inclusion: Array) -> "_Angles":
        r"""Return the angles for probabilities of inclusion $q_i$, [u, N].

        With $v=\sum_iq_i(1-q_i)$, the integrand at $\theta$ is at most $e^{-v(1-\cos\theta)}$ in
        modulus, and $9\sqrt v+32$ angles on the circle suffice.
        """
        variance = (inclusion * (1.0 - inclusion)).sum(axis=1)
        half = math.ceil(4.5 * math.sqrt(float(variance.max()))) + 16
        angle = np.linspace(0.0, math.pi, half + 1)
        weights = np.where((angle == 0.0) | (angle == math.pi), 1.0, 2.0)
        kept = float(variance.min()) * (1.0 - np.cos(angle)) <= NEGLIGIBLE
        return _Angles(angle[kept], weights[kept], 2 * half)


def _over_angles(
    x: Array, log_radius: Array, angles: _Angles, length: int
) -> tuple[Array, NDArray[np.complex128], NDArray[np.complex128]]:
    r"""Return the logarithm of $[\zeta^L]\prod_i(1+\zeta e^{-x_i})$, a mean over angles.

    Returns:
        The logarithm, [u]; the weights of the angles, whose real parts sum to one, [u, a]; and the
        complex probabilities $Q_i$ given the angle, [u, a, N].
    """
    q, turn = _included(log_radius - x)[:, None], np.exp(1j * angles.angle)[:, None]
    both = 1.0 + q * (turn - 1.0)
    terms = angles.weights * np.prod(both, axis=2) * np.exp(-1j * length * angles.angle)
    total = np.real(terms).sum(axis=1, keepdims=True)
    log_odds = np.logaddexp(0.0, log_radius - x).sum(axis=1) - length * log_radius[:, 0]
    log_sum = log_odds + np.log(np.maximum(total[:, 0], 1e-300) / angles.count)
    return log_sum, terms / total, q * turn / both
