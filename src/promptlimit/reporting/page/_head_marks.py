"""The sharpness of each head of a stored atlas, and the length of its prompts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptlimit.errors import InputFileError
from promptlimit.results import SHARPNESS_UNIT
from promptlimit.storage import json_object, list_of, number_of, text_of

_MOST_HEADS, _LONGEST = 100_000, 2**40


@dataclass(frozen=True)
class HeadMark:
    r"""One head: its layer and number, its median $\sigma$, and the length of its prompts."""

    layer: int
    head: int
    sharpness: float
    length: int


@dataclass(frozen=True)
class HeadMarks:
    """The heads of a model, as `promptlimit heads` stores them in atlas.json."""

    model: str
    heads: tuple[HeadMark, ...]

    @classmethod
    def read(cls, path: Path) -> "HeadMarks":
        """Return the heads of a stored atlas, or raise `InputFileError`: one sentence."""
        try:
            content = json_object(path, largest=100_000_000)
            heads = list_of(content, "heads")
            if not 0 < len(heads) <= _MOST_HEADS:
                raise ValueError(f"its 'heads' are {len(heads)}, not 1 to {_MOST_HEADS}")
            if content.get("sharpness") != SHARPNESS_UNIT:
                raise ValueError(
                    f"its 'sharpness' is not the {SHARPNESS_UNIT} (version 0.2 stored the variance)"
                )
            window = _count(content, "window", _LONGEST)
            return cls(text_of(content, "model"), tuple(_mark(head, window) for head in heads))
        except (ValueError, OSError) as problem:
            raise InputFileError(
                f"{path} must be an atlas.json of promptlimit heads, but {problem}."
            ) from problem


def _mark(head: object, window: int) -> HeadMark:
    if not isinstance(head, dict):
        raise ValueError("one of its 'heads' is no object")
    sharpness = number_of(head, "sharpness_median")
    if not 0.0 <= sharpness < math.inf:
        raise ValueError(f"a 'sharpness_median' is {sharpness}, not finite and at least 0")
    layer, place = (_count(head, name, _MOST_HEADS, least=0) for name in ("layer", "head"))
    return HeadMark(layer, place, sharpness, window)


def _count(content: Mapping[str, Any], key: str, most: int, least: int = 1) -> int:
    value = number_of(content, key)
    if not (least <= value <= most and value == int(value)):
        raise ValueError(f"its '{key}' is {value:g}, not a whole number from {least} to {most}")
    return int(value)
