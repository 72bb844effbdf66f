"""Fingerprints of the code: what is stored is used again only by the code that computed it."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

import promptlimit
from promptlimit.experiments import Setting, _fingerprint, engine_hash, item_hash
from promptlimit.experiments._fingerprint import _source_hashes

SOURCE = Path(promptlimit.__file__).parent
UNSEEN = {"item": ("cli", "reporting"), "engine": ("cli", "reporting", "experiments")}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    copied = tmp_path / "promptlimit"
    return shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))


def hashes(sources: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the hashes that code with these sources gives itself."""
    monkeypatch.setattr(_fingerprint, "_source_hashes", lambda _: sources)
    _fingerprint._own_hash.cache_clear()
    try:
        return {"item": item_hash("claim", "made-up", Setting()), "engine": engine_hash()}
    finally:
        monkeypatch.undo()
        _fingerprint._own_hash.cache_clear()


def test_a_changed_byte_of_any_file_that_computes_is_other_code(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [path.relative_to(package).as_posix() for path in package.rglob("*.py")]
    assert len(files) > 150
    before = _source_hashes(package)
    right = hashes(before, monkeypatch)
    assert right == {"item": item_hash("claim", "made-up", Setting()), "engine": engine_hash()}
    for file in files:
        content = (package / file).read_bytes()
        (package / file).write_bytes(content[:-1] + b" ")
    changed = _source_hashes(package)
    for file in files:
        found = hashes({**before, file: changed[file]}, monkeypatch)
        moved = {name for name in found if found[name] != right[name]}
        folder = file.partition("/")[0]
        assert moved == {name for name in found if folder not in UNSEEN[name]}, file


@pytest.mark.parametrize("module", ["_normals.py", "_configuration.py", "parallel/_crew.py"])
def test_training_runs_are_not_taken_from_another_generator(
    package: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    before = hashes(_source_hashes(package), monkeypatch)
    (package / module).write_bytes((package / module).read_bytes() + b"\n")
    after = hashes(_source_hashes(package), monkeypatch)
    assert all(after[name] != before[name] for name in UNSEEN)


def test_a_file_that_comes_goes_or_moves_is_other_code(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [hashes(_source_hashes(package), monkeypatch)]
    (package / "_new.py").touch()
    seen.append(hashes(_source_hashes(package), monkeypatch))
    (package / "_new.py").rename(package / "results" / "_new.py")
    seen.append(hashes(_source_hashes(package), monkeypatch))
    (package / "results" / "_new.py").unlink()
    assert hashes(_source_hashes(package), monkeypatch) == seen[0]
    for name in UNSEEN:
        assert len({each[name] for each in seen}) == 3


def test_an_item_is_named_by_what_it_is_and_by_its_setting() -> None:
    asked = [
        ("claim", "a", Setting()),
        ("figure", "a", Setting()),
        ("claim", "b", Setting()),
        ("claim", "a", Setting(seed=1)),
        ("claim", "a", Setting(quick=True)),
        ("claim", "a", Setting(protocol="full")),
    ]
    assert len({item_hash(*each) for each in asked}) == len(asked)
    told = Setting(folder=Path("runs"), tell=print)
    assert item_hash("claim", "a", told) == item_hash("claim", "a", Setting())
