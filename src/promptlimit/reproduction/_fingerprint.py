"""What the code was that computed something: a result of other code is never taken for this one.

All of the package counts, but for what only talks or draws: nobody has to remember which modules a
number comes from. Of papers, only the one that is asked for counts. Versions of jax and of other
libraries do not: they change results by rounding alone, and `environment.json` and
`provenance.json` name them.
"""

import functools
import hashlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from promptlimit.reproduction._paper import Paper, Setting
from promptlimit.storage import run_name

_LIBRARY = Path(__file__).parents[1]
_TALKS_OR_DRAWS = ("cli/", "reporting/")


def item_hash(paper: Paper, kind: str, name: str, setting: Setting) -> str:
    """Return the hash of all that decides a claim or a figure: its name, the setting, the code."""
    library = _code_hash(_LIBRARY, (*_TALKS_OR_DRAWS, *_papers()))
    code = [library, _code_hash(paper.folder, ("drawings/",), "*")]
    what = {"what": kind, "paper": paper.name, "name": name, "code": code}
    return run_name({**what, **setting.to_dict()})


def drawing_hash(paper: Paper) -> str:
    """Return the hash of what decides how stored arrays are drawn."""
    code = [
        _code_hash(folder, ()) for folder in (_LIBRARY / "reporting", paper.folder / "drawings")
    ]
    return run_name({"code": code, "matplotlib": metadata.version("matplotlib")})[:16]


def engine_hash() -> str:
    """Return the hash of the code that flows and training runs come from.

    What papers ask of it is not part of that: the configuration of a run is in its name, and so a
    changed claim goes on with the runs that are there.
    """
    return _code_hash(_LIBRARY, (*_TALKS_OR_DRAWS, "reproduction/"))


def _papers() -> tuple[str, ...]:
    """Return the folders of papers."""
    inits = (_LIBRARY / "reproduction").glob("*/__init__.py")
    return tuple(f"reproduction/{path.parent.name}/" for path in sorted(inits))


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
