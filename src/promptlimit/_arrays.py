"""Arrays that come from users and those computed here, without jax."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
"""What is computed here: NumPy, double precision."""


@runtime_checkable
class SupportsArray(Protocol):
    """Arrays and scalars of NumPy and of jax."""

    def __array__(self) -> Any: ...


# NumPy's own ArrayLike takes numbers for instances of `complex`, which no checker at run time does.
ArrayLike: TypeAlias = SupportsArray | float | int | Sequence[Any]
"""What a user may pass for an array."""


def doubles(array: object) -> Array:
    """Return what a user built, of NumPy or of jax, as a NumPy array in double precision."""
    return np.asarray(array, dtype=np.float64)
