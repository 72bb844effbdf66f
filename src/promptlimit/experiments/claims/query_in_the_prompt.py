"""Claim 6: a query that is itself a token of the prompt changes no rate."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from promptlimit.attention import SoftmaxAttention
from promptlimit.experiments._registry import Claim
from promptlimit.measures import Empirical, Gaussian
from promptlimit.results import Check

_LENGTHS = [64, 256, 1024, 4096]
_PROMPTS = 2000


def _squared_gaps(
    attention: SoftmaxAttention, tokens: Gaussian, queries: Gaussian, length: int, key: Array
) -> np.ndarray:
    """Return squared gaps without and with the query in the prompt, on the same prompts."""

    def one(each: Array) -> Array:
        token_key, query_key = jax.random.split(each)
        prompt = Empirical(tokens.sample(length, key=token_key))
        query = queries.sample(1, key=query_key)[0]
        limit = attention(tokens, query)
        outputs = [attention(p, query) for p in (prompt, prompt.including(query))]
        return jnp.stack([jnp.sum((output - limit) ** 2) for output in outputs])

    keys = jax.random.split(key, _PROMPTS)
    return np.asarray(jax.jit(lambda ks: jax.lax.map(one, ks, batch_size=100))(keys))


def _slopes(
    attention: SoftmaxAttention, tokens: Gaussian, queries: Gaussian, seed: int
) -> tuple[float, float, float]:
    """Return the log-log slopes outside and inside, and the standard error of their difference."""
    logs = np.log(_LENGTHS)
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    means, variances = [], []
    for index, length in enumerate(_LENGTHS):
        gaps = _squared_gaps(attention, tokens, queries, length, jax.random.key(seed + index))
        mean = gaps.mean(axis=0)
        means.append(np.log(mean))
        relative = gaps / mean
        variances.append((relative[:, 1] - relative[:, 0]).var(ddof=1) / _PROMPTS)
    outside, inside = weights @ np.array(means)
    return outside, inside, float(np.sqrt(weights**2 @ np.array(variances)))


def decide(seed: int) -> Sequence[Check]:
    """Return the slopes of the gap with and without the query, and where they must differ."""
    attention = SoftmaxAttention(0.5 * np.eye(2), np.eye(2))
    tokens = Gaussian(np.zeros(2), np.eye(2))
    outside, inside, error = _slopes(attention, tokens, tokens, seed)
    narrow, sharp = Gaussian([0.0], [[0.01]]), SoftmaxAttention([[5.0]], [[1.0]])
    broad = Gaussian([0.0], [[1.0]])
    broad_outside, broad_inside, broad_error = _slopes(sharp, narrow, broad, seed + 100)
    return [
        Check(
            f"slope of the squared gap in the length, L = {_LENGTHS[0]} to {_LENGTHS[-1]}: "
            "inside minus outside",
            abs(inside - outside),
            "<=",
            0.05 + 4 * error,
            error=error,
        ),
        Check(
            "queries a hundred times broader than the tokens: slope inside minus outside",
            broad_inside - broad_outside,
            ">=",
            0.3,
            role="control",
            error=broad_error,
        ),
    ]


CLAIM = Claim(
    number=6,
    name="query-in-the-prompt",
    statement="Counting the query among the tokens of its own prompt changes no rate of "
    "convergence, for queries with the tokens' law.",
    reference="Remark 3.2",
    decide=decide,
)
