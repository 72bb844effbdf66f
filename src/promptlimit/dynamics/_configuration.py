"""Tasks, attentions and numbers as plain values, for the configuration of a run."""

import dataclasses
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def described(value: object) -> object:
    """Return a module as its type, its fields and their numbers; arrays as nested lists.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> described(pl.SoftmaxAttention(jnp.eye(1), jnp.eye(1)))
    {'type': 'SoftmaxAttention', 'key_query': [[1.0]], 'value': [[1.0]]}
    """
    if isinstance(value, eqx.Module):
        fields = (field.name for field in dataclasses.fields(value))
        inner = {name: described(getattr(value, name)) for name in fields}
        return {"type": type(value).__name__, **inner}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return described(_numbers(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str | bool | int | float | None):
        return value
    if isinstance(value, Sequence):
        return [described(each) for each in value]
    return type(value).__name__


def _numbers(array: jax.Array | np.ndarray | np.generic) -> np.ndarray:
    """Return the entries of an array; of a random key, the bits it is made of."""
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(array))
    return np.asarray(array)
