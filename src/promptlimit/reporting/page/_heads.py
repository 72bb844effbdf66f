"""The page of the atlases of a model: figures and tables on its attention heads."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from promptlimit.reporting.page._numbers import number, two_digits
from promptlimit.reporting.page._svg import inline
from promptlimit.reporting.page._templates import Entry, page_text
from promptlimit.results import AbstractAtlas, CausalAtlas, HeadAtlas, HeadReplacement
from promptlimit.storage import write_bytes

HEAD_FIGURES: dict[type[AbstractAtlas], dict[str, tuple[str, str]]] = {
    HeadAtlas: {
        "heads_phase": (
            "Sharpness and the limits",
            "Each dot is a head. Left: its sharpness at the length of the prompts (layers side by "
            "side, for the eye); middle and right: "
            "the share of its variation over queries that a limit explains.",
        ),
        "heads_map": ("Layer by layer", "Sharpness, and what the Gaussian limit explains."),
        "heads_error": (
            "Predicted and measured",
            "Predictions for independent Gaussian tokens of the same moments, and measurements.",
        ),
    },
    CausalAtlas: {
        "heads_map": (
            "Layer by layer",
            "Sharpness; the share of the scores’ variance between bands of distance; softmax "
            "weight of the first tokens and of the recent ones.",
        ),
        "causal_far": (
            "Far tokens as moments, or dropped",
            "Each dot is a head: the R² of its output with the far tokens dropped, and with "
            "moments in the same memory. Above the diagonal moments are better.",
        ),
        "causal_length": (
            "As prompts grow",
            "Left: variance of the scores between and within bands of distance, median and middle "
            "half of the heads. Right: entropy, and what was predicted from the shortest prompts.",
        ),
    },
}
"""Title and caption of each figure of an atlas, by class of atlas and name of the figure."""
_REPLACEMENT = (
    "Replacing heads",
    "The model’s output as more heads are replaced by a limit; bands span the prompts.",
)


@dataclass(frozen=True)
class _Figure:
    anchor: str
    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True)
class _Text:
    """The results on one text, as the page shows them."""

    anchor: str
    name: str
    atlas: AbstractAtlas
    figures: tuple[_Figure, ...]

    @property
    def summary(self) -> list[list[str]]:
        """The rows of the summary table, with numbers to two decimals."""
        return [[_cell(value, 2) for value in row] for row in self.atlas.summary().rows]

    @property
    def rows(self) -> list[list[str]]:
        """The rows of the table of heads."""
        columns = self.atlas.columns
        return [
            [_cell(row[column.name], column.digits) for column in columns]
            for row in self.atlas.rows()
        ]


def write_heads_page(
    folder: Path,
    atlases: Mapping[str, AbstractAtlas],
    replacement: HeadReplacement | None,
    drawings: Mapping[str, bytes],
) -> Path:
    """Write `index.html` and return its path.

    Args:
        folder: the folder of the page.
        atlases: the atlases by the name of their text, all of the same class.
        replacement: the replacement of heads on the first text, or None.
        drawings: the contents of SVG files by "TEXT/FIGURE", and by "heads_replacement".
    """
    path = folder / "index.html"
    write_bytes(path, heads_page(atlases, replacement, drawings).encode())
    return path


def heads_page(
    atlases: Mapping[str, AbstractAtlas],
    replacement: HeadReplacement | None,
    drawings: Mapping[str, bytes],
) -> str:
    """Return the page as text; `write_heads_page` describes the arguments."""
    texts = []
    for index, (name, atlas) in enumerate(atlases.items(), start=1):
        figures = tuple(
            _figure(f"text-{index}-{figure}", words, drawings[f"{name}/{figure}"])
            for figure, words in HEAD_FIGURES[type(atlas)].items()
            if f"{name}/{figure}" in drawings
        )
        texts.append(_Text(f"text-{index}", name, atlas, figures))
    contents = [
        Entry(
            text.anchor,
            f"Text: {text.name}",
            entries=tuple(Entry(figure.anchor, figure.title) for figure in text.figures),
        )
        for text in texts
    ]
    replacing = None
    if replacement is not None:
        contents.append(Entry("replacement", "Replacing heads"))
        replacing = {
            "figure": _figure("replacement-figure", _REPLACEMENT, drawings["heads_replacement"]),
            "prompts": next(iter(replacement.curves.values())).shape[1],
            "windows_in_atlas": replacement.windows_in_atlas,
        }
    first = texts[0].atlas
    layers, heads = first.effective_tokens.shape
    return page_text(
        "heads.html",
        title=f"The heads of {first.model}",
        contents=tuple(contents),
        atlas=first,
        texts=texts,
        layers=layers,
        heads=heads,
        parity=None if np.isnan(first.parity).all() else np.nanmax(first.parity),
        replacement=replacing,
    )


def _figure(anchor: str, words: tuple[str, str], svg: bytes) -> _Figure:
    """Return a figure for the page from its title and caption, and the content of its SVG file."""
    return _Figure(anchor, *words, inline(svg, f"{anchor}-"))


def _cell(value: float | int | str, digits: int) -> str:  # noqa: PYI041 - run-time checks
    if isinstance(value, str | int):
        return str(value)
    return two_digits(value) if digits == 2 else number(value, digits)
