"""Plant known errors one by one, and see the tests notice each.

The errors are listed in `mutants.toml`. Each is planted in a copy of the tree, where the tests that
should see it run. What survives is a hole in the tests.

    python tests/mutants.py [--jobs N] [--only TEXT] [--root DIR] [--timeout SECONDS] [--list]
"""

import argparse
import collections
import contextlib
import dataclasses
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple, TypeVar

LIST = Path(__file__).with_suffix(".toml")
PACKAGE = Path("src", "promptlimit")
SEEN, SURVIVED, NOT_APPLIED = "seen", "SURVIVED", "does not apply"
_COPIED = (
    *("src", "tests", "docs", "conftest.py", "pyproject.toml"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"),
)
_CACHES = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
_PYTEST = ("-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist")
_LONGEST = 3600  # seconds for tests without an error
_SLOWER = 3  # times as long as without an error

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A planted error; the fields are described in `mutants.toml`."""

    kind: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """The package that it is in; of a module beside the packages, the module."""
        return self.file.partition("/")[0]

    def path(self, root: Path) -> Path:
        """Return the file that it is in."""
        return root / PACKAGE / self.file

    def planted(self, root: Path) -> str | None:
        """Return the file's text with the error; None where it does not apply."""
        if not self.path(root).is_file():
            return None
        text = self.path(root).read_text(encoding="utf-8")
        return text.replace(self.old, self.new) if text.count(self.old) == 1 else None


def listed() -> list[Mutant]:
    """Return all planted errors."""
    entries = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**(entry | {"tests": tuple(entry["tests"])})) for entry in entries]


def located(test: str, root: Path) -> Path | None:
    """Return where tests lie, relative to the root: below tests/, or else below the root."""
    places = (Path("tests", test), Path(test))
    return next((place for place in places if (root / place).exists()), None)


class Outcome(NamedTuple):
    """How a run of tests ended: pytest's exit status, None when time was up, and its last words."""

    status: int | None
    words: str
    seconds: float

    @property
    def verdict(self) -> str:
        """What that says of the error that was planted."""
        broken = self.status == 2 and "during collection" in self.words
        if self.status in (None, 1) or broken:
            return SEEN
        return SURVIVED if self.status == 0 else NOT_APPLIED


class Copies:
    """Copies of a tree, one for each worker, used again and again."""

    def __init__(self, root: Path, folder: Path, jobs: int):
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copy = folder / f"{number}"
            for name in _COPIED:
                if (root / name).is_dir():
                    shutil.copytree(root / name, copy / name, ignore=_CACHES)
                elif (root / name).is_file():
                    copy.mkdir(exist_ok=True)
                    shutil.copy2(root / name, copy / name)
            _require_own_package(copy)
            self._free.put(copy)

    @contextlib.contextmanager
    def one(self) -> Generator[Path]:
        """Lend a copy that nobody uses."""
        copy = self._free.get()
        try:
            yield copy
        finally:
            shutil.rmtree(copy / ".hypothesis", ignore_errors=True)  # counterexamples of this error
            self._free.put(copy)


def _require_own_package(copy: Path) -> None:
    code = "import promptlimit; print(promptlimit.__file__)"
    command = [sys.executable, "-c", code]
    found = subprocess.check_output(command, cwd=copy, env=_environment(copy), text=True)
    if not Path(found.strip()).resolve().is_relative_to(copy.resolve()):
        sys.exit(f"error: tests in {copy} would import {found.strip()}")


def _environment(copy: Path) -> dict[str, str]:
    """One thread a worker (XLA's by conftest.py); no bytecode, which could outlive its error."""
    return {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def run_tests(copy: Path, tests: Iterable[str], timeout: float) -> Outcome:
    """Run tests in a copy, up to the first that fails."""
    places = [str(located(test, copy) or test) for test in tests]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *_PYTEST, *places],
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        words, _ = process.communicate(timeout=timeout)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # what the tests started, too
        words, status = process.communicate()[0], None
    return Outcome(status, words, time.monotonic() - began)


def try_mutant(mutant: Mutant, copies: Copies, timeout: float) -> Outcome:
    """Return how its tests end with the error planted."""
    with copies.one() as copy:
        path, text = mutant.path(copy), mutant.planted(copy)
        if text is None:
            raise AssertionError("only errors that apply are tried")
        before = path.read_bytes()
        path.write_text(text, encoding="utf-8")
        try:
            return run_tests(copy, mutant.tests, timeout)
        finally:
            path.write_bytes(before)


def in_parallel(
    work: Callable[[Result], Outcome], things: Sequence[Result], jobs: int
) -> Iterator[tuple[Result, Outcome]]:
    """Yield each thing with its outcome, as they end; whoever stops waits for those under way."""
    pool = ThreadPoolExecutor(jobs)
    try:
        waiting = {pool.submit(work, thing): thing for thing in things}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def unplanted(mutants: Iterable[Mutant], copies: Copies, jobs: int) -> dict[str, float]:
    """Return how long each file of tests takes without an error, or end where one fails."""

    def alone(test: str) -> Outcome:
        with copies.one() as copy:
            return run_tests(copy, [test], _LONGEST)

    tests = sorted({test for mutant in mutants for test in mutant.tests})
    seconds, failed = {}, []
    for test, outcome in in_parallel(alone, tests, jobs):
        seconds[test] = outcome.seconds
        well = outcome.status == 0
        print(f"{'well' if well else 'FAILS':14} {outcome.seconds:5.0f} s  {test}", flush=True)
        if not well:
            failed.append(test)
            print("\n".join(outcome.words.splitlines()[-15:]))
    if failed:
        sys.exit(f"error: these fail without a planted error: {', '.join(sorted(failed))}")
    return seconds


def report(verdicts: dict[Mutant, str]) -> None:
    """Print the survivors, then counts by package and by kind."""
    for title in (SURVIVED, NOT_APPLIED):
        found = [mutant for mutant, verdict in verdicts.items() if verdict == title]
        if found:
            print(f"\n{title}:")
        for mutant in sorted(found, key=lambda one: one.file):
            print(f"  {mutant.file} ({mutant.kind}): {mutant.why}\n    {mutant.new.strip()}")
    for heading in ("package", "kind"):
        counts = collections.Counter((getattr(m, heading), v) for m, v in verdicts.items())
        print(f"\n{heading:20} {SEEN:>10} {'survived':>10} {NOT_APPLIED:>16}")
        for name in sorted({getattr(mutant, heading) for mutant in verdicts}):
            row = [counts[name, verdict] for verdict in (SEEN, SURVIVED, NOT_APPLIED)]
            print(f"{name:20} {row[0]:10} {row[1]:10} {row[2]:16}")
    total = collections.Counter(verdicts.values())
    others = f", {total[NOT_APPLIED]} do not apply" if total[NOT_APPLIED] else ""
    print(f"\n{total[SEEN]} seen, {total[SURVIVED]} survived{others}")


def main() -> None:
    """Try every planted error; exit 1 when one survives or does not apply."""
    parser = argparse.ArgumentParser(description="Plant known errors and see the tests notice.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="tests at a time")
    parser.add_argument("--only", default="", help="those with this text in file, kind or why")
    parser.add_argument("--root", type=Path, default=LIST.parents[1], help="the tree to plant in")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds; longer is seen")
    parser.add_argument("--list", action="store_true", help="print the errors and exit")
    asked = parser.parse_args()
    mutants = [m for m in listed() if asked.only in f"{m.file} {m.kind} {m.why}"]
    if asked.list:
        for mutant in mutants:
            print(f"{mutant.file} ({mutant.kind}): {mutant.why}")
        return
    root, verdicts = asked.root.resolve(), dict.fromkeys(mutants, NOT_APPLIED)
    ready = [m for m in mutants if m.planted(root) and all(located(t, root) for t in m.tests)]
    jobs = max(1, min(asked.jobs, len(ready)))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = Copies(root, Path(folder), jobs)
        usual = unplanted(ready, copies, jobs)
        ready.sort(key=lambda mutant: -sum(usual[test] for test in mutant.tests))

        def tried(mutant: Mutant) -> Outcome:
            limit = max(asked.timeout, _SLOWER * sum(usual[test] for test in mutant.tests))
            return try_mutant(mutant, copies, limit)

        for left, (mutant, outcome) in zip(
            reversed(range(len(ready))), in_parallel(tried, ready, jobs), strict=True
        ):
            verdicts[mutant] = outcome.verdict
            words = f"{outcome.verdict:14} {outcome.seconds:5.0f} s, {left:3} left"
            print(f"{words}  {mutant.file} ({mutant.kind}): {mutant.why}", flush=True)
    report(verdicts)
    sys.exit(any(verdict != SEEN for verdict in verdicts.values()))


if __name__ == "__main__":
    main()
