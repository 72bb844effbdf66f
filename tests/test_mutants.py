"""The planted errors: each can still be planted, and the script tells seen from survived."""

import ast
import functools
from pathlib import Path

import pytest

from mutants import NOT_APPLIED, PACKAGE, SEEN, SURVIVED, Mutant, Outcome, listed, located

ROOT = Path(__file__).parents[1]
KINDS = {
    *("sign", "factor", "off-by-one", "dropped term"),
    *("wrong axis", "swapped argument", "missing check", "wrong branch"),
}


@functools.cache
def meaning(path: Path) -> str:
    """Return what a file says, of Python without its layout."""
    return meaning_of(path.read_text(encoding="utf-8"), path)


def meaning_of(text: str, path: Path) -> str:
    return ast.dump(ast.parse(text)) if path.suffix == ".py" else text


@pytest.mark.parametrize("mutant", listed(), ids=lambda mutant: f"{mutant.file}: {mutant.why}")
def test_every_planted_error_still_applies(mutant: Mutant) -> None:
    planted = mutant.planted(ROOT)
    assert planted is not None, "the file must hold `old` exactly once"
    path = mutant.path(ROOT)
    assert meaning_of(planted, path) != meaning(path)
    assert mutant.tests
    assert all(located(test, ROOT) for test in mutant.tests)
    assert mutant.kind in KINDS


def test_there_are_planted_errors_of_every_kind_in_every_package() -> None:
    mutants = listed()
    assert len(mutants) >= 80
    assert len({(mutant.file, mutant.old) for mutant in mutants}) == len(mutants)
    packages = {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / PACKAGE).glob("_[!_]*.py")}
    assert packages | modules == {mutant.package for mutant in mutants}
    assert {mutant.kind for mutant in mutants} == KINDS


@pytest.mark.parametrize(
    ("status", "words", "verdict"),
    [
        (0, "3 passed", SURVIVED),
        (1, "1 failed", SEEN),
        (None, "", SEEN),
        (2, "Interrupted: 1 error during collection", SEEN),
        (2, "KeyboardInterrupt", NOT_APPLIED),
        (4, "no such file", NOT_APPLIED),
        (5, "no tests ran", NOT_APPLIED),
    ],
)
def test_an_error_is_seen_when_tests_fail_and_in_no_other_way(
    status: int | None, words: str, verdict: str
) -> None:
    assert Outcome(status, words, 1.0).verdict == verdict
