"""The gradient of a risk in every matrix of an attention, with error bars."""

import math

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.results import RiskGradient
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._capabilities import (
    REPLICATES,
    AbstractExactRisk,
    AbstractObjective,
    Lengths,
)
from promptlimit.tasks._requests import checked_request
from promptlimit.tasks._simulation import Moments, simulated_gradient


def risk_gradient(
    attention: AbstractAttention,
    task: AbstractTask,
    lengths: Lengths,
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
        lengths: $L$, whole numbers from 1 to 1e30, or `math.inf`; one or many.
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
    with jax.enable_x64(True):
        request = checked_request(
            attention, task, lengths, kind=kind, key=key, points=points, samples=samples
        )
        if request.exact is None:
            found = [simulated_gradient(each, request.samples) for each in request.simulations]
            samples_used = [request.samples] * len(found)
        else:
            request.tabulate(request.exact)
            found = [_exact(request.attention, each, points) for each in request.exact]
            sets = [0 if each.is_closed_form else REPLICATES for each in request.exact]
            samples_used = [points * count for count in sets]
    shape = request.lengths.shape
    names = array_names(request.attention)
    value, error = (
        {
            name: np.stack(arrays).reshape(shape + arrays[0].shape)
            for name, *arrays in zip(names, *part, strict=True)
        }
        for part in zip(*found, strict=True)
    )
    if not shape:
        return RiskGradient(value, error, request.kind, request.lengths.item(), samples_used[0])
    counts = np.array(samples_used).reshape(shape)
    return RiskGradient(value, error, request.kind, request.lengths, counts)


def array_names(attention: AbstractAttention) -> list[str]:
    """Return the names of the arrays of an attention, "heads[0].value" for one inside another."""
    arrays = eqx.filter(attention, eqx.is_inexact_array)
    return [jtu.keystr(path).lstrip(".") for path, _ in jtu.tree_leaves_with_path(arrays)]


def _exact(attention: AbstractAttention, exact: AbstractExactRisk, points: int) -> Moments:
    risks = exact.replicates(attention, points)
    rows = zip(*(_slopes(attention, each) for each in risks), strict=True)
    stacked = [np.stack([np.asarray(one) for one in row]) for row in rows]
    if exact.is_closed_form:
        return [each[0] for each in stacked], [np.zeros_like(each[0]) for each in stacked]
    spread = [2 * each.std(axis=0, ddof=1) / math.sqrt(len(risks)) for each in stacked]
    return [each.mean(axis=0) for each in stacked], spread


@eqx.filter_jit
def _slopes(attention: AbstractAttention, risk: AbstractObjective) -> list[Array]:
    """Return the slopes of a risk in all matrices; its length is an array, or compiles anew."""
    return jax.tree.leaves(eqx.filter_grad(risk)(attention))
