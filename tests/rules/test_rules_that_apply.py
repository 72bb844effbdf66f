"""A rule without an obstacle computes, and exact rules of one problem agree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl

LENGTHS = [2, 30]
U, V, W = np.random.default_rng(3).normal(size=(3, 2, 2)) * 0.4
QUERY = [0.3, -0.5]
GAUSSIAN = pl.Gaussian([0.2, 0.0], [[1.0, 0.3], [0.3, 0.8]])


class Poisson(pl.AbstractMeasure):
    """Independent Poisson coordinates, known by their log-Laplace transform alone."""

    rates: jax.Array
    finite_everywhere = True

    @property
    def dim(self):
        return self.rates.shape[0]

    def log_laplace(self, tilt):
        return jnp.sum(self.rates * jnp.expm1(tilt))

    def sample(self, length, *, key):
        drawn = jax.random.poisson(key, self.rates, (length, self.dim))
        return drawn.astype(self.rates.dtype)


ATTENTIONS = {
    "softmax": lambda: pl.SoftmaxAttention(U, V),
    "linear": lambda: pl.LinearAttention(U, V),
    "with the mean": lambda: pl.MultiHead(
        [pl.SoftmaxAttention(U, V), pl.SoftmaxAttention(0 * U, W)]
    ),
    "two heads": lambda: pl.MultiHead([pl.SoftmaxAttention(U, V), pl.SoftmaxAttention(V, W)]),
    "linear layers": lambda: pl.Stack([pl.Layer(pl.LinearAttention(U, V))] * 2),
    "softmax layers": lambda: pl.Stack([pl.Layer(pl.SoftmaxAttention(0.3 * U, V))] * 2),
}
LAWS = {
    "Gaussian": lambda: GAUSSIAN,
    "listed": lambda: pl.Empirical(np.random.default_rng(4).normal(size=(4, 2))),
    "Poisson": lambda: Poisson(jnp.array([0.7, 1.2])),
    "cube": lambda: pl.UniformCube([1.0, 0.5]),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_rule_that_applies_computes_and_exact_ones_agree(attention, law, x64):
    arguments = ATTENTIONS[attention](), LAWS[law](), QUERY, LENGTHS
    found = pl.explain(pl.prompt_moments, *arguments, key=jax.random.key(0))
    exact = []
    for rule, obstacle in found.obstacles:
        if obstacle is not None or rule.kind not in ("exact", "asymptotic"):
            continue
        quantity = pl.finite.PROMPT_MOMENTS
        others = [one for one in quantity.rules if one.kind == rule.kind and one is not rule]
        kept = list(quantity.rules)
        quantity.rules[:] = [one for one in kept if one not in others]
        try:
            moments = pl.prompt_moments(*arguments, kind=rule.kind)
        finally:
            quantity.rules[:] = kept
        assert moments.kind == rule.kind
        if rule.kind == "exact":
            exact.append(moments.mse)
    for mse in exact[1:]:
        np.testing.assert_allclose(mse, exact[0], rtol=1e-9)
    if attention in ("softmax", "linear", "with the mean"):
        assert exact
