"""An atlas of heads as a page: summary, figures, replacement, and every head in a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from promptlimit.reporting.page._numbers import number, two_digits
from promptlimit.reporting.page._svg import inline
from promptlimit.reporting.page._templates import Entry, page_text
from promptlimit.results import REGIMES, HeadAtlas, HeadReplacement
from promptlimit.storage import write_bytes

_CAPTIONS = {
    "heads_phase": (
        "Sharpness and the limits",
        "Each dot is a head. Left: its sharpness at the length of the prompts (layers side by "
        "side, for the eye); middle and right: "
        "the share of its variation over queries that a limit explains.",
    ),
    "heads_map": ("Layer by layer", "Sharpness, and what the Gaussian limit explains."),
    "heads_error": (
        "Predicted and measured",
        "What independent Gaussian tokens of the same moments would do, against what these do.",
    ),
    "heads_replacement": (
        "Replacing heads",
        "The model’s output as more heads answer by a limit; bands span the prompts.",
    ),
}
_COLUMNS = (
    ("layer", "layer", 0), ("head", "head", 0), ("σ", "value", 3),
    ("tokens", "effective_tokens", 3), ("predicted", "effective_tokens_predicted", 3),
    ("uniform", "r2.uniform", 2), ("Gaussian", "r2.gaussian", 2), ("sinks", "r2.sinks", 2),
    ("mixture", "r2.mixture", 2), ("affine, fitted", "r2.affine", 2),
    ("length", "length_needed", 3),
)  # fmt: skip
_LIMITS = ("uniform", "gaussian", "sinks", "mixture", "affine")


@dataclass(frozen=True)
class PageFigure:
    """A figure on the page."""

    anchor: str
    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True)
class _Text:
    """What the page shows of one text."""

    anchor: str
    name: str
    atlas: HeadAtlas
    figures: tuple[PageFigure, ...]

    @property
    def regimes(self) -> list[tuple[str, ...]]:
        """A row for each regime that heads are in: how many, and the median R² of each limit."""
        rows = []
        for regime in REGIMES:
            medians = self.atlas.median_r2(regime)
            if medians:
                count = str(int((self.atlas.regime == regime).sum()))
                rows.append((regime, count, *(two_digits(medians[name]) for name in _LIMITS)))
        return rows

    @property
    def rows(self) -> list[list[str]]:
        """A row for each head."""
        return [
            [_cell(row[key], digits) for _, key, digits in _COLUMNS] for row in self.atlas.rows()
        ]


def write_heads_page(
    folder: Path,
    atlases: Mapping[str, HeadAtlas],
    replacement: HeadReplacement | None,
    drawings: Mapping[str, bytes],
) -> Path:
    """Write `index.html` and return its path.

    Args:
        folder: where.
        atlases: by the name of their text.
        replacement: of the first text, if any.
        drawings: SVG files of this library by "TEXT/FIGURE", and "heads_replacement".
    """
    path = folder / "index.html"
    write_bytes(path, heads_page(atlases, replacement, drawings).encode())
    return path


def heads_page(
    atlases: Mapping[str, HeadAtlas],
    replacement: HeadReplacement | None,
    drawings: Mapping[str, bytes],
) -> str:
    """Return the page as text; arguments as for `write_heads_page`."""
    texts = [
        _Text(f"text-{index}", name, atlas, _figures(f"text-{index}", name, drawings))
        for index, (name, atlas) in enumerate(atlases.items(), start=1)
    ]
    contents = [
        Entry(
            text.anchor,
            f"Text: {text.name}",
            entries=tuple(Entry(figure.anchor, figure.title) for figure in text.figures),
        )
        for text in texts
    ]
    first, replacing = texts[0].atlas, None
    layers, heads = first.linear.shape
    if replacement is not None:
        words, svg = _CAPTIONS["heads_replacement"], drawings["heads_replacement"]
        drawn = drawn_figure("replacement-figure", words, svg)
        contents.append(Entry("replacement", "Replacing heads"))
        prompts = next(iter(replacement.curves.values())).shape[1]
        replacing = {"figure": drawn, "prompts": prompts, "read_before": replacement.read_before}
    return page_text(
        "heads.html",
        title=f"The heads of {first.model}",
        contents=tuple(contents),
        atlas=first,
        texts=texts,
        layers=layers,
        heads=heads,
        parity=None if np.isnan(first.parity).all() else np.nanmax(first.parity),
        columns=[title for title, _, _ in _COLUMNS],
        replacement=replacing,
    )


def _figures(anchor: str, text: str, drawings: Mapping[str, bytes]) -> tuple[PageFigure, ...]:
    return tuple(
        drawn_figure(f"{anchor}-{figure}", words, drawings[f"{text}/{figure}"])
        for figure, words in _CAPTIONS.items()
        if f"{text}/{figure}" in drawings
    )


def drawn_figure(anchor: str, words: tuple[str, str], svg: bytes) -> PageFigure:
    """Return an SVG file of this library with its title and caption, to stand on a page."""
    return PageFigure(anchor, *words, inline(svg, f"{anchor}-"))


def _cell(value: float | int | str, digits: int) -> str:  # noqa: PYI041 - run-time checks
    if digits == 2:
        return two_digits(float(value))
    return number(float(value), digits) if digits else str(value)
