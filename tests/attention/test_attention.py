"""Attention on measures: textbook softmax on tokens, Lemma 2.1 on Gaussians, and gradients."""

import json
import re
import subprocess
import sys
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from measures.cases import CASES, OneHot, tilt_of, truth

TOKEN_DIM, QUERY_DIM, OUTPUT_DIM, HEAD_DIM = 3, 4, 2, 5


def arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [0.5 * rng.normal(size=shape) for shape in shapes]


def textbook(kernel: str, tokens, key_query, value, query) -> np.ndarray:
    """Attention as every paper writes it, in NumPy."""
    scores = tokens @ (key_query @ query)
    if kernel == "linear":
        weights = scores / len(tokens)
    else:
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
    return value @ (weights @ tokens)


HEADS = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}


@pytest.mark.parametrize("kernel", HEADS)
def test_attention_on_tokens_is_the_textbook_formula(kernel: str, precision: str) -> None:
    tokens, u, v, z = arrays((50, TOKEN_DIM), (TOKEN_DIM, QUERY_DIM), (2, TOKEN_DIM), (QUERY_DIM,))
    got = HEADS[kernel](u, v)(pl.Empirical(tokens), z)
    assert got.dtype == precision
    want = textbook(kernel, tokens, u, v, z)
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * float(np.finfo(precision).eps))


@pytest.mark.parametrize("kernel", HEADS)
def test_factors_merge_into_the_same_map(kernel: str, x64: None) -> None:
    k, q, v, o, tokens, z = arrays(
        (HEAD_DIM, TOKEN_DIM), (HEAD_DIM, QUERY_DIM), (6, TOKEN_DIM), (2, 6), (9, TOKEN_DIM), (4,)
    )
    factored = pl.Factored(kernel, k, q, v, o, scale=0.3)
    want = textbook(kernel, tokens, 0.3 * k.T @ q, o @ v, z)
    prompt = pl.Empirical(tokens)
    np.testing.assert_allclose(factored(prompt, z), want, rtol=1e-14)
    np.testing.assert_allclose(factored.merged()(prompt, z), want, rtol=1e-14)
    from_factors = HEADS[kernel].from_kqv(k, q, o @ v, scale=0.3)
    np.testing.assert_allclose(from_factors(prompt, z), want, rtol=1e-14)
    assert type(factored.merged()) is HEADS[kernel]
    without_output = pl.Factored(kernel, k, q, v)
    np.testing.assert_allclose(
        without_output(prompt, z), textbook(kernel, tokens, k.T @ q, v, z), rtol=1e-14
    )


def test_heads_add_up(x64: None) -> None:
    u1, u2, v1, v2, o, tokens, z = arrays(
        (3, 3), (3, 3), (2, 3), (2, 3), (4, 2), (7, 3), (3,), seed=4
    )
    heads = [pl.SoftmaxAttention(u1, v1), pl.LinearAttention(u2, v2)]
    total = textbook("softmax", tokens, u1, v1, z) + textbook("linear", tokens, u2, v2, z)
    prompt = pl.Empirical(tokens)
    np.testing.assert_allclose(pl.MultiHead(heads)(prompt, z), total, rtol=1e-14)
    np.testing.assert_allclose(pl.MultiHead(heads, o)(prompt, z), o @ total, rtol=1e-14)


def test_a_layer_adds_what_passes_its_heads_by(x64: None) -> None:
    u1, u2, v1, v2, c, tokens, z = arrays(
        (3, 3), (3, 3), (3, 3), (3, 3), (3, 3), (7, 3), (3,), seed=5
    )
    heads = [pl.SoftmaxAttention(u1, v1), pl.LinearAttention(u2, v2)]
    total = textbook("softmax", tokens, u1, v1, z) + textbook("linear", tokens, u2, v2, z)
    prompt = pl.Empirical(tokens)
    np.testing.assert_allclose(pl.Layer(heads, c)(prompt, z), c @ z + total, rtol=1e-13)
    np.testing.assert_allclose(pl.Layer(heads)(prompt, z), z + total, rtol=1e-13)
    one = textbook("softmax", tokens, u1, v1, z)
    np.testing.assert_allclose(pl.Layer(heads[0])(prompt, z), z + one, rtol=1e-13)
    assert pl.Layer(heads[0], c).single_head() is None
    batched = jax.vmap(lambda query: pl.Layer(heads, c)(prompt, query))(np.stack([z, 2 * z]))
    np.testing.assert_allclose(batched[0], c @ z + total, rtol=1e-13)


def gaussian_case(*, singular: bool = False, centred: bool = False) -> tuple:
    u, v, factor, m, z = arrays((3, 3), (2, 3), (3, 3), (3,), (3,), seed=1)
    if singular:
        factor[:, 2] = 0.0
    return u, v, factor @ factor.T, np.zeros(3) if centred else m, z


@pytest.mark.parametrize("singular", [False, True])
def test_lemma_2_1_softmax_over_a_gaussian_is_affine(singular: bool, x64: None) -> None:
    u, v, cov, m, z = gaussian_case(singular=singular)
    prompt, attention = pl.Gaussian(m, cov), pl.SoftmaxAttention(u, v)
    want = v @ m + v @ cov @ u @ z
    np.testing.assert_allclose(attention(prompt, z), want, rtol=1e-12)
    matrix, shift = attention.affine_limit(prompt)
    np.testing.assert_allclose(matrix @ z + shift, want, rtol=1e-12)


@pytest.mark.parametrize("singular", [False, True])
def test_lemma_2_1_the_push_forward_is_gaussian(singular: bool, x64: None) -> None:
    u, v, cov, m, _ = gaussian_case(singular=singular)
    image = pl.SoftmaxAttention(u, v).push_forward(pl.Gaussian(m, cov))
    np.testing.assert_allclose(image.mean, v @ (np.eye(3) + cov @ u) @ m, rtol=1e-12)
    np.testing.assert_allclose(image.cov, v @ cov @ u @ cov @ u.T @ cov @ v.T, rtol=1e-12)


def test_linear_attention_reads_the_second_moment(x64: None) -> None:
    u, v, cov, m, z = gaussian_case()
    prompt, attention = pl.Gaussian(m, cov), pl.LinearAttention(u, v)
    second = cov + np.outer(m, m)
    np.testing.assert_allclose(attention(prompt, z), v @ second @ u @ z, rtol=1e-12)
    image = attention.push_forward(prompt)
    np.testing.assert_allclose(image.mean, v @ second @ u @ m, rtol=1e-12)
    np.testing.assert_allclose(image.cov, v @ second @ u @ cov @ u.T @ second @ v.T, rtol=1e-12)


def test_linear_and_softmax_limits_agree_exactly_when_the_mean_is_not_read(x64: None) -> None:
    u, v, cov, m, z = gaussian_case()
    unread = np.cross(v[0], v[1])  # V m = 0 although m is not
    for mean, differ in ((np.zeros(3), False), (unread, False), (m, True)):
        prompt = pl.Gaussian(mean, cov)
        softmax, linear = pl.SoftmaxAttention(u, v)(prompt, z), pl.LinearAttention(u, v)(prompt, z)
        assert (np.abs(softmax - linear).max() > 1e-3) == differ
        want = v @ mean - v @ mean * (mean @ u @ z)
        np.testing.assert_allclose(softmax - linear, want, rtol=1e-10, atol=1e-15)


def test_rademacher_tokens_give_the_tanh_law(x64: None) -> None:
    for z in (0.0, 0.5, 3.0, -20.0):
        prompt, query = pl.Rademacher([1.0]), np.array([z])
        softmax = pl.SoftmaxAttention([[0.7]], [[2.0]])(prompt, query)
        linear = pl.LinearAttention([[0.7]], [[2.0]])(prompt, query)
        np.testing.assert_allclose(softmax, [2.0 * np.tanh(0.7 * z)], rtol=1e-12)
        np.testing.assert_allclose(linear, [2.0 * 0.7 * z], rtol=1e-12)


@pytest.mark.parametrize(
    "attention", ["factored", "several heads", "heads without output", "layer"]
)
def test_every_attention_has_its_gaussian_limit(attention: str, x64: None) -> None:
    u, v, cov, m, z = gaussian_case()
    softmax = pl.Factored("softmax", np.eye(3), u, v, scale=0.5)
    several = pl.MultiHead([softmax, pl.LinearAttention(u, v)], output=[[1.0, 2.0]])
    plain = pl.MultiHead([softmax, pl.LinearAttention(u, v)])
    layer = pl.Layer(softmax, residual=v)
    chosen = {
        "factored": softmax,
        "several heads": several,
        "heads without output": plain,
        "layer": layer,
    }[attention]
    prompt = pl.Gaussian(m, cov)
    limit = chosen.affine_limit(prompt)
    assert limit is not None
    matrix, shift = limit
    np.testing.assert_allclose(matrix @ z + shift, chosen(prompt, z), rtol=1e-12)
    draws = jax.vmap(lambda query: chosen(prompt, query))(
        prompt.sample(4000, key=jax.random.key(0))
    )
    image = chosen.push_forward(prompt)
    error = np.asarray(draws).std(axis=0) / np.sqrt(4000)
    assert (np.abs(draws.mean(axis=0) - image.mean) <= 4 * error).all()
    np.testing.assert_allclose(image.cov, matrix @ cov @ matrix.T, rtol=1e-12)


@jax.jit
def softmax_and_linear(law: pl.AbstractMeasure, u, v, queries) -> list[jax.Array]:
    return [head(u, v)(law, query) for head, query in zip(HEADS.values(), queries, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_every_measure_is_a_prompt(name: str, x64: None) -> None:
    """Softmax reads V grad Lambda(Uz), linear attention V (Gamma + mm') Uz: 50-digit oracles."""
    case, law = CASES[name], CASES[name].build()
    rng = np.random.default_rng(5)
    u, v = rng.normal(size=(law.dim, law.dim)), rng.normal(size=(2, law.dim))
    known = slice(0, 3)  # the coordinates that the oracle knows
    v[:, 3:] = 0.0
    tilts = [tilt_of(1.0, law.dim).astype(float) for _ in HEADS]
    tilts[1][3:] = 0.0
    softmax, linear = softmax_and_linear(law, u, v, [np.linalg.solve(u, t) for t in tilts])
    want = v[:, known] @ truth(case, 1.0, law.dim).gradient
    np.testing.assert_allclose(softmax, want, rtol=0, atol=1e-13 * case.scale)
    _, mean, cov = truth(case, 0.0, law.dim)
    want = v[:, known] @ (cov + np.outer(mean, mean)) @ tilts[1][known]
    np.testing.assert_allclose(linear, want, rtol=0, atol=1e-13 * case.scale**2)


@pytest.mark.parametrize("name", ["gaussian", "sphere"])
def test_attention_over_a_measure_is_the_limit_of_that_over_its_samples(
    name: str, x64: None
) -> None:
    law = CASES[name].build()
    rng = np.random.default_rng(5)
    u = rng.normal(size=(3, 3)) * 0.3 / np.sqrt(3) / CASES[name].scale
    v, query = rng.normal(size=(2, 3)), rng.normal(size=3)
    tokens = np.asarray(law.sample(50_000, key=jax.random.key(2)))
    limits = softmax_and_linear(law, u, v, [query, query])
    for kernel, limit in zip(HEADS, limits, strict=True):
        finite = textbook(kernel, tokens, u, v, query)
        # The tilt is mild, so the weights are near uniform: a value's spread bounds the error.
        weight = 1.0 if kernel == "softmax" else np.abs(tokens @ u @ query)[:, None]
        spread = (tokens @ v.T * weight).std(axis=0)
        assert (np.abs(limit - finite) <= 10 * spread / np.sqrt(50_000) + 1e-10).all()


PARAMETERS = {
    "key_query": lambda a: pl.SoftmaxAttention(a["u"], a["v"]),
    "value": lambda a: pl.SoftmaxAttention(a["u"], a["v"]),
    "key_weight": lambda a: pl.Factored("softmax", a["k"], a["q"], a["v"], scale=0.5),
    "query_weight": lambda a: pl.Factored("softmax", a["k"], a["q"], a["v"], scale=0.5),
    "value_weight": lambda a: pl.Factored("softmax", a["k"], a["q"], a["w"], a["o"], scale=0.5),
    "output": lambda a: pl.Factored("softmax", a["k"], a["q"], a["w"], a["o"], scale=0.5),
}


def parameters() -> dict[str, np.ndarray]:
    names = ("k", "q", "v", "w", "o", "z")
    made = arrays((5, 3), (5, 4), (2, 3), (6, 3), (2, 6), (4,), seed=9)
    named = dict(zip(names, made, strict=True))
    return {**named, "u": 0.5 * named["k"].T @ named["q"]}


def closed_forms(a: dict[str, np.ndarray], mean: np.ndarray, cov: np.ndarray) -> dict:
    """Appendix C.7: grad_U T_i = C v_i z', grad_{v_i} T_i = m, carried over to K and Q."""
    by_u = np.stack([np.outer(cov @ row, a["z"]) for row in a["v"]])
    return {
        "key_query": by_u,
        "key_weight": 0.5 * np.stack([a["q"] @ one.T for one in by_u]),
        "query_weight": 0.5 * np.stack([a["k"] @ one for one in by_u]),
        "value": np.einsum("ij,k->ijk", np.eye(2), mean),
        "value_weight": np.einsum("ij,k->ijk", a["o"], mean),
        "output": np.einsum("ij,k->ijk", np.eye(2), a["w"] @ mean),
    }


GRADIENT_PROMPTS = [
    "gaussian",
    "tokens",
    "mixture",
    "rademacher",
    "sphere",
    "one of the user's own",
]


@pytest.mark.parametrize("name", GRADIENT_PROMPTS)
def test_parameter_gradients_are_the_closed_forms(name: str, x64: None) -> None:
    a = parameters()

    @jax.jit
    def all_at_once(prompt: pl.AbstractMeasure) -> tuple:
        tilt = jnp.asarray(a["u"] @ a["z"])
        jacobians = {
            wrt: build(a).jacobian(prompt, a["z"], wrt=wrt) for wrt, build in PARAMETERS.items()
        }
        return jacobians, prompt.tilted_mean(tilt), prompt.tilted_cov(tilt)

    jacobians, mean, cov = all_at_once(CASES[name].build())
    wants = closed_forms(a, np.asarray(mean), np.asarray(cov))
    assert jacobians.keys() == wants.keys()
    for wrt, got in jacobians.items():
        np.testing.assert_allclose(got, wants[wrt], rtol=1e-11, atol=1e-13, err_msg=wrt)


@pytest.mark.parametrize("wrt", PARAMETERS)
def test_parameter_gradients_are_finite_differences(wrt: str, x64: None) -> None:
    a, prompt = parameters(), CASES["tokens"].build()
    attention = PARAMETERS[wrt](a)
    got = attention.jacobian(prompt, a["z"], wrt=wrt)
    direction = np.random.default_rng(0).normal(size=getattr(attention, wrt).shape)

    def moved(step: float) -> np.ndarray:
        parameter = getattr(attention, wrt) + step * direction
        return np.asarray(
            eqx.tree_at(lambda m: getattr(m, wrt), attention, parameter)(prompt, a["z"])
        )

    h = 1e-3
    slope = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
    np.testing.assert_allclose(np.einsum("ijk,jk->i", got, direction), slope, rtol=1e-9)


@pytest.mark.parametrize("name", ["gaussian", "tokens", "rademacher"])
def test_linear_gradients_are_the_closed_forms(name: str, x64: None) -> None:
    a, prompt = parameters(), CASES[name].build()
    second = np.asarray(prompt.cov) + np.outer(prompt.mean, prompt.mean)
    attention = pl.LinearAttention(a["u"], a["v"])
    jacobians = jax.jit(
        lambda law: [attention.jacobian(law, a["z"], wrt=wrt) for wrt in ("key_query", "value")]
    )(prompt)
    by_u = np.stack([np.outer(second @ row, a["z"]) for row in a["v"]])
    np.testing.assert_allclose(jacobians[0], by_u, rtol=1e-11, atol=1e-13)
    by_v = np.einsum("ij,k->ijk", np.eye(2), second @ a["u"] @ a["z"])
    np.testing.assert_allclose(jacobians[1], by_v, rtol=1e-11, atol=1e-13)


def test_gaussian_gradients_do_not_depend_on_the_tilt(x64: None) -> None:
    u, v, cov, m, z = gaussian_case()
    attention, prompt = pl.SoftmaxAttention(u, v), pl.Gaussian(m, cov)
    by_u = attention.jacobian(prompt, z, wrt="key_query")
    np.testing.assert_allclose(by_u, np.stack([np.outer(cov @ row, z) for row in v]), rtol=1e-12)
    by_v = attention.jacobian(prompt, z, wrt="value")
    np.testing.assert_allclose(by_v[0, 0], m + cov @ u @ z, rtol=1e-12)
    assert (np.asarray(by_v[0, 1]) == 0).all()


def test_order_of_tokens_does_not_matter(x64: None) -> None:
    tokens, u, v, z = arrays((20, 3), (3, 3), (2, 3), (3,))
    attention = pl.SoftmaxAttention(u, v)
    order = np.random.default_rng(1).permutation(20)
    there, back = attention(pl.Empirical(tokens), z), attention(pl.Empirical(tokens[order]), z)
    np.testing.assert_allclose(there, back, rtol=1e-14)


def test_including_the_query_is_appending_it(x64: None) -> None:
    tokens, u, v, z = arrays((6, 3), (3, 3), (2, 3), (3,))
    attention = pl.SoftmaxAttention(u, v)
    got = attention(pl.Empirical(tokens).including(z), z)
    want = textbook("softmax", np.vstack([tokens, z]), u, v, z)
    np.testing.assert_allclose(got, want, rtol=1e-14)
    weights = np.array([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    weighted = pl.Empirical(tokens, weights).including(z)
    assert weighted.weights is not None
    np.testing.assert_allclose(weighted.weights, [*(weights * 6 / 7), 1 / 7], rtol=1e-14)


def test_a_batch_of_queries_is_a_vmap(x64: None) -> None:
    tokens, u, v, queries = arrays((6, 3), (3, 3), (2, 3), (5, 3))
    attention, prompt = pl.SoftmaxAttention(u, v), pl.Empirical(tokens)
    batched = jax.jit(jax.vmap(attention, in_axes=(None, 0)))(prompt, jnp.asarray(queries))
    one_by_one = [textbook("softmax", tokens, u, v, query) for query in queries]
    np.testing.assert_allclose(batched, one_by_one, rtol=1e-13)


def test_calls_compile_once() -> None:
    traces = []

    class Counted(OneHot):
        def log_laplace(self, tilt: jax.Array) -> jax.Array:
            traces.append(1)
            return jax.nn.logsumexp(tilt, b=self.probabilities)

    attention = pl.SoftmaxAttention(jnp.eye(3), jnp.eye(3))
    for step in range(4):
        attention(Counted(jnp.array([0.5, 0.25, 0.25])), jnp.full(3, 0.1 * step))
    assert len(traces) == 1


HEAD = pl.SoftmaxAttention([[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0]])
LAW = pl.Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "prompt of another dimension": (
        lambda: HEAD(pl.Rademacher([1.0]), [0.0, 0.0]),
        "`prompt` must have tokens of dimension 2 (as the attention expects), got 1.",
    ),
    "query of another dimension": (
        lambda: HEAD(LAW, [0.0]),
        "`query` must have shape (2,) (as the attention expects), got (1,).",
    ),
    "query with a hole": (
        lambda: HEAD(LAW, [0.0, float("nan")]),
        "`query` must be finite, got nan at index 1. Replace that entry.",
    ),
    "value of another width": (
        lambda: pl.LinearAttention([[1.0]], [[1.0, 2.0]]),
        "`value` must have shape (1, 1) (as many columns as `key_query` has rows), got (1, 2).",
    ),
    "keys and queries of different heights": (
        lambda: pl.SoftmaxAttention.from_kqv([[1.0]], [[1.0], [2.0]], [[1.0]]),
        "`query_weight` must have shape (1, 1) (as many rows as `key_weight`), got (2, 1).",
    ),
    "scale infinite": (
        lambda: pl.SoftmaxAttention.from_kqv([[1.0]], [[1.0]], [[1.0]], scale=float("inf")),
        "`scale` must be finite, got inf.",
    ),
    "kernel misspelt": (
        lambda: pl.Factored("sofmax", [[1.0]], [[1.0]], [[1.0]]),
        "`kernel` must be one of 'softmax', 'linear', got 'sofmax'. Did you mean 'softmax'?",
    ),
    "output of another width": (
        lambda: pl.Factored("linear", [[1.0]], [[1.0]], [[1.0]], [[1.0, 1.0]]),
        "`output` must have shape (1, 1) (as many columns as `value_weight` has rows), got (1, 2).",
    ),
    "value weight of another width": (
        lambda: pl.Factored("linear", [[1.0]], [[1.0]], [[1.0, 2.0]]),
        "`value_weight` must have shape (1, 1) (as many columns as `key_weight`), got (1, 2).",
    ),
    "no heads": (
        lambda: pl.MultiHead([]),
        "`heads` must hold at least one attention, got none.",
    ),
    "heads of different outputs": (
        lambda: pl.MultiHead([HEAD, pl.SoftmaxAttention([[1.0, 0.0], [0.0, 1.0]], np.eye(2))]),
        "`heads` must all have the same dimensions of tokens, queries and outputs, got "
        "(token, query, output) = [(2, 2, 1), (2, 2, 2)].",
    ),
    "residual of other dimensions": (
        lambda: pl.Layer(HEAD, np.eye(2)),
        "`residual` must have shape (1, 2) (from queries to outputs), got (2, 2).",
    ),
    "no identity from queries to outputs": (
        lambda: pl.Layer(HEAD),
        "`residual` must be a matrix if outputs and queries differ in dimension, got None for "
        "outputs of dimension 1 and queries of dimension 2.",
    ),
    "gradient of nothing": (
        lambda: HEAD.jacobian(LAW, [0.0, 0.0], wrt="key_querry"),
        "`wrt` must be one of 'key_query', 'value', got 'key_querry'. Did you mean 'key_query'?",
    ),
    "gradient of a sum in a matrix without its head": (
        lambda: pl.MultiHead([HEAD]).jacobian(LAW, [0.0, 0.0], wrt="key_query"),
        "`wrt` must be one of 'heads[0].key_query', 'heads[0].value', got 'key_query'. "
        "Did you mean 'heads[0].key_query'?",
    ),
    "push-forward of a rectangular head": (
        lambda: pl.SoftmaxAttention([[1.0], [1.0]], [[1.0, 1.0]]).push_forward(LAW),
        "`push_forward` must have queries and tokens of equal dimension, got queries of dimension "
        "1 and tokens of dimension 2.",
    ),
}


@pytest.mark.parametrize(("build", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_refused_in_one_sentence(build: Callable, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole message is compared
        build()
    assert str(refusal.value) == message


# These values have the wrong type altogether. The suite checks annotations at every call, which
# would answer first, so they are tried as a user meets them: in a process without that check.
WRONG_TYPES = {
    "HEAD(np.zeros((4, 2)), [0.0, 0.0])": "`prompt` must be a measure, got ndarray. "
    "Wrap an array of tokens as promptlimit.Empirical(tokens).",
    "pl.MultiHead([1])": "`heads[0]` must be an attention, got int.",
    "pl.prompt_moments(pl.SoftmaxAttention, pl.Rademacher([1.0]), [1.0], 3)": "`attention` must be "
    "an attention, got the class SoftmaxAttention instead of an instance.",
    "pl.risk(pl.SoftmaxAttention, pl.LinearRegression(np.eye(2)), 3)": "`attention` must be an "
    "attention, got the class SoftmaxAttention instead of an instance.",
    "HEAD(pl.Rademacher, [0.0, 0.0])": "`prompt` must be a measure, got the class Rademacher "
    "instead of an instance. Pass Rademacher(...) with its parameters.",
    "HEAD(pl.Rademacher([1.0, 1.0]), ['a', 'b'])": "`query` must hold real numbers, got an array "
    "of text. Pass an array of floats.",
    "pl.Stack([HEAD, 2])": "`layers[1]` must be a layer, got int. Pass promptlimit.Layer(heads).",
    "pl.Stack([HEAD]).causal(pl.Gaussian(np.zeros(2), np.eye(2)), np.zeros(2))": "`prompt` must be "
    "tokens in order for a causal mask, got Gaussian. Call the stack itself for a law: the mask "
    "does not change its limit.",
    "HEAD.affine_limit(pl.Rademacher([1.0, 1.0]))": "`prompt` must be Gaussian for an affine "
    "limit, got Rademacher. Call the attention itself: it takes any measure.",
    "pl.Mixture([1.0], [3])": "`components[0]` must be a measure, got int. "
    "Wrap an array of tokens as promptlimit.Empirical(tokens).",
    "pl.UniformSphere(2.5)": "`dim` must be a whole number of at least 1, got 2.5.",
}

WITHOUT_ANNOTATION_CHECKS = """
import json, sys
import numpy as np
import promptlimit as pl
HEAD = pl.SoftmaxAttention(np.eye(2), np.ones((1, 2)))
answers = {}
for source in json.load(sys.stdin):
    try:
        eval(source)
    except ValueError as refusal:
        answers[source] = str(refusal)
print(json.dumps(answers))
"""


def test_values_of_the_wrong_type_are_refused_in_one_sentence() -> None:
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_ANNOTATION_CHECKS],
        input=json.dumps(list(WRONG_TYPES)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout) == WRONG_TYPES


def test_tokens_with_too_many_coordinates_are_refused() -> None:
    message = "`prompt` must have tokens of dimension 2 (as the attention expects), got 3."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.SoftmaxAttention(np.eye(2), np.eye(2))(pl.Rademacher([1.0, 1.0, 1.0]), np.zeros(2))


def test_factors_that_are_not_finite_are_refused() -> None:
    bad = np.array([[1.0, np.nan]])
    for place, name in enumerate(("key_weight", "query_weight", "value_weight")):
        factors = [np.ones((1, 2)), np.ones((1, 2)), np.ones((1, 2))]
        factors[place] = bad
        with pytest.raises(ValueError, match=rf"^`{name}` must be finite, got nan at index 0, 1"):
            pl.Factored("softmax", *factors)
