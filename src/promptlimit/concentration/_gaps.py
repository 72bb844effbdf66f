"""The distance between finite and infinite prompts, averaged over queries, in every kind."""

import numpy as np
from jaxtyping import PRNGKeyArray

from promptlimit._inputs import require_choice
from promptlimit.attention import AbstractAttention
from promptlimit.concentration._bound_gaps import bound_gap
from promptlimit.concentration._estimated_gaps import estimated_gap
from promptlimit.concentration._exact_gaps import exact_gap, gaussian_gap, leading_gap
from promptlimit.concentration._queries import points_for_squares
from promptlimit.concentration._requests import (
    GapRequest,
    checked_request,
    chosen_kind,
    increasing_lengths,
)
from promptlimit.finite import Array, ArrayLike, gradient_moments, prompt_moments, stopping
from promptlimit.measures import AbstractMeasure
from promptlimit.results import GapCurve, Kind

TOLERANCE = 1e-7
"""Relative change, when its points are doubled, at which a quadrature over queries stops."""


def output_gap(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
    lengths: ArrayLike,
    *,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    sub_gaussian: float | None = None,
) -> GapCurve:
    r"""Return $E\|T[\hat\mu_L](z)-T[\mu](z)\|^2$ over prompts and queries, for every length.

    Proposition 3.1 bounds it by $c_1\sigma^6\ln L\,L^{-c_2/\sigma^2}$ with unknown constants; here
    it is the number itself.

    | kind | for | how |
    |---|---|---|
    | `exact` | softmax, Gaussian tokens, Gaussian or listed queries | one-dimensional integral |
    | | softmax, mixtures and atoms, listed queries | quadrature, query by query |
    | | linear, any tokens, any queries | closed form |
    | `asymptotic` | leading order in 1/L; infinite for Gaussian queries when $\tau^2\ge1/2$ | |
    | `bound` | softmax, sub-Gaussian tokens | explicit constants, docs/bounds.md |
    | `estimate` | anything | prompts simulated; prefixes of one prompt serve all lengths |

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token.
        queries: the law of the query: a measure, or an array [n, query_dim] of equal shares.
        lengths: $L$, increasing: whole numbers from 1 to 1e30, or `math.inf`.
        including_query: whether the query is one more token of its prompt (Remark 3.2).
        kind: "auto" (exact where possible, else estimate), or one of the above.
        key: randomness, for `estimate`.
        samples: prompts to simulate, 4096 when None.
        sub_gaussian: for `bound`: s with $Ee^{\langle a,z-m\rangle}\le e^{s^2|a|^2/2}$; known for
            the measures of this library, and not used for Gaussian tokens, which are whitened.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> gap = pl.output_gap(attention, normal, normal, [10, 1000, 1e12])
    >>> print(gap.kind, gap.value)
    exact [3.19156163e-01 1.48542052e-02 5.53775683e-08]
    """
    request = checked_request(
        attention, measure, queries, including_query=including_query, sub_gaussian=sub_gaussian
    )
    return _curve(request, increasing_lengths(lengths), kind, key, samples)


def gradient_gap(
    attention: AbstractAttention,
    measure: AbstractMeasure,
    queries: AbstractMeasure | ArrayLike,
    lengths: ArrayLike,
    *,
    wrt: str,
    including_query: bool = False,
    kind: str = "auto",
    key: PRNGKeyArray | None = None,
    samples: int | None = None,
    sub_gaussian: float | None = None,
) -> GapCurve:
    r"""Return $E\sum_i\|\nabla_\theta T_i[\hat\mu_L](z)-\nabla_\theta T_i[\mu](z)\|_F^2$.

    The gap of Proposition 3.4, of the whole Jacobian, over prompts and queries.

    Args:
        attention: $T$.
        measure: $\mu$, the law of a token.
        queries: the law of the query: a measure, or an array [n, query_dim].
        lengths: $L$, increasing.
        wrt: $\theta$: "key_query" or "value"; of a `Factored`, "key_weight", "query_weight",
            "value_weight" or "output".
        including_query: as for `output_gap`, and so the rest.
        kind: "auto", "exact", "asymptotic", "bound" or "estimate".
        key: randomness, for `estimate`.
        samples: prompts to simulate.
        sub_gaussian: the tokens' constant, for `bound`.

    >>> import promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[0.5]], value=[[1.0]])
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> gap = pl.gradient_gap(attention, normal, normal, [10, 1000], wrt="key_query")
    >>> print(gap.kind, gap.value)
    exact [0.2481419  0.01459002]
    """
    require_choice("wrt", wrt, attention.matrices())
    request = checked_request(
        attention,
        measure,
        queries,
        wrt=wrt,
        including_query=including_query,
        sub_gaussian=sub_gaussian,
    )
    return _curve(request, increasing_lengths(lengths), kind, key, samples)


def _curve(
    request: GapRequest,
    lengths: Array,
    kind: str,
    key: PRNGKeyArray | None,
    samples: int | None,
) -> GapCurve:
    chosen = chosen_kind(request, kind, key)
    stopping(None, samples)
    finite = lengths[np.isfinite(lengths)]
    value, error = np.zeros(lengths.size), np.zeros(lengths.size)
    if chosen == "estimate" and key is not None and finite.size:
        return _estimated_curve(request, lengths, finite, key, samples)
    if finite.size:
        value[: finite.size], error[: finite.size] = gap_values(request, finite, chosen)
    size = request.limit_square()
    scale = float("nan") if size is None else size
    return GapCurve(lengths, value, error, chosen, request.wrt, scale, None, 0)


def _estimated_curve(
    request: GapRequest, lengths: Array, finite: Array, key: PRNGKeyArray, samples: int | None
) -> GapCurve:
    found = estimated_gap(
        request.attention,
        request.measure,
        request.queries,
        finite,
        wrt=request.wrt,
        including_query=request.including_query,
        key=key,
        samples=samples,
    )
    beyond = lengths.size - finite.size
    value, cov = np.pad(found.value, (0, beyond)), np.pad(found.cov, (0, beyond))
    known = request.limit_square()
    scale = found.limit_square if known is None else known
    error = np.sqrt(np.diag(cov))
    return GapCurve(lengths, value, error, "estimate", request.wrt, scale, cov, found.samples)


def gap_values(
    request: GapRequest, lengths: Array, kind: Kind, *, tolerance: float = TOLERANCE
) -> tuple[Array, Array]:
    """Return the gaps at finite lengths, and their errors, of a kind without simulation."""
    if kind == "bound":
        return bound_gap(request, lengths), np.zeros(lengths.size)
    read, components = request.read, request.components
    if read is None:
        raise AssertionError("only estimates exist for what is not one head")
    by_sharpness = not request.is_linear and request.has_gaussian_tokens
    if by_sharpness and not request.including_query and components is not None:
        gap = gaussian_gap(read, components)
        if kind == "exact":
            return exact_gap(gap, request.queries, lengths, tolerance=tolerance)
        return leading_gap(gap, request.queries, lengths), np.full(lengths.size, np.nan)
    return _query_by_query(request, lengths, kind)


def _query_by_query(request: GapRequest, lengths: Array, kind: Kind) -> tuple[Array, Array]:
    r"""Average the moments at single queries.

    The gap of linear attention is a quadratic form in the query, so that for it any law of queries
    can be replaced by points with the same second moments.
    """
    queries = request.queries
    points, weights = queries.points, queries.weights
    if not queries.are_points:
        points, weights = points_for_squares(queries)
    value, error = np.zeros(lengths.size), np.zeros(lengths.size)
    for point, weight in zip(points, weights, strict=True):
        given = (request.attention, request.measure, point, lengths)
        inside = request.including_query
        if request.wrt is None:
            moments = prompt_moments(*given, kind=kind, including_query=inside)
            found = moments.mse
        else:
            moments = gradient_moments(*given, wrt=request.wrt, kind=kind, including_query=inside)
            found = moments.value
        value, error = value + weight * found, error + weight * moments.error
    return value, error
