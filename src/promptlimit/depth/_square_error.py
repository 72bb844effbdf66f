"""What a finite prompt adds to the square error of a stack's predictions, to order 1/L."""

import dataclasses

import numpy as np

from promptlimit._arrays import Array
from promptlimit.depth._bias import fluctuation_bias
from promptlimit.depth._fluctuations import fluctuation_cov
from promptlimit.depth._gaussian_stack import GaussianStack

_AT_ONCE = 256
"""Stacks at a time: more would not stay near the processor."""


def square_error_slopes(
    stack: GaussianStack, queries: Array, readout: Array, targets: Array
) -> Array:
    r"""Return $\lim_LL\{E(e'\Phi_L-y)^2-(e'\Phi-y)^2\}=2(e'\Phi-y)\,e'b+e'Ce$, [n].

    The mean over stacks, queries and targets is what one over L multiplies in the mean square
    error of in-context predictions: each prompt has its own law of tokens.

    Args:
        stack: n laws of tokens under the same layers: mean [n, d], cov [n, d, d].
        queries: [n, d].
        readout: $e$, [e].
        targets: $y$, [n].

    Raises:
        KindUnavailableError: a layer is too sharp for one of the laws.
    """
    slopes = np.empty(len(queries))
    for start in range(0, len(queries), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        some = dataclasses.replace(stack, mean=stack.mean[part], cov=stack.cov[part])
        error = some.output(queries[part]) @ readout - targets[part]
        bias = fluctuation_bias(some, queries[part]) @ readout
        variance = fluctuation_cov(some, queries[part]) @ readout @ readout
        slopes[part] = 2.0 * error * bias + variance
    return slopes
