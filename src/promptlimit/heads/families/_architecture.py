"""What a family of transformers says of itself for its heads to come out."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from jaxtyping import Array

from promptlimit.errors import ArgumentError, InputFileError
from promptlimit.heads.families._blocks import ACTIVATION, Weights
from promptlimit.heads.families._config import WITHOUT_WEIGHTS, Config


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbstractArchitecture(abc.ABC):
    """The shape of a transformer, and its forward pass cut where attention happens.

    Hashable, so that one compiled layer serves every layer; a family adds fields of its own.

    Attributes:
        prefixes: what classes of the family put before the names of their tensors.
        causal: whether a position sees only the tokens up to itself.
        rotary: whether positions enter by rotating queries and keys.
        model_type: the name in config.json.
        layers: number of layers.
        heads: query heads of a layer.
        key_heads: key and value heads of a layer; fewer than `heads` when queries share them.
        hidden: width of the residual stream.
        head_dim: width of one head.
        inner: width of the feed-forward part.
        vocabulary: number of token ids.
        positions: the longest prompt.
        epsilon: added to variances by the norms.
        activation: of the feed-forward part, a name of `ACTIVATION`.
        tied: whether next tokens are scored by the token embeddings (causal models).
    """

    prefixes: ClassVar[tuple[str, ...]] = ("",)
    causal: ClassVar[bool] = True
    rotary: ClassVar[bool] = False

    model_type: str
    layers: int
    heads: int
    key_heads: int
    hidden: int
    head_dim: int
    inner: int
    vocabulary: int
    positions: int
    epsilon: float
    activation: str
    tied: bool = True

    @classmethod
    @abc.abstractmethod
    def read(cls, model_type: str, config: Config) -> "AbstractArchitecture":
        """Return the architecture a config.json describes, or say why it is not supported."""

    @abc.abstractmethod
    def around(self) -> Mapping[str, Tensor]:
        """Return the arrays outside the layers by short names; `words` embeds the tokens."""

    @abc.abstractmethod
    def layer(self) -> Mapping[str, Tensor]:
        """Return the arrays of one layer by short names."""

    @abc.abstractmethod
    def embed(self, weights: Weights, ids: Array) -> Array:
        """Return the residual stream [n, hidden] of token ids [n]; `weights` are those around."""

    @abc.abstractmethod
    def project(self, weights: Weights, hidden: Array) -> Projected:
        """Return queries, keys and values of a layer, as the scores use them."""

    @abc.abstractmethod
    def output(self, weights: Weights, context: Array) -> Array:
        """Return the attention's output from the heads' outputs side by side, [n, heads d]."""

    @abc.abstractmethod
    def finish(self, weights: Weights, hidden: Array, attended: Array) -> Array:
        """Return the next residual stream from this one and the attention's output."""

    def close(self, weights: Weights, hidden: Array) -> Array:  # noqa: ARG002 - a default
        """Return what the family makes of the residual stream after the last layer."""
        return hidden

    def logits(self, weights: Weights, closed: Array) -> Array:
        """Return the scores of the next token, [n, vocabulary], for causal models."""
        return closed @ weights.get("unembed", weights["words"]).T

    def scale(self, layer: int) -> float:  # noqa: ARG002 - a default
        """Return the factor on the scores of a layer."""
        return 1.0 / math.sqrt(self.head_dim)


_FAMILIES: dict[str, type[AbstractArchitecture]] = {}
Class = TypeVar("Class", bound=type[AbstractArchitecture])


def register(*model_types: str) -> Callable[[Class], Class]:
    """Return a decorator that lets `load` read these `model_type`s of config.json by a class.

    The same class may be registered again, as when a notebook's cell is run twice; a type that
    another class reads is refused.
    """
    if not model_types or not all(isinstance(name, str) and name for name in model_types):
        raise ArgumentError("model_types", f"must be names of models, got {model_types}.")

    def decorator(family: Class) -> Class:
        for name in model_types:
            known = _FAMILIES.get(name, family)
            if (known.__module__, known.__qualname__) != (family.__module__, family.__qualname__):
                raise ArgumentError(
                    "model_types", f"must be free, got '{name}', which {known.__qualname__} reads."
                )
        _FAMILIES.update(dict.fromkeys(model_types, family))
        return family

    return decorator


def architecture(values: Mapping[str, Any], *, source: str = "config.json") -> AbstractArchitecture:
    """Return the architecture a configuration describes, or say why it is not supported."""
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in _FAMILIES:
        raise InputFileError(
            f"`model_type` in {source} must be one of {', '.join(_FAMILIES)}, got "
            f"{model_type!r}. {WITHOUT_WEIGHTS}"
        )
    shape = _FAMILIES[model_type].read(model_type, Config(values, source))
    if shape.activation not in ACTIVATION:
        raise InputFileError(
            f"the activation in {source} must be one of {', '.join(ACTIVATION)}, "
            f"got {shape.activation!r}."
        )
    if shape.heads % shape.key_heads:
        raise InputFileError(
            f"`num_key_value_heads` in {source} must divide the {shape.heads} heads, "
            f"got {shape.key_heads}."
        )
    return shape
