"""The interface of a family of transformers, from which its heads are extracted.

A family is a class with the shape of the network and its forward pass before and after the
attention. `Config` validates the configuration, which is not trusted. The functions at the end of
this module are building blocks of forward passes.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit.errors import ArgumentError, InputFileError

WITHOUT_WEIGHTS = (
    "Capture its heads while it runs, which works for every family: "
    "promptlimit.heads.atlas(promptlimit.heads.capture(model, ids))."
)
"""A suggestion for models that cannot be read from their files."""
_LARGEST = 2**24
_HUGE = 1e30
Weights = Mapping[str, Array]
"""The arrays of one layer, or those outside the layers, by their short names."""

ACTIVATION: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Named values from config.json or another source, with the name of the source."""

    values: Mapping[str, Any]
    source: str = "config.json"

    def get(self, name: str, default: object = None) -> Any:
        """Return a value without checking it."""
        return self.values.get(name, default)

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a value that must be a whole number from `least` to 2**24."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
            raise InputFileError(
                f"`{name}` in {self.source} must be a whole number from {least} to {_LARGEST}, "
                f"got {value!r:.40}."
            )
        return value

    def positive(self, name: str, default: float) -> float:
        """Return a value that must be a positive number."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _HUGE:
            raise InputFileError(
                f"`{name}` in {self.source} must be positive and below {_HUGE:g}, "
                f"got {value!r:.40}."
            )
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a value that must be true or false."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise InputFileError(
                f"`{name}` in {self.source} must be true or false, got {value!r:.40}."
            )
        return value

    def share(self, total: str, parts: str) -> int:
        """Return the quotient of the whole numbers named `total` and `parts`."""
        whole, count = self.whole(total), self.whole(parts)
        if whole % count:
            raise InputFileError(
                f"the hidden size in {self.source} must be a multiple of the {count} heads, "
                f"got {whole}."
            )
        return whole // count

    def require(self, name: str, expected: object) -> None:
        """Raise an error unless a value is missing or equal to `expected`."""
        value = self.get(name, expected)
        if type(value) is not type(expected) or value != expected:
            raise InputFileError(
                f"`{name}` in {self.source} must be {expected!r}, got {value!r:.40}. "
                f"{WITHOUT_WEIGHTS}"
            )


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array in the file of a model.

    Attributes:
        name: the name of the array without its prefix (`AbstractArchitecture.prefixes`), where
            `{layer}` stands for the index of the layer.
        shape: the shape of the array in the file.
        transposed: whether the file stores a matrix as [outputs, inputs]. Such a matrix is
            transposed when it is read.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False


def affine_tensors(
    short: str, name: str, inputs: int, outputs: int, *, bias: bool = True, transposed: bool = True
) -> dict[str, Tensor]:
    """Return the tensors `name.weight` and, if there is a bias, `name.bias`, by short names."""
    shape = (outputs, inputs) if transposed else (inputs, outputs)
    tensors = {short: Tensor(f"{name}.weight", shape, transposed)}
    return tensors | ({f"{short}_bias": Tensor(f"{name}.bias", (outputs,))} if bias else {})


def norm_tensors(short: str, name: str, width: int, *, bias: bool = True) -> dict[str, Tensor]:
    """Return the tensors of a norm by their short names."""
    tensors = {short: Tensor(f"{name}.weight", (width,))}
    return tensors | ({f"{short}_bias": Tensor(f"{name}.bias", (width,))} if bias else {})


Projected = tuple[Array, Array, Array]
"""Queries [heads, n, d], keys [key heads, n, d] and values [key heads, n, d]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbstractArchitecture(abc.ABC):
    """The shape of a transformer, and its forward pass before and after the attention.

    Objects are hashable, so that all layers use the same compiled program. A family may add fields.

    Attributes:
        prefixes: the possible prefixes of the names of tensors; the class that saved the model
            determines the prefix.
        causal: whether each token attends only to itself and the tokens before it.
        rotary: whether positions enter by rotating queries and keys.
        model_type: the name of the architecture in config.json.
        layers: the number of layers.
        heads: the number of query heads of a layer.
        key_heads: the number of key and value heads of a layer; smaller than `heads` if query heads
            share keys and values.
        hidden: the width of the residual stream.
        head_dim: the width of one head.
        inner: the width of the feed-forward network.
        vocabulary: the number of token ids.
        positions: the number of tokens of the longest prompt.
        epsilon: the number that norms add to variances.
        activation: the activation of the feed-forward network, a key of `ACTIVATION`.
        tied: whether a causal model computes logits from its token embeddings.
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
        """Return the architecture that a config.json describes, or raise `InputFileError`."""

    @abc.abstractmethod
    def around(self) -> Mapping[str, Tensor]:
        """Return the arrays outside the layers by short names, with "words" for the embeddings."""

    @abc.abstractmethod
    def layer(self) -> Mapping[str, Tensor]:
        """Return the arrays of one layer by short names."""

    @abc.abstractmethod
    def embed(self, weights: Weights, ids: Array) -> Array:
        """Return the residual stream [n, hidden] of token ids [n]; `weights` are from `around`."""

    @abc.abstractmethod
    def project(self, weights: Weights, hidden: Array) -> Projected:
        """Return queries, keys and values of a layer, after any rotation."""

    @abc.abstractmethod
    def finish(self, weights: Weights, hidden: Array, attended: Array) -> Array:
        """Return the residual stream after a layer.

        Args:
            weights: the arrays of the layer.
            hidden: the residual stream before the layer, [n, hidden].
            attended: the output of the attention, [n, hidden].
        """

    def output(self, weights: Weights, context: Array) -> Array:
        """Return the output of the attention from the concatenated outputs of the heads."""
        return linear(weights, "out", context)

    def close(self, weights: Weights, hidden: Array) -> Array:  # noqa: ARG002 - a default
        """Return the last hidden state: the residual stream after the final norm, if any."""
        return hidden

    def normed(self, weights: Weights, name: str, rows: Array) -> Array:
        """Return rows after a norm: `layer_norm` if there is a bias, otherwise `rms_norm`."""
        if (bias := weights.get(f"{name}_bias")) is None:
            return rms_norm(rows, weights[name], self.epsilon)
        return layer_norm(rows, weights[name], bias, self.epsilon)

    def logits(self, weights: Weights, closed: Array) -> Array:
        """Return logits of the next token, [n, vocabulary], from the last hidden state `closed`."""
        return closed @ weights.get("unembed", weights["words"]).T

    def scale(self, layer: int) -> float:  # noqa: ARG002 - a default
        """Return the factor on the scores of a layer."""
        return 1.0 / math.sqrt(self.head_dim)


_FAMILIES: dict[str, type[AbstractArchitecture]] = {}
Class = TypeVar("Class", bound=type[AbstractArchitecture])


def register(*model_types: str) -> Callable[[Class], Class]:
    """Return a decorator that registers a class for these values of `model_type` in config.json.

    The same class may be registered again, for example by running a notebook cell twice. A value
    that is already registered for another class raises an error.
    """
    if not model_types or not all(isinstance(name, str) and name for name in model_types):
        raise ArgumentError("model_types", f"must be names of models, got {model_types}.")

    def decorator(family: Class) -> Class:
        for name in model_types:
            known = _FAMILIES.get(name, family)
            if (known.__module__, known.__qualname__) != (family.__module__, family.__qualname__):
                raise ArgumentError(
                    "model_types",
                    f"must be unregistered, got '{name}', which belongs to {known.__qualname__}.",
                )
        _FAMILIES.update(dict.fromkeys(model_types, family))
        return family

    return decorator


def architecture(values: Mapping[str, Any], *, source: str = "config.json") -> AbstractArchitecture:
    """Return the architecture that a configuration describes, or raise `InputFileError`."""
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


def layer_norm(
    rows: Float[Array, "n d"], weight: Float[Array, " d"], bias: Float[Array, " d"], epsilon: float
) -> Float[Array, "n d"]:
    """Return the rows centred, divided by their standard deviation, then scaled and shifted."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon) * weight[None] + bias[None]


def rms_norm(
    rows: Float[Array, "n d"], weight: Float[Array, " d"], epsilon: float
) -> Float[Array, "n d"]:
    """Return the rows divided by their root mean square, then scaled."""
    return rows / jnp.sqrt((rows**2).mean(axis=1, keepdims=True) + epsilon) * weight[None]


def affine(
    rows: Float[Array, "n d"], weight: Float[Array, "d e"], bias: Float[Array, " e"] | None = None
) -> Float[Array, "n e"]:
    """Return `rows @ weight + bias`."""
    product = rows @ weight
    return product if bias is None else product + bias[None]


def linear(weights: Weights, name: str, rows: Float[Array, "n d"]) -> Float[Array, "n e"]:
    """Return `rows @ weights[name]`, plus the bias of this name if there is one."""
    return affine(rows, weights[name], weights.get(f"{name}_bias"))


def split_heads(rows: Float[Array, "n wide"], heads: int) -> Float[Array, "heads n d"]:
    """Return the rows with their columns split into heads, each of consecutive columns."""
    return rows.reshape(rows.shape[0], heads, -1).transpose(1, 0, 2)


def rotated(
    rows: Float[Array, "heads n d"], positions: Float[Array, " n"], theta: float
) -> Float[Array, "heads n d"]:
    r"""Return queries or keys rotated by their position (RoPE).

    At position p, the pair of coordinates $j$ and $j+d/2$ is rotated by the angle
    $p\,\theta^{-2j/d}$.
    """
    half = rows.shape[2] // 2
    frequency = theta ** (-jnp.arange(half, dtype=rows.dtype) / half)
    angle = positions[:, None] * frequency[None]
    cos, sin = jnp.cos(angle)[None], jnp.sin(angle)[None]
    left, right = rows[:, :, :half], rows[:, :, half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=2)
