"""A claim of the paper, the numbers that decide it, and the verdict."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["holds", "holds with a change", "does not hold", "not decidable here"]


@dataclass(frozen=True)
class Check:
    """One number held against one tolerance.

    Attributes:
        name: what was computed, in words.
        value: the number.
        relation: how it must stand to the tolerance.
        tolerance: the number it is held against.
        role: "statement" checks the claim as the paper states it; "amended" checks the form in
            which it is true when the statement is not; a "control" is a case where the statement
            is known to be false, and passes when the test notices.
        error: the standard error of the value, when it was simulated.
    """

    name: str
    value: float
    relation: Literal["<=", ">="]
    tolerance: float
    role: Literal["statement", "amended", "control"] = "statement"
    error: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the number stands as it must. A NaN never does."""
        below = self.relation == "<="
        return bool(self.value <= self.tolerance if below else self.value >= self.tolerance)

    def as_json(self) -> dict[str, object]:
        """Return the check as plain numbers and strings: NaN is None, infinity the word "inf"."""
        value = self.value if math.isfinite(self.value) else str(self.value)
        return {
            **asdict(self),
            "value": None if math.isnan(self.value) else value,
            "passed": self.passed,
        }


@dataclass(frozen=True)
class ClaimResult:
    """A claim with what was computed for it.

    Attributes:
        number: the claim's number in the reproduction.
        name: a short name for the command line.
        statement: what is claimed.
        reference: where the paper claims it.
        expected: the verdict on record.
        checks: the numbers.
        evidence: why the verdict on record is not "holds", where it is not.
    """

    number: int
    name: str
    statement: str
    reference: str
    expected: Verdict
    checks: tuple[Check, ...]
    evidence: str = ""

    @property
    def verdict(self) -> Verdict:
        """What the checks say.

        A test that does not notice a false statement decides nothing, so controls come first.
        """
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
    def as_expected(self) -> bool:
        """Whether the verdict is the one on record."""
        return self.verdict == self.expected

    def as_json(self) -> dict[str, object]:
        """Return the claim as plain numbers and strings."""
        return {
            "number": self.number,
            "name": self.name,
            "statement": self.statement,
            "reference": self.reference,
            "verdict": self.verdict,
            "expected": self.expected,
            "evidence": self.evidence,
            "checks": [check.as_json() for check in self.checks],
        }
