"""Stationary Gaussian prompts whose tokens are correlated."""

import math
from numbers import Real

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray

from promptlimit._arrays import Array, ArrayLike, as_float64
from promptlimit.errors import ArgumentError
from promptlimit.measures import Gaussian
from promptlimit.prompts._abstract import AbstractPrompt, Leading, Readout
from promptlimit.prompts._transfer import ENTRIES_AT_ONCE, Chain, Walk
from promptlimit.weights import LARGEST_EXPONENT, Cumulants

_RANGE = 8.5
"""Nodes (standardised scores) extend by this distance below 0 and above twice the sharpness."""

_LEAST_SHARPNESS = 1e-3
_MOST_NODES = 130


class AutoregressiveGaussian(AbstractPrompt):
    r"""Gaussian tokens $N(m,\Gamma)$ with $\mathrm{Cov}(z_k,z_l)=a^{|k-l|}\Gamma$.

    Exact moments take seconds. They are available if the sharpness, which is the standard deviation
    of the scores, is between 0.001 and about 2, and $|a|$ is at most about 0.95. A Markov chain on
    quadrature nodes represents the scores. The components of tokens that are independent of the
    scores are averaged in closed form.

    Args:
        mean: $m$, shape `[d]`.
        cov: $\Gamma$, shape `[d, d]`.
        coefficient: $a$, between -1 and 1.

    >>> import promptlimit as pl
    >>> head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    >>> prompt = pl.AutoregressiveGaussian([0.0], [[1.0]], 0.5)
    >>> moments = pl.prompt_moments(head, prompt, [1.0], [10, 1000], kind="asymptotic")
    >>> print(moments.mse.round(4))
    [0.9303 0.0093]
    """

    mean: Float[JaxArray, " d"]
    cov: Float[JaxArray, "d d"]
    coefficient: float

    def __init__(self, mean: ArrayLike, cov: ArrayLike, coefficient: float):
        law = Gaussian(mean, cov)
        self.mean, self.cov = law.location, law.covariance
        if not (isinstance(coefficient, Real) and -1.0 < coefficient < 1.0):
            raise ArgumentError(
                "coefficient", f"must be a number between -1 and 1, got {coefficient!r}."
            )
        self.coefficient = float(coefficient)

    @property
    def dim(self) -> int:
        """The dimension of a token."""
        return self.mean.shape[0]

    @property
    def token_law(self) -> Gaussian:
        """The law of each token."""
        return Gaussian(self.mean, self.cov)

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[JaxArray, "length d"]:
        """Return the tokens of one prompt."""
        fresh = Gaussian(jnp.zeros_like(self.mean), self.cov).sample(length, key=key)
        noise = math.sqrt(1.0 - self.coefficient**2)

        def after(token: JaxArray, new: JaxArray) -> tuple[JaxArray, JaxArray]:
            moved = self.coefficient * token + noise * new
            return moved, moved

        _, later = jax.lax.scan(after, fresh[0], fresh[1:])
        return self.mean[None] + jnp.concatenate([fresh[:1], later])

    def obstacle(self, tilt: Array) -> str | None:
        """Return why exact moments are not available at a tilt; None if they are."""
        sharpness = self._sharpness(tilt)
        if sharpness < _LEAST_SHARPNESS:
            return f"the sharpness {sharpness:.3g} of the scores is below {_LEAST_SHARPNESS:g}"
        nodes = self._nodes(sharpness).size
        if nodes > _MOST_NODES:
            return f"the chain of scores needs {nodes} nodes, more than {_MOST_NODES}"
        return None

    def _sharpness(self, tilt: Array) -> float:
        return math.sqrt(max(float(tilt @ as_float64(self.cov) @ tilt), 0.0))

    def _nodes(self, sharpness: float) -> Array:
        step = min(0.5 * math.sqrt(1.0 - self.coefficient**2), 0.35 / sharpness)
        first, last = math.floor(-_RANGE / step), math.ceil((_RANGE + 2.0 * sharpness) / step)
        return as_float64(step * np.arange(first, last + 1))

    def score_range(self, head: Readout) -> tuple[float, float]:
        """Return the smallest and the largest score of a node, minus the origin."""
        sharpness = self._sharpness(head.tilt)
        nodes = self._nodes(sharpness)
        return float(sharpness * nodes[0]), float(sharpness * nodes[-1])

    def cumulants(self, head: Readout, u: Array, lengths: Array) -> Cumulants:
        """Return the cumulants, from a Markov chain of standardised scores on quadrature nodes."""
        sharpness = self._sharpness(head.tilt)
        g = self._nodes(sharpness)
        density = np.exp(-0.5 * g**2)
        a = self.coefficient
        moves = np.exp(-0.5 * (g[None, :] - a * g[:, None]) ** 2 / (1.0 - a**2))
        chain = Chain(moves / moves.sum(axis=1, keepdims=True), density / density.sum())
        block = max(1, ENTRIES_AT_ONCE // (8 * g.size**2))
        parts = []
        for start in range(0, u.size, block):
            exponent = u[start : start + block, None] + sharpness * g
            x = np.exp(np.minimum(exponent, LARGEST_EXPONENT))
            y = np.stack([np.broadcast_to(g - sharpness, x.shape), np.ones_like(x), x])
            x, y = np.repeat(x[:, None], g.size, 1), np.repeat(y[:, :, None], g.size, 2)
            parts.append(Walk(chain, x, y, None, None, lengths).cumulants())
        found = Cumulants.joined(parts)
        pull = head.value @ as_float64(self.cov) @ head.tilt / sharpness
        spread = head.value @ as_float64(self.cov) @ head.value.T - np.outer(pull, pull)
        return Cumulants(
            found.log_psi,
            np.concatenate([found.first[..., :1] * pull, found.first[..., 1:]], axis=-1),
            _assembled(found.second, found.first[..., 0] / -sharpness, pull, spread),
            found.rounding / min(sharpness, 1.0),
        )

    def leading(self, head: Readout) -> Leading:
        r"""Return the leading order in 1/L.

        Let t be the tilt and $R_k=a^{|k|}\Gamma$. L times the covariance of the output tends to
        $V\sum_ke^{t'R_kt}[R_k+R_ktt'R_k]V'$, and L times the bias to $-V\sum_ke^{t'R_kt}R_kt$, with
        sums over all integers k.
        """
        cov, sharpness = as_float64(self.cov), self._sharpness(head.tilt)
        a, square = self.coefficient, sharpness**2
        count = 1 if a == 0.0 else math.ceil(-40.0 / math.log(abs(a))) + 1
        powers = a ** np.arange(1, count)
        weights = np.exp(powers * square)
        once = math.exp(square) + 2.0 * float(weights @ powers)
        twice = math.exp(square) + 2.0 * float(weights @ powers**2)
        pull = head.value @ cov @ head.tilt
        spread = head.value @ cov @ head.value.T
        return Leading(-once * pull, once * spread + twice * np.outer(pull, pull), math.exp(square))


def _assembled(second: Array, across: Array, pull: Array, spread: Array) -> Array:
    """Return the second cumulants of (y, 1) from those of the standardised score g.

    Args:
        second: the second cumulants of (g - sigma, 1) with sigma the sharpness, [n, u, 2, 2].
        across: the factor of `spread` in the result, [n, u].
        pull: the slope of the mean of y given g, [e].
        spread: the covariance of y given g, [e, e].
    """
    size = pull.size
    whole = np.empty((*second.shape[:2], size + 1, size + 1))
    along = second[..., 0, 0, None, None] * np.outer(pull, pull)
    whole[..., :size, :size] = along + across[..., None, None] * spread
    whole[..., :size, size] = second[..., 0, 1, None] * pull
    whole[..., size, :size] = whole[..., :size, size]
    whole[..., size, size] = second[..., 1, 1]
    return whole
