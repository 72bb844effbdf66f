"""Known tokens, sinks and an offset: enumeration of prompts, published numbers, simulation."""

import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError, KindUnavailableError
from promptlimit.finite import checked_problem
from promptlimit.prompts import as_prompt
from prompts.enumeration import independent, limit_of, moments_of

pytestmark = pytest.mark.usefixtures("x64")

TOKENS = np.array([[1.0, -0.4], [0.3, 2.0], [-1.1, 0.5]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
FIXED = np.array([[0.7, 0.2], [-2.0, 1.0]])
SINKS = np.array([0.9, -1.5])
U = np.array([[0.8, 0.1], [-0.3, 1.2]])
V = np.array([[1.0, 0.5], [-0.7, 2.0], [0.2, 0.1]])
QUERY = np.array([0.6, -0.9])
with jax.enable_x64(True):
    HEAD = pl.SoftmaxAttention(U, V)
    LAW = pl.Empirical(TOKENS, WEIGHTS)
LENGTHS = [1, 2, 5]


def weights_of(found):
    """Return the weights of known tokens, which must be there."""
    assert found.fixed_weights is not None
    return found.fixed_weights


def assert_moments(found, place, oracle, rtol=1e-12):
    mean, cov, squares, weights = oracle
    np.testing.assert_allclose(found.mean[place], mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.cov[place], cov, rtol=rtol, atol=rtol)
    mse = np.trace(cov) + np.sum((mean - found.limit) ** 2)
    np.testing.assert_allclose(found.mse[place], mse, rtol=rtol)
    np.testing.assert_allclose(1.0 / found.effective_tokens[place], squares, rtol=rtol)
    if weights.size:
        np.testing.assert_allclose(weights_of(found)[place], weights, rtol=rtol)


@pytest.mark.parametrize(
    "extras",
    [
        {"fixed": FIXED},
        {"sinks": SINKS},
        {"fixed": FIXED, "sinks": SINKS, "offset": 0.7},
        {"offset": -1.3, "fixed": FIXED[:1]},
        {"fixed": 20.0 * FIXED},
        {"sinks": [45.0, 44.0]},
    ],
    ids=",".join,
)
def test_moments_are_those_of_all_prompts(extras):
    found = pl.prompt_moments(HEAD, pl.Prompt(LAW, **extras), QUERY, LENGTHS)
    tilt = U @ QUERY
    assert found.kind == "exact"
    np.testing.assert_allclose(found.limit, limit_of(TOKENS, WEIGHTS, tilt, V), rtol=1e-14)
    for place, length in enumerate(LENGTHS):
        prompts = independent(TOKENS, WEIGHTS, length)
        offsets = np.full(length, extras.get("offset", 0.0))
        known, sinks = extras.get("fixed", ()), extras.get("sinks", ())
        assert_moments(found, place, moments_of(prompts, tilt, V, known, sinks, offsets))


def test_the_query_as_a_token_is_one_more_fixed_token():
    square = pl.SoftmaxAttention(U, V[:2])
    plain = pl.prompt_moments(square, LAW, QUERY, LENGTHS, including_query=True)
    fixed = pl.prompt_moments(square, pl.Prompt(LAW, fixed=QUERY[None]), QUERY, LENGTHS)
    assert plain == fixed
    both = pl.prompt_moments(
        square, pl.Prompt(LAW, fixed=FIXED, sinks=SINKS), QUERY, 2, including_query=True
    )
    known = np.vstack([FIXED, QUERY])
    oracle = moments_of(independent(TOKENS, WEIGHTS, 2), U @ QUERY, V[:2], known, SINKS)
    assert_moments(both, (), oracle)


def test_a_prompt_without_known_tokens_is_its_law():
    plain, wrapped = (pl.prompt_moments(HEAD, law, QUERY, LENGTHS) for law in (LAW, pl.Prompt(LAW)))
    assert plain == wrapped
    assert plain.fixed_weights is None


def test_reference_values_over_coins():
    """Half widths (1, .7), t = (.8, -1.1); a sink of score 1.3, a token of score -.4."""
    coins = pl.Affine(pl.Rademacher([1.0, 0.7]), [[1, 0], [0, 1], [0, 0]], np.zeros(3))
    head = pl.SoftmaxAttention([[0.8], [-1.1], [1.0]], [[1, 0, 0], [0, 1, 0]])
    prompt = pl.Prompt(coins, fixed=[[2.0, 1.0, -0.9]], sinks=[1.3])
    found = pl.prompt_moments(head, prompt, [1.0], [5, 1000])
    means = [[0.48396322, -0.19512504], [0.66263438, -0.45097182]]
    np.testing.assert_allclose(found.mean, means, atol=6e-9)
    np.testing.assert_allclose(found.mse, [0.2178198506, 6.896875875e-4], rtol=3e-10)
    weights = [[0.0563692143, 0.3085621134], [3.81642223e-4, 0.00208908945]]
    np.testing.assert_allclose(weights_of(found), weights, rtol=2e-9)


@pytest.mark.parametrize(("draws", "mse"), [(4, 0.0971256079), (16, 0.0308638330)])
def test_sampled_attention_has_the_reference_error(draws, mse):
    """Eight tokens kept, others drawn with replacement and scores raised by ln((N - k) / n)."""
    i = np.arange(64)
    scores, values = 2.0 * np.cos(1.7 * i), np.stack([np.sin(0.9 * i), (i % 7) / 7.0], axis=1)
    tokens = np.column_stack([scores, values])
    full = np.exp(scores) @ values / np.exp(scores).sum()
    order = np.argsort(-scores)
    kept, rest = tokens[order[:8]], tokens[order[8:]]
    head = pl.SoftmaxAttention([[1.0], [0.0], [0.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    prompt = pl.Prompt(pl.Empirical(rest), fixed=kept, offset=math.log(56 / draws))
    found = pl.prompt_moments(head, prompt, [1.0], draws)
    error = np.trace(found.cov) + np.sum((found.mean - full) ** 2)
    assert error == pytest.approx(mse, abs=6e-11)


@pytest.mark.parametrize(
    ("nu", "beta", "length", "risk"),
    [(9, 3.0, 100, 0.4376941476), (9, 1.5, 100, 0.5815995263), (25, 5.0, 1e6, 0.5626706572)],
)
def test_single_location_regression_has_the_reference_risk(nu, beta, length, risk):
    """One informative token of score beta (sqrt nu + g) among L - 1 of score beta g."""
    g = np.linspace(-9.0, 9.0, 181)
    weights = np.exp(-(g**2) / 2) * 0.1 / math.sqrt(2 * math.pi)
    head, law = pl.SoftmaxAttention([[beta]], [[1.0]]), pl.Gaussian([0.0], [[1.0]])
    total, informative = 0.0, 0.0
    for weight, normal in zip(weights, g, strict=True):
        prompt = pl.Prompt(law, fixed=[[math.sqrt(nu) + normal]])
        found = pl.prompt_moments(head, prompt, [1.0], length - 1)
        own = weights_of(found)[0]
        total += weight * (1.0 - 2.0 * own + 1.0 / found.effective_tokens)
        informative += weight * own
    assert total == pytest.approx(risk, abs=2e-10)
    if beta**2 == nu:  # softmax is the posterior mean
        assert 1.0 - informative == pytest.approx(risk, abs=2e-10)


@pytest.mark.parametrize("score", [-5.0, -60.0, -300.0])
def test_weak_sinks_of_sharp_scores_keep_their_digits(score):
    """E p = E e^s / (e^s + e^{8 g}), one Gaussian token of sharpness 8."""
    head, law = pl.SoftmaxAttention([[8.0]], [[1.0]]), pl.Gaussian([0.0], [[1.0]])
    found = pl.prompt_moments(head, pl.Prompt(law, sinks=[score]), [1.0], 1)
    g = np.linspace(-60.0, 60.0, 60001)
    log_density = -(g**2) / 2 - 0.5 * math.log(2 * math.pi)
    expected = np.sum(np.exp(log_density - np.logaddexp(0.0, 8.0 * g - score))) * (g[1] - g[0])
    np.testing.assert_allclose(weights_of(found)[0], expected, rtol=1e-10)


def test_simulation_agrees_within_standard_errors():
    prompt = pl.Prompt(LAW, fixed=FIXED, sinks=SINKS, offset=0.4)
    exact = pl.prompt_moments(HEAD, prompt, QUERY, [3, 20])
    drawn = pl.prompt_moments(
        HEAD, prompt, QUERY, [3, 20], kind="estimate", key=jax.random.key(1), samples=2**14
    )
    assert (np.abs(drawn.mse - exact.mse) < 4 * drawn.error).all()
    assert (np.abs(drawn.bias - exact.bias) < 4 * drawn.bias_error).all()
    np.testing.assert_allclose(weights_of(drawn), weights_of(exact), rtol=0.03)
    np.testing.assert_allclose(drawn.effective_tokens, exact.effective_tokens, rtol=0.03)


def test_several_heads_with_sinks_are_simulated():
    other = pl.SoftmaxAttention(-0.5 * U, V)
    heads, prompt = pl.MultiHead([HEAD, other]), pl.Prompt(LAW, fixed=FIXED, sinks=SINKS)
    drawn = pl.prompt_moments(
        heads, prompt, QUERY, 3, kind="estimate", key=jax.random.key(2), samples=2**14
    )
    means = [
        moments_of(independent(TOKENS, WEIGHTS, 3), matrix @ QUERY, V, FIXED, SINKS)[0]
        for matrix in (U, -0.5 * U)
    ]
    assert (np.abs(drawn.mean - sum(means)) < 4 * drawn.bias_error).all()
    assert np.isnan(weights_of(drawn)).all()


def test_the_leading_order_is_that_of_long_prompts():
    prompt = pl.Prompt(LAW, fixed=FIXED, sinks=SINKS, offset=0.4)
    lengths = [1e8, math.inf]
    exact, leading = (
        pl.prompt_moments(HEAD, prompt, QUERY, lengths, kind=kind)
        for kind in ("exact", "asymptotic")
    )
    for name in ("bias", "cov", "fixed_weights"):
        found, expected = getattr(leading, name), getattr(exact, name)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
        assert (found[1] == 0.0).all()
        assert (expected[1] == 0.0).all()
    assert leading.mse[0] == pytest.approx(exact.mse[0], rel=1e-6)
    limit = pl.prompt_moments(HEAD, prompt, QUERY, math.inf)
    assert limit.kind == "limit"
    np.testing.assert_allclose(limit.mean, HEAD(LAW, QUERY), rtol=1e-14)


def test_a_linear_head_counts_known_tokens():
    head = pl.LinearAttention(U, V)
    found = pl.prompt_moments(head, pl.Prompt(LAW, fixed=FIXED), QUERY, 2)
    outputs, chances = [], []
    for chance, tokens in independent(TOKENS, WEIGHTS, 2):
        everything = np.concatenate([tokens, FIXED])
        outputs.append(V @ np.mean(everything * (everything @ (U @ QUERY))[:, None], axis=0))
        chances.append(chance)
    mean = np.array(chances) @ np.array(outputs)
    centred = np.array(outputs) - mean
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13)
    cov = (np.array(chances)[:, None] * centred).T @ centred
    np.testing.assert_allclose(found.cov, cov, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(weights_of(found), [0.25, 0.25])


def test_gaps_and_gradients_take_known_tokens():
    prompt, queries = pl.Prompt(LAW, fixed=FIXED), np.stack([QUERY, -QUERY])
    gap = pl.output_gap(HEAD, prompt, queries, [2, 10])
    each = [pl.prompt_moments(HEAD, prompt, query, [2, 10]).mse for query in queries]
    np.testing.assert_allclose(gap.value, np.mean(each, axis=0), rtol=1e-14)
    drawn = pl.output_gap(
        HEAD, prompt, queries, [2, 10], kind="estimate", key=jax.random.key(0), samples=2**13
    )
    assert (np.abs(drawn.value - gap.value) < 4 * drawn.error).all()
    identity = pl.SoftmaxAttention(U, np.eye(2))
    gradient = pl.gradient_moments(HEAD, prompt, QUERY, [2, 10], wrt="value")
    expected = 3 * pl.prompt_moments(identity, prompt, QUERY, [2, 10]).mse
    np.testing.assert_allclose(gradient.value, expected, rtol=1e-13)


def test_the_law_of_an_output_with_known_tokens_is_simulated():
    prompt = pl.Prompt(LAW, fixed=FIXED)
    law = pl.output_law(
        HEAD, prompt, QUERY, 2, thresholds=[0.0, 0.5], kind="estimate", key=jax.random.key(3)
    )
    mean = moments_of(independent(TOKENS, WEIGHTS, 2), U @ QUERY, V, FIXED)[0]
    assert law.mean == pytest.approx(mean[-1], abs=0.01)


@pytest.mark.parametrize("slope", [0.05, 0.1875, 0.3, 1.0])
def test_a_slope_is_that_of_all_prompts(slope):
    prompt = pl.Prompt(LAW, fixed=FIXED, offset=0.3, slope=slope)
    found = pl.prompt_moments(HEAD, prompt, QUERY, LENGTHS)
    assert found.kind == "exact"
    for place, length in enumerate(LENGTHS):
        offsets = 0.3 - slope * np.arange(length)[::-1]
        prompts = independent(TOKENS, WEIGHTS, length)
        oracle = moments_of(prompts, U @ QUERY, V, FIXED, (), offsets)
        assert_moments(found, place, oracle)


@pytest.mark.parametrize(
    ("slope", "mse", "squares"),
    [(0.25, 0.13963595144, 0.21005940034), (1.0, 0.71013875622, 0.51378628542)],
)
def test_a_slope_leaves_the_output_random(slope, mse, squares):
    """Coins of half widths (1, .7), t = (.8, -1.1), infinitely many positions."""
    coins = pl.Rademacher([1.0, 0.7])
    head = pl.SoftmaxAttention(np.diag([0.8, -1.1]), np.eye(2))
    found = pl.prompt_moments(head, pl.Prompt(coins, slope=slope), [1.0, 1.0], math.inf)
    assert found.kind == "exact"
    assert found.mse == pytest.approx(mse, abs=6e-12)
    assert 1.0 / found.effective_tokens == pytest.approx(squares, abs=6e-12)
    ray = pl.Affine(pl.UniformCube([1.0, 0.7]), np.eye(2), np.zeros(2))
    prompt = pl.Prompt(ray, slope=slope, sinks=[0.5])
    exact = pl.prompt_moments(head, prompt, [1.0, 1.0], math.inf)
    drawn = pl.prompt_moments(
        head, prompt, [1.0, 1.0], math.inf, kind="estimate", key=jax.random.key(4), samples=2**12
    )
    assert abs(drawn.mse - exact.mse) < 4 * drawn.error
    with pytest.raises(KindUnavailableError, match="under a slope the output stays random"):
        pl.prompt_moments(head, prompt, [1.0, 1.0], 100, kind="asymptotic")


BAD = {
    "pl.Prompt(LAW, fixed=[[1.0]])": "`fixed` must have shape [k, 2] with k of at least 1 (the "
    "dimension of a token), got (1, 1).",
    "pl.Prompt(LAW, sinks=[0.0, math.inf])": "`sinks` must be finite, got inf at index 1. Replace "
    "that entry.",
    "pl.Prompt(LAW, sinks=[])": "`sinks` must contain at least one score, got none. Pass None.",
    "pl.Prompt(LAW, slope=-1.0)": "`slope` must be at least 0, got -1.0.",
    "pl.Prompt(LAW, offset=math.nan)": "`offset` must be a finite number, got nan.",
    "as_prompt('measure', 3)": "`measure` must be a measure or a prompt, got int. "
    "Wrap an array of tokens as promptlimit.Empirical(tokens).",
    "checked_problem(HEAD, pl.Prompt(LAW, sinks=SINKS), np.ones(1), query=QUERY)": "`measure` "
    "must be a measure here, got a prompt with sinks. `prompt_moments`, `gradient_moments`, "
    "`output_gap`, `gradient_gap` and `output_law` take prompts.",
    "pl.prompt_moments(pl.LinearAttention(U, V), pl.Prompt(LAW, sinks=SINKS), QUERY, 2)": ""
    "`measure` must have no sinks, offset or slope unless the attention is a sum of softmax heads, "
    "got a prompt with sinks for LinearAttention.",
    "pl.gradient_moments(HEAD, pl.Prompt(LAW, offset=1.0), QUERY, 2, wrt='value')": "`measure` "
    "must have no sinks, offset or slope for gradients, got a prompt with an offset.",
}


NAMES = globals() | {"as_prompt": as_prompt, "checked_problem": checked_problem}


@pytest.mark.parametrize("call", BAD)
def test_what_does_not_fit_is_one_sentence(call):
    with pytest.raises(ArgumentError) as raised:
        eval(call, NAMES)  # noqa: S307
    assert str(raised.value) == BAD[call]


def test_several_heads_agree_with_enumeration():
    second = pl.SoftmaxAttention([[-0.4, 0.9], [0.2, 0.5]], V[::-1])
    third = pl.SoftmaxAttention([[0.1, 0.3], [-0.8, 0.2]], -0.5 * V)
    listed = [HEAD, second, third]
    heads = pl.MultiHead(listed)
    prompt = pl.Prompt(LAW, fixed=FIXED, sinks=SINKS, offset=-0.3)
    for law, known, sinks, offset in (
        (LAW, FIXED[:0], SINKS[:0], 0.0),
        (prompt, FIXED, SINKS, -0.3),
    ):
        found = pl.prompt_moments(heads, law, QUERY, LENGTHS)
        assert found.kind == "exact"
        assert (found.error < 1e-10 * found.mse).all()
        for place, length in enumerate(LENGTHS):
            outputs, masses = [], []
            for mass, tokens in independent(TOKENS, WEIGHTS, length):
                everything, output = np.concatenate([tokens, known]), 0.0
                for head in listed:
                    tilt = np.asarray(head.key_query) @ QUERY
                    scores = np.concatenate([tokens @ tilt + offset, known @ tilt, sinks])
                    p = np.exp(scores) / np.exp(scores).sum()
                    output += np.asarray(head.value) @ (p[: len(everything)] @ everything)
                outputs.append(output)
                masses.append(mass)
            mean = np.array(masses) @ np.array(outputs)
            centred = np.array(outputs) - mean
            cov = (centred.T * masses) @ centred
            np.testing.assert_allclose(found.mean[place], mean, atol=1e-13)
            np.testing.assert_allclose(found.cov[place], cov, atol=1e-12)
