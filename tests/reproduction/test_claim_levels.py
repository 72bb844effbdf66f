"""Every check says where its tolerance comes from, and false alarms add up to little."""

import ast
import importlib
from pathlib import Path

import pytest

from promptlimit.reproduction import Claim, Paper, Setting, decide
from promptlimit.reproduction._statistics import LEVEL
from promptlimit.reproduction.depth import PAPER as DEPTH
from promptlimit.reproduction.lengths import PAPER as LENGTHS
from promptlimit.reproduction.mixtures import PAPER as MIXTURES
from promptlimit.results import Check

SHARES = ((DEPTH, 7), (LENGTHS, 11), (MIXTURES, 22))
"""Papers, and how many statistical checks each may have: forty of `LEVEL` in all."""


def source_of(claim: Claim) -> str:
    file = importlib.import_module(claim.decide.__module__).__file__
    assert file is not None
    return Path(file).read_text("utf-8")


def checks_of(paper: Paper, setting: Setting) -> list[Check]:
    """Return the checks of all claims that simulate: others have no level."""
    simulated = [claim for claim in paper.claims if "_statistics" in source_of(claim)]
    assert len(simulated) >= 1
    return [check for claim in simulated for check in decide(claim, setting).checks]


def complain(checks: list[Check], share: int) -> None:
    assert all(check.basis for check in checks), [check.name for check in checks if not check.basis]
    levels = [check.false_alarm for check in checks if check.false_alarm]
    assert all(level <= LEVEL for level in levels)
    assert sum(levels) <= share * LEVEL * (1 + 1e-9)


@pytest.mark.parametrize("paper", [paper for paper, _ in SHARES], ids=lambda paper: paper.name)
def test_every_check_is_written_with_a_basis(paper):
    without, found = [], 0
    for claim in paper.claims:
        source = source_of(claim)
        assert "_statistics" in source or "false_alarm" not in source
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Check":
                found += 1
                if "basis" not in {keyword.arg for keyword in node.keywords}:
                    without.append((claim.name, node.lineno))
    assert not without
    assert found > len(paper.claims)


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "share"), SHARES, ids=lambda value: getattr(value, "name", ""))
def test_checks_of_quick_mode_have_a_basis_and_their_levels_add_up(paper, share):
    complain(checks_of(paper, Setting(seed=1, quick=True)), share)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("paper", "share"), SHARES, ids=lambda value: getattr(value, "name", ""))
def test_checks_have_a_basis_and_their_levels_add_up(paper, share):
    complain(checks_of(paper, Setting(seed=1)), share)


def test_shares_of_the_papers_stay_below_the_total():
    assert sum(share for _, share in SHARES) <= 40
    with pytest.raises(AssertionError):
        complain([Check("value", 0.0, "<=", 1.0)], 1)
    with pytest.raises(AssertionError):
        complain([Check("value", 0.0, "<=", 1.0, basis="x", false_alarm=LEVEL)] * 2, 1)
