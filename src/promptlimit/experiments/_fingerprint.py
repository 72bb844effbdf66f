"""What the code was that computed something: a result of other code is never taken for this one.

All of the package counts, but for what only talks or draws: nobody has to remember which modules a
number comes from. Versions of jax and of other libraries do not count: they change results by
rounding alone, and `environment.json` and `provenance.json` name them.
"""

import functools
import hashlib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from promptlimit.experiments._setting import Setting
from promptlimit.results import run_name

_PACKAGE = Path(__file__).parents[1]

_TALKS_OR_DRAWS = ("cli", "reporting")
"""Packages that decide no number: other code draws a figure anew from its stored arrays."""


def item_hash(kind: str, name: str, setting: Setting) -> str:
    """Return the hash of all that decides a claim or a figure: its name, the setting, the code."""
    code = _own_hash(_TALKS_OR_DRAWS)
    return run_name({"what": kind, "name": name, "code": code, **setting.as_json()})


def drawing_hash() -> str:
    """Return the hash of what decides how stored arrays are drawn."""
    sources = _source_hashes(_PACKAGE / "reporting")
    return run_name({**sources, "matplotlib": metadata.version("matplotlib")})[:16]


def engine_hash() -> str:
    """Return the hash of the code that flows and training runs come from.

    What the experiments ask of it is not part of that: the configuration of a run is in its name,
    and so a changed claim goes on with the runs that are there.
    """
    return _own_hash((*_TALKS_OR_DRAWS, "experiments"))


@functools.cache
def _own_hash(without: tuple[str, ...]) -> str:
    return _code_hash(_source_hashes(_PACKAGE), without)


def _source_hashes(root: Path) -> dict[str, str]:
    """Return the hash of each source file under a folder, by its name there."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*.py")
    }


def _code_hash(sources: Mapping[str, str], without: tuple[str, ...]) -> str:
    """Return the hash of all sources but those in the folders `without`."""
    seen = {name: sources[name] for name in sources if name.partition("/")[0] not in without}
    return run_name(seen)[:16]
