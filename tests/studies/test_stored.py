"""Hashes of the code: what is stored is used again only by the code that computed it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import promptlimit
from promptlimit.studies import Setting, _stored, engine_hash, item_hash
from promptlimit.studies._stored import drawing_hash
from promptlimit.studies.lengths import STUDY

SOURCE = Path(promptlimit.__file__).parent
OWN = "studies/lengths/needles.py"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library that takes the place of the original."""
    copied = tmp_path / "promptlimit"
    shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_stored, "_LIBRARY", copied)
    monkeypatch.setattr(type(STUDY), "source", property(lambda _: copied / "studies" / "lengths"))
    return copied


def hashes() -> dict[str, str]:
    """Return the hashes that the code gives itself."""
    _stored._library_hash.cache_clear()
    _stored._study_hash.cache_clear()
    return {
        "item": item_hash(STUDY, "claim", "made-up", Setting()),
        "engine": engine_hash(),
        "drawing": drawing_hash(STUDY),
    }


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    _stored._library_hash.cache_clear()
    _stored._study_hash.cache_clear()


def changed(file: Path, old: str = "", new: str = "\n") -> set[str]:
    """Return which hashes a changed file changes; text is appended or replaced."""
    before = hashes()
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1) if old else text + new)
    after = hashes()
    return {name for name in after if after[name] != before[name]}


def seen_by(file: str) -> set[str]:
    """Return which hashes a file is part of."""
    if file.startswith("cli/"):
        return set()
    if file.startswith("reporting/"):
        return {"drawing"}
    if file.startswith("studies/lengths/"):
        return {"item", "drawing"}
    if file.startswith("studies/"):
        return {"item"} if file.startswith("studies/_") else set()
    return {"item", "engine"}


def test_a_changed_byte_of_any_file_that_computes_is_other_code(package: Path) -> None:
    folders = {path.parent: path for path in sorted(package.rglob("*.py"))}
    assert len(folders) > 20
    chosen = [*folders.values(), package / OWN, package / "_normals.py"]
    for path in chosen:
        file = path.relative_to(package).as_posix()
        assert changed(path) == seen_by(file), file


def test_a_changed_drawing_is_drawn_again_and_nothing_is_computed(package: Path) -> None:
    assert changed(package / OWN, '"inverse temperature $b$"', '"$b$"') == {"drawing"}
    assert changed(package / OWN, '"exact roots: ', '"roots: ') == {"item", "drawing"}


def test_a_changed_file_of_data_is_another_study(package: Path) -> None:
    before = hashes()
    (package / "studies" / "lengths" / "data.csv").write_text("1,2\n")
    after = hashes()
    assert {name for name in after if after[name] != before[name]} == {"item", "drawing"}


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
    assert len({item_hash(STUDY, *item) for item in items}) == len(items)
    reporting = Setting(folder=Path("runs"), report=print)
    assert item_hash(STUDY, "claim", "a", reporting) == item_hash(STUDY, "claim", "a", Setting())
