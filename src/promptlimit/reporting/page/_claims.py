"""A claim as a part of a page: its row in the table, and its section with every number."""

import re
from collections.abc import Iterable, Iterator, Sequence

from promptlimit.reporting.page._anchors import claim_anchor, figure_anchor
from promptlimit.reporting.page._html import Html, element, joined, separated
from promptlimit.reporting.page._numbers import measured, number
from promptlimit.reporting.page._origin import origin_lines
from promptlimit.reporting.page._stored import StoredClaim, StoredFigure
from promptlimit.results import Check, ClaimResult

_SIGNS = {"<=": "≤", ">=": "≥"}
_GROUPS = (
    ("statement", "As stated"),
    ("amended", "As amended"),
    ("control", "Controls, which must be noticed"),
)


def verdict_class(verdict: str) -> str:
    """Return the class a verdict's colour goes by."""
    return "verdict-" + re.sub("[^a-z]", "-", verdict)


def claims_table(claims: Sequence[StoredClaim]) -> Html:
    """Return the table of all claims: number, statement, reference, verdict."""
    head = element(
        "tr",
        *(element("th", name, scope="col") for name in ("", "Statement", "Paper", "Verdict")),
    )
    rows = (_row(claim.result) for claim in claims)
    return element(
        "table",
        element("caption", "Claims of the paper, each with a link to its evidence."),
        element("thead", head),
        element("tbody", *rows),
        class_="claims",
    )


def _row(result: ClaimResult) -> Html:
    link = f"#{claim_anchor(result.number)}"
    return element(
        "tr",
        element("th", element("a", f"{result.number}", href=link), scope="row"),
        element("td", element("a", _title(result), href=link), " ", result.statement),
        element("td", result.reference),
        element("td", _badge(result)),
    )


def claim_section(claim: StoredClaim, figures: Sequence[StoredFigure]) -> Html:
    """Return a claim with its statement, numbers, controls, verdict, note and origin."""
    result = claim.result
    heading = element(
        "header",
        element("h3", element("span", f"{result.number}", class_="ordinal"), _title(result)),
        _badge(result),
    )
    return element(
        "article",
        heading,
        element("p", separated([result.reference, *_links(figures)]), class_="reference"),
        element("p", result.statement, class_="statement"),
        _checks(result.checks),
        *(element("p", note, class_="note") for note in claim.notes),
        origin_lines(claim.origin),
        class_="claim",
        id=claim_anchor(result.number),
    )


def _title(result: ClaimResult) -> str:
    return result.name.replace("-", " ").capitalize()


def _badge(result: ClaimResult) -> Html:
    badge = element("span", result.verdict, class_=f"badge {verdict_class(result.verdict)}")
    if result.as_expected:
        return badge
    return joined(badge, element("span", f"on record: {result.expected}", class_="differs"))


def _links(figures: Iterable[StoredFigure]) -> Iterator[Html]:
    for figure in figures:
        yield element("a", f"see {figure.title}", href=f"#{figure_anchor(figure.name)}")


def _checks(checks: Sequence[Check]) -> Html:
    columns = ("What was computed", "Value", "Must be", "")
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    bodies = (
        _group(name, [check for check in checks if check.role == role])
        for role, name in _GROUPS
        if any(check.role == role for check in checks)
    )
    return element("table", element("thead", head), *bodies, class_="checks")


def _group(name: str, checks: Iterable[Check]) -> Html:
    title = element("tr", element("th", name, colspan="4", scope="colgroup"), class_="group")
    return element("tbody", title, *map(_check, checks))


def _check(check: Check) -> Html:
    well = ("✓", "as it must be") if check.passed else ("✗", "not as it must be")
    return element(
        "tr",
        element("td", check.name),
        element("td", measured(check.value, check.error), class_="figure"),
        element("td", f"{_SIGNS[check.relation]} ", number(check.tolerance), class_="figure"),
        element(
            "td",
            element("span", well[0], role="img", aria_label=well[1], title=well[1]),
            class_="passed" if check.passed else "failed",
        ),
    )
