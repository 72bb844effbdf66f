"""An atlas of heads as a page: summary, figures, replacement, and every head in a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from promptlimit.reporting.page._figures import drawing_frame
from promptlimit.reporting.page._html import Html, element, joined
from promptlimit.reporting.page._night import night_rules
from promptlimit.reporting.page._numbers import number
from promptlimit.reporting.page._shell import Entry, Page, Section, page_text
from promptlimit.reporting.page._svg import Drawing, safe_drawing
from promptlimit.results import REGIMES, HeadAtlas, HeadReplacement, write_bytes

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
    ("layer", "layer", 0), ("head", "head", 0), ("σ²", "sharpness_median", 3),
    ("tokens", "effective_tokens", 3), ("predicted", "effective_tokens_predicted", 3),
    ("uniform", "r2_uniform", 2), ("Gaussian", "r2_gaussian", 2), ("sinks", "r2_sinks", 2),
    ("mixture", "r2_mixture", 2), ("affine, fitted", "r2_affine", 2),
    ("length", "length_needed", 3),
)  # fmt: skip
_STYLE = ".scroll { margin-bottom: 1.8rem; overflow-x: auto; } details { margin-bottom: 2.4rem; }"
_SUMMED = ("uniform", "gaussian", "sinks", "mixture", "affine")


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
        drawings: SVG files by "TEXT/FIGURE", and "heads_replacement".
    """
    path = folder / "index.html"
    write_bytes(path, page_text(heads_page(atlases, replacement, drawings)).encode())
    return path


def heads_page(
    atlases: Mapping[str, HeadAtlas],
    replacement: HeadReplacement | None,
    drawings: Mapping[str, bytes],
) -> Page:
    """Return the page."""
    safe = {
        name: safe_drawing(content, f"drawing-{index}-")
        for index, (name, content) in enumerate(drawings.items())
    }
    sections = [
        _text_section(f"text-{index}", name, atlas, safe)
        for index, (name, atlas) in enumerate(atlases.items(), start=1)
    ]
    if replacement is not None:
        figure = _figure("heads_replacement", safe["heads_replacement"], "replacement-figure")
        body = joined(_judged_on(replacement, next(iter(atlases))), figure)
        sections.append(Section("replacement", "Replacing heads", body))
    first = next(iter(atlases.values()))
    return Page(
        title=f"The heads of {first.model}",
        eyebrow="promptlimit",
        lead=_lead(first, list(atlases)),
        sections=tuple(sections),
        foot=element("p", "Written by ", element("code", "promptlimit heads"), "."),
        style=f"{night_rules(safe.values())}\n{_STYLE}",
    )


def _lead(atlas: HeadAtlas, texts: Sequence[str]) -> Html:
    layers, heads = atlas.linear.shape
    words = (
        f"{layers} layers of {heads} heads ({atlas.model_type}) on {_counted(texts)}, prompts of "
        f"{atlas.window} tokens. Attention was rebuilt from the heads to within "
        f"{atlas.parity.max():.0e} of itself."
    )
    rotary = "Keys are taken after rotation; a law is averaged over the prompt’s positions."
    return joined(
        element("p", words, class_="source"),
        element("p", rotary, class_="note") if atlas.rotary else "",
    )


def _counted(texts: Sequence[str]) -> str:
    return "one text" if len(texts) == 1 else f"{len(texts)} texts"


def _text_section(
    anchor: str, name: str, atlas: HeadAtlas, drawings: Mapping[str, Drawing]
) -> Section:
    names = [figure for figure in _CAPTIONS if f"{name}/{figure}" in drawings]
    figures = [
        _figure(figure, drawings[f"{name}/{figure}"], f"{anchor}-{figure}") for figure in names
    ]
    body = joined(_regimes(atlas), *figures, _every_head(atlas))
    entries = tuple(Entry(f"{anchor}-{figure}", _CAPTIONS[figure][0]) for figure in names)
    return Section(anchor, f"Text: {name}", body, entries)


def _figure(name: str, drawing: Drawing, anchor: str) -> Html:
    title, caption = _CAPTIONS[name]
    frame = drawing_frame(drawing, title, anchor)
    return element(
        "article",
        element("header", element("h3", title)),
        element(
            "figure", frame, element("figcaption", caption, id=f"{anchor}-caption"), class_="plot"
        ),
        class_="figure-section",
        id=anchor,
    )


def _judged_on(replacement: HeadReplacement, text: str) -> Html:
    prompts = next(iter(replacement.curves.values())).shape[1]
    read = f"{replacement.read_before} of which" if replacement.read_before else "none of which"
    words = (
        f"Judged on {prompts} prompts of the text {text}, {read} the atlas had read. Each limit "
        "has its own order, the best explained heads first; one random order serves both."
    )
    return element("p", words, class_="intro")


def _regimes(atlas: HeadAtlas) -> Html:
    rows = []
    for regime in REGIMES:
        medians = atlas.median_r2(regime)
        if medians:
            cells = (element("td", _two_digits(medians[name])) for name in _SUMMED)
            count = element("td", str(int((atlas.regime == regime).sum())))
            rows.append(element("tr", element("th", regime, scope="row"), count, *cells))
    heads = ("regime", "heads", "uniform", "Gaussian", "sinks", "mixture", "affine, fitted")
    words = (
        f"{atlas.windows} prompts. Median R² of each limit by regime; rank correlation of "
        f"sharpness and R²: Gaussian {_two_digits(atlas.rank_correlation())}, with sinks "
        f"{_two_digits(atlas.rank_correlation('sinks'))}."
    )
    return joined(element("p", words, class_="intro"), _table(heads, rows))


def _every_head(atlas: HeadAtlas) -> Html:
    rows = [
        element("tr", *(element("td", _cell(row[key], digits)) for _, key, digits in _COLUMNS))
        for row in atlas.rows()
    ]
    table = _table([title for title, _, _ in _COLUMNS], rows)
    return element("details", element("summary", "Every head"), table)


def _cell(value: float | int | str, digits: int) -> str:  # noqa: PYI041 - run-time checks
    if digits == 2:
        return _two_digits(float(value))
    return number(float(value), digits) if digits else str(value)


def _two_digits(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _table(headings: Sequence[str], rows: Sequence[Html]) -> Html:
    head = element("tr", *(element("th", title, scope="col") for title in headings))
    body = element("table", element("thead", head), element("tbody", *rows))
    return element("div", body, class_="scroll")
