"""The numbers a bound is a function of, or one clear sentence."""

from numbers import Integral
from typing import SupportsIndex

import numpy as np

from promptlimit._arrays import Array, ArrayLike

_LARGEST = 1e75


def checked_dim(dim: SupportsIndex) -> int:
    """Return the dimension of a token."""
    if isinstance(dim, bool) or not isinstance(dim, Integral) or dim < 1:
        raise ValueError(f"`dim` must be a whole number of at least 1, got {dim!r}.")
    return int(dim)


def checked_size(name: str, value: ArrayLike) -> Array:
    """Return a norm, or an array of norms: finite and not negative."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be a number, got {type(value).__name__}.") from None
    allowed = np.isfinite(array) & (array >= 0)
    if not allowed.all():
        raise ValueError(
            f"`{name}` must be finite and not negative, got {array[~allowed][0]}. "
            "It is a norm or a scale."
        )
    return array


def checked_sharpness(name: str, sub_gaussian: Array | float, norm: ArrayLike) -> Array:
    """Return $s|u|$, refused where a bound, of its fourth power, would leave double precision."""
    sharpness = np.asarray(sub_gaussian * checked_size(name, norm))
    if not np.all(sharpness <= _LARGEST):
        raise ValueError(
            f"`{name}` times `sub_gaussian` must be at most {_LARGEST:g} for a bound in double "
            f"precision, got {np.max(sharpness):g}."
        )
    return sharpness


def checked_number(name: str, value: ArrayLike) -> float:
    """Return one norm."""
    array = checked_size(name, value)
    if array.ndim:
        raise ValueError(f"`{name}` must be one number, got shape {array.shape}.")
    return float(array)
