"""Claims and figures: computed once, again when damaged or when the setting changes, anywhere."""

import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from promptlimit.claims import Check, ReportFolder, StoredClaim, StoredFigure
from promptlimit.cli._progress import progress
from promptlimit.studies import (
    Claim,
    Figure,
    Part,
    Setting,
    Study,
    WorkerLostError,
    _reproduce,
    _work,
    _workers,
    reproduce,
)
from promptlimit.studies._work import Outcome, Work
from promptlimit.studies._workers import worker_pool
from promptlimit.studies.large_prompt import STUDY

CONTROL = Check("another", 9.0, ">=", 5.0, role="control")


class Counted:
    """A claim and a figure that count how often they are computed."""

    def __init__(self) -> None:
        self.count = 0
        self.claim = Claim(3, "made-up", "a statement", "nowhere", self._decide, "holds", "why")
        self.figure = Figure("made_up", "title", "A caption.", self._compute, "paper", "Figure 1")

    def _decide(self, setting: Setting) -> list[Check]:
        self.count += 1
        return [Check("a number", float(setting.seed), "<=", 5.0, error=0.5), CONTROL]

    def _compute(self, setting: Setting) -> dict[str, np.ndarray]:
        self.count += 1
        return {"values": np.array([1.0, np.nan, float(setting.seed)])}


LATE = Claim(
    14,
    "late",
    "after",
    "nowhere",
    lambda _: [Check("x", 9.0, "<=", 5.0), CONTROL],
    after_parts=True,
)


@pytest.fixture
def folder(tmp_path: Path) -> ReportFolder:
    return ReportFolder(tmp_path)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[StoredFigure]:
    """The figures that were drawn; nothing is."""
    figures: list[StoredFigure] = []

    def note(_: Study, figure: StoredFigure, *__: object) -> tuple[StoredFigure, bytes]:
        figures.append(figure)
        return figure, b"<svg/>"

    monkeypatch.setattr(_work, "drawn_figure", note)
    return figures


def outcome(item: Claim | Figure, setting: Setting, folder: ReportFolder) -> Outcome:
    return _work.outcome(Work(STUDY, item, setting, item.name), folder)


def test_a_claim_is_decided_once_and_again_for_another_setting(folder: ReportFolder) -> None:
    counted = Counted()
    first, second = (outcome(counted.claim, Setting(), folder) for _ in range(2))
    assert (first.fresh, second.fresh, counted.count) == (True, False, 1)
    assert first.stored == second.stored
    for setting in (Setting(seed=1), Setting(seed=1, quick=True), Setting(seed=1, protocol="full")):
        assert outcome(counted.claim, setting, folder).fresh
    file = folder.path / "large_prompt" / "claims" / "made-up.json"
    stored = json.loads(file.read_text())
    assert stored["setting"] == {"seed": 1, "quick": False, "protocol": "full"}
    assert stored["command"] == (
        "promptlimit reproduce large_prompt made-up --protocol full --seed 1"
    )
    assert set(stored) >= {"seconds", "hash", "verdict", "checks", "evidence"}


def tampered(key: str, value: object) -> Callable[[str], str]:
    def change(text: str) -> str:
        return json.dumps({**json.loads(text), key: value})

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        tampered("verdict", "does not hold"),
        tampered("checks", [{"name": "a number"}]),
        tampered("number", "3"),
        tampered("number", 4),
        tampered("statement", "another"),
        tampered("name", "another"),
    ],
)
def test_a_damaged_claim_is_decided_again(
    damage: Callable[[str], str], folder: ReportFolder
) -> None:
    counted = Counted()
    outcome(counted.claim, Setting(), folder)
    file = folder.path / "large_prompt" / "claims" / "made-up.json"
    file.write_text(damage(file.read_text()))
    again = outcome(counted.claim, Setting(), folder)
    assert again.fresh
    assert not again.note or again.note.startswith(f"{file} must contain ")
    assert isinstance(again.stored, StoredClaim)
    assert again.stored.result.verdict == "holds"
    assert not outcome(counted.claim, Setting(), folder).fresh


def test_a_figure_is_computed_once_and_drawn_from_what_is_stored(
    folder: ReportFolder, drawn: list[StoredFigure]
) -> None:
    counted, setting = Counted(), Setting(seed=2)
    first, second = (outcome(counted.figure, setting, folder) for _ in range(2))
    assert (first.fresh, second.fresh, counted.count) == (True, False, 1)
    assert first.svg == second.svg == b"<svg/>"
    for figure in drawn:
        np.testing.assert_array_equal(figure.arrays["values"], [1.0, np.nan, 2.0])


def test_a_figure_drawn_again_from_stored_arrays_is_told_as_redrawn(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(_: Study, figure: StoredFigure, *__: object) -> tuple[StoredFigure, bytes]:
        return replace(figure, drawn_by="other code"), b"<svg/>"

    monkeypatch.setattr(_work, "drawn_figure", draw)
    counted = Counted()
    ends = [outcome(counted.figure, Setting(), folder).summary for _ in range(2)]
    assert (ends, counted.count) == (["drawn", "redrawn"], 1)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_figure_without_its_arrays_is_computed_again(
    damage: Callable[[Path], object], folder: ReportFolder, drawn: list[StoredFigure]
) -> None:
    counted = Counted()
    outcome(counted.figure, Setting(), folder)
    damage(folder.path / "large_prompt" / "figures" / "made_up.npz")
    assert outcome(counted.figure, Setting(), folder).fresh
    assert len(drawn) == 2


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two threads in place of worker processes: what they compute need not be pickled."""
    pools: list[int] = []

    @contextlib.contextmanager
    def pool(count: int) -> Generator[ThreadPoolExecutor]:
        pools.append(count)
        with ThreadPoolExecutor(count) as threads:
            yield threads

    monkeypatch.setattr(_reproduce, "usable_cores", lambda: 2)
    monkeypatch.setattr(_reproduce, "worker_pool", pool)
    return pools


def reproduced(
    items: Sequence[Claim | Figure], folder: ReportFolder, *, whole: bool = False
) -> list[StoredClaim | StoredFigure | None]:
    with progress("reproduce") as shown:
        results = reproduce([(STUDY, items)], Setting(), folder, shown, whole=whole)
    return [result.stored for result in results]


def test_items_come_back_in_the_order_they_were_asked_for(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reproduce, "usable_cores", lambda: 1)
    stored = reproduced([LATE, Counted().claim], folder)
    assert [item.name for item in stored if item] == ["late", "made-up"]


@pytest.mark.parametrize("cores", [1, 2])
def test_each_item_is_told_when_it_ends_wherever_it_is_computed(
    cores: int,
    folder: ReportFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    drawn: list[StoredFigure],
    two_threads: list[int],
) -> None:
    counted = Counted()
    part = Part("identity, L = 10", lambda _: None)
    monkeypatch.setattr(_reproduce, "usable_cores", lambda: cores)
    monkeypatch.setattr(Study, "list_parts", lambda *_: (part,))
    form = re.compile(r"reproduce: (.+: .+), \d+\.\d s, (\d) left")
    stored = ""
    for count in (4, 3):
        reproduced([LATE, counted.claim, counted.figure], folder, whole=True)
        plan, *lines = capsys.readouterr().err.splitlines()
        first = "" if stored else "1 part, "
        words = f"{first}2 claims, 1 figure, exact protocol, into {folder.path}"
        assert plan == f"reproduce: {words}"
        ends = [match.groups() for line in lines if (match := form.fullmatch(line))]
        assert [int(left) for _, left in ends] == [*reversed(range(count))]
        assert sorted(end for end, _ in ends) == [
            *([] if stored else ["identity, L = 10: computed"]),
            f"late: does not hold, expected holds{stored}",
            f"made-up: holds{stored}",
            f"made_up: {'stored' if stored else 'drawn'}",
        ]
        stored = ", stored"
        assert len(two_threads) == cores - 1  # no pool for stored results
    assert len(drawn) == 2


def test_what_another_process_computed_is_told_at_once(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch, two_threads: list[int]
) -> None:
    told = threading.Event()
    late = replace(LATE, decide=lambda _: [Check("x", told.wait(30) - 1.0, ">=", 0.0), CONTROL])
    with progress("reproduce") as shown:
        monkeypatch.setattr(shown, "_ended", lambda words: "made-up" in words and told.set())
        items = [(STUDY, [late, Counted().claim])]
        first, _ = reproduce(items, Setting(), folder, shown, whole=False)
    assert isinstance(first.stored, StoredClaim)
    assert first.stored.result.verdict == "holds"


def test_items_of_several_studies_are_told_apart(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Study("another", module=STUDY.module)
    monkeypatch.setattr(Study, "name", property(lambda study: study.title[:7].strip()))
    monkeypatch.setattr(_reproduce, "usable_cores", lambda: 1)
    with progress("reproduce") as shown:
        items = [(STUDY, [Counted().claim]), (other, [Counted().claim])]
        results = reproduce(items, Setting(), folder, shown, whole=False)
    assert [result.stored.study for result in results if result.stored] == ["Softmax", "another"]
    assert {path.name for path in folder.path.iterdir()} == {"Softmax", "another"}


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_work_waits_for_the_parts_it_needs_and_stays_with_the_accelerator(
    backend: str,
    folder: ReportFolder,
    monkeypatch: pytest.MonkeyPatch,
    two_threads: list[int],
) -> None:
    began: list[str] = []
    main = threading.current_thread().name
    threads: dict[str, str] = {}

    def note(name: str) -> Callable[[Setting], list[Check]]:
        def compute(_: Setting) -> list[Check]:
            began.append(name)
            threads[name] = threading.current_thread().name
            return [Check("x", 0.0, "<=", 5.0), CONTROL]

        return compute

    parts = [
        Part("training", note("training"), stage=1, accelerated=True),
        Part("a flow", note("a flow")),
        Part("another flow", note("another flow")),
    ]
    claims = [replace(LATE, number=n, name=f"late {n}".replace(" ", "-")) for n in (1, 2)]
    claims = [replace(claim, decide=note(claim.name)) for claim in claims]
    early = replace(claims[0], number=3, name="early", decide=note("early"), after_parts=False)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(Study, "list_parts", lambda *_: parts)
    reproduced([*claims, early], folder, whole=True)
    assert sorted(began) == ["a flow", "another flow", "early", "late-1", "late-2", "training"]
    assert began.index("training") > max(began.index("a flow"), began.index("another flow"))
    assert min(began.index("late-1"), began.index("late-2")) > began.index("training")
    assert (threads["training"] == main) == (backend == "gpu")
    assert main not in {threads["a flow"], threads["early"], threads["late-1"]}
    assert two_threads == [2]


def test_parts_run_in_the_order_of_their_stages_on_one_core(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    parts = [
        Part(name, lambda _, name=name: began.append(name), stage=stage)
        for name, stage in (("last", 2), ("first", 0), ("second", 1))
    ]
    monkeypatch.setattr(_reproduce, "usable_cores", lambda: 1)
    monkeypatch.setattr(Study, "list_parts", lambda *_: parts)
    reproduced([LATE], folder, whole=True)
    assert began == ["first", "second", "last"]


def _lose_a_worker() -> None:
    with worker_pool(2) as pool:
        future = pool.submit(time.sleep, 60.0)
        multiprocessing.active_children()[0].kill()
        future.result()


def test_a_worker_that_was_killed_is_named_with_the_way_out() -> None:
    message = (
        "a worker process was ended from outside. Memory may have run out; the same command "
        "continues from the stored results."
    )
    with pytest.raises(WorkerLostError, match=f"^{re.escape(message)}$"):
        _lose_a_worker()
    deadline = time.monotonic() + 60.0  # a thread of the pool may still read an exit status
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("own", [{}, {"JAX_COMPILATION_CACHE_DIR": "own"}])
def test_a_cache_of_the_user_keeps_its_own_limits(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(own))
    _workers._start_worker("shared")
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == ("own" if own else "shared")
    assert ("JAX_COMPILATION_CACHE_MAX_SIZE" in os.environ) == (not own)


IN_WORKERS = """
import multiprocessing, os, signal, time
from promptlimit.studies._workers import worker_pool

def environment(name):
    return os.environ[name]

if __name__ == "__main__":
    with worker_pool(2) as pool:
        cache = pool.submit(environment, "JAX_COMPILATION_CACHE_DIR").result()
        platform = pool.submit(environment, "JAX_PLATFORMS").result()
        mask = []
        for process in multiprocessing.active_children():
            with open(f"/proc/{process.pid}/status") as lines:
                mask += [line.split()[1] for line in lines if line.startswith("SigBlk")]
        pids = [process.pid for process in multiprocessing.active_children()]
        print(cache, platform, *mask, *pids, flush=True)
        if os.environ.get("KILLED"):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="it is read from /proc")
@pytest.mark.parametrize("killed", ["", "1"])
def test_workers_ignore_interrupts_and_end_with_their_parent(killed: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IN_WORKERS)
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"KILLED": killed},
    )
    cache, platform, *masks, one, other = done.stdout.split()
    assert platform == "cpu"
    assert len(masks) == 2
    assert all(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)
    deadline = time.monotonic() + 60.0
    left = [Path(cache), Path("/proc", one), Path("/proc", other)]
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(path.exists() for path in left)


def test_an_item_that_fails_is_named_and_stops_no_other(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Setting) -> list[Check]:
        raise KeyError("boom")

    monkeypatch.setattr(_reproduce, "usable_cores", lambda: 1)
    bare = replace(LATE, number=15, name="bare", decide=lambda _: [Check("x", 0.0, "<=", 5.0)])
    claims = [replace(LATE, decide=broken), Counted().claim, bare]
    with progress("reproduce") as shown:
        results = reproduce([(STUDY, claims)], Setting(), folder, shown, whole=False)
    first, second, third = results
    assert (first.stored, first.summary) == (None, "failed")
    assert first.problem.startswith("the claim late of large_prompt raised KeyError: 'boom' (File ")
    assert second.summary == "holds"
    assert "the checks of bare must include a control" in third.problem
    stored = folder.path / "large_prompt" / "failures"
    failures = {path.stem: json.loads(path.read_text())["problem"] for path in stored.iterdir()}
    assert failures == {"late": first.problem, "bare": third.problem}
    outcome(LATE, Setting(), folder)
    assert [path.stem for path in stored.iterdir()] == ["bare"]


def test_a_claim_and_a_part_of_one_name_are_two_things(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_reproduce, "usable_cores", lambda: 1)
    monkeypatch.setattr(Study, "list_parts", lambda *_: (Part("late", lambda _: None),))
    (stored,) = reproduced([LATE], folder, whole=True)
    assert isinstance(stored, StoredClaim)
