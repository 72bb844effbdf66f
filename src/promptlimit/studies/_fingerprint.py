"""Hashes of code and settings, so that stored results of other code are computed again.

The hash of a result covers the whole package, except the command line, the reporting and other
papers, so that no list of modules has to be maintained. Versions of jax and of other libraries are
left out, because they change results by rounding only; `environment.json` and `provenance.json`
record them.
"""

import functools
import hashlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from promptlimit.storage import run_name
from promptlimit.studies._paper import Paper, Setting

_LIBRARY = Path(__file__).parents[1]
_WITHOUT_NUMBERS = ("cli/", "reporting/")


def item_hash(paper: Paper, kind: str, name: str, setting: Setting) -> str:
    """Return the hash of a claim or figure: its name, the setting and the code."""
    library = _code_hash(_LIBRARY, (*_WITHOUT_NUMBERS, *_papers()))
    code = [library, _code_hash(paper.folder, ("drawings/",), "*")]
    what = {"what": kind, "paper": paper.name, "name": name, "code": code}
    return run_name({**what, **setting.to_dict()})


def drawing_hash(paper: Paper) -> str:
    """Return the hash of the code that draws stored arrays."""
    code = [
        _code_hash(folder, ()) for folder in (_LIBRARY / "reporting", paper.folder / "drawings")
    ]
    return run_name({"code": code, "matplotlib": metadata.version("matplotlib")})[:16]


def engine_hash() -> str:
    """Return the hash of the code that computes flows and training runs.

    It leaves out the studies: a run is named by its configuration, so a changed claim can reuse
    stored runs.
    """
    return _code_hash(_LIBRARY, (*_WITHOUT_NUMBERS, "studies/"))


def _papers() -> tuple[str, ...]:
    """Return the folders of papers."""
    inits = (_LIBRARY / "studies").glob("*/__init__.py")
    return tuple(f"studies/{path.parent.name}/" for path in sorted(inits))


@functools.cache
def _code_hash(root: Path, without: tuple[str, ...], pattern: str = "*.py") -> str:
    """Return the hash of all sources under a folder but those whose names begin so.

    It is that of the first call: what is written into a folder later is not what is imported.
    """
    sources = _source_hashes(root, pattern)
    return run_name({name: sources[name] for name in sources if not name.startswith(without)})[:16]


def _source_hashes(root: Path, pattern: str = "*.py") -> Mapping[str, str]:
    """Return the hash of each source file under a folder, by its name there; of papers, of all."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob(pattern)
        if path.is_file() and "__pycache__" not in path.parts
    }
