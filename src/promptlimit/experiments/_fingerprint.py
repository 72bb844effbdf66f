"""What the code was that computed something: a result of other code is never taken for this one."""

import functools
import hashlib
from pathlib import Path

import promptlimit
from promptlimit.experiments._setting import Setting
from promptlimit.results import run_name

_ENGINE = ("results", "measures", "attention", "finite", "concentration", "tasks", "dynamics")


def item_hash(kind: str, name: str, setting: Setting) -> str:
    """Return the hash of all that decides a claim or a figure: its name, the setting, the code."""
    return run_name(
        {"what": kind, "name": name, "code": _hash((*_ENGINE, "experiments")), **setting.as_json()}
    )


def engine_hash() -> str:
    """Return the hash of the code that flows and training runs come from."""
    return _hash(_ENGINE)


@functools.cache
def _hash(packages: tuple[str, ...]) -> str:
    root = Path(promptlimit.__file__).parent
    digest = hashlib.sha256(promptlimit.__version__.encode())
    digest.update((root / "_inputs.py").read_bytes())
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
