"""Checked arguments of the mixture moments, in the coordinates the quadrature needs."""

from __future__ import annotations

import dataclasses

import numpy as np

from promptlimit.finite._array_types import Array, ArrayLike
from promptlimit.finite._lengths import checked_lengths

LARGEST_SHARPNESS = 128.0
LARGEST_SCORE = 4e6
_SMALLEST_SHARPNESS = 1e-100


@dataclasses.dataclass(frozen=True)
class TiltedMixture:
    r"""A mixture seen through a tilt t and a value matrix V, centred on its tilted mean T.

    Attributes:
        weights: $w_c$, positive, [c].
        scores: $s_c = \langle t, m_c\rangle$ up to a common constant, [c].
        sharpness: $\sigma_c = (t'\Gamma_c t)^{1/2}$, [c].
        offset: $\delta_c = V(m_c + \Gamma_c t) - T$, [c, e].
        along: $\beta_c = V\Gamma_c t/\sigma_c$, [c, e]; zero where $\sigma_c = 0$.
        residual: $R_c = V\Gamma_cV' - \beta_c\beta_c'$, [c, e, e]; None when there are only atoms.
        limit: $T = \sum_c q_c V(m_c + \Gamma_c t)$, $q_c \propto w_c e^{s_c + \sigma_c^2/2}$, [e].
        own_score: $\langle t, q\rangle$ up to the same constant; None without a query.
        own_value: $Vq - T$, [e]; zero without a query.
        score_size: largest $\sum_i|t_i(m_c - m_1)_i|$: times epsilon, the rounding of the scores.
    """

    weights: Array
    scores: Array
    sharpness: Array
    offset: Array
    along: Array
    residual: Array | None
    limit: Array
    own_score: float | None
    own_value: Array
    score_size: float = 0.0


def checked_inputs(
    *,
    weights: ArrayLike,
    means: ArrayLike,
    covs: ArrayLike | None,
    tilt: ArrayLike,
    value: ArrayLike,
    lengths: ArrayLike,
    query: ArrayLike | None,
) -> tuple[TiltedMixture, Array]:
    """Return the mixture in quadrature coordinates and the lengths, or say what is wrong."""
    tilt = _finite("tilt", tilt, (None,))
    value = _finite("value", value, (None, tilt.size))
    means = _finite("means", means, (None, tilt.size))
    weights = _probabilities(weights, means.shape[0])
    kept = weights > 0.0
    roots = None
    if covs is not None:
        covs = _finite("covs", covs, (means.shape[0], tilt.size, tilt.size))
        roots = _roots(covs[kept])
    if query is not None:
        query = _finite("query", query, (tilt.size,))
    length = _lengths(lengths)
    size = _score_size(means[kept] if query is None else np.vstack([means[kept], query]), tilt)
    mixture = _centred(weights[kept], means[kept], roots, tilt=tilt, value=value, query=query)
    return dataclasses.replace(mixture, score_size=size), length


def _score_size(points: Array, tilt: Array) -> float:
    """Return how far apart the scores may be, after checking that their digits suffice."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = float((np.abs(points - points[0]) @ np.abs(tilt)).max())
    if not size <= LARGEST_SCORE:
        raise ValueError(
            f"`tilt` must keep the scores within {LARGEST_SCORE:g} of each other, got {size:g}. "
            "Scale the tilt or `means` down."
        )
    return size


def _centred(
    weights: Array,
    means: Array,
    roots: Array | None,
    *,
    tilt: Array,
    value: Array,
    query: Array | None,
) -> TiltedMixture:
    """Centre on the component of largest tilted weight first, so that no offset loses digits."""
    e = value.shape[0]
    sharpness, along, residual = np.zeros(weights.size), np.zeros((weights.size, e)), None
    if roots is not None:
        sharpness, along, residual = _conditional(roots, tilt, value)
    log_tilted = np.log(weights) + means @ tilt + 0.5 * sharpness**2
    heaviest = int(np.argmax(log_tilted))
    distance = means - means[heaviest]
    scores = distance @ tilt
    log_tilted = np.log(weights) + scores + 0.5 * (sharpness**2 - sharpness[heaviest] ** 2)
    tilted = np.exp(log_tilted - log_tilted.max())
    tilted /= tilted.sum()
    pull = sharpness[:, None] * along
    relative = distance @ value.T + (pull - pull[heaviest])
    centre = tilted @ relative
    own_score, own_value = None, np.zeros(e)
    if query is not None:
        own_distance = query - means[heaviest]
        own_score = float(own_distance @ tilt)
        own_value = value @ own_distance - pull[heaviest] - centre
    return TiltedMixture(
        weights=weights,
        scores=scores,
        sharpness=sharpness,
        offset=relative - centre,
        along=along,
        residual=residual,
        limit=value @ means[heaviest] + pull[heaviest] + centre,
        own_score=own_score,
        own_value=own_value,
    )


def _conditional(roots: Array, tilt: Array, value: Array) -> tuple[Array, Array, Array]:
    r"""Return $\sigma_c$, $\beta_c$ and $R_c$ from roots $\Gamma_c = \rho_c\rho_c'$.

    With $B = V\rho$ and $\epsilon = \rho't/\sigma$: $\beta = B\epsilon$ and
    $R = B(I - \epsilon\epsilon')B'$.
    """
    whitened = np.einsum("cij,i->cj", roots, tilt)
    sharpness = np.linalg.norm(whitened, axis=1)
    if sharpness.max() > LARGEST_SHARPNESS:
        raise ValueError(
            "`tilt` must keep the standard deviation of every component's score at most "
            f"{LARGEST_SHARPNESS:g}, got {sharpness.max():g}. Scale the tilt or `covs` down."
        )
    sharpness = np.where(sharpness > _SMALLEST_SHARPNESS, sharpness, 0.0)
    direction = np.where(
        sharpness[:, None] > 0.0, whitened / np.where(sharpness > 0.0, sharpness, 1.0)[:, None], 0.0
    )
    factor = value @ roots
    along = np.einsum("cej,cj->ce", factor, direction)
    across = factor - along[:, :, None] * direction[:, None, :]
    return sharpness, along, across @ across.transpose(0, 2, 1)


def _finite(name: str, array: ArrayLike, shape: tuple[int | None, ...]) -> Array:
    result = np.asarray(array, dtype=np.float64)
    wanted = tuple("any" if size is None else size for size in shape)
    matches = result.ndim == len(shape) and all(
        size is None or size == actual for size, actual in zip(shape, result.shape, strict=True)
    )
    if not matches:
        raise ValueError(f"`{name}` must have shape {_shape(wanted)}, got {_shape(result.shape)}.")
    if result.size == 0:
        raise ValueError(f"`{name}` must not be empty, got shape {_shape(result.shape)}.")
    if not np.isfinite(result).all():
        raise ValueError(f"`{name}` must be finite, got {result[~np.isfinite(result)][0]}.")
    return result


def _shape(sizes: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(str(size) for size in sizes) + "]"


def _probabilities(weights: ArrayLike, components: int) -> Array:
    result = _finite("weights", weights, (components,))
    if result.min() < 0.0:
        raise ValueError(f"`weights` must not be negative, got {result.min():g}.")
    if abs(result.sum() - 1.0) > 1e-6:
        raise ValueError(
            f"`weights` must sum to one, got {result.sum():.9g}. Divide them by their sum."
        )
    return result / result.sum()


def _roots(covs: Array) -> Array:
    """Return square roots of the covariances, after checking that they are covariances."""
    scale = np.abs(covs).max(axis=(1, 2), initial=0.0)
    asymmetry = np.abs(covs - covs.transpose(0, 2, 1)).max(axis=(1, 2))
    if np.any(asymmetry > 1e-6 * scale):
        raise ValueError(
            f"`covs` must be symmetric, got entries that differ by {asymmetry.max():g}. "
            "Average each matrix with its transpose."
        )
    eigenvalues, vectors = np.linalg.eigh(0.5 * (covs + covs.transpose(0, 2, 1)))
    if np.any(eigenvalues[:, 0] < -1e-6 * scale):
        raise ValueError(
            f"`covs` must be positive semi-definite, got eigenvalue {eigenvalues.min():g}."
        )
    return vectors * np.sqrt(np.maximum(eigenvalues, 0.0))[:, None, :]


def _lengths(lengths: ArrayLike) -> Array:
    result = checked_lengths(lengths)
    if result.ndim != 1:
        raise ValueError(f"`lengths` must have shape [any], got {_shape(result.shape)}.")
    return result
