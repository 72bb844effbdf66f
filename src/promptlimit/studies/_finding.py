"""Find studies in this library, in installed packages, and at a path."""

import importlib
import importlib.util
import pkgutil
import sys
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from promptlimit.errors import InputFileError
from promptlimit.studies._study import Study, import_for_study

_GROUP = "promptlimit.studies"
"""The name of the group of entry points, and of the package with this library's studies."""


def studies() -> tuple[Study, ...]:
    """Return the studies of this library and of installed packages, sorted by `order` and name.

    A package provides a study through an entry point of the group `promptlimit.studies`, such as
    `coins = "my_package.coins:STUDY"`. An entry point that cannot be loaded is skipped with a
    warning. The studies of this library are the public modules of this package, so a new study in a
    source tree is found without reinstalling the library.
    """
    places = importlib.import_module(_GROUP).__path__
    names = [module.name for module in pkgutil.iter_modules(places)]
    found = {
        name: importlib.import_module(f"{_GROUP}.{name}").STUDY
        for name in names
        if not name.startswith("_")
    }
    for entry in entry_points(group=_GROUP):
        if entry.value.startswith(f"{_GROUP}."):
            continue
        study = _loaded(entry)
        if study is not None and found.setdefault(study.name, study) is not study:
            _warn(entry, f"another study is called {study.name}")
    return tuple(sorted(found.values(), key=lambda study: (study.order, study.name)))


def _loaded(entry: EntryPoint) -> Study | None:
    try:
        study = entry.load()
    except Exception as problem:  # the code of others may raise anything
        _warn(entry, f"importing it raised {type(problem).__name__}: {problem}")
        return None
    if not isinstance(study, Study):
        _warn(entry, f"it must be a Study, got {type(study).__name__}")
        return None
    return study


def _warn(entry: EntryPoint, reason: str) -> None:
    package = "" if entry.dist is None else f" of the package {entry.dist.name}"
    warnings.warn(
        f"the study {entry.value}{package} is left out: {reason}", UserWarning, stacklevel=4
    )


def study_at(path: str | Path) -> Study:
    """Return the study that a Python file or a package folder defines.

    The parent folder is appended to Python's search path, so the study can import modules from it.

    Args:
        path: `my_study.py` or `my_study/`.
    """
    place = Path(path).resolve()
    file = place / "__init__.py" if place.is_dir() else place
    name = place.name if place.is_dir() else place.stem
    if not file.is_file() or file.suffix != ".py":
        found = "it is neither" if place.exists() else "it does not exist"
        raise InputFileError(
            f"{path} must be a Python file, or a folder with an __init__.py, that defines STUDY, "
            f"but {found}."
        )
    if not name.isidentifier():
        raise InputFileError(
            f"{path} must have the name of a Python module, got '{name}'. Use letters, digits and "
            "underscores."
        )
    if not _is_free(name, file):
        raise InputFileError(
            f"{path} must have a different name: a module or study called {name} exists already."
        )
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
        importlib.invalidate_caches()
    study = getattr(import_for_study(name, Path(path)), "STUDY", None)
    if not isinstance(study, Study) or study.module != name:
        raise InputFileError(f"{path} must define STUDY = Study(title=..., ...).")
    study.address = str(place)
    return study


def _is_free(name: str, file: Path) -> bool:
    """Return whether no study of this library, and no module other than `file`, has this name."""
    if importlib.util.find_spec(f"{_GROUP}.{name}") is not None:
        return False
    spec = importlib.util.find_spec(name)
    return spec is None or (spec.origin is not None and Path(spec.origin).resolve() == file)


def find_study(address: str) -> Study:
    """Return the study with this name or at this path."""
    by_name = {study.name: study for study in studies()}
    return by_name[address] if address in by_name else study_at(Path(address))
