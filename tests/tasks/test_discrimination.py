"""Two Gaussian classes in context: scores, risks and heads against plain integrals and prompts."""

import math
import re

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import ndtr

import promptlimit as pl
from promptlimit.tasks import block_head, error_rate

C1 = pl.Discrimination([[1.0, 0.0], [0.0, 1.0]], [0.6, 0.4], np.eye(2))
SKEW = pl.Discrimination(
    [[1.0, 0.2, 0.0], [0.0, 1.0, -0.5]],
    [0.35, 0.65],
    [[1.0, 0.3, 0.0], [0.3, 0.8, 0.1], [0.0, 0.1, 1.2]],
)
RNG = np.random.default_rng(0)
U, V = 0.5 * RNG.normal(size=(2, 4, 4))
LOSS, SLOPE = (lambda f: np.logaddexp(0.0, -f)), (lambda f: -1.0 / (1.0 + np.exp(f)))


def theta(rho: float) -> pl.SoftmaxAttention:
    """Return Bayes heads of C1 with a constant gate; theta(1) is the second point of Figure 1."""
    slope, intercept = C1.bayes.slope, float(C1.bayes.intercept)
    v = slope / rho
    reached = 0.6 * v @ C1.means[0] + 0.4 * v @ C1.means[1]
    with jax.enable_x64(True):
        return block_head(rho * np.eye(2), [-rho / 2, rho / 2], v, (intercept - reached) / 0.2)


@pytest.mark.parametrize("kernel", [pl.SoftmaxAttention, pl.LinearAttention])
def test_the_score_has_the_stated_coordinates(kernel):
    with jax.enable_x64(True):
        head, x = kernel(U, V), np.array([0.4, -1.0, 0.3])
        read = float(head(SKEW.prompt, np.append(x, 0.0))[-1])
        assert_allclose(SKEW.coordinates(head).score(x), read, rtol=1e-12)


def tensor_risk(task, head) -> float:
    """Return the risk by a rule in all dimensions."""
    with jax.enable_x64(True):
        score = task.coordinates(head)
    g, w = np.polynomial.hermite_e.hermegauss(30)
    dim = task.cov.shape[0]
    grid = np.stack(np.meshgrid(*[g] * dim, indexing="ij"), -1).reshape(-1, dim)
    mass = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * dim, indexing="ij"), -1), axis=-1).ravel()
    spread = grid @ np.linalg.cholesky(task.cov).T
    losses = [
        mass @ LOSS(y * score.score(m + spread)) for y, m in zip((1, -1), task.means, strict=True)
    ]
    return float(task.weights @ losses)


def test_the_limit_risk_is_the_integral_in_all_dimensions():
    with jax.enable_x64(True):
        head = pl.SoftmaxAttention(U, V)
    risk = pl.risk(head, SKEW, math.inf)
    assert risk.kind == "limit"
    assert_allclose(risk.value, tensor_risk(SKEW, head), rtol=1e-8)
    assert risk.error < 1e-10


def test_the_bayes_risk_is_one_integral_at_every_length():
    slope = SKEW.bayes.slope
    spread = math.sqrt(slope @ SKEW.cov @ slope)

    def loss(g: float) -> float:
        scores = SKEW.bayes.score(SKEW.means) + spread * g
        return float(SKEW.weights @ LOSS(np.array([1, -1]) * scores)) * math.exp(-g * g / 2)

    expected = quad(loss, -9, 9, epsabs=1e-13)[0] / math.sqrt(2 * math.pi)
    assert_allclose(pl.bayes_risk(SKEW, [1, math.inf]).value, expected, rtol=1e-10)


@pytest.mark.parametrize(
    "task",
    [
        C1,
        SKEW,
        pl.Discrimination([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5], np.eye(2)),
        pl.Discrimination([[1.0, 0.5], [-1.0, -0.5]], [0.5, 0.5], [[1.0, 0.4], [0.4, 0.7]]),
        pl.Discrimination([[2.0], [-1.0]], [0.5, 0.5], [[0.5]]),
    ],
)
def test_one_head_is_bayes(task):
    with jax.enable_x64(True):
        head = task.bayes_head()
    assert_allclose(pl.risk(head, task, math.inf).value, pl.bayes_risk(task, 1).value, rtol=1e-12)


@pytest.fixture(scope="module")
def slopes():
    """The gradient at a head whose score and gate read one direction, where roots have none."""
    return pl.risk_gradient(theta(1.0), C1, math.inf, points=4096)


def test_the_gradient_vanishes_at_a_bayes_head(slopes):
    assert slopes.kind == "limit"
    assert max(np.abs(array).max() for array in slopes.value.values()) < 1e-9


def test_the_gradient_agrees_with_finite_differences(slopes):
    with jax.enable_x64(True):
        key_query = np.array(theta(1.0).key_query) + 0.2
        head = pl.SoftmaxAttention(key_query, theta(1.0).value)
        assert slopes.lengths == math.inf  # its program serves here too
        gradient = pl.risk_gradient(head, C1, math.inf, points=4096).value["key_query"]
        step = np.zeros((3, 3))
        step[0, 1] = 1e-4
        around = [
            pl.risk(pl.SoftmaxAttention(key_query + sign * step, head.value), C1, math.inf).value
            for sign in (1, -1)
        ]
    assert_allclose(gradient[0, 1], (around[0] - around[1]) / 2e-4, rtol=1e-6)


def test_the_flow_ends_at_bayes_in_any_dimension():
    """In five dimensions: the risk is an integral over the plane there too."""
    task = pl.Discrimination([[1.0, 0, 0, 0, 0], [0, 1.0, 0, 0, 0]], [0.6, 0.4], np.eye(5))
    with jax.enable_x64(True):
        start = pl.SoftmaxAttention(0.3 * np.eye(6), 0.3 * np.eye(6) + 0.1)
    flow = pl.gradient_flow(start, task, math.inf, pl.dynamics.FlowPlan([0.0, 1000.0], points=1024))
    assert abs(flow.value[-1] - pl.bayes_risk(task, math.inf).value) < 1e-4
    assert flow.value[0] - flow.value[-1] > 0.05


def test_the_law_of_the_score_gives_the_known_loss():
    """theta(1), x = (.5, -.3), ten tokens; converged in all its steps, and by a million prompts
    0.3632 with a standard error of 2e-4."""
    law = pl.output_law(theta(1.0), C1.prompt, [0.5, -0.3, 0.0], 10)
    assert_allclose(law.expectation(LOSS, SLOPE), 0.36317520, atol=2e-8)


def test_the_third_order_risk_has_its_known_value():
    risk = pl.risk(theta(0.5), C1, 100, kind="asymptotic")
    assert math.isnan(risk.error)
    assert risk.kind == "asymptotic"
    assert_allclose(risk.value - pl.bayes_risk(C1, 100).value, 0.019727, atol=1e-6)


LINE = pl.Discrimination([[1.0], [-0.5]], [0.4, 0.6], [[0.8]])


def test_error_rate_and_risk_of_short_prompts_agree_with_simulation():
    with jax.enable_x64(True):
        head = block_head([[0.6]], [0.2], [1.1], 0.7)
    rate, risk = error_rate(head, LINE, 5), pl.risk(head, LINE, 5)
    rng, count = np.random.default_rng(1), 100_000
    y = np.where(rng.random((count, 6)) < 0.4, 1, -1)
    x = np.where(y > 0, 1.0, -0.5) + math.sqrt(0.8) * rng.normal(size=y.shape)
    weights = np.exp(0.6 * x[:, :1] * x[:, 1:] + 0.2 * x[:, :1] * y[:, 1:])
    score = (weights * (1.1 * x[:, 1:] + 0.7 * y[:, 1:])).sum(axis=1) / weights.sum(axis=1)
    for result, losses in ((rate, y[:, 0] * score <= 0), (risk, LOSS(y[:, 0] * score))):
        error = losses.std() / math.sqrt(count)
        assert abs(result.value - losses.mean()) < 4 * error + result.error
        assert result.error < 2e-3
        assert result.kind == "exact"


def test_the_error_rate_of_the_limit_is_that_of_bayes():
    """Its two tails in closed form."""
    with jax.enable_x64(True):
        head = LINE.bayes_head()
    spread = math.sqrt(float(LINE.bayes.slope @ LINE.cov @ LINE.bayes.slope))
    scores = LINE.bayes.score(LINE.means)
    exact = LINE.weights @ ndtr(np.array([-1, 1]) * scores / spread)
    assert abs(error_rate(head, LINE, math.inf).value - exact) < 1e-10


def test_a_head_with_zero_values_has_the_loss_of_a_zero_score():
    line = pl.Discrimination([[1.0], [-0.5]], [0.3, 0.7], [[0.8]])
    silent = pl.SoftmaxAttention([[0.6, 0.2], [0.3, 0.1]], np.zeros((2, 2)))
    assert_allclose(pl.risk(silent, line, 10).value, math.log(2.0), rtol=1e-12)
    assert_allclose(error_rate(silent, line, [10, math.inf]).value, 1.0, rtol=1e-12)


def test_gradients_at_finite_length_are_simulated():
    with pytest.raises(ValueError, match=r"^`key` must be given for Soft.*a length is finite"):
        pl.risk_gradient(theta(1.0), C1, 10)


@pytest.mark.parametrize(
    ("means", "weights", "cov", "sentence"),
    [
        (
            [[1.0, 0.0]], [1.0], np.eye(2),
            "`means` must be two rows, the mean of class +1 and that of class -1, got shape "
            "(1, 2). This task has exactly two classes.",
        ),
        (
            np.eye(3), [0.3, 0.3, 0.4], np.eye(3),
            "`means` must be two rows, the mean of class +1 and that of class -1, got shape "
            "(3, 3). This task has exactly two classes.",
        ),
        (
            np.eye(2), [0.5, 0.6], np.eye(2),
            "`weights` must sum to one, got a sum of 1.1. Divide them by their sum.",
        ),
        (
            np.eye(2), [1.0, 0.0], np.eye(2),
            "`weights` must be positive, got 0. Each class must occur.",
        ),
        (
            np.eye(2), [0.5, 0.5], [[1.0, 1.0], [1.0, 1.0]],
            "`cov` must be positive definite, got 0 for its smallest eigenvalue. Without noise in "
            "some direction the classes may be separated exactly.",
        ),
        (np.eye(2), [0.5, 0.5], [[1.0, 0.5], [0.0, 1.0]], "`cov` must be symmetric"),
        (
            [[1.0, 2.0], [1.0, 2.0]], [0.5, 0.5], np.eye(2),
            "`means` must differ, got [1.0, 2.0] twice. The classes would be the same.",
        ),
    ],
)  # fmt: skip
def test_invalid_classes_are_refused(means, weights, cov, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        pl.Discrimination(means, weights, cov)


def test_other_attentions_are_refused_with_a_suggestion():
    heads = pl.MultiHead([C1.bayes_head(), C1.bayes_head()])
    sentence = (
        "`attention` must be one softmax head, got MultiHead. Use `risk` with a key for others."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        error_rate(heads, C1, 10)
    hot = pl.SoftmaxAttention(20 * np.eye(3), np.eye(3))
    with pytest.raises(
        ValueError, match="`attention` must have scores of standard deviation at most 9"
    ):
        pl.risk(hot, C1, 10)
