"""Chi-square numbers by counter."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._normals import normal_pairs, threefry, uniform

ATTEMPTS = 8
"""How often a rejected number is drawn anew: one is left over in 1e10 draws, and is then taken."""


def chi_square(
    degrees: int, count: int, key: tuple[Array, Array], step: Array, start: int
) -> Float[Array, " count"]:
    r"""Return chi-square numbers, twice Gamma(degrees / 2), by Marsaglia and Tsang's rejection.

    With $d=\alpha-\frac13$, $c=1/\sqrt{9d}$ and a normal x, $d(1+cx)^3$ is kept when
    $\log u<\frac12x^2+d-d v+d\log v$, $v=(1+cx)^3$; one degree is the square of a normal.

    Args:
        degrees: of freedom.
        count: how many.
        key: two words.
        step: the first word of the counters.
        start: where the second words start; `2 * ATTEMPTS * count` of them are used.
    """
    index = np.uint32(start) + jnp.arange(ATTEMPTS * count, dtype=jnp.uint32)
    x = normal_pairs(key, step, index).real.reshape(ATTEMPTS, count)
    if degrees == 1:
        return x[0] ** 2
    step_words = jnp.full(index.shape, step)
    word, _ = threefry(key, (step_words, index + np.uint32(ATTEMPTS * count)))
    u = uniform(word).reshape(ATTEMPTS, count)
    d = degrees / 2 - 1 / 3
    base = 1.0 + np.float32(1.0 / math.sqrt(9.0 * d)) * x
    v = base**3
    bound = 0.5 * x**2 + d * (1.0 - v + jnp.log(jnp.where(base > 0, v, 1.0)))
    kept = (base > 0) & (jnp.log(u) < bound)
    # The first that is kept; the last when none is.
    kept = kept.at[-1].set(True)
    chosen = jax.nn.one_hot(jnp.argmax(kept, axis=0), ATTEMPTS, axis=0, dtype=x.dtype)
    return np.float32(2.0 * d) * jnp.sum(chosen * jnp.maximum(v, 0.0), axis=0)
