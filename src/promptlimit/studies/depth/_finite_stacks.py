"""Stacks of one dimension at finite length, simulated: what the claim and the figure share."""

import math

import numpy as np

from promptlimit._quadrature import normal_gauss
from promptlimit.depth import GaussianStack, LayerMatrices, StackKernel

Array = np.ndarray


def line_stack(*layers: tuple[float, float, float]) -> GaussianStack:
    """Return layers (r, u, v) over standard normal tokens."""
    matrices = [[np.array([[number]]) for number in layer] for layer in layers]
    return GaussianStack(
        np.zeros(1), np.eye(1), tuple(LayerMatrices(r, ((u, v),)) for r, u, v in matrices)
    )


def outputs(
    stack: GaussianStack, tokens: Array, query: float, *, causal: bool = False
) -> list[Array]:
    """Return the query after every layer, [n] each, over prompts [n, L] as a network runs them."""
    queries, length = np.full(len(tokens), query), tokens.shape[1]
    after = []
    for place, layer in enumerate(stack.layers, start=1):
        ((key_query, value),) = layer.heads
        r, u, v = (float(matrix[0, 0]) for matrix in (layer.residual, key_query, value))
        weights = np.exp(u * queries[:, None] * tokens)
        queries = r * queries + v * np.sum(weights * tokens, axis=1) / weights.sum(axis=1)
        after.append(queries)
        if place < len(stack.layers):  # nobody reads what the last layer makes of tokens
            scores = u * tokens[:, :, None] * tokens[:, None, :]
            weights = np.exp(scores, out=scores)
            if causal:
                weights *= np.tri(length)
            sums = weights @ np.stack([tokens, np.ones_like(tokens)], axis=2)
            tokens = r * tokens + v * sums[:, :, 0] / sums[:, :, 1]
    return after


def first_orders(stack: GaussianStack, tokens: Array, query: float) -> dict[str, Array]:
    """Return what the influences of the tokens of prompts [n, L] add up to, [n] each.

    "whole" is the influence, "direct" leaves out what tokens pass on, and "causal" weighs what p of
    them pass on with the times that a token at its place is read so under a mask.
    """
    count, length = tokens.shape
    kernel = StackKernel.of(stack, np.array([query]))
    parts = [part.reshape(count, length) for part in kernel.by_steps(tokens.reshape(-1, 1))]
    later = np.cumsum(1.0 / np.arange(length, 0, -1.0))[::-1]  # sum of 1/j over the places from i
    masked = sum(part * later**p / math.factorial(p) for p, part in enumerate(parts))
    columns = {"whole": sum(parts), "direct": parts[0], "causal": masked}
    return {name: np.mean(column, axis=1) for name, column in columns.items()}


def atoms_variance(stack: GaussianStack, query: float, nodes: int = 40) -> float:
    """Return E K^2 from the stack itself on quadrature atoms, each with a little more weight.

    The little is imaginary: the derivative has no difference in it.
    """
    points, weights = normal_gauss(nodes)
    moved = weights + 1e-30j * (np.eye(nodes) - weights)
    tokens = np.broadcast_to(points, (nodes, nodes)).astype(complex)
    queries = np.full(nodes, query, dtype=complex)
    for layer in stack.layers:
        ((key_query, value),) = layer.heads
        r, u, v = (matrix[0, 0] for matrix in (layer.residual, key_query, value))
        scores = np.exp(u * tokens[:, :, None] * tokens[:, None, :]) * moved[:, None]
        row = np.exp(u * queries[:, None] * tokens) * moved
        queries = r * queries + v * np.sum(row * tokens, axis=1) / row.sum(axis=1)
        tokens = r * tokens + v * np.einsum("nij,nj->ni", scores, tokens) / scores.sum(axis=2)
    return float(weights @ (np.imag(queries) / 1e-30) ** 2)


def masked_variance(stack: GaussianStack, query: float, nodes: int = 40) -> float:
    r"""Return $\sum_{pq}\binom{p+q}pE\,K_pK_q$, $K_p$ the influence that p tokens pass on."""
    points, weights = normal_gauss(nodes)
    parts = StackKernel.of(stack, np.array([query])).by_steps(points[:, None])
    columns = [np.ravel(part) for part in parts]
    return sum(
        math.comb(p + q, p) * float(weights @ (first * second))
        for p, first in enumerate(columns)
        for q, second in enumerate(columns)
    )
