r"""Exact moments over prompts whose tokens come from a mixture of Gaussians, atoms included.

With $Z = \sum_l e^{s_l}$ and $Z^{-k} = \frac1{\Gamma(k)}\int_0^\infty \tau^{k-1}e^{-\tau Z}d\tau$,
$\tau = e^u$, the tokens of a prompt separate, and one integral over u holds every length. Derived
in docs/finite.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from promptlimit.finite._accuracy import AccuracyError
from promptlimit.finite._array_types import Array, ArrayLike
from promptlimit.finite._mixture_inputs import TiltedMixture, checked_inputs
from promptlimit.finite._mixture_transforms import (
    LARGEST_EXPONENT,
    STEP,
    MixtureTransforms,
    intervals,
    mixture_transforms,
)

TOLERANCE = 1e-9
"""Largest relative error, measured by the code itself, that is returned."""

_BLOCK_ENTRIES = 2**18
_EPSILON = float(np.finfo(np.float64).eps)
_OPERATIONS = 64.0
_UNDERFLOW = 1e-280
_NEGLIGIBLE_LOG = -300.0
_SMALLEST_LOG = -1e6


@dataclasses.dataclass(frozen=True)
class MixtureMoments:
    r"""Moments over prompts of $T_L$, the attention output, one row per length.

    Attributes:
        mean: $E T_L$, [n, e].
        bias: $E T_L - T$, [n, e], to its own relative accuracy where `mean - limit` has none left.
        cov: covariance of $T_L$ over prompts, [n, e, e].
        mse: $E|T_L - T|^2$, [n].
        participation: expected sum of squared attention weights, own token included, [n].
        error: measured relative error, [n], of `participation`; of `mse`; of `cov` relative to its
            trace, or to `mse` / 1000 where that is larger; of `bias` relative to the sum of what
            the components contribute to it, which may cancel.
        limit: $T = V\nabla\Lambda(t)$, [e].
    """

    mean: Array
    bias: Array
    cov: Array
    mse: Array
    participation: Array
    error: Array
    limit: Array


def mixture_moments(  # noqa: PLR0917 - the symbols of the formula, in its order
    weights: ArrayLike,
    means: ArrayLike,
    covs: ArrayLike | None,
    tilt: ArrayLike,
    value: ArrayLike,
    lengths: ArrayLike,
    *,
    query: ArrayLike | None = None,
) -> MixtureMoments:
    r"""Return the moments of $T_L = \sum_l p_l V z_l$, $p_l \propto e^{\langle t, z_l\rangle}$.

    The tokens $z_l$ are drawn from $\sum_c w_c N(m_c, \Gamma_c)$, and $T$ is the limit of $T_L$.
    With $y = Vz - T$, $x = \langle t, z\rangle + u$, $\phi = E e^{-e^x}$, $v = E[y e^x e^{-e^x}]$,

        E(T_L - T)           = L int v phi^{L-1} du
        E(T_L - T)(T_L - T)' = L int E[y y' e^{2x} exp(-e^x)] phi^{L-1} du
                               + L(L-1) int v v' phi^{L-2} du
        E sum p^2            = L int E[e^{2x} exp(-e^x)] phi^{L-1} du.

    A query inside the prompt (Remark 3.2) is one more token, of score $s_0 = \langle t, q\rangle$:
    with $c = e^{u+s_0}$ every integrand gains $e^{-c}$, and with $r = Vq - T$ the own token adds
    $r\int c e^{-c}\phi^L$, $rr'\int c^2e^{-c}\phi^L$, $L\int ce^{-c}(rv' + vr')\phi^{L-1}$.

    Cost does not depend on the lengths. The error is measured: the weights must sum to one, and two
    interleaved rules must agree.

    Args:
        weights: probabilities of the components, [c].
        means: their means, [c, d].
        covs: their covariances, [c, d, d], singular allowed; None when every component is an atom.
        tilt: $t = Uz$, [d].
        value: $V$, [e, d].
        lengths: numbers of tokens drawn, [n]: whole numbers from 1 to 1e30, or `math.inf`.
        query: the query, [d], when it is itself a token of the prompt.

    Raises:
        ValueError: an argument is not as described.
        AccuracyError: the measured error exceeds `TOLERANCE`.

    >>> coin = mixture_moments([0.5, 0.5], [[0.0], [1.0]], None, [0.0], [[1.0]], [1, 4, 1e6])
    >>> coin.mse.round(12).tolist()
    [0.25, 0.0625, 2.5e-07]
    """
    mixture, length = checked_inputs(
        weights=weights,
        means=means,
        covs=covs,
        tilt=tilt,
        value=value,
        lengths=lengths,
        query=query,
    )
    n, e = length.size, mixture.limit.size
    moments = _Moments.zeros(n, e)
    error = np.zeros(n)
    single = (length == 1.0) & (mixture.own_score is None)
    quadrature = np.isfinite(length) & ~single
    if single.any():
        moments.put(single, _one_token(mixture))
    if quadrature.any():
        by_quadrature, error[quadrature] = _by_quadrature(mixture, length[quadrature])
        moments.put(quadrature, by_quadrature)
    return MixtureMoments(
        mean=mixture.limit + moments.bias,
        bias=moments.bias,
        cov=moments.cov,
        mse=np.trace(moments.second, axis1=1, axis2=2),
        participation=moments.participation,
        error=error,
        limit=mixture.limit,
    )


@dataclasses.dataclass(frozen=True)
class _Moments:
    """Moments about the limit, one row per length; `cov` is centred, `mass` is the total weight."""

    mass: Array
    participation: Array
    bias: Array
    bias_size: Array
    second: Array
    cov: Array

    @staticmethod
    def zeros(n: int, e: int) -> _Moments:
        shapes = [(n,), (n,), (n, e), (n,), (n, e, e), (n, e, e)]
        return _Moments(*(np.zeros(shape) for shape in shapes))

    def put(self, rows: NDArray[np.bool_], moments: _Moments) -> None:
        """Write the moments of some lengths into their rows."""
        for mine, theirs in _paired_fields(self, moments):
            mine[rows] = theirs


def _paired_fields(first: _Moments, second: _Moments) -> Iterator[tuple[Array, Array]]:
    for field in dataclasses.fields(_Moments):
        yield getattr(first, field.name), getattr(second, field.name)


def _one_token(mixture: TiltedMixture) -> _Moments:
    r"""Return the moments of $y = Vz - T$ itself: the prompt of one token, of weight one."""
    centred = mixture.offset - mixture.sharpness[:, None] * mixture.along
    bias = mixture.weights @ centred
    square = np.stack([mixture.weights, np.zeros_like(mixture.weights), mixture.weights])
    shifted = dataclasses.replace(mixture, offset=centred)
    second, cov = (_weighted_squares(shifted, square, centre) for centre in (0.0 * bias, bias))
    ones, size = np.ones(1), np.array([float(np.linalg.norm(bias))])
    return _Moments(ones, ones, bias[None], size, second[None], cov[None])


def _by_quadrature(mixture: TiltedMixture, length: Array) -> tuple[_Moments, Array]:
    """Return the moments and their measured error from two interleaved trapezoidal rules.

    The mean of the two is the rule of half the step; half their difference is the error of either,
    that of the sums over g included. Rounding is added: of a few operations, of scores that are
    large, and of a covariance small beside the squared bias.
    """
    even, odd = (_trapezoid(mixture, length, origin) for origin in (0.0, 0.5 * STEP))
    fine = _Moments(*(0.5 * (a + b) for a, b in _paired_fields(even, odd)))
    half = _Moments(*(0.5 * np.abs(a - b) for a, b in _paired_fields(even, odd)))
    mse = np.trace(fine.second, axis1=1, axis2=2)
    spread = np.maximum(np.trace(fine.cov, axis1=1, axis2=2), 1e-3 * mse)
    error = np.maximum.reduce(
        [
            np.abs(fine.mass - 1.0),
            _relative(half.participation, fine.participation),
            _relative(half.bias.max(axis=1), fine.bias_size),
            _relative(half.second.max(axis=(1, 2)), mse),
            _relative(half.cov.max(axis=(1, 2)) + 16.0 * _EPSILON * mse, spread),
        ]
    )
    error = error + _EPSILON * (_OPERATIONS + mixture.score_size)
    worst = int(np.argmax(error))
    if not error[worst] <= TOLERANCE:
        raise AccuracyError(
            f"`error` must stay below {TOLERANCE:g}, got {error[worst]:.1e} at length "
            f"{length[worst]:g}. Rescale the scores, or estimate by Monte Carlo."
        )
    return fine, error


def _relative(difference: Array, scale: Array) -> Array:
    """Return difference / scale, with 0 / 0 = 0 and no claim on digits lost to underflow."""
    return difference / np.maximum(scale, _UNDERFLOW)


@dataclasses.dataclass(frozen=True)
class _Nodes:
    r"""What the integrands need at every node: $\log\phi$, $E a_1$, $v$ and its size, $\log c$.

    `squares` holds $w_cL\int E_c[h^ja_2]\phi^{L-1}$, j = 0, 1, 2, the squared weights: [n, 3, c].
    """

    log_phi: Array
    mass: Array
    vector: Array
    vector_size: Array
    log_own: Array | None
    squares: Array


def _trapezoid(mixture: TiltedMixture, length: Array, origin: float) -> _Moments:
    """Return the moments by the rule with nodes u = origin + STEP k."""
    nodes = _nodes(mixture, length, origin)
    one, two = _token_factors(length, nodes.log_phi, nodes.log_own)
    token_mass, token_bias = one @ nodes.mass, one @ nodes.vector
    own_weight, own_square, one_own = _own_factors(length, nodes, one)
    own_value = mixture.own_value
    bias = token_bias + own_weight[:, None] * own_value
    second, cov = np.empty((2, length.size, own_value.size, own_value.size))
    for n in range(length.size):
        factors = one_own[n], two[n], float(own_square[n])
        own_left = token_mass[n] * own_value - token_bias[n]
        about_limit = {"centre": np.zeros_like(own_value), "own_value": own_value}
        about_mean = {"centre": bias[n], "own_value": own_left}
        second[n] = _second_moment(mixture, nodes, n, factors, **about_limit)
        cov[n] = _second_moment(mixture, nodes, n, factors, **about_mean)
    return _Moments(
        mass=token_mass + own_weight,
        participation=nodes.squares[:, 0].sum(axis=1) + own_square,
        bias=bias,
        bias_size=one @ nodes.vector_size + own_weight * np.linalg.norm(own_value),
        second=second,
        cov=cov,
    )


def _nodes(mixture: TiltedMixture, length: Array, origin: float) -> _Nodes:
    """Evaluate the transforms block by block, from small u up to where phi^L is nothing."""
    spread = np.flatnonzero(mixture.sharpness)
    squares = np.zeros((length.size, 3, mixture.weights.size))
    columns: list[tuple[Array, ...]] = []
    for u in _blocks(mixture, float(length.max()), origin):
        transforms = mixture_transforms(u, mixture.scores, mixture.sharpness)
        log_phi = _log_phi(mixture, transforms)
        log_own = None if mixture.own_score is None else u + mixture.own_score
        one, _ = _token_factors(length, log_phi, log_own)
        squares[:, 0] += one @ transforms.a2
        squares[:, 1, spread] += one @ transforms.weighted_score
        squares[:, 2, spread] += one @ transforms.weighted_square
        mass = transforms.a1 @ mixture.weights
        columns.append((u, log_phi, mass, *_centred_vector(mixture, transforms, u)))
        if (length.min() - 2.0) * log_phi[-1] < _NEGLIGIBLE_LOG:
            break
    u, log_phi, mass, vector, size = map(np.concatenate, zip(*columns, strict=True))
    log_own = None if mixture.own_score is None else u + mixture.own_score
    return _Nodes(log_phi, mass, vector, size, log_own, squares * mixture.weights)


def _blocks(mixture: TiltedMixture, longest: float, origin: float) -> Iterator[Array]:
    """Yield the nodes u in increasing order, a few at a time to bound memory."""
    scores, sharpness = mixture.scores, mixture.sharpness
    if mixture.own_score is not None:
        scores, sharpness = np.append(scores, mixture.own_score), np.append(sharpness, 0.0)
    block = int(np.clip(_BLOCK_ENTRIES // mixture.scores.size, 8, 64))
    for lower, upper in intervals(scores, sharpness, longest):
        first, last = np.floor(lower / STEP), np.ceil(upper / STEP)
        for start in np.arange(first, last + 1.0, block):
            yield origin + STEP * np.arange(start, min(start + block, last + 1.0))


def _log_phi(mixture: TiltedMixture, transforms: MixtureTransforms) -> Array:
    """Return log phi from 1 - phi where phi is near one, and from phi where it is small."""
    complement = np.minimum(transforms.complement @ mixture.weights, 1.0)
    phi = transforms.phi @ mixture.weights
    near_one = complement < 0.5
    log_small = np.log(np.where(near_one | (phi <= 0.0), 1.0, phi))
    log_small = np.where(phi > 0.0, log_small, _SMALLEST_LOG)
    return np.where(near_one, np.log1p(-np.where(near_one, complement, 0.0)), log_small)


def _centred_vector(
    mixture: TiltedMixture, transforms: MixtureTransforms, u: Array
) -> tuple[Array, Array]:
    r"""Return $v = E[(Vz - T)e^x e^{-e^x}]$ [u, e], and the size of the terms it sums [u].

    In component c, Stein's identity leaves $v_c = \delta_c a_1 - V\Gamma_c t\, a_2$ with
    $\delta_c = V(m_c + \Gamma_c t) - T$; and $E[\delta e^s] = 0$ over the components, so that
    $\sum_c w_c\delta_c a_{1,c} = -\sum_c w_c\delta_c b_c$. The sum of smaller terms is taken, the
    first where $E e^x$ is too large for the second.
    """
    weighted = mixture.weights[:, None] * mixture.offset
    size = np.linalg.norm(weighted, axis=1)
    direct_size, other_size = transforms.a1 @ size, transforms.b @ size
    log_power = u + (mixture.scores + 0.5 * mixture.sharpness**2).max()
    direct = (direct_size <= other_size) | (log_power >= LARGEST_EXPONENT)
    vector = np.where(direct[:, None], transforms.a1 @ weighted, -(transforms.b @ weighted))
    terms = np.where(direct, direct_size, other_size)
    spread = np.flatnonzero(mixture.sharpness)
    if spread.size:
        pull = (mixture.weights * mixture.sharpness)[spread, None] * mixture.along[spread]
        vector = vector - transforms.a2[:, spread] @ pull
        terms = terms + transforms.a2[:, spread] @ np.linalg.norm(pull, axis=1)
    return vector, terms


def _token_factors(length: Array, log_phi: Array, log_own: Array | None) -> tuple[Array, Array]:
    r"""Return $L\phi^{L-1}e^{-c}$ and $L(L-1)\phi^{L-2}e^{-c}$ times the step, [n, u]."""
    count = length[:, None]
    log_left = 0.0 if log_own is None else -np.exp(np.minimum(log_own, LARGEST_EXPONENT))
    one = np.exp((count - 1.0) * log_phi + log_left)
    two = np.exp(np.maximum(count - 2.0, 0.0) * log_phi + log_left)
    return STEP * count * one, STEP * count * (count - 1.0) * two


def _own_factors(length: Array, nodes: _Nodes, one: Array) -> tuple[Array, Array, Array]:
    r"""Return $\int ce^{-c}\phi^L$, $\int c^2e^{-c}\phi^L$ and $cL\phi^{L-1}e^{-c}$, or zeros."""
    if nodes.log_own is None:
        return np.zeros_like(length), np.zeros_like(length), np.zeros_like(one)
    own = np.exp(np.minimum(nodes.log_own, LARGEST_EXPONENT))
    weight = STEP * np.exp(nodes.log_own - own + length[:, None] * nodes.log_phi)
    return weight.sum(axis=1), weight @ own, one * own


def _second_moment(
    mixture: TiltedMixture,
    nodes: _Nodes,
    n: int,
    factors: tuple[Array, Array, float],
    *,
    centre: Array,
    own_value: Array,
) -> Array:
    r"""Return $E(T_L - T - k)(T_L - T - k)'$ for the n-th length, $k$ = `centre`.

    Centring inside the integrals leaves sums of squares: the covariance loses nothing to the bias.
    `own_value` is $r - k$.
    """
    one_own, two, own_square = factors
    vector = nodes.vector - nodes.mass[:, None] * centre
    second = _weighted_squares(mixture, nodes.squares[n], centre)
    second = second + (two[:, None] * vector).T @ vector
    cross = np.outer(one_own @ vector, own_value)
    second = second + cross + cross.T + own_square * np.outer(own_value, own_value)
    return 0.5 * (second + second.T)


def _weighted_squares(mixture: TiltedMixture, squares: Array, centre: Array) -> Array:
    r"""Return the sum over components of their squared weights times $(y - k)(y - k)'$.

    Given its score, $y = \delta_c + \beta_ch$ plus a residual of covariance $R_c$.
    """
    offset, along = mixture.offset - centre, mixture.along
    second = (squares[0][:, None] * offset).T @ offset
    if mixture.residual is not None:
        mixed = (squares[1][:, None] * offset).T @ along
        second = second + mixed + mixed.T + (squares[2][:, None] * along).T @ along
        second = second + np.tensordot(squares[0], mixture.residual, axes=1)
    return second
