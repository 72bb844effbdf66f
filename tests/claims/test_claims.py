"""Checks become verdicts."""

from typing import Any

import pytest

from promptlimit.claims import Check, ClaimResult, Verdict

GOOD = Check("small", 0.1, "<=", 1.0)
BAD = Check("large", 2.0, "<=", 1.0)


def claim(*checks: Check, expected: Verdict = "holds") -> ClaimResult:
    return ClaimResult(0, "name", "statement", "reference", expected, checks)


def as_role(check: Check, role: Any) -> Check:
    return Check(check.name, check.value, check.relation, check.tolerance, role=role)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([GOOD], "holds"),
        ([GOOD, BAD], "does not hold"),
        ([BAD, as_role(GOOD, "amended")], "holds with a change"),
        ([BAD, as_role(BAD, "amended")], "does not hold"),
        ([GOOD, as_role(GOOD, "control")], "holds"),
        ([GOOD, as_role(BAD, "control")], "not decidable here"),
        ([as_role(GOOD, "control")], "not decidable here"),
        ([], "not decided in quick mode"),
    ],
)
def test_the_verdict_follows_from_the_checks(checks: list[Check], verdict: str) -> None:
    result = claim(*checks)
    assert result.verdict == verdict
    assert result.as_expected == (verdict in ("holds", "not decided in quick mode"))
    assert result.decided == bool(checks)


def test_a_number_that_is_none_fails_either_way() -> None:
    assert not Check("hole", float("nan"), "<=", 1.0).passed
    assert not Check("hole", float("nan"), ">=", 1.0).passed


def test_a_claim_becomes_json() -> None:
    written = claim(GOOD).to_dict()
    assert written["verdict"] == "holds"
    assert written["checks"] == [
        {
            "name": "small",
            "value": 0.1,
            "relation": "<=",
            "tolerance": 1.0,
            "role": "statement",
            "error": None,
            "basis": "",
            "false_alarm": 0.0,
            "passed": True,
        }
    ]


def test_a_value_at_its_tolerance_passes() -> None:
    assert Check("x", 0.0, "<=", 0.0).passed
    assert Check("x", 1.0, ">=", 1.0).passed
