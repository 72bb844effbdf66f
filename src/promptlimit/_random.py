"""Random keys and draws equal to those of `jax.random`, in forms that compile fast.

Keys are split in NumPy, because a split inside a compiled program becomes a loop that takes longer
to compile than all arithmetic on the tokens.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from promptlimit._inputs import is_traced
from promptlimit._normals import threefry

_PARTITIONABLE = "jax_threefry_partitionable"
"""A setting of jax, on since 0.5. With it, the n-th key of a split is the hash of (0, n)."""


def row_keys(
    key: PRNGKeyArray, first: int, count: int, draws: int
) -> Key[Array, "{count} {draws}"]:
    """Return `split(fold_in(key, i), draws)` for `count` consecutive integers i from `first`.

    >>> keys = row_keys(jax.random.key(7), 3, 2, 4)
    >>> bool((keys[0] == jax.random.split(jax.random.fold_in(jax.random.key(7), 3), 4)).all())
    True
    """
    numbers = np.arange(count, dtype=np.uint32) + np.uint32(first)
    if not _is_plain(key):
        return jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i), draws))(numbers)
    words = np.asarray(jax.random.key_data(key))[:, None]
    rows = _below((words[0], words[1]), numbers)
    pairs = _below((rows[0][:, None], rows[1][:, None]), np.arange(draws, dtype=np.uint32)[None])
    plain = jnp.asarray(np.stack(pairs, axis=-1))
    return jax.random.wrap_key_data(plain, impl=jax.random.key_impl(key))


def sample_matrix(
    draw: Callable[..., Array],
    key: PRNGKeyArray,
    shape: tuple[int, int],
    dtype: Any,
    **how: float,
) -> Array:
    """Return a matrix of independent numbers, drawn as one row and then reshaped.

    The numbers equal those of `draw(key, shape, dtype, **how)`. In that call XLA would unroll the
    generator over the columns if they are few.
    """
    return draw(key, (math.prod(shape),), dtype, **how).reshape(shape)


def _is_plain(key: PRNGKeyArray) -> bool:
    """Return whether jax does not trace the key and `threefry` reproduces its splits."""
    if is_traced(key) or jax.random.key_impl(key) != "threefry2x32":
        return False
    return bool(getattr(jax.config, _PARTITIONABLE, True))


def _below(key: tuple[Any, Any], numbers: np.ndarray) -> tuple[Any, Any]:
    """Return the keys that `fold_in` and `split` derive from a key for these numbers."""
    return threefry(key, (np.zeros_like(numbers), numbers))
