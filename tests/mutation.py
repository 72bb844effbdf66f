"""Change the package at random, or by a list of named errors, and see whether the tests notice.

A mutant is a copy of the tree with one small change. The tests of the changed package run in that
copy until the first one fails. A mutant that no test notices has survived: it shows a hole in the
tests, or code that does nothing.

    python tests/mutation.py [--count 150] [--seed 0] [--jobs N] [--only PATH] [--list] [--log FILE]

The random changes swap an arithmetic operator (+ - * / **), drop a minus sign or a `not`, change a
number c to c + 1, 2c or 0, move or negate a comparison, or swap `and` and `or`. They leave out:

- `cli` and `reporting`, and drawings of studies: they change words and looks, not results
- `__init__.py` and `_version.py`: lists of exports
- annotations, decorators, docstrings, text and f-strings: they do not compute
- what `raise`, `warn` and `assert` evaluate, `__repr__`, `__str__` and `plot`: messages and looks

The named errors of `planted_errors.toml` reach what a swapped operator cannot: arguments in the
wrong order, a missing transpose, a shared random key, a check that is gone.

Every verdict is appended to a log, one JSON object per line. A run that was killed skips what its
log already holds, as long as neither the package nor the tests have changed.
"""

import argparse
import ast
import collections
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import math
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SEEN, SURVIVED, BROKEN, HANGS = "seen", "SURVIVED", "did not run", "timed out"

_SWAPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.Pow: ("**", "*"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_LOOKS = ("__repr__", "__str__", "plot")
_SKIPPED_FOLDERS = ("cli", "reporting")
_SKIPPED_FILES = ("__init__.py", "_version.py")

TESTS = {
    "_arrays": ("finite",),
    "_configuration": ("test_configuration.py", "dynamics/test_sgd_runs.py", "streaming"),
    "_cores": ("test_cores.py",),
    "_inputs": ("measures", "attention"),
    "errors": ("test_errors.py",),
    "_normals": ("streaming", "dynamics"),
    "_packages": ("test_packages.py",),
    "_random": ("measures", "parallel", "dynamics"),
    "_quadrature": ("test_quadrature.py", "tasks", "finite"),
    "_text": ("cli/test_guard.py",),
    "attention": ("attention", "depth"),
    "depth": ("depth", "attention", "finite/test_stack_moments.py"),
    "finite": ("finite", "concentration"),
    "results": ("results", "lengths", "concentration", "heads"),
    "weights": ("weights", "finite"),
}
"""Tests of a package, cheapest first, where they are not those in the folder of its name."""

_COPIED = (
    *("src", "tests", "docs", "benchmarks", "conftest.py", "pyproject.toml"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"),
)
_CACHES = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
_PYTEST = ("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
_MEMORY = 48 * 2**20  # kilobytes of address space, because a mutant may allocate without bound
_SLOWER = 3  # a mutant may take this many times as long as the unchanged tests


class Change(NamedTuple):
    """One replacement in one file: the text from `start` to `end` becomes `new`."""

    file: str
    start: int
    end: int
    new: str
    why: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return the text of the file with the change."""
        return text[: self.start] + self.new + text[self.end :]


def package_of(root: Path) -> Path:
    """Return the folder of the only package in `root`/src."""
    (found,) = (path.parent for path in (root / "src").glob("*/__init__.py"))
    return found


def suite_of(file: str) -> tuple[str, ...]:
    """Return the tests of a module's package, relative to the folder of tests."""
    package = file.partition("/")[0].removesuffix(".py")
    return TESTS.get(package, (package,))


# ---------------------------------------------------------------- random changes


def sampled(root: Path, count: int, seed: int, only: str = "") -> list[Change]:
    """Return `count` changes drawn without replacement from all sites; the same for a seed."""
    package, rng = package_of(root), random.Random(seed)  # noqa: S311  # no secret
    sites = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        if only in file and not is_skipped(file):
            text = path.read_text(encoding="utf-8")
            sites += [(file, *site) for site in sites_of(text)]
    drawn = rng.sample(sites, min(count, len(sites)))
    return [
        Change(file, start, end, rng.choice(news), f"{kind}, seed {seed}", suite_of(file))
        for file, start, end, news, kind in drawn
    ]


def is_skipped(file: str) -> bool:
    """Return whether a module computes no result."""
    *folders, name = file.split("/")
    return name in _SKIPPED_FILES or any(folder in _SKIPPED_FOLDERS for folder in folders)


class Site(NamedTuple):
    """A span of a text, its possible replacements, and the kind of the change."""

    start: int
    end: int
    news: tuple[str, ...]
    kind: str


def sites_of(text: str) -> list[Site]:
    """Return every place of a module at which a random change applies, in the order of the text."""
    places, module = _parsed(text)
    found = [site for node in _computing(module) for site in _sites_at(node, places)]
    return sorted(set(found))


def _computing(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that compute: no annotations, decorators, text or messages."""
    messages = isinstance(node, (ast.Raise, ast.Assert, ast.JoinedStr)) or (
        isinstance(node, ast.Call) and _name(node.func) == "warn"
    )
    looks = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (
        node.name in _LOOKS or "drawing" in map(_name, node.decorator_list)
    )
    types_only = isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING"
    if messages or looks or types_only:
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _computing(child)


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _sites_at(node: ast.AST, places: "_Places") -> Iterator[Site]:
    match node:
        case ast.BinOp(left, op, right) if type(op) in _SWAPPED and not _has_text(left, right):
            yield places.between(left, right, op, "operator")
        case ast.AugAssign(target, op, value) if type(op) in _SWAPPED and not _has_text(value):
            yield places.between(target, value, op, "operator")
        case ast.BoolOp(op, values):
            for left, right in itertools.pairwise(values):
                yield places.between(left, right, op, "boolean operator")
        case ast.Compare(left, ops, others):
            for before, op, after in zip([left, *others], ops, others, strict=False):
                if type(op) in _SWAPPED:
                    yield places.between(before, after, op, "comparison")
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            start, end = places.start(node), places.start(operand)
            kept = places.text[start:end].removeprefix("-").removeprefix("not")
            kind = "sign" if isinstance(node.op, ast.USub) else "boolean operator"
            yield Site(start, end, (kept.lstrip(),), kind)
        case ast.Constant(int() | float() | complex() as number) if not isinstance(number, bool):
            news = dict.fromkeys(repr(new) for new in (number + 1, 2 * number, 0 * number))
            news.pop(repr(number), None)
            yield Site(places.start(node), places.end(node), tuple(news), "number")


def _has_text(*nodes: ast.AST) -> bool:
    """Return whether an operand is text or a list: a sum of these joins them."""
    return any(
        isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp))
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        for node in nodes
    )


class _Places:
    """Positions of nodes in a text, counted in characters."""

    def __init__(self, text: str):
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))

    def _place(self, line: int, column: int) -> int:
        """Return a position; `ast` counts the bytes of a line."""
        text = self._lines[line - 1]
        letters = column if text.isascii() else len(text.encode()[:column].decode())
        return self._begins[line - 1] + letters

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._place(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        return self._place(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def between(self, left: ast.expr, right: ast.expr, op: ast.AST, kind: str) -> Site:
        """Return the site of the operator between two operands, past brackets and comments."""
        old, new = _SWAPPED[type(op)]
        place = self.end(left)
        while not self.text.startswith(old, place):
            is_comment = self.text[place] == "#"
            place = self.text.index("\n", place) if is_comment else place + 1
        return Site(place, place + len(old), (new,), kind)


@functools.cache
def _parsed(text: str) -> tuple[_Places, ast.Module]:
    return _Places(text), ast.parse(text)


# ---------------------------------------------------------------- named errors


def planted(root: Path, only: str = "") -> list[Change]:
    """Return the changes of `planted_errors.toml`."""
    listed = tomllib.loads((root / "tests" / "planted_errors.toml").read_text(encoding="utf-8"))
    errors = (Planted(**error) for error in listed["error"])
    changes = (error.change(root) for error in errors)
    return [change for change in changes if only in change.file]


@dataclasses.dataclass(frozen=True)
class Planted:
    """A named error: in a function of a package, one expression or statement becomes another.

    The function is looked for in all modules of the package and the old code is compared as
    syntax, so that moving or formatting code does not matter.
    """

    where: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...] | list[str] = ()

    def change(self, root: Path) -> Change:
        """Return the change, or raise ValueError where it does not apply exactly once."""
        part, _, function = self.where.partition(":")
        base = package_of(root)
        files = (
            [base / f"{part}.py"]
            if (base / f"{part}.py").is_file()
            else (base / part).rglob("*.py")
        )
        found = []
        for path in sorted(files):
            places, module = _parsed(path.read_text(encoding="utf-8"))
            file = path.relative_to(base).as_posix()
            for scope in _scopes(module, function):
                for node in _matches(scope, self.old):
                    tests = tuple(self.tests) or suite_of(file)
                    span = places.start(node), places.end(node)
                    found.append(Change(file, *span, self.new, self.breaks, tests))
        if len(found) != 1:
            raise ValueError(
                f"{self.where} must hold `{self.old}` once, but it does {len(found)} times"
            )
        return found[0]


def _scopes(node: ast.AST, name: str, prefix: str = "") -> Iterator[ast.AST]:
    """Yield what has a dotted name: functions and classes; the module itself for no name."""
    if not name:
        yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if prefix + child.name == name:
                yield child
            else:
                yield from _scopes(child, name, f"{prefix}{child.name}.")
        else:
            yield from _scopes(child, name, prefix)


def _matches(scope: ast.AST, old: str) -> list[ast.expr | ast.stmt]:
    """Return the nodes of a scope with the syntax of `old`."""
    (wanted,) = ast.parse(old).body
    node = wanted.value if isinstance(wanted, ast.Expr) else wanted
    syntax = ast.dump(node)
    return [n for n in ast.walk(scope) if isinstance(n, type(node)) and ast.dump(n) == syntax]


# ---------------------------------------------------------------- running the tests


class Copies:
    """Copies of a tree, one for each worker. They share a cache of compiled programs."""

    def __init__(self, root: Path, folder: Path, jobs: int):
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        cache = folder / "cache"
        cache.mkdir()
        for number in range(jobs):
            copy = folder / str(number)
            copy.mkdir()
            for name in _COPIED:
                if (root / name).is_dir():
                    shutil.copytree(root / name, copy / name, ignore=_CACHES)
                elif (root / name).is_file():
                    shutil.copy2(root / name, copy / name)
            (copy / ".pytest_cache").symlink_to(cache)
            self._free.put(copy)

    @contextlib.contextmanager
    def one(self) -> Generator[Path]:
        """Lend a copy that no other thread uses."""
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)


def run_tests(copy: Path, tests: Iterable[str], limit: float) -> tuple[str, float]:
    """Return the verdict of tests in a copy, run up to the first failure, and their seconds."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy / "src"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    places = [f"tests/{test}" for test in tests]
    # The limit on processor time ends a mutant that hangs even if this script was killed.
    limits = f"ulimit -v {_MEMORY}; ulimit -t {math.ceil(20 * limit)}"
    limited = ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh"]
    began = time.monotonic()
    process = subprocess.Popen(
        [*limited, sys.executable, *_PYTEST, *places],
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = process.wait(limit)
    except subprocess.TimeoutExpired:
        status = None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # also what the tests started
    process.wait()
    # The unchanged tests pass, so any other end is due to the change, except for these: pytest
    # found no tests (5), or the shell no Python (126, 127).
    verdict = SURVIVED if status == 0 else BROKEN if status in (5, 126, 127) else SEEN
    if status is None:
        verdict = HANGS  # the change, or a machine that has become slower
    return verdict, round(time.monotonic() - began, 1)


class Log:
    """Verdicts on disk, one JSON object per line, for one state of the package and its tests."""

    def __init__(self, path: Path, root: Path):
        self._path, self._state = path, _digest(root)
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        entries = [entry for entry in map(_entry, lines) if entry.get("state") == self._state]
        self.known = {entry["key"]: entry for entry in entries}

    def add(self, key: str, **entry: object) -> None:
        """Append one verdict."""
        self.known[key] = {"state": self._state, "key": key, **entry}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.known[key]) + "\n")


def _entry(line: str) -> dict:
    """Return one line of a log; the last line of a killed run may be cut."""
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return {}


def _digest(root: Path) -> str:
    """Return a hash of the package and its tests."""
    whole = hashlib.sha256()
    for path in sorted([*(root / "src").rglob("*.py"), *(root / "tests").rglob("*.py")]):
        whole.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:16]


def snippet(change: Change, root: Path) -> str:
    """Return a change as a unified difference of the lines it touches."""
    path = package_of(root) / change.file
    text = path.read_text(encoding="utf-8")
    before, after = text.splitlines(), change.applied(text).splitlines()
    name = path.relative_to(root).as_posix()
    lines = [*difflib.unified_diff(before, after, name, name, n=0, lineterm="")][2:]
    number = text.count("\n", 0, change.start) + 1
    return "\n".join([f"{name}:{number}: {change.why}", *(f"    {line}" for line in lines[1:])])


def usual_seconds(
    changes: list[Change], copies: Copies, log: Log, pool: ThreadPoolExecutor
) -> dict[tuple[str, ...], float]:
    """Return how long the unchanged tests take; exit where they fail."""

    def unchanged(tests: tuple[str, ...]) -> tuple[str, float]:
        with copies.one() as copy:
            return run_tests(copy, tests, 3600.0)

    keys = {tests: f"unchanged: {' '.join(tests)}" for tests in {c.tests for c in changes}}
    new = {
        pool.submit(unchanged, tests): key for tests, key in keys.items() if key not in log.known
    }
    failed = []
    for done in as_completed(new):
        key, (verdict, seconds) = new[done], done.result()
        passed = verdict == SURVIVED
        print(f"{'passed' if passed else 'FAILED':10} {seconds:6.0f} s  {key}", flush=True)
        if passed:
            log.add(key, verdict="passed", seconds=seconds)
        else:
            failed.append(key)
    if failed:
        sys.exit("error: tests fail without a change:\n" + "\n".join(sorted(failed)))
    return {tests: log.known[key]["seconds"] for tests, key in keys.items()}


def nearest(change: Change, copy: Path) -> list[str]:
    """Return the test files named like the changed module; they run first."""
    stem = Path(change.file).stem.strip("_")
    folders = [copy / "tests" / test for test in change.tests]
    found = {path for folder in folders for path in folder.glob(f"**/test_*{stem}*.py")}
    return sorted(path.relative_to(copy / "tests").as_posix() for path in found)


def tried(change: Change, copies: Copies, limit: float) -> tuple[str, float]:
    """Return the verdict on one change, and its seconds."""
    with copies.one() as copy:
        path = package_of(copy) / change.file
        text = path.read_text(encoding="utf-8")
        path.write_text(change.applied(text), encoding="utf-8")
        try:
            return run_tests(copy, [*nearest(change, copy), *change.tests], limit)
        finally:
            path.write_text(text, encoding="utf-8")


def key_of(change: Change) -> str:
    """Return the name of a change in the log."""
    return f"{change.file}:{change.start}-{change.end} -> {change.new}"


def run(changes: list[Change], root: Path, log: Log, jobs: int, timeout: float) -> None:
    """Try every change that the log does not hold yet."""
    left = [change for change in changes if key_of(change) not in log.known]
    if not left:
        return
    jobs = max(1, min(jobs, len(left)))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies, pool = Copies(root, Path(folder), jobs), ThreadPoolExecutor(jobs)
        try:
            usual = usual_seconds(left, copies, log, pool)
            waiting = {
                pool.submit(
                    tried, change, copies, max(timeout, _SLOWER * usual[change.tests])
                ): change
                for change in left
            }
            for count, done in enumerate(as_completed(waiting), start=1):
                change, (verdict, seconds) = waiting[done], done.result()
                text = snippet(change, root)
                log.add(key_of(change), verdict=verdict, seconds=seconds, change=text)
                head = f"{verdict:10} {seconds:6.0f} s  {len(left) - count:3} left"
                print(f"{head}  {text.splitlines()[0]}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)


def main(arguments: list[str] | None = None) -> int:
    """Try all changes, list the survivors and return how many there are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=150, help="random changes to try")
    parser.add_argument("--seed", type=int, default=0, help="which random changes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time")
    parser.add_argument("--only", default="", help="modules with this in their path")
    parser.add_argument("--timeout", type=float, default=300.0, help="the least limit in seconds")
    parser.add_argument("--no-planted", action="store_true", help="leave out the named errors")
    parser.add_argument("--list", action="store_true", help="print the changes and exit")
    parser.add_argument("--log", type=Path, default=ROOT / ".mutants" / "log.jsonl")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to change")
    asked = parser.parse_args(arguments)
    root = asked.root.resolve()
    changes = sampled(root, asked.count, asked.seed, asked.only)
    if not asked.no_planted:
        changes = [*planted(root, asked.only), *changes]
    if asked.list:
        print("\n".join(snippet(change, root) for change in changes))
        return 0
    log = Log(asked.log, root)
    run(changes, root, log, asked.jobs, asked.timeout)
    verdicts = {change: log.known[key_of(change)]["verdict"] for change in changes}
    counts = collections.Counter(verdicts.values())
    for change, verdict in verdicts.items():
        if verdict != SEEN:
            print(f"\n{verdict}: {snippet(change, root)}")
    order = SEEN, HANGS, SURVIVED, BROKEN
    print("\n" + ", ".join(f"{counts[verdict]} {verdict.lower()}" for verdict in order))
    return counts[SURVIVED] + counts[BROKEN]


if __name__ == "__main__":
    sys.exit(min(1, main()))
