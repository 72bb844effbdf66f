"""One head by its merged parameters, as far as its prediction is concerned."""

import dataclasses
import math

from jaxtyping import Array

from promptlimit.attention import (
    AbstractAttention,
    Factored,
    LinearAttention,
    MultiHead,
    SoftmaxAttention,
)
from promptlimit.attention._kernels import KernelName
from promptlimit.tasks._regression import LinearRegression


def is_one_head(attention: AbstractAttention) -> bool:
    """Return whether the attention is one head, however it is written."""
    if isinstance(attention, MultiHead):
        return len(attention.heads) == 1 and is_one_head(attention.heads[0])
    return isinstance(attention, SoftmaxAttention | LinearAttention | Factored)


def merged_head(attention: AbstractAttention) -> tuple[KernelName, Array, Array]:
    """Return the kernel, U and V of one head; differentiable."""
    match attention:
        case SoftmaxAttention() | LinearAttention():
            return attention.kernel, attention.key_query, attention.value
        case Factored():
            return merged_head(attention.merged())
        case MultiHead(heads=(only,), output=output):
            kernel, key_query, value = merged_head(only)
            return kernel, key_query, value if output is None else output @ value
    raise AssertionError("only one head has merged parameters")


@dataclasses.dataclass(frozen=True)
class Regressor:
    """One head on Gaussian regression at one length.

    Attributes:
        task: the regression.
        length: the number of tokens of a prompt.
        kernel: "softmax" or "linear".
        key_query: U, [d + 1, d + 1].
        value_row: the last row of V, [d + 1].
    """

    task: LinearRegression
    length: float
    kernel: KernelName
    key_query: Array
    value_row: Array

    @classmethod
    def of(cls, attention: AbstractAttention, task: LinearRegression, length: float) -> "Regressor":
        """Return the one head that an attention is."""
        kernel, key_query, value = merged_head(attention)
        return cls(task, length, kernel, key_query, value[-1])

    @property
    def is_polynomial(self) -> bool:
        """Whether the risk is a polynomial in the parameters."""
        return self.kernel == "linear" or math.isinf(self.length)


@dataclasses.dataclass(frozen=True)
class Averaged:
    """A mean over points: its value, its error, and how many points it took."""

    value: float
    error: float
    points: int
