"""Conversion and validation of arguments: arrays of numbers, dimensions, random keys and choices.

Shapes are always checked. Values are checked only for concrete arrays, not for those that jax
traces (inside `jit`, `vmap` and `grad`).
"""

import difflib
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from promptlimit._arrays import (
    is_traced,
    require_readable,
    require_unmasked,
    require_whole,
    with_numpy_defaults,
)
from promptlimit._text import shown
from promptlimit.errors import ArgumentError

Choice = TypeVar("Choice", bound=str)
ModuleT = TypeVar("ModuleT", bound=eqx.Module)

ENABLE_DOUBLE = 'Call jax.config.update("jax_enable_x64", True) for double precision.'
_SMALL = 10_000
"""Arrays with at most this number of entries are checked and cast on the host, which is faster."""
_RANKS = {0: "a number", 1: "a vector", 2: "a matrix"}


def type_name(value: object) -> str:
    """Return the type of a value, for messages."""
    if isinstance(value, type):
        return f"the class {value.__name__} instead of an instance"
    return type(value).__name__


def require_dimension(owner: object, name: str) -> int:
    """Return the attribute `name` of a user-defined object, which must be a positive integer."""
    value = getattr(owner, name)
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ArgumentError(
            name,
            f"of {type(owner).__name__} must be a whole number of at least 1, got {value!r}. "
            "Define it as a class attribute or as a property.",
        )
    return int(value)


def float_arrays(**named: object) -> tuple[Array, ...]:
    """Return the arguments as jax arrays of one common dtype, float32 or float64."""
    arrays = [_as_array(name, value) for name, value in named.items()]
    dtype = promoted(*(array.dtype for array in arrays))
    return tuple(cast(array, dtype) for array in arrays)


def to_device(values: object, dtype: DTypeLike | None = None) -> Array:
    """Return the values as a jax array without compiling; the default `dtype` is that of `values`.

    `jnp.asarray` would compile a program for each new shape of a NumPy array. `jax.device_put`
    receives a copy, because it may share the memory of a NumPy array, which can change later.
    """
    if isinstance(values, jax.Array):
        return values if dtype is None else cast(values, dtype)
    return jax.device_put(np.array(values, dtype, order="C"))


def cast(array: Array, dtype: DTypeLike) -> Array:
    """Return the array with this dtype; a small array is cast without compiling a program."""
    if array.dtype == dtype:
        return array
    if is_traced(array) or array.committed or array.size > _SMALL:
        return array.astype(dtype)
    return jax.device_put(np.asarray(array).astype(dtype))


def promoted(*dtypes: jnp.dtype) -> jnp.dtype:
    """Return the common dtype of several dtypes under jax's standard promotion rules.

    The standard rules apply even if jax is configured to raise an error for mixed dtypes. Without
    `enable_x64` the result is at most single precision.
    """
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*map(jax.dtypes.canonicalize_dtype, dtypes))


def float_array(name: str, value: object, *, rank: int) -> Array:
    """Return `value` as a floating jax array with `rank` axes and finite entries."""
    (array,) = float_arrays(**{name: value})
    require_rank(name, array, rank)
    require_finite(name, array)
    return array


def in_double(module: ModuleT) -> ModuleT:
    """Return the module with its arrays in double precision.

    Call this function inside `jax.enable_x64(True)`.
    """
    return in_precision(module, jnp.float64)


def in_precision(module: ModuleT, dtype: DTypeLike) -> ModuleT:
    """Return the module with its arrays in this precision, which must be enabled in jax."""

    def converted(array: Array | np.ndarray) -> Array | np.ndarray:
        return array.astype(dtype) if isinstance(array, np.ndarray) else cast(array, dtype)

    arrays, rest = eqx.partition(module, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(converted, arrays), rest)


@with_numpy_defaults
def _as_array(name: str, value: object) -> Array:
    require_readable(name, value)
    if isinstance(value, jax.Array):
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            raise ArgumentError(name, f"must hold real numbers, got dtype {value.dtype}.")
        return cast(value, _float_dtype(value.dtype))
    require_unmasked(name, value)
    try:
        host = np.asarray(value)
    except ValueError:
        raise ArgumentError(
            name, "must be an array, got rows of different lengths. Make them equal."
        ) from None
    if host.dtype.kind == "O" and all(isinstance(entry, Real) for entry in host.flat):
        host = host.astype(np.float64)  # whole numbers beyond 64 bits
    if host.dtype.kind not in "fiub" and host.dtype.name != "bfloat16":
        raise ArgumentError(
            name,
            f"must hold real numbers, got {_type_words(value, host)}. Pass an array of floats.",
        )
    dtype = _float_dtype(host.dtype)
    if dtype == jnp.float32 and host.dtype.itemsize > 4:
        _require_in_single(name, host)
    return to_device(host, dtype)


def _require_in_single(name: str, host: np.ndarray) -> None:
    """Raise an error for finite numbers that overflow single precision."""
    large = np.isfinite(host) & (np.abs(host) > np.finfo(np.float32).max)
    if large.any():
        raise ArgumentError(
            name,
            f"must fit in single precision, got {host[large].flat[0]:g}, which overflows float32. "
            f"{ENABLE_DOUBLE}",
        )


def _float_dtype(dtype: jnp.dtype) -> jnp.dtype:
    """Return float32 for floating dtypes of at most 32 bits, otherwise jax's default float."""
    is_single = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize <= 4
    return jnp.dtype(jnp.float32) if is_single else jnp.result_type(float)


def _type_words(value: object, host: np.ndarray) -> str:
    if host.dtype.kind in "SU":
        return "text" if host.ndim == 0 else "an array of text"
    if isinstance(value, np.ndarray):
        return f"dtype {host.dtype}"
    return shown(value) if isinstance(value, list | tuple) else type_name(value)


def require_rank(name: str, array: Array, rank: int) -> None:
    """Raise an error for an array with the wrong number of axes."""
    if array.ndim != rank:
        raise ArgumentError(name, f"must be {_RANKS[rank]}, got shape {array.shape}.")


def require_finite(name: str, array: Array) -> None:
    """Raise an error for NaN and infinite entries; the message gives the index of the first one."""
    if is_traced(array):
        return
    if array.size > _SMALL:
        # The reduction runs immediately on the device of the array, even inside `jit`.
        with jax.ensure_compile_time_eval():
            if bool(jnp.isfinite(array).all()):
                return
    host = np.asarray(array)
    if np.isfinite(host).all():
        return
    where = tuple(int(i) for i in np.argwhere(~np.isfinite(host))[0])
    position = f" at index {', '.join(map(str, where))}" if where else ""
    raise ArgumentError(
        name, f"must be finite, got {float(host[where])}{position}. Replace that entry."
    )


def require_shape(name: str, array: Array, shape: tuple[int, ...], reason: str) -> None:
    """Raise an error unless the array has this shape; the message states the `reason`."""
    if array.shape != shape:
        raise ArgumentError(name, f"must have shape {shape} ({reason}), got {array.shape}.")


def require_weights(name: str, weights: Array) -> None:
    """Raise an error unless the weights are nonnegative and sum to one."""
    if is_traced(weights):
        return
    host = np.asarray(weights, dtype=np.float64)
    if (host < 0).any():
        where = int(np.argmax(host < 0))
        raise ArgumentError(name, f"must not be negative, got {host[where]:.6g} at index {where}.")
    tolerance = 1e-10 if weights.dtype == jnp.float64 else 1e-5
    if abs(host.sum() - 1.0) > tolerance:
        raise ArgumentError(
            name, f"must sum to one, got a sum of {host.sum():.10g}. Divide them by their sum."
        )


def require_random_key(key: object) -> None:
    """Raise an error unless the value is None or a single random key of jax."""
    if key is None:
        return
    is_typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not (isinstance(key, jax.Array) and (is_typed or key.dtype == jnp.uint32)):
        raise ArgumentError(
            "key", f"must be a random key, got {type(key).__name__}. Pass jax.random.key(0)."
        )
    batch = key.shape if is_typed else key.shape[:-1]
    if batch:
        raise ArgumentError(
            "key",
            f"must be one random key, got an array of keys with shape {batch}. Pass one of them.",
        )


def require_key(key: object) -> None:
    """Raise an error unless the value is a single random key of jax."""
    require_random_key(key)
    if key is None:
        raise ArgumentError("key", "must be a random key, got None. Pass jax.random.key(0).")


def require_choice(name: str, value: str, choices: Iterable[Choice]) -> Choice:
    """Return the value if it is one of `choices`; otherwise raise an error with a suggestion."""
    known = list(choices)
    for choice in known:
        if choice == value:
            return choice
    listing = ", ".join(f"'{choice}'" for choice in known)
    if not isinstance(value, str):
        raise ArgumentError(name, f"must be one of {listing}, got {value!r}.")
    near = difflib.get_close_matches(value, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise ArgumentError(name, f"must be one of {listing}, got '{value}'.{hint}")


def require_samples(samples: object) -> None:
    """Raise an error unless the value is None or a whole number of at least two."""
    if samples is not None:
        require_whole("samples", samples, 2, note=" This is the number of simulated prompts.")
