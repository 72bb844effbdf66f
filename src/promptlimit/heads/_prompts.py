"""Prompts and all heads over them, from a model and a text, or from existing heads."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from promptlimit._arrays import require_unmasked, require_whole
from promptlimit.errors import ArgumentError
from promptlimit.heads._head import Head
from promptlimit.heads._model import LayerHeads, Model

_MEMORY = 512 * 2**20
_ARRAYS = ("queries", "keys", "values")
HeadLists = Sequence[Head] | Sequence[Sequence[Head]] | Sequence[Sequence[Sequence[Head]]]
"""Heads of one layer, of several layers, or of several layers over several prompts."""
TextOrIds = str | np.ndarray | list[int] | list[list[int]]
"""A text, a list of token ids to cut into windows, or windows of token ids, one per row."""

USUAL = 512
"""The default number of tokens of a window, if the model accepts as many."""


@dataclasses.dataclass(frozen=True)
class CapturedHeads:
    """Every head of a model over one prompt or several, without the model's weights.

    `promptlimit.save` writes it to an .npz file, which `promptlimit heads FILE` reads.

    Attributes:
        prompts: the heads; `prompts[p][layer][h]` is head h of a layer over prompt p.
        name: the name of the model.
        model_type: the family of the model, or the name of its class.
        rotary: whether the model rotates queries and keys by their position; they are stored after
            rotation.
        parity: the relative error of each layer's attention output when rebuilt from its heads,
            [layers]; NaN if the output of the model is not known.
        layer_names: the name of each layer's attention module; empty if unknown.
    """

    prompts: Sequence[Sequence[Sequence[Head]]]
    name: str = "heads"
    model_type: str = "arrays"
    rotary: bool = False
    parity: np.ndarray = dataclasses.field(default_factory=lambda: np.array([np.nan]))
    layer_names: Sequence[str] = ()

    def __post_init__(self) -> None:
        if _depths(self.prompts) != {3}:
            raise ArgumentError(
                "prompts",
                "must be a list of prompts, each a list of layers, each a list of heads, got "
                f"{type(self.prompts).__name__}.",
            )


@dataclasses.dataclass(frozen=True)
class HeadPrompts:
    """Prompts of one shape, and a function that returns their heads.

    Attributes:
        name: the name of the model.
        model_type: the family of the model.
        causal: whether the prompt of a query ends at the position of the query.
        rotary: whether the model rotates queries and keys by their position; they are used after
            rotation.
        parity: the relative error of each layer's attention output when rebuilt from its heads,
            [layers].
        scales: the factor on the scores, [layers, heads].
        count: the number of prompts.
        length: the number of tokens of a prompt.
        widths: the dimensions of a key and of a value.
        layers: a function that returns the heads of a prompt, layer after layer, from its index.
        contents: a function that returns all arrays and descriptions on which the heads depend.
    """

    name: str
    model_type: str
    causal: bool
    rotary: bool
    parity: np.ndarray
    scales: np.ndarray
    count: int
    length: int
    widths: tuple[int, int]
    layers: Callable[[int], Iterable[LayerHeads]]
    contents: Callable[[], Iterable[object]]

    def described(self) -> dict[str, Any]:
        """Return the fields of an atlas that describe the model and the prompts."""
        return {
            "model": self.name,
            "model_type": self.model_type,
            "window": self.length,
            "windows": self.count,
            "rotary": self.rotary,
            "parity": self.parity,
        }


def prompts_of(
    model: Model | CapturedHeads | HeadLists,
    text_or_ids: TextOrIds | None,
    window: int | None,
    windows: int | None,
    *,
    usual: int = USUAL,
    readings: int = 2,
) -> HeadPrompts:
    """Return the windows of a text, or existing heads, as prompts.

    Args:
        model: the result of `load` or of `capture`, or lists of heads.
        text_or_ids: a text, token ids, or windows of token ids; None for existing heads.
        window: the number of tokens of a prompt; by default the longest prompt of the model, at
            most `usual`.
        windows: the largest number of prompts.
        usual: the largest default of `window`.
        readings: the number of times that the caller reads the heads of each prompt.
    """
    if windows is not None:
        require_whole("windows", windows, 1)
    if isinstance(model, Model):
        if text_or_ids is None:
            raise ArgumentError("text_or_ids", "must be given for a model to read, got None.")
        length = min(usual, model.shape.positions) if window is None else window
        cut = windows_of(model, text_or_ids, window=length, at_most=windows)
        return prompts_of_model(model, cut, readings)
    prompts = prompts_of_heads(model)
    for name, value in (("text_or_ids", text_or_ids), ("window", window), ("windows", windows)):
        if value is not None:
            raise ArgumentError(
                name,
                "must be omitted for heads, which include their prompts, "
                f"got {type(value).__name__}.",
            )
    if prompts.length < 8:
        raise ArgumentError(
            "model",
            f"must be heads over at least 8 tokens, got {prompts.length}. Pass a longer prompt.",
        )
    return prompts


def prompts_of_model(model: Model, cut: np.ndarray, readings: int = 2) -> HeadPrompts:
    """Return windows of token ids, [windows, window], as prompts.

    If `readings` is 2, the heads of the first windows are kept in memory from the first to the
    second reading, up to 512 MiB.
    """
    shape = model.shape
    room = (
        (readings > 1)
        * _MEMORY
        // (12 * shape.layers * shape.heads * shape.head_dim * cut.shape[1])
    )
    kept: dict[int, list[LayerHeads]] = {}

    def layers(index: int) -> Iterable[LayerHeads]:
        if index in kept:
            return kept.pop(index)
        reading = (heads for heads, _, _ in model.layer_outputs(cut[index]))
        if index < room:
            kept[index] = list(reading)
            return kept[index]
        return reading

    scales = np.array([[shape.scale(layer)] * shape.heads for layer in range(shape.layers)])
    return HeadPrompts(
        name=model.name,
        model_type=shape.model_type,
        causal=shape.causal,
        rotary=shape.rotary,
        parity=model.parity,
        scales=scales,
        count=cut.shape[0],
        length=cut.shape[1],
        widths=(shape.head_dim, shape.head_dim),
        layers=layers,
        contents=lambda: [cut, *model.contents()],
    )


def prompts_of_heads(heads: CapturedHeads | HeadLists) -> HeadPrompts:
    """Return existing heads as prompts, or raise `ArgumentError` if their shapes differ."""
    captured = heads if isinstance(heads, CapturedHeads) else CapturedHeads(_by_prompt(heads))
    first = _require_alike(captured.prompts)

    def layers(index: int) -> Iterable[LayerHeads]:
        for layer in captured.prompts[index]:
            yield LayerHeads(*(jnp.stack([getattr(h, name) for h in layer]) for name in _ARRAYS))

    scales = _scales(captured.prompts)
    return HeadPrompts(
        name=captured.name,
        model_type=captured.model_type,
        causal=first.causal,
        rotary=captured.rotary,
        parity=np.broadcast_to(captured.parity, len(scales)),
        scales=scales,
        count=len(captured.prompts),
        length=len(first.keys),
        widths=(first.keys.shape[1], first.values.shape[1]),
        layers=layers,
        contents=lambda: [scales, first.causal, *_arrays(captured.prompts)],
    )


def _by_prompt(heads: object) -> Sequence[Sequence[Sequence[Head]]]:
    """Return heads as a list of prompts, each a list of layers, each a list of heads."""
    depths = _depths(heads)
    if len(depths) != 1 or not depths <= {1, 2, 3}:
        mixed = " of lists and heads side by side" if len(depths) > 1 else ""
        raise ArgumentError(
            "model",
            "must be a model from `load`, the result of `capture`, or a list of heads (of lists "
            f"for layers, of lists of lists for prompts), got {type(heads).__name__}{mixed}.",
        )
    nested: Any = heads
    for _ in range(3 - min(depths)):
        nested = [nested]
    return nested


def _depths(heads: object, depth: int = 0) -> set[int]:
    """Return the depths, 1 to 3, at which heads occur in nested lists; 0 for anything else."""
    if isinstance(heads, Head):
        return {depth}
    if depth == 3 or isinstance(heads, str) or not isinstance(heads, Sequence) or not heads:
        return {0}
    return set[int]().union(*(_depths(part, depth + 1) for part in heads))


def _require_alike(prompts: Sequence[Sequence[Sequence[Head]]]) -> Head:
    """Return the first head; raise an error unless all layers and heads have the same shape."""
    first, counts = prompts[0][0][0], len(prompts[0][0])
    for number, prompt in enumerate(prompts):
        if len(prompt) != len(prompts[0]):
            raise ArgumentError(
                "model",
                f"must have the {len(prompts[0])} layers of the first prompt in every "
                f"prompt, got {len(prompt)} in prompt {number}.",
            )
        for place, layer in enumerate(prompt):
            if len(layer) != counts:
                raise ArgumentError(
                    "model",
                    f"must have {counts} heads in every layer, got {len(layer)} in layer {place}. "
                    "Pass only layers that agree.",
                )
            for head in layer:
                if _form(head) != _form(first):
                    raise ArgumentError(
                        "model",
                        f"must have heads of one shape, got {_form(first)} in layer 0 and "
                        f"{_form(head)} in layer {place} of prompt {number}. Pass only layers that "
                        "agree.",
                    )
    return first


def _form(head: Head) -> str:
    sizes = " x ".join(str(size) for size in (len(head.queries), *head.keys.shape))
    kind = "causal" if head.causal else "not causal"
    return f"queries x keys x width {sizes}, values of {head.values.shape[1]}, {kind}"


def _arrays(prompts: Sequence[Sequence[Sequence[Head]]]) -> list[np.ndarray]:
    return [
        getattr(head, name)
        for prompt in prompts
        for layer in prompt
        for head in layer
        for name in _ARRAYS
    ]


def _scales(prompts: Sequence[Sequence[Sequence[Head]]]) -> np.ndarray:
    return np.array([[head.scale for head in layer] for layer in prompts[0]])


def windows_of(
    model: Model, text_or_ids: TextOrIds, *, window: int | None = None, at_most: int | None = None
) -> np.ndarray:
    """Return token ids cut into windows, [windows, window]; an incomplete last window is dropped.

    Each window of a text includes the special tokens that the tokenizer adds at both ends. At most
    `at_most` windows are returned. By default, `window` is the number of tokens of the longest
    prompt of the model, at most 512.
    """
    if at_most is not None:
        require_whole("at_most", at_most, 1)
    window = min(USUAL, model.shape.positions) if window is None else window
    _require_window(model, window)
    if isinstance(text_or_ids, str):
        first, ids, last = _encoded(model.tokenizer, text_or_ids)
        room = window - len(first) - len(last)
        if room < 1:
            raise ArgumentError(
                "window",
                f"must exceed the tokenizer's {len(first) + len(last)} special tokens, "
                f"got {window}.",
            )
        cut = _cut(ids, room, window)
        ends = [np.tile(np.array(part, np.int64), (len(cut), 1)) for part in (first, last)]
        windows = np.concatenate([ends[0], cut, ends[1]], axis=1)
    else:
        require_unmasked("text_or_ids", text_or_ids)
        array = np.asarray(text_or_ids)
        if array.ndim not in {1, 2} or array.dtype.kind not in "iu" or array.size == 0:
            raise ArgumentError(
                "text_or_ids",
                "must be a text or whole numbers in one or two dimensions, got shape "
                f"{array.shape}, dtype {array.dtype}.",
            )
        if array.ndim == 2 and array.shape[1] != window:
            raise ArgumentError(
                "text_or_ids",
                f"must have rows of the window's {window} tokens, got {array.shape[1]}.",
            )
        windows = array if array.ndim == 2 else _cut(array, window, window)
    return windows if at_most is None else windows[:at_most]


def _require_window(model: Model, window: int) -> None:
    longest = model.shape.positions
    if isinstance(window, bool) or not isinstance(window, int) or not 8 <= window <= longest:
        raise ArgumentError(
            "window", f"must be from 8 to the model's {longest} positions, got {window}."
        )


def _cut(ids: np.ndarray, room: int, window: int) -> np.ndarray:
    count = len(ids) // room
    if count == 0:
        raise ArgumentError(
            "text_or_ids",
            f"must fill a window of {window} tokens, got {len(ids)} tokens. "
            "Pass more text or a smaller window.",
        )
    return np.asarray(ids[: count * room], np.int64).reshape(count, room)


def _encoded(tokenizer: Any, text: str) -> tuple[list[int], np.ndarray, list[int]]:
    """Return the special tokens before a text, its tokens, and the special tokens after it."""
    if tokenizer is None:
        raise ArgumentError(
            "text_or_ids",
            "must be token ids, got a text, for a model without tokenizer.json, or "
            "whose GGUF file has a tokenizer that is not supported.",
        )
    try:
        whole = tokenizer.encode(text, add_special_tokens=True)
    except Exception as problem:  # the package raises Exception itself
        raise ArgumentError(
            "text_or_ids",
            f"must be a text that tokenizer.json can read, but {problem}. "
            "Does the tokenizer belong to this model?",
        ) from None
    own = [place for place, added in enumerate(whole.special_tokens_mask) if not added]
    start, end = (own[0], own[-1] + 1) if own else (len(whole.ids),) * 2
    return whole.ids[:start], np.array(whole.ids[start:end], np.int64), whole.ids[end:]
