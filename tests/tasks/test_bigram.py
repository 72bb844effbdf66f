"""The induction head: enumeration of all prompts, closed forms, reference values, simulation."""

import itertools
import math

import jax
import numpy as np
import pytest

import promptlimit as pl
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
    task = InContextBigram(len(matrix), transitions=matrix)
    for length in (2, 6):
        found = pl.risk(task.head(beta, sink=sink), task, length)
        assert found.mse == pytest.approx(enumerated(matrix, length, beta, sink), rel=1e-12)


def test_reference_values() -> None:
    task = InContextBigram(2, 1.0)
    given = InContextBigram(2, 1.0, P)
    bayes = pl.risk(given.head(), given, [20, 1000]).mse
    np.testing.assert_allclose(bayes, [0.0346755189737, 7.423736928e-4], rtol=2e-10)
    soft = pl.risk(given.head(3.0), given, [20, 1000]).mse
    np.testing.assert_allclose(soft, [0.0514496295, 0.00209721874], rtol=2e-9)
    np.testing.assert_allclose(
        pl.bayes_risk(task, [8, 50]).mse, [0.0585816641, 0.0123350259], rtol=4e-9
    )
    np.testing.assert_allclose(
        pl.risk(task.head(sink=0.5), task, [8, 50]).mse, [0.07312559, 0.0130816476], rtol=4e-9
    )


def test_the_bayes_sink_is_the_best() -> None:
    task = InContextBigram(2, 0.7)
    best = pl.bayes_risk(task, 12).value
    assert all(
        pl.risk(task.head(sink=f * task.bayes_sink), task, 12).value > best for f in (0.9, 1.1)
    )


def test_counting_and_integrating_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    task = InContextBigram(3, transitions=THREE)
    counted = pl.risk(task.head(sink=2.0), task, [10, 300]).mse
    monkeypatch.setattr(engine, "_MOST_COUNTED", 1)
    integrated = pl.risk(task.head(sink=2.0), task, [10, 300]).mse
    np.testing.assert_allclose(counted, integrated, rtol=1e-11)


def test_long_prompts_have_the_variance_of_counts() -> None:
    """L E|T - P_q|^2 tends to sum_q (1 - |P_q|^2): q is seen L pi_q times and asked with pi_q."""
    task = InContextBigram(3, transitions=THREE)
    found = pl.risk(task.head(), task, 200_000).mse * 200_000
    assert found == pytest.approx(3.0 - (THREE**2).sum(), rel=1e-3)


def test_sobol_points_cover_the_average_over_two_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    task = InContextBigram(2, 1.0)
    exact = pl.bayes_risk(task, 20).value
    monkeypatch.setattr(engine, "_MOST_EXACT", 1)
    found = pl.bayes_risk(task, 20, points=64)
    assert found.error > 0.0
    assert np.abs(found.value - exact) < 4.0 * found.error


def test_simulated_prompts_have_this_risk() -> None:
    task, length, count = InContextBigram(3, 0.5), 10, 4000
    keys = jax.vmap(lambda key: jax.random.split(key, 3))(
        jax.random.split(jax.random.key(0), count)
    )
    prompts, targets = jax.vmap(lambda own: task.draw_prompt(length, keys=own))(keys)
    symbols = np.asarray(prompts.tokens).reshape(count, length - 1, 2, 3).argmax(axis=3)
    paths = np.concatenate([symbols[:, :, 0], symbols[:, -1:, 1]], axis=1)
    np.testing.assert_array_equal(paths[:, 1:], symbols[:, :, 1])
    np.testing.assert_array_equal(paths[:, -1], np.asarray(targets)[:, :3].argmax(axis=1))
    errors = []
    for path, row in zip(paths, np.asarray(targets)[:, 3:], strict=True):
        apart = head(3, tuple(path), math.inf, task.bayes_sink) - row
        errors.append(apart @ apart)
    found = pl.bayes_risk(task, length, points=64)
    spread = math.hypot(np.std(errors) / math.sqrt(count), found.mse_error)
    assert abs(np.mean(errors) - found.mse) < 4.0 * spread
    simulated = pl.risk(task.head(), task, length, kind="estimate", key=jax.random.key(1))
    assert np.abs(simulated.value - found.value) < 4.0 * math.hypot(simulated.error, found.error)


def test_the_gap_to_infinite_prompts_is_the_distance_from_the_transitions() -> None:
    """Both outputs are at the last symbol of the finite prompt; the infinite one is $P_q$."""
    task = InContextBigram(3, transitions=THREE)
    gap = pl.output_gap(task.head(), task, lengths=[4], key=jax.random.key(0))
    exact = pl.risk(task.head(), task, 4).mse
    assert gap.kind == "estimate"
    assert abs(gap.value[0] - exact) < 4.0 * gap.error[0] < 0.2 * exact


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda task: task.head(sink=0.0),
            "`sink` must be finite and at least 0, and positive at infinite",
        ),
        (lambda task: task.head(0.0), "`inverse_temperature` must be positive, got 0"),
        (
            lambda task: pl.risk(task.head(), task, 1, kind="exact"),
            r"a length is not between 2 and 1e\+06",
        ),
        (
            lambda task: pl.risk(task.head(), task, 1, key=jax.random.key(0)),
            "`lengths` must be at least 2, got 1: L symbols form L - 1 tokens",
        ),
        (
            lambda task: InContextBigram(2, transitions=[[1.0]]),
            r"`transitions` must have shape \[2, 2\]",
        ),
        (
            lambda task: InContextBigram(2, transitions=[[1.0, 1.0], [0.5, 0.5]]),
            "`transitions` must have rows",
        ),
        (
            lambda task: pl.risk(pl.SoftmaxAttention(np.eye(4, 2), np.eye(1, 4)), task, 5),
            r"`attention` must have at least 2 output coordinates \(one per label\), got 1",
        ),
        (
            lambda task: InContextBigram(1),
            "`symbols` must be a whole number of at least 2, got 1",
        ),
    ],
)
def test_wrong_arguments_are_refused(build, words: str) -> None:
    with pytest.raises((ValueError, pl.KindUnavailableError), match=words):
        build(InContextBigram(2))
