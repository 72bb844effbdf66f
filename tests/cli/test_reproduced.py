"""Claims and figures on disk: made once, made again when damaged or when the setting changes."""

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

from promptlimit.cli import _reproduced, _workers
from promptlimit.cli._console import CommandError
from promptlimit.cli._drawing import figure_paths
from promptlimit.cli._progress import progress
from promptlimit.cli._reproduced import Item, claim_item, command, figure_item, write_provenance
from promptlimit.experiments import Claim, FigureRecipe, Setting
from promptlimit.results import Check, ClaimResult


class Counted:
    """A claim and a figure that count how often they are computed."""

    def __init__(self) -> None:
        self.count = 0
        self.claim = Claim(3, "made-up", "a statement", "nowhere", self._decide, "holds", "why")
        self.recipe = FigureRecipe("made_up", "title", "A caption.", self._compute, "paper", "Fig")

    def _decide(self, setting: Setting) -> list[Check]:
        self.count += 1
        return [Check("a number", float(setting.seed), "<=", 5.0, error=0.5)]

    def _compute(self, setting: Setting) -> dict[str, np.ndarray]:
        self.count += 1
        return {"values": np.array([1.0, np.nan, float(setting.seed)])}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """What figures are drawn from; nothing is drawn."""
    found: list[dict[str, np.ndarray]] = []
    monkeypatch.setattr(
        _reproduced, "write_figure", lambda name, data, out: [found.append(data)][:0]
    )
    return found


def test_a_claim_is_decided_once_and_again_for_another_seed(tmp_path: Path) -> None:
    made = Counted()
    first, second = (claim_item(made.claim, Setting(), tmp_path) for _ in range(2))
    assert (first.fresh, second.fresh, made.count) == (True, False, 1)
    assert first.result == second.result
    assert claim_item(made.claim, Setting(seed=1), tmp_path).fresh
    assert claim_item(made.claim, Setting(seed=1, quick=True), tmp_path).fresh
    assert claim_item(made.claim, Setting(seed=1, protocol="full"), tmp_path).fresh
    stored = json.loads((tmp_path / "claims" / "made-up.json").read_text())
    assert stored["setting"] == {"seed": 1, "quick": False, "protocol": "full"}
    assert stored["command"] == "promptlimit reproduce made-up --protocol full --seed 1"
    assert set(stored) >= {"seconds", "hash", "verdict", "checks", "evidence"}


def tampered(key: str, value: object) -> Callable[[str], str]:
    def change(text: str) -> str:
        content = json.loads(text)
        content[key] = value
        return json.dumps(content)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        tampered("verdict", "does not hold"),
        tampered("checks", [{"name": "a number"}]),
        tampered("checks", 3),
        tampered("number", "3"),
        tampered("expected", "yes"),
    ],
)
def test_a_damaged_claim_is_decided_again(damage: Callable[[str], str], tmp_path: Path) -> None:
    made = Counted()
    claim_item(made.claim, Setting(), tmp_path)
    path = tmp_path / "claims" / "made-up.json"
    path.write_text(damage(path.read_text()))
    again = claim_item(made.claim, Setting(), tmp_path)
    assert again.fresh
    assert again.result is not None
    assert again.result.verdict == "holds"
    assert not claim_item(made.claim, Setting(), tmp_path).fresh


def test_a_figure_is_computed_once_and_drawn_from_what_is_stored(
    tmp_path: Path, drawn: list[dict[str, np.ndarray]]
) -> None:
    made = Counted()
    assert figure_item(made.recipe, Setting(seed=2), tmp_path).fresh
    assert not figure_item(made.recipe, Setting(seed=2), tmp_path).fresh
    assert made.count == 1
    for data in drawn:
        np.testing.assert_array_equal(data["values"], [1.0, np.nan, 2.0])
    about = json.loads((tmp_path / "figures" / "made_up.json").read_text())
    assert about["section"] == "paper"
    assert {"name", "title", "caption", "reference", "hash", "command", "seconds"} <= set(about)


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_figure_without_its_arrays_is_computed_again(
    damage: Callable[[Path], object], tmp_path: Path, drawn: list[dict[str, np.ndarray]]
) -> None:
    made = Counted()
    figure_item(made.recipe, Setting(), tmp_path)
    damage(tmp_path / "figures" / "made_up.npz")
    assert figure_item(made.recipe, Setting(), tmp_path).fresh
    assert len(drawn) == 2


def test_provenance_stays_when_nothing_is_new(tmp_path: Path) -> None:
    made = Counted()
    item = claim_item(made.claim, Setting(), tmp_path)
    path = write_provenance(tmp_path, Setting(), [item], 0.0, whole=True)
    before = path.read_bytes()
    write_provenance(tmp_path, Setting(), [item._replace(fresh=False)], 0.0, whole=True)
    assert path.read_bytes() == before
    assert set(json.loads(before)) == {
        "versions", "device", "setting", "started", "seconds", "hash", "computed",
    }  # fmt: skip


def test_a_part_made_later_leaves_the_provenance_of_the_whole(tmp_path: Path) -> None:
    part = Item("abc", True, [tmp_path / "made-up.json"], None)
    path = write_provenance(tmp_path, Setting(), [part, part], 0.0, whole=True)
    whole = json.loads(path.read_text())
    write_provenance(tmp_path, Setting(), [part._replace(fresh=False)], 0.0, whole=False)
    assert json.loads(path.read_text()) == whole
    write_provenance(tmp_path, Setting(seed=1), [part], 0.0, whole=False)
    later = json.loads(path.read_text())
    assert {key: later[key] for key in whole} == whole
    assert set(later["later"]) == {"made-up"}


def test_a_damaged_provenance_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text('{"later": 3}')
    part = Item("abc", False, [tmp_path / "made-up.json"], None)
    path = write_provenance(tmp_path, Setting(), [part], 0.0, whole=False)
    assert json.loads(path.read_text())["computed"].startswith("0 of 1")


def test_a_worker_that_was_killed_is_named_with_the_way_out() -> None:
    future: Future = Future()
    future.set_exception(BrokenProcessPool())
    with pytest.raises(CommandError, match="'identity, L = 10' was ended") as caught:
        _workers._awaited(_workers._Work("part", "identity", 10), future)
    assert "same command" in caught.value.hint


def test_items_come_back_in_the_order_they_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Counted()
    late = Claim(14, "late", "of training", "nowhere", lambda _: [Check("x", 9.0, "<=", 5.0)])
    monkeypatch.setattr("promptlimit.parallel.usable_cores", lambda: 1)
    monkeypatch.setattr("promptlimit.experiments.all_claims", lambda: (late, made.claim))
    with progress("reproduce") as shown:
        items = _workers.made([late, made.claim], Setting(), tmp_path, shown, whole=False)
    results = [item.result for item in items]
    assert [each.name for each in results if isinstance(each, ClaimResult)] == ["late", "made-up"]


@pytest.mark.parametrize("cores", [1, 2])
def test_each_item_is_told_when_it_ends_wherever_it_is_made(
    cores: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    drawn: list[dict[str, np.ndarray]],
) -> None:
    made = Counted()
    late = Claim(14, "late", "of training", "nowhere", lambda _: [Check("x", 9.0, "<=", 5.0)])
    monkeypatch.setattr(_workers.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(_workers, "_pool", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr("promptlimit.experiments.all_claims", lambda: (late, made.claim))
    monkeypatch.setattr("promptlimit.experiments.all_figures", lambda: (made.recipe,))
    monkeypatch.setattr("promptlimit.experiments.study_parts", lambda _: [("identity", 10)])
    monkeypatch.setattr("promptlimit.experiments.prepare", lambda *_: None)
    form = re.compile(r"reproduce: (.+: .+), \d+\.\d s, (\d) left")
    wanted, stored = [late, made.claim, made.recipe], ""
    for count in (4, 3):
        with progress("reproduce") as shown:
            _workers.made(wanted, Setting(), tmp_path, shown, whole=True)
        plan, *lines = capsys.readouterr().err.splitlines()
        part = "" if stored else " and 1 part of the training study"
        assert plan == f"reproduce: 2 claims and 1 figure{part}, exact protocol, into {tmp_path}"
        ends = [found.groups() for line in lines if (found := form.fullmatch(line))]
        assert [int(left) for _, left in ends] == [*reversed(range(count))]
        assert sorted(end for end, _ in ends) == [
            *([] if stored else ["identity, L = 10: computed"]),
            f"late: does not hold, on record holds{stored}",
            f"made-up: holds{stored}",
            f"made_up: {'stored' if stored else 'drawn'}",
        ]
        stored = ", stored"


def test_what_another_process_made_is_told_before_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, told = Counted(), threading.Event()
    late = Claim(
        14, "late", "of training", "nowhere", lambda _: [Check("x", told.wait(30) - 1.0, ">=", 0.0)]
    )
    monkeypatch.setattr(_workers.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(_workers, "_pool", lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr("promptlimit.experiments.all_claims", lambda: (late, made.claim))
    with progress("reproduce") as shown:
        monkeypatch.setattr(shown, "_ended", lambda words: "made-up" in words and told.set())
        late_item, _ = _workers.made([late, made.claim], Setting(), tmp_path, shown, whole=False)
    assert late_item.result is not None
    assert late_item.result.verdict == "holds"


def test_the_command_names_what_differs_from_the_usual() -> None:
    assert command("x", Setting(seed=4, quick=True)) == "promptlimit reproduce x --quick --seed 4"


def test_other_processes_get_theory_and_with_more_cores_each_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theory = [_workers._Work("claim", "a")]
    training = [_workers._Work("part", law, n) for law in "xyz" for n in (10, 0)]
    training.append(_workers._Work("figure", "b"))
    for cores, queues in (
        (1, []),
        (2, [["a", "z, L = 10"]]),
        (4, [["a"], ["x, L = 10"], ["y, L = 10"], ["z, L = 10"]]),
    ):
        monkeypatch.setattr("promptlimit.parallel.usable_cores", lambda n=cores: n)
        found = _workers._elsewhere(theory, training)
        assert [[work.label for work in queue] for queue in found] == queues
    assert _workers._elsewhere([], training) == []


def test_a_figure_is_drawn_again_by_other_code_or_where_a_file_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, drawn = Counted(), []

    def write(name: str, data: dict[str, np.ndarray], stem: Path) -> None:
        drawn.append(name)
        for path in figure_paths(stem):
            path.write_bytes(b"a picture")

    monkeypatch.setattr(_reproduced, "write_figure", write)
    for _ in range(2):
        figure_item(made.recipe, Setting(), tmp_path)
    assert len(drawn) == 1
    (tmp_path / "figures" / "made_up.svg").unlink()
    figure_item(made.recipe, Setting(), tmp_path)
    assert len(drawn) == 2
    monkeypatch.setattr("promptlimit.experiments.drawing_hash", lambda: "another")
    figure_item(made.recipe, Setting(), tmp_path)
    assert len(drawn) == 3
    assert made.count == 1


def test_the_same_items_in_another_order_are_the_same_reproduction(tmp_path: Path) -> None:
    items = [Item(name, True, [tmp_path / f"{name}.json"], None) for name in ("ab", "cd")]
    path = write_provenance(tmp_path, Setting(), items, 0.0, whole=True)
    before = path.read_bytes()
    stored = [item._replace(fresh=False) for item in reversed(items)]
    write_provenance(tmp_path, Setting(), stored, 0.0, whole=True)
    assert path.read_bytes() == before
