"""Streams in several processes, with the bits of one; `parallel/test_devices.py` has devices."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import promptlimit as pl
from parallel.processes import (
    LOST,
    free_port,
    run,
    script,
    streamed_numbers,
)
from promptlimit.results import StreamedAttention
from promptlimit.streaming import Progress, _stream
from promptlimit.streaming._request import checked_request

LENGTH = 20 * 131072

TWO = """
import json, os, signal, sys
address, number = sys.argv[1], int(sys.argv[2])
from parallel.processes import streamed_numbers
from promptlimit.parallel import join, use_devices
from streaming.test_scale import drawn, held

join(address, 2, number)

def kill(progress):
    if number == 1 and progress.done >= 8 * 131072:
        os.kill(os.getpid(), signal.SIGKILL)

with use_devices():
    print(json.dumps(streamed_numbers(held())), flush=True)
    drawn("runs", kill)
"""


def held() -> StreamedAttention:
    """Stream the tokens of a file."""
    return pl.stream(_head(), "tokens.npy", [[0.5, 0.5]], [10, 300_000])


def drawn(
    folder: str | None = None, watch: Callable[[Progress], None] | None = None
) -> StreamedAttention:
    """Stream a drawn prompt, saving as often as possible."""
    how: dict[str, Any] = {"folder": folder, "every": 1e-6, "watch": watch, "chunk": 1}
    return pl.stream(_head(), _prompt(0), [[0.5, 0.5]], [1000, 5 * 131072 + 17], **how)


def _prompt(seed: int) -> pl.streaming.Generated:
    law = pl.Gaussian(np.zeros(2), np.eye(2))
    return pl.streaming.Generated(law, LENGTH, key=jax.random.key(seed))


def _head() -> pl.SoftmaxAttention:
    return pl.SoftmaxAttention(np.eye(2), np.eye(2))


@pytest.fixture
def _on_a_cpu() -> Iterator[None]:
    """Stream as the processes do, whatever device the tests run on."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.usefixtures("_on_a_cpu")
def test_two_processes_share_a_file_and_one_alone_ends_what_both_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("tokens.npy", np.random.default_rng(0).standard_normal((600_000, 2)))
    address = f"127.0.0.1:{free_port()}"
    commands = [script(TWO, address, number) for number in range(2)]
    survivor, killed = run(commands, folder=tmp_path)
    assert (survivor.code, killed.code) == (1, -9), survivor.err
    first, second = (json.loads(each.out.splitlines()[-1]) for each in (survivor, killed))
    assert first == second == streamed_numbers(held())
    assert re.search(LOST, survivor.err), survivor.err
    assert any(tmp_path.glob("runs/*/checkpoint.npz"))
    assert not any(tmp_path.glob("runs/*/done"))
    seen: list[Progress] = []
    resumed = drawn("runs", seen.append)
    assert 0 < seen[0].done < LENGTH
    assert streamed_numbers(resumed) == streamed_numbers(drawn())


def test_a_process_with_another_prompt_than_the_first_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[np.ndarray] = []

    def of_the_first(own: np.ndarray) -> np.ndarray:
        told.append(own)
        return told[0]

    monkeypatch.setattr(_stream, "agreed", of_the_first)
    monkeypatch.setattr(
        _stream, "active_devices", lambda: SimpleNamespace(hosts=3, process=len(told) - 1)
    )
    how = {"covariance": True, "linear": False, "chunk": 1}
    with jax.enable_x64(True):
        for query in ([1.0, 0.0], [1.0, 1e-16]):  # hosts may differ in a last bit
            _stream._require_same_in_all_processes(
                checked_request(_head(), _prompt(0), [query], [7], **how)
            )
        with pytest.raises(ValueError, match="`prompt`") as refusal:
            _stream._require_same_in_all_processes(
                checked_request(_head(), _prompt(1), [[1.0, 0.0]], [7], **how)
            )
    assert str(refusal.value) == (
        "`prompt` and all options must be the same in every process, but those of process 2 differ "
        "from those of process 0."
    )
