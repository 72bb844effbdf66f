"""Reference values of the claims on averages over tasks, orders of limits and moments."""

import dataclasses
import functools
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.studies import Setting, decide
from promptlimit.studies.large_prompt import (
    STUDY,
    flow_rates,
    lemmas,
    length_transfer,
    order_of_limits,
    task_gaps,
)
from promptlimit.studies.large_prompt.lemmas import fourth_weight_moments, mean_fourth_moment
from promptlimit.studies.large_prompt.length_transfer import without_division
from studies.planted import turns_red

pytestmark = pytest.mark.usefixtures("x64")
leaving_time = functools.cache(order_of_limits.leaving_time)  # no constant below enters it
CLAIMS = {claim.name: claim for claim in STUDY.claims}


def test_the_leading_order_of_a_stretched_gap_over_its_exact_values() -> None:
    lengths = np.array([10, 100, 1e4, 1e6, 1e8, 1e12, 1e30])
    exact = [
        *(0.274365292, 0.0565458101, 0.00453929494, 6.56733727e-4),
        *(1.31519016e-4, 8.94911150e-6, 1.76413881e-9),
    ]
    ratio = task_gaps.leading_order(0.5, lengths) / exact
    np.testing.assert_allclose(ratio, [1.345, 1.088, 1.058, 1.044, 1.017, 0.973, 0.895], atol=6e-4)


def test_random_starts_read_labels_little() -> None:
    sizes = task_gaps.start_sizes(0)
    assert np.median(sizes) == pytest.approx(0.0506, abs=0.0005)
    np.testing.assert_allclose(np.quantile(sizes, [0.05, 0.95]), [0.024, 0.086], atol=0.001)
    start = pl.dynamics.uniform_factors  # the same law, drawn by the library
    rows = [
        np.asarray(start(5, key=jax.random.key(i)).merged().key_query)[5, :5] for i in range(400)
    ]
    drawn = math.sqrt(0.2) * np.linalg.norm(rows, axis=1)
    assert np.median(drawn) == pytest.approx(np.median(sizes), rel=0.1)


def test_the_two_limits_of_the_parameters() -> None:
    o = order_of_limits.best_square()
    assert o == pytest.approx(0.124199408200, abs=1e-11)  # mpmath, 40 digits
    assert order_of_limits.excess_constant(o) == pytest.approx(20.8011312, abs=1e-7)
    assert math.sqrt(o) == pytest.approx(0.352419, abs=1e-6)
    np.testing.assert_allclose(order_of_limits.END, [0.668740, 1.495349], atol=1e-6)
    assert order_of_limits.apart() == pytest.approx(1.517, abs=5e-4)
    assert order_of_limits.shortfall() == pytest.approx(18.0844, abs=5e-5)
    assert order_of_limits.slow_law(1.0) == pytest.approx(0.0320083, abs=1e-7)


@pytest.mark.parametrize(
    ("length", "far", "time"),
    [
        (100, 0.5, 33.5178),
        (1000, 0.5, 41.8368),
        (1e4, 0.5, 139.36),
        (1e6, 0.5, 4562.4),
        (1e8, 0.5, 2.8610e5),
        (1000, 1.0, 151.416),
        (1e6, 1.0, 36941),
    ],
)
def test_times_at_which_a_flow_has_left_the_limit(length: float, far: float, time: float) -> None:
    assert order_of_limits.leaving_time(length, far) == pytest.approx(time, rel=2e-5)


def test_linear_attention_stays_within_a_constant_over_the_length() -> None:
    ends = {n: order_of_limits._linear_end(n) for n in (10, 1000, 10**6)}
    scaled = [n * float(order_of_limits.distance(*end)) for n, end in ends.items()]
    assert max(scaled) <= 6.873
    assert scaled[1] == pytest.approx(6.840, abs=1e-3)


def test_linear_attention_without_its_factor_diverges() -> None:
    z = 40 / 46.5
    for other in (10, 1000):
        k = z * other / 40
        want = (1 - k) ** 2 + k**2 * 6.5 / other
        assert without_division(40, other) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize(
    ("p", "q", "value"), [(4, 0, 12.5), (4, 4, 184), (8, 4, 21300), (8, 8, 2077056)]
)
def test_constants_of_the_moment_assumptions(p: int, q: int, value: float) -> None:
    assert lemmas.gaussian_constant(p, q, 2, 0.5) == pytest.approx(value, rel=1e-12)


def test_fourth_moments_averaged_over_queries() -> None:
    found = mean_fourth_moment(0.5, np.array([10, 100, 1e4, 1e8]))
    np.testing.assert_allclose(
        found, [0.0822018803, 0.00246958895, 3.2339506e-6, 4.31640628e-12], rtol=2e-8
    )


def test_fourth_moments_of_weights_are_those_of_simulated_prompts() -> None:
    rng, sigma = np.random.default_rng(2), 1.0
    g = rng.normal(size=(40_000, 12))
    p = np.exp(sigma * g)
    p /= p.sum(axis=1, keepdims=True)
    B, S2 = (p * g).sum(axis=1) - sigma, (p**2).sum(axis=1)
    drawn = np.stack([B**4, B**2 * S2, S2**2])
    exact = fourth_weight_moments(sigma, np.array([12.0]))[:, 0]
    error = drawn.std(axis=1) / 200.0
    assert (np.abs(drawn.mean(axis=1) - exact) < 5 * error).all()


def test_gradient_gaps_of_one_dimension_are_those_of_simulated_prompts() -> None:
    rng, rho, prompts, length = np.random.default_rng(4), 0.5, 200_000, 10
    w, query = rng.normal(size=(2, prompts))
    x = rng.normal(size=(prompts, length))
    scores = (rho * query * w)[:, None] * x
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    mean = (p * x).sum(axis=1)
    spread = (p * x**2).sum(axis=1) - mean**2 - 1
    drawn = {
        "value": (1 + w**2) * (mean - rho * query * w) ** 2,
        "key_query": (w**2 + w**4) * spread**2 * query**2,
    }
    exact = task_gaps.scalar_gradient_gaps(rho, np.array([float(length)]))
    for wrt, squares in drawn.items():
        error = squares.std() / prompts**0.5
        assert abs(squares.mean() - exact[wrt][0]) < 5 * error < 0.1 * exact[wrt][0]


@pytest.mark.parametrize("constant", ["rate", "pl_constant"])
def test_a_wrong_constant_of_the_flow_turns_claim_23_red(
    constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = flow_rates.flow_rate
    factor = 1.02 if constant == "rate" else 100.0

    def wrong(*given):
        found = right(*given)
        return dataclasses.replace(found, **{constant: factor * getattr(found, constant)})

    flow_rates._flow(0), flow_rates._flow(1)  # times are in units of the right rate
    monkeypatch.setattr(flow_rates, "flow_rate", wrong)
    assert turns_red(CLAIMS["exponential-convergence"])


@pytest.mark.parametrize("name", ["best_square", "slow_law"])
def test_a_constant_off_by_two_percent_turns_claim_22_red(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(order_of_limits, name)
    monkeypatch.setattr(order_of_limits, name, lambda *given: 1.02 * right(*given))
    monkeypatch.setattr(order_of_limits, "leaving_time", leaving_time)
    assert turns_red(CLAIMS["order-of-limits"])


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_heads_trained_at_another_length_turn_claim_21_red(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = length_transfer.train_test_risk

    def wrong(task, train, test, kernel_of_call="softmax", **options):
        own = options.pop("kernel", kernel_of_call)
        factor = 1.1 if own == kernel else 1.0
        lengths = np.ceil(factor * np.asarray(train, dtype=np.float64))
        return right(task, lengths, test, kernel=own, **options)

    monkeypatch.setattr(length_transfer, "train_test_risk", wrong)
    assert decide(CLAIMS["longer-prompts"], Setting(quick=True)).verdict == "does not hold"


def test_a_fourth_moment_off_by_a_fifth_turns_claim_24_red(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lemmas.fourth_moment
    monkeypatch.setattr(lemmas, "fourth_moment", lambda *given: 1.2 * right(*given))
    assert turns_red(CLAIMS["moment-lemmas"])


def test_the_figure_of_fourth_moments_has_the_exponents_of_their_laws() -> None:
    """At 1e12 tokens the ratio of moments grows with the power that the two exponents leave."""
    (figure,) = (figure for figure in STUDY.figures if figure.name == "fourth_moments")
    data = figure.compute(Setting(quick=True))
    tau = data["sharpnesses"]
    second, fourth = np.ones(2), np.sqrt(1 / tau**2 + 0.25) - 0.5
    np.testing.assert_allclose(data["measured"], fourth / 2, atol=0.02)
    growth = np.diff(np.log(data["ratio"][:, -2:]))[:, 0] / np.diff(np.log(data["lengths"][-2:]))
    np.testing.assert_allclose(growth, 2 * second - fourth, atol=0.1)
    at = np.searchsorted(data["fine"], np.sqrt(0.5))
    np.testing.assert_allclose(data["second"][: at + 1], 1.0)
    np.testing.assert_allclose(data["fourth"][at], 0.5)


def test_a_gap_that_is_a_power_turns_claim_20_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def gap(*_, lengths):
        return SimpleNamespace(value=1 / np.asarray(lengths))

    monkeypatch.setattr(task_gaps, "output_gap", gap)
    assert turns_red(CLAIMS["task-averages"])
