"""The page says what the files say, and nothing in a file can say more than words."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from promptlimit.claims import ReportFolder
from promptlimit.reporting import report_pages, unconverted_tex
from reporting.page.stored_results import STUDY, plot, write_results

OWN = f"{STUDY}/index.html"
EVIL = (
    "$</math>\\text{<script>}$ $\\bad{$ </p></style><script>alert('x')</script>"
    "<img src=x onerror=alert(1)>\x00\ud800"
)


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


def written(folder: Path, drawing: bytes, *studies: str) -> dict[str, str]:
    drawings = {(study, name): drawing for study in (STUDY, *studies) for name in ("gaps", "more")}
    pages = report_pages(ReportFolder(folder).read(), drawings)
    for text in pages.values():
        assert text.encode().decode() == text  # no half of a letter
    return pages


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_pages_hold_every_part(folder: Path, drawing: bytes) -> None:
    pages = written(folder, drawing)
    assert list(pages) == ["index.html", OWN]
    first, page = Outline(pages["index.html"]), Outline(pages[OWN])
    for shown, found in (
        (
            first,
            (
                "Gaps & <risks>",
                "Nobody, 2026, example.org/1",
                "What was found.",
                "2 of 19",
                "2 holds",
                "Both gaps against the length (Figure 1).",
                "versions promptlimit 0.1.0, jax 0.10.0",
                "took 5 min 1 s",
            ),
        ),
        (
            page,
            (
                "Nobody, 2026, example.org/1",
                "What was found.",
                "Not in this folder: claim-of-number-1, claim-of-number-2, claim-of-number-3, ",
                "The gap falls like L−1 for τ² < 1/2 & more slowly beyond.",
                "Proposition 3.1 and Figure 1 · see Both gaps against the length",
                "−0.98 ± 0.012 (must be ≤ −0.9) slope of the gap",
                "3.2 × 10−7",
                "Negative controls (must fail)",
                "A remark.",
                "Figure 1 · claim 4 · claim 12",
                "promptlimit x seed 3 quick yes protocol exact took 12 s hash 0123abcd",
                "Lines are exact; points are simulated.",
                "Beyond the paper",
            ),
        ),
    ):
        for words in found:
            assert words.replace(" ", "") in shown.text.replace(" ", ""), words
    assert first.tags.count("svg") == 1
    assert page.tags.count("svg") == 2
    assert page.tags.count("math") == 2
    assert ("href", OWN) in first.attributes
    assert ("href", "../index.html") in page.attributes
    assert ("href", "figures/gaps.pdf") in page.attributes
    assert pages[OWN].index('id="claim-4"') < pages[OWN].index('id="claim-12"')
    assert ("class", "badge verdict-holds") in page.attributes


def test_every_link_inside_the_pages_leads_somewhere_and_every_id_is_there_once(
    folder: Path, drawing: bytes
) -> None:
    write_results(folder, study="another")
    pages = {
        place: Outline(text).attributes
        for place, text in written(folder, drawing, "another").items()
    }
    ids = {place: [value for name, value in page if name == "id"] for place, page in pages.items()}
    links = 0
    for place, page in pages.items():
        assert len(ids[place]) == len(set(ids[place]))
        for name, value in page:
            target, hash_sign, anchor = (value or "").partition("#")
            if name == "href" and hash_sign and not target.startswith("https:"):
                links += 1
                assert anchor in ids[target or place]
    assert links > 20


def test_each_study_has_a_page_and_a_count_of_its_own(folder: Path, drawing: bytes) -> None:
    write_results(folder, (1,), study="another")
    change(folder / STUDY / "study.json", order=0)
    pages = written(folder, drawing, "another")
    assert list(pages) == ["index.html", OWN, "another/index.html"]  # in their order
    assert "claim-of-number-4, " in pages["another/index.html"]
    assert "claim-of-number-1, " not in pages["another/index.html"]
    for study in (STUDY, "another"):
        assert ("href", f"#{study}") in Outline(pages["index.html"]).attributes


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
    for text in written(folder, drawing).values():
        _require_policy(Outline(text))


def _require_policy(page: Outline) -> None:
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
    sources = [value or "" for name, value in page.attributes if name == "src"]
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)


def test_words_from_files_stay_words(folder: Path, drawing: bytes) -> None:
    before = {place: Outline(text) for place, text in written(folder, drawing).items()}
    path = folder / STUDY / "claims" / "claim-of-number-4.json"
    checks = json.loads(path.read_text())["checks"]
    change(
        path,
        checks=[{**check, "name": EVIL} for check in checks],
        **dict.fromkeys(("statement", "reference", "evidence", "command", "hash"), EVIL),
        setting={EVIL: EVIL, "list": [EVIL, {EVIL: 1}]},
    )
    words = dict.fromkeys(("title", "caption", "reference", "command", "hash"), EVIL)
    change(folder / STUDY / "figures" / "gaps.json", **words, setting={EVIL: {EVIL: EVIL}})
    change(
        folder / STUDY / "study.json",
        title=EVIL,
        citation=EVIL,
        summary=EVIL,
        link=f"https://{EVIL}",
    )
    change(folder / "provenance.json", **{EVIL: EVIL, "versions": {EVIL: [EVIL]}})
    for place, text in written(folder, drawing).items():
        after = Outline(text)
        assert "alert('x')" in after.text
        for tag in ("script", "style", "img", "p", "svg"):
            assert abs(after.tags.count(tag) - before[place].tags.count(tag)) <= (tag == "p")
        assert not [name for name, _ in after.attributes if name.startswith("on")]
        assert after.tags.count("script") == 1


def test_results_of_several_settings_are_not_shown_as_one(folder: Path, drawing: bytes) -> None:
    assert "Made in quick mode" in written(folder, drawing)["index.html"]
    figures = folder / STUDY / "figures"
    change(figures / "more.json", setting={"seed": 7, "quick": False, "x": EVIL})
    text = Outline(written(folder, drawing)["index.html"]).text
    assert "Not all results here come from one setting: 3 with seed 3, quick yes" in text
    assert "; 1 with seed 7, quick no" in text
    assert "Made in quick mode" not in text
    for path in folder.glob("*/*/*.json"):
        change(path, setting={"seed": 3, "quick": False})
    assert "setting:" not in Outline(written(folder, drawing)["index.html"]).text


def test_parts_that_are_not_there_are_left_out(folder: Path) -> None:
    (folder / "provenance.json").unlink()
    (folder / STUDY / "study.json").unlink()
    for path in (folder / STUDY / "claims").iterdir():
        path.unlink()
    pages = report_pages(ReportFolder(folder).read(), {})
    assert "verdict-holds" not in pages["index.html"].partition("</style>")[2]
    assert "Made up" in pages["index.html"]
    assert pages[OWN].count("This figure could not be drawn from its stored arrays.") == 2
    assert 'href="#provenance"' not in pages["index.html"]


def test_what_could_not_be_computed_is_shown_with_the_reason(folder: Path, drawing: bytes) -> None:
    for name in ("gaps", "claim-of-number-4"):
        ReportFolder(folder).save_failure(STUDY, name, f"the item {name} raised <b>KeyError</b>")
    for text in written(folder, drawing).values():
        for name in ("gaps", "claim-of-number-4"):
            assert f"Not computed: the item {name} raised <b>KeyError</b>" in Outline(text).text
        assert 'id="figure-gaps"' not in text
        assert 'id="claim-4"' not in text


def test_tex_that_is_not_converted_is_named(folder: Path) -> None:
    file = folder / STUDY / "claims" / "claim-of-number-4.json"
    assert unconverted_tex(ReportFolder(folder).read()) == []
    change(file, statement=r"Here $x_{$ is broken.", evidence=r"So is $\nosuch{x}$.")
    change(folder / STUDY / "figures" / "gaps.json", caption="One $ alone")
    assert unconverted_tex(ReportFolder(folder).read()) == [
        f"the {item} of made_up has TeX that the page shows unconverted: {text}"
        for item, text in (
            ("claim claim-of-number-4", r"Here $x_{$ is broken."),
            ("claim claim-of-number-4", r"So is $\nosuch{x}$."),
            ("figure gaps", "One $ alone"),
        )
    ]


def test_a_verdict_that_is_not_the_expected_one_is_shown_as_such(
    folder: Path, drawing: bytes
) -> None:
    change(folder / STUDY / "claims" / "claim-of-number-4.json", expected="does not hold")
    for text in written(folder, drawing).values():
        assert "does not hold" in Outline(text).text
        assert "the expected verdict is: does not hold" in Outline(text).text


def test_a_number_that_could_not_be_computed_is_shown_as_none(folder: Path, drawing: bytes) -> None:
    path = folder / STUDY / "claims" / "claim-of-number-4.json"
    checks = json.loads(path.read_text())["checks"]
    change(path, checks=[{**checks[0], "value": None}, checks[1]], verdict="does not hold")
    assert "not a number" in written(folder, drawing)[OWN]


def test_a_name_no_address_can_hold_is_quoted(folder: Path, drawing: bytes) -> None:
    change(folder / STUDY / "study.json", figure_names=['a "b#\udcff'])
    for path in sorted((folder / STUDY / "figures").glob("gaps.*")):
        path.rename(path.with_name(f'a "b#\udcff{path.suffix}'))
    text = written(folder, drawing)[OWN]
    assert 'href="figures/a%20%22b%23%FF.pdf"' in text
    assert 'id="figure-a--b--"' in text
