"""Decorators: compilation, and full precision of matrix products."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def full_precision(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return the function with matrix products in the full precision of their dtype.

    By default, some devices compute products of float32 matrices with fewer digits.
    """

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return call


def compiled(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return the function, compiled once per structure and shapes of its arguments.

    Matrix products have full precision. Values in the arguments that are not arrays are constants
    of the compilation (`equinox.filter_jit`). If all values are arrays, `jax.jit` is used, which
    has a lower overhead.
    """
    exactly = full_precision(function)
    plain, filtered = jax.jit(exactly), eqx.filter_jit(exactly)

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
        leaves = jax.tree.leaves((args, kwargs))
        only_arrays = all(isinstance(leaf, jax.Array) for leaf in leaves)
        return (plain if only_arrays else filtered)(*args, **kwargs)

    return call
