"""The page says what the files say, and nothing in a file can say more than words."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from promptlimit.cli._console import CommandError
from promptlimit.cli._report import report
from promptlimit.reporting import write_page
from promptlimit.reporting.page import Entry, Html, Page, Section, element, page_text, read_report
from promptlimit.results import InputFileError
from reporting.page.stored_results import claim, figure_words, plot, write_results

EVIL = "</p></style><script>alert('x')</script><img src=x onerror=alert(1)>\x00\ud800"


class Outline(HTMLParser):
    """What a browser would see: tags, attributes, and text by the element it stands in."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def drawing() -> bytes:
    return plot()


@pytest.fixture
def folder(tmp_path: Path, drawing: bytes) -> Path:
    claims = [claim(number) for number in (12, 4)]
    return write_results(tmp_path / "r", claims=claims, drawings={"gaps": drawing, "more": drawing})


def written(folder: Path) -> str:
    return write_page(folder).read_text(encoding="utf-8")


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_page_holds_every_part(folder: Path) -> None:
    text = written(folder)
    page = Outline(text)
    for words in (
        "2 of 2 verdicts as on record",
        "not in this folder: 17 of the paper’s 19 claims",
        "The gap falls like L^-1 for τ² < 1/2 & more slowly beyond.",
        "Proposition 3.1 and Figure 1 · see Both gaps against the length",
        "−0.98 ± 0.012",
        "≤ −0.9",
        "3.2 × 10−7",
        "Controls, which must be noticed",
        "A remark.",
        "Figure 1 · claim 4 · claim 12",
        "promptlimit x",
        "seed 3quick yesprotocol exacttook 12 shash 0123abcd",
        "Lines are exact; points are simulated.",
        "Beyond the paper",
        "versionspromptlimit 0.1.0, jax 0.10.0",
        "took5 min 1 s",
    ):
        assert words in page.text, words
    assert page.tags.count("svg") == 2
    assert ("href", "figures/gaps.pdf") in page.attributes
    assert text.index('id="claim-4"') < text.index('id="claim-12"')
    assert ("class", "badge verdict-holds") in page.attributes


def test_every_link_inside_the_page_leads_somewhere_and_every_id_is_there_once(
    folder: Path,
) -> None:
    attributes = Outline(written(folder)).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = {
        value[1:] for name, value in attributes if name == "href" and value and value[0] == "#"
    }
    assert len(links) > 10
    assert links <= set(ids)


def test_the_same_results_give_the_same_bytes(folder: Path) -> None:
    first = write_page(folder).read_bytes()
    (folder / "index.html").unlink()
    for path in sorted(folder.rglob("*.json"), reverse=True):  # another order in the folder
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    assert write_page(folder).read_bytes() == first


def test_the_policy_names_the_only_script_and_style_and_nothing_is_inline(folder: Path) -> None:
    page = Outline(written(folder))
    contents = [value or "" for name, value in page.attributes if name == "content"]
    policies = [content for content in contents if "default-src" in content]
    assert len(policies) == 1
    assert re.fullmatch(
        r"default-src 'none'; style-src 'sha256-\S{44}'; script-src 'sha256-\S{44}'; "
        r"img-src data:; base-uri 'none'; form-action 'none'",
        policies[0],
    )
    assert page.tags.count("script") == page.tags.count("style") == 1
    assert not [name for name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert not [name for name, _ in page.attributes if name == "src"]


def test_words_from_files_stay_words(folder: Path) -> None:
    before = Outline(written(folder))
    path = folder / "claims" / "claim-of-number-4.json"
    checks = json.loads(path.read_text())["checks"]
    change(
        path,
        checks=[{**check, "name": EVIL} for check in checks],
        **dict.fromkeys(("name", "statement", "reference", "note", "command", "hash"), EVIL),
        setting={EVIL: EVIL, "list": [EVIL, {EVIL: 1}]},
    )
    words = dict.fromkeys(("title", "caption", "reference", "command", "hash"), EVIL)
    change(folder / "figures" / "gaps.json", **words, setting={EVIL: {EVIL: EVIL}})
    change(folder / "provenance.json", **{EVIL: EVIL, "versions": {EVIL: [EVIL]}})
    after = Outline(written(folder))
    assert "alert('x')" in after.text
    for tag in ("script", "style", "img", "p", "svg"):
        assert abs(after.tags.count(tag) - before.tags.count(tag)) <= (tag == "p")
    assert not [name for name, _ in after.attributes if name.startswith("on")]
    assert after.tags.count("script") == 1


def test_a_drawing_with_a_script_is_left_out_with_the_reason_in_its_place(folder: Path) -> None:
    path = folder / "figures" / "gaps.svg"
    path.write_bytes(path.read_bytes().replace(b"</svg>", b"<script>alert(1)</script></svg>"))
    text = written(folder)
    assert "alert(1)" not in text
    assert (
        "figures/gaps.svg is not shown: it holds &lt;script&gt;. "
        "Delete it and run promptlimit reproduce gaps again." in text
    )
    assert Outline(text).tags.count("svg") == 1


def test_results_of_several_settings_are_not_shown_as_one(folder: Path) -> None:
    assert "Made in the quick setting" in written(folder)
    change(folder / "figures" / "more.json", setting={"seed": 7, "quick": False, "x": EVIL})
    text = Outline(written(folder)).text
    assert "Not all results here come from one setting: 3 with seed 3, quick yes" in text
    assert "; 1 with seed 7, quick no" in text
    assert "Made in the quick setting" not in text
    for path in folder.glob("*/*.json"):
        change(path, setting={"seed": 3, "quick": False})
    assert "setting:" not in Outline(written(folder)).text


def test_parts_that_are_not_there_are_left_out(folder: Path) -> None:
    (folder / "provenance.json").unlink()
    for path in (folder / "claims").iterdir():
        path.unlink()
    (folder / "figures" / "gaps.json").unlink()
    (folder / "figures" / "more.svg").unlink()
    text = written(folder)
    assert "verdicts as on record" not in text
    assert ">Gaps</h3>" in text
    assert "figures/more.svg is not in this folder." in text
    assert 'href="#provenance"' not in text


def test_a_verdict_that_is_not_the_one_on_record_is_shown_as_such(folder: Path) -> None:
    change(folder / "claims" / "claim-of-number-4.json", expected="does not hold")
    page = Outline(written(folder))
    assert "1 of 2 verdicts as on record" in page.text
    assert "on record: does not hold" in page.text
    assert ("class", "headline alarm") in page.attributes


def test_a_number_that_could_not_be_computed_is_no_number_and_decides_nothing(
    folder: Path,
) -> None:
    path = folder / "claims" / "claim-of-number-4.json"
    checks = json.loads(path.read_text())["checks"]
    change(path, checks=[{**checks[0], "value": None}, checks[1]], verdict="does not hold")
    assert "not a number" in written(folder)
    assert not read_report(folder).claims[0].result.as_expected


def test_claims_are_decided_by_their_numbers_and_not_by_their_word(folder: Path) -> None:
    path = folder / "claims" / "claim-of-number-4.json"
    checks = json.loads(path.read_text())["checks"]
    change(path, checks=[{**checks[0], "value": 0.0}, checks[1]])
    with pytest.raises(InputFileError) as caught:
        write_page(folder)
    assert str(caught.value) == (
        f"{path} must hold a claim, but its numbers say 'does not hold' where its verdict says "
        "'holds'. Delete it and run promptlimit reproduce claim-of-number-4 again."
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"\xff", "it is not UTF-8 text"),
        (b"[1]", "it is none"),
        (b"[" * 100_000, "it is nested too deep"),
        (b'{"a":' * 30 + b"1" + b"}" * 30, "it is nested too deep"),
        (b'{"a":"' + b"x" * 1_000_000 + b'"}', "it is larger than 1 MB"),
    ],
    ids=["empty", "bytes", "list", "very deep", "deep", "large"],
)
def test_a_file_that_is_no_json_object_is_named(folder: Path, content: bytes, reason: str) -> None:
    path = folder / "claims" / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputFileError) as caught:
        write_page(folder)
    assert str(caught.value) == (
        f"{path} must hold a JSON object, but {reason}. "
        "Delete it and run promptlimit reproduce bad again."
    )
    assert not (folder / "index.html").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"number": "4"}, "its 'number' is not a whole number from 1 to 999"),
        ({"statement": 3}, "its 'statement' is not text"),
        ({"expected": "maybe"}, "its 'expected' is none of holds, holds with a change, "),
        ({"checks": {}}, "its 'checks' is not a list"),
        ({"checks": [1]}, "one of its checks is not an object"),
        ({"checks": [{"name": "a", "value": "1"}]}, "its 'value' is not a number"),
        ({"setting": []}, "its 'setting' is not an object"),
        ({"seconds": True}, "its 'seconds' is not a number"),
        ({"seconds": 10**400}, "its 'seconds' is too large a number"),
    ],
)
def test_a_claim_that_is_none_is_named(folder: Path, changes: dict[str, Any], reason: str) -> None:
    path = folder / "claims" / "claim-of-number-4.json"
    change(path, **changes)
    with pytest.raises(InputFileError, match=re.escape(reason)) as caught:
        write_page(folder)
    assert str(caught.value).startswith(f"{path} must hold a claim, but ")


def test_provenance_without_a_time_that_is_one_is_named(folder: Path) -> None:
    change(folder / "provenance.json", seconds="long")
    with pytest.raises(InputFileError, match="but its 'seconds' is not a number"):
        write_page(folder)


def test_a_name_no_address_can_hold_is_quoted(folder: Path) -> None:
    for path in sorted((folder / "figures").glob("gaps.*")):
        path.rename(path.with_name(f'a "b#\udcff{path.suffix}'))
    text = written(folder)
    assert 'href="figures/a%20%22b%23%FF.pdf"' in text
    assert 'id="figure-a--b--"' in text


def test_two_claims_of_one_number_are_refused(folder: Path) -> None:
    (folder / "claims" / "again.json").write_text(json.dumps(claim(4, name="again")))
    with pytest.raises(InputFileError, match="'again' and 'claim-of-number-4' both have number 4"):
        write_page(folder)


def test_a_figure_of_no_known_section_is_named(folder: Path) -> None:
    path = folder / "figures" / "gaps.json"
    path.write_text(json.dumps(figure_words("gaps", section="elsewhere")))
    with pytest.raises(InputFileError, match="its 'section' is none of paper, beyond"):
        write_page(folder)


def test_what_is_no_file_is_named_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "claims" / "pipe.json")
    with pytest.raises(
        InputFileError, match=r"pipe\.json must hold a JSON object, but it is no file"
    ):
        read_report(folder)


def test_a_folder_without_results_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(InputFileError) as caught:
        write_page(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} must hold claims/NAME.json or figures/NAME.json, but has neither. "
        f"Fill it with promptlimit reproduce --out {tmp_path}"
    )
    with pytest.raises(InputFileError, match="absent must be a folder of results, but there is"):
        write_page(tmp_path / "absent")


def test_the_command_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        report(tmp_path / "absent")
    assert caught.value.message.startswith(f"{tmp_path / 'absent'} must be a folder of results")
    assert caught.value.hint == "promptlimit reproduce --list names what can be made"


def test_any_page_can_be_written_with_the_same_shell() -> None:
    section = Section("one", "Heads & tails", element("p", "a < b"), (Entry("one", "first", "1"),))
    text = page_text(Page("A <title>", "promptlimit", Html("<p>lead</p>"), (section,), Html()))
    assert text.startswith('<!doctype html>\n<html lang="en">')
    assert "<title>A &lt;title&gt;</title>" in text
    assert "<h2>Heads &amp; tails</h2><p>a &lt; b</p>" in text


def test_the_command_writes_the_page_without_jax(folder: Path) -> None:
    code = """
import sys
from promptlimit.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
assert not {"jax", "equinox"} & set(sys.modules)
"""
    (folder / "figures" / "more.svg").unlink()
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    problem = "figures/more.svg is not in this folder. Run promptlimit reproduce more again."
    assert json.loads(done.stdout) == {
        "page": str(folder / "index.html"),
        "claims": 2,
        "as_on_record": 2,
        "figures": 2,
        "left_out": [problem],
    }
    assert " ".join(done.stderr.split()) == f"note: {problem}"
    assert (folder / "index.html").is_file()
