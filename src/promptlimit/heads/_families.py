"""What a family must say of itself for its heads to come out: names, shapes and four maps."""

import dataclasses
from collections.abc import Callable, Mapping

from jaxtyping import Array

from promptlimit.heads._blocks import Weights
from promptlimit.heads._config import Architecture


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Where an array lies in the file; `{layer}` in the name is the layer's number.

    Attributes:
        name: its name without the prefix that the model's class puts before it.
        shape: its shape in the file.
        transposed: whether the file stores [outputs, inputs] where the code multiplies rows.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


Projected = tuple[Array, Array, Array]
"""Queries [heads, n, d], keys and values [key heads, n, d]."""


@dataclasses.dataclass(frozen=True)
class ForwardPass:
    """One family's forward pass, cut where attention happens.

    Attributes:
        around: the arrays outside the layers.
        layer: the arrays of one layer.
        embed: from ids to the residual stream.
        project: from the residual stream to queries, keys and values of a layer.
        output: from the heads' outputs side by side to the attention's output.
        finish: from the residual stream and the attention's output to the next residual stream.
        close: what happens after the last layer.
        logits: scores of the next token, for causal models.
    """

    around: Callable[[Architecture], Mapping[str, Tensor]]
    layer: Callable[[Architecture], Mapping[str, Tensor]]
    embed: Callable[[Weights, Architecture, Array], Array]
    project: Callable[[Weights, Architecture, Array], Projected]
    output: Callable[[Weights, Array], Array]
    finish: Callable[[Weights, Architecture, Array, Array], Array]
    close: Callable[[Weights, Architecture, Array], Array]
    logits: Callable[[Weights, Array], Array] | None = None
