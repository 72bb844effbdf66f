"""Streams that are killed, resumed, refused or already finished."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import promptlimit as pl
from parallel.processes import run, script
from promptlimit.errors import InputFileError, RunBusyError
from promptlimit.results import StreamedAttention
from promptlimit.storage import RunFolder
from promptlimit.streaming import Progress
from promptlimit.streaming._prompts import as_prompt
from promptlimit.streaming._sums import LEAF

LENGTH = 20 * 131072
KILLED = """
import os, signal, sys
from streaming.test_saved import drawn

def kill(progress):
    if progress.done >= 8 * 131072:  # so that earlier blocks are saved
        os.kill(os.getpid(), signal.SIGKILL)

drawn(sys.argv[1], kill)
"""


def drawn(
    folder: str | Path | None, watch: Callable[[Progress], None] | None = None
) -> StreamedAttention:
    """Stream a drawn prompt, saving as often as possible."""
    head = pl.SoftmaxAttention(np.eye(2), np.eye(2))
    prompt = pl.streaming.Generated(
        pl.Gaussian(np.zeros(2), np.eye(2)), LENGTH, key=jax.random.key(5)
    )
    how: dict[str, Any] = {"folder": folder, "every": 1e-6, "watch": watch, "chunk": 1}
    return pl.stream(head, prompt, [[0.5, 0.5]], [1000, 5 * 131072 + 17], **how)


@pytest.fixture(autouse=True)
def _on_a_cpu() -> Iterator[None]:
    """Stream where blocks are small, whatever device the tests run on."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def _same_bits(one: StreamedAttention, other: StreamedAttention) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_a_stream_killed_in_the_middle_goes_on_to_the_identical_bits(tmp_path: Path) -> None:
    ((code, _, err),) = run([script(KILLED, tmp_path)], folder=tmp_path)
    assert code == -9, err
    assert any(tmp_path.glob("*/checkpoint.npz"))
    assert not any(tmp_path.glob("*/done"))
    counts: list[list[int]] = [[], []]
    resumed = drawn(tmp_path, lambda progress: counts[0].append(progress.done))
    again = drawn(tmp_path, lambda progress: counts[1].append(progress.done))
    assert 0 < counts[0][0] < LENGTH
    assert counts[0][-1] == LENGTH
    assert counts[1] == [LENGTH]  # read from the folder, not streamed
    fresh = drawn(None)
    assert _same_bits(resumed, again)
    assert _same_bits(resumed, fresh)


class _KilledError(Exception):
    pass


def _cut_short(folder: Path, blocks: list[np.ndarray]) -> None:
    """Stream until a checkpoint is there, and stop like a killed process."""

    def stop(progress: Progress) -> None:
        if progress.done > 0:
            raise _KilledError

    with pytest.raises(_KilledError):
        _blocks(folder, blocks, stop)


def _blocks(folder: Path | None, blocks: list[np.ndarray], watch: object = None) -> object:
    head = pl.SoftmaxAttention(np.eye(2), np.eye(2))
    how: dict[str, Any] = {"folder": folder, "every": 1e-6, "watch": watch, "chunk": 1}
    return pl.stream(head, iter(blocks), [[0.1, 0.2]], [10], **how)


@pytest.fixture
def blocks() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((100_000, 2)) for _ in range(4)]


@pytest.fixture
def unfinished(tmp_path: Path, blocks: list[np.ndarray]) -> Iterator[Path]:
    _cut_short(tmp_path, blocks)
    (checkpoint,) = tmp_path.glob("*/checkpoint.npz")
    yield checkpoint
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_blocks_that_come_again_are_not_read_twice(
    unfinished: Path, blocks: list[np.ndarray]
) -> None:
    found = _blocks(unfinished.parents[1], blocks)
    fresh = _blocks(None, blocks)
    assert isinstance(found, StreamedAttention)
    assert isinstance(fresh, StreamedAttention)
    assert _same_bits(found, fresh)


def test_another_prompt_of_the_same_first_token_is_never_taken_for_the_first_one(
    unfinished: Path, blocks: list[np.ndarray]
) -> None:
    folder = unfinished.parents[1]
    others = [blocks[0][:1], blocks[1]]
    fresh = _blocks(None, others)
    _blocks(folder, blocks)
    for _ in range(2):  # next to a finished stream, then as a finished stream
        found = _blocks(folder, others)
        assert isinstance(found, StreamedAttention)
        assert isinstance(fresh, StreamedAttention)
        assert _same_bits(found, fresh)


def test_blocks_that_end_before_the_checkpoint_are_refused(
    unfinished: Path, blocks: list[np.ndarray]
) -> None:
    with pytest.raises(ValueError, match=r"to resume at token 131072, but it ended after 100000"):
        _blocks(unfinished.parents[1], blocks[:1])


def test_blocks_skipped_on_the_way_to_the_checkpoint_are_not_kept() -> None:
    with jax.enable_x64(True):
        prompt = as_prompt((np.ones((1000, 2)) for _ in range(100)), 1)
    assert prompt.available(90_000, 95_000) == 95_000
    (kept,) = (each for each in vars(prompt).values() if isinstance(each, list))
    assert sum(map(len, kept)) == 5000


def test_prompts_are_known_by_all_that_tells_them_apart() -> None:
    tokens = np.zeros((3 * LEAF, 2))
    other_first, other_last = tokens.copy(), tokens.copy()
    other_first[0, 0] = other_last[-1, 0] = 1.0
    with jax.enable_x64(True):
        law, wider = (pl.Gaussian(np.zeros(2), size * np.eye(2)) for size in (1.0, 1 + 1e-12))
        prompts = [
            *(tokens, tokens[:-1], other_first, other_last, tokens.astype(np.float32)),
            *(pl.streaming.Generated(law, 9, key=jax.random.key(i)) for i in range(2)),
            pl.streaming.Generated(law, 8, key=jax.random.key(0)),
            pl.streaming.Generated(wider, 9, key=jax.random.key(0)),
        ]
        known = [json.dumps(as_prompt(prompt, 1).description) for prompt in prompts]
        again = [json.dumps(as_prompt(prompt, 1).description) for prompt in prompts]
    assert len(set(known)) == len(prompts)
    assert known == again


@pytest.mark.parametrize("damage", ["text", "shape", "nan", "count"])
def test_a_damaged_checkpoint_is_refused_with_the_way_out(
    unfinished: Path, blocks: list[np.ndarray], damage: str
) -> None:
    with np.load(unfinished) as archive:
        arrays = dict(archive)
    arrays |= {
        "text": {},
        "shape": {"node.mass": np.ones((1, 5))},
        "nan": {"node.mass": np.full_like(arrays["node.mass"], np.nan)},
        "count": {"blocks": np.array(99)},
    }[damage]
    np.savez(unfinished, **arrays)
    if damage == "text":
        unfinished.write_text("no archive")
    with pytest.raises(
        InputFileError, match=r"must be as it was written.*Move it elsewhere to start again"
    ):
        _blocks(unfinished.parents[1], blocks)


def test_two_streams_do_not_share_a_folder(unfinished: Path, blocks: list[np.ndarray]) -> None:
    run = RunFolder.at(unfinished.parent)
    with run.lock(), pytest.raises(RunBusyError, match="by one process at a time"):
        _blocks(unfinished.parents[1], blocks)
