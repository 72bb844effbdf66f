"""The pages of a folder of results: a first page, and one page per study."""

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
    StoredFailure,
    StoredFigure,
    StoredReport,
    StoredStudy,
    Verdict,
    figure_numbers,
)
from promptlimit.reporting.page._numbers import formula
from promptlimit.reporting.page._svg import inline
from promptlimit.reporting.page._templates import (
    Entry,
    anchor,
    facts,
    page_text,
    verdict_class,
)

Drawings = Mapping[tuple[str, str], bytes]

_MARKS = {
    "holds": "✓",
    "holds with a change": "≈",
    "does not hold": "✗",
    "not decidable here": "?",
    "not decided in quick mode": "–",
}


def report_pages(report: StoredReport, drawings: Drawings) -> dict[str, str]:
    """Return the text of each page by its path in the folder; the same results give the same text.

    Args:
        report: the claims and figures.
        drawings: the content of each figure's SVG or PNG file, by the names of study and figure;
            empty bytes if there is no picture. `is_drawing` must be true for an SVG file.
    """
    studies = [Study(study, report.of_study(study.name), drawings) for study in report.studies]
    pages = {study.page: _study_page(study) for study in studies}
    return {"index.html": _first_page(report, studies), **pages}


def unconverted_tex(report: StoredReport) -> list[str]:
    """Return a sentence for each text with a formula that is not converted to MathML."""
    texts = [(f"the summary of {study.name}", study.summary) for study in report.studies]
    for claim in report.claims:
        result = claim.result
        words = [text for check in result.checks for text in (check.name, check.basis)]
        item = f"the claim {claim.name} of {claim.study}"
        texts += [(item, text) for text in (result.statement, result.evidence, *words)]
    texts += [(f"the figure {f.name} of {f.study}", f.caption) for f in report.figures]
    return [
        f"{item} has TeX that the page shows unconverted: {text}"
        for item, text in texts
        if {"$", "\\"} & set(formula(text))
    ]


def _first_page(report: StoredReport, studies: "list[Study]") -> str:
    entries = [Entry(anchor(study.about.name), study.short_name) for study in studies]
    if report.provenance:
        entries.append(Entry("provenance", "Provenance"))
    origins = [item.origin for item in (*report.claims, *report.figures)]
    return page_text(
        "index.html",
        title="Studies of attention over long prompts",
        contents=tuple(entries),
        report=report,
        studies=studies,
        verdicts=[
            verdict for verdict in get_args(Verdict) if any(s.count(verdict) for s in studies)
        ],
        mixed=_several_settings([origin.setting for origin in origins if origin.setting]),
        quick=any(origin.setting.get("quick") is True for origin in origins),
    )


def _study_page(study: "Study") -> str:
    return page_text(
        "study.html",
        title=study.about.title,
        contents=study.entries,
        home="../index.html",
        study=study,
    )


def _several_settings(settings: list[Mapping]) -> str:
    """Return the number of results per setting, as text; empty if all settings are the same."""
    counts = Counter(tuple(facts(setting)) for setting in settings)
    if len(counts) < 2:
        return ""
    return "; ".join(
        f"{count} with {', '.join(f'{name} {value}' for name, value in setting)}"
        for setting, count in sorted(counts.items())
    )


@dataclass(frozen=True)
class Study:
    """The results of one study, as the pages show them."""

    about: StoredStudy
    results: StoredReport
    drawings: Drawings

    @property
    def page(self) -> str:
        """The path of the page of the study, relative to the folder of results."""
        return f"{self.about.name}/index.html"

    @property
    def short_name(self) -> str:
        """The name of the study with spaces and a capital letter."""
        return self.about.name.replace("_", " ").capitalize()

    @property
    def claims(self) -> tuple[StoredClaim, ...]:
        """The claims of the study, with verdicts."""
        return self.results.claims

    @property
    def failures(self) -> tuple[StoredFailure, ...]:
        """The claims and figures of the study that could not be computed."""
        return self.results.failures

    @property
    def missing(self) -> list[str]:
        """The names of the claims and figures that the folder does not contain."""
        results = self.results
        found = {item.name for item in (*results.claims, *results.figures, *results.failures)}
        return [name for name in self.about.item_names if name not in found]

    @property
    def figures(self) -> list[StoredFigure]:
        """The figures of the paper."""
        return [figure for figure in self.results.figures if figure.section == "paper"]

    @property
    def beyond(self) -> list[StoredFigure]:
        """The figures that the paper does not have."""
        return [figure for figure in self.results.figures if figure.section == "beyond"]

    @property
    def key_figure(self) -> StoredFigure | None:
        """The figure called `StoredStudy.key_figure` if there is one, otherwise the first."""
        named = [f for f in self.results.figures if f.name == self.about.key_figure]
        return next(iter([*named, *self.results.figures]), None)

    def count(self, verdict: str) -> int:
        """Return the number of claims with a verdict."""
        return sum(claim.result.verdict == verdict for claim in self.claims)

    @property
    def tally(self) -> list[tuple[str, int]]:
        """The verdicts that occur, with their counts."""
        counts = [(verdict, self.count(verdict)) for verdict in get_args(Verdict)]
        return [(verdict, count) for verdict, count in counts if count]

    @property
    def differing(self) -> list[StoredClaim]:
        """The claims whose verdict is not the expected one."""
        return [claim for claim in self.claims if not claim.result.as_expected]

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The table of contents of the page."""
        sections = (
            ("claims", "Claims", map(_claim_entry, self.claims)),
            ("figures", "Figures", map(_figure_entry, self.figures)),
            (
                "beyond",
                "Beyond the paper" if self.figures else "Figures",
                map(_figure_entry, self.beyond),
            ),
        )
        listed = [Entry(name, title, entries=tuple(below)) for name, title, below in sections]
        return tuple(entry for entry in listed if entry.entries)

    def drawing(self, figure: StoredFigure) -> Markup:
        """Return the picture of a figure as markup; empty if there is none."""
        content = self.drawings.get((figure.study, figure.name), b"")
        if content.startswith(b"\x89PNG"):
            data = base64.b64encode(content).decode()
            return Markup('<img src="data:image/png;base64,{}" alt="">').format(data)
        place = self.results.figures.index(figure)
        return inline(content, f"{anchor(figure.study)}-f{place}-") if content else Markup()

    def address(self, figure: StoredFigure, ending: str) -> str:
        """Return the URL of a file of a figure, relative to the page of the study."""
        return quote(os.fsencode(f"figures/{figure.name}.{ending}"))

    def figures_of_claim(self, claim: StoredClaim) -> list[StoredFigure]:
        """Return the figures that belong to a claim; see `_same_reference`."""
        return [figure for figure in self.results.figures if _same_reference(claim, figure)]

    def claims_of_figure(self, figure: StoredFigure) -> list[StoredClaim]:
        """Return the claims that belong to a figure; see `_same_reference`."""
        return [claim for claim in self.claims if _same_reference(claim, figure)]


def _same_reference(claim: StoredClaim, figure: StoredFigure) -> bool:
    """Return whether a claim and a figure refer to the same figure or result of the paper."""
    stated, drawn = claim.result.reference, figure.reference
    if "Figure" in stated and "Figure" in drawn:
        return bool(set(figure_numbers(stated)) & set(figure_numbers(drawn)))
    return bool(drawn) and drawn.partition(",")[0] == stated


def _figure_entry(figure: StoredFigure) -> Entry:
    mark = figure.reference if figure.reference.startswith("Figure") else ""
    return Entry(anchor("figure", figure.name), figure.title, mark)


def _claim_entry(claim: StoredClaim) -> Entry:
    result = claim.result
    label = f"{result.number}. {result.name.replace('-', ' ').capitalize()}"
    place = anchor("claim", result.number)
    return Entry(place, label, _MARKS[result.verdict], verdict_class(result.verdict))
