"""The risk of an attention on an in-context task."""

import jax
from jaxtyping import PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.results import Risk
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._capabilities import Lengths
from promptlimit.tasks._requests import assembled, checked_request
from promptlimit.tasks._simulation import simulated_risk


def risk(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
    *,
    tolerance: float = 1e-3,
    points: int | None = None,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    kind: str = "auto",
) -> Risk:
    r"""Return the mean loss of an attention on a task over prompts of L tokens.

    Where the task knows its `exact_risk`, no prompt is simulated. On `LinearRegression` it is half
    the mean squared error of the last output coordinate:

    | attention | length | how |
    |---|---|---|
    | linear | any | closed form |
    | softmax | infinite | the same closed form |
    | softmax | finite | mean over $(w, x_q)$; one integral where law and head are isotropic |

    Several heads, and tasks that know no more than how to draw, are simulated with a `key`. For the
    risk as a function to differentiate, see `risk_function` and `risk_gradient`.

    Args:
        attention: $T$; on regressions its last output coordinate predicts.
        task: the law of prompts and queries, and the loss.
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
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
    >>> print(pl.risk(head, task, [10, 100]).mse.round(3))
    [0.709 0.379]
    """
    if not 0.0 < tolerance < 1.0:
        raise ValueError(
            f"`tolerance` must lie between 0 and 1, got {tolerance}. It is a relative error."
        )
    with jax.enable_x64(True):
        request = checked_request(
            attention, task, lengths, kind=kind, key=key, points=points, samples=samples
        )
        if request.exact is None:
            found = [simulated_risk(each, request.samples) for each in request.simulations]
        else:
            request.tabulate(request.exact)
            found = [
                each.value(request.attention, tolerance=tolerance, points=request.points)
                for each in request.exact
            ]
    return assembled(found, request.lengths, simulated=request.exact is None)
