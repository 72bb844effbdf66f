r"""Gradients of $R$ on batches of drawn prompts, written out in NumPy: nothing is compiled.

A head with factors $K,Q,V,O$ and the scale $c$ asks with $t=cK^\top Qz$, reads
$m=\sum_lp_lz_l$, and predicts $\langle r,m\rangle$ with $r=V^\top O^\top e$, $e$ the last unit
vector. For softmax $p_l\propto e^{\langle t,z_l\rangle}$, for linear attention
$p_l=\langle t,z_l\rangle/L$. With the residual $\epsilon$ of the prediction the gradient of
$\frac12\epsilon^2$ is $\epsilon m$ in $r$ and $\epsilon u$ in $t$,

$$u=\sum_lp_l\langle r,z_l\rangle z_l-\langle r,m\rangle m\quad\text{(softmax)},\qquad
u=\frac1L\sum_l\langle r,z_l\rangle z_l\quad\text{(linear)}.$$
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit.attention import Factored
from promptlimit.tasks import LinearRegression


class Batch(NamedTuple):
    """Prompts of one length, in single precision, as in training.

    Attributes:
        tokens: [batch, length, d + 1].
        queries: with 0 in place of the label, [batch, d + 1].
        labels: of the queries, [batch].
    """

    tokens: np.ndarray
    queries: np.ndarray
    labels: np.ndarray


def batch_gradients(
    task: LinearRegression,
    heads: Sequence[Factored],
    length: int,
    *,
    key: PRNGKeyArray,
    batch: int,
    batches: int,
) -> list[np.ndarray]:
    """Return the gradients of R on batches all heads share, for each head [batch, parameter].

    Args:
        task: the law of prompts and queries.
        heads: where the gradient is taken.
        length: $L$.
        key: randomness.
        batch: prompts in a batch.
        batches: how many.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    rows: list[list[np.ndarray]] = [[] for _ in heads]
    for _ in range(batches):
        drawn = random_batch(task, length, batch, rng)
        for row, head in zip(rows, heads, strict=True):
            row.append(batch_gradient(head, drawn))
    return [np.stack(row) for row in rows]


def random_batch(
    task: LinearRegression, length: int, batch: int, rng: np.random.Generator
) -> Batch:
    """Return prompts of the task, drawn anew."""
    dim = task.covariance.shape[0]
    factor, query_factor = (
        np.linalg.cholesky(cov).astype(np.float32)
        for cov in (task.covariance, task.query_covariance)
    )
    prior, noise = np.sqrt([task.prior_variance, task.noise_variance], dtype=np.float32)
    drawn = rng.standard_normal((batch, length + 2, dim + 1), dtype=np.float32)
    w = prior * drawn[:, -1, :dim]
    x, query = drawn[:, :length, :dim] @ factor.T, drawn[:, -2, :dim] @ query_factor.T
    y = (x @ w[:, :, None])[..., 0] + noise * drawn[:, :length, dim]
    labels = (query * w).sum(axis=1) + noise * drawn[:, -2, dim]
    queries = np.concatenate([query, np.zeros((batch, 1), np.float32)], axis=1)
    return Batch(np.concatenate([x, y[..., None]], axis=2), queries, labels)


def batch_gradient(head: Factored, batch: Batch) -> np.ndarray:
    """Return the gradient of half the mean squared error on a batch, in K, Q, V and O as one."""
    K, Q, V = (np.asarray(w) for w in (head.key_weight, head.query_weight, head.value_weight))
    O = np.eye(V.shape[0]) if head.output is None else np.asarray(head.output)  # noqa: E741
    t, r = head.scale * batch.queries @ Q.T @ K, V.T @ O[-1]
    m, u = _reading(head.kernel, batch.tokens, t.astype(np.float32), r.astype(np.float32))
    residual = (m @ r - batch.labels) / batch.labels.size
    by_t, by_r = residual[:, None] * u, residual @ m
    gradients = [
        head.scale * Q @ batch.queries.T @ by_t,
        head.scale * K @ by_t.T @ batch.queries,
        np.outer(O[-1], by_r),
    ]
    if head.output is not None:
        gradients.append(np.zeros_like(O))
        gradients[-1][-1] = V @ by_r
    return np.concatenate([gradient.ravel() for gradient in gradients], dtype=np.float64)


def _reading(
    kernel: str, tokens: np.ndarray, t: np.ndarray, r: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return m and u of each prompt, [batch, d + 1]."""
    scores, values = (tokens @ t[:, :, None])[..., 0], tokens @ r
    if kernel == "softmax":
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        m, second = (_sum(part, tokens) for part in (weights, weights * values))
        return m, second - (m @ r)[:, None] * m
    length = tokens.shape[1]
    return _sum(scores, tokens) / length, _sum(values, tokens) / length


def _sum(weights: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return (weights[:, None] @ tokens)[:, 0]
