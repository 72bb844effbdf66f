"""A paper is a folder: found by being there, inside the library or anywhere else."""

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promptlimit.claims import ReportFolder
from promptlimit.errors import InputFileError
from promptlimit.reporting import FORMATS, QUICK_FORMATS
from promptlimit.reporting.page._numbers import formula
from promptlimit.studies import Setting, _pictures, paper_at, papers, write_pages
from promptlimit.studies._pictures import drawn_figure
from promptlimit.studies.large_prompt import PAPER
from reporting.page.stored_results import figure, plot, write_results

IMPORT = "from promptlimit.studies import Claim\n"
SOURCES = {
    "__init__.py": """
from promptlimit.studies import Paper
PAPER = Paper(__name__, "On coins", "Nobody, 2026")
""",
    "claims/fair.py": """
from promptlimit.studies import Claim
from promptlimit.claims import Check

def decide(setting):
    return [Check("heads", 0.5, "<=", 0.5), Check("a forged coin", 0.9, ">=", 0.6, role="control")]

CLAIM = Claim(1, "fair", "A coin is fair.", "Theorem 1", decide)
""",
    "figures/tosses.py": """
import numpy as np
from promptlimit.studies import Figure

def compute(setting):
    return {"heads": np.arange(1.0, 4.0 - setting.quick)}

FIGURE = Figure("tosses", "Tosses", "Heads by toss.", compute, reference="Theorem 1")
""",
    "drawings/tosses.py": """
from matplotlib.figure import Figure

def draw(arrays):
    figure = Figure()
    figure.subplots().plot(arrays["heads"])
    return figure
""",
}


@pytest.fixture
def coins(tmp_path: Path) -> Iterator[Path]:
    """A paper of a user's own."""
    folder = tmp_path / "coins"
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    before = list(sys.path)
    yield folder
    sys.path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "coins"]:
        del sys.modules[name]


def test_the_papers_of_the_library_are_found_by_their_folders() -> None:
    folder = Path(_pictures.__file__).parent
    assert {paper.name for paper in papers()} == {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    assert papers()[0] is PAPER
    for paper in papers():
        assert paper.summary
        assert paper.key_figure in [figure.name for figure in paper.figures]
    assert PAPER.words.claims == len(PAPER.claims) == 19


def test_every_figure_has_a_drawing_and_every_drawing_a_figure() -> None:
    for paper in papers():
        names = {item.drawing for item in paper.figures}
        assert names == set(paper._names("drawings"))
        assert len({item.name for item in (*paper.claims, *paper.figures)}) == len(
            paper.claims
        ) + len(paper.figures)


def test_every_formula_in_the_words_of_the_papers_becomes_mathml() -> None:
    for paper in papers():
        words = [paper.summary, *(figure.caption for figure in paper.figures)]
        words += [text for claim in paper.claims for text in (claim.statement, claim.evidence)]
        for text in words:
            assert not {"$", "\\"} & set(formula(text)), text


def test_a_paper_without_a_study_has_no_parts(coins: Path) -> None:
    paper = paper_at(coins)
    assert paper.parts(Setting()) == ()
    assert [claim.name for claim in paper.claims] == ["fair"]
    assert [item.name for item in paper.figures] == ["tosses"]


def test_a_folder_that_is_no_paper_is_refused(tmp_path: Path, coins: Path) -> None:
    with pytest.raises(InputFileError, match=r"must be a Python package that defines PAPER, but"):
        paper_at(tmp_path)
    (coins / "__init__.py").write_text("PAPER = 3\n")
    with pytest.raises(InputFileError, match=r"must define PAPER = Paper\(__name__, \.\.\.\)"):
        paper_at(coins)


def test_a_paper_of_ones_own_is_reproduced_beside_the_librarys(
    coins: Path, here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    out = coins.parent / "report"
    done = here("reproduce", str(coins), "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    (claim,) = json.loads(done.stdout)["claims"]
    assert (claim["name"], claim["verdict"]) == ("fair", "holds")
    assert "On coins" in (out / "index.html").read_text()
    page = (out / "coins" / "index.html").read_text()
    assert "Nobody, 2026" in page
    assert 'id="figure-tosses"' in page
    assert "<svg" in page
    assert f"promptlimit reproduce {coins} fair --seed 0" in page
    _, _, problems = write_pages(ReportFolder(out))  # with the stored drawing
    assert problems == []
    (out / "coins" / "figures" / "tosses.svg").unlink()
    _, report, problems = write_pages(ReportFolder(out))  # by whoever does not know the paper
    assert len(report.figures) == 1
    assert problems == [
        "coins/figures/tosses is shown as the picture that is stored: the paper coins is not one "
        "of this library."
    ]
    _, _, problems = write_pages(ReportFolder(out), [paper_at(coins)])
    assert problems == []


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("claims/fair.py", "x = (", "importing it raised SyntaxError"),
        ("claims/fair.py", "x = 1", "fair.py must define CLAIM, a Claim."),
        ("figures/tosses.py", "FIGURE = 1", "tosses.py must define FIGURE, a Figure."),
        ("drawings/tosses.py", None, "there is no drawings/tosses.py beside figures/tosses.py."),
        ("claims/more.py", SOURCES["claims/fair.py"], "must have different numbers, got [1, 1]."),
        (
            "claims/more.py",
            SOURCES["claims/fair.py"].replace("Claim(1", "Claim(2"),
            "claims and figures of coins must differ in name, got fair.",
        ),
        ("claims/fair.py", f"{IMPORT}Claim(0, 'a', '', '', id)", "from 1 to 999, got 0 for a."),
        ("claims/fair.py", f"{IMPORT}Claim(1, '../a', '', '', id)", "underscores, got '../a'."),
        (
            "__init__.py",
            SOURCES["__init__.py"].replace('2026")', '2026", "http://x")'),
            "`link` must start with https://, got 'http://x'.",
        ),
    ],
)
def test_what_is_wrong_with_a_paper_is_said_before_any_work(
    coins: Path, file: str, text: str | None, message: str
) -> None:
    if text is None:
        (coins / file).unlink()
    else:
        (coins / file).write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        paper_at(coins).require_drawable()


def test_a_paper_of_ones_own_has_a_name_of_its_own(coins: Path) -> None:
    for name, message in (
        ("runs", "`package` must not end in runs, which is another folder of a report."),
        ("large_prompt", "must have a name of its own: a paper is called so here."),
    ):
        other = coins.rename(coins.with_name(name))
        with pytest.raises(ValueError, match=re.escape(message)):
            paper_at(other)
        other.rename(coins)


def test_a_figure_is_drawn_again_by_other_code_or_where_a_picture_is_missing_or_not_ours(
    coins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper, folder = paper_at(coins), ReportFolder(coins.parent / "r")
    (item,) = paper.figures
    stored = dataclasses.replace(
        figure("gaps", "coins"), drawing="tosses", arrays=item.compute(Setting())
    )
    folder.save_figure(stored)
    drawing, rendered = plot(), list[tuple]()

    def render(picture: object, *formats: str) -> list[bytes]:
        rendered.append(formats)
        return [drawing] * len(formats)

    monkeypatch.setattr(_pictures, "render", render)
    pictures = folder.path / "coins" / "figures"
    for drawn_by, lost, formats in (
        ("one", "", FORMATS),
        ("one", "", FORMATS),
        ("one", "png", FORMATS),
        ("other", "", QUICK_FORMATS),
        ("other", "", QUICK_FORMATS),
        ("other", "", FORMATS),
        ("other", "svg", FORMATS),
    ):
        if lost == "png":
            (pictures / "gaps.png").unlink()
        elif lost == "svg":
            foreign = drawing.replace(b"<defs>", b"<script>alert(1)</script><defs>", 1)
            (pictures / "gaps.svg").write_bytes(foreign)
        again = folder.figure("coins", "gaps")
        assert again is not None
        again, svg = drawn_figure(paper, again, folder, drawn_by, formats)
        assert (svg, again.drawn_by) == (drawing, drawn_by)
        assert again.pictures == tuple(sorted(formats))
    assert (pictures / "gaps.svg").read_bytes() == drawing
    assert rendered == [FORMATS, FORMATS, QUICK_FORMATS, FORMATS, FORMATS]


def test_arrays_that_do_not_fit_a_drawing_cost_the_page_one_figure(tmp_path: Path) -> None:
    folder = ReportFolder(write_results(tmp_path / "r", paper="large_prompt"))
    page, report, problems = write_pages(folder, (), {("large_prompt", "more"): b"<svg/>"})
    assert page.is_file()
    assert len(report.figures) == 2
    assert problems == [
        "large_prompt/figures/gaps is not shown: the paper large_prompt has no drawing 'lines'."
    ]


def test_the_page_is_written_without_jax(tmp_path: Path) -> None:
    write_results(tmp_path / "r")
    code = """
import sys
from promptlimit.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
assert not {"jax", "equinox"} & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(tmp_path / "r"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["claims"], told["as_on_record"], told["figures"]) == (2, 2, 2)
    assert told["page"] == str(tmp_path / "r" / "index.html")
    assert len(told["left_out"]) == done.stderr.count("note:") == 2
