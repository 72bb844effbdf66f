"""A law has no tilted law where its log-Laplace transform is not finite: nothing believes one."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl

KEY = jax.random.key(0)


class TwoSidedExponential(pl.AbstractMeasure):
    """Tokens of density exp(-|z|) / 2: a transform for |t| < 1, whose slope goes on beyond."""

    @property
    def dim(self):
        return 1

    def log_laplace(self, tilt):
        return -jnp.log1p(-(tilt[0] ** 2))

    def sample(self, length, *, key):
        return jax.random.laplace(key, (length, 1))


class Named(pl.AbstractTask):
    """Queries and tokens of one law, the query seen whole."""

    law: pl.AbstractMeasure

    @property
    def token_dim(self):
        return 1

    def draw(self, *, key):
        return self.law, pl.Empirical(jnp.array([[1.5], [0.1]]))

    def query_of(self, token):
        return token

    def loss(self, output, token):
        return 0.5 * jnp.sum((output - token) ** 2)


class Silent(pl.AbstractAttention):
    """An attention without `as_heads`."""

    @property
    def token_dim(self):
        return 1

    @property
    def query_dim(self):
        return 1

    @property
    def output_dim(self):
        return 1

    def attend(self, prompt, query):
        return 2.0 * prompt.tilted_mean(query)


LAW = TwoSidedExponential()
HEAD = pl.SoftmaxAttention([[1.0]], [[1.0]])
BEYOND = [1.5]


def sentence(name="TwoSidedExponential", tilt="[1.5]", value="nan"):
    return re.escape(
        f"`tilt` must lie where the log-Laplace transform of {name} tokens is finite, got {tilt}, "
        f"where it is {value}. Scale the query or the key-query matrix down."
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda: LAW.tilted_mean(jnp.array(BEYOND)),
        lambda: LAW.tilted_cov(jnp.array(BEYOND)),
        lambda: HEAD(LAW, jnp.array(BEYOND)),
        lambda: HEAD.jacobian(LAW, jnp.array(BEYOND), wrt="key_query"),
        lambda: Silent()(LAW, jnp.array(BEYOND)),
        lambda: pl.Layer(HEAD)(LAW, jnp.array(BEYOND)),
        lambda: pl.prompt_moments(HEAD, LAW, BEYOND, math.inf),
        lambda: pl.prompt_moments(HEAD, LAW, BEYOND, 10),
        lambda: pl.prompt_moments(HEAD, LAW, BEYOND, 10, kind="asymptotic"),
        lambda: pl.gradient_moments(HEAD, LAW, BEYOND, 10, wrt="value", kind="asymptotic"),
        lambda: pl.gradient_moments(HEAD, LAW, BEYOND, 10, wrt="key_query", key=KEY, samples=4),
        lambda: pl.output_gap(HEAD, LAW, [[0.1], BEYOND], [10]),
        lambda: pl.gap_exponent(HEAD, LAW, [[0.1], BEYOND]),
        lambda: pl.required_length(HEAD, LAW, [BEYOND], 0.1),
        lambda: pl.length_statistics(pl.lengths.TokenScores(LAW, jnp.array(BEYOND)), [10]),
    ],
)
def test_a_tilt_outside_the_domain_is_refused_wherever_a_law_is_read(ask):
    with pytest.raises(pl.errors.OutsideDomainError, match=f"^{sentence()}$"):
        ask()


@pytest.mark.parametrize(
    ("law", "tilt", "words"),
    [
        (pl.Mixture([0.5, 0.5], [LAW, pl.Gaussian([0.0], [[1.0]])]), BEYOND, "Mixture"),
        (pl.Affine(LAW, [[2.0]], [1.0]), [0.75], "Affine"),
        (pl.Product([LAW, LAW]), [1.5, 0.25], "Product"),
    ],
)
def test_what_is_made_of_a_law_ends_where_it_does(law, tilt, words):
    assert not law.finite_everywhere
    point = "[" + ", ".join(map(str, tilt)) + "]"
    with pytest.raises(pl.errors.OutsideDomainError, match=sentence(words, point)):
        law.tilted_mean(jnp.array(tilt))
    assert np.isfinite(law.tilted_mean(0.1 * jnp.array(tilt))).all()


def test_an_infinite_transform_is_outside_too():
    class Infinite(TwoSidedExponential):
        def log_laplace(self, tilt):
            inside = jnp.abs(tilt[0]) < 1
            return jnp.where(inside, super().log_laplace(jnp.where(inside, tilt, 0.0)), jnp.inf)

    with pytest.raises(pl.errors.OutsideDomainError, match=sentence("Infinite", value="inf")):
        Infinite().tilted_mean(jnp.array(BEYOND))


def test_where_jax_traces_it_is_nan_and_so_are_its_derivatives():
    queries = jnp.array([BEYOND, [0.5]])
    outputs = jax.vmap(lambda query: HEAD(LAW, query))(queries)
    assert_allclose(outputs[:, 0], [np.nan, 2 * 0.5 / (1 - 0.25)], rtol=1e-6)
    slopes = jax.vmap(lambda query: HEAD.jacobian(LAW, query, wrt="key_query"))(queries)
    curvature = (2 + 2 * 0.25) / (1 - 0.25) ** 2
    assert_allclose(slopes[:, 0, 0, 0], [np.nan, 0.5 * curvature], rtol=1e-6)


def test_linear_attention_reads_a_law_at_zero_alone():
    assert_allclose(pl.LinearAttention([[1.0]], [[1.0]])(LAW, jnp.array(BEYOND)), [3.0])


def test_without_a_second_moment_of_the_weights_there_is_no_leading_order():
    reason = (
        "of TwoSidedExponential tokens the weights have no second moment (the log-Laplace "
        "transform is not finite at twice the tilt)"
    )
    message = (
        "`kind` must be 'exact' or 'estimate' for SoftmaxAttention over TwoSidedExponential "
        f"tokens, got 'asymptotic': {reason}."
    )
    with pytest.raises(pl.KindUnavailableError, match=f"^{re.escape(message)}$"):
        pl.prompt_moments(HEAD, LAW, [0.6], 10, kind="asymptotic")
    with pytest.raises(pl.KindUnavailableError, match=re.escape(reason)):
        pl.gradient_moments(HEAD, LAW, [0.6], 10, wrt="key_query", kind="asymptotic")
    message = (
        "`queries` must have gaps that fall like 1/L for the rate to be known, but the gap at one "
        f"query does not: {reason}. Use fit_rate(lengths, values), which accepts any gap curve."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.gap_exponent(HEAD, LAW, [[0.1], [0.6]])
    assert pl.gap_exponent(HEAD, LAW, [[0.1], [0.4]]).value == 1.0
    needed = pl.required_length(HEAD, LAW, [[0.6]], 0.5)
    assert needed.asymptotic is None
    assert needed.exact is not None


def test_queries_drawn_outside_the_domain_are_counted():
    message = (
        "`queries` must produce tilts inside the domain of the log-Laplace transform of "
        "TwoSidedExponential tokens, got Gaussian queries of which 16 of 16 do not. Scale the "
        "queries or the key-query matrix down."
    )
    queries = pl.Gaussian([9.0], [[1.0]])
    with pytest.raises(pl.errors.OutsideDomainError, match=f"^{re.escape(message)}$"):
        pl.output_gap(HEAD, LAW, queries, [4], key=KEY, samples=16)


def test_a_risk_over_infinite_prompts_says_that_it_has_none():
    message = (
        "`attention` must produce tilts inside the domain of the log-Laplace transform of every "
        "prompt of Named, got a loss that is not finite. Scale its key-query matrix down, "
        "pass finite lengths, or check `draw` and `loss` of Named."
    )
    for quantity in (pl.risk, pl.risk_gradient):
        with pytest.raises(pl.errors.OutsideDomainError, match=f"^{re.escape(message)}$"):
            quantity(HEAD, Named(LAW), math.inf, key=KEY, samples=16)
    assert pl.risk(HEAD, Named(LAW), 4, key=KEY, samples=16).value > 0.0


def test_a_law_that_says_it_is_finite_everywhere_is_believed():
    class Believed(TwoSidedExponential):
        @property
        def finite_everywhere(self):
            return True

    assert_allclose(Believed().tilted_mean(jnp.array(BEYOND)), [3.0 / (1 - 2.25)], rtol=1e-6)


class StudentT(pl.AbstractMeasure):
    """Student's t with five degrees of freedom about 0.5: no transform away from zero."""

    @property
    def dim(self):
        return 1

    def sample(self, length, *, key):
        return 0.5 + jax.random.t(key, 5.0, (length, 1))


class Declared(StudentT):
    """The same with the transform written out."""

    def log_laplace(self, tilt):
        return jnp.where(jnp.any(tilt != 0), jnp.inf, 0.0)


def simulated_outputs(query, length, prompts):
    """Return softmax attention over Student's t tokens in NumPy, one row a prompt."""
    tokens = 0.5 + np.random.default_rng(0).standard_t(5.0, size=(prompts, length))
    weights = np.exp(query * tokens - (query * tokens).max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return (weights * tokens).sum(axis=1), (weights**2).sum(axis=1)


@pytest.mark.parametrize("law", [StudentT(), Declared()])
def test_finite_prompts_without_a_limit_are_simulated(law):
    words = "No limit exists for SoftmaxAttention over .* tokens at this query, and `limit`, `bias`"
    with pytest.warns(pl.errors.NoLimitWarning, match=words):
        moments = pl.prompt_moments(
            HEAD, law, BEYOND, [7, math.inf], kind="estimate", key=KEY, samples=20_000
        )
    outputs, squares = simulated_outputs(BEYOND[0], 7, 200_000)
    error = math.hypot(float(moments.bias_error[0, 0]), outputs.std() / math.sqrt(outputs.size))
    assert abs(moments.mean[0, 0] - outputs.mean()) < 5 * error
    assert_allclose(moments.cov[0, 0, 0], outputs.var(), rtol=0.2)
    assert_allclose(moments.effective_tokens[0], 1 / squares.mean(), rtol=0.02)
    assert moments.kind == "estimate"
    assert moments.samples.tolist() == [20_000, 0]
    for unknown in (moments.limit, moments.bias, moments.mse, moments.error):
        assert np.isnan(unknown).all()
    assert np.isnan(moments.mean[1]).all()
    assert np.isnan(moments.cov[1]).all()


def test_beyond_the_domain_finite_prompts_are_simulated_too():
    for attention, factor in ((HEAD, 1.0), (Silent(), 2.0)):
        with pytest.warns(
            pl.errors.NoLimitWarning, match=r"Scale the query or the key-query matrix down"
        ):
            moments = pl.prompt_moments(
                attention, LAW, BEYOND, 6, kind="estimate", key=KEY, samples=4000
            )
        tokens = np.random.default_rng(1).laplace(size=(100_000, 6))
        weights = np.exp(BEYOND[0] * tokens)
        mean = factor * ((weights * tokens).sum(axis=1) / weights.sum(axis=1)).mean()
        assert abs(moments.mean[0] - mean) < 6 * moments.bias_error[0]
        assert np.isnan(moments.limit).all()


@pytest.mark.parametrize("law", [StudentT(), Declared()])
@pytest.mark.parametrize(
    "ask",
    [
        lambda law: law.tilted_mean(jnp.array(BEYOND)),
        lambda law: HEAD(law, jnp.array(BEYOND)),
        lambda law: pl.prompt_moments(HEAD, law, BEYOND, 10),
        lambda law: pl.prompt_moments(HEAD, law, BEYOND, math.inf),
        lambda law: pl.prompt_moments(HEAD, law, BEYOND, 10, kind="exact"),
        lambda law: pl.prompt_moments(HEAD, law, BEYOND, 10, kind="asymptotic"),
        lambda law: pl.output_gap(HEAD, law, [BEYOND], [10]),
        lambda law: pl.output_gap(HEAD, law, pl.Gaussian([0.0], [[1.0]]), [4], key=KEY, samples=16),
        lambda law: pl.gap_exponent(HEAD, law, [BEYOND]),
        lambda law: pl.required_length(HEAD, law, [BEYOND], 0.1),
        lambda law: pl.gradient_moments(HEAD, law, BEYOND, 10, wrt="value", key=KEY, samples=4),
        lambda law: pl.length_statistics(pl.lengths.TokenScores(law, jnp.array(BEYOND)), [10]),
    ],
)
def test_quantities_about_a_limit_say_that_none_exists(ask, law):
    with pytest.raises(pl.errors.OutsideDomainError, match=r"no limit exists.* kind='estimate'"):
        ask(law)


def test_a_compiled_program_refuses_moments_that_no_transform_gives():
    with pytest.raises(pl.errors.OutsideDomainError, match="transform around zero for its moments"):
        pl.LinearAttention([[1.0]], [[1.0]])(StudentT(), jnp.array([1.0]))


@pytest.mark.parametrize("law", [StudentT(), Declared()])
def test_moments_that_no_transform_gives_are_refused_and_not_zero(law):
    for ask in (
        lambda: law.mean,
        lambda: law.cov,
        lambda: pl.prompt_moments(pl.LinearAttention([[1.0]], [[1.0]]), law, [1.0], 10),
    ):
        with pytest.raises(
            pl.errors.OutsideDomainError, match="transform around zero for its moments"
        ):
            ask()
    report = pl.check_law(law, key=KEY)
    assert report["domain"].note == "the transform is finite only at zero: no limit exists"


class InverseGaussian(pl.AbstractMeasure):
    """Tokens of mean and shape one: at the tilt 1/2 the transform is finite, its slope is not."""

    dim = 1

    def log_laplace(self, tilt):
        inside = jnp.real(tilt[0]) <= 0.5
        root = jnp.sqrt(jnp.where(inside, 1.0 - 2.0 * tilt[0], 1.0))
        return jnp.where(inside, 1.0 - root, jnp.nan)

    def sample(self, length, *, key):
        one, two = jax.random.split(key)
        y = jax.random.normal(one, (length, 1)) ** 2
        x = 1.0 + 0.5 * y - 0.5 * jnp.sqrt(4.0 * y + y * y)
        return jnp.where(jax.random.uniform(two, (length, 1)) <= 1.0 / (1.0 + x), x, 1.0 / x)


EDGE = [0.5]


@pytest.mark.parametrize(
    "ask",
    [
        lambda law: law.tilted_mean(jnp.array(EDGE)),
        lambda law: pl.SoftmaxAttention([[1.0]], [[1.0]])(law, jnp.array(EDGE)),
        lambda law: pl.prompt_moments(HEAD, law, EDGE, math.inf),
        lambda law: pl.prompt_moments(HEAD, law, EDGE, 10),
        lambda law: pl.prompt_moments(HEAD, law, EDGE, 10, kind="exact"),
        lambda law: pl.output_gap(HEAD, law, [EDGE], [10]),
        lambda law: pl.output_law(HEAD, law, EDGE, 10, key=KEY, samples=8),
        lambda law: pl.gradient_moments(HEAD, law, EDGE, 10, wrt="key_query", key=KEY, samples=8),
    ],
)
def test_a_limit_that_is_infinite_on_the_boundary_of_the_domain_is_refused(ask, x64):
    message = (
        "`tilt` must lie inside the domain of the log-Laplace transform of InverseGaussian tokens, "
        "got [0.5] on its boundary, where the limit (the mean of the tilted law) is infinite. "
        "Scale the query or the key-query matrix down."
    )
    with pytest.raises(pl.errors.OutsideDomainError, match=f"^{re.escape(message)}$"):
        ask(InverseGaussian())


def test_drawn_queries_on_the_boundary_are_counted(x64):
    with pytest.raises(pl.errors.OutsideDomainError, match="of which 8 of 8 do not"):
        pl.output_gap(HEAD, InverseGaussian(), [EDGE], [4], kind="estimate", key=KEY, samples=8)


def test_on_the_boundary_finite_prompts_are_simulated_about_no_limit(x64):
    law = InverseGaussian()
    with pytest.warns(pl.errors.NoLimitWarning, match="on its boundary"):
        moments = pl.prompt_moments(HEAD, law, EDGE, 6, kind="estimate", key=KEY, samples=4000)
    tokens = np.random.default_rng(1).wald(1.0, 1.0, size=(100_000, 6))
    weights = np.exp(EDGE[0] * tokens)
    mean = ((weights * tokens).sum(axis=1) / weights.sum(axis=1)).mean()
    assert abs(moments.mean[0] - mean) < 6 * moments.bias_error[0]
    assert np.isnan(moments.limit).all()


def test_just_inside_the_boundary_prompts_are_exact(x64):
    law, near = InverseGaussian(), [0.499]
    exact = pl.prompt_moments(HEAD, law, near, 6)
    assert exact.kind == "exact"
    tokens = np.random.default_rng(1).wald(1.0, 1.0, size=(200_000, 6))
    weights = np.exp(near[0] * tokens)
    outputs = (weights * tokens).sum(axis=1) / weights.sum(axis=1)
    assert abs(exact.mean[0] - outputs.mean()) < 5 * outputs.std() / math.sqrt(outputs.size)


class Scaled(TwoSidedExponential):
    """A law that computes in the precision of its own array."""

    scale: jax.Array | np.ndarray

    def log_laplace(self, tilt):
        scaled = tilt[0].astype(self.scale.dtype) * self.scale
        return -jnp.log1p(-(scaled**2))


@pytest.mark.parametrize("scale", [np.ones(()), np.ones((), np.float32), jnp.ones(())])
def test_a_refused_tilt_warns_of_no_dtype(scale):
    for ask in (
        lambda law: law.tilted_mean(jnp.array(BEYOND)),
        lambda law: pl.prompt_moments(HEAD, law, BEYOND, 10),
        lambda law: pl.prompt_moments(HEAD, law, BEYOND, 10, kind="asymptotic"),
    ):
        with pytest.raises(pl.errors.OutsideDomainError, match=r"got \[1\.5\]"):
            ask(Scaled(scale))
