r"""Continuous depth: the limit of many thin residual layers, $z'=T[\mu_t](z)$.

A residual layer $z+\epsilon\,T[\mu](z)$ is one step of Euler's method. Over a Gaussian prompt
$N(m,G)$ attention is an affine map $z\mapsto Mz+c$, and the limit of thin layers is an ordinary
differential equation (Castin, Ablin, Carrillo and Peyré 2025),

    m' = M m + c,      G' = M G + G M',       softmax: M = sum_h V_h G U_h, c = sum_h V_h m,

with the key-query matrix U_h and the value matrix V_h of each head. If the heads are softmax and
every $V_h=v_hI$, then $G(t)=G_0(I-tBG_0)^{-1}$ with $B=\sum_hv_h(U_h+U_h^\top)$ (derived here). Let
$\lambda$ be the largest eigenvalue of $G_0^{1/2}BG_0^{1/2}$. If $\lambda>0$, the covariance becomes
infinite at $t^*=1/\lambda$ (a blow-up); otherwise it stays finite.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import ArrayLike, numpy_only
from promptlimit._inputs import float_array, in_double, require_choice
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical, Gaussian
from promptlimit.results import DepthFlow

Vector = NDArray[np.float64]

_METHODS = ("auto", "closed", "ode")
_BLOWN_UP = 1e6
_ROWS = 2**21


_FINEST, _COARSEST = 1e-13, 1e-3
"""The range of `rtol`. To estimate the error, the solver also runs with 100 times `rtol`."""


@numpy_only("Call it outside the compiled function and pass its result.")
def depth_flow(
    attention: AbstractAttention,
    prompt: AbstractMeasure,
    times: ArrayLike,
    *,
    method: str = "auto",
    rtol: float = 1e-9,
) -> DepthFlow:
    r"""Return the flow $\mu_t$ of a prompt through continuous depth, $z'=T[\mu_t](z)$.

    A `Gaussian` stays Gaussian, and its covariance may become infinite at a finite depth (a
    blow-up). A finite prompt does not blow up under softmax heads: under one head its tokens grow
    at most by the factor $e^{\|V\|t}$.

    Args:
        attention: $T$ at every depth: one or several heads without a residual, because each step
            adds the identity. Tokens, queries and outputs must have the same dimension.
        prompt: $\mu_0$, a `Gaussian` or an `Empirical`.
        times: the depths $t\ge0$, in increasing order.
        method: "closed" for the closed form of the covariance of a Gaussian, "ode" for a numerical
            solution, "auto" for the closed form if it exists.
        rtol: relative tolerance of the solver. `error` in the result is the difference from a
            second solution with 100 times this tolerance, and 0 for the closed form.

    >>> import numpy as np, promptlimit as pl
    >>> head = pl.SoftmaxAttention([[0.5]], [[1.0]])
    >>> flow = pl.depth_flow(head, pl.Gaussian([0.0], [[1.0]]), [0.0, 0.5, 0.9])
    >>> print(flow.cov[:, 0, 0].round(6), flow.blow_up)
    [ 1.  2. 10.] 1.0
    >>> tokens = pl.Empirical(np.linspace(-2, 2, 50)[:, None])
    >>> print(pl.depth_flow(head, tokens, [2.0]).blow_up)
    inf
    """
    require_choice("method", method, _METHODS)
    if not _FINEST <= rtol <= _COARSEST:
        raise ArgumentError(
            "rtol",
            f"must be between {_FINEST:g} and {_COARSEST:g}, got {rtol}. It is "
            "the relative error of the solver's steps.",
        )
    with jax.enable_x64(True):
        head = in_double(attention)
        when = np.asarray(float_array("times", times, rank=1), np.float64)
        law = _require_problem(head, in_double(prompt), when)
        heads = _heads(head)
        if isinstance(law, Empirical):
            return _token_flow(heads, law, when, rtol)
        start = _State(np.asarray(law.location), np.asarray(law.covariance))
    symmetric = _closed_matrix(heads)
    if symmetric is None or method == "ode":
        if method == "closed":
            raise ArgumentError(
                "attention",
                "must have softmax heads whose value matrices are multiples of the identity for "
                "method='closed', got other heads. Pass method='ode'.",
            )
        return _solved_flow(heads, start, when, rtol)
    return _closed_flow(heads, start, symmetric, when, rtol)


class _State(NamedTuple):
    """The mean and the covariance of a Gaussian."""

    mean: Vector
    cov: Vector


class _Head(NamedTuple):
    """The matrices U and V of a head, and whether the head is softmax."""

    key_query: Vector
    value: Vector
    softmax: bool


def _require_problem(
    attention: AbstractAttention, prompt: AbstractMeasure, times: Vector
) -> Gaussian | Empirical:
    """Return the prompt; raise an error if the arguments are not valid."""
    dims = (attention.token_dim, attention.query_dim, attention.output_dim)
    if not isinstance(prompt, Gaussian | Empirical):
        raise ArgumentError(
            "prompt",
            "must be a Gaussian or an Empirical measure in continuous depth, got "
            f"{type(prompt).__name__}. Pass Empirical(law.sample(...)) for another law.",
        )
    if set(dims) != {prompt.dim}:
        raise ArgumentError(
            "attention",
            f"must have inputs and outputs of dimension {prompt.dim}, as `prompt` has, "
            f"got tokens, queries and outputs of dimensions {dims}.",
        )
    if times.size == 0 or times[0] < 0 or (np.diff(times) <= 0).any():
        raise ArgumentError(
            "times", f"must be at least 0 and strictly increasing, got {times.tolist()}."
        )
    return prompt


def _heads(attention: AbstractAttention) -> list[_Head]:
    """Return the heads; raise an error if there are none or there is a residual."""
    heads = attention.as_heads()
    if heads is None or attention.residual_matrix() is not None:
        raise ArgumentError(
            "attention",
            "must consist of heads without a residual in continuous depth, got "
            f"{type(attention).__name__}. Pass a head or a MultiHead: each step adds the identity "
            "itself.",
        )
    return [
        _Head(np.asarray(one.key_query), np.asarray(one.value), one.kernel == "softmax")
        for one in heads
    ]


def _closed_matrix(heads: list[_Head]) -> Vector | None:
    """Return B of the module docstring if the covariance has a closed form, otherwise None."""
    dim = len(heads[0].key_query)
    scalar = all(np.array_equal(head.value, head.value[0, 0] * np.eye(dim)) for head in heads)
    if not scalar or not all(head.softmax for head in heads):
        return None
    return np.sum(
        [head.value[0, 0] * (head.key_query + head.key_query.T) for head in heads], axis=0
    )


def _motion(heads: list[_Head], state: _State) -> _State:
    """Return the derivatives m' and G' at a state (m, G)."""
    m, G = state
    M, c = np.zeros_like(G), np.zeros_like(m)
    for U, V, softmax in heads:
        M = M + V @ (G if softmax else G + np.outer(m, m)) @ U
        c = c + (V @ m if softmax else 0.0)
    return _State(M @ m + c, M @ G + G @ M.T)


def _closed_flow(
    heads: list[_Head], start: _State, symmetric: Vector, times: Vector, tolerance: float
) -> DepthFlow:
    r"""Return the flow, with the covariance in closed form and the mean from a numerical solution.

    $G(t)=A(I-tC)^{-1}A$ with $A=G_0^{1/2}$, $B$ = `symmetric` and $C=ABA$.
    """
    variances, axes = np.linalg.eigh(start.cov)
    root = (axes * np.sqrt(np.maximum(variances, 0.0))) @ axes.T
    rates, directions = np.linalg.eigh(root @ symmetric @ root)
    spread = root @ directions
    negligible = 1e-13 * float(np.abs(rates).max())
    blow_up = 1 / rates[-1] if rates[-1] > negligible else math.inf

    def cov(time: float) -> Vector:
        return (spread / (1 - time * rates)) @ spread.T

    before = times < blow_up
    covs = np.full((times.size, *start.cov.shape), np.nan)
    for place in np.flatnonzero(before):
        covs[place] = cov(times[place])
    means = np.full((times.size, start.mean.size), np.nan)
    means[before] = 0.0
    if start.mean.any():

        def motion(time: float, mean: Vector) -> Vector:
            return _motion(heads, _State(mean, cov(time))).mean

        means[before] = _integrated(motion, start.mean, times[before], tolerance)
    return DepthFlow(times, means, covs, np.zeros_like(covs), "limit", float(blow_up))


def _solved_flow(heads: list[_Head], start: _State, times: Vector, tolerance: float) -> DepthFlow:
    """Return the numerical solution until the norm of the covariance has grown by a factor of 1e6.

    Near a blow-up at $t^*$ this norm grows as $1/(t^*-t)$, so the norm divided by its derivative is
    the remaining time $t^*-t$.
    """
    dim = start.mean.size
    limit = _BLOWN_UP * max(float(np.linalg.norm(start.cov)), np.finfo(float).tiny)

    def motion(_: float, state: Vector) -> Vector:
        moved = _motion(heads, _State(state[:dim], state[dim:].reshape(dim, dim)))
        return np.concatenate([moved.mean, moved.cov.ravel()])

    def room(_: float, state: Vector) -> float:
        return limit - float(np.linalg.norm(state[dim:]))

    packed = np.concatenate([start.mean, start.cov.ravel()])
    fine, end = _solved(motion, packed, times, tolerance, room)
    rough, _ = _solved(motion, packed, times, 100 * tolerance, room)
    blow_up = None
    if end is not None:
        time, state = end
        growth, size = motion(time, state)[dim:], float(np.linalg.norm(state[dim:]))
        blow_up = time + size**2 / float(growth @ state[dim:])
    covs = fine[:, dim:].reshape(-1, dim, dim)
    error = np.abs(fine - rough)[:, dim:].reshape(covs.shape)
    return DepthFlow(times, fine[:, :dim], covs, error, "limit", blow_up)


def _token_flow(
    heads: list[_Head], prompt: Empirical, times: Vector, tolerance: float
) -> DepthFlow:
    tokens = np.asarray(prompt.tokens)
    weights = np.full(len(tokens), 1 / len(tokens))
    if prompt.weights is not None:
        weights = np.asarray(prompt.weights)

    def motion(_: float, flat: Vector) -> Vector:
        z = flat.reshape(tokens.shape)
        return sum((_read(head, z, weights) for head in heads), np.zeros_like(z)).ravel()

    fine = _integrated(motion, tokens.ravel(), times, tolerance)
    rough = _integrated(motion, tokens.ravel(), times, 100 * tolerance)
    path, other = (one.reshape(-1, *tokens.shape) for one in (fine, rough))
    means, covs = _token_moments(path, weights)
    error = np.abs(covs - _token_moments(other, weights)[1])
    bounded = all(head.softmax for head in heads)
    return DepthFlow(times, means, covs, error, "exact", math.inf if bounded else None, path)


def _token_moments(path: Vector, weights: Vector) -> tuple[Vector, Vector]:
    means = np.einsum("l,nld->nd", weights, path)
    apart = path - means[:, None]
    return means, np.einsum("l,nli,nlj->nij", weights, apart, apart)


def _read(head: _Head, tokens: Vector, weights: Vector) -> Vector:
    """Return the output of a head at every token, in blocks of rows of the score matrix."""
    U, V, softmax = head
    if not softmax:
        return tokens @ (V @ ((tokens.T * weights) @ tokens) @ U).T
    rows = max(1, _ROWS // len(tokens))
    parts = []
    for start in range(0, len(tokens), rows):
        scores = tokens[start : start + rows] @ U.T @ tokens.T
        scores -= scores.max(axis=1, keepdims=True)
        weighed = np.exp(scores, out=scores)
        weighed *= weights
        parts.append(weighed @ tokens / weighed.sum(axis=1, keepdims=True))
    return np.concatenate(parts) @ V.T


def _integrated(
    motion: Callable[[float, Vector], Vector], start: Vector, times: Vector, tolerance: float
) -> Vector:
    """Return the solution at all times, [n, size]."""
    return _solved(motion, start, times, tolerance, None)[0]


@dataclasses.dataclass(frozen=True)
class _End:
    """The scipy event that ends a flow when `room` reaches zero."""

    room: Callable[[float, Vector], float]
    terminal: bool = True

    def __call__(self, time: float, state: Vector) -> float:
        return self.room(time, state)


def _solved(
    motion: Callable[[float, Vector], Vector],
    start: Vector,
    times: Vector,
    tolerance: float,
    room: Callable[[float, Vector], float] | None,
) -> tuple[Vector, tuple[float, Vector] | None]:
    """Return the solution at all times, and the time and state at which `room` reaches zero.

    The solution is NaN after that time. The time and state are None if `room` stays positive.
    """
    from scipy.integrate import solve_ivp  # noqa: PLC0415  # half a second to load

    states = np.full((times.size, start.size), np.nan)
    states[times == 0] = start
    if times.size == 0 or times[-1] == 0:
        return states, None
    solution = solve_ivp(
        motion,
        (0.0, float(times[-1])),
        start,
        method="DOP853",
        t_eval=times,
        events=None if room is None else _End(room),
        rtol=tolerance,
        atol=tolerance * max(float(np.abs(start).max()), np.finfo(float).tiny),
    )
    if solution.status < 0:
        raise ArithmeticError(
            f"the flow must be integrated up to time {times[-1]:g}, but the steps of the solver "
            "became too small before: tokens of linear heads may grow without bound. Pass smaller "
            "`times`."
        )
    states[: len(solution.t)] = np.reshape(solution.y, (start.size, -1)).T
    if solution.status == 1:
        return states, (float(solution.t_events[0][0]), solution.y_events[0][0])
    return states, None
