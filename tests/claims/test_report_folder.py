"""Report folders: typed in, typed out, and nothing that is read is trusted."""

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from promptlimit.claims import Check, ClaimResult, Origin, ReportFolder, StoredClaim, figure_numbers
from promptlimit.errors import InputFileError
from reporting.page.stored_results import PROVENANCE, STUDY, claim, figure, write_results


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_results(tmp_path / "r")


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def refusal(path: Path) -> str:
    with pytest.raises(InputFileError) as caught:
        ReportFolder(path).read()
    return str(caught.value)


def test_what_is_written_is_read_back(path: Path) -> None:
    report = ReportFolder(path).read()
    assert report.claims == (claim(4), claim(12))
    assert [drawn.name for drawn in report.figures] == ["gaps", "more"]
    first, wanted = report.figures[0], figure("gaps")
    np.testing.assert_array_equal(first.arrays["lengths"], wanted.arrays["lengths"])
    for name in ("study", "title", "caption", "reference", "section", "origin"):
        assert getattr(first, name) == getattr(wanted, name)
    assert (first.drawn_by, first.pictures) == ("abc", ("pdf",))
    (study,) = report.studies
    assert (study.link, study.address) == ("https://example.org/1", "studies/made_up.py")
    assert (len(study.claim_names), study.figure_names) == (19, ("gaps", "more"))
    assert {key: report.provenance[key] for key in PROVENANCE} == PROVENANCE
    assert report.provenance["computed"] == "all 4 items"


def test_pictures_of_another_drawing_go(tmp_path: Path) -> None:
    folder, drawn = ReportFolder(tmp_path), figure("gaps")
    folder.save_figure(drawn)
    for endings in (("pdf", "png"), ("png", "svg")):
        drawn = folder.save_pictures(drawn, dict.fromkeys(endings, b"a picture"), "abc")
        assert drawn.pictures == endings
    stored = folder.figure(drawn.study, "gaps")
    assert stored is not None
    assert stored.pictures == ("png", "svg")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_read_back(tmp_path: Path, value: float) -> None:
    checks = (Check("a number", value, ">=", 0.0),)
    result = ClaimResult(1, "a", "b", "c", "holds", checks)
    folder = ReportFolder(tmp_path)
    folder.save_claim(StoredClaim(STUDY, result, Origin()))
    stored = folder.claim(STUDY, "a")
    assert stored is not None
    np.testing.assert_equal(stored.result.checks[0].value, value)
    assert stored.result.verdict == ("holds" if value > 0 else "does not hold")


def test_an_item_is_held_by_its_hash(path: Path) -> None:
    folder = ReportFolder(path)
    assert folder.holds(STUDY, "figures", "gaps", "ef")
    assert not folder.holds(STUDY, "figures", "gaps", "another")
    assert not folder.holds(STUDY, "figures", "absent", "ef")
    assert folder.claim(STUDY, "absent") is folder.figure(STUDY, "absent") is None


def test_a_figure_without_its_words_is_none_and_without_its_arrays_damaged(path: Path) -> None:
    folder = ReportFolder(path)
    (path / STUDY / "figures" / "gaps.json").unlink()
    assert folder.figure(STUDY, "gaps") is None
    arrays = path / STUDY / "figures" / "more.npz"
    arrays.unlink()
    with pytest.raises(InputFileError) as caught:
        folder.figure(STUDY, "more")
    assert str(caught.value) == (
        f"{arrays} must contain the arrays of a figure, but it does not exist. Run "
        f"promptlimit reproduce studies/made_up.py more --quick --seed 3 --out {path} again."
    )


def test_claims_are_decided_by_their_numbers_and_not_by_their_word(path: Path) -> None:
    file = path / STUDY / "claims" / "claim-of-number-4.json"
    checks = json.loads(file.read_text())["checks"]
    change(file, checks=[{**checks[0], "value": 0.0}, checks[1]])
    assert refusal(path) == (
        f"{file} must contain a claim, but its verdict is 'holds', and the verdict of its checks "
        "is 'does not hold'. Run promptlimit reproduce studies/made_up.py claim-of-number-4 "
        f"--quick --seed 3 --out {path} again."
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is truncated or damaged at line 1, column 1"),
        (b"\xff", "it is not UTF-8 text"),
        (b"[1]", "it is not an object"),
        (b"[" * 100_000, "it is nested too deep"),
        (b'{"a":' * 30 + b"1" + b"}" * 30, "it is nested too deep"),
        (b'{"a":"' + b"x" * 1_000_000 + b'"}', "it is larger than 1 MB"),
    ],
    ids=["empty", "bytes", "list", "very deep", "deep", "large"],
)
def test_a_file_that_is_no_json_object_is_named(path: Path, content: bytes, reason: str) -> None:
    file = path / STUDY / "claims" / "claim-of-number-5.json"
    file.write_bytes(content)
    assert refusal(path).startswith(f"{file} must contain a JSON object, but {reason}. Run prompt")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"number": "4"}, "its 'number' is not a whole number from 1 to 999"),
        ({"number": 0}, "its 'number' is not a whole number from 1 to 999"),
        ({"statement": 3}, "its 'statement' is not text"),
        ({"expected": "maybe"}, "its 'expected' is not one of holds, holds with a change, "),
        ({"checks": {}}, "its 'checks' is not a list"),
        ({"checks": [1]}, "one of its checks is not an object"),
        ({"checks": [{"name": "a", "value": "1"}]}, "its 'value' is not a number"),
        ({"setting": []}, "its 'setting' is not an object"),
        ({"seconds": True}, "its 'seconds' is not a number"),
        ({"seconds": 10**400}, "its 'seconds' is too large a number"),
    ],
)
def test_a_claim_that_is_none_is_named(path: Path, changes: dict[str, Any], reason: str) -> None:
    file = path / STUDY / "claims" / "claim-of-number-4.json"
    change(file, **changes)
    assert re.match(
        rf"{re.escape(str(file))} must contain a claim, but {re.escape(reason)}", refusal(path)
    )


@pytest.mark.parametrize(
    ("file", "changes", "reason"),
    [
        ("provenance.json", {"seconds": "long"}, "but its 'seconds' is not a number"),
        (f"{STUDY}/figures/gaps.json", {"section": "x"}, "'section' is not one of paper, beyond"),
        (f"{STUDY}/study.json", {"link": "javascript:x"}, "does not start with https://"),
        (f"{STUDY}/study.json", {"claim_names": [1]}, "'claim_names' is not a list of names"),
        (f"{STUDY}/failures/more.json", {"problem": 3}, "its 'problem' is not text"),
    ],
)
def test_other_files_that_say_nonsense_are_named(
    path: Path, file: str, changes: dict[str, Any], reason: str
) -> None:
    ReportFolder(path).save_failure(STUDY, "more", "a reason")
    change(path / file, **changes)
    assert reason in refusal(path)


def test_all_that_is_damaged_is_named_at_once(path: Path) -> None:
    for file in (path / STUDY / "claims").iterdir():
        file.write_text("[]")
    (path / STUDY / "figures" / "gaps.npz").write_bytes(b"")
    assert len(refusal(path).splitlines()) == 3


def test_advice_repeats_the_options_of_the_item(path: Path) -> None:
    file = path / STUDY / "claims" / "claim-of-number-4.json"
    change(file, setting={"seed": 5, "quick": False, "protocol": "full"}, verdict="holds well")
    assert refusal(path).endswith(f"claim-of-number-4 --protocol full --seed 5 --out {path} again.")
    file.write_text("[]")
    assert refusal(path).endswith(f"claim-of-number-4 --quick --seed 3 --out {path} again.")
    (path / "provenance.json").write_text("{}")
    assert refusal(path).endswith(f"claim-of-number-4 --out {path} again.")


def test_two_claims_of_one_number_are_refused(path: Path) -> None:
    file = path / STUDY / "claims" / "claim-of-number-4.json"
    change(file, name="claim-of-number-5")
    file.rename(file.with_name("claim-of-number-5.json"))
    ReportFolder(path).save_claim(claim(4))
    assert refusal(path).endswith(
        "'claim-of-number-4' and 'claim-of-number-5' both have number 4. Run promptlimit reproduce "
        f"studies/made_up.py --quick --seed 3 --out {path} again."
    )
    file.with_name("claim-of-number-5.json").rename(file.with_name("claim-of-number-6.json"))
    assert "-6.json must contain a claim, but its 'name' is 'claim-of-number-5'" in refusal(path)


def test_results_that_the_study_no_longer_has_are_left_out_whatever_they_contain(
    path: Path,
) -> None:
    (path / STUDY / "claims" / "renamed.json").write_text("{")
    change(path / STUDY / "study.json", figure_names=["more"])
    report = ReportFolder(path).read()
    assert [claim.name for claim in report.claims] == ["claim-of-number-4", "claim-of-number-12"]
    assert [figure.name for figure in report.figures] == ["more"]
    assert report.left_out == (
        f"{path}/{STUDY}/claims/renamed.json is not in the report: made_up has no claim of this "
        "name.",
        f"{path}/{STUDY}/figures/gaps.json is not in the report: made_up has no figure of this "
        "name.",
    )


def test_a_failure_replaces_an_earlier_result_until_the_item_succeeds(path: Path) -> None:
    folder = ReportFolder(path)
    folder.save_failure(STUDY, "gaps", "a reason")
    report = folder.read()
    assert [figure.name for figure in report.figures] == ["more"]
    assert [(one.name, one.problem) for one in report.failures] == [("gaps", "a reason")]
    folder.save_failure(STUDY, "gaps", "")
    assert len(folder.read().figures) == 2


def test_what_is_no_file_is_named_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path / STUDY / "claims" / "claim-of-number-5.json")
    assert "-5.json must contain a JSON object, but it is not a file" in refusal(path)


def test_a_folder_without_results_says_how_to_fill_it(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path} must contain STUDY/claims/NAME.json or STUDY/figures/NAME.json, but "
        f"has neither. Create them with promptlimit reproduce --out {tmp_path}"
    )
    assert "absent must be a folder of results, but it does not" in refusal(tmp_path / "absent")


def test_a_folder_of_version_0_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "claims").mkdir()
    assert refusal(tmp_path) == (
        f"{tmp_path} must have one subfolder per study, but it contains claims/ and figures/ of "
        "version 0.1. Choose another folder."
    )


def test_provenance_stays_when_nothing_is_new(path: Path) -> None:
    folder = ReportFolder(path)
    report = folder.read()
    items = [*report.figures, *report.claims]  # in another order
    before = (path / "provenance.json").read_bytes()
    folder.record(items, [], {**PROVENANCE, "device": "another"}, whole=True)
    assert (path / "provenance.json").read_bytes() == before
    folder.record(items[1:], [], {**PROVENANCE, "device": "another"}, whole=True)
    content = json.loads((path / "provenance.json").read_text())
    assert content["device"] == "another"
    assert content["computed"] == "0 of 3 items, the others were stored"


def test_a_part_computed_later_leaves_the_provenance_of_the_whole(path: Path) -> None:
    folder = ReportFolder(path)
    whole = folder.read().provenance
    part = [claim(4)]
    folder.record(part, [], {**PROVENANCE, "device": "another"}, whole=False)
    assert folder.read().provenance == whole
    folder.record(part, part, {**PROVENANCE, "device": "another"}, whole=False)
    later = folder.read().provenance
    assert {key: later[key] for key in whole} == whole
    assert later["later"] == {f"{STUDY}/claim-of-number-4": f"{PROVENANCE['started']} on another"}


def test_a_damaged_provenance_is_written_anew(path: Path) -> None:
    (path / "provenance.json").write_text('{"later": 3}')
    ReportFolder(path).record([claim(4)], [], PROVENANCE, whole=False)
    content = json.loads((path / "provenance.json").read_text())
    assert content["computed"].startswith("0 of 1")


@pytest.mark.parametrize("name", ["provenance.json", f"{STUDY}/study.json"])
def test_what_should_be_a_file_and_is_a_folder_is_refused(path: Path, name: str) -> None:
    (path / name).unlink(missing_ok=True)
    (path / name).mkdir()
    assert f"{path / name} must contain a JSON object, but it is not a file. " in refusal(path)


def test_numbers_of_figures_are_read_from_references() -> None:
    assert figure_numbers("Figure 10") == (10,)
    assert figure_numbers("Proposition 3.1 and Figures 2, 4-6") == (2, 4, 5, 6)
    assert figure_numbers("Lemma 2.1") == ()


def test_figures_come_by_number_then_those_without_then_those_beyond_the_paper() -> None:
    references = {"a": "docs", "b": "Figure 10", "c": "Figure 2", "d": "Appendix"}
    drawn = []
    for name, reference in references.items():
        beyond = name == "a"
        template = figure("more" if beyond else "gaps")
        drawn.append(dataclasses.replace(template, name=name, reference=reference))
    assert [item.name for item in sorted(drawn, key=lambda item: item.place)] == [
        "c",
        "b",
        "d",
        "a",
    ]
