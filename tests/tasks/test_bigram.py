"""The induction head: enumeration of all prompts, closed forms, reference values, simulation."""

import itertools
import math

import jax
import numpy as np
import pytest

from promptlimit.tasks import InContextBigram
from promptlimit.tasks import _bigram as engine

P = np.array([[0.8, 0.2], [0.3, 0.7]])
THREE = np.array([[0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.1, 0.4, 0.5]])


def head(symbols: int, path: tuple[int, ...], beta: float, sink: float) -> np.ndarray:
    """The output of the induction head, in plain NumPy."""
    weights = [1.0 if i == path[-1] else math.exp(-beta) for i in path[:-1]]
    rows = [np.eye(symbols)[j] for j in path[1:]]
    rows, weights = [*rows, np.full(symbols, 1.0 / symbols)], [*weights, sink]
    return np.average(rows, axis=0, weights=weights)


def enumerated(matrix: np.ndarray, length: int, beta: float, sink: float) -> float:
    total, symbols = 0.0, len(matrix)
    for path in itertools.product(range(symbols), repeat=length):
        steps = itertools.pairwise(path)
        chance = np.prod([matrix[i, j] for i, j in steps]) / symbols
        apart = head(symbols, path, beta, sink) - matrix[path[-1]]
        total += chance * apart @ apart
    return total


@pytest.mark.parametrize("matrix", [P, THREE], ids=["two", "three"])
@pytest.mark.parametrize(
    ("beta", "sink"), [(math.inf, 1.5), (2.0, 0.0), (1.0, 0.7)], ids=["counts", "soft", "both"]
)
def test_given_transitions_agree_with_all_prompts_summed(
    matrix: np.ndarray, beta: float, sink: float
) -> None:
    task = InContextBigram(len(matrix))
    for length in (2, 6):
        found = task.risk(length, inverse_temperature=beta, sink=sink, transitions=matrix)
        assert found.mse == pytest.approx(enumerated(matrix, length, beta, sink), rel=1e-12)


def test_reference_values() -> None:
    task = InContextBigram(2, 1.0)
    bayes = task.risk([20, 1000], transitions=P).mse
    np.testing.assert_allclose(bayes, [0.0346755189737, 7.423736928e-4], rtol=2e-10)
    soft = task.risk([20, 1000], inverse_temperature=3.0, transitions=P).mse
    np.testing.assert_allclose(soft, [0.0514496295, 0.00209721874], rtol=2e-9)
    np.testing.assert_allclose(
        task.bayes_risk([8, 50]).mse, [0.0585816641, 0.0123350259], rtol=4e-9
    )
    np.testing.assert_allclose(
        task.risk([8, 50], sink=0.5).mse, [0.07312559, 0.0130816476], rtol=4e-9
    )


def test_the_bayes_sink_is_the_best() -> None:
    task = InContextBigram(2, 0.7)
    best = task.bayes_risk(12).value
    assert all(task.risk(12, sink=f * task.bayes_sink).value > best for f in (0.9, 1.1))


def test_counting_and_integrating_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    task = InContextBigram(3)
    counted = task.risk([10, 300], sink=2.0, transitions=THREE).mse
    monkeypatch.setattr(engine, "_MOST_COUNTED", 1)
    integrated = task.risk([10, 300], sink=2.0, transitions=THREE).mse
    np.testing.assert_allclose(counted, integrated, rtol=1e-11)


def test_long_prompts_have_the_variance_of_counts() -> None:
    """L E|T - P_q|^2 tends to sum_q (1 - |P_q|^2): q is seen L pi_q times and asked with pi_q."""
    found = InContextBigram(3).risk(200_000, transitions=THREE).mse * 200_000
    assert found == pytest.approx(3.0 - (THREE**2).sum(), rel=1e-3)


def test_sobol_points_cover_the_average_over_two_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    task = InContextBigram(2, 1.0)
    exact = task.bayes_risk(20).value
    monkeypatch.setattr(engine, "_MOST_EXACT", 1)
    found = task.bayes_risk(20, points=64)
    assert found.error > 0.0
    assert np.abs(found.value - exact) < 4.0 * found.error


def test_simulated_prompts_have_this_risk() -> None:
    task, length, count = InContextBigram(3, 0.5), 10, 4000
    keys = jax.random.split(jax.random.key(0), count)
    paths, matrices = jax.vmap(lambda key: task.sample(length, key=key))(keys)
    errors = []
    for path, matrix in zip(np.asarray(paths), np.asarray(matrices), strict=True):
        apart = head(3, tuple(path), math.inf, task.bayes_sink) - matrix[path[-1]]
        errors.append(apart @ apart)
    found = task.bayes_risk(length, points=64)
    spread = math.hypot(np.std(errors) / math.sqrt(count), found.mse_error)
    assert abs(np.mean(errors) - found.mse) < 4.0 * spread


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sink": 0.0}, "`sink` must be finite and at least 0, and positive at infinite"),
        ({"inverse_temperature": 0.0}, "`inverse_temperature` must be positive, got 0"),
        ({"lengths": 1}, r"`lengths` must be between 2 and 1e\+06, got 1"),
        ({"transitions": [[1.0]]}, r"`transitions` must have shape \[2, 2\]"),
        ({"transitions": [[1.0, 1.0], [0.5, 0.5]]}, "`transitions` must have rows"),
    ],
)
def test_wrong_arguments_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        InContextBigram(2).risk(**({"lengths": 10} | options))
    with pytest.raises(ValueError, match="`symbols` must be a whole number of at least 2, got 1"):
        InContextBigram(1)
