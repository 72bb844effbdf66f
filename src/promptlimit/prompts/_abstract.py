r"""The interface of a law of prompts: its limit, samples and cumulants.

Notation: a softmax head has the tilt t, the value matrix V and the limit T, which is its output
over an infinite prompt. For a token z, s is the score $\langle t,z\rangle$ minus the origin of the
`Readout`, $x=e^{s+u}$ and $y=Vz-T$. Here u is the variable of the integral for the moments
(docs/finite.md).
"""

import abc
import dataclasses
import math

import equinox as eqx
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from promptlimit._arrays import Array
from promptlimit.measures import AbstractMeasure
from promptlimit.weights import LARGEST_EXPONENT, NEGLIGIBLE, Cumulants

__all__ = ["AbstractPrompt", "Cumulants", "Leading", "Readout"]


@dataclasses.dataclass(frozen=True)
class Readout:
    r"""One softmax head at one query, with the functions of tokens that determine its moments.

    Attributes:
        tilt: $t$, [d].
        value: the value matrix $V$, [e, d].
        limit: $T$, the output over an infinite prompt, [e].
        origin: a number that is subtracted from all scores.
    """

    tilt: Array
    value: Array
    limit: Array
    origin: float

    def scores(self, tokens: Array) -> Array:
        r"""Return the scores s of tokens [..., d], minus the origin, [...]."""
        return tokens @ self.tilt - self.origin

    def exponentials(self, tokens: Array, u: Array) -> Array:
        r"""Return $x=e^{s+u}$, [u, ...], of tokens [..., d]."""
        scores = self.scores(tokens)
        exponent = u.reshape(-1, *[1] * scores.ndim) + scores
        return np.exp(np.minimum(exponent, LARGEST_EXPONENT))

    def features(self, tokens: Array, x: Array) -> Array:
        """Return the features of tokens, [e + 2, u, ...], from which `cumulants` are computed.

        The features are the e entries of $y=Vz-T$, which have mean zero under the tilted law, then
        1 and x.

        Args:
            tokens: the tokens, [..., d].
            x: the result of `exponentials`, [u, ...].
        """
        values = np.moveaxis(tokens @ self.value.T - self.limit, -1, 0)
        values = np.broadcast_to(values[:, None], (len(values), *x.shape))
        return np.concatenate([values, np.ones_like(x)[None], x[None]])


@dataclasses.dataclass(frozen=True)
class Leading:
    r"""The constants of the leading order in 1/L, for the output $T_L$ over L tokens.

    Attributes:
        bias: the limit of $L(E\,T_L-T)$, [e].
        cov: the limit of $L\,\mathrm{Cov}\,T_L$, [e, e].
        participation: the limit of $L\,E\,S_2$ with $S_2$ the sum of squared weights.
    """

    bias: Array
    cov: Array
    participation: float


class AbstractPrompt(eqx.Module):
    """The law of L tokens that need not be independent.

    A subclass must define `dim`, `token_law` and `sample`, which suffice for simulation. Exact
    moments also require `cumulants`, and `score_range` or `window`. The leading order in 1/L
    requires `leading`.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The dimension of a token."""

    @property
    @abc.abstractmethod
    def token_law(self) -> AbstractMeasure:
        """The law of a token in an infinite prompt; attention over this law is the limit."""

    @abc.abstractmethod
    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[JaxArray, "length d"]:
        """Return the tokens of one prompt."""

    def cumulants(self, head: Readout, u: Array, lengths: Array) -> Cumulants:
        r"""Return $k_0$, $k_1$ and $k_2$ for several lengths; all moments follow from them.

        They are the value, the gradient and the Hessian at $a=0$ of $\log\Psi$, where
        $\Psi(u;a)=E\exp(-\sum_lx_l(1-\langle a,y_l\rangle))$ with $x_l=e^{s_l+u}$ and $y_l=Vz_l-T$
        for tokens $z_l$ of score $s_l$.

        Args:
            head: the head, which computes scores and features of tokens.
            u: evenly spaced nodes of the integral, [u].
            lengths: L, finite, [n].
        """
        raise NotImplementedError

    def obstacle(self, tilt: Array) -> str | None:  # noqa: ARG002
        """Return why exact moments are not available at a tilt; None if they are."""
        if type(self).cumulants is AbstractPrompt.cumulants:
            return f"{type(self).__name__} does not implement `cumulants`"
        return None

    def window(self, head: Readout, lengths: Array) -> tuple[float, float]:
        r"""Return the range of u in which neither $1-\Psi$ nor $\Psi$ is negligible, at $a=0$.

        If all scores are between b and c, then $e^{-Le^{c+u}}\le\Psi\le e^{-Le^{b+u}}$.
        """
        least, most = self.score_range(head)
        low = -NEGLIGIBLE - math.log(lengths.max()) - most
        high = math.log(4.0 * NEGLIGIBLE / lengths.min()) - least
        return low, high

    def score_range(self, head: Readout) -> tuple[float, float]:
        """Return the smallest and the largest score of a token, minus the origin."""
        raise NotImplementedError

    def leading(self, head: Readout) -> Leading | None:  # noqa: ARG002
        """Return the leading order in 1/L; None if no formula is known."""
        return None

    @property
    def most_tokens(self) -> float:
        """The largest length of a prompt."""
        return math.inf

    @property
    def is_nested(self) -> bool:
        """Whether the first tokens of a prompt are a shorter prompt of the same law."""
        return True
