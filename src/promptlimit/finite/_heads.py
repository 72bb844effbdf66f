"""One head in double precision: what the closed forms need of an attention."""

import dataclasses
from typing import Literal

from promptlimit.attention import (
    AbstractAttention,
    Factored,
    LinearAttention,
    MultiHead,
    SoftmaxAttention,
)
from promptlimit.finite._array_types import Array, doubles


@dataclasses.dataclass(frozen=True)
class Head:
    r"""The head $z\mapsto V\,r(\mu,t)$ at one query.

    Attributes:
        kernel: "softmax" or "linear".
        tilt: $t=Uz$, [token_dim].
        value: $V$, [output_dim, token_dim].
        query: $z$, [query_dim].
    """

    kernel: Literal["softmax", "linear"]
    tilt: Array
    value: Array
    query: Array


def merged_head(attention: AbstractAttention, query: Array) -> Head | None:
    """Return the attention as one head at this query, or None when it is not one."""
    match attention:
        case SoftmaxAttention() | LinearAttention():
            tilt = doubles(attention.key_query) @ query
            return Head(attention.kernel, tilt, doubles(attention.value), query)
        case Factored():
            key, value = doubles(attention.key_weight), doubles(attention.value_weight)
            tilt = attention.scale * (key.T @ (doubles(attention.query_weight) @ query))
            return Head(attention.kernel, tilt, _after(attention.output, value), query)
        case MultiHead(heads=(only,)):
            inner = merged_head(only, query)
            if inner is None:
                return None
            return dataclasses.replace(inner, value=_after(attention.output, inner.value))
    return None


def _after(output: object, value: Array) -> Array:
    return value if output is None else doubles(output) @ value
