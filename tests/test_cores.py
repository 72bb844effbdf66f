"""Cores of this process, on systems and Pythons with different interfaces."""

import os

import pytest

from promptlimit._cores import usable_cores

TOLD = {
    "process_cpu_count": lambda: 3,
    "sched_getaffinity": lambda _: {0, 4},
    "cpu_count": lambda: 64,
}


@pytest.mark.parametrize(
    ("known", "cores"),
    [
        (("process_cpu_count", "sched_getaffinity", "cpu_count"), 3),
        (("process_cpu_count", "cpu_count"), 3),
        (("sched_getaffinity", "cpu_count"), 2),
        (("cpu_count",), 64),
    ],
)
def test_the_closest_answer_that_the_system_has_is_taken(
    monkeypatch: pytest.MonkeyPatch, known: tuple[str, ...], cores: int
) -> None:
    for name, answer in TOLD.items():
        monkeypatch.delattr(os, name, raising=False)
        if name in known:
            monkeypatch.setattr(os, name, answer, raising=False)
    assert usable_cores() == cores


@pytest.mark.parametrize("name", ["process_cpu_count", "cpu_count"])
def test_there_is_one_core_where_nobody_knows(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for each in TOLD:
        monkeypatch.delattr(os, each, raising=False)
    monkeypatch.setattr(os, name, lambda: None, raising=False)
    assert usable_cores() == 1
