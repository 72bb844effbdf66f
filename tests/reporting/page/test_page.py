"""The page says what the files say, and nothing in a file can say more than words."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from promptlimit.claims import ReportFolder
from promptlimit.reporting import report_page
from reporting.page.stored_results import PAPER, plot, write_results

EVIL = "</p></style><script>alert('x')</script><img src=x onerror=alert(1)>\x00\ud800"


class Outline(HTMLParser):
    """What a browser would see: tags, attributes, and text, its white space made even."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def drawing() -> bytes:
    return plot()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_results(tmp_path / "r")


def written(folder: Path, drawing: bytes, *papers: str) -> str:
    drawings = {(paper, name): drawing for paper in (PAPER, *papers) for name in ("gaps", "more")}
    text = report_page(ReportFolder(folder).read(), drawings)
    assert text.encode().decode() == text  # no half of a letter
    return text


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_page_holds_every_part(folder: Path, drawing: bytes) -> None:
    text = written(folder, drawing)
    page = Outline(text)
    for words in (
        "Gaps & <risks>, Nobody, 2026, example.org/1",
        "2 of 2 verdicts as on record",
        "not in this folder: 17 of the paper’s 19 claims",
        "The gap falls like L−1 for τ² < 1/2 & more slowly beyond.",
        "Proposition 3.1 and Figure 1 · see Both gaps against the length",
        "−0.98 ± 0.012",
        "≤ −0.9",
        "3.2 × 10−7",
        "Negative controls (must fail)",
        "A remark.",
        "Figure 1 · claim 4 · claim 12",
        "promptlimit x seed 3 quick yes protocol exact took 12 s hash 0123abcd",
        "Lines are exact; points are simulated.",
        "Beyond the paper",
        "versions promptlimit 0.1.0, jax 0.10.0",
        "took 5 min 1 s",
    ):
        assert words.replace(" ", "") in page.text.replace(" ", ""), words
    assert page.tags.count("svg") == 2
    assert ("href", f"{PAPER}/figures/gaps.pdf") in page.attributes
    assert text.index(f'id="{PAPER}-claim-4"') < text.index(f'id="{PAPER}-claim-12"')
    assert ("class", "badge verdict-holds") in page.attributes


def test_every_link_inside_the_page_leads_somewhere_and_every_id_is_there_once(
    folder: Path, drawing: bytes
) -> None:
    write_results(folder, paper="another")
    attributes = Outline(written(folder, drawing, "another")).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    links = {
        value[1:] for name, value in attributes if name == "href" and value and value[0] == "#"
    }
    assert len(links) > 20
    assert links <= set(ids)


def test_each_paper_has_a_part_with_a_count_of_its_own(folder: Path, drawing: bytes) -> None:
    write_results(folder, (1,), paper="another")
    page = Outline(written(folder, drawing, "another"))
    for words in ("3 of 3 verdicts", "1 of 1 verdicts", "2 of 2 verdicts", "18 of the paper’s 19"):
        assert words in page.text
    for paper in (PAPER, "another"):
        assert ("href", f"#{paper}") in page.attributes
        assert ("id", f"{paper}-evidence") in page.attributes


def test_the_same_results_give_the_same_bytes(folder: Path, drawing: bytes) -> None:
    first = written(folder, drawing)
    for path in sorted(folder.rglob("*.json"), reverse=True):  # another order in the folder
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    assert written(folder, drawing) == first


def test_the_policy_names_the_only_script_and_style_and_nothing_is_inline(
    folder: Path, drawing: bytes
) -> None:
    page = Outline(written(folder, drawing))
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


def test_words_from_files_stay_words(folder: Path, drawing: bytes) -> None:
    before = Outline(written(folder, drawing))
    path = folder / PAPER / "claims" / "claim-of-number-4.json"
    checks = json.loads(path.read_text())["checks"]
    change(
        path,
        checks=[{**check, "name": EVIL} for check in checks],
        **dict.fromkeys(("statement", "reference", "evidence", "command", "hash"), EVIL),
        setting={EVIL: EVIL, "list": [EVIL, {EVIL: 1}]},
    )
    words = dict.fromkeys(("title", "caption", "reference", "command", "hash"), EVIL)
    change(folder / PAPER / "figures" / "gaps.json", **words, setting={EVIL: {EVIL: EVIL}})
    change(folder / PAPER / "paper.json", title=EVIL, citation=EVIL, link=f"https://{EVIL}")
    change(folder / "provenance.json", **{EVIL: EVIL, "versions": {EVIL: [EVIL]}})
    after = Outline(written(folder, drawing))
    assert "alert('x')" in after.text
    for tag in ("script", "style", "img", "p", "svg"):
        assert abs(after.tags.count(tag) - before.tags.count(tag)) <= (tag == "p")
    assert not [name for name, _ in after.attributes if name.startswith("on")]
    assert after.tags.count("script") == 1


def test_results_of_several_settings_are_not_shown_as_one(folder: Path, drawing: bytes) -> None:
    assert "Made in the quick setting" in written(folder, drawing)
    figures = folder / PAPER / "figures"
    change(figures / "more.json", setting={"seed": 7, "quick": False, "x": EVIL})
    text = Outline(written(folder, drawing)).text
    assert "Not all results here come from one setting: 3 with seed 3, quick yes" in text
    assert "; 1 with seed 7, quick no" in text
    assert "Made in the quick setting" not in text
    for path in folder.glob("*/*/*.json"):
        change(path, setting={"seed": 3, "quick": False})
    assert "setting:" not in Outline(written(folder, drawing)).text


def test_parts_that_are_not_there_are_left_out(folder: Path) -> None:
    (folder / "provenance.json").unlink()
    (folder / PAPER / "paper.json").unlink()
    for path in (folder / PAPER / "claims").iterdir():
        path.unlink()
    text = report_page(ReportFolder(folder).read(), {})
    assert "verdicts as on record" not in text
    assert "<cite>Made up</cite></p>" in text
    assert text.count("This figure could not be drawn from what is stored.") == 2
    assert 'href="#provenance"' not in text


def test_a_verdict_that_is_not_the_one_on_record_is_shown_as_such(
    folder: Path, drawing: bytes
) -> None:
    change(folder / PAPER / "claims" / "claim-of-number-4.json", expected="does not hold")
    page = Outline(written(folder, drawing))
    assert "1 of 2 verdicts as on record" in page.text
    assert "on record: does not hold" in page.text
    assert ("class", "headline alarm") in page.attributes


def test_a_number_that_could_not_be_computed_is_shown_as_none(folder: Path, drawing: bytes) -> None:
    path = folder / PAPER / "claims" / "claim-of-number-4.json"
    checks = json.loads(path.read_text())["checks"]
    change(path, checks=[{**checks[0], "value": None}, checks[1]], verdict="does not hold")
    assert "not a number" in written(folder, drawing)


def test_a_name_no_address_can_hold_is_quoted(folder: Path, drawing: bytes) -> None:
    for path in sorted((folder / PAPER / "figures").glob("gaps.*")):
        path.rename(path.with_name(f'a "b#\udcff{path.suffix}'))
    text = written(folder, drawing)
    assert f'href="{PAPER}/figures/a%20%22b%23%FF.pdf"' in text
    assert f'id="{PAPER}-figure-a--b--"' in text
