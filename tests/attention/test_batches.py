"""A batch of queries in one call, and the defaults of an attention that a user writes."""

import jax
import numpy as np
import pytest

import promptlimit as pl

RNG = np.random.default_rng(5)
U, V, R = RNG.normal(size=(3, 3, 3)) * 0.4
COV = np.eye(3) + 0.3
TOKENS = RNG.normal(size=(7, 3))
QUERIES = RNG.normal(size=(4, 3))
HEAD = pl.SoftmaxAttention(U, V)

ATTENTIONS = {
    "softmax": HEAD,
    "linear": pl.LinearAttention(U, V),
    "layer": pl.Layer(HEAD, residual=R),
    "stack": pl.Stack([pl.Layer(HEAD), pl.Layer(pl.LinearAttention(V, U))]),
}


def textbook(tokens: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return softmax attention by plain NumPy."""
    weights = np.exp(tokens @ U @ query)
    return V @ (weights @ tokens / weights.sum())


@pytest.mark.parametrize("prompt", [pl.Empirical(TOKENS), pl.Gaussian(np.ones(3), COV)])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_a_batch_gives_the_output_at_each_query(name, prompt):
    attention = ATTENTIONS[name]
    outputs = attention(prompt, QUERIES)
    assert outputs.shape == (4, 3)
    for query, output in zip(QUERIES, outputs, strict=True):
        np.testing.assert_allclose(output, attention(prompt, query), rtol=2e-6, atol=1e-6)


def test_a_batch_agrees_with_the_textbook(x64):
    outputs = pl.SoftmaxAttention(U, V)(pl.Empirical(TOKENS), QUERIES)
    expected = [textbook(TOKENS, query) for query in QUERIES]
    np.testing.assert_allclose(outputs, expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (np.ones((4, 2)), r"`query` must have shape \(4, 3\)"),
        (np.ones((2, 4, 3)), "one query per row, got shape"),
        (np.full((2, 3), np.nan), "`query` must be finite"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(queries, message):
    with pytest.raises(ValueError, match=message):
        HEAD(pl.Empirical(TOKENS), queries)


class Doubled(pl.AbstractAttention):
    """Twice a head plus the query; it implements the dimensions, `attend` and its structure."""

    head: pl.SoftmaxAttention

    token_dim = query_dim = output_dim = 3

    def attend(self, prompt, query):
        return 2.0 * self.head.attend(prompt, query) + query

    def as_heads(self):
        return self.head, self.head

    def residual_matrix(self):
        return jax.numpy.eye(3)


class Cubed(pl.AbstractAttention):
    """An attention whose Gaussian limit is not affine."""

    token_dim = query_dim = output_dim = 3

    def attend(self, prompt, query):
        return prompt.tilted_mean(query) ** 3


def test_the_affine_limit_follows_from_the_heads(x64):
    head = pl.SoftmaxAttention(U, V)
    law = pl.Gaussian(np.arange(3.0), COV)
    limit = Doubled(head).affine_limit(law)
    assert limit is not None
    matrix, shift = limit
    np.testing.assert_allclose(matrix, np.eye(3) + 2 * V @ COV @ U, rtol=1e-13)
    np.testing.assert_allclose(shift, 2 * V @ np.arange(3.0), rtol=1e-13)
    np.testing.assert_allclose(
        Doubled(head)(law, QUERIES), QUERIES @ np.asarray(matrix).T + np.asarray(shift), rtol=1e-12
    )


def test_without_heads_there_is_no_affine_limit():
    law = pl.Gaussian(np.zeros(3), COV)
    assert Cubed().affine_limit(law) is None
    with pytest.raises(ValueError, match="Cubed implements neither `as_heads` nor `affine_limit`"):
        Cubed().push_forward(law)
    with pytest.raises(ValueError, match="Cubed implements neither"):
        pl.Stack([Cubed(), pl.Layer(HEAD)])(law, QUERIES[0])
