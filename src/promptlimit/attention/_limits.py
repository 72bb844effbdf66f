"""Comparison of softmax and linear attention over the same prompt."""

import jax
import numpy as np

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import in_double
from promptlimit.attention._abstract import AbstractAttention
from promptlimit.attention._heads import LinearAttention, SoftmaxAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.results import Limits


def limits(attention: AbstractAttention, measure: AbstractMeasure, query: ArrayLike) -> Limits:
    r"""Return $V\nabla\Lambda_\mu(Uz)$ (softmax) and $V E_\mu[z'z'^\top]\,Uz$ (linear).

    Both limits are computed in double precision, from the same matrices $U$ and $V$.

    Args:
        attention: one head; its kernel has no effect.
        measure: $\mu$, the law of a token, or a finite prompt.
        query: $z$.

    >>> import promptlimit as pl
    >>> head = pl.SoftmaxAttention([[0.5]], [[1.0]])
    >>> both = limits(head, pl.Gaussian([1.0], [[2.0]]), [1.0])
    >>> print(both.softmax, both.linear)
    [2.] [1.5]
    """
    with jax.enable_x64(True):
        head = in_double(attention).single_head()
        if head is None:
            raise ArgumentError("attention", f"must be one head, got {type(attention).__name__}.")
        law, point = in_double(measure), np.asarray(query, np.float64)
        softmax, linear = (
            np.asarray(kernel(head.key_query, head.value)(law, point))
            for kernel in (SoftmaxAttention, LinearAttention)
        )
    if not (np.isfinite(softmax).all() and np.isfinite(linear).all()):
        raise ArgumentError(
            "attention",
            "must have outputs in the range of double precision, got overflow. Rescale its "
            "matrices, the prompt or the query.",
        )
    return Limits(softmax, linear, "exact" if isinstance(measure, Empirical) else "limit", 0.0)
