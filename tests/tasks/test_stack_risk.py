"""Risks of stacks on Gaussian regression: anchors, plain NumPy, and the adjoint recursion."""

import math

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.tasks import RISK, RiskProblem
from promptlimit.tasks._objectives import mean_over_sets
from promptlimit.tasks.regression._stack_risk import stack_objectives
from tasks.stacks import adjoint, limit_slopes, stack_of

INFINITE = np.array([math.inf])


def _matrices(depth, dim, seed, scale=0.3):
    """Return residuals, key-query and value matrices of layers; the last turns the label."""
    rng = np.random.default_rng(seed)
    residuals = [np.eye(dim + 1) for _ in range(depth)]
    residuals[-1][-1, -1] = -1.0
    key_query, value = scale * rng.standard_normal((2, depth, dim + 1, dim + 1))
    return residuals, key_query, value


def _descent(steps, dim, shifts=None, kernel="linear"):
    """Return the stack of gradient descent with these steps, and of GD++ with these shifts."""
    shifts = [0.0] * len(steps) if shifts is None else shifts
    residuals, *_ = _matrices(len(steps), dim, 0)
    values = [-np.diag([a] * dim + [b]) for a, b in zip(shifts, steps, strict=True)]
    values[-1] = residuals[-1] @ values[-1]
    return stack_of(residuals, [np.diag([1.0] * dim + [0.0])] * len(steps), values, kernel)


def test_closed_risks_of_steps_match_the_anchors(x64):
    small = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
    assert_allclose(pl.risk(_descent([0.5, 0.4], 2), small, 5).mse, 0.381616, rtol=1e-14)
    task = pl.LinearRegression(np.eye(5), noise_variance=0.1, prior_variance=0.2)
    two = pl.risk(_descent([0.638421998661, 1.227466292929], 5), task, 40)
    assert two.kind == "exact"
    assert two.error == 0.0
    assert_allclose(two.mse, 0.135299415034, atol=5e-13)
    rotated = pl.RotatedRegression([1.0, 0.5, 0.25])
    varying = pl.risk(_descent([1.006330217593, 2.440478293045], 3), rotated, math.inf)
    assert varying.kind == "limit"
    assert_allclose(varying.mse, 0.027355623100, atol=5e-13)


def _over_points(stack, task, count):
    objectives = stack_objectives(RiskProblem(stack, task, INFINITE), math.inf, count)
    return mean_over_sets(objectives, stack, count)


def test_the_isotropic_limit_matches_the_anchor(x64):
    task = pl.LinearRegression(np.eye(3), noise_variance=0.1, prior_variance=1 / 3)
    residuals, *_ = _matrices(2, 3, 0)
    key_query = [np.diag([0.3, 0.3, 0.3, 0.1]), np.diag([0.2, 0.2, 0.2, -0.1])]
    value = [np.diag([0.1, 0.1, 0.1, -1.0]), np.diag([-0.1, -0.1, -0.1, 1.0])]
    stack = stack_of(residuals, key_query, value)
    limit = pl.risk(stack, task, math.inf)
    assert_allclose(limit.mse - 0.1, 0.329872210292, atol=5e-13)
    # Points that know nothing of the symmetry agree within their spread.
    points = _over_points(stack, task, 4096)
    assert np.abs(points.value - limit.value) < max(3 * points.error, 1e-12)


def test_the_risk_over_tokens_agrees_with_plain_numpy(x64):
    """Real stacks on drawn tokens, layer by layer, d = 2: full matrices and GD++ alike."""
    dim, length, prompts = 2, 6, 40_000
    task = pl.LinearRegression([[1.0, 0.3], [0.3, 0.5]], noise_variance=0.2, prior_variance=0.5)
    round_one = pl.LinearRegression(0.6 * np.eye(2), noise_variance=0.2, prior_variance=0.5)
    full = _matrices(2, dim, 3, scale=0.25)
    turn, read = np.diag([1.0, 1.0, -1.0]), [np.diag([1.0, 1.0, 0.0])] * 2
    write = [np.diag([0.1, 0.1, -0.5]), np.diag([0.0, 0.0, 0.6])]
    cases = [
        (task, stack_of(*full, "linear")),
        (round_one, _descent([0.5, 0.4], dim, [0.3, 0.0])),
        (round_one, stack_of([np.diag([0.9, 0.9, 0.5]), turn], read, write, "linear")),
    ]
    rng = np.random.default_rng(5)
    for law, stack in cases:
        root = np.linalg.cholesky(law.covariance)
        w = math.sqrt(law.prior_variance) * rng.standard_normal((prompts, dim))
        x = rng.standard_normal((prompts, length + 1, dim)) @ root.T
        y = np.einsum("nij,nj->ni", x, w)
        y += math.sqrt(law.noise_variance) * rng.standard_normal(y.shape)
        tokens = np.concatenate([x, y[..., None]], axis=-1)
        prompt, query = tokens[:, :-1], tokens[:, -1].copy()
        query[:, -1] = 0.0
        for layer in stack.layers:
            second = prompt.mT @ prompt / length
            assert isinstance(layer, pl.Layer)
            (head,) = layer.heads
            assert isinstance(head, pl.LinearAttention)
            U, V = np.asarray(head.key_query), np.asarray(head.value)
            matrix = np.asarray(layer.residual_matrix()) + V @ second @ U
            prompt = prompt @ matrix.mT
            query = np.einsum("nij,nj->ni", matrix, query)
        losses = (query[:, -1] - y[:, -1]) ** 2 / 2
        exact = pl.risk(stack, law, length, points=1024)
        error = math.hypot(exact.error, losses.std() / math.sqrt(prompts))
        assert exact.kind == "exact"
        assert abs(exact.value - losses.mean()) < 4 * error


def test_slopes_of_the_limit_agree_with_the_adjoint_recursion(x64):
    task = pl.LinearRegression([[0.8]], noise_variance=0.1, prior_variance=0.5)
    matrices = _matrices(3, 1, 1)
    stack = stack_of(*matrices)
    value, by_R, by_U, by_V = limit_slopes(task, *matrices, count=40)
    limit = pl.risk(stack, task, math.inf)
    assert (limit.kind, limit.error) == ("limit", 0.0)
    assert_allclose(limit.value, value + 0.05, rtol=1e-12)
    slopes = pl.risk_gradient(stack, task, math.inf)
    assert slopes.kind == "limit"
    for layer in range(3):
        name = f"layers[{layer}].heads[0]"
        residual = slopes.value[f"layers[{layer}].residual"]
        assert_allclose(residual, by_R[layer], rtol=1e-9, atol=1e-13)
        assert_allclose(slopes.value[f"{name}.key_query"], by_U[layer], rtol=1e-9, atol=1e-13)
        assert_allclose(slopes.value[f"{name}.value"], by_V[layer], rtol=1e-9, atol=1e-13)


def test_points_in_four_dimensions_agree_with_the_adjoint(x64):
    covariance = np.diag([1.0, 0.6, 0.3, 0.2])
    task = pl.LinearRegression(covariance, noise_variance=0.1, prior_variance=0.3)
    matrices = _matrices(2, 4, 2, scale=0.2)
    rng = np.random.default_rng(0)
    drawn = math.sqrt(0.3) * rng.standard_normal((4000, 4))
    values = np.array([adjoint(task, w, *matrices)[0] for w in drawn])
    limit = pl.risk(stack_of(*matrices), task, math.inf)
    assert 0 < limit.error < 2e-3 * limit.value
    assert abs(limit.value - 0.05 - values.mean()) < 4 * values.std() / math.sqrt(values.size)
    # If scores depend only on covariates, the stack is linear in w and exact for any points.
    block = _descent([0.5, 0.9], 4, kernel="softmax")
    points = _over_points(block, task, 64)
    assert_allclose(points.value, pl.risk(block, task, math.inf).value, rtol=1e-13)


def test_the_risk_is_averaged_over_rotations(x64):
    rotated = pl.RotatedRegression([1.0, 0.5, 0.25], noise_variance=0.1, prior_variance=0.5)
    stack = _descent([0.7, 1.1], 3)
    exact = pl.risk(stack, rotated, 12, points=1024)
    fixed = pl.LinearRegression(np.diag([1.0, 0.5, 0.25]), noise_variance=0.1, prior_variance=0.5)
    same = pl.risk(stack, fixed, 12, points=1024)  # scalar layers feel no rotation
    assert np.abs(exact.value - same.value) < 2 * math.hypot(exact.error, same.error)
    drawn = pl.risk(stack, rotated, 12, kind="estimate", samples=2048, key=jax.random.key(0))
    assert np.abs(exact.value - drawn.value) < 4 * math.hypot(exact.error / 2, drawn.error)
    finite, limit = np.asarray(pl.bayes_risk(rotated, [12, math.inf]).value)
    assert_allclose(limit, 0.05)
    assert finite == pl.bayes_risk(fixed, 12).value


def test_softmax_stacks_over_finite_prompts_have_no_exact_risk():
    task = pl.LinearRegression(np.eye(2))
    softmax = _descent([0.5, 0.4], 2, kernel="softmax")
    assert "exact" not in RISK.possible(RiskProblem(softmax, task, np.array([10.0])))
    assert "exact" in RISK.possible(RiskProblem(softmax, task, INFINITE))
    with pytest.raises(
        ValueError,
        match=r"^`key` must be given for Stack on LinearRegression.*a head is not linear",
    ):
        pl.risk(softmax, task, 10)


def test_an_invalid_spectrum_is_refused():
    for bad in ([-1.0, 1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="must") as refusal:
            pl.RotatedRegression(bad)
        assert str(refusal.value) == (
            "`spectrum` must hold eigenvalues that are not negative, one of them positive, "
            f"got {bad}. They are variances of the covariates."
        )


def test_covariates_that_move_in_each_of_three_layers(x64):
    """Second moments through plain matrices, one weight vector at a time."""
    dim, prior, noise = 2, 0.7, 0.3
    sigma = np.diag([1.5, 0.5])
    blocks = [(0.2, 0.3, 0.4), (-0.1, 0.25, 0.5), (0.15, -0.2, 0.6)]  # alpha, u, b of a layer
    layers, numbers = [], []
    for alpha, u, b in blocks:
        key_query, value = np.diag([u, u, 0.0]), np.diag([alpha, alpha, b])
        numbers.append((key_query, value))
        layers.append(pl.Layer(pl.LinearAttention(key_query, value), residual=np.eye(3)))
    total = 0.0
    for w in np.eye(dim):  # the error is linear in the weights
        token = np.vstack([np.eye(dim), w])  # (x, <w, x>)
        moment, query = token @ sigma @ token.T, np.vstack([np.eye(dim), np.zeros(dim)])
        for key_query, value in numbers:
            step = np.eye(dim + 1) + value @ moment @ key_query
            moment, query = step @ moment @ step.T, step @ query
        missed = query[-1] - w
        total += missed @ sigma @ missed
    task = pl.LinearRegression(sigma, noise_variance=noise, prior_variance=prior)
    found = pl.risk(pl.Stack(layers), task, math.inf)
    assert found.kind == "limit"
    np.testing.assert_allclose(found.value, (noise + prior * total) / 2, rtol=1e-12)
