"""A causal atlas as a page: what far tokens amount to, figures, and every head in a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from promptlimit.reporting.page._heads import PageFigure, drawn_figure
from promptlimit.reporting.page._numbers import number, two_digits
from promptlimit.reporting.page._templates import Entry, page_text
from promptlimit.results import CausalAtlas
from promptlimit.storage import write_bytes

WAYS = {
    "dropped": "dropped, more recent tokens instead",
    "mean": "their mean value, true mass",
    "gaussian": "moments",
    "gaussian_finite": "moments, finite length",
    "gaussian_mass": "moments, true mass",
}
"""Ways to do without the far tokens, in words."""
_COLUMNS = (
    ("layer", "layer", 0), ("head", "head", 0), ("σ", "sharpness", 3),
    ("between bands", "between_share", 2), ("sinks", "sink_weight", 2),
    ("recent", "recent_weight", 2), ("1/S₂", "effective_tokens", 3),
    ("e^H", "entropy_tokens", 3), ("σ far", "far_sharpness", 3),
    ("dropped", "r2.dropped", 2), ("mean", "r2.mean", 2), ("moments", "r2.gaussian", 2),
    ("finite", "r2.gaussian_finite", 2), ("true mass", "r2.gaussian_mass", 2),
)  # fmt: skip
_CAPTIONS = {
    "causal_map": (
        "Layer by layer",
        "Sharpness; the share of the scores’ variance that lies between bands of distance; softmax "
        "weight of the first tokens and of the recent ones.",
    ),
    "causal_far": (
        "Far tokens as moments, or dropped",
        "Each dot is a head: what is left of its answers with the far tokens dropped, and with "
        "moments in the same memory. Above the diagonal moments are better.",
    ),
    "causal_length": (
        "As prompts grow",
        "Left: variance of the scores between and within bands of distance, median and middle half "
        "of the heads. Right: entropy, and what was predicted from the shortest prompts.",
    ),
}


@dataclass(frozen=True)
class _CausalText:
    """What the page shows of one text."""

    anchor: str
    name: str
    atlas: CausalAtlas
    figures: tuple[PageFigure, ...]

    @property
    def ways(self) -> list[tuple[str, ...]]:
        """A row for each way to do without the far tokens."""
        count = str(self.atlas.entropy.size)
        rows = []
        for name, words in WAYS.items():
            quartiles = np.nanpercentile(self.atlas.r2[name], (25, 50, 75))
            better = "" if name == "dropped" else f"{self.atlas.wins(name)} of {count}"
            rows.append((words, *(two_digits(float(value)) for value in quartiles), better))
        return rows

    @property
    def medians(self) -> str:
        """The medians over heads of what was measured, in words."""
        atlas = self.atlas
        parts = {
            "sharpness": number(float(np.median(atlas.sharpness))),
            "share between bands": two_digits(float(np.nanmedian(atlas.between_share))),
            "weight of sinks": two_digits(float(np.median(atlas.sink_weight))),
            "of recent tokens": two_digits(float(np.median(atlas.recent_weight))),
            "effective tokens 1/S₂": number(float(np.median(atlas.effective_tokens))),
            "e^H": number(float(np.median(atlas.entropy_tokens))),
        }
        return ", ".join(f"{name} {value}" for name, value in parts.items())

    @property
    def shortest(self) -> str:
        """The lengths of the shortest prompts."""
        return f"{self.atlas.lengths[0]:.0f} to {self.atlas.lengths[1] - 1:.0f}"

    @property
    def longest(self) -> str:
        """The lengths of the longest prompts."""
        return f"{self.atlas.lengths[-2]:.0f} to {self.atlas.lengths[-1] - 1:.0f}"

    @property
    def predictions(self) -> str:
        """The errors of predicted entropies, in words."""
        errors = self.atlas.entropy_errors
        return ", ".join(f"{name} {two_digits(value)}" for name, value in errors.items())

    @property
    def verdict(self) -> str:
        """Whether any prediction is better than none."""
        errors = self.atlas.entropy_errors
        if min(errors, key=lambda name: errors[name]) == "no change":
            return "No prediction beats that of no change."
        return "Some prediction beats that of no change here; heads are not independent tokens."

    @property
    def rows(self) -> list[list[str]]:
        """A row for each head."""
        return [
            [_cell(row[key], digits) for _, key, digits in _COLUMNS] for row in self.atlas.rows()
        ]


def write_causal_page(
    folder: Path, atlases: Mapping[str, CausalAtlas], drawings: Mapping[str, bytes]
) -> Path:
    """Write `index.html` and return its path.

    Args:
        folder: where.
        atlases: by the name of their text.
        drawings: SVG files of this library by "TEXT/FIGURE".
    """
    path = folder / "index.html"
    write_bytes(path, causal_page(atlases, drawings).encode())
    return path


def causal_page(atlases: Mapping[str, CausalAtlas], drawings: Mapping[str, bytes]) -> str:
    """Return the page as text; arguments as for `write_causal_page`."""
    texts = []
    for index, (name, atlas) in enumerate(atlases.items(), start=1):
        anchor = f"text-{index}"
        figures = tuple(
            drawn_figure(f"{anchor}-{figure}", words, drawings[f"{name}/{figure}"])
            for figure, words in _CAPTIONS.items()
            if f"{name}/{figure}" in drawings
        )
        texts.append(_CausalText(anchor, name, atlas, figures))
    contents = tuple(
        Entry(
            text.anchor,
            f"Text: {text.name}",
            entries=tuple(Entry(figure.anchor, figure.title) for figure in text.figures),
        )
        for text in texts
    )
    first = texts[0].atlas
    layers, heads = first.entropy.shape
    return page_text(
        "causal.html",
        title=f"The heads of {first.model} by distance",
        contents=contents,
        atlas=first,
        texts=texts,
        layers=layers,
        heads=heads,
        parity=None if np.isnan(first.parity).all() else np.nanmax(first.parity),
        columns=[title for title, _, _ in _COLUMNS],
    )


def _cell(value: float | int, digits: int) -> str:  # noqa: PYI041 - run-time checks
    if digits == 2:
        return two_digits(float(value))
    return number(float(value), digits) if digits else str(value)
