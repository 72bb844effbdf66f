"""Prompts of which every head can be had: read by a model, or captured from one that ran."""

import dataclasses
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from promptlimit.errors import ArgumentError, InputFileError
from promptlimit.heads._forward import LayerHeads
from promptlimit.heads._head import Head
from promptlimit.heads._model import Model
from promptlimit.heads._windows import USUAL, TextOrIds, windows_of
from promptlimit.storage import read_arrays, write_bytes

_MEMORY = 512 * 2**20
_ARRAYS = ("queries", "keys", "values")
_STORED = {*_ARRAYS, "scales", "causal", "rotary", "parity", "name", "model_type", "layer_names"}
HeadLists = Sequence[Head] | Sequence[Sequence[Head]] | Sequence[Sequence[Sequence[Head]]]
"""Heads of one layer; of several layers; or of several layers over several prompts."""


@dataclasses.dataclass(frozen=True)
class CapturedHeads:
    """Every head of a model over one prompt or several, without the model's weights.

    Attributes:
        prompts: the heads; `prompts[p][layer][h]` is head h of a layer over prompt p.
        name: of the model.
        model_type: its family, or the name of its class.
        rotary: whether the model is known to rotate queries and keys; they are taken after that.
        parity: relative error of each layer's attention output rebuilt from its heads, [layers];
            NaN where there was no output to compare with.
        layer_names: the module in which each layer's attention happened, where it is known.
    """

    prompts: Sequence[Sequence[Sequence[Head]]]
    name: str = "heads"
    model_type: str = "arrays"
    rotary: bool = False
    parity: np.ndarray = dataclasses.field(default_factory=lambda: np.array([np.nan]))
    layer_names: Sequence[str] = ()

    def save(self, path: str | Path) -> None:
        """Write all heads to one .npz file, which `promptlimit heads FILE` reads."""
        _require_alike(self.prompts)
        arrays = {
            name: np.array([[[getattr(head, name) for head in layer] for layer in prompt]
                            for prompt in self.prompts])
            for name in _ARRAYS
        }  # fmt: skip
        arrays |= {
            "scales": _scales(self.prompts),
            "causal": np.array(self.prompts[0][0][0].causal),
        }
        arrays |= {"rotary": np.array(self.rotary)}
        arrays |= {"parity": self.parity} if np.isfinite(self.parity).all() else {}
        words = {"name": self.name, "model_type": self.model_type}
        words |= {"layer_names": "\n".join(self.layer_names)}
        content = io.BytesIO()
        np.savez(
            content, allow_pickle=False, **arrays, **{n: np.array(w) for n, w in words.items()}
        )
        write_bytes(Path(path), content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "CapturedHeads":
        """Return what `save` wrote, or say why a file cannot be used."""
        stored = read_arrays(str(path), _STORED)
        numbers = {name: value for name, value in stored.items() if isinstance(value, np.ndarray)}
        words = {name: value for name, value in stored.items() if isinstance(value, str)}
        for name, ndim in (*((name, 5) for name in _ARRAYS), ("scales", 2), ("causal", 0)):
            shape = numbers[name].shape if name in numbers else None
            if shape is None or len(shape) != ndim or 0 in shape:
                raise InputFileError(
                    f"{path} must hold heads that CapturedHeads.save wrote, but '{name}' "
                    f"{'is missing' if shape is None else f'has shape {shape}'}."
                )
        shape, causal = numbers["queries"].shape, bool(numbers["causal"])
        if numbers["scales"].shape != shape[1:3] or any(
            numbers[name].shape[:3] != shape[:3] for name in _ARRAYS
        ):
            raise InputFileError(
                f"{path} must hold as many queries, keys, values and scales, but it does not."
            )

        def head(place: tuple[int, int, int]) -> Head:
            arrays = (numbers[name][place] for name in _ARRAYS)
            return Head(*arrays, scale=float(numbers["scales"][place[1:]]), causal=causal)

        try:
            prompts = [
                [[head((i, j, k)) for k in range(shape[2])] for j in range(shape[1])]
                for i in range(shape[0])
            ]
        except ValueError as problem:
            raise InputFileError(f"{path} must hold usable heads, but {problem}") from None
        parity = numbers.get("parity", np.array([]))
        names = words.get("layer_names", "").split("\n")
        return cls(
            prompts,
            name=words.get("name", Path(path).stem),
            model_type=words.get("model_type", "arrays"),
            rotary=bool(numbers.get("rotary", np.zeros(())).any()),
            parity=parity if parity.shape == shape[1:2] else np.full(shape[1], np.nan),
            layer_names=names if len(names) == shape[1] else (),
        )


@dataclasses.dataclass(frozen=True)
class HeadPrompts:
    """Prompts of one shape and the heads over them, layer after layer, as often as asked.

    Attributes:
        name: of the model.
        model_type: its family.
        causal: whether a query's prompt ends with the query.
        rotary: whether keys are taken after rotation.
        parity: relative error of each layer's attention output rebuilt from its heads, [layers].
        scales: the factor on the scores, [layers, heads].
        count: number of prompts.
        length: tokens of a prompt.
        widths: coordinates of a key and of a value.
        layers: from the number of a prompt to its heads.
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


def prompts_of(
    model: Model | CapturedHeads | HeadLists,
    text_or_ids: TextOrIds | None,
    window: int | None,
    windows: int | None,
    *,
    usual: int = USUAL,
    readings: int = 2,
) -> HeadPrompts:
    """Return a text's windows, or heads that are there already, as prompts.

    Args:
        model: from `load`, from `capture`, or lists of heads.
        text_or_ids: a text, token ids, or windows; nothing for heads.
        window: tokens of a prompt; as many as the model takes, at most `usual`, unless given.
        windows: the most prompts to read.
        usual: as above.
        readings: how often each prompt will be read.
    """
    if isinstance(windows, bool) or (windows is not None and windows < 1):
        raise ArgumentError("windows", f"must be at least 1, got {windows}.")
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
                "must be left out for heads, which hold their prompts, "
                f"got {type(value).__name__}.",
            )
    if prompts.length < 8:
        raise ArgumentError(
            "model",
            f"must be heads over at least 8 tokens, got {prompts.length}. Give a longer prompt.",
        )
    return prompts


def prompts_of_model(model: Model, cut: np.ndarray, readings: int = 2) -> HeadPrompts:
    """Return windows of token ids [windows, window] as prompts.

    Where each is read twice, the heads of the first windows are kept for the second reading, as
    many as the memory allows.
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
    )


def prompts_of_heads(heads: CapturedHeads | HeadLists) -> HeadPrompts:
    """Return heads that are there already as prompts, or say why they are not an atlas."""
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
    )


def _by_prompt(heads: object) -> Sequence[Sequence[Sequence[Head]]]:
    """Return heads of one layer, or of one prompt, as those of one prompt of one layer."""
    depths = _depths(heads)
    if len(depths) != 1 or not depths <= {1, 2, 3}:
        mixed = " of lists and heads side by side" if len(depths) > 1 else ""
        raise ArgumentError(
            "model",
            "must be a model from `load`, what `capture` returns, or a list of heads (of "
            f"lists for layers, of lists of lists for prompts), got {type(heads).__name__}{mixed}.",
        )
    nested: Any = heads
    for _ in range(3 - min(depths)):
        nested = [nested]
    return nested


def _depths(heads: object, depth: int = 0) -> set[int]:
    """Return how deep in lists heads lie; 0 stands for what is neither a head nor a list of any."""
    if isinstance(heads, Head):
        return {depth}
    if depth == 3 or isinstance(heads, str) or not isinstance(heads, Sequence) or not heads:
        return {0}
    return set[int]().union(*(_depths(part, depth + 1) for part in heads))


def _require_alike(prompts: Sequence[Sequence[Sequence[Head]]]) -> Head:
    """Return the first head; all must have its shape, in layers of as many heads."""
    first, counts = prompts[0][0][0], len(prompts[0][0])
    for number, prompt in enumerate(prompts):
        if len(prompt) != len(prompts[0]):
            raise ArgumentError(
                "heads",
                f"must have the {len(prompts[0])} layers of the first prompt in every "
                f"prompt, got {len(prompt)} in prompt {number}.",
            )
        for place, layer in enumerate(prompt):
            if len(layer) != counts:
                raise ArgumentError(
                    "heads",
                    f"must be {counts} in every layer, got {len(layer)} in layer {place}. "
                    "Give the layers that agree as lists.",
                )
            for head in layer:
                if _form(head) != _form(first):
                    raise ArgumentError(
                        "heads",
                        f"must be alike, got {_form(first)} in layer 0 and {_form(head)} in layer "
                        f"{place} of prompt {number}. Give the layers that agree as lists.",
                    )
    return first


def _form(head: Head) -> str:
    sizes = " x ".join(str(size) for size in (len(head.queries), *head.keys.shape))
    kind = "causal" if head.causal else "not causal"
    return f"queries x keys x width {sizes}, values of {head.values.shape[1]}, {kind}"


def _scales(prompts: Sequence[Sequence[Sequence[Head]]]) -> np.ndarray:
    return np.array([[head.scale for head in layer] for layer in prompts[0]])
