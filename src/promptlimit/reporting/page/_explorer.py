"""The explorer: one page with sliders for one head over a finite prompt."""

import dataclasses
from importlib import resources

from promptlimit.reporting.page._head_marks import HeadMarks
from promptlimit.reporting.page._templates import Entry, page_text


@dataclasses.dataclass(frozen=True)
class _Preset:
    """A button: its label, the numbers it sets, and a note on them."""

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

    Args:
        heads: the heads shown as dots in the phase diagram; by default those of a sentence
            encoder, as `promptlimit heads --example` measures them on Python's manual.
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
