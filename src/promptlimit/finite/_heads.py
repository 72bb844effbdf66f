"""One head in double precision: what the closed forms need of an attention."""

import dataclasses
from typing import Literal

import numpy as np

from promptlimit.attention import (
    AbstractAttention,
    Factored,
    LinearAttention,
    MultiHead,
    SoftmaxAttention,
)
from promptlimit.finite._array_types import Array, doubles

Kernel = Literal["softmax", "linear"]


@dataclasses.dataclass(frozen=True)
class MergedHead:
    r"""The head $z\mapsto V\,r(\mu,Uz)$, its factors multiplied out.

    Attributes:
        kernel: "softmax" or "linear".
        key_query: $U$, [token_dim, query_dim].
        value: $V$, [output_dim, token_dim].
    """

    kernel: Kernel
    key_query: Array
    value: Array

    def at(self, query: Array) -> "Head":
        """Return the head at one query."""
        return Head(self.kernel, self.key_query @ query, self.value, query)


@dataclasses.dataclass(frozen=True)
class Head:
    r"""The head $z\mapsto V\,r(\mu,t)$ at one query.

    Attributes:
        kernel: "softmax" or "linear".
        tilt: $t=Uz$, [token_dim].
        value: $V$, [output_dim, token_dim].
        query: $z$, [query_dim].
    """

    kernel: Kernel
    tilt: Array
    value: Array
    query: Array


@dataclasses.dataclass(frozen=True)
class Readout:
    r"""What is compared between prompts: outputs, or the gradient in one parameter matrix.

    The squared distance between two prompts at query z is $|Fz|^2$ (or `constant`) times that of
    $Vr$, or of $KCV^\top$ for a score matrix, $C=\partial r/\partial t$.

    Attributes:
        head: the head, its value matrix replaced by the $V$ above.
        left: $K$ for a score matrix, [k, token_dim]; None otherwise.
        constant: what multiplies the distance when it does not depend on the query...
        factor: ... and $F$ when it does, [f, query_dim].
    """

    head: MergedHead
    left: Array | None
    constant: float
    factor: Array | None

    def size(self, query: Array) -> float:
        """Return what multiplies the squared distance at a query."""
        if self.factor is None:
            return self.constant
        return float(np.sum((self.factor @ query) ** 2))


def merged(attention: AbstractAttention) -> MergedHead | None:
    """Return the attention as one head, or None when it is not one."""
    match attention:
        case SoftmaxAttention() | LinearAttention():
            matrices = doubles(attention.key_query), doubles(attention.value)
            return MergedHead(attention.kernel, *matrices)
        case Factored():
            key, value = doubles(attention.key_weight), doubles(attention.value_weight)
            key_query = attention.scale * (key.T @ doubles(attention.query_weight))
            return MergedHead(attention.kernel, key_query, _after(attention.output, value))
        case MultiHead(heads=(only,)):
            inner = merged(only)
            if inner is None:
                return None
            return dataclasses.replace(inner, value=_after(attention.output, inner.value))
    return None


def readout(  # noqa: PLR0911 - one line a matrix
    attention: AbstractAttention, wrt: str | None
) -> Readout | None:
    r"""Return what to compare for the output (None) or for a parameter's gradient, if one head.

    $\nabla_UT_i=Cv_iz^\top$ and $\nabla_{v_i}T_i=r$; with $U=c\,K^\top Q$ and a value matrix $OV$,
    $\nabla_KT_i=c\,Qz\,(Cv_i)^\top$, $\nabla_QT_i=c\,KCv_iz^\top$,
    $\partial T_i/\partial V=O_i\otimes r$ and $\partial T_i/\partial O_i=Vr$.
    """
    head = merged(attention)
    if head is None:
        return None
    outputs, (dim, query_dim) = float(head.value.shape[0]), head.key_query.shape
    reading = dataclasses.replace(head, value=np.eye(dim))
    match attention, wrt:
        case _, None:
            return Readout(head, None, 1.0, None)
        case ((SoftmaxAttention() | LinearAttention()), "value"):
            return Readout(reading, None, outputs, None)
        case ((SoftmaxAttention() | LinearAttention()), "key_query"):
            return Readout(head, np.eye(dim), 1.0, np.eye(query_dim))
        case Factored(), "key_weight":
            projected = attention.scale * doubles(attention.query_weight)
            return Readout(head, np.eye(dim), 1.0, projected)
        case Factored(), "query_weight":
            left = attention.scale * doubles(attention.key_weight)
            return Readout(head, left, 1.0, np.eye(query_dim))
        case Factored(), "output":
            inner = dataclasses.replace(head, value=doubles(attention.value_weight))
            return Readout(inner, None, outputs, None)
        case Factored(), "value_weight":
            output = attention.output
            size = outputs if output is None else float(np.sum(doubles(output) ** 2))
            return Readout(reading, None, size, None)
    return None


def _after(output: object, value: Array) -> Array:
    return value if output is None else doubles(output) @ value
