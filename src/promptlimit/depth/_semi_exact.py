r"""The bias of two softmax layers, with an exact effect of the errors of the tokens at length L.

If tokens attend strongly to themselves, the bias is far from its leading order. Its term $x_1(t)$
(see `_bias`) depends only on the first layer F_0. Let d(z') = F_0[mu_L](z') - F_0[mu](z') be the
error of this layer at a token z' of a prompt mu_L that consists of z' and L - 1 other tokens. Then

    x_1(t) = L E_{z'~N(m + G M_0't, G)} [ <t, E d(z')> + E <t, d(z')>^2 / 2 ]

The inner expectations are over the other tokens and have an exact formula (derived here). The
remaining terms of the bias are computed to leading order.
"""

import numpy as np

from promptlimit._arrays import Array
from promptlimit._quadrature import normal_gauss, product_rule, sobol_normals
from promptlimit.depth._bias import bias_without_token_errors
from promptlimit.depth._fluctuations import query_tilt
from promptlimit.depth._gaussian_stack import GaussianStack
from promptlimit.errors import KindUnavailableError
from promptlimit.weights import OwnTokenStatistics, own_token_statistics

_NODES = {1: 48, 2: 24, 3: 12}
"""The number of nodes per axis of a product rule, by dimension."""

_POINTS = 2**15
"""The number of Sobol' points in higher dimensions; each is used together with its negative."""

_TABLE = (20, 56)
"""The numbers of Chebyshev nodes of `_statistics`: in the sharpness, and in the score of a token on
itself."""


def semi_exact_bias(stack: GaussianStack, query: Array, length: float) -> Array:
    r"""Return L times the bias at a length, with $x_1(t)$ at this length, [e].

    Args:
        stack: two layers, the first with one head.
        query: $z$, [d].
        length: $L$, at least 2.
    """
    if stack.depth != 2 or len(stack.layers[0].heads) != 1:
        heads = len(stack.layers[0].heads)
        raise KindUnavailableError(
            "stack",
            "must have two layers, the first with one head, for an exact term of the tokens' "
            f"errors, got {stack.depth} layers, the first with {heads} heads. Simulate prompts.",
        )
    total = bias_without_token_errors(stack, query)
    for head, (_, value) in enumerate(stack.layers[1].heads):
        tilt = query_tilt(stack, query, 1, head)[:, 0]
        total = total + value @ _own_error_gradient(stack, tilt, length)
    return total


def _own_error_gradient(stack: GaussianStack, tilt: Array, length: float) -> Array:
    r"""Return $\nabla_tx_1(t)=L\{E[\nabla_tf]+M_0G^{1/2}E[\xi f]\}$, $z'=m+GM_0't+G^{1/2}\xi$.

    Here f is the term in brackets in the formula for $x_1(t)$ at the top of this module.
    """
    nodes, weights = _normal_nodes(stack.mean.size)
    onward = stack.maps[0]
    tokens = stack.mean + stack.cov @ onward.T @ tilt + nodes @ stack.root
    errors, products = _own_errors(stack, tokens, tilt, length)
    values = errors @ tilt + 0.5 * products @ tilt
    along = weights @ (errors + products)
    return length * (along + onward @ stack.root @ (weights * values @ nodes))


def _own_errors(
    stack: GaussianStack, tokens: Array, tilt: Array, length: float
) -> tuple[Array, Array]:
    r"""Return $E\,d$ and $E[dd']t$ for each token z' among L - 1 others, [n, e] each.

    Let $B=VG^{1/2}$, $\sigma=|G^{1/2}Uz'|$, w the unit vector along $G^{1/2}Uz'$ and
    $r=V(z'-m-GUz')$. With P0, P00, S2, B2 and X the attributes `own`, `own_square`,
    `participation`, `score_error` and `coupling` of `OwnTokenStatistics`,

        E d   = P0 r - sigma S2 Bw
        E dd' = S2 BB' + (B2 - S2) Bw (Bw)' + X (Bw r' + r (Bw)') + P00 rr'.
    """
    ((key_query, value),) = stack.layers[0].heads
    seen = tokens @ key_query.T @ stack.root
    sharpness = np.linalg.norm(seen, axis=1)
    unit = seen / np.maximum(sharpness, np.finfo(np.float64).tiny)[:, None]
    own_score = np.einsum("nd,nd->n", tokens @ key_query.T, tokens - stack.mean)
    statistics = _statistics(sharpness, own_score, length - 1.0)
    spread = value @ stack.root
    along = unit @ spread.T
    away = (tokens - stack.mean) @ value.T - sharpness[:, None] * along
    p0, s2 = statistics.own[:, None], statistics.participation[:, None]
    b2, x, p00 = (
        part[:, None]
        for part in (statistics.score_error, statistics.coupling, statistics.own_square)
    )
    ahead, aside = (along @ tilt)[:, None], (away @ tilt)[:, None]
    products = s2 * (spread @ spread.T @ tilt) + (b2 - s2) * ahead * along
    products = products + x * (aside * along + ahead * away) + p00 * aside * away
    return p0 * away - s2 * sharpness[:, None] * along, products


def _statistics(sharpness: Array, own_score: Array, length: float) -> OwnTokenStatistics:
    """Return `own_token_statistics`; for many points, interpolate their logarithms in a table."""
    if sharpness.size <= _TABLE[0] * _TABLE[1] or length == 0.0:
        return own_token_statistics(sharpness, own_score, length)
    rows, left = _chebyshev(sharpness, _TABLE[0])
    columns, right = _chebyshev(own_score, _TABLE[1])
    sigma, score = (side.ravel() for side in np.meshgrid(rows, columns, indexing="ij"))
    table = own_token_statistics(sigma, score, length)

    def interpolate(values: Array) -> Array:
        return np.exp(np.sum(left @ np.log(values).reshape(_TABLE) * right, axis=1))

    return OwnTokenStatistics(
        own=interpolate(table.own),
        own_square=interpolate(table.own_square),
        participation=interpolate(table.participation),
        score_error=interpolate(table.score_error),
        coupling=-sharpness * interpolate(-table.coupling / sigma),
    )


def _chebyshev(x: Array, size: int) -> tuple[Array, Array]:
    """Return Chebyshev nodes over the range of x, and interpolation weights at x, [n, size]."""
    low, high = float(x.min()), float(x.max()) + 1e-9
    angles = np.pi * (np.arange(size) + 0.5) / size
    orders = np.arange(size)
    at_nodes = np.cos(np.outer(angles, orders)) * np.where(orders == 0, 1.0, 2.0) / size
    inside = np.clip((2.0 * x - low - high) / (high - low), -1.0, 1.0)
    weights = np.cos(np.outer(np.arccos(inside), orders)) @ at_nodes.T
    return 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angles), weights


def _normal_nodes(dim: int) -> tuple[Array, Array]:
    """Return nodes [n, d] and weights [n] for means over standard normal vectors."""
    if dim in _NODES:
        nodes, weights = product_rule([normal_gauss(_NODES[dim])] * dim)
        kept = weights > 1e-18
        return nodes[kept], weights[kept]
    points = sobol_normals(dim, _POINTS, 20_250_131)
    return np.concatenate([points, -points]), np.full(2 * _POINTS, 0.5 / _POINTS)
