"""The oracle: textbook sums and attention in NumPy, on tokens that are all in memory."""

import numpy as np

from promptlimit.streaming._sums import TiltedSums


def plain_attention(
    key_query: np.ndarray, value: np.ndarray, tokens: np.ndarray, queries: np.ndarray
) -> dict[str, np.ndarray]:
    """Return every statistic of a stream, for the whole of the tokens."""
    tilts = queries @ key_query.T
    scores = tilts @ tokens.T
    top = scores.max(axis=1)
    weights = np.exp(scores - top[:, None])
    total = weights.sum(axis=1)
    p = weights / total[:, None]
    mean = p @ tokens
    centred = tokens[None] - mean[:, None]
    return {
        "output": mean @ value.T,
        "log_sum_exp": top + np.log(total),
        "max_score": top,
        "max_weight": p.max(axis=1),
        "participation": (p**2).sum(axis=1),
        "entropy": -(p * np.log(np.where(p > 0, p, 1.0))).sum(axis=1),
        "mean": mean,
        "cov": np.einsum("qn,qnj,qnk->qjk", p, centred, centred),
        "linear_output": tilts @ (tokens.T @ tokens / len(tokens)) @ value.T,
    }


def plain_sums(tokens: np.ndarray, tilts: np.ndarray) -> TiltedSums:
    """Return the sums over some tokens, one a row, as they are defined."""
    tokens, tilts = tokens.astype(np.float64), tilts.astype(np.float64)
    scores = tilts @ tokens.T
    top = scores.max(axis=1)
    weights = np.exp(scores - top[:, None])
    square = (weights**2).sum(axis=1)
    second = np.einsum("qn,nj,nk->qjk", weights, tokens, tokens)
    rows, columns = np.triu_indices(tokens.shape[1])
    return TiltedSums(top, weights.sum(axis=1), square, weights @ tokens, second[:, rows, columns])
