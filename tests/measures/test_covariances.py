import numpy as np
import pytest

from promptlimit.errors import ArgumentError
from promptlimit.measures import ar1_covariance


@pytest.mark.parametrize("dim", [1, 2, 3, 40])
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.5, 0.99])
def test_the_inverse_is_tridiagonal_in_closed_form(dim, rho):
    r"""With $1+\rho^2$ on the diagonal, 1 at its ends, $-\rho$ next to it, over $1-\rho^2$."""
    diagonal = np.full(dim, 1.0 + rho**2)
    diagonal[[0, -1]] = 1.0 if dim > 1 else 1.0 - rho**2
    beside = np.full(dim - 1, -rho)
    inverse = (np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)) / (1.0 - rho**2)
    np.testing.assert_allclose(ar1_covariance(dim, rho) @ inverse, np.eye(dim), atol=1e-12)


def test_it_is_the_covariance_of_the_process():
    """Of x' = rho x + sqrt(1 - rho^2) g from the stationary law, a linear map of normals."""
    rho, dim = 0.7, 6
    steps = np.eye(dim) * np.sqrt(1.0 - rho**2)
    steps[0, 0] = 1.0
    for place in range(1, dim):
        steps[place] += rho * steps[place - 1]
    np.testing.assert_allclose(ar1_covariance(dim, rho), steps @ steps.T, rtol=1e-14)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0.5), "`dim` must be a whole number of at least 1, got 0."),
        ((2, 1.0), "`correlation` must be between -1 and 1, got 1.0."),
        ((2, np.nan), "`correlation` must be between -1 and 1, got nan."),
    ],
)
def test_what_gives_no_covariance_is_refused(arguments, words):
    with pytest.raises(ArgumentError) as caught:
        ar1_covariance(*arguments)
    assert str(caught.value) == words
