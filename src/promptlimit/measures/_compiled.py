"""Decorators that compile a function once, and that keep full precision in matrix products."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def full_precision(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return the function with matrix products that keep all digits of their type.

    By default, some devices drop most digits of a product in single precision.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return call


def compiled(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return the function compiled once per structure and shape of its arguments.

    `jax.jit` is used if all arguments are arrays, because it has the lower overhead. Otherwise, as
    for a user-defined measure with other fields, `equinox.filter_jit` treats fields that are not
    arrays as constants. Without compilation, differentiation would retrace at every call.
    """
    exactly = full_precision(function)
    plain, filtered = jax.jit(exactly), eqx.filter_jit(exactly)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        leaves = jax.tree.leaves((args, kwargs))
        only_arrays = all(isinstance(leaf, jax.Array) for leaf in leaves)
        return (plain if only_arrays else filtered)(*args, **kwargs)

    return call
