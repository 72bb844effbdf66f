r"""The sums of `token_sums`, drawn from their exact law without drawing tokens.

A token is a vector g of standard normals with the score $\langle a,g\rangle$ and the value
$\langle b,g\rangle$. Let $e_1\parallel a$ and $e_2$ be an orthonormal basis of span(a, b). For a
softmax head the coordinates of all tokens along $e_1$ and $e_2$ are drawn. Given these coordinates,
the sums along directions orthogonal to $e_1$ and $e_2$ are Gaussian. For a linear head the sums are
$Sa$ and $Sb$, where S is the mean of $gg^\top$ over the L tokens. They follow from two columns of
the Bartlett factor of the Wishart matrix $W=LS$. The heads do not share prompts. docs/training.md
derives the laws.

On one core a step at L = 1000 takes 1.5 ms for a softmax head (4.3 ms with tokens) and 0.38 ms for
a linear head (3.9 ms with tokens). At L = 10 there is no gain.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from promptlimit._normals import compute_once, normal_pairs, threefry, uniform
from promptlimit.tasks.regression._token_sums import (
    PredictionSlopes,
    PromptStream,
    in_blocks,
    largest_block,
)

ATTEMPTS = 8
"""Attempts per number. If all are rejected (probability 1e-10), the last attempt is used."""


class Frame(NamedTuple):
    r"""$e_1$, $e_2$, $|a|$, $\langle b,e_1\rangle$ and $\langle b,e_2\rangle$, in this order."""

    first: Array
    second: Array
    size: Array
    along: Array
    across: Array


def frame(score: Float[Array, "*s dim"], value: Float[Array, "*s dim"]) -> Frame:
    """Return the frame of a = `score` and b = `value`; e_2 is arbitrary if they are parallel."""
    size = jnp.linalg.norm(score, axis=-1, keepdims=True)
    axis = jnp.zeros_like(score).at[..., 0].set(1.0)
    first = jnp.where(size > 0, score / jnp.where(size > 0, size, 1.0), axis)
    least = jax.nn.one_hot(jnp.argmin(jnp.abs(first), axis=-1), score.shape[-1], dtype=score.dtype)
    # The projection is repeated, because its rounding error may be as large as its result.
    aside, other = _without(first, _without(first, value)), _without(first, least)
    enough = _dot(aside, aside) > np.float32(1e-12) * _dot(value, value)
    second = jnp.where(enough, aside, other)
    second = second / jnp.linalg.norm(second, axis=-1, keepdims=True)
    return Frame(first, second, size, _dot(value, first), _dot(value, second))


def law_sums(
    prompts: PromptStream,
    kernels: tuple[str, ...],
    step: UInt32[Array, ""],
    score: Float[Array, "1 heads batch dim"],
    value: Float[Array, "1 heads batch dim"],
) -> PredictionSlopes:
    """Return random sums with the law of the sums of `token_sums`; the arguments are the same."""
    rest = _normal_vectors(prompts, step)
    own = frame(score[0], value[0])
    softmax = [head for head, kernel in enumerate(kernels) if kernel == "softmax"]
    weighed = iter(_softmax(prompts, step, [_head(own, head) for head in softmax], rest))
    diagonal = _bartlett_diagonal(prompts, step) if len(softmax) < len(kernels) else None
    sums = [
        next(weighed)
        if diagonal is None or kernel == "softmax"
        else _linear(prompts.lengths[0], _head(own, head), rest, diagonal)
        for head, kernel in enumerate(kernels)
    ]
    by_value, by_score = (jnp.stack(part)[None] for part in zip(*sums, strict=True))
    return PredictionSlopes(by_value, by_score)


def _head(own: Frame, head: int) -> Frame:
    return Frame(*(part[head] for part in own))


def _normal_vectors(prompts: PromptStream, step: Array) -> tuple[Array, Array]:
    """Return two standard normal vectors per prompt, [batch, dim]."""
    (length,), batch, dim = prompts.lengths, prompts.batch, prompts.dim
    start = (prompts.pairs * length + dim) * batch
    index = np.uint32(start) + jnp.arange(dim * batch, dtype=jnp.uint32)
    drawn = normal_pairs(_key(prompts), step, index).reshape(dim, batch).T
    return drawn.real, drawn.imag


def _bartlett_diagonal(prompts: PromptStream, step: Array) -> tuple[Array, Array]:
    """Return t_11 and t_22, whose squares are chi-square with L and L - 1 degrees of freedom."""
    (length,), batch, dim = prompts.lengths, prompts.batch, prompts.dim
    start = (prompts.pairs * length + 2 * dim) * batch
    size = ATTEMPTS * batch
    first = chi_square(length, batch, _key(prompts), step, start)
    if length == 1:
        return jnp.sqrt(first), jnp.zeros_like(first)
    second = chi_square(length - 1, batch, _key(prompts), step, start + 2 * size)
    return jnp.sqrt(first), jnp.sqrt(second)


def _key(prompts: PromptStream) -> tuple[Array, Array]:
    return prompts.keys[0][0], prompts.keys[1][0]


def _linear(
    length: int, own: Frame, rest: tuple[Array, Array], diagonal: tuple[Array, Array]
) -> tuple[Array, Array]:
    r"""Return $Sa$ and $Sb$ from $We_1=t_{11}t_1$ and $We_2=t_{21}t_1+t_{22}t_2$.

    $t_1$ and $t_2$ are the first two columns of the Bartlett factor in the basis $e_1,e_2,\dots$
    """
    t11, t22 = (root[:, None] for root in diagonal)
    below = _dot(rest[0], own.second)  # t_21, the component of the first vector along e_2
    first = t11 * own.first + _without(own.first, rest[0])
    beyond = _without(own.second, _without(own.first, rest[1]))
    second = t22 * own.second + (beyond if length > 1 else jnp.zeros_like(beyond))
    on_first, on_second = t11 * first, below * first + t22 * second
    scale = np.float32(1.0 / length)
    by_score = own.along * on_first + own.across * on_second
    return scale * own.size * on_first, scale * by_score


def _softmax(
    prompts: PromptStream, step: Array, heads: list[Frame], rest: tuple[Array, Array]
) -> list[tuple[Array, Array]]:
    """Return the sums of each softmax head."""
    if not heads:
        return []
    (length,), batch = prompts.lengths, prompts.batch
    block = largest_block(batch, -(-length // prompts.pairs))
    numbers = jnp.stack([jnp.concatenate([h.size, h.along, h.across], 1) for h in heads], 1)

    def one(first: Array, part: Array) -> Array:
        return _statistics(prompts, step, first, part)

    statistics = in_blocks(one, numbers, block)
    return [_completed(statistics[:, i], own, rest) for i, own in enumerate(heads)]


def _statistics(
    prompts: PromptStream, step: Array, first: Array, numbers: Float[Array, "block heads 3"]
) -> Float[Array, "block heads 7"]:
    r"""Return $\sum p\xi,\sum p\eta,\sum r\xi,\sum r\eta,\sum p^2,\sum pr,\sum r^2$.

    The sums are over tokens with softmax weights p, coordinates $(\xi,\eta)$ along $(e_1,e_2)$ and
    values t. T is the mean of t with the weights p, and $r=p(t-T)$.
    """
    (length,), block = prompts.lengths, numbers.shape[0]
    index = first * np.uint32(length) + jnp.arange(block * length, dtype=jnp.uint32)
    drawn = normal_pairs(_key(prompts), step, index).reshape(block, length)
    xi, eta = drawn.real, drawn.imag
    rows = []
    for head in range(numbers.shape[1]):
        size, along, across = (numbers[:, head, i, None] for i in range(3))
        raised = compute_once(
            lambda size=size: jnp.exp(size * (xi - jnp.max(xi, axis=-1, keepdims=True))), step
        )
        t = along * xi + across * eta
        total = jnp.sum(raised, axis=-1, keepdims=True)
        mean = jnp.sum(raised * t, axis=-1, keepdims=True) / total
        r = compute_once(lambda raised=raised, t=t, mean=mean: raised * (t - mean), step)
        once = [jnp.sum(x * y, axis=-1) for x in (raised, r) for y in (xi, eta)]
        twice = [jnp.sum(x * y, axis=-1) for x, y in ((raised, raised), (raised, r), (r, r))]
        total = total[:, 0]
        rows.append([x / total for x in once] + [x / total**2 for x in twice])
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=1)


def _completed(
    statistics: Float[Array, "batch 7"], own: Frame, rest: tuple[Array, Array]
) -> tuple[Array, Array]:
    r"""Return the sums $\sum pg$ and $\sum rg$.

    Along each direction orthogonal to the frame, the two sums are Gaussian with the variances
    $\sum p^2$ and $\sum r^2$ and the covariance $\sum pr$.
    """
    first, second, third, fourth, c11, c12, c22 = (statistics[:, i, None] for i in range(7))
    outside = [_without(own.second, _without(own.first, vector)) for vector in rest]
    left = jnp.sqrt(jnp.maximum(c22 - c12**2 / c11, 0.0))
    by_value = first * own.first + second * own.second + jnp.sqrt(c11) * outside[0]
    spread = c12 / jnp.sqrt(c11) * outside[0] + left * outside[1]
    return by_value, third * own.first + fourth * own.second + spread


def _dot(x: Array, y: Array) -> Array:
    return jnp.sum(x * y, axis=-1, keepdims=True)


def _without(direction: Array, vector: Array) -> Array:
    """Return the component of the vector orthogonal to a unit direction."""
    return vector - _dot(direction, vector) * direction


def chi_square(
    degrees: int, count: int, key: tuple[Array, Array], step: Array, start: int
) -> Float[Array, " count"]:
    r"""Return chi-square numbers, twice Gamma(degrees / 2), by Marsaglia and Tsang's rejection.

    With $d=\text{degrees}/2-\frac13$, $c=1/\sqrt{9d}$, a normal x and a uniform u, the number $2dv$
    with $v=(1+cx)^3$ is accepted if $\log u<\frac12x^2+d-dv+d\log v$. For one degree of freedom the
    numbers are squares of normals. The counters of the random numbers have the first word `step`.
    Their second words are `2 * ATTEMPTS * count` consecutive numbers from `start`.
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
    # The first accepted draw, or the last draw if none is accepted.
    kept = kept.at[-1].set(True)
    chosen = jax.nn.one_hot(jnp.argmax(kept, axis=0), ATTEMPTS, axis=0, dtype=x.dtype)
    return np.float32(2.0 * d) * jnp.sum(chosen * jnp.maximum(v, 0.0), axis=0)
