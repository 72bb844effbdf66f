"""A folder of results becomes the page of the reproduction, with a part for each paper."""

import base64
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args
from urllib.parse import quote

from markupsafe import Markup

from promptlimit.claims import (
    StoredClaim,
    StoredFigure,
    StoredPaper,
    StoredReport,
    Verdict,
    figure_numbers,
)
from promptlimit.reporting.page._svg import inline
from promptlimit.reporting.page._templates import (
    Entry,
    anchor,
    facts,
    page_text,
    verdict_class,
)

_MARKS = {
    "holds": "✓",
    "holds with a change": "≈",
    "does not hold": "✗",
    "not decidable here": "?",
    "not decided in quick mode": "–",
}


def report_page(report: StoredReport, drawings: Mapping[tuple[str, str], bytes]) -> str:
    """Return the page as text: the same results give the same text.

    Args:
        report: claims and figures.
        drawings: SVG files of this library, or PNG files, by paper and name; empty for none.
    """
    parts = [_Part(paper, report.of_paper(paper.name), drawings) for paper in report.papers]
    entries = [entry for part in parts for entry in part.entries]
    if len(parts) > 1:
        entries = [
            Entry(anchor(part.paper.name), part.paper.title, entries=part.entries) for part in parts
        ]
    if report.provenance:
        entries.append(Entry("provenance", "Provenance"))
    origins = [item.origin for item in (*report.claims, *report.figures)]
    several = len(parts) > 1
    return page_text(
        "report.html",
        title="Papers, recomputed" if several else "The paper’s figures and claims, recomputed",
        contents=tuple(entries),
        report=report,
        parts_of_page=parts,
        mixed=_several_settings([origin.setting for origin in origins if origin.setting]),
        quick=any(origin.setting.get("quick") is True for origin in origins),
    )


def _several_settings(settings: list[Mapping]) -> str:
    """Return how many results come from which setting, in words; nothing if there is only one."""
    counts = Counter(tuple(facts(setting)) for setting in settings)
    if len(counts) < 2:
        return ""
    return "; ".join(
        f"{count} with {', '.join(f'{name} {value}' for name, value in setting)}"
        for setting, count in sorted(counts.items())
    )


@dataclass(frozen=True)
class _Part:
    """What the page shows of one paper."""

    paper: StoredPaper
    results: StoredReport
    drawings: Mapping[tuple[str, str], bytes]

    @property
    def claims(self) -> tuple[StoredClaim, ...]:
        return self.results.claims

    @property
    def figures(self) -> list[StoredFigure]:
        return [figure for figure in self.results.figures if figure.section == "paper"]

    @property
    def beyond(self) -> list[StoredFigure]:
        return [figure for figure in self.results.figures if figure.section == "beyond"]

    @property
    def tally(self) -> list[tuple[str, int]]:
        """How often each verdict is given, those that are."""
        counts = Counter(claim.result.verdict for claim in self.claims)
        return [(verdict, counts[verdict]) for verdict in get_args(Verdict) if counts[verdict]]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What the contents list."""
        sections = (
            ("claims", "Claims", bool(self.claims), ()),
            ("figures", "Figures", bool(self.figures), map(_figure_entry, self.figures)),
            ("evidence", "Evidence", bool(self.claims), map(_claim_entry, self.claims)),
            ("beyond", "Beyond the paper", bool(self.beyond), map(_figure_entry, self.beyond)),
        )
        return tuple(
            Entry(anchor(self.paper.name, name), title, entries=tuple(entries))
            for name, title, there, entries in sections
            if there
        )

    def drawing(self, figure: StoredFigure) -> Markup:
        content = self.drawings.get((figure.paper, figure.name), b"")
        if content.startswith(b"\x89PNG"):
            data = base64.b64encode(content).decode()
            return Markup('<img src="data:image/png;base64,{}" alt="">').format(data)
        place = self.results.figures.index(figure)
        return inline(content, f"{anchor(figure.paper)}-f{place}-") if content else Markup()

    def address(self, figure: StoredFigure, ending: str) -> str:
        return quote(os.fsencode(f"{figure.paper}/figures/{figure.name}.{ending}"))

    def beside_claim(self, claim: StoredClaim) -> list[StoredFigure]:
        return [figure for figure in self.results.figures if _belong(claim, figure)]

    def beside_figure(self, figure: StoredFigure) -> list[StoredClaim]:
        return [claim for claim in self.claims if _belong(claim, figure)]


def _belong(claim: StoredClaim, figure: StoredFigure) -> bool:
    """Return whether a claim names a figure of the paper, or both the same of its results."""
    stated, drawn = claim.result.reference, figure.reference
    if "Figure" in stated and "Figure" in drawn:
        return bool(set(figure_numbers(stated)) & set(figure_numbers(drawn)))
    return bool(drawn) and drawn.partition(",")[0] == stated


def _figure_entry(figure: StoredFigure) -> Entry:
    mark = figure.reference if figure.reference.startswith("Figure") else ""
    return Entry(anchor(figure.paper, "figure", figure.name), figure.title, mark)


def _claim_entry(claim: StoredClaim) -> Entry:
    result = claim.result
    label = f"{result.number}. {result.name.replace('-', ' ')}"
    place = anchor(claim.paper, "claim", result.number)
    return Entry(place, label, _MARKS[result.verdict], verdict_class(result.verdict))
