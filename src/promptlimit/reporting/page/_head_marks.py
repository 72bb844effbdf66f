"""The sharpness of each head of a stored atlas, and the length of its prompts."""

from dataclasses import dataclass
from pathlib import Path

from promptlimit.errors import InputFileError
from promptlimit.storage import json_object, list_of, number_of, text_of

_MOST_HEADS, _LONGEST = 100_000, 2**40


@dataclass(frozen=True)
class HeadMarks:
    r"""The heads of a model, as `promptlimit heads` stores them in atlas.json.

    Attributes:
        model: its name.
        window: the length of the prompts.
        sharpness: the median $\sigma$ of every head, by layer and head.
    """

    model: str
    window: int
    sharpness: tuple[tuple[float, ...], ...]

    @classmethod
    def read(cls, path: Path) -> "HeadMarks":
        """Return the heads of a stored atlas, or raise `InputFileError`: one sentence."""
        try:
            content = json_object(path, largest=100_000_000, pipes=True)
            sharpness = tuple(_layer(layer) for layer in list_of(content, "value"))
            count = sum(len(layer) for layer in sharpness)
            if not 0 < count <= _MOST_HEADS:
                raise ValueError(f"its 'value' has {count} heads, not 1 to {_MOST_HEADS}")
            window = number_of(content, "window")
            if not (1 <= window <= _LONGEST and window == int(window)):
                raise ValueError(
                    f"its 'window' is {window:g}, not a whole number from 1 to {_LONGEST}"
                )
            return cls(text_of(content, "model"), int(window), sharpness)
        except (ValueError, OSError) as problem:
            raise InputFileError(
                f"{path} must be an atlas.json of promptlimit heads, but {problem}."
            ) from problem


def _layer(values: object) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise ValueError("its 'value' is not a list of lists")
    heads = tuple(number_of({"value": value}, "value") for value in values)
    for sharpness in heads:
        if not 0.0 <= sharpness < float("inf"):
            raise ValueError(f"its 'value' has {sharpness}, not finite and at least 0")
    return heads
