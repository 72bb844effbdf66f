"""Claims and figures: computed once, again when damaged or when the setting changes, anywhere."""

import json
import multiprocessing
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from promptlimit.claims import Check, ReportFolder, StoredClaim, StoredFigure
from promptlimit.cli._progress import progress
from promptlimit.reproduction import (
    Claim,
    Figure,
    Paper,
    Part,
    Setting,
    WorkerLostError,
    _processes,
    _work,
    helper_ahead,
)
from promptlimit.reproduction._work import Work, outcome, reproduce
from promptlimit.reproduction.large_prompt import PAPER

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
    after_study=True,
)


@pytest.fixture
def folder(tmp_path: Path) -> ReportFolder:
    return ReportFolder(tmp_path)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[StoredFigure]:
    """The figures that were drawn; nothing is."""
    figures: list[StoredFigure] = []

    def note(_: Paper, figure: StoredFigure, *__: object) -> tuple[StoredFigure, bytes]:
        figures.append(figure)
        return figure, b"<svg/>"

    monkeypatch.setattr(_work, "drawn_figure", note)
    return figures


def work(item: Claim | Figure) -> Work:
    return Work(PAPER, item, item.name)


def test_a_claim_is_decided_once_and_again_for_another_setting(folder: ReportFolder) -> None:
    counted = Counted()
    first, second = (outcome(work(counted.claim), Setting(), folder) for _ in range(2))
    assert (first.fresh, second.fresh, counted.count) == (True, False, 1)
    assert first.stored == second.stored
    for setting in (Setting(seed=1), Setting(seed=1, quick=True), Setting(seed=1, protocol="full")):
        assert outcome(work(counted.claim), setting, folder).fresh
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
    outcome(work(counted.claim), Setting(), folder)
    file = folder.path / "large_prompt" / "claims" / "made-up.json"
    file.write_text(damage(file.read_text()))
    again = outcome(work(counted.claim), Setting(), folder)
    assert again.fresh
    assert not again.note or again.note.startswith(f"{file} must hold ")
    assert isinstance(again.stored, StoredClaim)
    assert again.stored.result.verdict == "holds"
    assert not outcome(work(counted.claim), Setting(), folder).fresh


def test_a_figure_is_computed_once_and_drawn_from_what_is_stored(
    folder: ReportFolder, drawn: list[StoredFigure]
) -> None:
    counted, setting = Counted(), Setting(seed=2)
    first, second = (outcome(work(counted.figure), setting, folder) for _ in range(2))
    assert (first.fresh, second.fresh, counted.count) == (True, False, 1)
    assert first.svg == second.svg == b"<svg/>"
    for figure in drawn:
        np.testing.assert_array_equal(figure.arrays["values"], [1.0, np.nan, 2.0])


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_figure_without_its_arrays_is_computed_again(
    damage: Callable[[Path], object], folder: ReportFolder, drawn: list[StoredFigure]
) -> None:
    counted = Counted()
    outcome(work(counted.figure), Setting(), folder)
    damage(folder.path / "large_prompt" / "figures" / "made_up.npz")
    assert outcome(work(counted.figure), Setting(), folder).fresh
    assert len(drawn) == 2


def test_a_worker_that_was_killed_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    names = ["identity, L = 10", "taken", "left"]
    helper = _processes.Helper()
    helper.give([(name, time.sleep, (60.0,)) for name in names], lambda *_: None)
    while names[0] not in helper._begun:
        time.sleep(0.01)
    assert helper.take("taken")
    assert not helper.take("taken")
    assert not helper.take("identity, L = 10")
    (process,) = multiprocessing.active_children()
    process.kill()
    message = (
        "the process that was to compute 'identity, L = 10' was ended from outside. Memory may "
        "have run out; the same command goes on from what is stored."
    )
    with pytest.raises(WorkerLostError, match=f"^{re.escape(message)}$"):
        helper.result("identity, L = 10", "identity, L = 10")
    assert helper.result("left", "left") is None
    helper.give([("late", int, ("1",))], lambda *_: None)
    assert not helper.take("late")
    helper.close()
    assert broken == []


def test_a_task_that_raises_is_told_where_it_is_waited_for_and_none_follows() -> None:
    helper = _processes.Helper()
    told: list[object] = []
    helper.give(
        [("wrong", int, ("one",)), ("next", int, ("1",))], lambda name, _: told.append(name)
    )
    while "wrong" not in helper._begun:
        time.sleep(0.01)
    with pytest.raises(ValueError, match=re.escape("invalid literal for int()")):
        helper.result("wrong", "wrong")
    assert helper.result("next", "next") is None
    assert told == []
    helper.close()


@pytest.mark.parametrize(("wanted", "cores", "ahead"), [(True, 2, 1), (True, 1, 0), (False, 2, 0)])
def test_a_helper_may_start_ahead_and_ends_if_nobody_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, cores: int, ahead: int
) -> None:
    started: list[str] = []
    ended: list[str] = []

    def start() -> tuple[_processes.Line, Callable[[], None]]:
        ours, _ = multiprocessing.Pipe()
        name = f"{len(started)}"
        started.append(name)
        return ours, lambda: ended.append(name)

    monkeypatch.setattr(_processes, "usable_cores", lambda: cores)
    monkeypatch.setattr(_processes, "_started", start)
    with helper_ahead(wanted):
        assert len(started) == ahead
    assert ended == started
    with helper_ahead(wanted) as new_helper:
        helpers = [new_helper() for _ in range(2)]
        assert len(started) == ahead + 2
    assert len(ended) == ahead  # what was asked for belongs to whom asked
    for helper in helpers:
        helper.close()


SIGNALS_OF_THE_FIRST = """
import multiprocessing
from promptlimit.reproduction import _processes
helper = _processes.Helper()
(process,) = multiprocessing.active_children()
with open(f"/proc/{process.pid}/status") as lines:
    print(*(line for line in lines if line.startswith("SigBlk")))
helper.close()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="it is read from /proc")
def test_a_helper_hears_no_interrupt_from_its_first_moment() -> None:
    told = subprocess.check_output([sys.executable, "-c", SIGNALS_OF_THE_FIRST], text=True)
    assert int(told.split()[1], 16) >> (signal.SIGINT - 1) & 1


class Ends:
    """One end of what two threads speak through; what is said need not be written down."""

    def __init__(self, said: "queue.Queue[Any]", heard: "queue.Queue[Any]") -> None:
        self._said, self._heard = said, heard

    def send(self, obj: Any, /) -> None:
        self._said.put(obj)

    def recv(self) -> Any:
        return self._heard.get()


def thread_started() -> tuple[_processes.Line, Callable[[], None]]:
    """Start a thread that answers as another process does."""
    questions: queue.Queue[Any] = queue.Queue()
    answers: queue.Queue[Any] = queue.Queue()
    ours, theirs = Ends(questions, answers), Ends(answers, questions)
    threading.Thread(target=_processes.answer, args=(theirs,), daemon=True).start()
    return ours, lambda: None


def reproduced(
    items: Sequence[Claim | Figure], folder: ReportFolder, *, whole: bool = False
) -> list[StoredClaim | StoredFigure | None]:
    with progress("reproduce") as shown:
        results = reproduce([(PAPER, items)], Setting(), folder, shown, whole=whole)
    return [result.stored for result in results]


def test_items_come_back_in_the_order_they_were_asked_for(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_work, "usable_cores", lambda: 1)
    stored = reproduced([LATE, Counted().claim], folder)
    assert [item.name for item in stored if item] == ["late", "made-up"]


@pytest.mark.parametrize("cores", [1, 2])
def test_each_item_is_told_when_it_ends_wherever_it_is_computed(
    cores: int,
    folder: ReportFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    drawn: list[StoredFigure],
) -> None:
    counted, helpers = Counted(), []
    part = Part("identity, L = 10", lambda _: None, group="identity")
    monkeypatch.setattr(_work, "usable_cores", lambda: cores)
    monkeypatch.setattr(_processes, "_started", lambda: helpers.append(1) or thread_started())
    monkeypatch.setattr(Paper, "parts", lambda *_: (part,))
    form = re.compile(r"reproduce: (.+: .+), \d+\.\d s, (\d) left")
    stored = ""
    for count in (4, 3):
        reproduced([LATE, counted.claim, counted.figure], folder, whole=True)
        plan, *lines = capsys.readouterr().err.splitlines()
        first = "" if stored else "1 part and "
        words = f"{first}2 claims and 1 figure, exact protocol, into {folder.path}"
        assert plan == f"reproduce: {words}"
        ends = [match.groups() for line in lines if (match := form.fullmatch(line))]
        assert [int(left) for _, left in ends] == [*reversed(range(count))]
        assert sorted(end for end, _ in ends) == [
            *([] if stored else ["identity, L = 10: computed"]),
            f"late: does not hold, on record holds{stored}",
            f"made-up: holds{stored}",
            f"made_up: {'stored' if stored else 'drawn'}",
        ]
        stored = ", stored"
        assert len(helpers) == cores - 1  # none for what is stored
    assert len(drawn) == 2


def test_what_another_process_computed_is_told_before_it_is_waited_for(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()
    late = replace(LATE, decide=lambda _: [Check("x", told.wait(30) - 1.0, ">=", 0.0), CONTROL])
    monkeypatch.setattr(_work, "usable_cores", lambda: 2)
    monkeypatch.setattr(_processes, "_started", thread_started)
    with progress("reproduce") as shown:
        monkeypatch.setattr(shown, "_ended", lambda words: "made-up" in words and told.set())
        items = [(PAPER, [late, Counted().claim])]
        first, _ = reproduce(items, Setting(), folder, shown, whole=False)
    assert isinstance(first.stored, StoredClaim)
    assert first.stored.result.verdict == "holds"


def test_items_of_several_papers_are_told_apart(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Paper(PAPER.package, "another", "nobody")
    monkeypatch.setattr(Paper, "name", property(lambda paper: paper.title[:7].strip()))
    monkeypatch.setattr(_work, "usable_cores", lambda: 1)
    with progress("reproduce") as shown:
        items = [(PAPER, [Counted().claim]), (other, [Counted().claim])]
        results = reproduce(items, Setting(), folder, shown, whole=False)
    assert [result.stored.paper for result in results if result.stored] == ["Softmax", "another"]
    assert {path.name for path in folder.path.iterdir()} == {"Softmax", "another"}


def test_other_processes_get_theory_and_with_more_cores_each_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theory = [work(Counted().claim)]
    parts = [
        Part(f"{law}{end}", lambda _: None, group=None if end else law)
        for law in "xyz"
        for end in ("", ", training")
    ]
    study = [Work(PAPER, item, item.name) for item in (*parts, LATE)]
    for cores, queues in (
        (1, []),
        (2, [["made-up", "z"]]),
        (4, [["made-up"], ["x"], ["y"], ["z"]]),
    ):
        monkeypatch.setattr(_work, "usable_cores", lambda n=cores: n)
        elsewhere = _work._elsewhere(theory, study)
        assert [[task.label for task in queue] for queue in elsewhere] == queues
    assert _work._elsewhere([], study) == []


def test_what_is_left_of_a_study_is_offered_once_its_parts_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    early, *late = (replace(LATE, number=n, name=f"{n}", after_study=n > 1) for n in range(1, 5))
    parts = [Part(law, lambda _: None) for law in "xy"]
    order = [Work(PAPER, item, item.name) for item in (*parts, *late, early)]
    offered = [[work.label for work in _work._after_parts(order, n)] for n in range(len(order))]
    assert offered == [[], [], ["4", "3"], [], [], []]
    assert _work._after_parts(order[2:], 0) == []
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _work._after_parts(order, 2) == []


def test_a_helper_that_has_done_all_goes_on_with_what_it_is_given() -> None:
    ended: list[object] = []
    helper = _processes.Helper()
    helper.give([("first", int, ("1",))], lambda name, _: ended.append(name))
    for number in range(3):
        while len(ended) <= number:
            time.sleep(0.01)
        helper.give([(number, int, (f"{number}",))], lambda name, _: ended.append(name))
    while len(ended) <= 3:
        time.sleep(0.01)
    assert [helper.result(name, "") for name in ended] == [1, 0, 1, 2]
    helper.close()


def test_an_item_that_fails_is_named_and_stops_no_other(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Setting) -> list[Check]:
        raise KeyError("boom")

    monkeypatch.setattr(_work, "usable_cores", lambda: 1)
    bare = replace(LATE, number=15, name="bare", decide=lambda _: [Check("x", 0.0, "<=", 5.0)])
    claims = [replace(LATE, decide=broken), Counted().claim, bare]
    with progress("reproduce") as shown:
        results = reproduce([(PAPER, claims)], Setting(), folder, shown, whole=False)
    first, second, third = results
    assert (first.stored, first.words) == (None, "failed")
    assert first.problem.startswith("the claim late of large_prompt raised KeyError: 'boom' (File ")
    assert second.words == "holds"
    assert "the checks of bare must have a control among them" in third.problem


def test_a_claim_and_a_part_of_one_name_are_two_things(
    folder: ReportFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_work, "usable_cores", lambda: 1)
    monkeypatch.setattr(Paper, "parts", lambda *_: (Part("late", lambda _: None),))
    (stored,) = reproduced([LATE], folder, whole=True)
    assert isinstance(stored, StoredClaim)
