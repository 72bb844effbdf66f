r"""The influence of one token on the output of a softmax stack, and the covariance over prompts.

To first order, the output at a query z differs from its limit by the mean of the influence K(z,y)
over the tokens y. L times the covariance of the output tends to $E_yK(z,y)K(z,y)'$. Let K_l be the
influence on the output of the first l layers, Lambda_l the log-Laplace transform of the tokens
before layer l, and t_l(z) = U_l Z_l(z). With the symbols of `GaussianStack`
(docs/depth-theory.md),

    K_l(z,y) = sum_{j<l} W_jl grad_t chi_j(t_j(z), y),    W_jl = M_{l-1}...M_{j+1} V_j
    chi_l(t,y) = e^{<t,Z_l(y)> - Lambda_l(t)} - 1 + <t, E_{z'~N(m + G P_l't, G)} K_l(z',y)>

Inserting K_l repeatedly gives chi_l as a sum over paths of layers l = p_0 > p_1 > ... > p_k, with
one path for each choice of heads. A path transforms the tilt s_0 = t into s_k. Its step from layer
l = p_i to layer j = p_{i+1} is

    s_{i+1} = (A + eps_{i+1} W_jl') s_i + U_j m_j + N(0, U_j G_j U_j'),   A = U_j P_j G P_l'

The term of the path is $\partial_{\epsilon_1}\cdots\partial_{\epsilon_k}$ of
$E\exp(\langle s_k,P_{p_k}(y-m)\rangle-\tfrac12s_k'G_{p_k}s_k)$.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import numpy as np

from promptlimit._arrays import Array
from promptlimit.depth._gaussian_stack import GaussianStack
from promptlimit.depth._tilts import (
    GaussianMean,
    Tilts,
    exponential,
    inverse,
    product,
    symmetric_form,
)
from promptlimit.errors import KindUnavailableError

AnyArray = Any
"""A NumPy array, or a jax array while jax traces."""

MOST_TERMS = 1500
"""The largest number of coefficients in all paths; six layers of one head have 1365."""


@dataclasses.dataclass(frozen=True)
class Descent:
    """A path from one layer down to another, with the tilt at its end.

    Attributes:
        tilts: the vector v in `descents`, whose last rows are the tilt at the end of the path.
        layer: the last layer of the path.
        steps: the number of steps of the path.
    """

    tilts: Tilts
    layer: int
    steps: int


def descents(stack: GaussianStack, tilts: Tilts, level: int) -> Iterator[Descent]:
    """Yield every path from layer `level` with the first rows of the vector v = `tilts` as tilt.

    For each path, these rows are removed from v, and the tilt at the end of the path is appended.
    """
    first, others = slice(0, stack.token_dims[level]), slice(stack.token_dims[level], None)
    yield Descent(tilts.select(others, first), level, 0)
    for j, h in stack.below(level):
        key_query, path = stack.layers[j].heads[h][0], stack.paths[j]
        across = key_query @ path @ stack.cov
        lower = tilts.append(
            across @ stack.paths[level].mT,
            first,
            shift=key_query @ stack.means[j],
            noise=across @ path.mT @ key_query.mT,
            mark=(stack.carry(j, h, level).mT, first),
        )
        size = lower.mean.shape[-2]
        arrived = slice(size - stack.token_dims[j], size)
        between = slice(first.stop, arrived.start)
        for descent in descents(stack, lower.select(arrived, between), j):
            yield dataclasses.replace(descent, steps=descent.steps + 1)


def query_tilt(stack: GaussianStack, query: Array, level: int, head: int) -> Array:
    """Return $t_l(z)=U_lZ_l(z)$, a column."""
    return stack.layers[level].heads[head][0] @ stack.position(level, query)


def pair_form(stack: GaussianStack, first: int, second: int) -> Array:
    r"""Return J with $\tfrac12v'Jv=x^\top P_pGP_q^\top y$, v = (x, y), for tilts in layers p, q."""
    between = stack.paths[first] @ stack.cov @ stack.paths[second].mT
    rows, columns = (np.zeros((size, size)) for size in between.shape[-2:])
    return symmetric_form(rows, between, columns)


def query_descents(stack: GaussianStack, query: Array) -> list[tuple[Array, Descent]]:
    """Return every path from the query, with `stack.carry` from its first head to the output."""
    require_few_terms(stack)
    return [
        (stack.carry(level, head, stack.depth), descent)
        for level, head in stack.below(stack.depth)
        for descent in descents(stack, Tilts.start(query_tilt(stack, query, level, head)), level)
    ]


def fluctuation_cov(stack: GaussianStack, query: Array, *, causal: bool = False) -> Array:
    r"""Return $\lim_LL\,\mathrm{Cov}$ of the output at a query, [..., e, e].

    Args:
        stack: the layers and the law of tokens.
        query: $z$, [..., d].
        causal: whether each token attends only to itself and the tokens before it, while the query
            attends to all tokens. The product of two paths of k and k' steps then has the weight
            $\binom{k+k'}k$.

    Raises:
        KindUnavailableError: the result would be infinite, or there are too many paths.
    """
    ends = query_descents(stack, query)
    for _, descent in ends:
        _require_finite_square(stack, descent)
    total: Array | float = 0.0
    for place, (left, first) in enumerate(ends):
        for number, (right, second) in enumerate(ends[: place + 1]):
            form = pair_form(stack, first.layer, second.layer)
            mean = GaussianMean.of(first.tilts.join(second.tilts), form)
            part = left @ mean.mixed_derivative(first.tilts.slope.shape[-1]) @ right.mT
            weight = math.comb(first.steps + second.steps, first.steps) if causal else 1.0
            total = total + weight * (part if number == place else part + part.mT)
    return 0.5 * (total + np.asarray(total).mT)


def _require_finite_square(stack: GaussianStack, descent: Descent) -> None:
    r"""Raise an error if the square of the term of a path has an infinite mean.

    Let C be the covariance of the tilt at the end of the path, in layer p. The mean is infinite if
    the largest eigenvalue of $C G_p$ is at least 1.
    """
    across = stack.paths[descent.layer] @ stack.root
    spread = across.mT @ descent.tilts.cov[0] @ across
    largest = float(np.max(np.linalg.eigvalsh(spread)))
    if largest >= 1.0:
        raise KindUnavailableError(
            "stack",
            f"must have a finite covariance to order 1/L, got a path to layer {descent.layer} "
            f"whose whitened tilt has variance {largest:.4g}, which must be below 1. Simulate "
            "prompts.",
        )


def too_many_terms(stack: GaussianStack) -> str | None:
    """Return a message if a stack has too many paths to sum; otherwise None."""
    terms, below = 0, 1
    for layer in stack.layers:
        terms += len(layer.heads) * below
        below *= 1 + 3 * len(layer.heads)
    if terms <= MOST_TERMS:
        return None
    heads = max(len(layer.heads) for layer in stack.layers)
    shape = f"{stack.depth} layers of {heads} head{'s' if heads > 1 else ''}"
    return f"{shape} have paths of {terms} terms, more than the {MOST_TERMS} that can be summed"


def require_few_terms(stack: GaussianStack) -> None:
    """Raise an error for a stack with too many paths to sum."""
    if (obstacle := too_many_terms(stack)) is not None:
        raise KindUnavailableError(
            "stack",
            f"must have few paths, got a stack in which {obstacle}. Simulate prompts, or compute "
            "the `influence` of one long prompt.",
        )


class InfluenceTerm(eqx.Module):
    r"""The term of one path in K: $N\,\partial_\epsilon[e^{F(y)}\nabla F(y)]$, with F as in `of`.

    The gradient $\nabla$ is in the tilt at the query, and $\partial_\epsilon$ is the derivative in
    all n infinitesimals of the path (see `_tilts`). Arrays have $2^n$ coefficients.

    Attributes:
        carry: $N$ (see `GaussianStack.carry`), [e, q].
        steps: n, the number of steps of the path.
        constant: the constant of F, [2^n].
        linear: the coefficients of F in $y-m$, [2^n, d].
        square: twice the coefficients of F in products of $y-m$, [2^n, d, d].
        pull: the constant of $\nabla F$, [2^n, q].
        turn: the coefficients of $\nabla F$ in $y-m$, [2^n, q, d].
    """

    carry: AnyArray
    steps: int = eqx.field(static=True)
    constant: AnyArray
    linear: AnyArray
    square: AnyArray
    pull: AnyArray
    turn: AnyArray

    @staticmethod
    def of(stack: GaussianStack, carry: Array, descent: Descent) -> "InfluenceTerm":
        r"""Return the term of a path whose last tilt has the law $N(a,C)$, in layer p.

        F(y) = -ln det(I + C G_p)/2 - a'G_p X a/2 + <P u, X a> + (P u)'X C P u/2

        with u = y - m, X = (I + C G_p)^{-1} and P = P_p.
        """
        tilts, path = descent.tilts, stack.paths[descent.layer]
        cov = path @ stack.cov @ path.mT
        matrix = tilts.cov @ cov
        matrix[0] += np.eye(cov.shape[-1])
        inverted, log_det = inverse(matrix)
        ahead = product(inverted, tilts.mean)
        drawn = cov @ ahead
        slope = np.ascontiguousarray(tilts.slope.mT)
        return InfluenceTerm(
            carry=carry,
            steps=descent.steps,
            constant=-0.5 * (log_det + product(tilts.mean.mT, drawn)[..., 0, 0]),
            linear=(path.mT @ ahead)[..., 0],
            square=path.mT @ product(inverted, tilts.cov) @ path,
            pull=-product(slope, drawn)[..., 0],
            turn=product(slope, np.ascontiguousarray(inverted.mT)) @ path,
        )

    def at(self, tokens: AnyArray) -> AnyArray:
        """Return the term, [n, e], at centred tokens y - m, [n, d]."""
        xp = tokens.__array_namespace__()
        square = 0.5 * xp.sum(xp.einsum("nd,sde->sne", tokens, self.square) * tokens[None], axis=2)
        exponent = self.constant[:, None] + xp.einsum("sd,nd->sn", self.linear, tokens) + square
        gradient = self.pull[:, None] + xp.einsum("sqd,nd->snq", self.turn, tokens)
        last = xp.sum(exponential(exponent)[:, :, None] * gradient[::-1], axis=0)
        return last @ self.carry.T


class InfluenceFunction(eqx.Module):
    r"""The influence $K(z,y)$ of a token y on the output of a stack at a query z.

    Its mean under the law of y is zero. Its mean over the tokens of a prompt is the first-order
    change of the output. As a control variate, this mean reduces the noise of a simulation by the
    factor $L^{-1/2}$.

    Attributes:
        mean: the mean of a token, [d].
        parts: one term per path.
    """

    mean: AnyArray
    parts: tuple[InfluenceTerm, ...]

    @staticmethod
    def of(stack: GaussianStack, query: Array) -> "InfluenceFunction":
        """Return the function at one query, [d]."""
        paths = query_descents(stack, query)
        return InfluenceFunction(
            stack.mean, tuple(InfluenceTerm.of(stack, *path) for path in paths)
        )

    def __call__(self, tokens: AnyArray) -> AnyArray:
        """Return $K(z,y)$, [n, e], for tokens y, [n, d]."""
        return sum(self.by_steps(tokens))

    def by_steps(self, tokens: AnyArray) -> list[AnyArray]:
        r"""Return $K^{(p)}(z,y)$, the sum over paths of p steps, [n, e] for each p."""
        centred = tokens - self.mean[None]
        steps = range(1 + max(part.steps for part in self.parts))
        return [sum(part.at(centred) for part in self.parts if part.steps == p) for p in steps]
