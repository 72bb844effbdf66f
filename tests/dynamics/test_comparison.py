"""Gaps between two risks on a ball of parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.dynamics import _comparison
from promptlimit.dynamics._comparison import _ball_gaps
from promptlimit.tasks import AbstractObjective


class _Squares(AbstractObjective):
    """The sum of the squares of U, plus a multiple of that of the row of V."""

    row: float

    def __call__(self, attention):
        return jnp.sum(attention.key_query**2) + self.row * jnp.sum(attention.value**2)


@pytest.mark.usefixtures("x64")
def test_gaps_on_a_ball_read_key_query_and_value_row_off_a_vector():
    where = np.random.default_rng(0).normal(size=(4, 12))  # U is 3 x 3, the row of V has 3 entries
    row = np.linalg.norm(where[:, 9:], axis=1)
    risk, gradient, curvature = _ball_gaps(_Squares(3.0), _Squares(0.5), jnp.asarray(where))
    assert_allclose(risk, 2.5 * row**2, rtol=1e-12)
    assert_allclose(gradient, 5.0 * row, rtol=1e-12)
    assert_allclose(curvature, 2.0, rtol=1e-12)


@pytest.mark.parametrize(("draws", "radii"), [(1, [1.0]), (4, [1.0, 0.4, 1.0, 1.0])])
def test_half_of_the_points_of_a_ball_are_on_its_surface(monkeypatch, draws, radii):
    """The finite risk is 3 |v|^2 and the limit 0, so the gaps depend on the largest |v|."""
    risks = {7.0: _Squares(3.0), np.inf: _Squares(0.0)}
    monkeypatch.setattr(
        _comparison,
        "exact_objectives",
        lambda problem, points: lambda reach: risks[problem.lengths.item()] if points else None,
    )
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        _comparison,
        "_ball_gaps",
        lambda *pair_and_points: seen.append(pair_and_points[2]) or _ball_gaps(*pair_and_points),
    )
    key = jax.random.key(5)
    with jax.enable_x64(True):
        drawn = np.asarray(jax.random.normal(key, (draws, 6)))
    points = 0.9 * np.array(radii)[:, None] * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    row = np.linalg.norm(points[:, 4:], axis=1).max()
    task = pl.LinearRegression([[0.8]])
    found = pl.dynamics.ball_gap(task, 7, 0.9, key=key, draws=draws)  # the default `points`
    assert_allclose(seen[0], points, rtol=1e-12)
    assert found.risk == pytest.approx(3.0 * row**2, rel=1e-12)
    assert found.gradient == pytest.approx(6.0 * row, rel=1e-12)
    assert (found.radius, found.lipschitz) == (0.9, pytest.approx(2.0))


REGRESSION = pl.LinearRegression(np.eye(2))
BIGRAM = pl.tasks.InContextBigram(2)
HEAD = pl.dynamics.block_start(REGRESSION, 0.5, kernel="linear")
OPTIONS = {
    "alpha": lambda bad: pl.dynamics.block_start(REGRESSION, bad),
    "alpha of the limit": lambda bad: pl.dynamics.block_limit(REGRESSION, bad),
    "rtol": lambda bad: pl.risk(HEAD, REGRESSION, 3, rtol=bad),
    "rtol of the excess": lambda bad: pl.bayes_excess(HEAD, REGRESSION, 3, rtol=bad),
    "learning_rate": lambda bad: pl.dynamics.flow_time(3, bad),
    "steps": lambda bad: pl.dynamics.flow_time(bad, 0.1),
    "solver": lambda bad: pl.dynamics.FlowPlan([1.0], solver=bad),
    "dim": lambda bad: pl.dynamics.uniform_factors(bad, key=jax.random.key(0)),
    "excess": lambda bad: pl.dynamics.smallest_length(HEAD, REGRESSION, bad),
    "ratio": lambda bad: pl.dynamics.smallest_length(HEAD, REGRESSION, 0.1, ratio=bad),
    "radius": lambda bad: pl.dynamics.ball_gap(REGRESSION, 9, bad, key=jax.random.key(0)),
    "signal": pl.tasks.SingleLocation,
    "concentration": lambda bad: pl.tasks.InContextBigram(2, bad),
    "inverse_temperature": BIGRAM.head,
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("bad", ["a", [0.1, 0.2], 1j])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_are_not_numbers_are_named(name, bad):
    with pytest.raises(pl.errors.ArgumentError, match=f"^`{name.split()[0]}` must "):
        OPTIONS[name](bad)


@pytest.mark.parametrize("bad", [0.5, float("nan")])
def test_the_ratio_of_a_search_is_at_least_one(bad):
    with pytest.raises(pl.errors.ArgumentError, match=r"^`ratio` must be at least 1, got"):
        pl.dynamics.smallest_length(HEAD, REGRESSION, 0.1, ratio=bad)
