"""Studies: found in the library, through entry points and by path; checked before any work."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from promptlimit.claims import ReportFolder, control_at_least
from promptlimit.errors import InputFileError
from promptlimit.reporting import FORMATS, QUICK_FORMATS
from promptlimit.reporting.page._numbers import formula
from promptlimit.studies import (
    Check,
    Setting,
    Study,
    _stored,
    at_most,
    decide,
    studies,
    study_at,
    write_pages,
)
from promptlimit.studies._stored import drawn_figure
from promptlimit.studies._work import Work, outcome
from promptlimit.studies.large_prompt import STUDY
from reporting.page.stored_results import figure, plot, write_results

HEAD = """
import matplotlib.figure
import numpy as np
from promptlimit.studies import Study, at_least, at_most, control_at_least, control_at_most

STUDY = Study(title="On coins", citation="Author, 2026")
"""
CLAIM = '''
@STUDY.claim(1, reference="Theorem 1")
def fair_coin(setting):
    """A coin is
    fair: $p = 1/2$."""
    yield at_most("heads", 0.5, 0.5, basis="theory")
    yield control_at_least("a loaded coin", 0.9, 0.6, basis="stated")
'''
FIGURE = '''
@STUDY.figure("Tosses", reference="Theorem 1")
def tosses(setting):
    """Heads by toss."""
    return {"heads": np.arange(1.0, 4.0 - setting.quick)}
'''
DRAWING = """
@tosses.drawing
def draw_tosses(arrays):
    figure = matplotlib.figure.Figure()
    figure.subplots().plot(arrays["heads"])
    return figure
"""
COINS = HEAD + CLAIM + FIGURE + DRAWING


@pytest.fixture
def coins(tmp_path: Path) -> Iterator[Path]:
    """A study in one file."""
    file = tmp_path / "coins.py"
    file.write_text(COINS)
    before = list(sys.path)
    yield file
    sys.path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "coins"]:
        del sys.modules[name]


def as_package(file: Path) -> Path:
    """Return the same study as a package, with a module for the claim and one for the figure."""
    folder = file.with_suffix("")
    folder.mkdir()
    file.unlink()
    (folder / "__init__.py").write_text(HEAD)
    shared = HEAD.partition("STUDY =")[0] + "from coins import STUDY\n"
    (folder / "claims_.py").write_text(shared + CLAIM)
    (folder / "figures_.py").write_text(shared + FIGURE + DRAWING)
    (folder / "_private.py").write_text("raise AssertionError('private modules are not imported')")
    return folder


def test_the_studies_of_the_library_are_found_and_come_in_their_order() -> None:
    folder = Path(_stored.__file__).parent
    assert {study.name for study in studies()} == {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    assert studies()[0] is STUDY
    for study in studies():
        study.require_complete()
        assert study.summary
        assert study.key_figure in [figure.name for figure in study.figures]
    assert len(STUDY.description.claim_names) == len(STUDY.claims) == 27


def test_the_entry_points_of_the_library_are_its_studies() -> None:
    import tomllib  # noqa: PLC0415  # for this test alone

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["promptlimit.studies"] == {
        study.name: f"{study.module}:STUDY" for study in studies()
    }


def test_importing_the_package_does_not_import_jax() -> None:
    code = "import sys, promptlimit.studies; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_formula_of_the_studies_becomes_mathml() -> None:
    for study in studies():
        texts = [study.summary, *(figure.caption for figure in study.figures)]
        texts += [text for claim in study.claims for text in (claim.statement, claim.evidence)]
        for text in texts:
            assert not {"$", "\\"} & set(formula(text)), text


@pytest.mark.parametrize("form", [lambda file: file, str, as_package])
def test_decorated_functions_are_claims_and_figures(
    coins: Path, form: Callable[[Path], str | Path]
) -> None:
    study = study_at(form(coins))
    assert (study.name, study.title) == ("coins", "On coins")
    (claim,), (drawn,) = study.claims, study.figures
    assert (claim.name, claim.statement) == ("fair-coin", "A coin is fair: $p = 1/2$.")
    assert (drawn.name, drawn.title, drawn.caption) == ("tosses", "Tosses", "Heads by toss.")
    assert decide(claim, Setting()).verdict == "holds"
    assert len(study.draw("tosses", drawn.compute(Setting())).axes) == 1
    assert study.list_parts(Setting()) == ()
    study.require_complete()


def test_checks_may_be_returned_and_figures_may_share_a_drawing() -> None:
    study = Study("Made up", module=__name__)
    figures = [
        study.figure(f"Number {number}", name=f"figure_{number}", caption="A caption.")(
            lambda _: {}
        )
        for number in (1, 2)
    ]

    @figures[0].drawing
    @figures[1].drawing
    def draw(arrays: object) -> None:
        pass

    @study.claim(1)
    def returned(setting: Setting) -> list[Check]:
        """A statement."""
        return [at_most("x", 0.0, 1.0), control_at_least("y", 2.0, 1.0)]

    study.require_complete()
    assert [one.draw for one in study.figures] == [draw, draw]
    assert decide(returned, Setting()).verdict == "holds"


def test_what_is_not_a_study_is_refused(tmp_path: Path, coins: Path) -> None:
    (tmp_path / "two-words.py").touch()
    for name, message in (
        (".", "must be a Python file, or a folder with an __init__.py, that defines STUDY, but it"),
        ("absent.py", "that defines STUDY, but it does not exist."),
        ("two-words.py", "must have the name of a Python module, got 'two-words'. Use letters,"),
    ):
        with pytest.raises(InputFileError, match=re.escape(message)):
            study_at(tmp_path / name)
    coins.write_text("STUDY = 3\n")
    with pytest.raises(InputFileError, match=r"coins.py must define STUDY = Study\(title="):
        study_at(coins)


BARE = '@STUDY.claim(2)\ndef bare(setting):\n    """Bare."""\n    return [at_most("x", 0.0, 1.0)]\n'
UNDOCUMENTED = "@STUDY.claim(2)\ndef bare(setting):\n    pass\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", "coins.py must be a module of a study, but importing it raised SyntaxError"),
        (f"{HEAD}raise OSError('no')", "but importing it raised OSError: no"),
        (HEAD + FIGURE, "the figure tosses of coins must have a drawing: decorate a function of"),
        (HEAD + UNDOCUMENTED, "the claim bare of coins must have a docstring, which is its state"),
        (
            HEAD + FIGURE.replace('"""Heads by toss."""', ""),
            "the figure tosses of coins must have a docstring, which is its caption.",
        ),
        (
            COINS + BARE.replace("(2)", "(1)"),
            "claims of coins must have different numbers, but fair-coin and bare both have num",
        ),
        (
            COINS + CLAIM.replace("(1,", "(2,"),
            "claims and figures of coins must have different names, got fair-coin twice.",
        ),
        (COINS + FIGURE, "claims and figures of coins must have different names, got tosses twi"),
        (HEAD + CLAIM.replace("(1,", "(0,"), "`number` must be from 1 to 999, got 0 for fair-coin"),
        (HEAD + CLAIM.replace("(1,", "(1, name='../a',"), "underscores, got '../a'."),
        (
            HEAD.replace('2026"', '2026", link="http://x"'),
            "`link` must start with https://, got 'http://x'.",
        ),
    ],
)
def test_a_bad_study_is_refused_in_one_sentence_before_any_work(
    coins: Path,
    text: str,
    message: str,
    here: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    coins.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        study_at(coins).require_complete()
    sys.modules.pop("coins", None)
    done = here("reproduce", str(coins), "--out", "report")
    assert done.returncode in (1, 2)
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr
    assert not list((coins.parent / "report").glob("*"))


def test_a_claim_without_a_control_is_refused_when_it_is_decided(coins: Path) -> None:
    coins.write_text(HEAD + BARE)
    with pytest.raises(InputFileError, match="the checks of bare must include a control: a case"):
        decide(study_at(coins).claims[0], Setting())


RETURNS = """
@STUDY.claim(2)
def number(setting):
    '''A claim.'''
    yield 3.0

@STUDY.claim(3)
def single(setting):
    '''A claim.'''
    return at_most("x", 0.0, 1.0)

@STUDY.claim(4)
def undefined(setting):
    '''A claim.'''
    yield at_most("the ratio", float("nan"), 1.0)

@STUDY.figure("A list")
def listed(setting):
    '''A figure.'''
    return [1.0]

@STUDY.figure("Words")
def words(setting):
    '''A figure.'''
    return {"heads": "many"}

@STUDY.figure("Complex numbers")
def complex(setting):
    '''A figure.'''
    return {"heads": [1j]}

@STUDY.figure("A number")
def drawn(setting):
    '''A figure.'''
    return {"heads": [1.0]}

@drawn.drawing
@complex.drawing
@words.drawing
@listed.drawing
def draw(arrays):
    return 3
"""


def test_wrong_returns_and_nan_are_failures_that_name_the_item(coins: Path) -> None:
    coins.write_text(COINS + RETURNS)
    study, folder = study_at(coins), ReportFolder(coins.parent / "r")
    folder.save_study(study.description)
    items = (*study.claims, *study.figures)
    ends = [outcome(Work(study, item, Setting(), item.name), folder) for item in items]
    failures = {one.name: one.problem for one in folder.read().failures}
    assert {end.problem for end in ends if end.problem} == set(failures.values())
    claim, figure = "yield checks or return a list of checks", "return a dictionary of arrays"
    for name, words in (
        ("number", f"the claim number of coins failed: number must {claim}, got float. Use at_m"),
        ("single", "the checks of single must include a control"),
        ("undefined", "the check 'the ratio' of undefined must compare two numbers, got nan <= 1."),
        ("listed", f"the figure listed of coins failed: listed must {figure} by name, got list."),
        ("words", "words must return arrays of real numbers, got <U4 for 'heads'."),
        ("complex", "complex must return arrays of real numbers, got complex128 for 'heads'."),
        ("drawn", "the drawing of drawn must return a Matplotlib figure, got int."),
    ):
        assert words in failures.pop(name)
    assert not failures
    coins.write_text(COINS)


def test_a_study_must_have_a_name_of_its_own(coins: Path) -> None:
    for name, message in (
        ("runs", "the study runs must have a different name: a report has a folder runs already."),
        ("large_prompt", "must have a different name: a module or study called large_prompt exist"),
        ("json", "must have a different name: a module or study called json exists already."),
    ):
        other = coins.with_name(f"{name}.py")
        other.write_text(COINS)
        with pytest.raises(ValueError, match=re.escape(message)):
            study_at(other)


@pytest.mark.parametrize("form", [lambda file: file, as_package])
def test_a_study_given_by_path_is_reproduced_by_two_workers(
    coins: Path, form: Callable[[Path], Path]
) -> None:
    path, out = form(coins), coins.parent / "report"
    code = (
        "from promptlimit.studies import _reproduce\n"
        "_reproduce.usable_cores = lambda: 2\n"
        "from promptlimit.cli import main\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    script = coins.parent / "script.py"
    script.write_text(code)
    command = [
        sys.executable,
        script,
        "reproduce",
        path.name,
        "--quick",
        "--json",
        "--out",
        "report",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=coins.parent)
    assert done.returncode == 0, done.stderr
    (claim,) = json.loads(done.stdout)["claims"]
    assert (claim["name"], claim["verdict"]) == ("fair-coin", "holds")
    assert [check["role"] for check in claim["checks"]] == ["statement", "control"]
    assert "On coins" in (out / "index.html").read_text()
    page = (out / "coins" / "index.html").read_text()
    assert "Author, 2026" in page
    assert 'id="figure-tosses"' in page
    assert "<svg" in page
    assert f"promptlimit reproduce {path} fair-coin --quick --seed 0" in page


def test_stored_pages_need_the_study_only_to_draw_again(
    coins: Path, here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    out = coins.parent / "report"
    assert here("reproduce", str(coins), "--out", "report").returncode == 0
    _, _, problems = write_pages(ReportFolder(out))  # with the stored drawing
    assert problems == []
    (out / "coins" / "figures" / "tosses.svg").unlink()
    _, report, problems = write_pages(ReportFolder(out))
    assert len(report.figures) == 1
    assert problems == [
        "coins/figures/tosses is shown as the picture that is stored: the study coins is not "
        "installed."
    ]
    _, _, problems = write_pages(ReportFolder(out), [study_at(coins)])
    assert problems == []


def test_a_renamed_claim_replaces_the_old_one_in_the_report(coins: Path) -> None:
    folder, problems = ReportFolder(coins.parent / "r"), list[str]()
    for name in ("fair_coin", "honest_coin"):
        sys.modules.pop("coins", None)
        coins.write_text(HEAD + CLAIM.replace("fair_coin", name))
        importlib.invalidate_caches()
        study = study_at(coins)
        folder.save_study(study.description)
        outcome(Work(study, study.claims[0], Setting(), name), folder)
        _, report, problems = write_pages(folder)
        assert [claim.name for claim in report.claims] == [name.replace("_", "-")]
    old = folder.path / "coins" / "claims" / "fair-coin.json"
    assert problems == [f"{old} is not in the report: coins has no claim of this name."]


def installed(site: Path, name: str, value: str) -> None:
    """Write the metadata of an installed distribution with one study."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[promptlimit.studies]\n{name} = {value}\n")


def test_a_study_of_another_distribution_is_found_by_its_entry_point(
    coins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = coins.parent
    monkeypatch.syspath_prepend(site)
    installed(site, "coins", "coins:STUDY")
    found = {study.name: study for study in studies()}
    assert found["coins"].address == "coins"
    assert [claim.name for claim in found["coins"].claims] == ["fair-coin"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("absent:STUDY", "importing it raised ModuleNotFoundError: No module named 'absent'"),
        ("math:pi", "it must be a Study, got float"),
    ],
)
def test_a_broken_entry_point_is_left_out_with_a_warning(
    value: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed(tmp_path, "broken", value)
    message = f"the study {value} of the package broken is left out: {reason}"
    with pytest.warns(UserWarning, match=re.escape(message)):
        assert STUDY in studies()


def test_a_figure_is_drawn_again_by_other_code_or_where_a_picture_is_missing_or_not_ours(
    coins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, folder = study_at(coins), ReportFolder(coins.parent / "r")
    (item,) = study.figures
    arrays = item.compute(Setting())
    folder.save_figure(dataclasses.replace(figure("tosses", "coins"), arrays=arrays))
    drawing, rendered = plot(), list[tuple]()

    def render(picture: object, *formats: str) -> list[bytes]:
        rendered.append(formats)
        return [drawing] * len(formats)

    monkeypatch.setattr(_stored, "render", render)
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
            (pictures / "tosses.png").unlink()
        elif lost == "svg":
            foreign = drawing.replace(b"<defs>", b"<script>alert(1)</script><defs>", 1)
            (pictures / "tosses.svg").write_bytes(foreign)
        again = folder.figure("coins", "tosses")
        assert again is not None
        again, svg = drawn_figure(study, again, folder, drawn_by, formats)
        assert (svg, again.drawn_by) == (drawing, drawn_by)
        assert again.pictures == tuple(sorted(formats))
    assert (pictures / "tosses.svg").read_bytes() == drawing
    assert rendered == [FORMATS, FORMATS, QUICK_FORMATS, FORMATS, FORMATS]


def test_a_figure_that_cannot_be_drawn_again_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    folder = ReportFolder(write_results(tmp_path / "r", study="large_prompt"))
    page, report, problems = write_pages(folder, (), {("large_prompt", "more"): b"<svg/>"})
    assert page.is_file()
    assert len(report.figures) == 2
    assert problems == [
        "large_prompt/figures/gaps is not shown: the study large_prompt has no figure 'gaps'."
    ]


def test_pages_are_written_without_jax_and_without_the_studies(tmp_path: Path) -> None:
    folder = ReportFolder(write_results(tmp_path / "r"))
    for name in ("gaps", "more"):
        stored = folder.figure("made_up", name)
        assert stored is not None
        folder.save_pictures(stored, {"svg": plot()}, "abc")
    code = textwrap.dedent("""
        import sys
        from promptlimit.cli import main
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, stop.code
        loaded = set(sys.modules)
        assert not {"jax", "equinox", "promptlimit.studies.large_prompt"} & loaded
    """)
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(tmp_path / "r"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["claims"], printed["as_expected"], printed["figures"]) == (2, 2, 2)
    assert printed["page"] == str(tmp_path / "r" / "index.html")
    assert printed["left_out"] == []
