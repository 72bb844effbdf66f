"""Double precision for what a user built in single."""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

ModuleT = TypeVar("ModuleT", bound=eqx.Module)


def in_double(module: ModuleT) -> ModuleT:
    """Return the module with its arrays in double precision; call inside `enable_x64`."""
    arrays, rest = eqx.partition(module, eqx.is_inexact_array)
    return eqx.combine(jax.tree.map(lambda array: array.astype(jnp.float64), arrays), rest)
