"""The explorer: a page with sliders that shows one head over a finite prompt."""

import dataclasses
from importlib import resources
from pathlib import Path

from promptlimit.errors import InputFileError
from promptlimit.reporting.page._templates import Entry, page_text
from promptlimit.storage import json_object, list_of, number_of, text_of

_MOST_HEADS, _LONGEST = 100_000, 2**40


@dataclasses.dataclass(frozen=True)
class HeadMarks:
    r"""The heads of a model, as `promptlimit heads` stores them in atlas.json.

    Attributes:
        model: the name of the model.
        window: the length of the prompts.
        sharpness: the sharpness $\sigma$ of each head of each layer, a median over queries.
    """

    model: str
    window: int
    sharpness: tuple[tuple[float, ...], ...]

    @classmethod
    def read(cls, path: Path) -> "HeadMarks":
        """Return the heads of a stored atlas; raise `InputFileError` for any other file."""
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


@dataclasses.dataclass(frozen=True)
class _Preset:
    """A button of the explorer, with a label, a note, and the values to which it sets sliders."""

    label: str
    note: str
    values: dict[str, float]


_PRESETS = (
    _Preset(
        "the paper’s experiments",
        "Section 6: five covariates and their label, 100 tokens, and the sharpness that a random "
        "start has on average.",
        {"sharpness": 0.3, "length": 100, "dimension": 6, "tolerance": 0.1},
    ),
    _Preset(
        "one per cent",
        "How long a prompt must be at sharpness one.",
        {"sharpness": 1.0, "length": 1000, "dimension": 8, "tolerance": 0.01},
    ),
    _Preset(
        "a head of 64 dimensions",
        "An ordinary head over an ordinary context.",
        {"sharpness": 2.0, "length": 8192, "dimension": 64, "tolerance": 0.1},
    ),
    _Preset(
        "frozen",
        "A sharp head over a short prompt: a few tokens take all the weight.",
        {"sharpness": 6.0, "length": 512, "dimension": 64, "tolerance": 0.1},
    ),
)


def explorer_page(heads: HeadMarks | None = None) -> str:
    """Return the explorer as the text of an HTML file that computes in the browser.

    `heads` are shown as dots in the phase diagram; the default is `example_heads()`.
    """
    marks = example_heads() if heads is None else heads
    points = [
        [round(sharpness, 4), marks.window, f"layer {layer}, head {head}"]
        for layer, heads_of_layer in enumerate(marks.sharpness)
        for head, sharpness in enumerate(heads_of_layer)
    ]
    return page_text(
        "explorer.html",
        title="One head over a finite prompt",
        contents=(Entry("explore", "Explore"), Entry("about", "Definitions")),
        sources=("explorer.css", "weights.js", "explorer.js"),
        presets=_PRESETS,
        model=marks.model,
        points=points,
    )


def example_heads() -> HeadMarks:
    """Return the heads of all-MiniLM-L6-v2 over prompts of 512 tokens of Python's manual."""
    name = resources.files("promptlimit.reporting.page") / "example_heads.json"
    with resources.as_file(name) as path:
        return HeadMarks.read(path)
