"""A folder of results becomes the page of the reproduction."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from promptlimit.reporting.page._anchors import claim_anchor, figure_anchor
from promptlimit.reporting.page._claims import (
    claim_section,
    claims_table,
    verdict_class,
)
from promptlimit.reporting.page._figures import figure_section
from promptlimit.reporting.page._html import Html, element, joined
from promptlimit.reporting.page._night import night_rules
from promptlimit.reporting.page._numbers import duration
from promptlimit.reporting.page._shell import Entry, Page, Section, page_text
from promptlimit.reporting.page._stored import (
    StoredClaim,
    StoredFigure,
    StoredReport,
    numbers_in,
    parts,
    read_report,
)
from promptlimit.results import ClaimResult, Verdict, write_bytes

PAGE = "index.html"
CLAIMS = 19
"""How many claims of the paper the reproduction numbers."""

_PAPER = "Softmax as Linear Attention in the Large-Prompt Regime: a Measure-based Perspective"
_ARXIV = "2512.11784"
_MARKS = {"holds": "✓", "holds with a change": "≈", "does not hold": "✗", "not decidable here": "?"}


def write_page(folder: Path) -> Path:
    """Write `index.html` into a folder of results, from what is stored there, and return its path.

    Nothing is computed: the same results give the same bytes. What cannot be read raises
    `InputFileError` with one sentence; a drawing that cannot be shown is named on the page.
    """
    return write_report(read_report(folder), folder)


def write_report(report: StoredReport, folder: Path) -> Path:
    """Write the page of a report that was read already, and return its path."""
    path = folder / PAGE
    write_bytes(path, page_text(report_page(report)).encode())
    return path


def report_page(report: StoredReport) -> Page:
    """Return the page: headline, table, the paper's figures, claim by claim, beyond, provenance."""
    drawings = [figure.drawing for figure in report.figures if figure.drawing]
    return Page(
        title="The paper’s figures and claims, recomputed",
        eyebrow="promptlimit",
        lead=joined(_lead(report.claims), _about_settings(report)),
        sections=tuple(_sections(report)),
        foot=element(
            "p",
            "Written by ",
            element("code", "promptlimit report"),
            " from stored results. This file asks nothing of a network.",
        ),
        style=night_rules(drawings),
    )


def _sections(report: StoredReport) -> Iterable[Section]:
    paper = [figure for figure in report.figures if not figure.beyond]
    beyond = [figure for figure in report.figures if figure.beyond]
    if report.claims:
        yield Section("claims", "Claims", joined(_about_verdicts(), claims_table(report.claims)))
    if paper:
        words = (
            "The figures of the paper, redrawn. The time beside a figure leaves out the flows and "
            "training runs that it shares with others."
        )
        yield _figures("figures", "Figures", words, paper, report.claims)
    if report.claims:
        yield Section("evidence", "Evidence", _evidence(report), _claim_entries(report.claims))
    if beyond:
        words = "What the exact engine adds to the paper’s own figures."
        yield _figures("beyond", "Beyond the paper", words, beyond, report.claims)
    if report.provenance:
        yield Section("provenance", "Provenance", _provenance(report))


def _lead(claims: Sequence[StoredClaim]) -> Html:
    source = element(
        "p",
        "Boursier and Boyer, ",
        element("cite", _PAPER),
        ", ICML 2026, ",
        element("a", f"arXiv:{_ARXIV}", href=f"https://arxiv.org/abs/{_ARXIV}", rel="noreferrer"),
        class_="source",
    )
    if not claims:
        return source
    as_expected = sum(claim.result.as_expected for claim in claims)
    missing = max(0, CLAIMS - len(claims))
    words = f"not in this folder: {missing} of the paper’s {CLAIMS} claims"
    headline = element(
        "p",
        element("strong", f"{as_expected} of {len(claims)}"),
        " verdicts as on record",
        element("span", words, class_="missing") if missing else "",
        class_="headline" if as_expected == len(claims) else "headline alarm",
    )
    return joined(source, headline, _tally(claims))


def _about_settings(report: StoredReport) -> Html:
    """Return a warning where results come from several settings, or from the quick one."""
    origins = [result.origin for result in (*report.claims, *report.figures)]
    counts = Counter(tuple(parts(origin.setting)) for origin in origins if origin.setting)
    if len(counts) > 1:
        each = (
            f"{count} with {', '.join(f'{name} {value}' for name, value in setting)}"
            for setting, count in sorted(counts.items())
        )
        words = f"Not all results here come from one setting: {'; '.join(each)}."
        return element("p", words, class_="problem")
    if any(origin.setting.get("quick") is True for origin in origins):
        words = "Made in the quick setting: fewer lengths, starts and draws than without it."
        return element("p", words, class_="note")
    return Html()


def _about_verdicts() -> Html:
    return element(
        "p",
        "Every verdict follows from the numbers under Evidence. It is as on record when it is the "
        "one the repository expects.",
        class_="intro",
    )


def _tally(claims: Sequence[StoredClaim]) -> Html:
    counts = Counter(claim.result.verdict for claim in claims)
    items = (
        element(
            "li",
            element("span", verdict),
            element("strong", f"{counts[verdict]}"),
            class_=verdict_class(verdict),
        )
        for verdict in get_args(Verdict)
        if counts[verdict]
    )
    return element("ul", *items, class_="tally")


def _figures(
    anchor: str,
    title: str,
    words: str,
    figures: Sequence[StoredFigure],
    claims: Sequence[StoredClaim],
) -> Section:
    return Section(
        anchor,
        title,
        joined(
            element("p", words, class_="intro"),
            *(figure_section(figure, _decided_with(figure, claims)) for figure in figures),
        ),
        tuple(Entry(figure_anchor(figure.name), figure.title, _mark(figure)) for figure in figures),
    )


def _evidence(report: StoredReport) -> Html:
    words = element(
        "p",
        "Each number stands beside what it is held against. A control is a case where the "
        "statement is known to be false: a test that does not notice it decides nothing.",
        class_="intro",
    )
    return joined(
        words,
        *(claim_section(claim, _shown_with(claim, report.figures)) for claim in report.claims),
    )


def _shown_with(claim: StoredClaim, figures: Sequence[StoredFigure]) -> list[StoredFigure]:
    return [figure for figure in figures if _belong(claim, figure)]


def _decided_with(figure: StoredFigure, claims: Sequence[StoredClaim]) -> list[ClaimResult]:
    return [claim.result for claim in claims if _belong(claim, figure)]


def _belong(claim: StoredClaim, figure: StoredFigure) -> bool:
    """Return whether a claim names a figure of the paper, or both the same of its results."""
    stated, drawn = claim.result.reference, figure.reference
    if "Figure" in stated and "Figure" in drawn:
        return bool(set(_figure_numbers(stated)) & set(_figure_numbers(drawn)))
    return bool(drawn) and drawn.partition(",")[0] == stated


def _figure_numbers(reference: str) -> tuple[int, ...]:
    return numbers_in(reference[reference.index("Figure") :])


def _mark(figure: StoredFigure) -> str:
    return figure.reference if figure.reference.startswith("Figure") else ""


def _claim_entries(claims: Sequence[StoredClaim]) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            claim_anchor(claim.result.number),
            f"{claim.result.number}. {claim.result.name.replace('-', ' ')}",
            _MARKS[claim.result.verdict],
            verdict_class(claim.result.verdict),
        )
        for claim in claims
    )


def _provenance(report: StoredReport) -> Html:
    known = {key: value for key, value in report.provenance.items() if key != "seconds"}
    if "seconds" in report.provenance:
        known |= {"took": duration(report.provenance["seconds"])}
    rows = (joined(element("dt", name), element("dd", value)) for name, value in parts(known))
    return element("dl", *rows, class_="facts")
