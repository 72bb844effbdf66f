"""Moments of attention over prompts of L tokens: exact, to leading order, or simulated."""

import dataclasses

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.finite._array_types import Array, ArrayLike
from promptlimit.finite._asymptotic_moments import asymptotic_rows, none_claimed
from promptlimit.finite._components import gaussian_components
from promptlimit.finite._linear_moments import linear_rows
from promptlimit.finite._moment_rows import MomentRows, rows_at_infinity
from promptlimit.finite._precision import in_double
from promptlimit.finite._requests import Request, checked_request, chosen_kind
from promptlimit.finite._simulation import (
    Stopping,
    output_batch,
    simulated,
    standard_error,
    stopping,
)
from promptlimit.finite._softmax_moments import softmax_rows
from promptlimit.measures import AbstractMeasure
from promptlimit.results import Kind, PromptMoments


def prompt_moments(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    query: ArrayLike,
    length: ArrayLike,
    *,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    rtol: float | None = None,
    samples: int | None = None,
) -> PromptMoments:
    r"""Return mean, covariance and mean squared error of $T[\hat\mu_L](z)$ over prompts.

    The prompts are L independent tokens from a measure $\mu$, and the error is against the infinite
    prompt $T[\mu](z)$. For softmax over $N(m,\Gamma)$ a finite prompt shrinks the limit:
    $E\,T_L=Vm+(1-E\,S_2)V\Gamma Uz$. Derived in docs/finite.md.

    | kind | for | how |
    |---|---|---|
    | `exact` | softmax: Gaussians, atoms, their mixtures, products and affine images | quadrature |
    | | linear: any measure | closed form |
    | `asymptotic` | one head, any measure | leading order in 1/L |
    | `estimate` | any attention, any measure | prompts simulated |

    `auto` is `exact` where possible and `estimate` elsewhere. Several heads are `estimate` only.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token.
        query: $z$, shape `[query_dim]`.
        length: $L$, one or an array: whole numbers from 1 to 1e30, or `math.inf`.
        including_query: whether the query is one more token of its prompt (Remark 3.2).
        kind: "auto", "exact", "asymptotic" or "estimate".
        key: randomness, for `estimate`.
        rtol: relative standard error of the mean squared error at which an estimate stops; 0.01
            unless `samples` is given.
        samples: the most prompts to simulate, 65536 when None; all of them when `rtol` is None.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> moments = pl.prompt_moments(attention, pl.Gaussian([0.0], [[1.0]]), [1.0], [2, 100, 1e18])
    >>> print(moments.kind, moments.mean[:2, 0].round(8), moments.mse[:2].round(8))
    exact [0.36316185 0.97446152] [1.07282946 0.04658838]
    """
    request = checked_request(attention, measure, query, length, including_query=including_query)
    stop = stopping(rtol, samples)
    chosen = chosen_kind(request, kind, key, possible_kinds(request))
    return _result(request, rows_of_kind(request, chosen, key, stop), chosen)


def possible_kinds(request: Request) -> tuple[Kind, ...]:
    """Return the kinds of moments that can be had of an attention over a measure."""
    if request.head is None:
        return ("estimate",)
    linear = request.head.kernel == "linear"
    if linear or gaussian_components(request.measure) is not None:
        return ("exact", "estimate", "asymptotic")
    return ("estimate", "asymptotic")


def rows_of_kind(
    request: Request, kind: Kind, key: PRNGKeyArray | None, stop: Stopping
) -> MomentRows:
    """Return the moments of a kind that is possible."""
    head, own_token = request.head, request.own_token
    if kind == "limit":
        return rows_at_infinity(limit_output(request), request.length.size)
    if kind == "estimate" and key is not None:
        return _estimated_rows(request, key, stop)
    if head is None:
        raise AssertionError("only estimates exist for what is not one head")
    if head.kernel == "linear":
        return _linear_rows(request, kind)
    if kind == "asymptotic":
        return asymptotic_rows(head, request.measure, request.length, own_token)
    components = gaussian_components(request.measure)
    if components is None:
        raise AssertionError("exact moments need a mixture of Gaussians")
    return softmax_rows(head, components, request.length, own_token)


def _linear_rows(request: Request, kind: Kind) -> MomentRows:
    """Return the exact moments of a linear head, or what is left of them at large L."""
    if request.head is None:
        raise AssertionError("linear moments need one head")
    rows = linear_rows(request.head, request.measure, request.length, request.own_token)
    if kind == "exact":
        return rows
    apart = linear_rows(request.head, request.measure, request.length, None)
    bias = rows.bias
    if request.own_token is not None:
        bias = bias * ((request.length + 1.0) / request.length)[:, None]
    return dataclasses.replace(apart, bias=bias, error=none_claimed(request.length))


def limit_output(request: Request) -> Array:
    r"""Return $T[\mu](z)$ in double precision."""
    with jax.enable_x64(True):
        attention, measure = in_double(request.attention), in_double(request.measure)
        return np.asarray(attention(measure, request.query), dtype=np.float64)


def _estimated_rows(request: Request, key: PRNGKeyArray, stop: Stopping) -> MomentRows:
    """Return the moments of simulated prompts, length by length, each with the whole key."""
    limit = limit_output(request)
    softmax = request.head is not None and request.head.kernel == "softmax"
    tilt = request.head.tilt if softmax and request.head is not None else None
    with jax.enable_x64(True):
        simulation = request.simulation(key)
        rows = [rows_at_infinity(limit, 0)]
        rows += [
            rows_at_infinity(limit, 1)
            if np.isinf(one)
            else _estimated_row(
                limit, *simulated(simulation, float(one), stop, output_batch(limit, tilt))
            )
            for one in request.length
        ]
    stacked = {
        field.name: np.concatenate([getattr(row, field.name) for row in rows])
        for field in dataclasses.fields(MomentRows)
        if field.name != "limit"
    }
    result = MomentRows(limit=limit, **stacked)
    if request.head is not None and not softmax:
        tokens = request.length + float(request.including_query)
        result = dataclasses.replace(result, participation=1.0 / tokens)
    return result


def _estimated_row(limit: Array, squares: Array, deviation: Array, parts: Array) -> MomentRows:
    centred = deviation - deviation.mean(axis=0)
    return MomentRows(
        limit=limit,
        bias=deviation.mean(axis=0)[None],
        cov=(centred.T @ centred / (squares.size - 1))[None],
        mse=np.array([squares.mean()]),
        participation=np.array([parts.mean()]),
        error=np.array([standard_error(squares)]),
        samples=np.array([squares.size]),
    )


def _result(request: Request, rows: MomentRows, kind: Kind) -> PromptMoments:
    with np.errstate(divide="ignore"):
        tokens = 1.0 / rows.participation
    shape = request.shape
    return PromptMoments(
        length=request.length.reshape(shape),
        mean=(rows.limit + rows.bias).reshape(*shape, rows.limit.size),
        bias=rows.bias.reshape(*shape, rows.limit.size),
        cov=rows.cov.reshape(*shape, *rows.cov.shape[1:]),
        mse=rows.mse.reshape(shape),
        effective_tokens=tokens.reshape(shape),
        limit=rows.limit,
        kind=kind,
        error=rows.error.reshape(shape),
        samples=rows.samples.reshape(shape),
    )
