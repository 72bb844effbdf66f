"""The risk of an attention on an in-context task."""

import jax
from jaxtyping import PRNGKeyArray

from promptlimit._inputs import Number
from promptlimit.attention import AbstractAttention
from promptlimit.finite import in_double
from promptlimit.results import Risk
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._heads import Regressor
from promptlimit.tasks._polynomials import linear_risk
from promptlimit.tasks._quadrature import softmax_risk
from promptlimit.tasks._radial import radial_risk
from promptlimit.tasks._requests import checked_request
from promptlimit.tasks._simulation import Simulation, simulated_risk


def risk(
    attention: AbstractAttention,
    task: AbstractTask,
    length: Number,
    *,
    tolerance: float = 1e-3,
    points: int | None = None,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    kind: str = "auto",
) -> Risk:
    r"""Return the mean loss of an attention on a task over prompts of L tokens.

    On `LinearRegression` it is half the mean squared error of the last output coordinate, and no
    prompt is simulated:

    | attention | length | how |
    |---|---|---|
    | linear | any | closed form |
    | softmax | infinite | the same closed form |
    | softmax | finite | mean over $(w, x_q)$; one integral where law and head are isotropic |

    Several heads, and other tasks, are simulated with a `key`. For the risk as a function to
    differentiate, see `risk_function` and `risk_gradient`.

    Args:
        attention: $T$; its last output coordinate predicts.
        task: the law of prompts and queries, and the loss.
        length: $L$, a whole number from 1 to 1e30, or `math.inf`.
        tolerance: the relative error at which points are enough.
        points: a power of two in each of eight replicates, in place of the tolerance.
        key: randomness, where prompts are simulated.
        samples: prompts to simulate, 16384 when None.
        kind: "auto", "exact" or "estimate".

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression(jnp.eye(5), noise_variance=0.1, prior_variance=0.2)
    >>> diagonal = jnp.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    >>> head = pl.SoftmaxAttention(0.854 * jnp.diag(diagonal), 0.7789 * jnp.eye(6))
    >>> found = pl.risk(head, task, 10)
    >>> print(found.kind, f"{found.mse:.5f}")
    exact 0.70891
    """
    if not 0.0 < tolerance < 1.0:
        raise ValueError(
            f"`tolerance` must lie between 0 and 1, got {tolerance}. It is a relative error."
        )
    request = checked_request(
        attention, task, length, kind=kind, key=key, points=points, samples=samples
    )
    with jax.enable_x64(True):
        mover = in_double(attention)
        if request.regression is not None:
            head = Regressor.of(mover, request.regression, request.length)
            value, error, count = _exact(head, tolerance, request.points)
        elif request.key is not None:
            count = request.samples
            simulation = Simulation(mover, in_double(task), request.length, request.key)
            value, error = simulated_risk(simulation, count)
        else:
            raise AssertionError("a risk is exact or simulated with a key")
    return Risk(value, error, request.kind, request.length, count)


def _exact(head: Regressor, tolerance: float, points: int | None) -> tuple[float, float, int]:
    """Return value, error and number of nodes of the risk of one head on Gaussian regression."""
    if head.is_polynomial:
        return float(linear_risk(head.task, head.length, head.key_query, head.value_row)), 0.0, 0
    found = radial_risk(head, tolerance) if points is None else None
    if found is None:
        found = softmax_risk(head, tolerance=tolerance, points=points)
    return found.value, found.error, found.points
