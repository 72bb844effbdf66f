"""The command line as a user meets it: in a process of its own, or in this one."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import promptlimit
from promptlimit.claims import Check
from promptlimit.cli import _progress, _train
from promptlimit.storage import Progress
from promptlimit.studies import Claim
from promptlimit.studies.large_prompt import STUDY

Here: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def run(
    *arguments: str, folder: Path | None = None, given: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with these bytes as its standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "promptlimit", *arguments],
        input=given,
        capture_output=True,
        cwd=folder,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def ended_items(done: subprocess.CompletedProcess[str], plan: str) -> dict[str, str]:
    """Return the outcomes of a command that told its plan and each item, by item, and no more."""
    command = done.args[0]
    first, *lines = done.stderr.splitlines()
    assert first == f"{command}: {plan}"
    form = re.compile(rf"{command}: (?P<item>.+): (?P<outcome>.+), 0\.0 s, (?P<left>\d+) left")
    found = [form.fullmatch(line) for line in lines]
    assert all(found), done.stderr
    assert [int(each["left"]) for each in found if each] == [*reversed(range(len(lines)))]
    return {each["item"]: each["outcome"] for each in found if each}


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the message of a command that must exit 1 without output, unfolded."""
    assert done.returncode == 1
    assert done.stdout == ""
    return " ".join(done.stderr.split())


def test_help_does_not_load_jax_or_numpy() -> None:
    code = """
import sys
from promptlimit.cli import main
sys.argv = ["promptlimit", "--help"]
try:
    main()
except SystemExit as stop:
    assert stop.code == 0
heavy = {"jax", "equinox", "numpy", "scipy", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_version_is_the_package_version() -> None:
    assert run("--version").stdout == f"promptlimit {promptlimit.__version__}\n"


def test_wrong_usage_exits_2(here: Here) -> None:
    assert here("limit", "--no-such-flag").returncode == 2
    assert here("limitt").returncode == 2


def test_limit_of_an_example_as_json() -> None:
    done = run("limit", "--example", "rademacher", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    tilt = np.array([[0.8, 0.3], [-0.2, 0.5]]) @ [1.0, -0.5]
    value = np.array([[1.0, 0.0], [0.5, 1.0]])
    np.testing.assert_allclose(result["softmax"], value @ np.tanh(tilt), rtol=1e-14)
    np.testing.assert_allclose(result["linear"], value @ tilt, rtol=1e-14)
    assert result["kind"] == "limit"


def test_limit_of_files_prints_a_table_and_writes_json(here: Here, tmp_path: Path) -> None:
    np.savez(tmp_path / "head.npz", key_query=np.eye(2), value=np.eye(2))
    np.savetxt(tmp_path / "query.csv", [[3.0, 4.0]], delimiter=",")
    (tmp_path / "law.json").write_text(json.dumps({"mean": [1, 0], "cov": [[1, 0], [0, 1]]}))
    done = here("limit", "head.npz", "law.json", "query=query.csv", "--out", "o")
    assert done.returncode == 0, done.stderr
    *rows, note = done.stdout.splitlines()
    assert [row.split() for row in rows[1:]] == [["0", "4", "6"], ["1", "4", "4"]]
    assert note == "The distance between the two outputs is 2; kind: limit."
    assert json.loads((tmp_path / "o" / "limit.json").read_text())["distance"] == 2.0


def test_a_problem_comes_through_a_pipe_in_any_format(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "key_query": np.eye(1),
        "value": np.eye(1),
        "query": np.ones(1),
        "cov": np.eye(1),
    }
    archive = io.BytesIO()
    np.savez(archive, **arrays)
    text = json.dumps({name: array.tolist() for name, array in arrays.items()}).encode()
    expected = run("limit", "-", "--json", given=text)
    assert expected.returncode == 0, expected.stderr
    assert json.loads(expected.stdout)["softmax"] == [1.0]
    assert run("limit", "/dev/stdin", "--json", given=archive.getvalue()).stdout == expected.stdout
    (tmp_path / "head.json").write_bytes(text)
    piped = run("limit", "head.json", "query=-", "--json", folder=tmp_path, given=b"1.0\n")
    assert piped.stdout == expected.stdout, piped.stderr


def test_tokens_and_configurations_come_through_a_pipe() -> None:
    tokens = io.BytesIO()
    np.save(tokens, np.arange(12.0).reshape(6, 2) / 10)
    done = run("stream", "--dim", "2", "--tokens", "-", "--json", given=tokens.getvalue())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["streamed"]["lengths"] == [6]
    done = run("train", "--config", "-", "--out", "x", given=b"stepps = 3\n")
    assert done.returncode == 1
    assert "must contain options of train, got 'stepps'" in done.stderr


def test_a_result_goes_into_the_format_that_its_file_names(here: Here, tmp_path: Path) -> None:
    asked = ("gap", "--dim", "1", "--lengths", "10,100", "--samples", "0")
    table = here(*asked, "--csv")
    assert table.returncode == 0, table.stderr
    first, *rows = table.stdout.splitlines()
    assert first.split(",")[:3] == ["length", "exact", "exact_error"]
    assert [float(row.split(",")[0]) for row in rows] == [10.0, 100.0]
    for name in ("gap.json", "gap.csv", "gap.npz", "gap.svg"):
        assert here(*asked, "--out", name).returncode == 0
    assert (tmp_path / "gap.csv").read_text() == table.stdout
    assert json.loads((tmp_path / "gap.json").read_text()) == json.loads(
        here(*asked, "--json").stdout
    )
    with np.load(tmp_path / "gap.npz") as arrays:
        assert arrays["curves.exact.lengths"].tolist() == [10.0, 100.0]
    assert (tmp_path / "gap.svg").read_text().startswith("<?xml")


def test_a_result_without_a_curve_has_no_figure(here: Here) -> None:
    done = here("limit", "--example", "shifted", "--out", "limit.png")
    assert done.returncode == 1
    assert "--out must end in .json, .csv or .npz for this result, got .png" in done.stderr
    assert done.stdout.startswith("output")


def test_several_tolerances_are_rows_of_one_table(here: Here) -> None:
    asked = ("length", "--dim", "1", "--tolerance", "0.1", "--tolerance", "0.2")
    found = json.loads(here(*asked, "--json").stdout)
    assert [one["tolerance"] for one in found] == [0.1, 0.2]
    lines = here(*asked, "--csv").stdout.splitlines()
    assert lines[0] == "tolerance,absolute,exact,asymptotic,bound"
    assert [line.split(",")[0] for line in lines[1:]] == ["0.1", "0.2"]
    assert here(*asked, "--out", "lengths.npz").returncode == 0
    with np.load("lengths.npz") as arrays:
        assert arrays["tolerance"].tolist() == [0.1, 0.2]
        assert arrays["exact"].tolist() == [one["exact"] for one in found]


@pytest.mark.parametrize("option", [("--dim", "1"), ("--sharpness", "0.5")])
def test_one_number_describes_the_standard_case(here: Here, option: tuple[str, str]) -> None:
    done = here("gap", *option, "--lengths", "10", "--samples", "0")
    assert done.returncode == 0, done.stderr
    assert here("gap", "--lengths", "10").returncode == 2


def test_debug_shows_the_traceback(here: Here) -> None:
    with pytest.raises(ValueError, match=r"absent\.npz must be a file"):
        here("--debug", "limit", "absent.npz")


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
def test_letters_that_the_output_cannot_hold_are_no_error(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "promptlimit", "gap", "--help"],
        env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "200"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    letter = "τ" if encoding == "utf-8" else "tau"
    assert f"Standard case: {letter} (default 0.5)." in done.stdout.decode(encoding)


def test_doctor_finds_everything_well(here: Here) -> None:
    done = here("doctor", "--json")
    assert done.returncode == 0, done.stdout
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert {"python", "jax", "devices", "float32", "float64"} <= set(findings)
    assert all(finding["well"] for finding in findings.values())


def test_doctor_explains_a_device_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "promptlimit", "doctor", "--json"],
        env={**os.environ, "JAX_PLATFORMS": "bogus"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    last = json.loads(done.stdout)[-1]
    assert last["name"] == "devices"
    assert last["remedy"] == "unset JAX_PLATFORMS, or install the jax build for this device"


def doctored(body: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Return the exit code and findings of `promptlimit doctor` where the code of `body` ran."""
    code = f"""
import importlib.metadata, sys
real = importlib.metadata.version
requires = ["jax>=0.1", "numpy>=2", "filelock", "tokenizers>=0.2; extra == 'heads'"]
versions = {{"promptlimit": "{promptlimit.__version__}", "jaxlib": "2", "filelock": "4"}}
missing = set()
{body}
def version(name):
    if name in missing:
        raise importlib.metadata.PackageNotFoundError(name)
    return versions.get(name) or real(name)
def required(name):
    version(name)
    return requires
importlib.metadata.version, importlib.metadata.requires = version, required
for name in missing - {{"promptlimit"}}:
    sys.modules[name] = None  # importing it fails
from promptlimit.cli import main
sys.argv = ["promptlimit", "doctor", "--json"]
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, {finding["name"]: finding for finding in json.loads(done.stdout)}


def finding(name: str, found: str, remedy: str = "", *, well: bool = True) -> dict[str, object]:
    return {"name": name, "well": well, "found": found, "remedy": remedy}


def test_doctor_names_all_that_is_missing_and_needs_none_of_it_to_say_so() -> None:
    code, findings = doctored("missing |= {'numpy', 'filelock', 'jax'}")
    assert code == 1
    names = ["python", "promptlimit", "jax", "jaxlib", "numpy", "filelock", "tokenizers"]
    assert list(findings) == names
    for name in ("numpy", "filelock", "jax"):
        assert findings[name] == finding(name, "missing", f"pip install {name}", well=False)
    assert findings["jaxlib"] == finding("jaxlib", "2")
    assert findings["promptlimit"] == finding("promptlimit", promptlimit.__version__)


def test_doctor_finds_nothing_wrong_with_an_extra_that_is_missing() -> None:
    _, findings = doctored("missing |= {'tokenizers', 'jaxlib'}")
    remedy = "for the extra heads: pip install 'promptlimit[heads]'"
    assert findings["tokenizers"] == finding("tokenizers", "missing", remedy)
    assert findings["filelock"] == finding("filelock", "4")
    assert [name for name in findings if not findings[name]["well"]] == ["jaxlib"]


@pytest.mark.parametrize(
    ("body", "found", "remedy"),
    [
        (
            "versions['promptlimit'] = '0.0.1'",
            f"{promptlimit.__version__}, installed as 0.0.1",
            "install it again; its requirements may have changed",
        ),
        (
            "missing.add('promptlimit')",
            f"{promptlimit.__version__}, not installed",
            "install it; only jax is checked",
        ),
    ],
    ids=["another version", "nothing"],
)
def test_doctor_tells_a_source_tree_from_what_was_installed(
    body: str, found: str, remedy: str
) -> None:
    _, findings = doctored(f"{body}; missing.add('jaxlib')")
    assert findings["promptlimit"] == finding("promptlimit", found, remedy)


CONTROL = Check("control", 2.0, ">=", 1.0, role="control")


def test_reproduce_tells_each_claim_with_its_verdict(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert STUDY.claims
    sound, odd = (
        Claim(
            number, name, "x", "y", lambda _, value=value: [Check("z", value, "<=", 1.0), CONTROL]
        )
        for number, name, value in ((1, "sound", 0.0), (2, "odd", 2.0))
    )
    monkeypatch.setattr(STUDY, "_claims", [sound, odd])
    monkeypatch.setattr("promptlimit.studies._work.time.monotonic", lambda: 0.0)
    monkeypatch.setattr("promptlimit.studies._reproduce.usable_cores", lambda: 1)
    plan = "2 claims, quick, exact protocol, into r"
    verdicts = {"sound": "holds", "odd": "does not hold, expected holds"}
    for end in ("", ", stored"):
        done = here("reproduce", "large_prompt", "1", "2", "--quick", "--out", "r", "--json")
        assert done.returncode == 1
        assert len(json.loads(done.stdout)["claims"]) == 2
        assert ended_items(done, plan) == {name: f"{v}{end}" for name, v in verdicts.items()}
    printed = here("reproduce", "large_prompt", "1", "2", "--quick", "--out", "r")
    assert printed.returncode == 1
    assert "large_prompt  2  odd    does not hold (expected: holds)  2 <= 1" in printed.stdout
    tally = "holds: 1, does not hold: 1; 1 of 2 verdicts as expected"
    assert tally in printed.stdout


def test_train_keeps_runs_skips_them_and_refuses_another_configuration(
    here: Here, tmp_path: Path
) -> None:
    (tmp_path / "few.toml").write_text('steps = 30\nlengths = [3, 5]\nkernels = ["linear"]\n')
    asked = ["train", "--config", "few.toml", "--seeds", "2", "--dim", "2", "--json"]
    done = here(*asked)
    assert done.returncode == 0, done.stderr
    plan = "2 lengths, 30 steps of 2 runs each, in training"
    result = json.loads(done.stdout)
    ends = {f"L = {n}": 2 * result["value"][i][0][0][-1] for i, n in enumerate((3, 5))}
    if len(told := ended_items(done, plan)) == 2:  # an accelerator packs the lengths
        assert told == {
            item: f"squared error {end:.4f} (first of 2 runs)" for item, end in ends.items()
        }
    assert result["lengths"] == [3, 5]
    assert result["steps"][-1] == 30
    assert result["diverged"] == [[[-1, -1]]] * 2
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "training").glob("runs/*/done")}
    assert len(stamps) in (1, 2)  # one where an accelerator packs the lengths
    again = here(*asked)
    assert again.stdout == done.stdout
    assert ended_items(again, plan) == {"L = 3": "stored", "L = 5": "stored"}
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    more = here(*asked, "--lengths", "5,6")
    assert more.returncode == 0, more.stderr
    joined = "L = 5: stored" if len(stamps) == 2 else "L = 5, L = 6: squared error"
    assert more.stderr.splitlines()[1].startswith(f"train: {joined}")
    changed = here(*asked, "--covariance", "kms:0.5")
    assert "covariance: identity there, kms:0.5 here" in refused(changed)
    assert changed.stderr.startswith("error: ")


def test_train_refuses_another_matrix_in_the_same_file(here: Here, tmp_path: Path) -> None:
    asked = ("train", "--covariance", "matrix.csv", "--lengths", "3", "--steps", "2", "--json")
    (tmp_path / "matrix.csv").write_text("1,0.2\n0.2,1\n")
    assert here(*asked).returncode == 0
    record = json.loads((tmp_path / "training" / "train.json").read_text())
    assert record["held"]["covariance"] == [[1.0, 0.2], [0.2, 1.0]]
    (tmp_path / "matrix.csv").write_text("1,0.3\n0.3,1\n")
    assert "held" in refused(here(*asked))


def test_train_leaves_no_record_behind_when_it_is_refused(here: Here, tmp_path: Path) -> None:
    done = here("train", "--lengths", "4000000000")
    assert done.returncode == 2
    assert "must be below 536870912, got 4000000000 times 128" in " ".join(done.stderr.split())
    assert not (tmp_path / "training" / "train.json").exists()


def test_the_options_of_a_file_are_those_of_the_command_line(here: Here, tmp_path: Path) -> None:
    for text, words in (
        ("steps = 1.5", "some.toml: --steps must be a whole number of at least 1, got '1.5'"),
        ("seeds = true", "some.toml: --seeds must be a whole number of at least 1, got 'True'"),
        ("lengths = [0]", "--lengths must be whole numbers"),
        ("rate = 0", "--rate must be positive and finite, got 0"),
    ):
        (tmp_path / "some.toml").write_text(text)
        done = here("train", "--config", "some.toml")
        assert done.returncode == 2
        assert words in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("weights", "left"), [({10: 40.0, 50: 80.0}, 22), ({10: 1.0, 50: 1.0}, 12)]
)
def test_the_time_left_of_training_follows_from_its_steps_after_compilation(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    weights: dict[int, float],
    left: int,
) -> None:
    now = 0.0
    for module in (_progress, _train):
        monkeypatch.setattr(module, "_clock", lambda: now)
    with _progress.progress("train") as shown:
        assert isinstance(shown, _progress._Lines)
        watch = _train._Watch(weights, 10_000, 2, Path("out"), shown)
        watch(Progress(0, 10_000, 0.0, (10,)))
        now = 35.0  # compilation and tables take most of it
        watch(Progress(5_000, 10_000, 1000.0, (10,)))
        assert shown._seconds_left() is None
        now = 38.0
        watch(Progress(8_000, 10_000, 1000.0, (10,)))
        shown.beat()
        # 2 s for the rest, and 10 s for the next length, or twice as long if its steps are
        assert f"38 s so far, about {left} s more, 2 left" in capsys.readouterr().err
        now = 40.0

        def slow_risk() -> float:
            nonlocal now
            now += 30.0
            return 0.5

        watch(Progress(10_000, 10_000, 1000.0, (10,), slow_risk))
        now = 140.0  # risks and another compilation change no estimate of the speed
        watch(Progress(1_000, 10_000, 500.0, (50,), slow_risk))
        now += 0.2 * (left - 2)
        watch(Progress(3_000, 10_000, 500.0, (50,)))
        assert shown._seconds_left() == pytest.approx(0.7 * (left - 2))


def test_reproduce_lists_what_it_knows(here: Here) -> None:
    listing = here("reproduce", "--list").stdout
    for name in ("large_prompt", "gaussian-limit", "gradient-formulas", "growing_prompt"):
        assert name in listing


def test_every_command_and_option_is_documented() -> None:
    import typer.main  # noqa: PLC0415  # only this test looks inside

    from promptlimit.cli._app import app  # noqa: PLC0415  # as above

    text = DOCS.read_text()
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        section = text.partition(f"## `promptlimit {name}`")[2].partition("\n## ")[0]
        assert section, f"docs/cli.md has no section on {name}"
        for parameter in command.params:
            for flag in parameter.opts:
                if flag.startswith("--") and flag != "--help":
                    assert f"`{flag}" in section, f"docs/cli.md does not explain {name} {flag}"


def test_gap_of_the_standard_case_as_json(here: Here, tmp_path: Path) -> None:
    done = here(
        *("gap", "--dim", "2", "--sharpness", "0.4", "--lengths", "10,1e6", "--samples", "50"),
        *("--json", "--out", str(tmp_path)),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert set(result["curves"]) == {"exact", "asymptotic", "bound", "estimate"}
    exact, bound = result["curves"]["exact"], result["curves"]["bound"]
    assert all(b > e for b, e in zip(bound["value"], exact["value"], strict=True))
    assert result["curves"]["estimate"]["lengths"] == [10.0]
    expected = {"value": 1.0, "tau": 0.4, "rho": 0.0, "law": "power", "onset": None}
    assert result["exponent"] == {**expected, "kind": "limit", "error": 0.0}
    assert json.loads((tmp_path / "gap.json").read_text()) == result
    for extension in ("png", "svg", "pdf"):
        assert (tmp_path / f"gap.{extension}").stat().st_size > 5_000


def test_gap_and_length_of_files_with_gaussian_queries(here: Here, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "problem.npz",
        key_weight=np.eye(2),
        query_weight=0.3 * np.eye(2),
        value_weight=np.eye(2),
        cov=np.eye(2),
        query_cov=np.eye(2),
    )
    done = here(
        *("gap", "problem.npz", "--wrt", "key_weight", "--samples", "0", "--lengths", "1,100"),
    )
    assert done.returncode == 0, done.stderr
    assert "exact" in done.stdout
    assert "simulated" not in done.stdout
    done = here("length", "problem.npz", "--tolerance", "0.1", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["length"]["exact"] < found["length"]["asymptotic"] < found["length"]["bound"]


def test_stream_of_the_standard_case_as_json(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    arguments = ("stream", "--dim", "2", "--sharpness", "0.4", "--length", "5000")
    done = here(*arguments, "--queries", "3", "--linear", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    streamed = result["streamed"]
    assert streamed["lengths"] == [10, 32, 100, 316, 1000, 3162, 5000]
    assert np.shape(streamed["linear_output"]) == (7, 3, 2)
    square, expected = (
        np.array(result[name]) for name in ("squared_distance", "expected_squared_distance")
    )
    assert 0.2 < np.exp(np.mean(np.log(square / expected))) < 2.0
    assert json.loads((tmp_path / "stream.json").read_text()) == result
    assert (tmp_path / "stream.svg").stat().st_size > 5_000


def test_stream_of_a_file_needs_no_law(here: Here, tmp_path: Path) -> None:
    np.savez(
        tmp_path / "head.npz", key_query=np.eye(2), value=np.ones((1, 2)), queries=np.eye(2)[:1]
    )
    np.save(tmp_path / "tokens.npy", np.array([[1.0, 0.0], [0.0, 2.0]], np.float32))
    done = here("stream", "head.npz", "--tokens", "tokens.npy", "--lengths", "1", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    weight = np.e / (1.0 + np.e)
    np.testing.assert_allclose(
        np.ravel(result["streamed"]["output"]), [1.0, weight + 2.0 * (1.0 - weight)]
    )
    assert result["expected_squared_distance"] is None
    assert not result["is_limit"]
    table = here("stream", "head.npz", "--tokens", "tokens.npy")
    assert "Distances from the output over the whole prompt are root mean squares" in table.stdout


@pytest.mark.parametrize("command", ["train", "flow"])
def test_a_dimension_other_than_that_of_the_covariance_matrix_is_refused(
    here: Here, command: str
) -> None:
    done = here(command, "--lengths", "3", "--covariance", "2,1;1,2", "--dim", "3")
    assert done.returncode == 2
    assert "error: --dim must be 2, the dimension of --covariance, or omitted, got 3" in done.stderr


def test_train_records_the_dimension_of_the_covariance_matrix(here: Here, tmp_path: Path) -> None:
    asked = ("train", "--lengths", "3", "--covariance", "2,1;1,2", "--steps", "2", "--batch", "4")
    done = here(*asked, "--kernels", "linear", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "training" / "train.json").read_text())["dim"] == 2
    planned = here(*asked, "--kernels", "linear", "--dim", "2", "--dry-run", "--json")
    assert json.loads(planned.stdout)["finished"] == [True]


def test_flow_keeps_its_trajectories_and_reads_them_again(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("png",))
    arguments = ("flow", "--lengths", "3,20", "--dim", "2", "--kernel", "linear", "--time", "5")
    done = here(*arguments, "--out", "f", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["lengths"] == [3.0, 20.0, None]
    assert report["kinds"] == ["exact", "exact", "limit"]
    assert report["squared_distance"][0][-1] > report["squared_distance"][1][-1] > 0
    assert json.loads((tmp_path / "f" / "flow.json").read_text()) == report
    kept = sorted((tmp_path / "f" / "trajectories").iterdir())
    assert len(kept) == 3
    before = [(folder / "arrays.npz").stat().st_mtime_ns for folder in kept]
    again = here(*arguments, "--out", "f", "--json")
    assert json.loads(again.stdout) == report
    assert [(folder / "arrays.npz").stat().st_mtime_ns for folder in kept] == before
    assert (tmp_path / "f" / "flow.png").stat().st_size > 5_000


def test_a_stream_of_a_file_leaves_a_report_and_figures(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptlimit.reporting.FORMATS", ("svg",))
    np.save(tmp_path / "tokens.npy", np.random.default_rng(0).standard_normal((200, 2)))
    done = here("stream", "--tokens", "tokens.npy", "--dim", "2", "--queries", "2", "--out", "out")
    assert done.returncode == 0
    assert "from the output over the whole prompt" in " ".join(done.stdout.split())
    report = json.loads((tmp_path / "out" / "stream.json").read_text())
    assert report["streamed"]["lengths"] == [10, 32, 100, 200]
    assert report["squared_distance"][-1] == [0.0, 0.0]
    assert (tmp_path / "out" / "stream.svg").is_file()


def test_queries_too_sharp_for_exact_theory_are_streamed_all_the_same(here: Here) -> None:
    given = ("--dim", "1", "--length", "100", "--queries", "1", "--sharpness", "1e6", "--json")
    done = here("stream", *given)
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["expected_squared_distance"] is None
    assert report["streamed"]["max_weight"][-1] == [1.0]


def test_gap_prints_relative_gaps_and_standard_errors(here: Here) -> None:
    asked = ("gap", "--dim", "2", "--sharpness", "0.4", "--lengths", "10,1000", "--samples", "50")
    curves = json.loads(here(*asked, "--json").stdout)["curves"]
    printed = here(*asked).stdout
    for relative in curves["exact"]["relative"]:
        assert f"{relative:.6g}" in printed
    for value, error in zip(*(curves["estimate"][k] for k in ("value", "error")), strict=True):
        assert re.search(rf"{value:.6g} +{error:.2g} ", printed)
    assert here(*asked, "--lengths", "1e3,10,10").stdout == printed  # the last one counts
