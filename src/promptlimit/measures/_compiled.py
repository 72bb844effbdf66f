"""Compile public entry points once, and keep every digit of a matrix product."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def full_precision(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return the function with matrix products that keep all digits of their type.

    Some devices would drop most digits of a single-precision product by default.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return call


def compiled(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return the function compiled once per structure and shape of its arguments.

    `jax.jit` has the lower overhead but accepts only arrays. A user-defined measure with other
    fields is compiled by `equinox.filter_jit`, which treats them as constants. Eager
    differentiation would retrace at every call.
    """
    exactly = full_precision(function)
    plain, filtered = jax.jit(exactly), eqx.filter_jit(exactly)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        leaves = jax.tree.leaves((args, kwargs))
        only_arrays = all(isinstance(leaf, jax.Array) for leaf in leaves)
        return (plain if only_arrays else filtered)(*args, **kwargs)

    return call
