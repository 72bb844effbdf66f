"""Labels in R^m: risks against quadrature and simulation in NumPy, and against one label."""

import math
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

import promptlimit as pl
from promptlimit.weights import weight_statistics

HEADS = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}
LABEL_ROWS = np.array([0.3, -0.2, 0.25])
VALUE_COLUMN = np.array([0.2, -0.1, 0.15])
VALUE_BLOCK = np.array([[0.9, 0.2, -0.1], [-0.3, 0.7, 0.1], [0.2, 0.1, 0.8]])
ANISOTROPIC = np.array([[1.0, 0.3], [0.3, 0.5]])


def regression(covariance, labels=1, **options):
    return pl.LinearRegression(
        covariance, noise_variance=0.2, prior_variance=0.5, label_dim=labels, **options
    )


def line_head(labels, kernel):
    """A head on one covariate that reads labels in its scores and covariates in its values."""
    key_query, value = np.zeros((labels + 1, labels + 1)), np.zeros((labels, labels + 1))
    key_query[0, 0], key_query[1:, 0] = 0.6, LABEL_ROWS[:labels]
    value[:, 0], value[:, 1:] = VALUE_COLUMN[:labels], VALUE_BLOCK[:labels, :labels]
    return HEADS[kernel](key_query, value)


def block_head(matrix, b, labels, kernel):
    dim = len(matrix)
    key_query, value = np.zeros((2, dim + labels, dim + labels))
    key_query[:dim, :dim], value[dim:, dim:] = matrix, b * np.eye(labels)
    return HEADS[kernel](key_query, value)


def line_quadrature(labels, lengths, step=0.2):
    """Softmax risks of `line_head` from W = e w + W', its part across e integrated by hand."""
    u, v, B = LABEL_ROWS[:labels], VALUE_COLUMN[:labels], VALUE_BLOCK[:labels, :labels]
    a, prior, noise, size = 0.6, 0.5, 0.2, np.linalg.norm(u)
    e = u / size
    normal = step * np.arange(-40, 41)
    density = step * np.exp(-(normal**2) / 2) / math.sqrt(2 * math.pi)
    x, w = np.meshgrid(normal, math.sqrt(prior) * normal, indexing="ij")
    mass = np.outer(density, density)
    kept = (mass > 1e-15) & (x >= 0)
    x, w, mass = x[kept], w[kept], np.where(x[kept] > 0, 2, 1) * mass[kept]
    p = x * (a + size * w)
    squared = p**2 + noise * (size * x) ** 2
    statistics = weight_statistics(np.sqrt(squared), np.array(lengths)[:, None])
    participation = statistics.participation
    excess = participation - 6 * statistics.cubic_participation
    excess = excess + 6 * statistics.participation_square
    across = np.eye(labels) - np.outer(e, e)
    mean = np.outer(p, v) + np.outer(w * p + noise * size * x, B @ e)
    c2 = np.sum(mean**2, axis=1) + prior * p**2 * np.trace(B @ across @ B.T)
    cy = (mean @ e) * w * x + prior * p * x * np.trace(B @ across)
    y2 = (w * x) ** 2 + prior * (labels - 1) * x**2
    spread = np.sum((v + np.outer(w, B @ e)) ** 2, axis=1)
    spread = spread + prior * np.trace(B @ across @ B.T) + noise * np.sum(B**2)
    factor = spread - 2 * (c2 - cy)
    total = c2 - 2 * cy + y2 + factor * participation + c2 * excess
    return 0.5 * (labels * noise + total @ mass)


@pytest.mark.parametrize("labels", [2, 3])
def test_risks_of_vector_labels_have_the_known_values(x64, labels):
    # Quadrature of another implementation, whose eighth digit is uncertain by one.
    softmax = {2: [0.62545278, 0.44714244], 3: [0.94427082, 0.67702150]}[labels]
    linear = {2: [0.5426363, 0.43695089], 3: [0.82762496, 0.66314989]}[labels]
    limit = {2: 0.4313885, 3: 0.65449331}[labels]
    task, lengths = regression([[1.0]], labels), [5, 100, math.inf]
    found = pl.risk(line_head(labels, "softmax"), task, lengths)
    assert found.kind == "exact"
    assert_allclose(found.value, [*softmax, limit], atol=1.2e-8)
    expected = line_quadrature(labels, [5, 100])
    assert_allclose(np.asarray(found.value)[:2], expected, atol=1e-9)
    assert np.all(found.error < 1e-9)
    found = pl.risk(line_head(labels, "linear"), task, lengths)
    assert_allclose(found.value, [*linear, limit], atol=6e-9)
    assert not np.any(found.error)


def simulated_squares(task, head, kernel, length, rng, prompts=100_000):  # noqa: PLR0917
    """Half the squared errors of prompts drawn and read in plain NumPy."""
    dim, labels = len(task.covariance), task.label_dim
    root, query_root = (np.linalg.cholesky(S) for S in (task.covariance, task.query_covariance))
    weights = math.sqrt(task.prior_variance) * rng.normal(size=(prompts, labels, dim))
    noise = math.sqrt(task.noise_variance)
    x = rng.normal(size=(prompts, length, dim)) @ root.T
    y = np.einsum("nij,nlj->nli", weights, x) + noise * rng.normal(size=(prompts, length, labels))
    query = rng.normal(size=(prompts, dim)) @ query_root.T
    target = np.einsum("nij,nj->ni", weights, query) + noise * rng.normal(size=(prompts, labels))
    tokens = np.concatenate([x, y], axis=2)
    asked = np.concatenate([query, np.zeros((prompts, labels))], axis=1)
    scores = np.einsum("nld,de,ne->nl", tokens, np.asarray(head.key_query), asked)
    share = scores / length
    if kernel == "softmax":
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        share = share / share.sum(axis=1, keepdims=True)
    output = np.einsum("nl,nld,ed->ne", share, tokens, np.asarray(head.value))
    return 0.5 * np.sum((output[:, -labels:] - target) ** 2, axis=1)


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_simulated_prompts_have_the_exact_risk(x64, kernel):
    task = regression(ANISOTROPIC, 2, query_covariance=np.diag([0.7, 1.2]))
    rng = np.random.default_rng(5)
    key_query, value = 0.5 * rng.normal(size=(4, 4)), 0.5 * rng.normal(size=(3, 4))
    head = HEADS[kernel](key_query, value)
    squares = simulated_squares(task, head, kernel, 5, rng)
    error = squares.std() / math.sqrt(squares.size)
    exact = pl.risk(head, task, 5)
    assert exact.kind == "exact"
    assert exact.error < 2e-3 * exact.value
    assert np.abs(exact.value - squares.mean()) < 4 * error + 4 * exact.error
    drawn = pl.risk(head, task, 5, kind="estimate", key=jax.random.key(1))
    assert np.abs(drawn.value - exact.value) < 4 * drawn.error + 4 * exact.error


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_blocks_have_m_times_the_risk_of_one_label(x64, kernel):
    isotropic, lengths = np.eye(3), [1, 10, 1000, math.inf]
    one, four = (
        pl.risk(block_head(0.6 * isotropic, 0.8, m, kernel), regression(isotropic, m), lengths)
        for m in (1, 4)
    )
    assert_allclose(four.value, 4 * one.value, rtol=1e-12)
    A = np.array([[0.5, 0.1], [0.0, 0.7]])
    one, three = (
        pl.risk(block_head(A, 0.8, m, kernel), regression(ANISOTROPIC, m), [10, math.inf])
        for m in (1, 3)
    )
    assert np.all(np.abs(three.value - 3 * one.value) <= 4 * (3 * one.error + three.error) + 1e-12)
    # Control: a head that mixes labels is worse than m heads of one label.
    mixing = block_head(A, 0.8, 3, kernel)
    mixed = np.asarray(mixing.value).copy()
    mixed[2:, 2:] += 0.3 * (1 - np.eye(3))
    worse = pl.risk(HEADS[kernel](mixing.key_query, mixed), regression(ANISOTROPIC, 3), 10)
    assert worse.value > 1.05 * np.asarray(three.value)[0]


def test_bayes_risks_and_optima_of_vector_labels_are_those_of_one_label_m_times(x64):
    lengths = [1, 10, math.inf]
    one, three = (regression(ANISOTROPIC, m) for m in (1, 3))
    bayes = [pl.bayes_risk(task, lengths, points=64).value for task in (one, three)]
    assert_allclose(bayes[1], 3 * bayes[0], rtol=1e-12)
    assert_allclose(np.asarray(bayes[1])[-1], 3 * 0.2 / 2, rtol=1e-14)
    best = [pl.linear_optimum(task, lengths) for task in (one, three)]
    assert_allclose(best[1].value, 3 * best[0].value, rtol=1e-12)
    at = best[1].at(10)
    assert_allclose(pl.risk(at.attention, three, 10).value, at.value, rtol=1e-12)
    sizes = [np.linalg.norm(matrix) for matrix in (at.key_query[0], at.value_matrix[0])]
    assert_allclose(sizes[0], sizes[1], rtol=1e-12)


def test_no_descent_finds_a_better_linear_attention_for_two_labels(x64):
    task = regression([[0.8]], 2)
    best = pl.linear_optimum(task, 4)
    risk = pl.tasks.risk_function(task, 4, kernel="linear")

    @jax.jit
    def both(flat):
        return jax.value_and_grad(lambda p: risk(p[:9].reshape(3, 3), p[9:].reshape(2, 3)))(flat)

    at = jnp.asarray(np.append(best.key_query[0], best.value_matrix[0, 1:]))
    assert_allclose(both(at)[0], best.value, rtol=1e-14)
    assert_allclose(both(at)[1], 0.0, atol=1e-13)
    starts = [0.4 * np.random.default_rng(seed).normal(size=15) for seed in range(6)]
    ends = [
        minimize(lambda p: tuple(map(np.asarray, both(p))), start, jac=True, tol=1e-9).fun
        for start in starts
    ]
    assert best.value - 1e-12 < min(ends) < best.value + 1e-8


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_gradients_for_vector_labels_agree_with_finite_differences(x64, kernel):
    task = regression(ANISOTROPIC, 2)
    rng = np.random.default_rng(7)
    key_query, rows = 0.4 * rng.normal(size=(4, 4)), 0.5 * rng.normal(size=(2, 4))
    risk = pl.tasks.risk_function(task, 10, kernel=kernel, points=64, max_sharpness=8.0)
    value = eqx.filter_jit(risk)
    slopes = jax.jit(jax.grad(risk, argnums=(0, 1)))(jnp.asarray(key_query), jnp.asarray(rows))
    for place, (matrix, slope) in enumerate(zip((key_query, rows), slopes, strict=True)):
        for index in [(0, 1), (1, 0), (matrix.shape[0] - 1, 0)]:
            step = np.zeros_like(matrix)
            step[index] = 1e-5
            moved = [
                [key_query + sign * step, rows] if place == 0 else [key_query, rows + sign * step]
                for sign in (1, -1)
            ]
            up, down = (float(value(*map(jnp.asarray, one))) for one in moved)
            assert_allclose(slope[index], (up - down) / 2e-5, rtol=1e-6, atol=1e-9)


def test_gradients_of_blocks_are_those_of_one_label(x64):
    A = np.array([[0.5, 0.1], [0.0, 0.7]])
    one, two = (
        pl.risk_gradient(block_head(A, 0.8, m, "softmax"), regression(ANISOTROPIC, m), 10)
        for m in (1, 2)
    )
    band = 4 * (2 * one.error["key_query"][:2, :2] + two.error["key_query"][:2, :2]) + 1e-9
    by_a = two.value["key_query"][:2, :2] - 2 * one.value["key_query"][:2, :2]
    assert np.all(np.abs(by_a) <= band)
    by_b = two.value["value"][2:, 2:]
    band = 4 * (one.error["value"][2, 2] + two.error["value"][2:, 2:]) + 1e-9
    assert np.all(np.abs(by_b - one.value["value"][2, 2] * np.eye(2)) <= band)
    assert np.abs(two.value["value"][2:, :2]).max() < 1e-12
    assert np.abs(two.value["key_query"][2:]).max() < 1e-12


@pytest.mark.parametrize("labels", [2, 3])
def test_the_infinite_flow_ends_where_the_balance_of_the_labels_puts_it(x64, labels):
    task, alpha = regression(ANISOTROPIC, labels), 0.7
    start = pl.dynamics.block_start(task, alpha)
    flow = pl.gradient_flow(start, task, math.inf, [0.0, 1.0, math.inf])
    q = (labels - 1) * alpha**2
    inverse = np.linalg.inv(ANISOTROPIC)
    b2 = (q + math.sqrt(q**2 + 4 * labels * np.sum(inverse**2))) / (2 * labels)
    key_query, value = flow.merged()
    assert_allclose(value[-1][2:, 2:], math.sqrt(b2) * np.eye(labels), atol=1e-5)
    assert_allclose(key_query[-1][:2, :2], inverse / math.sqrt(b2), atol=1e-5)
    end = pl.dynamics.block_limit(task, alpha)
    assert_allclose(end.value[2:, 2:], math.sqrt(b2) * np.eye(labels), rtol=1e-12)
    assert_allclose(pl.risk(end, task, math.inf).value, labels * 0.1, rtol=1e-12)
    kept = pl.dynamics.imbalance(flow, label_dim=labels)
    assert_allclose(kept, alpha**2 * (1 - labels), atol=1e-7)
    assert pl.dynamics.block_defect(flow, label_dim=labels).max() < 1e-12


def test_finite_flows_keep_the_blocks_of_vector_labels(x64):
    task = regression(ANISOTROPIC, 2)
    start = pl.dynamics.block_start(task, 0.7)
    flow = pl.gradient_flow(start, task, 20, [0.0, 2.0, 5.0])
    assert np.all(np.diff(flow.value) < 0)
    assert pl.dynamics.block_defect(flow, label_dim=2).max() < 1e-9
    _, value = flow.merged()
    B = value[-1][2:, 2:]
    assert_allclose(B, B[0, 0] * np.eye(2), atol=1e-9)


def test_sgd_trains_on_vector_labels():
    task = regression(np.eye(2), 2)
    start = block_head(0.3 * np.eye(2), 0.3, 2, "linear")
    plan = pl.TrainingPlan(steps=200, batch=64, learning_rate=0.05, record=[0, 200], points=256)
    run = pl.sgd(start, task, 10, plan, key=jax.random.key(0), watch=False)
    risks = np.ravel(run.value)
    assert risks[-1] < 0.9 * risks[0]
    assert risks[-1] > pl.linear_optimum(task, 10).value * 0.999


def test_label_dimensions_that_make_no_sense_are_refused():
    for wrong in (0, -1, True):
        message = f"`label_dim` must be a whole number of at least 1, got {wrong}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            pl.LinearRegression(np.eye(2), label_dim=wrong)
    task = regression(np.eye(2), 2)
    message = "`attention` must have at least 2 output coordinates (one per label), got 1."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.risk(pl.LinearAttention(np.eye(4), np.ones((1, 4))), task, 10)
    message = "`depth` must be 1 for labels of 2 coordinates, got 3."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        pl.linear_optimum(task, 10, depth=3)
    with pytest.raises(ValueError, match=re.escape("`task` must have one label, got 2.")):
        pl.dynamics.flow_rate(task, 0.5)
    stack = pl.Stack([pl.Layer(pl.LinearAttention(np.eye(4), np.eye(4)))] * 2)
    with pytest.raises(ValueError, match="labels have 2 coordinates"):
        pl.risk(stack, task, 10, kind="exact")
    with pytest.raises(ValueError, match="labels have 2 coordinates"):
        pl.output_gap(pl.SoftmaxAttention(np.eye(4), np.eye(4)), task, lengths=[10], kind="exact")


def test_a_regression_with_vector_labels_can_be_saved(tmp_path):
    task = regression(ANISOTROPIC, 3)
    pl.save(tmp_path / "task.npz", task)
    loaded = pl.load(tmp_path / "task.npz")
    assert loaded.label_dim == 3
    assert loaded.token_dim == 5
    assert_allclose(loaded.covariance, task.covariance)
