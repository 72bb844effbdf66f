"""The cost of a training, at measured rates that are given."""

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.dynamics import _cost

TASK = pl.LinearRegression(np.eye(2))
LENGTHS = [10, 40, 25]
PLAN = pl.TrainingPlan(steps=500, batch=8)


@pytest.fixture
def asked(monkeypatch):
    """Take 0.01 s plus 0.001 s per token for a step, and list the lengths and numbers of seeds."""
    calls: list[tuple[int, int]] = []

    def rate(start, task, length, plan, *, key, seeds):
        calls.append((length, seeds))
        return 1.0 / (0.01 + 0.001 * length)

    monkeypatch.setattr(_cost, "_rate", rate)
    return calls


def cost(lengths=LENGTHS, starts=1, **options):
    def start(key):
        return pl.dynamics.uniform_factors(2, key=key)

    given = [start] * starts
    return pl.dynamics.training_cost(given, TASK, lengths, PLAN, key=jax.random.key(1), **options)


@pytest.mark.parametrize(("seeds", "timed", "share"), [(3, 3, 1.0), (8, 8, 1.0), (20, 8, 2.5)])
def test_times_are_linear_in_the_length_and_proportional_to_seeds_that_are_not_timed(
    asked, seeds, timed, share
):
    found = cost(seeds=seeds)
    expected = 500 * share * (0.01 + 0.001 * np.array(LENGTHS))
    np.testing.assert_allclose(found.seconds, expected, rtol=1e-12)
    assert asked == [(10, timed), (40, timed)]
    assert found.runs == seeds


def test_finished_lengths_take_no_time(asked):
    found = cost(finished={40.0})
    np.testing.assert_allclose(found.seconds, [10.0, 0.0, 17.5])
    assert found.finished.tolist() == [False, True, False]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices hold the whole batch")
@pytest.mark.parametrize(("starts", "seeds"), [(1, 1), (2, 5)])
def test_memory_grows_with_two_numbers_per_token_and_coordinate_or_run(asked, starts, seeds):
    """Tokens of two covariates and a label have three coordinates."""
    sizes = [2**20, 2**21, 2**22]
    found = [cost([10, size], starts, seeds=seeds).megabytes for size in sizes]
    per_token = 2 * 8 / 1e6 * (3 + starts * seeds)
    np.testing.assert_allclose(np.diff(found), per_token * np.diff(sizes), rtol=1e-9)
    assert cost([10], starts, seeds=seeds).megabytes == pytest.approx(
        found[0] - per_token * (2**20 - 2**14), rel=1e-9
    )


def test_memory_of_a_small_training_is_that_of_a_process_with_jax(asked):
    """Such a process holds a few hundred megabytes."""
    assert 300.0 < cost([10]).megabytes < 700.0
