"""Descriptions of tasks, attentions and numbers as plain values, for the configuration of a run."""

import dataclasses
import hashlib
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from promptlimit.storage import OPAQUE


def description(value: object) -> object:  # noqa: PLR0911  # one return per kind of value
    """Return a value as nested dictionaries, lists, numbers and strings.

    A module becomes a dictionary of its type and its fields. An array becomes a nested list.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> description(pl.SoftmaxAttention(jnp.eye(1), jnp.eye(1)))
    {'type': 'SoftmaxAttention', 'key_query': [[1.0]], 'value': [[1.0]]}
    """
    if isinstance(value, eqx.Module):
        fields = (field.name for field in dataclasses.fields(value))
        inner = {name: description(getattr(value, name)) for name in fields}
        return {"type": _name(type(value)), **inner}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return description(_numbers(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): description(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [description(part) for part in value]
    name = _name(value if callable(value) else type(value))
    return {OPAQUE: name} if not callable(value) or "<" in name else name


def _name(thing: Any) -> str:
    """Return the name of a type or function, with a hash of its source if it is user-defined."""
    module, name = getattr(thing, "__module__", ""), getattr(thing, "__qualname__", "")
    if module.startswith("promptlimit."):
        return name
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        return f"{module}.{name}"
    return f"{module}.{name}:{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _numbers(array: jax.Array | np.ndarray | np.generic) -> np.ndarray:
    """Return the entries of an array, or the bits of a random key."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    return np.asarray(array)
