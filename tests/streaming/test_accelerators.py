"""The programs for accelerators, run on any device, against plain NumPy and those for a CPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit._normals import box_muller, threefry
from promptlimit.streaming import _blocks, _request
from promptlimit.streaming._blocks import Task, block_sums, is_bounded, leaves_together
from promptlimit.streaming._leaves import LEAF, leaf_sums, sums_of_leaves
from promptlimit.streaming._sources import GivenTokens, Part, StandardNormals, TokenSource
from promptlimit.streaming._sums import Sums
from streaming.plain_sums import plain_attention, plain_sums


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize(
    ("dim", "dtype", "tolerance"),
    [(4, np.float32, 3e-6), (3, np.float64, 1e-13), (20, np.float32, 3e-6)],
)
def test_leaves_are_summed_as_plain_numpy_does(
    dim: int, dtype: type, tolerance: float, second: bool
) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((2, dim, LEAF)).astype(dtype)
    tilts = (0.5 * rng.standard_normal((3, dim))).astype(dtype)
    counts = np.array([LEAF, 1000], np.int32)
    level = np.array([[2.0, 0.0, 5.0], [1.0, 3.0, 2.0]], dtype)
    with jax.enable_x64(True):
        found = jax.jit(partial(sums_of_leaves, second=second))(tokens, tilts, level, counts)
    for leaf in range(2):
        plain = plain_sums(tokens[leaf].T[: counts[leaf]], tilts)
        for name, sums, value in zip(plain._fields, found, plain, strict=True):
            expected = value if second or name != "second" else np.zeros((3, 0))
            size = np.abs(expected).max(initial=1e-30)
            np.testing.assert_allclose(sums[leaf], expected, atol=tolerance * size, err_msg=name)


def test_a_leaf_without_tokens_has_no_sums() -> None:
    with jax.enable_x64(True):
        none = jnp.zeros(1, jnp.int32)
        tokens, tilts = jnp.ones((1, 2, LEAF), jnp.float32), jnp.ones((1, 2), jnp.float32)
        level = jnp.zeros((1, 1), jnp.float32)
        found = jax.jit(partial(sums_of_leaves, second=True))(tokens, tilts, level, none)
        plain = jax.jit(partial(leaf_sums, second=True))(tokens[0].T, tilts, none[0])
    for sums in (found, plain):
        top, *rest = map(np.asarray, sums)
        assert (top == -np.inf).all()
        assert all((x == 0.0).all() for x in rest)


@pytest.mark.parametrize("dim", [3, 4])
def test_leaves_drawn_together_have_the_tokens_of_those_drawn_alone(dim: int) -> None:
    key = jnp.uint32(7), jnp.uint32(9)
    source = StandardNormals(key, dim)
    part = Part(jnp.uint32(5), jnp.int32(LEAF), None)
    drawn = jax.jit(lambda first: source.columns(part, first, 2))(jnp.int32(0))
    alone = jax.jit(lambda first: source.tokens(part, first, 1))
    for leaf in range(2):
        plain = alone(jnp.int32(leaf))[0].T
        np.testing.assert_allclose(drawn[leaf], plain, atol=2e-6)
    index = jnp.arange(LEAF, dtype=jnp.uint32) + np.uint32(LEAF)  # the second pair of leaf 6
    first, _ = box_muller(*threefry(key, (jnp.full(index.shape, 6, jnp.uint32), index)))
    np.testing.assert_allclose(drawn[1, 2], first, atol=2e-6)
    assert float(jnp.linalg.norm(drawn, axis=1).max()) <= source.largest_norm


def _task(source: TokenSource, tilts: jax.Array, leaves: int, platform: str, **how: bool) -> Task:
    bounded = is_bounded(source, np.asarray(tilts))
    return Task(source, tilts, leaves, 1, how.get("second", True), bounded, platform)


@pytest.mark.parametrize(
    ("dim", "second", "tilts", "leaves"),
    [
        (8, True, 16, 1024),
        (8, False, 16, 2048),
        (2, True, 1, 4096),
        (64, True, 4, 32),
        (1000, True, 1, 1),
    ],
)
def test_as_many_leaves_are_done_together_as_memory_holds(
    dim: int, second: bool, tilts: int, leaves: int
) -> None:
    source = StandardNormals((jnp.uint32(1), jnp.uint32(2)), dim)
    task = _task(source, jnp.zeros((tilts, dim), jnp.float32), 4096, "gpu", second=second)
    assert leaves_together(task) == leaves


@pytest.mark.parametrize("memory", [1, 2**20, 2**31])
@pytest.mark.parametrize("given", [False, True], ids=["generated", "given"])
def test_a_block_on_an_accelerator_sums_as_one_on_a_cpu(
    given: bool, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_blocks, "_MEMORY", memory)
    dim, leaves, valid = 3, 8, 5 * LEAF + 100
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        tilts = jnp.asarray((30.0 if given else 0.5) * rng.standard_normal((2, dim)), jnp.float32)
        source = StandardNormals((jnp.uint32(1), jnp.uint32(2)), dim)
        tokens = rng.standard_normal((leaves * LEAF, dim)).astype(np.float32) if given else None
        if given:
            source = GivenTokens(jnp.zeros(dim, jnp.float32))
        part = Part(jnp.uint32(0), jnp.int32(valid), tokens)
        tasks = [_task(source, tilts, leaves, platform) for platform in ("cpu", "gpu")]
        assert [task.bounded for task in tasks] == [not given] * 2
        assert leaves_together(tasks[1]) == {1: 1, 2**20: 2, 2**31: 8}[memory]
        found = [jax.jit(lambda part, task=task: block_sums(task, part))(part) for task in tasks]
    for name, one, other in zip(Sums._fields, *found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("size", "valid"), [(13.0, 1), (13.0, LEAF), (40.0, LEAF)])
def test_no_weight_is_lost_below_what_single_precision_holds(size: float, valid: int) -> None:
    with jax.enable_x64(True):
        tilts = jnp.full((1, 1), size, jnp.float32)
        part = Part(jnp.uint32(0), jnp.int32(valid), None)
        source = StandardNormals((jnp.uint32(1), jnp.uint32(2)), 1)
        tasks = [_task(source, tilts, 2, platform, second=False) for platform in ("cpu", "gpu")]
        assert tasks[1].bounded == (size == 13.0)
        found = [jax.jit(lambda part, task=task: block_sums(task, part))(part) for task in tasks]
    for name, one, other in zip(Sums._fields, *found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, err_msg=name)


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams run the programs for accelerators, in blocks that a CPU can do."""
    monkeypatch.setattr(_request, "platform_at_work", lambda: "gpu")
    monkeypatch.setattr(_request, "leaves_of_a_block", lambda _: 4)


@pytest.mark.usefixtures("accelerated")
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 2e-5)])
def test_a_stream_on_an_accelerator_is_attention_on_the_tokens_in_memory(
    dtype: type, tolerance: float
) -> None:
    rng = np.random.default_rng(1)
    tokens = rng.standard_normal((40_000, 3)) @ np.diag([1.0, 0.3, 2.0]) + np.array([50.0, -3, 0])
    tokens = tokens.astype(dtype)
    key_query, queries = 0.4 * rng.standard_normal((3, 3)), rng.standard_normal((4, 3))
    with jax.enable_x64(True):
        head = pl.SoftmaxAttention(key_query, np.eye(3))
    found = pl.stream(head, tokens, queries, [1, 4096, 30_000], linear=True)
    for i, length in enumerate(found.lengths):
        expected = plain_attention(key_query, np.eye(3), tokens[:length].astype(float), queries)
        for name, value in expected.items():
            scale = max(np.abs(value).max(), 1.0 if name == "entropy" else 1e-300)
            assert np.abs(getattr(found, name)[i] - value).max() <= tolerance * scale, name


@pytest.mark.usefixtures("accelerated")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e30])
def test_tokens_without_finite_scores_are_named_on_an_accelerator_too(bad: float) -> None:
    tokens = np.zeros((50_000, 1), np.float32)
    tokens[4 * LEAF : 8 * LEAF] = bad  # whole leaves: nothing but their scores is amiss
    head = pl.SoftmaxAttention([[1e10]], [[1.0]])
    with pytest.raises(ValueError, match="finite scores, got others among tokens 16384 to 32767"):
        pl.stream(head, tokens, [[1.0]])
