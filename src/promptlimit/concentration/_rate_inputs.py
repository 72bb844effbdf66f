"""Curves that come from a user: lengths, values and their noise, or one clear sentence."""

from dataclasses import dataclass

import numpy as np

from promptlimit._arrays import Array, ArrayLike


@dataclass(frozen=True)
class Curve:
    """Values at increasing lengths."""

    lengths: Array
    values: Array


def checked_curve(lengths: ArrayLike, values: ArrayLike) -> Curve:
    """Return a curve of at least two positive values at increasing lengths from 1 on."""
    where, what = _vector("lengths", lengths), _vector("values", values)
    if where.size < 2:
        raise ValueError(f"`lengths` must hold at least two lengths, got {where.size}.")
    if what.size != where.size:
        raise ValueError(
            f"`values` must hold one value a length, got {what.size} for {where.size} lengths."
        )
    if where.min() < 1:
        raise ValueError(f"`lengths` must be at least 1, got {where.min():.6g}.")
    if not (np.diff(where) > 0).all():
        at = int(np.argmin(np.diff(where) > 0))
        raise ValueError(
            f"`lengths` must increase, got {where[at + 1]:.6g} after {where[at]:.6g}. "
            "Sort them, and pass each once."
        )
    if what.min() <= 0:
        at = int(np.argmin(what))
        raise ValueError(
            f"`values` must be positive, got {what[at]:.6g} at length {where[at]:.6g}. "
            "A power law has no zeros; drop what noise made negative only with care."
        )
    return Curve(where, what)


def checked_level(level: float) -> float:
    """Return the confidence level, between 0 and 1."""
    if not 0 < level < 1:
        raise ValueError(f"`level` must be between 0 and 1, got {level}. Pass 0.95 for 95%.")
    return float(level)


def checked_log_cov(cov: ArrayLike | None, values: Array) -> Array | None:
    r"""Return $\Sigma_{ij}/(v_iv_j)$, the covariance of the logarithms; None without noise."""
    if cov is None:
        return None
    given = _floats("cov", cov)
    size = values.size
    if given.shape not in {(size,), (size, size)}:
        raise ValueError(
            f"`cov` must have shape ({size}, {size}), or ({size},) for variances, "
            f"got {given.shape}."
        )
    _require_finite("cov", given)
    matrix = np.diag(given) if given.ndim == 1 else given
    if not matrix.any():
        return None
    relative = matrix / np.outer(values, values)
    _require_covariance(relative)
    return (relative + relative.T) / 2


def _require_covariance(relative: Array) -> None:
    """Refuse what is not symmetric positive semi-definite, up to rounding, in relative units."""
    rounding = 1e-9 * np.abs(relative).max()
    asymmetry = np.abs(relative - relative.T)
    if asymmetry.max() > rounding:
        i, j = (int(k) for k in np.unravel_index(int(asymmetry.argmax()), relative.shape))
        raise ValueError(
            f"`cov` must be symmetric, got different entries at ({i}, {j}) and ({j}, {i}). "
            "If only rounding parts them, pass (cov + cov.T) / 2."
        )
    smallest = float(np.linalg.eigvalsh((relative + relative.T) / 2).min())
    if smallest < -rounding:
        raise ValueError(
            "`cov` must be positive semi-definite, got a smallest eigenvalue of "
            f"{smallest:.3g} in relative units. If it holds standard errors, square them; if it "
            "was estimated, clip its eigenvalues at zero."
        )


def _vector(name: str, value: ArrayLike) -> Array:
    array = _floats(name, value)
    if array.ndim != 1:
        raise ValueError(f"`{name}` must be a vector, got shape {array.shape}.")
    _require_finite(name, array)
    return array


def _floats(name: str, value: ArrayLike) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f"`{name}` must hold real numbers, got {type(value).__name__}. Pass an array of floats."
        ) from None


def _require_finite(name: str, array: Array) -> None:
    if not np.isfinite(array).all():
        bad = array[~np.isfinite(array)][0]
        raise ValueError(f"`{name}` must be finite, got {bad}. Drop that entry.")
