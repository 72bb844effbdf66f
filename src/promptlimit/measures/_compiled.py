"""Compile public entry points once: eager differentiation would retrace at every call."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def compiled(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return the function compiled once per structure and shape of its arguments.

    `jax.jit` has the lower overhead, but takes arrays only; a user's own measure that stores
    anything else goes through `equinox.filter_jit`, which treats the rest as constants. Matrix
    products keep all digits of their type; some devices would drop most of them by default.
    """

    @wraps(function)
    def exactly(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    plain, filtered = jax.jit(exactly), eqx.filter_jit(exactly)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        leaves = jax.tree.leaves((args, kwargs))
        only_arrays = all(isinstance(leaf, jax.Array) for leaf in leaves)
        return (plain if only_arrays else filtered)(*args, **kwargs)

    return call
