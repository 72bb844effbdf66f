r"""The far tokens of a causal head: statistics of their weights, and their replacement by moments.

A query at position i attends to the tokens 0..i. The first (sinks) and the last (recent tokens) are
kept. The n far tokens between them have scores $s_j$ with mean s and variance var, and values $v_j$
with mean $m_v$ and covariance $C_{vk}$ with the keys. Let t be the scaled query. A mass is a sum of
exponentials of scores; $Z_k$ and $a_k$ are the mass and the output of the kept tokens. If the far
tokens are replaced by their moments, their mass $Z_f$, their output $a_f$ and the output of the
head are

    Z_f = n exp(s + var/2),    a_f = m_v + C_vk t = mean of (1 + s_j - s) v_j,
    (Z_k a_k + Z_f a_f)/(Z_k + Z_f).

The formula for $a_f$ is Lemma 2.1 of Boursier and Boyer (2026).

The finite-length correction is derived for n Gaussian tokens whose scores have mean 0 and variance
var. Let Z be the sum of the exponentials of their scores, and $S_2$ the sum of their squared
weights. With the correction, $\ln Z_f=\ln n+s+g\,\mathrm{var}/2$ where
$g=2(E\ln Z-\ln n)/\mathrm{var}$, and $C_{vk}t$ is multiplied by $1-E\,S_2$.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from promptlimit.heads._measure import SOFTMAX, Named
from promptlimit.heads._model import LayerHeads
from promptlimit.heads._prediction import Prediction
from promptlimit.heads._weighing import inside_of

_LEAST = 1e-37
"""The smallest mass, relative to the largest exponential of a score; it avoids division by 0."""


class FarTokens(NamedTuple):
    """The statistics and approximations of `causal_atlas`; a `Measurement`.

    Attributes:
        sinks: the number of sinks.
        recent: the number of recent tokens, including the token at the position of the query.
        equivalent_tokens: the number of tokens that take as much memory as the moments of the far
            tokens.
        band: the number of distances in a band.
    """

    sinks: int
    recent: int
    equivalent_tokens: int
    band: int

    def rows(
        self, head: LayerHeads, scale: Array, prediction: Prediction, given: tuple[()]
    ) -> Callable[[Array, Array], tuple[Named, Named]]:
        """Return the function that `Measurement.rows` specifies; `given` is empty.

        The statistics of each query are:

        - `variance`: the variance of the scores;
        - `between`: the variance of the mean scores of bands of distance (`_between`);
        - `sinks`, `recent`: the total softmax weights of the sinks and of the recent tokens;
        - `participation`: the sum of squared weights;
        - `entropy`: the entropy of the weights, in nats; `far_entropy`, `kept_entropy`: the entropy
          of the weights among far tokens and among kept tokens;
        - `far_odds`: the logarithm of the ratio of the far mass to the kept mass;
        - `far_variance`: the variance of the scores of far tokens;
        - `mass_error`: the logarithm of the ratio of $Z_f$ from moments to the true far mass.
        """
        del given
        keys = scale * head.keys

        def rows(queries: Array, positions: Array) -> tuple[Named, Named]:
            scores = queries @ keys.T
            masks = self._masks(positions, scores.shape[1])
            scores = scores - jnp.where(masks.inside, scores, -jnp.inf).max(axis=1, keepdims=True)
            masses = _only(jnp.exp(jnp.minimum(scores, 0.0)), masks.inside)
            far_masses, kept_masses = _only(masses, masks.far), _only(masses, ~masks.far)
            softmax = _weighed(masses)
            _, variance, centred = _moments(scores, masks.inside)
            far_mean, far_variance, _ = _moments(scores, masks.far)
            gaussian_mass = jnp.log(_counts(masks.far)) + far_mean + 0.5 * far_variance
            statistics = {
                "variance": variance,
                "between": _between(centred, positions, self.band),
                "sinks": _only(softmax, masks.first).sum(axis=1),
                "recent": _only(softmax, masks.last).sum(axis=1),
                "participation": (softmax**2).sum(axis=1),
                "entropy": _entropy(masses, scores),
                "far_odds": _log_sum(far_masses) - _log_sum(kept_masses),
                "far_entropy": _entropy(far_masses, scores),
                "kept_entropy": _entropy(kept_masses, scores),
                "far_variance": far_variance,
                "mass_error": gaussian_mass - _log_sum(far_masses),
            }
            outputs = _outputs(scores, masses, head.values, masks, prediction)
            return statistics, {SOFTMAX: softmax @ head.values, **outputs}

        return rows

    def _masks(self, positions: Int[Array, " n"], length: int) -> "_Masks":
        inside = inside_of(positions, length, causal=True)
        place, here = jnp.arange(length)[None], positions[:, None]
        first = place < self.sinks
        last = inside & (place > here - self.recent)
        longer = inside & (first | (place > here - self.recent - self.equivalent_tokens))
        return _Masks(inside, first, last, inside & ~first & ~last, longer)


class _Masks(NamedTuple):
    """Masks of the tokens of each query.

    Attributes:
        inside: the tokens to which the query attends.
        first: the sinks.
        last: the recent tokens.
        far: the far tokens.
        longer: the tokens that the approximation "dropped" keeps.
    """

    inside: Bool[Array, "n length"]
    first: Bool[Array, "1 length"]
    last: Bool[Array, "n length"]
    far: Bool[Array, "n length"]
    longer: Bool[Array, "n length"]


def _outputs(
    scores: Float[Array, "n length"],
    masses: Float[Array, "n length"],
    values: Float[Array, "length e"],
    masks: _Masks,
    prediction: Prediction,
) -> Named:
    """Return the outputs [n, e] of each approximation.

    The approximation `dropped` omits the far tokens and keeps `equivalent_tokens` additional
    recent tokens. The other approximations replace the mass and the output of the far tokens:

    - `mean`: the true mass and the mean value;
    - `gaussian`: mass and output from moments;
    - `gaussian_finite`: mass and output from moments, with the finite-length correction;
    - `gaussian_mass`: the true mass, and the output from moments.
    """
    count = _counts(masks.far)
    mean, variance, centred = _moments(scores, masks.far)
    kept_masses = _only(masses, ~masks.far)
    kept, kept_mass = _weighed(kept_masses) @ values, _log_sum(kept_masses)
    true_mass = _log_sum(_only(masses, masks.far))
    share = masks.far.astype(scores.dtype) / count[:, None]
    middle, pull = share @ values, (share * centred) @ values
    finite = prediction.at_own_length(variance, count)
    left = (1.0 - finite.participation)[:, None]
    flat_mass = jnp.log(count) + mean

    def joined(log_mass: Array, far_output: Array) -> Array:
        weight = jax.nn.sigmoid(log_mass - kept_mass)[:, None]
        return kept + weight * (far_output - kept)

    return {
        "dropped": _weighed(_only(masses, masks.longer)) @ values,
        "mean": joined(true_mass, middle),
        "gaussian": joined(flat_mass + 0.5 * variance, middle + pull),
        "gaussian_finite": joined(flat_mass + 0.5 * finite.growth * variance, middle + left * pull),
        "gaussian_mass": joined(true_mass, middle + pull),
    }


def _counts(chosen: Bool[Array, "n length"]) -> Float[Array, " n"]:
    return jnp.maximum(chosen.sum(axis=1), 1).astype(jnp.float32)


def _only(rows: Float[Array, "n length"], chosen: Bool[Array, "*n length"]) -> Array:
    """Return the rows with zeros for tokens that are not chosen."""
    return jnp.where(chosen, rows, 0.0)


def _log_sum(masses: Float[Array, "n length"]) -> Float[Array, " n"]:
    return jnp.log(jnp.maximum(masses.sum(axis=1), _LEAST))


def _entropy(
    masses: Float[Array, "n length"], scores: Float[Array, "n length"]
) -> Float[Array, " n"]:
    r"""Return the entropy $\ln Z-\sum_jp_js_j$ of weights $p_j=e^{s_j}/Z$, with $Z>0$."""
    return _log_sum(masses) - (_weighed(masses) * jnp.maximum(scores, jnp.log(_LEAST))).sum(axis=1)


def _moments(
    scores: Float[Array, "n length"], chosen: Bool[Array, "n length"]
) -> tuple[Array, Array, Array]:
    """Return the mean and variance of the scores of chosen tokens, and the centred scores."""
    count = _counts(chosen)
    mean = _only(scores, chosen).sum(axis=1) / count
    centred = _only(scores - mean[:, None], chosen)
    return mean, (centred**2).sum(axis=1) / count, centred


def _weighed(masses: Float[Array, "n length"]) -> Float[Array, "n length"]:
    return masses / jnp.maximum(masses.sum(axis=1, keepdims=True), _LEAST)


def _between(
    centred: Float[Array, "n length"], positions: Int[Array, " n"], band: int
) -> Float[Array, " n"]:
    r"""Return the variance of the mean scores of bands of distance, $\sum_bn_bm_b^2/L$.

    Band b consists of the $n_b$ tokens whose distance from the query is at least `b * band` and
    below `(b + 1) * band`; $m_b$ is the mean of their centred scores, and L the number of all
    tokens up to the query.
    """
    sums = jnp.pad(jnp.cumsum(centred, axis=1), ((0, 0), (1, 0)))
    bands = -(-centred.shape[1] // band)
    edges = jnp.maximum(positions[:, None] + 1 - band * jnp.arange(bands + 1)[None], 0)
    at_edges = jnp.take_along_axis(sums, edges, axis=1)
    counts = (edges[:, :-1] - edges[:, 1:]).astype(centred.dtype)
    totals = at_edges[:, :-1] - at_edges[:, 1:]
    return (totals**2 / jnp.maximum(counts, 1.0)).sum(axis=1) / (positions + 1).astype(
        centred.dtype
    )
