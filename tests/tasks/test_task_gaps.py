"""Gaps averaged over the prompts, weights and queries of a regression."""

import functools
import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError
from promptlimit.tasks.regression import _gaps

pytestmark = pytest.mark.usefixtures("x64")


WRT = [None, "value", "key_query"]


def gap_of(wrt, head, task, lengths, **options):
    """Return the gap of outputs, or of gradients in a matrix."""
    if wrt is None:
        return pl.output_gap(head, task, lengths=lengths, **options)
    return pl.gradient_gap(head, task, lengths=lengths, wrt=wrt, **options)


def scalar_head(rho):
    """Return a head whose scores depend only on labels, on covariates of one dimension."""
    return pl.SoftmaxAttention([[0.0, 0.0], [rho, 0.0]], [[0.0, 1.0]])


def five_dimensional():
    """Return the setting of the paper's experiments and a head whose scores depend on labels."""
    task = pl.LinearRegression(np.eye(5), prior_variance=0.2, noise_variance=0.1)
    key_query = np.zeros((6, 6))
    key_query[:5, :5], key_query[5, 0] = 0.3 * np.eye(5), 1.0
    value = np.zeros((1, 6))
    value[0, 5] = 0.8
    return pl.SoftmaxAttention(key_query, value), task


ONE_DIMENSION = {
    0.25: {10: 0.137412557, 1e4: 2.28795141e-4, 1e30: 2.59018714e-17},
    0.5: {
        10: 0.274365292,
        100: 0.0565458101,
        1e4: 0.00453929494,
        1e6: 6.56733727e-4,
        1e8: 1.31519016e-4,
        1e12: 8.94911150e-6,
        1e30: 1.76413881e-9,
    },
}
"""Gaps by length, for each size of the label row, by an integral of a Bessel function."""


@pytest.mark.parametrize("rho", ONE_DIMENSION)
def test_one_dimension_by_an_integral_of_a_bessel_function(rho):
    lengths, reference = zip(*ONE_DIMENSION[rho].items(), strict=True)
    gap = pl.output_gap(scalar_head(rho), pl.LinearRegression([[1.0]]), lengths=lengths)
    assert gap.kind == "exact"
    np.testing.assert_allclose(gap.value, reference, rtol=5e-9)  # nine digits


FIVE_DIMENSIONS = {
    10: 0.38556907,
    100: 0.10829679,
    1e4: 0.014147961,
    1e6: 0.0027040543,
    1e8: 6.4187837e-4,
    1e10: 1.7590338e-4,
    1e12: 5.354270e-5,
}
"""Gaps by length, by a quadrature over radii and an angle."""


def test_five_dimensions_by_quadrature_over_radii_and_an_angle():
    gap = pl.output_gap(*five_dimensional(), lengths=[*FIVE_DIMENSIONS])
    np.testing.assert_allclose(gap.value, [*FIVE_DIMENSIONS.values()], rtol=1e-7)
    assert np.all(gap.error > 1e-13 * gap.value)  # the tables have errors even if the rule has none


def general_problem(label):
    """Return a head of two outputs and a task without any symmetry; u is `label` times a vector."""
    rng = np.random.default_rng(3)
    key_query = 0.35 * rng.normal(size=(3, 3))
    key_query[2] *= label
    value = rng.normal(size=(2, 3))
    covariance, queries = np.array([[1.0, 0.3], [0.3, 0.7]]), np.array([[0.8, -0.2], [-0.2, 1.1]])
    task = pl.LinearRegression(
        covariance, prior_variance=0.6, noise_variance=0.2, query_covariance=queries
    )
    return pl.SoftmaxAttention(key_query, value), task


def numpy_gaps(head, task, length, prompts, seed):
    """Return squared gaps of outputs, values and the key-query matrix, of simulated prompts."""
    rng = np.random.default_rng(seed)
    U, V = np.asarray(head.key_query), np.asarray(head.value)
    w = math.sqrt(task.prior_variance) * rng.normal(size=(prompts, 2))
    x = rng.multivariate_normal(np.zeros(2), task.covariance, size=(prompts, length))
    noise = math.sqrt(task.noise_variance) * rng.normal(size=(prompts, length))
    y = np.einsum("nld,nd->nl", x, w) + noise
    tokens = np.concatenate([x, y[..., None]], axis=2)
    query = np.zeros((prompts, 3))
    query[:, :2] = rng.multivariate_normal(np.zeros(2), task.query_covariance, size=prompts)
    mixing = np.tile(np.eye(3), (prompts, 1, 1))
    mixing[:, 2, :2] = w
    blocks = np.zeros((3, 3))
    blocks[:2, :2], blocks[2, 2] = task.covariance, task.noise_variance
    gamma, tilt = mixing @ blocks @ mixing.swapaxes(1, 2), query @ U.T
    scores = np.einsum("nld,nd->nl", tokens, tilt)
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    mean = np.einsum("nl,nld->nd", p, tokens)
    centred = tokens - mean[:, None]
    spread = np.einsum("nl,nld,nle->nde", p, centred, centred)
    gap = mean - np.einsum("nde,ne->nd", gamma, tilt)
    return np.stack(
        [
            ((gap @ V.T) ** 2).sum(axis=1),
            len(V) * (gap**2).sum(axis=1),
            (((spread - gamma) @ V.T) ** 2).sum(axis=(1, 2)) * (query**2).sum(axis=1),
        ],
        axis=1,
    )


@functools.cache
def exact_gap(label, wrt):
    """Return the gap of the general problem over 3, 12 and 40 tokens."""
    return gap_of(wrt, *general_problem(label), [3, 12, 40])


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_gaps_are_those_of_prompts_simulated_in_numpy(label):
    rows = numpy_gaps(*general_problem(label), 12, 20_000, seed=5)
    means, errors = rows.mean(axis=0), rows.std(axis=0) / math.sqrt(len(rows))
    for i, wrt in enumerate(WRT):
        gap = exact_gap(label, wrt)
        assert gap.kind == "exact"
        assert abs(gap.value[1] - means[i]) < 4 * math.hypot(errors[i], gap.error[1])


@pytest.mark.parametrize("wrt", WRT)
def test_simulated_gaps_agree_with_exact_ones(wrt):
    exact, options = exact_gap(1.0, wrt), {"key": jax.random.key(0), "samples": 8192}
    drawn = gap_of(wrt, *general_problem(1.0), [3, 40], kind="estimate", **options)
    value, error = exact.value[[0, 2]], exact.error[[0, 2]]
    distance = np.abs(drawn.value - value) / np.hypot(drawn.error, error)
    assert distance.max() < 4
    assert drawn.limit_square == pytest.approx(exact.limit_square, rel=0.2)


def test_points_agree_with_the_product_rule_out_to_long_prompts():
    (head, task), lengths = five_dimensional(), np.array([10.0, 1e4, 1e12])
    problem = pl.concentration.TaskGapProblem(head, task, lengths)
    points = _gaps._over_points(problem, pl.rules.Effort())
    exact = [FIVE_DIMENSIONS[length] for length in lengths]
    assert np.all(points.error <= 0.02 * points.value)
    assert np.all(np.abs(points.value - exact) < 4 * points.error)


def test_without_labels_in_the_scores_the_gap_is_a_power_of_the_length():
    head, task = general_problem(0.0)
    lengths = [1e6, 1e8]
    curve = pl.output_gap(head, task, lengths=lengths)
    slope = np.diff(np.log(curve.value)) / np.diff(np.log(lengths))
    rate = pl.gap_exponent(head, task)
    assert rate.law == "power"
    assert -slope[0] == pytest.approx(rate.value, abs=0.05)


def test_with_labels_in_the_scores_the_gap_is_no_power_of_the_length():
    head, task = scalar_head(0.5), pl.LinearRegression([[1.0]])
    rate = pl.gap_exponent(head, task)
    assert (rate.law, rate.value) == ("stretched", 0.0)
    assert rate.rho == pytest.approx(0.5)
    assert rate.onset == pytest.approx(math.exp(0.75 * math.sqrt(3.0) / 0.25))
    reached = {length: gap for length, gap in ONE_DIMENSION[0.5].items() if 100 <= length <= 1e12}
    fit = pl.fit_rate(np.array([*reached]), np.array([*reached.values()]))
    assert fit.status == "not yet"


def test_a_task_has_its_own_queries():
    head, task = five_dimensional()
    with pytest.raises(ArgumentError, match="`queries` must be left out for a task"):
        pl.output_gap(head, task, np.ones((1, 6)), [10])
    with pytest.raises(ArgumentError, match="`lengths` must be one prompt length or several"):
        pl.output_gap(head, task)
    with pytest.raises(ArgumentError, match="`queries` must be a measure or an array"):
        pl.output_gap(head, pl.Gaussian(np.zeros(6), np.eye(6)), lengths=[10])
    with pytest.raises(ArgumentError, match="`wrt` must be 'key_query' or 'value'"):
        pl.gradient_gap(head, task, lengths=[10], wrt="output")
    with pytest.raises(ArgumentError, match="`attention` must accept tokens of dimension 6"):
        pl.output_gap(scalar_head(0.5), task, lengths=[10])


@pytest.mark.parametrize(("label", "method"), [(0.0, "w integrated"), (1.0, "quasi-Monte Carlo")])
def test_explain_names_the_rule_for_a_task(label, method):
    found = pl.explain(pl.output_gap, *general_problem(label), lengths=[10])
    assert found.chosen is not None
    assert found.chosen.method.startswith(method)
