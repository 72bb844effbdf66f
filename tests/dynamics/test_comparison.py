"""Gaps between two risks on a ball of parameters."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

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
