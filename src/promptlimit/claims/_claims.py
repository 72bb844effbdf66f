"""Checks, claims with their verdicts, and the contents of a report folder."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from promptlimit.results import derived

Section = Literal["paper", "beyond"]
Verdict = Literal[
    "holds",
    "holds with a change",
    "does not hold",
    "not decidable here",
    "not decided in quick mode",
]


@dataclass(frozen=True)
class Check:
    """A number compared with a tolerance.

    Attributes:
        name: a description of the number.
        value: the number.
        relation: "<=" if the value must be at most the tolerance, ">=" if at least.
        tolerance: the number with which the value is compared.
        role: "statement" for a check of the claim as the paper states it; "amended" for a check of
            a corrected statement, which counts if the original fails; "control" for a case in which
            the statement is known to be false. A control passes if the test finds it false.
        error: the standard error of a simulated value; None for other values.
        basis: the reason for the tolerance: theory, rounding error, a significance level or a
            stated margin.
        false_alarm: an upper bound on the probability that this check fails by chance although the
            statement is true; 0 for a deterministic check.
    """

    name: str
    value: float
    relation: Literal["<=", ">="]
    tolerance: float
    role: Literal["statement", "amended", "control"] = "statement"
    error: float | None = None
    basis: str = ""
    false_alarm: float = 0.0

    def __post_init__(self) -> None:
        for name in ("value", "tolerance", "error", "false_alarm"):
            number = getattr(self, name)
            if number is not None:
                object.__setattr__(self, name, float(number))

    @property
    @derived()
    def passed(self) -> bool:
        """Whether the comparison is true; false for NaN."""
        below = self.relation == "<="
        return bool(self.value <= self.tolerance if below else self.value >= self.tolerance)

    def distance(self) -> float:
        """Return |value - tolerance| divided by the larger of |value| and |tolerance|."""
        scale = max(abs(self.value), abs(self.tolerance))
        gap = abs(self.value - self.tolerance)
        return gap / scale if 0.0 < scale < math.inf else 0.0 if gap == 0.0 else math.inf

    def to_dict(self) -> dict[str, object]:
        """Return the check as plain numbers and strings; NaN becomes None, infinity "inf"."""
        numbers = {name: _plain(getattr(self, name)) for name in ("value", "tolerance", "error")}
        return {**asdict(self), **numbers, "passed": self.passed}


def at_most(
    name: str,
    value: float,
    bound: float,
    *,
    basis: str = "",
    error: float | None = None,
    false_alarm: float = 0.0,
) -> Check:
    """Return a check that passes if the value is at most the bound.

    Args:
        name: a description of the number.
        value: the number.
        bound: the largest value that passes.
        basis: the reason for the bound; see `Check`.
        error: the standard error of the value, if it was simulated.
        false_alarm: the probability that the check fails by chance although the statement is true.
    """
    return Check(name, value, "<=", bound, basis=basis, error=error, false_alarm=false_alarm)


def at_least(
    name: str,
    value: float,
    bound: float,
    *,
    basis: str = "",
    error: float | None = None,
    false_alarm: float = 0.0,
) -> Check:
    """Return a check that passes if the value is at least the bound; see `at_most`."""
    return Check(name, value, ">=", bound, basis=basis, error=error, false_alarm=false_alarm)


def control_at_most(name: str, value: float, bound: float, *, basis: str = "") -> Check:
    """Return a negative control that passes if the value is at most the bound.

    The value comes from a case in which the statement is known to be false. Choose the bound so
    that the control passes if the test finds the statement false in this case.

    >>> control_at_most("share of heads of a loaded coin", 0.1, 0.4).role
    'control'
    """
    return Check(name, value, "<=", bound, role="control", basis=basis)


def control_at_least(name: str, value: float, bound: float, *, basis: str = "") -> Check:
    """Return a negative control that passes if the value is at least the bound.

    See `control_at_most`.
    """
    return Check(name, value, ">=", bound, role="control", basis=basis)


def amended(check: Check) -> Check:
    """Return the check with the role "amended", for a corrected statement."""
    return replace(check, role="amended")


def _plain(number: float | None) -> float | str | None:
    if number is None or math.isnan(number):
        return None
    return number if math.isfinite(number) else str(number)


@dataclass(frozen=True)
class ClaimResult:
    """A claim with its checks.

    Attributes:
        number: the claim's number in the study.
        name: a short name for the command line.
        statement: the statement that the checks test.
        reference: the place of the statement in the paper.
        expected: the expected verdict, which the code of the study records.
        checks: the checks that decide the claim; empty if quick mode left it undecided.
        evidence: the reasons for an expected verdict other than "holds".
    """

    number: int
    name: str
    statement: str
    reference: str
    expected: Verdict
    checks: tuple[Check, ...]
    evidence: str = ""

    @property
    @derived()
    def verdict(self) -> Verdict:
        """The verdict that follows from the checks.

        Without checks it is "not decided in quick mode". If a control fails, or if no check has the
        role "statement", it is "not decidable here". Otherwise the claim "holds" if all checks of
        the statement pass, and "holds with a change" if there are amended checks and all of them
        pass. In all other cases it "does not hold".
        """
        if not self.checks:
            return "not decided in quick mode"
        by_role = {
            role: [check.passed for check in self.checks if check.role == role]
            for role in ("statement", "amended", "control")
        }
        if not all(by_role["control"]) or not by_role["statement"]:
            return "not decidable here"
        if all(by_role["statement"]):
            return "holds"
        if by_role["amended"] and all(by_role["amended"]):
            return "holds with a change"
        return "does not hold"

    @property
    def deciding(self) -> Check | None:
        """The check that determines the verdict; None if there is none, as in quick mode.

        If the claim holds, it is the check of the statement that is closest to its tolerance; if
        the claim holds with a change, the closest amended check. If the claim does not hold, it is
        the failed check of the statement that is farthest from its tolerance; if the claim is not
        decidable, the farthest failed control.
        """
        failed = [check for check in self.checks if not check.passed]
        stated = [check for check in self.checks if check.role == "statement"]
        by_verdict = {
            "holds": stated,
            "holds with a change": [check for check in self.checks if check.role == "amended"],
            "does not hold": [check for check in failed if check.role == "statement"],
            "not decidable here": [check for check in failed if check.role == "control"],
        }
        candidates = by_verdict.get(self.verdict, [])
        worst = self.verdict in ("does not hold", "not decidable here")
        return (max if worst else min)(candidates, key=Check.distance, default=None)

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is the expected one, or quick mode left the claim undecided."""
        return self.verdict in (self.expected, "not decided in quick mode")

    @property
    def decided(self) -> bool:
        """Whether checks were computed for the claim."""
        return bool(self.checks)

    def to_dict(self) -> dict[str, object]:
        """Return the claim as plain numbers and strings."""
        return {
            "number": self.number,
            "name": self.name,
            "statement": self.statement,
            "reference": self.reference,
            "verdict": self.verdict,
            "expected": self.expected,
            "evidence": self.evidence,
            "checks": [check.to_dict() for check in self.checks],
        }


@dataclass(frozen=True)
class Origin:
    """The origin of a result, and the command that reproduces it.

    Attributes:
        command: the command; empty if the stored file of the result does not contain it.
        setting: the options of the reproduction, such as the seed, by name.
        seconds: the duration of the computation, if known.
        digest: the hash of the code and the settings that determine the result; empty if the
            stored file does not contain it.
    """

    command: str = ""
    setting: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    digest: str = ""


@dataclass(frozen=True)
class StoredStudy:
    """The description of a study in a report.

    Attributes:
        name: the name of the study, and of its folder in the report.
        title: the title of the study.
        citation: authors, place and year.
        link: the address of the paper.
        summary: the findings, in a few sentences.
        key_figure: the name of the figure that represents the study on the report's first page.
        order: the sort key of studies in a report; lower numbers come first.
        address: the argument of `promptlimit reproduce` that finds the study; empty if unknown.
        claim_names: the names of its claims; a report shows no other claims.
        figure_names: the names of its figures; a report shows no other figures. If `claim_names`
            and `figure_names` are both empty, a report shows all stored results.
    """

    name: str
    title: str
    citation: str = ""
    link: str = ""
    summary: str = ""
    key_figure: str = ""
    order: int = 1
    address: str = ""
    claim_names: tuple[str, ...] = ()
    figure_names: tuple[str, ...] = ()

    @property
    def item_names(self) -> tuple[str, ...]:
        """The names of the study's claims and figures."""
        return (*self.claim_names, *self.figure_names)


@dataclass(frozen=True)
class StoredClaim:
    """The result of a claim of a study, and the origin of the result."""

    study: str
    result: ClaimResult
    origin: Origin

    @property
    def name(self) -> str:
        """The claim's short name."""
        return self.result.name


@dataclass(frozen=True, eq=False)
class StoredFigure:
    """A figure of a study: its text, its arrays and their origin.

    Attributes:
        study: the name of its study.
        name: the name of the figure, and of its files without their endings.
        title: the title above the figure.
        caption: the text below the figure.
        reference: the figure of the paper, or the result that the figure illustrates; may be empty.
        section: "paper" if the paper contains the figure, otherwise "beyond".
        arrays: the numbers that the figure shows, by name.
        origin: the origin of the arrays.
        drawn_by: the hash of the code that drew the pictures; empty if none were drawn.
        pictures: the endings of the picture files, such as "svg".
    """

    study: str
    name: str
    title: str
    caption: str
    reference: str
    section: Section
    arrays: Mapping[str, np.ndarray]
    origin: Origin
    drawn_by: str = ""
    pictures: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[bool, bool, tuple[int, ...], str]:
        """The sort key: first by section ("paper" first), then numbered figures before others."""
        numbers = figure_numbers(self.reference)
        return self.section == "beyond", not numbers, numbers, self.name


@dataclass(frozen=True)
class StoredFailure:
    """A claim or figure whose last computation raised an exception.

    Attributes:
        study: the name of its study.
        name: the name of the claim or figure.
        problem: the exception, in one sentence.
    """

    study: str
    name: str
    problem: str


@dataclass(frozen=True)
class StoredReport:
    """The contents of a report folder.

    Attributes:
        studies: the studies, in the order of the report.
        claims: the claims, sorted by study and number.
        figures: the figures, sorted by study and reference.
        failures: the claims and figures that could not be computed, sorted by study and name. They
            replace earlier results of the same name.
        provenance: the versions, the machine and the date of the report.
        left_out: one sentence per stored result that is no longer part of its study.
    """

    studies: tuple[StoredStudy, ...]
    claims: tuple[StoredClaim, ...]
    figures: tuple[StoredFigure, ...]
    failures: tuple[StoredFailure, ...]
    provenance: Mapping[str, Any]
    left_out: tuple[str, ...] = ()

    def of_study(self, name: str) -> "StoredReport":
        """Return the results of one study, without `provenance` and `left_out`."""
        return StoredReport(
            tuple(study for study in self.studies if study.name == name),
            tuple(claim for claim in self.claims if claim.study == name),
            tuple(figure for figure in self.figures if figure.study == name),
            tuple(failure for failure in self.failures if failure.study == name),
            {},
        )


def figure_numbers(reference: str) -> tuple[int, ...]:
    """Return the numbers of the figures that a reference names, with ranges expanded.

    >>> figure_numbers("Lemma 3 and Figures 1 and 5 to 8")
    (1, 5, 6, 7, 8)
    """
    words = reference.partition("Figure")[2].replace("–", "-").replace("-", " to ")
    numbers: list[int] = []
    before = ""
    for word in words.replace(",", " ").split():
        if word.isascii() and word.isdecimal() and len(word) < 4:
            first = numbers[-1] + 1 if numbers and before == "to" else int(word)
            numbers.extend(range(first, int(word) + 1))
        before = word
    return tuple(numbers)
