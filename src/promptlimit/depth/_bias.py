r"""The bias of a softmax stack over finite prompts, to order 1/L.

`GaussianStack` defines M, P, U, V, m and G. `_fluctuations` defines t_l, W_jl and the influences
K_l and chi_l. Let b_l(z) be the limit of L times the bias of the output of the first l layers,
C_l(z) = E_y K_l(z,y) K_l(z,y)' and c_lj(t,s) = E_y chi_l(t,y) chi_j(s,y). By docs/depth-theory.md,

    b_{l+1}(z) = M_l b_l(z) + sum_h V^h grad_t { x_l(t) - c_ll(t,t)/2
                 + sum_{j<l} <grad_t, U_l W_jl grad_s> c_lj(t, s)|_{s=t_j(z)} }_{t=t_l(z)}
    x_l(t) = E_{z'~N(m + G P_l't, G)} [ <t, b_l(z') + K_l(z',z')> + t'C_l(z')t/2 ]

The term x_l is the effect of the errors of the tokens before layer l. Each term is a derivative of
$E\exp(\tfrac12v'Jv)$ with a Gaussian vector v and a matrix J. To apply <grad_t, D grad_s>, add
$\epsilon D$ to the covariance of the rows t and s of v, and differentiate in $\epsilon$ at 0.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from promptlimit._arrays import Array
from promptlimit.depth._fluctuations import (
    descents,
    fluctuation_cov,
    pair_form,
    query_tilt,
    require_few_terms,
)
from promptlimit.depth._gaussian_stack import GaussianStack
from promptlimit.depth._tilts import GaussianMean, Tilts, symmetric_form
from promptlimit.errors import KindUnavailableError

Diagram: TypeAlias = tuple[float, Tilts, Array]
r"""A triple (factor, v, J), which represents the factor times the last coefficient (see `_tilts`)
of $E\exp(\tfrac12v'Jv)$."""

_CHUNK = 256
"""The number of laws that `square_error_slopes` processes at a time; the arrays fit in a cache."""


def fluctuation_bias(stack: GaussianStack, query: Array) -> Array:
    r"""Return $\lim_LL\,E(\Phi_L(z)-\Phi(z))$, [..., e], for outputs $\Phi_L$ with limit $\Phi$.

    Args:
        stack: the layers and the law of tokens.
        query: $z$, [..., d].

    Raises:
        KindUnavailableError: the scores of a layer are so sharp that the expansion in 1/L does not
            exist, or the stack has too many paths (see `_fluctuations`).
    """
    _require_expansion(stack)
    return bias_without_token_errors(stack, query) + _token_error_bias(stack, query)


def masked_bias_slope(stack: GaussianStack, query: Array) -> Array:
    r"""Return $V_1\nabla x_1(t)$ at $t=t_1(z)$, summed over the heads of the second layer.

    The stack must have two layers. To leading order, its bias under a causal mask is this vector
    times $\ln L/L$. The next term, of order 1/L, depends on the first tokens of the prompt.
    """
    if stack.depth != 2:
        raise KindUnavailableError(
            "stack",
            "must have two layers for a bias of order ln L / L under a causal mask, got "
            f"{stack.depth} layers. Simulate prompts.",
        )
    _require_expansion(stack)
    return _token_error_bias(stack, query)


def _require_expansion(stack: GaussianStack) -> None:
    if (obstacle := stack.sharp_layer()) is not None:
        raise KindUnavailableError(
            "stack",
            f"must have a bias of order 1/L, got one in which {obstacle}. Simulate prompts.",
        )


def _token_error_bias(stack: GaussianStack, query: Array) -> Array:
    """Return the bias from the terms x_l."""
    return _gradients(stack, query, lambda level, _, tilts: token_errors(stack, tilts, level))


def bias_without_token_errors(stack: GaussianStack, query: Array) -> Array:
    """Return the bias without the terms x_l."""

    def diagrams(level: int, head: int, tilts: Tilts) -> Iterator[Diagram]:
        yield from _concavity(stack, tilts, level)
        for j, h in stack.below(level):
            zero = np.zeros((stack.token_dims[j], stack.token_dims[level]))
            both = tilts.append(zero, slice(None), shift=query_tilt(stack, query, j, h))
            yield from _query_noise(stack, both, (level, head), (j, h))

    return _gradients(stack, query, diagrams)


def _gradients(
    stack: GaussianStack, query: Array, diagrams: Callable[[int, int, Tilts], Iterator[Diagram]]
) -> Array:
    r"""Return the sum over heads of $N\nabla_t$ of their `diagrams`, [..., e], with N = `carry`."""
    require_few_terms(stack)
    total: Array | float = 0.0
    for level, head in stack.below(stack.depth):
        tilts = Tilts.start(query_tilt(stack, query, level, head))
        gradient: Array | float = 0.0
        for factor, v, form in diagrams(level, head, tilts):
            gradient = gradient + factor * GaussianMean.of(v, form).derivative()
        if not np.isscalar(gradient):
            total = total + stack.carry(level, head, stack.depth) @ gradient
    batch = np.broadcast_shapes(query.shape[:-1], stack.mean.shape[:-1], stack.cov.shape[:-2])
    return np.broadcast_to(total, (*batch, stack.layers[-1].residual.shape[0], 1))[..., 0]


def token_errors(stack: GaussianStack, tilts: Tilts, level: int) -> Iterator[Diagram]:
    r"""Yield the diagrams of $x_l(t)$ for v = t."""
    t = slice(0, stack.token_dims[level])
    token = slice(t.stop, t.stop + stack.mean.shape[-1])
    both = tilts.append(stack.cov @ stack.paths[level].mT, t, noise=stack.cov)  # t and z' - m
    heads = stack.below(level)
    for place, (j, h) in enumerate(heads):
        s = slice(token.stop, token.stop + stack.token_dims[j])
        read = _read(stack, both, (j, h), token, (level, t))
        yield from token_errors(stack, read.select(s), j)
        yield from _concavity(stack, read.select(s), j)
        for below in stack.below(j):
            other = slice(s.stop, s.stop + stack.token_dims[below[0]])
            two = _read(stack, read, below, token).select(s, other)
            yield from _query_noise(stack, two, (j, h), below)
        for descent in descents(stack, read.select(s, token), j):
            yield 1.0, descent.tilts, _own_form(stack, descent.layer)
        for number, second in enumerate(heads[: place + 1]):
            other = slice(s.stop, s.stop + stack.token_dims[second[0]])
            two = _read(stack, read, second, token, (level, t)).select(s, other)
            yield from _pairs(stack, two, j, second[0], 0.5 if number == place else 1.0)


def _read(
    stack: GaussianStack,
    tilts: Tilts,
    head: tuple[int, int],
    token: slice,
    mark: tuple[int, slice] | None = None,
) -> Tilts:
    r"""Return v with $t_j(z')+\epsilon W_{jl}'t$ appended, or $t_j(z')$ without `mark`.

    Here `head` is (j, h), `token` is the slice of $z'-m$ in v, and `mark` consists of l and the
    slice of t in v. The infinitesimal $\epsilon$ (see `_tilts`) is new.
    """
    j, h = head
    key_query = stack.layers[j].heads[h][0]
    marked = None if mark is None else (stack.carry(j, h, mark[0]).mT, mark[1])
    return tilts.append(
        key_query @ stack.paths[j], token, shift=key_query @ stack.means[j], mark=marked
    )


def _pairs(
    stack: GaussianStack, tilts: Tilts, level: int, other: int, factor: float
) -> Iterator[Diagram]:
    r"""Yield the diagrams of a factor times $c_{lj}(t,s)$, for v = (t, s)."""
    for first in descents(stack, tilts, level):
        for second in descents(stack, first.tilts, other):
            yield factor, second.tilts, pair_form(stack, first.layer, second.layer)


def _concavity(stack: GaussianStack, tilts: Tilts, level: int) -> Iterator[Diagram]:
    r"""Yield the diagrams of $-c_{ll}(t,t)/2$, for v = t."""
    t = slice(0, stack.token_dims[level])
    yield from _pairs(stack, tilts.select(t, t), level, level, -0.5)


def _query_noise(
    stack: GaussianStack, tilts: Tilts, head: tuple[int, int], below: tuple[int, int]
) -> Iterator[Diagram]:
    r"""Yield the diagrams of $\langle\nabla_t,U_lW_{jl}\nabla_s\rangle c_{lj}(t,s)$, v = (t,s)."""
    (level, number), (j, h) = head, below
    t = slice(0, stack.token_dims[level])
    noise = stack.layers[level].heads[number][0] @ stack.carry(j, h, level)
    moving = tilts.correlate(noise, t, slice(t.stop, None))
    yield from _pairs(stack, moving, level, j, 1.0)


def _own_form(stack: GaussianStack, level: int) -> Array:
    r"""Return J with $\tfrac12v'Jv=\langle x,P_py\rangle-\tfrac12x'G_px$.

    Here v = (y, x) with y a centred token and x the tilt in layer p = `level`.
    """
    path, dim = stack.paths[level], stack.mean.shape[-1]
    return symmetric_form(np.zeros((dim, dim)), path.mT, -path @ stack.cov @ path.mT)


def square_error_slopes(
    stack: GaussianStack, queries: Array, readout: Array, targets: Array
) -> Array:
    r"""Return $\lim_LL\{E(e'\Phi_L-y)^2-(e'\Phi-y)^2\}=2(e'\Phi-y)\,e'b+e'Ce$, [n].

    Here b and C are the limits of L times the bias and the covariance of the output $\Phi_L$, and
    $\Phi$ is the limit of $\Phi_L$. In in-context learning, where the law of tokens differs between
    prompts, the mean of the slopes over laws, queries and targets is the coefficient of 1/L in the
    mean squared error of the predictions.

    Args:
        stack: n laws of tokens under the same layers: mean [n, d], cov [n, d, d].
        queries: one query per law, [n, d].
        readout: $e$, the vector whose inner product with the output is the prediction, [e].
        targets: $y$, the true value for each query, [n].

    Raises:
        KindUnavailableError: a layer is too sharp for one of the laws.
    """
    slopes = np.empty(len(queries))
    for start in range(0, len(queries), _CHUNK):
        part = slice(start, start + _CHUNK)
        some = dataclasses.replace(stack, mean=stack.mean[part], cov=stack.cov[part])
        error = some.output(queries[part]) @ readout - targets[part]
        bias = fluctuation_bias(some, queries[part]) @ readout
        variance = fluctuation_cov(some, queries[part]) @ readout @ readout
        slopes[part] = 2.0 * error * bias + variance
    return slopes
