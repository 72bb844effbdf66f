r"""The mean square of what a finite prompt changes in parameter gradients.

A head reads $Vr$, $r$ = the tilted mean (softmax) or $E[z\langle z,t\rangle]$ (linear), and
$\partial r/\partial t = C$, the tilted covariance or the second moment. So the gradient in a value
matrix is made of $r$, and that in a score matrix of $C$: one factor per parameter is all it takes.
"""

import dataclasses

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._inputs import require_choice
from promptlimit.attention import AbstractAttention
from promptlimit.finite._array_types import Array, ArrayLike
from promptlimit.finite._asymptotic_moments import asymptotic_spread_error, none_claimed
from promptlimit.finite._components import gaussian_components
from promptlimit.finite._heads import Readout, readout
from promptlimit.finite._linear_moments import linear_spread_error
from promptlimit.finite._moment_rows import no_samples
from promptlimit.finite._prompt_moments import possible_kinds, rows_of_kind
from promptlimit.finite._requests import Request, checked_request, chosen_kind
from promptlimit.finite._simulation import (
    Stopping,
    gradient_batch,
    simulated,
    standard_error,
    stopping,
)
from promptlimit.finite._softmax_moments import gaussian_spread_error, whitened
from promptlimit.measures import AbstractMeasure
from promptlimit.results import GradientMoments, Kind


def gradient_moments(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    query: ArrayLike,
    length: ArrayLike,
    *,
    wrt: str,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    rtol: float | None = None,
    samples: int | None = None,
) -> GradientMoments:
    r"""Return $E\sum_i\|\nabla_\theta T_i[\hat\mu_L](z)-\nabla_\theta T_i[\mu](z)\|_F^2$.

    The sum over all outputs i, so the whole Jacobian: for `value` it is `output_dim` times
    $E|\hat m-m|^2$, the error of one output's gradient; for `key_query` it is
    $|z|^2E\|(\hat C-C)V^\top\|_F^2$. Derived in docs/finite.md.

    Exact for linear heads over any measure, and for softmax heads: value matrices wherever
    `prompt_moments` is exact, score matrices over Gaussian tokens, query outside.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token.
        query: $z$.
        length: $L$, one or an array.
        wrt: the name of a matrix of the attention: "key_query" or "value"; of a `Factored`,
            "key_weight", "query_weight", "value_weight" or "output".
        including_query: as for `prompt_moments`, and so the rest.
        kind: "auto", "exact", "asymptotic" or "estimate".
        key: randomness, for `estimate`.
        rtol: relative standard error at which an estimate stops.
        samples: the most prompts to simulate.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> tokens = pl.Gaussian([0.0], [[1.0]])
    >>> found = pl.gradient_moments(attention, tokens, [1.0], 100, wrt="key_query")
    >>> print(found.kind, found.value.round(10))
    exact 0.0948890142
    """
    request = checked_request(attention, measure, query, length, including_query=including_query)
    stop = stopping(rtol, samples)
    require_choice("wrt", wrt, attention.matrices())
    gradient = readout(attention, wrt)
    chosen = chosen_kind(request, kind, key, _possible_kinds(request, gradient))
    counts = no_samples(request.length)
    if chosen == "limit":
        value, error = np.zeros_like(request.length), np.zeros_like(request.length)
    elif chosen == "estimate" and key is not None:
        value, error, counts = _estimated(request, wrt, key, stop)
    elif gradient is None:
        raise AssertionError("only estimates exist for what is not one head")
    else:
        value, error = _computed(request, gradient, chosen, stop)
    shape = request.shape
    parts = (array.reshape(shape) for array in (request.length, value, error, counts))
    lengths, values, errors, numbers = parts
    return GradientMoments(lengths, values, wrt, chosen, errors, numbers)


def _possible_kinds(request: Request, gradient: Readout | None) -> tuple[Kind, ...]:
    if gradient is None:
        return ("estimate",)
    if gradient.left is None or gradient.head.kernel == "linear":
        return possible_kinds(request)
    components = gaussian_components(request.measure)
    if components is not None and components.is_gaussian and not request.including_query:
        return ("exact", "estimate", "asymptotic")
    return ("estimate", "asymptotic")


def _computed(
    request: Request, gradient: Readout, kind: Kind, stop: Stopping
) -> tuple[Array, Array]:
    """Return value and error of a kind that needs no simulation."""
    length, measure = request.length, request.measure
    head, left = gradient.head.at(request.query), gradient.left
    size = gradient.size(request.query)
    if left is None:
        rows = rows_of_kind(dataclasses.replace(request, head=head), kind, None, stop)
        return size * rows.mse, size * rows.error
    if head.kernel == "linear":
        own_token = request.own_token if kind == "exact" else None
        value = linear_spread_error(measure, left, head.value, length, own_token)
        error = np.zeros_like(length) if kind == "exact" else none_claimed(length)
    elif kind == "asymptotic":
        value = asymptotic_spread_error(head, measure, left, length)
        error = none_claimed(length)
    else:
        components = gaussian_components(measure)
        if components is None:
            raise AssertionError("exact gradients need Gaussian tokens")
        tokens = whitened(components, head.tilt)
        value, error = gaussian_spread_error(tokens, left, head.value, length)
    return size * value, size * error


def _estimated(
    request: Request, wrt: str, key: PRNGKeyArray, stop: Stopping
) -> tuple[Array, Array, np.ndarray]:
    """Return the mean square, its standard error and the number of prompts, length by length."""
    value, error = np.zeros_like(request.length), np.zeros_like(request.length)
    counts = no_samples(request.length)
    with jax.enable_x64(True):
        simulation = request.simulation(key)
        limit = simulation.attention.jacobian(simulation.measure, request.query, wrt=wrt)
        batch = gradient_batch(np.asarray(limit), wrt)
        for index in np.flatnonzero(np.isfinite(request.length)):
            (squares,) = simulated(simulation, float(request.length[index]), stop, batch)
            value[index], error[index] = squares.mean(), standard_error(squares)
            counts[index] = squares.size
    return value, error, counts
