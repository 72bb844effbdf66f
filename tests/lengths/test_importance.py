"""Self-normalised importance sampling between Gaussians: reference values, identities, draws."""

import math
from typing import Any

import numpy as np
import pytest

import promptlimit as pl
from promptlimit.lengths import importance_sampling

STANDARD = [[1.0]]


@pytest.fixture(autouse=True)
def double(x64: None) -> None:
    pass


@pytest.mark.parametrize(
    ("deviation", "bias", "mse", "inverse", "mean"),
    [
        (0.6, -0.18758811094557, 0.30455294840434, 23.0879031553, 31.3271259202),
        (1.5, 0.00871502962, 0.02371285671, 41.5471051707, 41.6217861436),
    ],
)
def test_reference_values(
    deviation: float, bias: float, mse: float, inverse: float, mean: float
) -> None:
    """Proposal N(0, s^2), target N(0, 1), f = x^2, 50 draws; by sums over 2001 points x."""
    found = importance_sampling(
        pl.Gaussian([0.0], [[deviation**2]]),
        pl.Gaussian([0.0], STANDARD),
        50,
        functions=[[0.0, 1.0]],
    )
    assert found.bias[0, 0] == pytest.approx(bias, abs=6e-12)
    assert found.value[0] == pytest.approx(mse, abs=6e-12)
    assert found.effective_samples[0] == pytest.approx(inverse, abs=6e-11)
    assert found.mean_effective_samples[0] == pytest.approx(mean, abs=6e-11)


@pytest.mark.parametrize("deviation", [0.6, 0.9, 1.5])
def test_the_bias_of_the_square_is_a_multiple_of_the_variance_of_the_mean(deviation: float) -> None:
    """Stein's lemma: bias of x^2 = -((1 - s^2) / s^2) Var of x, at every n."""
    found = importance_sampling(
        pl.Gaussian([0.0], [[deviation**2]]),
        pl.Gaussian([0.0], STANDARD),
        [10, 100, 1e6],
        functions=np.eye(2),
    )
    variance = found.standard_deviation[:, 0] ** 2
    expected = -(1.0 - deviation**2) / deviation**2 * variance
    np.testing.assert_allclose(found.bias[:, 1], expected, rtol=1e-9)


def test_the_local_slope_of_heavy_weights_approaches_the_exponent() -> None:
    found = importance_sampling(
        pl.Gaussian([0.0], [[0.36]]), pl.Gaussian([0.0], STANDARD), [1e21, 2e21]
    )
    first, second = found.effective_samples
    assert math.log2(second / first) == pytest.approx(0.573, abs=6e-4)
    assert found.exponent == pytest.approx(0.5625)
    assert "no variance" in found.notes()[0]


def test_three_dimensions_agree_with_simulated_draws() -> None:
    rng, count, draws = np.random.default_rng(0), 20_000, 30
    cov = np.array([[1.2, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 1.4]])
    target_cov = np.diag([0.8, 0.6, 1.0])
    shift = np.array([0.3, -0.2, 0.1])
    function = pl.GaussianQuadratic(np.zeros(3), cov).tilt([1.0, 0.0, 0.0], np.eye(3))
    found = importance_sampling(
        pl.Gaussian(np.zeros(3), cov),
        pl.Gaussian(shift, target_cov),
        draws,
        functions=function[None],
    )
    x = rng.multivariate_normal(np.zeros(3), cov, size=(count, draws))
    apart = x - shift
    log_weight = -0.5 * (apart**2 / np.diag(target_cov)).sum(axis=2)
    log_weight += 0.5 * np.einsum("pni,ij,pnj->pn", x, np.linalg.inv(cov), x)
    p = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    estimates = (p * (x[..., 0] + (x**2).sum(axis=2))).sum(axis=1)
    truth = shift[0] + np.trace(target_cov) + shift @ shift
    assert found.target_means[0] == pytest.approx(truth)
    for value, simulated in (
        (found.bias[0, 0], estimates - truth),
        (found.value[0], (estimates - truth) ** 2),
        (found.mean_effective_samples[0], 1.0 / (p**2).sum(axis=1)),
        (1.0 / found.effective_samples[0], (p**2).sum(axis=1)),
    ):
        assert abs(value - simulated.mean()) < 4.0 * simulated.std() / math.sqrt(count)


def test_equal_proposal_and_target_are_plain_averages() -> None:
    law = pl.Gaussian([1.0, 2.0], [[1.0, 0.5], [0.5, 2.0]])
    found = importance_sampling(law, law, [2, 100])
    np.testing.assert_allclose(found.effective_samples, [2, 100])
    np.testing.assert_allclose(found.mean_effective_samples, [2, 100])
    np.testing.assert_allclose(found.bias, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.value, [1.5, 0.03])


def test_the_error_is_that_of_a_mean_square() -> None:
    """It grows with the square of the function."""
    law, target = pl.Gaussian([0.0], [[2.25]]), pl.Gaussian([0.5], STANDARD)
    one, small = (
        importance_sampling(law, target, [10, 100], functions=[[size, 0.0]]) for size in (1.0, 1e-3)
    )
    np.testing.assert_allclose(small.value, 1e-6 * one.value, rtol=1e-9)
    np.testing.assert_allclose(small.error, 1e-6 * one.error, rtol=0.1)
    assert (one.error < 1e-6 * one.value).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lengths": 1}, "`lengths` must be whole numbers of at least 2"),
        ({"functions": [[1.0]]}, r"`functions` must have shape \[f, 2\]"),
        (
            {"proposal": pl.Rademacher([1.0])},
            r"`proposal` must be a Gaussian, got Rademacher\. For other laws, such as a mixture, "
            r"pass tokens \(log-weight, f\) to `prompt_moments`",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, words: str) -> None:
    law = pl.Gaussian([0.0], STANDARD)
    given: dict[str, Any] = {"proposal": law, "target": law, "lengths": 10} | arguments
    with pytest.raises(ValueError, match=words):
        importance_sampling(**given)
