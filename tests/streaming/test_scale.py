"""Streams on several devices and in several processes, with the bits of one."""

import json
import re
from pathlib import Path

import pytest

from parallel.processes import LOST, Ended, command, run, run_and_kill, script, several

DEVICES = """
import hashlib, json, sys, jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np, promptlimit as pl

head = pl.SoftmaxAttention(np.eye(2), np.eye(2))
law = pl.Gaussian(np.ones(2), np.eye(2))
tokens = np.random.default_rng(0).standard_normal((1_500_000, 2)).astype(np.float32)
prompts = {
    "drawn": lambda: pl.Generated(law, 1_500_000, key=jax.random.key(0)),
    "held": lambda: tokens,
    "arriving": lambda: iter(np.array_split(tokens, 7)),
}
found = {}
for devices in (1, 2, 4, 8):
    with pl.spread(devices):
        for name, prompt in prompts.items():
            for chunk in (1, 3) if devices in (1, 4) and name == "drawn" else (1,):
                got = pl.stream(head, prompt(), [[0.3, 0.4]], [10, 400_000, 786_432], chunk=chunk)
                numbers = np.concatenate([np.ravel(x) for x in vars(got).values()
                                          if isinstance(x, np.ndarray)])
                digest = hashlib.sha256(numbers.tobytes()).hexdigest()
                found.setdefault(name, {})[f"{devices} {chunk}"] = digest
json.dump(found, sys.stdout)
"""
LONG = ("stream", "--dim", 1, "--length", 60_000_000, "--queries", 1, "--every", 0.05, "--json")


@pytest.mark.slow
def test_devices_and_chunks_change_no_bit_of_a_stream(tmp_path: Path) -> None:
    ((code, out, err),) = run([script(DEVICES)], folder=tmp_path)
    assert code == 0, err
    found = json.loads(out)
    assert {name: len(set(digests.values())) for name, digests in found.items()} == {
        "drawn": 1,
        "held": 1,
        "arriving": 1,
    }
    assert found["held"]["1 1"] == found["arriving"]["1 1"]
    assert len(found["drawn"]) == 6


@pytest.mark.slow
def test_one_of_two_processes_is_killed_and_the_same_command_ends_as_one_process_does(
    tmp_path: Path,
) -> None:
    def begun() -> bool:
        return any(tmp_path.glob("out/runs/*/checkpoint.npz"))

    ended, _ = run_and_kill(several(2, *LONG, "--out", "out"), 1, begun, folder=tmp_path)
    survivor, killed = ended
    assert killed.code == -9
    assert not any(tmp_path.glob("out/runs/*/done")), "it was over before it was killed"
    assert survivor.code == 1
    assert re.search(LOST, " ".join(survivor.err.split())), survivor.err
    first, second = run(several(2, *LONG, "--out", "out"), folder=tmp_path)
    assert first.code == 0, first.err
    assert second == Ended(0, "", "")
    (alone,) = run([command(*LONG)], folder=tmp_path)
    assert alone.code == 0, alone.err
    assert json.loads(first.out) == json.loads(alone.out)


@pytest.mark.slow
def test_four_processes_share_a_file_of_tokens(tmp_path: Path) -> None:
    make = "import numpy as np; np.save('tokens.npy', np.random.default_rng(0).random((600000, 1)))"
    assert run([script(make)], folder=tmp_path)[0].code == 0
    read = ("stream", "--dim", 1, "--tokens", "tokens.npy", "--queries", 2, "--json")
    first, *others = run(several(4, *read), folder=tmp_path)
    (alone,) = run([command(*read)], folder=tmp_path)
    assert alone.code == 0, alone.err
    assert first == alone
    assert others == [Ended(0, "", "")] * 3


@pytest.mark.slow
def test_processes_that_draw_different_prompts_are_refused(tmp_path: Path) -> None:
    one, other = several(2, "stream", "--dim", 1, "--length", 1000, "--queries", 1)
    first, second = run([one, [*other, "--seed", "1"]], folder=tmp_path)
    assert (first.code, first.out) == (1, "")
    assert (second.code, second.out) == (1, "")
    assert "must be the same in all processes, but process 1 has others" in " ".join(
        second.err.split()
    )
