"""What long commands say while they work, with a clock that only the test moves."""

import io
import re
import sys

import pytest
from rich.console import Console

from promptlimit.cli import _progress
from promptlimit.cli._console import ERR
from promptlimit.cli._progress import progress


class Clock:
    """Seconds since the start of a test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(_progress, "_clock", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    drawn = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        _progress, "ERR", Console(force_terminal=True, file=drawn, width=120, color_system=None)
    )
    return drawn


Captured = pytest.CaptureFixture[str]


def test_a_log_gets_the_plan_and_a_line_for_each_item(clock: Clock, capsys: Captured) -> None:
    with progress("bake") as shown:
        shown.plan("2 loaves", {"rye": 1.0, "oat": 1.0})
        shown.at("rye")
        clock.now = 4.0
        shown.end("rye", outcome="brown")
        clock.now = 5.5
        shown.end("oat", outcome="pale")
    assert capsys.readouterr() == (
        "",
        "bake: 2 loaves\nbake: rye: brown, 4.0 s, 1 left\nbake: oat: pale, 1.5 s, 0 left\n",
    )


def test_a_plan_that_is_refused_before_anything_begins_is_not_told(
    clock: Clock, capsys: Captured
) -> None:
    def bake() -> None:
        with progress("bake") as shown:
            shown.plan("a loaf", {"rye": 1.0})
            raise ValueError("no flour")

    with pytest.raises(ValueError, match="no flour"):
        bake()
    assert capsys.readouterr().err == ""


def test_a_silent_log_says_how_far_things_are_less_and_less_often(
    clock: Clock, capsys: Captured
) -> None:
    said: dict[str, list[float]] = {"before": [], "rye": [], "oat": []}

    def wait(shown: _progress._Lines, until: float, when: str) -> None:
        while clock.now < until:
            clock.now += 1.0
            shown.beat()
            said[when] += [clock.now] * capsys.readouterr().err.count("\n")

    with progress("bake") as shown:
        assert isinstance(shown, _progress._Lines)
        wait(shown, 20.0, "before")
        shown.plan("2 loaves", {"rye": 1.0, "oat": 1.0})
        shown.at("rye")
        capsys.readouterr()
        wait(shown, 300.0, "rye")
        shown.end("rye", outcome="brown")
        capsys.readouterr()
        wait(shown, 340.0, "oat")
    assert said == {"before": [5, 15], "rye": [30, 50, 90, 150, 210, 270], "oat": [310, 330]}


def test_a_plan_is_told_in_time_even_if_nothing_begins(clock: Clock, capsys: Captured) -> None:
    with progress("bake") as shown:
        assert isinstance(shown, _progress._Lines)
        shown.plan("a loaf", {"rye": 1.0})
        clock.now = 5.0
        shown.beat()
        assert capsys.readouterr().err == "bake: a loaf\n"
        clock.now = 15.0
        shown.beat()
        assert capsys.readouterr().err == "bake: starting, 15 s so far, 1 left\n"


def test_the_time_left_comes_from_what_this_command_has_done(
    clock: Clock, capsys: Captured
) -> None:
    with progress("bake") as shown:
        assert isinstance(shown, _progress._Lines)
        shown.plan("3 loaves", {"old": 8.0, "rye": 4.0, "oat": 4.0})
        shown.end("old", outcome="stored", stored=True)
        shown.at("rye: resumed", {"rye": 0.5})
        clock.now = 90.0  # lighting the oven, which happens once
        shown.at("rye: warm", {"rye": 0.625})
        clock.now = 110.0
        shown.at("rye: browner", {"rye": 0.875})  # one of the 5.5 that are left, in 20 s
        shown.beat()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "bake: rye: browner, 110 s so far, about 90 s more, 2 left"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(119.4, "119 s"), (120.0, "2 min"), (7199.0, "120 min"), (9000.0, "2.5 h")],
)
def test_durations_are_in_the_unit_one_would_use(seconds: float, words: str) -> None:
    assert _progress.duration(seconds) == words


def test_a_line_is_one_line_of_ascii_whatever_the_names(clock: Clock, capsys: Captured) -> None:
    with progress("bake") as shown:
        name = f"café\n\x1b[31m {'long ' * 40}:smile: [red]"
        shown.plan("a loaf", {name: 1.0})
        shown.end(name, outcome="brown")
    (line,) = capsys.readouterr().err.splitlines()[1:]
    assert line.isascii()
    assert line.isprintable()
    assert re.fullmatch(r"bake: caf\\xe9\\n\\x1b\[31m (long ){40}:smile: \[red\]: brown, .*", line)


def test_items_that_end_together_are_one_line(clock: Clock, capsys: Captured) -> None:
    with progress("bake") as shown:
        shown.plan("2 loaves", {"rye": 1.0, "oat": 1.0})
        shown.end("rye", "oat", outcome="brown")
    assert capsys.readouterr().err.endswith("bake: rye, oat: brown, 0.0 s, 0 left\n")


def test_an_item_ends_once_and_not_after_the_work_is_over(clock: Clock, capsys: Captured) -> None:
    with progress("bake") as shown:
        shown.plan("2 loaves", {"rye": 1.0, "oat": 1.0})
        shown.end("rye", outcome="brown", seconds=7.0)
        shown.end("rye", outcome="black", seconds=9.0)
    shown.end("oat", outcome="brown")
    shown.at("oat")
    assert capsys.readouterr().err == "bake: 2 loaves\nbake: rye: brown, 7.0 s, 1 left\n"


def test_a_process_that_is_to_be_silent_is(
    clock: Clock, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ERR, "quiet", True)
    with progress("bake") as shown:
        shown.plan("a loaf", {"rye": 1.0})
        shown.end("rye", outcome="brown")
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_written_stops_no_work(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stderr", Full())
    with progress("bake") as shown:
        shown.plan("a loaf", {"rye": 1.0})
        shown.end("rye", outcome="brown")


def test_a_terminal_gets_a_bar_with_items_and_the_time_left(
    clock: Clock, terminal: io.StringIO
) -> None:
    with progress("bake") as shown:
        assert isinstance(shown, _progress._Bar)
        shown.at("lighting the oven")
        shown.plan("3 loaves", {"rye": 1.0, "oat": 1.0, "nut": 2.0})
        shown.at("rye")
        shown._bar.refresh()
        unknown = terminal.getvalue()
        clock.now = 30.0
        shown.end("rye", outcome="brown")
        shown.at("oat", {"oat": 0.0})
        shown._bar.refresh()
        clock.now = 40.0
        shown.at("oat, rising", {"oat": 0.25})
        clock.now = 45.0
        shown.at("oat, halfway", {"oat": 0.5})
        shown._bar.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    lines = [line.strip() for line in re.split(r"[\r\n]+", plain)]
    assert lines.count("bake: 3 loaves") == 1
    assert "0/3" in unknown
    assert "more" not in unknown
    assert "-:--:--" not in terminal.getvalue()
    assert any(re.search(r"1/3 0:00:00 about 90 s more bake: oat$", x) for x in lines)
    assert any(re.search(r"1/3 0:00:00 about 50 s more bake: oat, halfway$", x) for x in lines)


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    clock: Clock, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with progress("bake") as shown:
        assert isinstance(shown, _progress._Lines)
