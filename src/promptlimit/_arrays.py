"""Types and checks for arrays, numbers and prompt lengths, without jax."""

import functools
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from promptlimit._text import shown
from promptlimit.errors import ArgumentError

Array: TypeAlias = NDArray[np.float64]
"""A NumPy array in double precision."""


@runtime_checkable
class SupportsArray(Protocol):
    """Arrays and scalars of NumPy and of jax."""

    def __array__(self) -> Any: ...


# NumPy's ArrayLike lists `complex` for all numbers; run-time type checkers then reject an int.
ArrayLike: TypeAlias = SupportsArray | float | int | Sequence[Any]
"""Values accepted as an array."""

Number: TypeAlias = float | int | np.number
"""Values accepted as one number; run-time type checkers would reject an int for `float` alone."""


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def is_traced(value: object) -> bool:
    """Return whether jax is tracing the value, so that it has a shape but no numbers yet.

    This function does not import jax. If jax has not been imported, the result is False.
    """
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


with_numpy_defaults = np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")
"""A decorator of public functions that restores NumPy's default treatment of floating-point errors.

Without this decorator, underflow would raise an error after `numpy.seterr(all="raise")`.
"""


def numpy_only(
    instead: str,
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Return a decorator for functions that compute with NumPy and cannot be traced by jax.

    The decorated function raises an `ArgumentError` for an argument that `jit`, `vmap` or `grad`
    traces, and a `TypeError` for a call inside a jitted function. The function runs under
    `with_numpy_defaults`. The jax code that it calls is compiled even under `jax.disable_jit`,
    because some computations would take minutes without compilation.

    Args:
        instead: a sentence that suggests an alternative, at the end of both error messages.
    """

    def decorate(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        names = list(inspect.signature(function).parameters)
        called = getattr(function, "__qualname__", "this function").removesuffix(".__init__")

        function = with_numpy_defaults(function)

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
            jax = sys.modules.get("jax")
            if jax is None:
                return function(*args, **kwargs)
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                if name != "self" and any(map(is_traced, jax.tree.leaves(value))):
                    raise ArgumentError(
                        name,
                        f"must hold real numbers for `{called}`, which computes with NumPy, got an "
                        f"array that jax traces (jit, vmap or grad). {instead}",
                    )
            try:
                with jax.disable_jit(False):
                    return function(*args, **kwargs)
            except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as e:
                if not is_traced(jax.device_put(np.zeros(()))):
                    raise  # another cause: this call is not inside `jit`
                raise TypeError(
                    f"`{called}` must be called outside `jit`, because it computes with NumPy. "
                    f"{instead}"
                ) from e

        return call

    return decorate


def require_unmasked(name: str, value: object) -> None:
    """Raise an error for a masked array, also inside lists, because NumPy would drop the mask.

    The error is raised even if no entry is masked.
    """
    if isinstance(value, list | tuple):
        for part in value:
            require_unmasked(name, part)
    elif isinstance(value, np.ma.MaskedArray):
        raise ArgumentError(
            name,
            "must be a plain array, got a masked array, whose mask would be lost. Drop "
            "or fill the masked entries, and pass the `.data` of the resulting array.",
        )


def require_readable(name: str, value: object) -> None:
    """Raise an error for values that NumPy cannot read, also inside lists.

    Such values are random keys of jax; PyTorch tensors with dtype bfloat16, with gradients or on an
    accelerator; and objects that consist of several arrays, such as a Dataset of xarray.
    """
    if isinstance(value, list | tuple):
        for part in value:
            require_readable(name, part)
        return
    if str(getattr(value, "dtype", "")).startswith("key<"):
        raise ArgumentError(
            name, "must hold real numbers, got a random key of jax. Pass it as the argument `key`."
        )
    if not hasattr(value, "__array__") or _is_of_numpy_or_jax(value):
        return
    try:
        np.asarray(value)
    except (TypeError, RuntimeError):
        if not hasattr(value, "detach"):
            raise ArgumentError(
                name,
                f"must be an array that NumPy can read, got {type(value).__name__}. Pass one of "
                "its arrays.",
            ) from None
        what = [f"{part} {getattr(value, part, '?')}" for part in ("dtype", "device")]
        what += ["requires_grad True"] * bool(getattr(value, "requires_grad", False))
        raise ArgumentError(
            name,
            f"must be an array that NumPy can read, got a tensor ({', '.join(what)}). Pass "
            "tensor.detach().float().cpu().",
        ) from None


def _is_of_numpy_or_jax(value: object) -> bool:
    """Return whether the value is an array or scalar of NumPy or of jax, traced or not."""
    jax = sys.modules.get("jax")
    return isinstance(value, np.ndarray | np.generic) or (
        jax is not None and isinstance(value, jax.Array)
    )


def require_whole(
    name: str, value: object, least: int, most: int | None = None, *, note: str = ""
) -> int:
    """Return the value if it is a whole number from `least` to `most`; otherwise raise an error.

    The error message ends with `note`.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (whole and least <= int(value) <= (math.inf if most is None else most)):
        reach = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ArgumentError(name, f"must be a whole number {reach}, got {shown(value)}.{note}")
    return int(value)


def as_float64(array: object) -> Array:
    """Return a NumPy or jax array as a NumPy array in double precision."""
    return np.asarray(array, dtype=np.float64)


def real_numbers(name: str, values: object, hint: str = "") -> Array:
    """Return real numbers as an array in double precision; raise an error for other values.

    NumPy alone would convert strings, None and dates to numbers, and drop imaginary parts. The
    error message ends with `hint`.
    """
    require_unmasked(name, values)
    require_readable(name, values)
    try:
        array = np.asarray(values)
        if not is_real(array):
            raise TypeError
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        words = " ".join(repr(values).split())[:40]
        raise ArgumentError(name, f"must hold real numbers, got {words}. {hint}".rstrip()) from None


def real_number(name: str, value: object) -> float:
    """Return the value as one number; raise an error for anything else."""
    number = real_numbers(name, value)
    if number.ndim:
        raise ArgumentError(name, f"must be a number, got shape {number.shape}.")
    return float(number)


def is_real(array: np.ndarray) -> bool:
    """Return whether an array consists of real numbers, not of text, dates or other objects."""
    if array.dtype.kind == "O":  # whole numbers with more than 64 bits, or other objects
        return all(isinstance(entry, Real) for entry in array.flat)
    return array.dtype.kind in "fiub" or array.dtype.name == "bfloat16"


LARGEST_LENGTH = 1e30


def checked_lengths(length: ArrayLike, *, name: str = "length") -> Array:
    """Return prompt lengths as an array of floats; raise an error if there are none.

    Each length must be `math.inf` or a whole number from 1 to 1e30.
    """
    require_unmasked(name, length)
    require_readable(name, length)
    try:
        array = np.asarray(length)
    except ValueError:
        raise ArgumentError(
            name, "must hold real numbers, got rows of different lengths. Pass [10, 100, 1000]."
        ) from None
    try:
        # An object array may contain whole numbers beyond 64 bits, or text from a pandas column.
        if length is None or array.dtype.kind not in "fiuO" or not is_real(array):
            raise TypeError
        values = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(
            name,
            f"must hold real numbers, got {type(length).__name__} of dtype {array.dtype}. "
            "It counts the tokens of a prompt.",
        ) from None
    if not values.size:
        raise ArgumentError(name, "must hold at least one number, got none.")
    whole = values == np.floor(values)
    allowed = whole & (values >= 1) & ((values <= LARGEST_LENGTH) | np.isposinf(values))
    if not allowed.all():
        raise ArgumentError(
            name,
            "must be a whole number from 1 to 1e30 or math.inf, "
            f"got {values[~allowed][0]}. It counts the tokens of a prompt.",
        )
    return values


def increasing_lengths(lengths: ArrayLike) -> Array:
    """Return prompt lengths as a vector; raise an error unless they strictly increase."""
    if lengths is None:
        raise ArgumentError("lengths", "must be a list of numbers, got None.")
    values = np.atleast_1d(checked_lengths(lengths, name="lengths"))
    if values.ndim != 1:
        raise ArgumentError(
            "lengths", f"must be a list of numbers, got shape {values.shape}. Pass [10, 100, 1000]."
        )
    falls = np.flatnonzero(np.diff(values) <= 0)
    if falls.size:
        first, second = values[falls[0] : falls[0] + 2]
        raise ArgumentError(
            "lengths",
            f"must increase, got {second:g} after {first:g}. Sort them and remove duplicates.",
        )
    return values
