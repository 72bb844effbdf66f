"""`promptlimit reproduce --seeds` tells at which seeds a verdict is not the expected one."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

COINS = '''
from promptlimit.studies import Study, at_least, at_most, control_at_least, control_at_most

STUDY = Study(title="On coins", citation="Author, 2026")
CONTROL = control_at_least("a loaded coin", 0.9, 0.6)

@STUDY.claim(1, reference="Theorem 1")
def fair(setting):
    """A coin is fair."""
    return [at_most("heads", float(setting.seed == 1), 0.5), CONTROL]

@STUDY.claim(2, reference="Theorem 2")
def thrown(setting):
    """A coin can be thrown."""
    if setting.seed == 1:
        raise ArithmeticError("the coin is lost")
    return [at_most("heads", 0.0, 0.5), CONTROL]

@STUDY.claim(3, reference="Theorem 3", quick=False)
def slow(setting):
    """A coin wears out."""
    raise AssertionError(f"quick mode must not call this, {CONTROL}")
'''


@pytest.fixture(scope="module")
def coins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("studies") / "coins.py"
    file.write_text(COINS)
    return file


def reproduce(coins: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "promptlimit", "reproduce", str(coins), "--quick"]
    out = coins.parent / "report"
    return subprocess.run(
        [*command, "--out", str(out), *options], capture_output=True, text=True, check=False
    )


def test_verdicts_that_depend_on_the_seed_are_listed_and_the_status_says_so(coins: Path) -> None:
    done = reproduce(coins, "--seeds", "0:2", "--json")
    assert done.returncode == 1, done.stderr
    fair, thrown, slow = json.loads(done.stdout)["claims"]
    assert fair["verdicts"] == {"0": "holds", "1": "does not hold"}
    assert fair["differing"] == {"1": "does not hold (heads: 1, must be <= 0.5)"}
    assert thrown["verdicts"] == {"0": "holds", "1": "failed"}
    assert "the coin is lost" in thrown["differing"]["1"]
    assert set(slow["verdicts"].values()) == {"not decided in quick mode"}
    assert not slow["differing"]
    assert (coins.parent / "report" / "seeds" / "1" / "coins" / "claims" / "fair.json").exists()
    again = reproduce(coins, "fair", "slow", "--seeds", "0:1")
    assert again.returncode == 0, again.stderr
    assert (
        "1 of 1 claims have the expected verdict at all 1 seeds; 1 claims not decided"
        in again.stdout
    )


@pytest.mark.parametrize("text", ["5", "3:3", "-1:2", "a:b"])
def test_seeds_that_are_no_range_are_refused(
    here: Callable[..., subprocess.CompletedProcess[str]], coins: Path, text: str
) -> None:
    done = here("reproduce", str(coins), "--quick", f"--seeds={text}")
    assert done.returncode == 2
    assert "--seeds must be FIRST:END" in done.stderr
