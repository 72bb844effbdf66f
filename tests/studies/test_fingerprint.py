"""Fingerprints of the code: what is stored is used again only by the code that computed it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import promptlimit
from promptlimit.studies import Setting, _fingerprint, engine_hash, item_hash, papers
from promptlimit.studies._fingerprint import drawing_hash
from promptlimit.studies.large_prompt import PAPER

SOURCE = Path(promptlimit.__file__).parent


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library that takes itself for it."""
    copied = tmp_path / "promptlimit"
    shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    (copied / "studies" / "another").mkdir()
    (copied / "studies" / "another" / "__init__.py").touch()
    monkeypatch.setattr(_fingerprint, "_LIBRARY", copied)
    folder = property(lambda _: copied / "studies" / "large_prompt")
    monkeypatch.setattr(type(PAPER), "folder", folder)
    return copied


def hashes() -> dict[str, str]:
    """Return the hashes that the code gives itself."""
    _fingerprint._code_hash.cache_clear()
    return {
        "item": item_hash(PAPER, "claim", "made-up", Setting()),
        "engine": engine_hash(),
        "drawing": drawing_hash(PAPER),
    }


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    _fingerprint._code_hash.cache_clear()


def seen_by(file: str) -> set[str]:
    """Return which hashes a file is part of."""
    others = [paper.name for paper in papers() if paper != PAPER]
    if file.startswith(("cli/", *(f"studies/{name}/" for name in ("another", *others)))):
        return set()
    if file.startswith(("reporting/", "studies/large_prompt/drawings/")):
        return {"drawing"}
    return {"item"} if file.startswith("studies/") else {"item", "engine"}


def test_a_changed_byte_of_any_file_that_computes_is_other_code(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [path.relative_to(package).as_posix() for path in package.rglob("*.py")]
    assert len(files) > 150
    known: dict[Path, dict[str, str]] = {
        root: dict(_fingerprint._source_hashes(root))
        for root in (
            package,
            package / "reporting",
            package / "studies" / "large_prompt",
            package / "studies" / "large_prompt" / "drawings",
        )
    }
    right, folders = hashes(), _fingerprint._papers()
    monkeypatch.setattr(_fingerprint, "_papers", lambda: folders)
    version = _fingerprint.metadata.version("matplotlib")
    monkeypatch.setattr(_fingerprint.metadata, "version", lambda _: version)
    monkeypatch.setattr(_fingerprint, "_source_hashes", lambda root, _="": known[root])
    assert hashes() == right
    for file in files:
        for root, sources in known.items():
            if (package / file).is_relative_to(root):
                sources[(package / file).relative_to(root).as_posix()] += "changed"
        now = hashes()
        assert {name for name in now if now[name] != right[name]} == seen_by(file), file
        right = now


def test_a_changed_file_of_data_beside_a_claim_is_another_paper(package: Path) -> None:
    before = hashes()
    (package / "studies" / "large_prompt" / "claims" / "data.csv").write_text("1,2\n")
    after = hashes()
    assert {name for name in after if after[name] != before[name]} == {"item"}


@pytest.mark.parametrize("module", ["_normals.py", "_configuration.py", "parallel/_devices.py"])
def test_training_runs_are_not_taken_from_another_generator(package: Path, module: str) -> None:
    before = hashes()
    (package / module).write_bytes((package / module).read_bytes() + b"\n")
    after = hashes()
    assert {name for name in after if after[name] != before[name]} == {"item", "engine"}


def test_a_file_that_comes_goes_or_moves_is_other_code(package: Path) -> None:
    seen = [hashes()]
    (package / "_new.py").touch()
    seen.append(hashes())
    (package / "_new.py").rename(package / "results" / "_new.py")
    seen.append(hashes())
    (package / "results" / "_new.py").unlink()
    assert hashes() == seen[0]
    for name in ("item", "engine"):
        assert len({state[name] for state in seen}) == 3


def test_an_item_is_named_by_what_it_is_and_by_its_setting() -> None:
    items = [
        ("claim", "a", Setting()),
        ("figure", "a", Setting()),
        ("claim", "b", Setting()),
        ("claim", "a", Setting(seed=1)),
        ("claim", "a", Setting(quick=True)),
        ("claim", "a", Setting(protocol="full")),
    ]
    assert len({item_hash(PAPER, *item) for item in items}) == len(items)
    told = Setting(folder=Path("runs"), tell=print)
    assert item_hash(PAPER, "claim", "a", told) == item_hash(PAPER, "claim", "a", Setting())
