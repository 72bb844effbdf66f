"""Streams that are killed, resumed, refused, or done already."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import promptlimit as pl
from parallel.processes import run, run_and_kill, script
from promptlimit.results import InputFileError, RunBusyError, StreamedAttention, locked
from promptlimit.streaming import Progress
from promptlimit.streaming._prompts import as_prompt

LENGTH = 100 * 131072
STREAM = f"""
import json, sys, jax, numpy as np, promptlimit as pl
head = pl.SoftmaxAttention(np.eye(2), np.eye(2))
prompt = pl.Generated(pl.Gaussian(np.zeros(2), np.eye(2)), {LENGTH}, key=jax.random.key(5))
folder, seen = (*sys.argv[1:], None)[0], []
found = pl.stream(head, prompt, [[0.5, 0.5]], [1000, 5 * 131072 + 17], folder=folder, every=1e-3,
                  watch=seen.append)
numbers = [x.ravel().tolist() for x in vars(found).values() if isinstance(x, np.ndarray)]
json.dump({{"seen": [each.tokens for each in seen], "found": numbers}}, sys.stdout)
"""


@pytest.fixture(autouse=True)
def _on_a_cpu() -> Iterator[None]:
    """Stream where blocks are small, whatever device the tests run on."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


def _same_bits(one: StreamedAttention, other: StreamedAttention) -> bool:
    return one.lengths.tolist() == other.lengths.tolist() and all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("output", "log_sum_exp", "participation", "cov", "max_weight")
    )


@pytest.mark.slow
def test_a_stream_killed_in_the_middle_goes_on_to_the_identical_bits(tmp_path: Path) -> None:
    def saved() -> bool:
        return any(tmp_path.glob("*/checkpoint.npz"))

    ((code, _, err),), _ = run_and_kill([script(STREAM, tmp_path)], 0, saved, folder=tmp_path)
    assert code == -9, err
    assert not any(tmp_path.glob("*/done")), "it was over before it was killed"
    (resumed,) = run([script(STREAM, tmp_path)], folder=tmp_path)
    again, fresh = run([script(STREAM, tmp_path), script(STREAM)], folder=tmp_path)
    assert [each.code for each in (resumed, again, fresh)] == [0] * 3, resumed.err
    first, second, whole = (json.loads(each.out) for each in (resumed, again, fresh))
    assert 0 < first["seen"][0] < LENGTH
    assert first["found"] == second["found"] == whole["found"]
    assert second["seen"] == [LENGTH]  # read from the folder, not streamed


class _KilledError(Exception):
    pass


def _cut_short(folder: Path, blocks: list[np.ndarray]) -> None:
    """Stream until a checkpoint is there, and stop like a killed process."""

    def stop(progress: Progress) -> None:
        if progress.tokens > 0:
            raise _KilledError

    with pytest.raises(_KilledError):
        _blocks(folder, blocks, stop)


def _blocks(folder: Path | None, blocks: list[np.ndarray], watch: object = None) -> object:
    head = pl.SoftmaxAttention(np.eye(2), np.eye(2))
    how = {"folder": folder, "every": 1e-6, "watch": watch, "chunk": 1}
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
    for _ in range(2):  # beside a finished stream, and then as a finished one itself
        found = _blocks(folder, others)
        assert isinstance(found, StreamedAttention)
        assert isinstance(fresh, StreamedAttention)
        assert _same_bits(found, fresh)


def test_blocks_that_end_before_the_checkpoint_are_refused(
    unfinished: Path, blocks: list[np.ndarray]
) -> None:
    with pytest.raises(ValueError, match=r"to go on at token 131072, but it ended after 100000"):
        _blocks(unfinished.parents[1], blocks[:1])


def test_blocks_skipped_on_the_way_to_the_checkpoint_are_not_kept() -> None:
    with jax.enable_x64(True):
        prompt = as_prompt((np.ones((1000, 2)) for _ in range(100)), 1)
    assert prompt.reach(90_000, 95_000) == 95_000
    (kept,) = (each for each in vars(prompt).values() if isinstance(each, list))
    assert sum(map(len, kept)) == 5000


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
        InputFileError, match=r"must be as it was written.*Remove it to start again"
    ):
        _blocks(unfinished.parents[1], blocks)


def test_two_streams_do_not_share_a_folder(unfinished: Path, blocks: list[np.ndarray]) -> None:
    with locked(unfinished.parent), pytest.raises(RunBusyError, match="by one process at a time"):
        _blocks(unfinished.parents[1], blocks)
