"""`promptlimit reproduce --quick`, run once as a user would, and all that it leaves behind."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from promptlimit.experiments import all_claims, all_figures
from promptlimit.reporting import FORMATS, draw, render
from promptlimit.results import numbers_in_archive, unmasked

pytestmark = pytest.mark.slow


class Reproduced(NamedTuple):
    """A finished command: its exit status, what it printed, and its folder."""

    code: int
    printed: dict
    log: list[str]
    out: Path


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    return reproduced(tmp_path_factory.mktemp("quick") / "report")


def reproduced(out: Path) -> Reproduced:
    command = [sys.executable, "-m", "promptlimit.cli", "reproduce", "--quick", "--json"]
    done = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return Reproduced(done.returncode, json.loads(done.stdout), done.stderr.splitlines(), out)


def test_every_verdict_is_the_one_on_record(quick: Reproduced) -> None:
    claims = quick.printed["claims"]
    assert [each["name"] for each in claims] == [claim.name for claim in all_claims()]
    news = [
        (each["name"], [check for check in each["checks"] if not check["passed"]])
        for each in claims
        if each["verdict"] != each["expected"]
    ]
    assert not news
    assert quick.code == 0


def test_every_claim_has_a_control(quick: Reproduced) -> None:
    for claim in quick.printed["claims"]:
        assert any(check["role"] == "control" for check in claim["checks"]), claim["name"]


@pytest.mark.parametrize("name", [recipe.name for recipe in all_figures()])
def test_a_figure_is_drawn_from_its_stored_arrays_to_the_same_bytes(
    quick: Reproduced, name: str
) -> None:
    stored = quick.out / "figures" / f"{name}.npz"
    data = unmasked(numbers_in_archive(stored, stored.read_bytes()))
    assert render(draw(name, data), "svg") == stored.with_suffix(".svg").read_bytes()
    for kind in FORMATS:
        assert stored.with_suffix(f".{kind}").stat().st_size > 5_000


def test_the_log_tells_each_item_as_it_ends(quick: Reproduced) -> None:
    ended = [line for line in quick.log if line.endswith(" left") and " s, " in line]
    for item in (*all_claims(), *all_figures()):
        assert sum(line.startswith(f"reproduce: {item.name}: ") for line in ended) == 1
    assert ended[-1].endswith(", 0 left")


def test_the_same_command_again_computes_nothing_and_writes_the_same_page(
    quick: Reproduced,
) -> None:
    page = (quick.out / "index.html").read_bytes()
    again = reproduced(quick.out)
    assert again.code == 0
    assert again.printed == quick.printed
    assert (quick.out / "index.html").read_bytes() == page
    ended = [line for line in again.log if line.endswith(" left") and " s, " in line]
    assert all("stored" in line for line in ended)
