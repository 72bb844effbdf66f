"""`promptlimit reproduce --quick`, run once as a user would, and all that it leaves behind.

The suite runs this command here and nowhere else. The seed is part of every message, so that
`promptlimit reproduce --quick --seed SEED` repeats a failure.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from commit import commit_seed
from promptlimit.reporting import QUICK_FORMATS
from promptlimit.reporting.page._numbers import formula
from promptlimit.studies import studies

SEED = commit_seed()  # every commit tries another one
STUDIES = [study for study in studies() if study.claims or study.figures]


UNDECIDED = "not decided in quick mode"


class Reproduced(NamedTuple):
    """A finished command: its exit status, what it printed, and its folder."""

    code: int
    printed: dict
    log: list[str]
    out: Path


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    return reproduced(tmp_path_factory.mktemp("quick") / "report")


def reproduced(out: Path) -> Reproduced:
    print(f"promptlimit reproduce --quick --seed {SEED}")  # noqa: T201  # repeats a failure
    command = [sys.executable, "-m", "promptlimit", "reproduce", "--quick", "--json"]
    done = subprocess.run(
        [*command, "--seed", str(SEED), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return Reproduced(done.returncode, json.loads(done.stdout), done.stderr.splitlines(), out)


def test_every_verdict_is_the_expected_one(quick: Reproduced) -> None:
    claims = quick.printed["claims"]
    assert [claim["name"] for claim in claims] == [
        claim.name for study in STUDIES for claim in study.claims
    ]
    news = [
        (claim["name"], [check for check in claim["checks"] if not check["passed"]])
        for claim in claims
        if claim["verdict"] not in (claim["expected"], UNDECIDED)
    ]
    assert not news, f"at seed {SEED}"
    assert quick.code == 0


def test_the_folder_holds_what_is_printed_and_the_command_that_repeats_it(
    quick: Reproduced,
) -> None:
    assert quick.printed["seed"] == SEED
    claims = [(study.name, claim.name) for study in STUDIES for claim in study.claims]
    for (study, name), printed in zip(claims, quick.printed["claims"], strict=True):
        path = quick.out / study / "claims" / f"{name}.json"
        written = json.loads(path.read_text(encoding="utf-8"))
        assert {field: written[field] for field in printed} == printed
        again = f"promptlimit reproduce {study} {name} --quick --seed {SEED}"
        assert written["command"] == again


def test_quick_mode_leaves_those_claims_undecided_that_say_so(quick: Reproduced) -> None:
    undecided = [c["name"] for c in quick.printed["claims"] if c["verdict"] == UNDECIDED]
    said = [claim.name for study in STUDIES for claim in study.claims if not claim.quick]
    assert undecided == said
    assert len(said) < len(quick.printed["claims"]) / 4


def test_every_claim_has_a_control_and_every_check_a_basis(quick: Reproduced) -> None:
    for claim in quick.printed["claims"]:
        if claim["verdict"] != UNDECIDED:
            assert any(check["role"] == "control" for check in claim["checks"]), claim["name"]
            assert all(check["basis"] for check in claim["checks"]), claim["name"]


def test_every_formula_in_the_words_of_a_check_becomes_mathml(quick: Reproduced) -> None:
    for claim in quick.printed["claims"]:
        for text in (check[key] for check in claim["checks"] for key in ("name", "basis")):
            assert not {"$", "\\"} & set(formula(text)), text


def test_the_false_alarm_levels_of_a_run_add_up_to_less_than_1e_4(quick: Reproduced) -> None:
    checks = [check for claim in quick.printed["claims"] for check in claim["checks"]]
    levels = [check["false_alarm"] for check in checks]
    assert 1e-6 < sum(levels) < 1e-4


def test_the_log_tells_each_item_as_it_ends(quick: Reproduced) -> None:
    ended = [line for line in quick.log if line.endswith(" left") and " s, " in line]
    for study in STUDIES:
        place = f"{study.name}/" if len(STUDIES) > 1 else ""
        for item in (*study.claims, *study.figures):
            assert sum(line.startswith(f"reproduce: {place}{item.name}: ") for line in ended) == 1
    assert ended[-1].endswith(", 0 left")


def test_the_same_command_again_computes_nothing_and_writes_the_same_bytes(
    quick: Reproduced,
) -> None:
    figures = [figure for study in STUDIES for figure in study.figures]
    drawn = {f"{figure.name}.{kind}" for figure in figures for kind in QUICK_FORMATS}
    before = files(quick.out)
    assert drawn <= {path.name for path in before}
    assert all(len(before[path]) > 5_000 for path in before if path.name in drawn)
    again = reproduced(quick.out)
    assert again.code == 0
    assert again.printed == quick.printed
    ended = [line for line in again.log if line.endswith(" left") and " s, " in line]
    assert all("stored" in line for line in ended)
    after = files(quick.out)
    assert {path for path in before if before[path] != after[path]} == set()
    assert set(after) == set(before)


def files(folder: Path) -> dict[Path, bytes]:
    """Return the claims, figures and pages of a reproduction, each with its bytes."""
    kinds = [".json", ".npz", ".html", *(f".{kind}" for kind in QUICK_FORMATS)]
    inside = [path for path in folder.rglob("*") if "runs" not in path.parts]
    return {path: path.read_bytes() for path in inside if path.suffix in kinds}
