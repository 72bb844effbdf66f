"""One head by its merged parameters, as far as its prediction is concerned."""

from jaxtyping import Array

from promptlimit.attention import (
    AbstractAttention,
    Factored,
    LinearAttention,
    MultiHead,
    SoftmaxAttention,
)
from promptlimit.attention._kernels import KernelName


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
