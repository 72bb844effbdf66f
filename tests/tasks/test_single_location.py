"""Single-location regression: reference values, identities and simulated prompts."""

import math

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.tasks import SingleLocation


def test_reference_values() -> None:
    """From a second implementation with one token of another law as a part of the prompt."""
    task = SingleLocation(9.0)
    assert pl.bayes_risk(task, 100).mse == pytest.approx(0.4376941476, abs=6e-11)
    assert pl.risk(task.head(1.5), task, 100).mse == pytest.approx(0.5815995263, abs=6e-11)
    assert pl.bayes_risk(SingleLocation(25.0), 1e6).mse == pytest.approx(0.5626706572, abs=6e-11)


@pytest.mark.parametrize("signal", [0.5, 4.0, 36.0])
def test_at_the_bayes_temperature_the_error_is_one_minus_the_informative_weight(
    signal: float,
) -> None:
    """Nishimori's identity: E p_0 = E S_2 at beta = sqrt(nu), two different integrals."""
    task, lengths = SingleLocation(signal), [2, 3, 30, 1e5, 1e12]
    found = pl.risk(task.head(math.sqrt(signal)), task, lengths).mse
    np.testing.assert_allclose(found, pl.bayes_risk(task, lengths).mse, rtol=1e-10)


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_other_temperatures_are_worse(factor: float) -> None:
    task = SingleLocation(9.0)
    assert pl.risk(task.head(factor * 3.0), task, 50).value > pl.bayes_risk(task, 50).value


def test_simulated_prompts_have_this_risk() -> None:
    """The second head has an output scale and an exact risk by two integrals."""
    task = SingleLocation(4.0)
    scaled = pl.SoftmaxAttention([[1.5], [0.0]], [[0.0, 0.7]])
    for head, length in ((task.head(1.5), 12), (scaled, 12), (scaled, math.inf)):
        exact = pl.risk(head, task, length)
        found = pl.risk(head, task, length, kind="estimate", key=jax.random.key(0))
        assert exact.kind == ("limit" if length == math.inf else "exact")
        assert np.abs(found.value - exact.value) < 4.0 * found.error


def test_equal_weights_one_token_and_infinite_prompts() -> None:
    task = SingleLocation(4.0)
    np.testing.assert_allclose(pl.risk(task.head(0.0), task, [2, 5]).mse, [0.5, 0.8])
    assert pl.risk(task.head(1.0), task, 1).mse == 0.0
    assert pl.risk(task.head(1.0), task, math.inf).mse == 1.0


def test_two_tokens_by_one_integral() -> None:
    """1 - p_0 = 1 / (1 + e^d), d = beta (sqrt(nu) + N(0, 2)); the error is 2 (1 - p_0)^2."""
    d, step = np.linspace(-60.0, 60.0, 20001, retstep=True)
    share = step * np.exp(-((d - 3.0) ** 2) / (4.0 * 1.5**2)) / math.sqrt(4.0 * math.pi * 1.5**2)
    expected = 2.0 * share @ (1.0 / (1.0 + np.exp(d))) ** 2
    task = SingleLocation(4.0)
    assert pl.risk(task.head(1.5), task, 2).mse == pytest.approx(expected, rel=1e-12)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="`signal` must be positive and at most 1600, got 0"):
        SingleLocation(0.0)
    task = SingleLocation(1.0)
    for head, words in (
        (task.head(-1.0), "the inverse temperature is not between 0 and 40"),
        (pl.SoftmaxAttention([[1.0], [1.0]], [[0.0, 1.0]]), "scores depend on values"),
    ):
        with pytest.raises(pl.KindUnavailableError, match=words):
            pl.risk(head, task, 10, kind="exact")
