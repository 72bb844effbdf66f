"""The gradient of a risk in every matrix of an attention, with error bars."""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from promptlimit._inputs import Number
from promptlimit.attention import AbstractAttention
from promptlimit.finite import in_double
from promptlimit.results import RiskGradient
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._heads import merged_head
from promptlimit.tasks._polynomials import linear_risk
from promptlimit.tasks._quadrature import replicate_risks
from promptlimit.tasks._regression import LinearRegression
from promptlimit.tasks._requests import checked_request
from promptlimit.tasks._simulation import Moments, Simulation, simulated_gradient


def risk_gradient(
    attention: AbstractAttention,
    task: AbstractTask,
    length: Number,
    *,
    points: int = 4096,
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    kind: str = "auto",
) -> RiskGradient:
    r"""Return the gradient of `risk` in the matrices of an attention, and the error of each entry.

    Args:
        attention: $T$; all its matrices are differentiated.
        task: the law of prompts and queries, and the loss.
        length: $L$, a whole number from 1 to 1e30, or `math.inf`.
        points: a power of two, in each of eight replicates whose spread is the error.
        key: randomness, where prompts are simulated.
        samples: prompts to simulate, 16384 when None.
        kind: "auto", "exact" or "estimate".

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> task = pl.LinearRegression([[1.0]])
    >>> head = pl.LinearAttention(jnp.diag(jnp.array([1.0, 0.0])), jnp.diag(jnp.array([0.0, 1.0])))
    >>> found = pl.risk_gradient(head, task, 4)
    >>> print(found.kind, found.value["value"][-1])
    exact [0.  0.5]
    """
    request = checked_request(
        attention, task, length, kind=kind, key=key, points=points, samples=samples
    )
    with jax.enable_x64(True):
        mover = in_double(attention)
        if request.regression is not None:
            (means, errors), count = _exact(mover, request.regression, request.length, points)
        elif request.key is not None:
            count = request.samples
            simulation = Simulation(mover, in_double(task), request.length, request.key)
            means, errors = simulated_gradient(simulation, count)
        else:
            raise AssertionError("a gradient is exact or simulated with a key")
    names = _names(mover)
    value, error = dict(zip(names, means, strict=True)), dict(zip(names, errors, strict=True))
    return RiskGradient(value, error, request.kind, request.length, count)


def _names(attention: AbstractAttention) -> list[str]:
    arrays = eqx.filter(attention, eqx.is_inexact_array)
    return [jtu.keystr(path).lstrip(".") for path, _ in jtu.tree_leaves_with_path(arrays)]


def _exact(
    attention: AbstractAttention, task: LinearRegression, length: float, points: int
) -> tuple[Moments, int]:
    kernel, key_query, _ = merged_head(attention)
    if kernel == "linear" or math.isinf(length):
        polynomial = jtu.Partial(linear_risk, task, jnp.asarray(length))
        found = [np.asarray(each) for each in _slopes(attention, polynomial)]
        return (found, [np.zeros_like(each) for each in found]), 0
    risks = replicate_risks(task, length, key_query, points)
    rows = zip(*(_slopes(attention, each) for each in risks), strict=True)
    stacked = [np.stack([np.asarray(one) for one in row]) for row in rows]
    spread = [2 * each.std(axis=0, ddof=1) / math.sqrt(len(risks)) for each in stacked]
    return ([each.mean(axis=0) for each in stacked], spread), points * len(risks)


@eqx.filter_jit
def _slopes(attention: AbstractAttention, risk: Callable[[Array, Array], Array]) -> list[Array]:
    """Return the slopes of a risk in all matrices; its length is an array, or compiles anew."""

    def of(moved: AbstractAttention) -> Array:
        _, key_query, value = merged_head(moved)
        return risk(key_query, value[-1])

    return jax.tree.leaves(eqx.filter_grad(of)(attention))
