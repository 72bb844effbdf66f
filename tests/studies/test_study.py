"""The training study: gaps against simulated prompts, and claims that notice planted errors."""

import dataclasses
import importlib
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from promptlimit.attention import Factored
from promptlimit.dynamics import uniform_factors
from promptlimit.studies import Setting, decide
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._start_gap import (
    batch_gradients,
    population_gradient_gap,
    same_batch_gradient_gap,
    squared_output_gap,
)
from promptlimit.studies.large_prompt.protocol import LENGTHS as PROTOCOL_LENGTHS
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.studies.large_prompt.study import (
    CRITICAL_RATE,
    ENSEMBLE_TIMES,
    TIMES,
    Ends,
    Flows,
    block_factors,
    mild_starts,
    random_start,
)
from promptlimit.tasks import LinearRegression, risk_gradient

CLAIMS = {claim.name: claim for claim in STUDY.claims}
LENGTHS = np.array([10, 100, 1000])


def simulated_output_gap(
    task: LinearRegression, start: Factored, length: int, prompts: int
) -> tuple[float, float]:
    """Draw whole prompts in NumPy and return the mean squared gap with its standard error."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        U, v = np.asarray(start.merged().key_query), np.asarray(start.merged().value)[-1]
    dim = task.covariance.shape[0]
    w = np.sqrt(task.prior_variance) * rng.normal(size=(prompts, dim))
    x = rng.normal(size=(prompts, length, dim)) @ np.linalg.cholesky(task.covariance).T
    noise = np.sqrt(task.noise_variance) * rng.normal(size=(prompts, length))
    z = np.concatenate([x, (np.einsum("nld,nd->nl", x, w) + noise)[..., None]], axis=2)
    query = rng.normal(size=(prompts, dim)) @ np.linalg.cholesky(task.query_covariance).T
    scores, values = np.einsum("nlk,nk->nl", z, query @ U[:, :dim].T), z @ v
    weights = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    squared = ((weights * values).sum(axis=1) - (scores * values).mean(axis=1)) ** 2
    return squared.mean(), squared.std() / np.sqrt(prompts)


def test_the_exact_output_gap_is_that_of_simulated_prompts() -> None:
    task = protocol_task("kms-as-coded")
    with jax.enable_x64(True):
        drawn = uniform_factors(5, key=jax.random.key(3))
        key, query, value = (2 * each for each in jax.tree.leaves(drawn)[:3])
        sharp = Factored("softmax", key, query, value, drawn.output, scale=drawn.scale)
        exact = squared_output_gap(task, sharp, [1, 2, 7], points=2048)
    for length, value, own in zip((1, 2, 7), exact.value, exact.error, strict=True):
        mean, error = simulated_output_gap(task, sharp, length, 40_000)
        assert abs(value - mean) < 4 * np.hypot(error, own)
        assert error < 0.1 * mean


def test_the_exact_output_gap_knows_wide_directions_from_narrow_ones() -> None:
    narrow, wide = np.array([1.0, -1.0]) / 2**0.5, np.array([1.0, 1.0]) / 2**0.5
    cov = 0.01 * np.outer(narrow, narrow) + 4.0 * np.outer(wide, wide)
    task = LinearRegression(cov, noise_variance=0.1, query_covariance=np.eye(2))
    read = np.append(narrow, 0.0)[None]
    head = Factored("softmax", read, 3 * read, np.array([[0.0, 0.0, 1.0]]), np.ones((1, 1)))
    with jax.enable_x64(True):
        exact = squared_output_gap(task, head, [4], points=2048)
    mean, error = simulated_output_gap(task, head, 4, 40_000)
    assert abs(exact.value[0] - mean) < 4 * np.hypot(error, exact.error[0])


@pytest.mark.parametrize("kernel", ["softmax", "linear"])
def test_mean_gradients_on_batches_are_those_of_prompts_drawn_in_numpy(kernel: str) -> None:
    """Textbook attention over prompts of a task whose query has a covariance of its own."""
    task, rng, length, prompts = (
        protocol_task("kms-as-coded", dim=2),
        np.random.default_rng(0),
        7,
        4000,
    )
    with jax.enable_x64(True):
        head = uniform_factors(2, key=jax.random.key(3), kernel=kernel)
        factors = [2 * leaf for leaf in jax.tree.leaves(head)[:4]]
        sharp = Factored(kernel, *factors, scale=0.5)
        found = batch_gradients(task, [sharp], length, key=jax.random.key(1), batch=100, batches=40)

        programs: list[str] = []

        def listen(event: str, duration_secs: float, **_: str | int) -> None:
            if event.endswith("backend_compile_duration"):
                programs.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            other = Factored(kernel, *(3 * leaf for leaf in factors), scale=0.5)
            batch_gradients(task, [other], length, key=jax.random.key(2), batch=100, batches=40)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
    assert not programs, "the program of the first call was not reused"

    w = np.sqrt(task.prior_variance) * rng.normal(size=(prompts, 2))
    x = rng.normal(size=(prompts, length + 1, 2))
    x[:, :-1] = x[:, :-1] @ np.linalg.cholesky(task.covariance).T
    x[:, -1] = x[:, -1] @ np.linalg.cholesky(task.query_covariance).T
    noise = np.sqrt(task.noise_variance) * rng.normal(size=(prompts, length + 1))
    y = np.einsum("nld,nd->nl", x, w) + noise
    tokens = np.concatenate([x[:, :-1], y[:, :-1, None]], axis=2)
    queries = np.pad(x[:, -1], ((0, 0), (0, 1)))

    def loss(factors: list[jax.Array], tokens, query, label) -> jax.Array:
        K, Q, V, O = factors  # noqa: E741
        scores = 0.5 * (tokens @ K.T) @ (Q @ query)
        weights = jax.nn.softmax(scores) if kernel == "softmax" else scores / length
        return 0.5 * ((O @ V @ (weights @ tokens))[-1] - label) ** 2

    with jax.enable_x64(True):
        slopes = jax.vmap(jax.grad(loss), (None, 0, 0, 0))(factors, tokens, queries, y[:, -1])
    rows = np.concatenate([np.reshape(slope, (prompts, -1)) for slope in slopes], axis=1)
    means = [(part.mean(axis=0), part.std(axis=0) / len(part) ** 0.5) for part in (found[0], rows)]
    distance = np.abs(means[0][0] - means[1][0])
    assert (distance <= 5 * np.hypot(means[0][1], means[1][1]) + 1e-12).all()
    assert np.linalg.norm(means[1][1]) < 0.2 * np.linalg.norm(means[1][0])


def test_gradients_on_large_batches_are_those_of_the_population() -> None:
    task = protocol_task("identity", dim=2)
    with jax.enable_x64(True):
        pair = [uniform_factors(2, key=jax.random.key(0), kernel=k) for k in ("softmax", "linear")]
        exact = population_gradient_gap(task, pair, 3)
        found = same_batch_gradient_gap(
            task, pair, 3, key=jax.random.key(1), batch=20_000, batches=24
        )
    # The gap of a batch exceeds that of the population by the variance of the difference.
    excess = found.value - float(exact.value)
    assert -4 * found.error < excess < 0.1 * float(exact.value) + 4 * found.error
    assert found.error < 0.02 * float(exact.value)


def test_the_critical_rate_is_two_over_the_largest_curvature_at_balanced_factors() -> None:
    d, task = 5, protocol_task("identity")
    scale = 1 / np.sqrt(d + 1)
    a = 1 / np.sqrt(d * np.sqrt(d + 1))
    root = np.sqrt(a / scale) * np.eye(d)
    vector = np.eye(d + 1)[0] / np.sqrt(a)

    def error(factors: list[jax.Array]) -> jax.Array:
        K, Q, v, o = factors
        return task.prior_variance * jnp.sum(((o @ v) * scale * K.T @ Q - jnp.eye(d)) ** 2)

    with jax.enable_x64(True):
        flat, build = ravel_pytree([jnp.asarray(one) for one in (root, root, vector, vector)])
        slope = jax.grad(lambda x: error(build(x)))(flat)
        curvatures = np.linalg.eigvalsh(jax.hessian(lambda x: error(build(x)))(flat))
    assert np.abs(slope).max() < 1e-12
    assert np.sum(root**2) == pytest.approx(np.sum(vector**2))  # balanced, as the flow keeps it
    assert 2 / curvatures[-1] == pytest.approx(CRITICAL_RATE, rel=1e-12)


def test_the_block_start_in_factors_is_the_one_of_the_theory() -> None:
    with jax.enable_x64(True):
        merged = block_factors().merged()
    expected = np.diag([0.5] * 5 + [0.0])
    np.testing.assert_allclose(merged.key_query, expected, atol=1e-15)
    np.testing.assert_allclose(merged.value, [[0, 0, 0, 0, 0, 0.5]], atol=1e-15)


def made_up_curves() -> Flows:
    """Two starts of which the second is stuck with linear attention at the longest length."""
    fall = np.exp(-TIMES / 40.0)
    best = np.array([[0.7, 0.26, 0.12], [0.5, 0.16, 0.107]])
    errors = best[..., None, None] + (1.0 - best[..., None, None]) * fall * np.ones((2, 1))
    errors[1, 2, 1] += 0.08
    distances = np.array([5.0, 0.5, 0.05])[:, None, None] * np.ones((3, 2, TIMES.size))
    distances[2, 1] = 9.0
    return Flows(LENGTHS, errors, distances, distances.max(axis=-1), best, 0.1)


def made_up_ends() -> Ends:
    optimum = 0.1 + 6.5 / (LENGTHS + 6.5)
    softmax = 0.1 + 20.0 / (LENGTHS + 23.0)
    errors = np.array([softmax, optimum])
    return Ends(LENGTHS, errors, 0 * errors, optimum, 0.1 + 0.5 / LENGTHS, 0.1)


def claim_module(name: str):
    return importlib.import_module(CLAIMS[name.replace("_", "-")].decide.__module__)


def verdict(name: str) -> str:
    return decide(CLAIMS[name], Setting()).verdict


def with_made_up(monkeypatch: pytest.MonkeyPatch, module: str, **functions: object) -> None:
    for name, value in functions.items():
        monkeypatch.setattr(claim_module(module), name, lambda *_, value=value: value)


def test_a_start_converges_within_a_tenth_of_the_least_excess() -> None:
    found = made_up_curves()
    assert found.converged.sum() == found.converged.size - 1
    assert not found.converged[1, 2, 1]
    assert found.shown == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "holds"),
        ({"errors": [[0.45, 0.15, 0.104], [0.494, 0.161, 0.1065]]}, "does not hold"),
        ({"ridge": np.array([0.6, 0.2, 0.11])}, "does not hold"),
        ({"optimum": np.array([0.4, 0.15, 0.105])}, "does not hold"),
    ],
)
def test_claim_14_follows_the_order_of_the_curves(
    change: dict, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {name: np.asarray(value) for name, value in change.items()}
    found = dataclasses.replace(made_up_ends(), **changed)
    with_made_up(
        monkeypatch,
        "risk_against_length",
        ends=found,
        flow=SimpleNamespace(value=[0.5]),
        training_distance=0.01,
    )
    assert verdict("risk-against-length") == expected


def test_claim_14_notices_training_that_does_not_follow_the_flow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_made_up(
        monkeypatch,
        "risk_against_length",
        ends=made_up_ends(),
        flow=SimpleNamespace(value=[0.5]),
        training_distance=0.11,
    )
    assert verdict("risk-against-length") == "does not hold"


STARTS = 64
HALF = np.arange(STARTS) % 2 == 0


def made_up_ensemble() -> Flows:
    """Starts of which every other one is stuck with linear attention from L = 100 on."""
    lengths = np.array([10, 40, 100, 1000])
    best = np.array([[0.7, 0.4, 0.26, 0.12], [0.5, 0.24, 0.16, 0.107]])
    fall = np.exp(-ENSEMBLE_TIMES / 40.0)
    errors = best[..., None, None] + (1.0 - best[..., None, None]) * fall * np.ones((STARTS, 1))
    errors[:, 2:, ~HALF] += 0.08
    farthest = np.array([5.0, 1.0, 0.5, 0.05])[:, None] * np.ones(STARTS)
    farthest[2, ~HALF] = 2.0
    crossed = 9.0 * np.ones((4, STARTS))
    return Flows(lengths, errors, farthest[..., None], crossed, best, 0.1)


def test_claim_15_notices_trainings_that_part_with_the_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = made_up_ensemble()
    with_made_up(monkeypatch, "trainings_approach", ensemble=found)
    assert verdict("trainings-approach") == "holds with a change"
    every = dataclasses.replace(found, distances=found.distances[:, HALF].repeat(2, axis=1))
    with_made_up(monkeypatch, "trainings_approach", ensemble=every)
    assert verdict("trainings-approach") == "holds"
    apart = dataclasses.replace(found, distances=found.distances[::-1].copy())
    with_made_up(monkeypatch, "trainings_approach", ensemble=apart)
    assert verdict("trainings-approach") == "does not hold"
    blind = dataclasses.replace(found, crossed=found.farthest)
    with_made_up(monkeypatch, "trainings_approach", ensemble=blind)
    assert verdict("trainings-approach") == "not decidable here"


def test_claim_16_notices_slow_training(monkeypatch: pytest.MonkeyPatch) -> None:
    found = made_up_ensemble()
    with_made_up(monkeypatch, "fast_training", ensemble=found)
    assert verdict("fast-training") == "holds"
    best = found.best[..., None, None]
    slow = best + (found.errors - best).clip(0.0) ** 0.1
    slow[..., -1] = found.errors[..., -1]
    with_made_up(monkeypatch, "fast_training", ensemble=dataclasses.replace(found, errors=slow))
    assert verdict("fast-training") == "does not hold"
    at_once = found.errors.copy()
    at_once[..., 1:] = best
    with_made_up(monkeypatch, "fast_training", ensemble=dataclasses.replace(found, errors=at_once))
    assert verdict("fast-training") == "not decidable here"


def test_the_share_left_is_read_at_the_time_of_the_steps() -> None:
    found = made_up_ensemble()
    np.testing.assert_allclose(found.left_at(100_000)[..., HALF], np.exp(-5.0), rtol=1e-12)
    np.testing.assert_allclose(found.left_at(1_000)[..., HALF], np.exp(-0.05), rtol=1e-12)


def test_claim_17_notices_starts_that_never_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    found, shown = made_up_ensemble(), made_up_curves()
    with_made_up(monkeypatch, "random_starts", ensemble=found, curves=shown, _from_zero=1.1)
    assert verdict("random-starts") == "holds with a change"
    every = dataclasses.replace(found, errors=found.errors[:, :, HALF].repeat(2, axis=2))
    with_made_up(monkeypatch, "random_starts", ensemble=every)
    assert verdict("random-starts") == "holds"
    none = dataclasses.replace(found, errors=found.errors + 0.2)
    with_made_up(monkeypatch, "random_starts", ensemble=none)
    assert verdict("random-starts") == "does not hold"
    with_made_up(monkeypatch, "random_starts", ensemble=found)
    above = dataclasses.replace(shown, best=0.1 + 1.2 * (shown.best - 0.1))
    with_made_up(monkeypatch, "random_starts", curves=above)
    assert verdict("random-starts") == "does not hold"
    with_made_up(monkeypatch, "random_starts", curves=shown, _from_zero=0.11)
    assert verdict("random-starts") == "not decidable here"


def with_divergence(
    monkeypatch: pytest.MonkeyPatch, decisive: np.ndarray, safe: np.ndarray
) -> None:
    module = claim_module("stable_training")
    monkeypatch.setattr(
        module, "diverging", lambda _, rate, *__: decisive if rate == module.DECISIVE else safe
    )


@pytest.mark.parametrize(
    ("softmax", "linear", "expected"),
    [
        (1, 45, "holds with a change"),
        (0, 20, "holds with a change"),
        (0, 19, "does not hold"),
        (20, 0, "does not hold"),
        (64, 64, "does not hold"),
    ],
)
def test_claim_18_is_decided_by_the_starts_from_which_descent_diverges(
    softmax: int, linear: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = np.arange(STARTS)
    diverged, none = np.stack([starts < softmax, starts < linear]), np.zeros((2, STARTS), bool)
    with_made_up(monkeypatch, "stable_training", converging=~none)
    with_divergence(monkeypatch, diverged, none)
    assert verdict("stable-training") == expected


def test_claim_18_is_not_decidable_where_descent_diverges_at_safe_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    diverged = np.stack([np.zeros(STARTS, bool), np.ones(STARTS, bool)])
    with_made_up(monkeypatch, "stable_training", converging=np.ones((2, STARTS), bool))
    with_divergence(monkeypatch, diverged, diverged)
    assert verdict("stable-training") == "not decidable here"


def test_claim_18_holds_as_stated_where_softmax_converges_from_more_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = np.stack([np.ones(STARTS, bool), np.zeros(STARTS, bool)])
    with_made_up(monkeypatch, "stable_training", converging=more)
    with_divergence(monkeypatch, ~more, np.zeros((2, STARTS), bool))
    assert verdict("stable-training") == "holds"


def test_a_claim_on_training_is_not_decided_in_quick_mode() -> None:
    result = decide(CLAIMS["random-starts"], Setting(quick=True))
    assert result.verdict == "not decided in quick mode"
    assert result.as_expected
    assert not result.decided


@pytest.mark.usefixtures("x64")
def test_mild_starts_have_scores_of_mild_sharpness() -> None:
    """The condition of the docstring, on prompts drawn here from another generator."""
    setting, task = Setting(seed=5), protocol_task("kms-as-coded")
    numbers = mild_starts(setting, "kms-as-coded", 3)
    assert numbers != tuple(range(3))  # at this seed a start is left out
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400_000, 5)) @ np.linalg.cholesky(task.query_covariance).T
    w = np.sqrt(task.prior_variance) * rng.normal(size=x.shape)
    shares = []
    for start in range(max(numbers) + 1):
        U = np.asarray(random_start(setting, start, "softmax").merged().key_query, dtype=float)
        tilt = x @ U[:5, :5].T + (x @ U[5, :5])[:, None] * w
        squares = np.einsum("ni,ij,nj->n", tilt, task.covariance, tilt)
        squares += task.noise_variance * (x @ U[5, :5]) ** 2
        shares.append((np.exp(squares) > 10).mean())
    chosen = np.isin(np.arange(len(shares)), numbers)
    assert (np.array(shares)[chosen] < 2e-4).all()
    assert (np.array(shares)[~chosen] > 5e-5).all()


def made_up_gaps(exponents: tuple[float, float, float]) -> dict[str, np.ndarray]:
    """Return gaps of two starts that fall with the given powers of the length."""
    gaps = {}
    for name, power in zip(("output", "batch", "population"), exponents, strict=True):
        lengths = np.asarray(PROTOCOL_LENGTHS if name == "output" else (10, 30, 100, 300, 1000))
        gaps[name] = np.ones((2, 1)) * lengths.astype(float) ** power
        gaps[f"{name}_error"] = 0.05 * gaps[name]
    gaps["batch_log"], gaps["batch_log_error"] = np.log(gaps["batch"]), 0.05 + 0 * gaps["batch"]
    return gaps


@pytest.mark.parametrize(
    ("exponents", "expected"),
    [
        ((-1.0, -1.0, -2.0), "holds"),
        ((0.0, -1.0, -2.0), "does not hold"),
        ((-1.0, -1.5, -2.0), "does not hold"),
        ((-1.0, -1.0, -1.0), "does not hold"),
    ],
)
def test_claim_13_follows_the_slopes(
    exponents: tuple, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_made_up(
        monkeypatch,
        "gaps_at_the_start",
        start_gaps=made_up_gaps(exponents),
        _of_different_starts=0.0,
    )
    assert verdict("gaps-at-the-start") == expected


@pytest.mark.parametrize(
    ("factor", "expected"),
    [(3.0, "holds with a change"), (1.0, "does not hold")],
)
def test_claim_19_depends_on_the_law_as_coded(
    factor: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = made_up_ends()
    stretched = {
        name: 0.1 + factor * (getattr(found, name) - 0.1) for name in ("errors", "optimum")
    }
    coded = dataclasses.replace(found, **stretched)
    module = claim_module("anisotropic_training")
    monkeypatch.setattr(module, "ends", lambda _, law: coded if law.endswith("coded") else found)
    monkeypatch.setattr(module, "ensemble", lambda *_: made_up_ensemble())
    gaps = claim_module("gaps_at_the_start")
    monkeypatch.setattr(gaps, "start_gaps", lambda *_: made_up_gaps((-1.0, -1.0, -2.0)))
    assert verdict("anisotropic-training") == expected


def test_another_seed_has_other_starts() -> None:
    first, again, other = (
        random_start(Setting(seed=seed), 1, "softmax").key_weight for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


def test_a_population_gap_is_freed_of_the_noise_of_its_points() -> None:
    task = protocol_task("identity")
    starts = [random_start(Setting(), 0, kernel) for kernel in ("softmax", "linear")]
    gap = float(population_gradient_gap(task, starts, 1000, points=16).value)
    softmax, linear = (risk_gradient(start, task, 1000, points=16) for start in starts)
    square = sum(np.sum((softmax.value[name] - linear.value[name]) ** 2) for name in linear.value)
    noise = sum(
        np.sum(error**2) / 4 for error in softmax.error.values()
    )  # widened by Student's law
    assert gap == pytest.approx(square - noise, rel=1e-9)
    assert noise > 1e-6 * square


def test_the_control_of_random_starts_stays_at_the_saddle() -> None:
    # The prediction is zero there: the error is the variance of a label, |w|^2 + noise.
    found = claim_module("random_starts")._from_zero(Setting(quick=True))
    assert found == pytest.approx(1.0 + 0.1, rel=1e-9)
