"""The programs for accelerators, run on any device, compared with NumPy and those for a CPU."""

import functools
from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit._normals import box_muller, threefry
from promptlimit.streaming import _blocks, _request
from promptlimit.streaming._blocks import (
    BlockPart,
    GivenTokens,
    SharedInputs,
    StandardNormals,
    TokenSource,
    block_sums,
    leaves_together,
)
from promptlimit.streaming._sums import LEAF, TiltedSums, leaf_sums
from streaming.plain_sums import plain_attention, plain_sums


@pytest.mark.parametrize(
    ("dim", "dtype", "tolerance", "second"),
    [
        (4, np.float32, 3e-6, True),
        (4, np.float32, 3e-6, False),
        (3, np.float64, 1e-13, True),
        (20, np.float32, 3e-6, True),
    ],
)
def test_leaves_are_summed_as_plain_numpy_does(
    dim: int, dtype: type, tolerance: float, second: bool
) -> None:
    rng = np.random.default_rng(0)
    tokens = rng.standard_normal((3, dim, LEAF)).astype(dtype)
    tilts = (0.5 * rng.standard_normal((3, dim))).astype(dtype)
    counts = np.array([LEAF, 1000, 0], np.int32)
    with jax.enable_x64(True):
        sums = partial(leaf_sums, second=second)
        program = jax.jit(jax.vmap(sums, in_axes=(0, None, 0)))
        found = [np.asarray(x) for x in program(tokens, tilts, counts)]
    for leaf in range(2):
        plain = plain_sums(tokens[leaf].T[: counts[leaf]], tilts)
        for name, sums, value in zip(plain._fields, found, plain, strict=True):
            expected = value if second or name != "second" else np.zeros((3, 0))
            size = np.abs(expected).max(initial=1e-30)
            np.testing.assert_allclose(sums[leaf], expected, atol=tolerance * size, err_msg=name)
    _assert_no_sums(TiltedSums(*(x[2] for x in found)))


def _assert_no_sums(sums: TiltedSums) -> None:
    top, *rest = map(np.asarray, sums)
    assert (top == -np.inf).all()
    assert all((x == 0.0).all() for x in rest)


@pytest.mark.parametrize("dim", [3, 4])
def test_leaves_drawn_together_have_the_tokens_of_those_drawn_alone(dim: int) -> None:
    key = _array(7, np.uint32), _array(9, np.uint32)
    source = StandardNormals(key, dim)
    part = BlockPart(_array(5, np.uint32), _array(LEAF, np.int32), None)
    program = jax.jit(jax.vmap(lambda leaf: source.columns(part, leaf)))
    drawn = np.asarray(program(_array([0, 1], np.int32)))
    alone = jax.jit(lambda leaf: source.columns(part, leaf))
    for leaf in range(2):
        plain = np.asarray(alone(_array(leaf, np.int32)))
        np.testing.assert_allclose(drawn[leaf], plain, atol=2e-6)
    index = np.arange(LEAF, dtype=np.uint32) + np.uint32(LEAF)  # the second pair of leaf 6
    place = np.full(index.shape, 6, np.uint32), index
    first, _ = jax.jit(lambda place: box_muller(*threefry(key, place)))(place)
    np.testing.assert_allclose(drawn[1, 2], first, atol=2e-6)


def _array(value: object, dtype: type = np.float32) -> jax.Array:
    """Return a jax array, without compiling a program."""
    return jax.device_put(np.asarray(value, dtype))


def _normals(dim: int) -> StandardNormals:
    return StandardNormals((_array(1, np.uint32), _array(2, np.uint32)), dim)


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
def test_as_many_leaves_are_summed_together_as_memory_allows(
    dim: int, second: bool, tilts: int, leaves: int
) -> None:
    shared = SharedInputs(_normals(dim), _array(np.zeros((tilts, dim))), 4096, 1, second, "gpu")
    assert leaves_together(shared) == leaves


DIM, LEAVES = 3, 8


@functools.cache
def _program(together: int) -> Callable[[SharedInputs, BlockPart], TiltedSums]:
    """Return `block_sums` compiled separately for each number of leaves summed together."""
    del together
    return eqx.filter_jit(lambda *args: block_sums(*args))  # noqa: PLW0108  # a new function


def _assert_alike(
    source: TokenSource,
    tilts: np.ndarray,
    part: BlockPart,
    together: int,
    *,
    rtol: float,
    atol: float,
) -> None:
    """Assert that an accelerator sums a block as a CPU does."""
    inputs = (source, _array(tilts), LEAVES, 1, True)
    accelerated = SharedInputs(*inputs, "gpu")
    assert leaves_together(accelerated) == together
    expected = _program(1)(SharedInputs(*inputs, "cpu"), part)
    found = _program(together)(accelerated, part)
    for name, one, other in zip(TiltedSums._fields, expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize(("memory", "together"), [(2**20, 2), (2**31, 8)])
def test_a_drawn_block_on_an_accelerator_sums_as_one_on_a_cpu(
    memory: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_blocks, "_MEMORY", memory)
    tilts = 0.5 * np.random.default_rng(3).standard_normal((2, DIM))
    with jax.enable_x64(True):
        part = BlockPart(_array(0, np.uint32), _array(5 * LEAF + 100, np.int32), None)
        _assert_alike(_normals(DIM), tilts, part, together, rtol=1e-4, atol=1e-5)


def test_a_given_block_on_an_accelerator_sums_as_one_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_blocks, "_MEMORY", 2**20)
    rng = np.random.default_rng(3)
    tilts = 30.0 * rng.standard_normal((2, DIM))
    tokens = rng.standard_normal((LEAVES * LEAF, DIM)).astype(np.float32)
    with jax.enable_x64(True):
        source = GivenTokens(_array(np.zeros(DIM)))
        part = BlockPart(_array(0, np.uint32), _array(5 * LEAF + 100, np.int32), tokens)
        _assert_alike(source, tilts, part, 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("size", "valid"), [(12.5, 1), (12.5, LEAF), (40.0, LEAF)])
def test_no_weight_is_lost_below_what_single_precision_holds(size: float, valid: int) -> None:
    tilts = size * np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])  # one score of a token is low
    with jax.enable_x64(True):
        part = BlockPart(_array(0, np.uint32), _array(valid, np.int32), None)
        _assert_alike(_normals(DIM), tilts, part, LEAVES, rtol=1e-3, atol=0.0)


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the programs for accelerators in streams, with blocks small enough for a CPU."""
    monkeypatch.setattr(_request, "active_platform", lambda: "gpu")
    monkeypatch.setattr(_request, "leaves_per_block", lambda _: 4)


@pytest.mark.usefixtures("accelerated")
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 2e-5)])
def test_a_stream_on_an_accelerator_is_attention_on_the_tokens_in_memory(
    dtype: type, tolerance: float
) -> None:
    rng = np.random.default_rng(1)
    tokens = rng.standard_normal((40_000, 3)) @ np.diag([1.0, 0.3, 2.0]) + np.array([50.0, -3, 0])
    tokens = tokens.astype(dtype)
    key_query, queries = 0.4 * rng.standard_normal((3, 3)), rng.standard_normal((3, 3))
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
    tokens = np.zeros((50_000, 3), np.float32)
    tokens[4 * LEAF : 8 * LEAF, 0] = bad  # whole leaves, so that only the scores are wrong
    head = pl.SoftmaxAttention(1e10 * np.eye(3), np.eye(3))
    with pytest.raises(ValueError, match="finite scores, but some of the tokens 16384 to 32767"):
        pl.stream(head, tokens, [[1.0, 0.0, 0.0]] * 4)  # as many as three with linear attention
