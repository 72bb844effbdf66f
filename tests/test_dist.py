"""The package as it is published: the wheel, alone, in an environment that has never seen it."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import promptlimit as pl

pytest.importorskip("build", reason="the package is not built: pip install build hatchling")
pytest.importorskip("hatchling", reason="the package is not built: pip install build hatchling")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheel, built from the source archive, and that archive."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def environment(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel, which shares the dependencies of this one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder)
    packages = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
    inside = ["--python", str(folder / "bin" / "python")]
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", *inside, "install", *options, str(archives[0])],
        check=True,
        env=_outside(),
    )
    shared = [path for path in sys.path if path.endswith("-packages")]
    (Path(packages) / "shared.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
    return folder


def _outside() -> dict[str, str]:
    """Return environment variables without those that point to this tree."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_the_wheel_holds_the_package_and_says_what_it_is(archives: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(archives[0]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        header = Parser().parsestr(wheel.read(metadata).decode("utf-8"))
    package = ROOT / "src" / "promptlimit"
    files = {path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert {f"promptlimit/{path.relative_to(package).as_posix()}" for path in files} <= names
    assert "promptlimit/py.typed" in names
    assert not [name for name in names if not name.startswith(("promptlimit/", "promptlimit-"))]
    assert header["Version"] == pl.__version__
    assert header["License-Expression"] == "MIT"
    assert set(header.get_all("Provides-Extra", [])) == {"heads", "xarray"}
    assert len(header.get_all("Project-URL", [])) == 4
    assert "Typing :: Typed" in header.get_all("Classifier", [])


def test_the_source_archive_can_be_tested_and_documented(archives: tuple[Path, Path]) -> None:
    with tarfile.open(archives[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    wanted = {"pyproject.toml", "Makefile", "mkdocs.yml", "conftest.py", "CONTRIBUTING.md"}
    assert wanted | {"tests/test_dist.py", "docs/_pages/__main__.py", "docs/index.md"} <= names
    assert not [
        name for name in names if "__pycache__" in name or name.startswith(("site/", "build/"))
    ]


def test_the_wheel_alone_runs(environment: Path, tmp_path: Path) -> None:
    def printed(*arguments: str) -> str:
        command = [str(environment / "bin" / "promptlimit"), *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=tmp_path, env=_outside()
        ).stdout

    where = "import promptlimit; print(promptlimit.__file__)"
    python = str(environment / "bin" / "python")
    done = subprocess.run(
        [python, "-c", where], check=True, capture_output=True, text=True, env=_outside()
    )
    assert Path(done.stdout.strip()).is_relative_to(environment)
    findings = json.loads(printed("doctor", "--json"))
    assert all(finding["well"] for finding in findings)
    own = next(finding for finding in findings if finding["name"] == "promptlimit")
    assert own["found"] == pl.__version__
    asked = ("--dim", "2", "--sharpness", "0.4", "--lengths", "10", "--samples", "0", "--json")
    gap = json.loads(printed("gap", *asked))
    assert gap["curves"]["exact"]["value"] == pytest.approx([0.293580], rel=1e-5)
