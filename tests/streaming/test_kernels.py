"""The kernels for GPUs, run without one, against the plain leaves."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from promptlimit._normals import box_muller, threefry
from promptlimit.streaming import _blocks, _sources
from promptlimit.streaming._blocks import Task, block_sums, is_bounded
from promptlimit.streaming._gpu import (
    LEAVES_TOGETHER,
    leaf_sums_on_gpu,
    normals_on_gpu,
    tilts_together,
)
from promptlimit.streaming._leaves import LEAF, leaf_sums
from promptlimit.streaming._sources import GivenTokens, Part, StandardNormals
from promptlimit.streaming._sums import Sums, merged, no_sums, triangle


@pytest.mark.parametrize(("dim", "second"), [(8, True), (3, False)])
def test_the_kernel_sums_as_plain_leaves_do(dim: int, second: bool) -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        tokens = jnp.asarray(rng.standard_normal((2 * LEAVES_TOGETHER, dim, LEAF)), jnp.float32)
        tilts = jnp.asarray(0.5 * rng.standard_normal((3, dim)), jnp.float32)
        counts = jnp.array([LEAVES_TOGETHER * LEAF, LEAF + 1000], jnp.int32)
        level = jnp.full((2, 3), 2.0, jnp.float32)
        found = leaf_sums_on_gpu(tokens, tilts, level, counts, second=second, interpret=True)
        for group in range(2):
            expected = no_sums(3, dim, triangle(dim) if second else 0)
            for i in range(LEAVES_TOGETHER):
                count = jnp.clip(counts[group] - i * LEAF, 0, LEAF)
                leaf = tokens[group * LEAVES_TOGETHER + i].T
                plain = leaf_sums(leaf, tilts, count, second=second)
                expected = merged(expected, Sums(*map(np.asarray, plain)))
            for name, got, wanted in zip(Sums._fields, found, expected, strict=True):
                size = np.abs(wanted).max(initial=1e-30)
                np.testing.assert_allclose(got[group], wanted, atol=3e-6 * size, err_msg=name)


def test_leaves_without_tokens_have_no_sums() -> None:
    with jax.enable_x64(True):
        none = jnp.zeros(1, jnp.int32)
        tokens = jnp.ones((LEAVES_TOGETHER, 2, LEAF), jnp.float32)
        tilts, level = jnp.ones((1, 2), jnp.float32), jnp.zeros((1, 1), jnp.float32)
        found = leaf_sums_on_gpu(tokens, tilts, level, none, second=True, interpret=True)
        plain = leaf_sums(tokens[0].T, tilts, none[0], second=True)
    for sums in (found, plain):
        top, *rest = map(np.asarray, sums)
        assert (top == -np.inf).all()
        assert all((x == 0.0).all() for x in rest)


@pytest.mark.parametrize("dim", [3, 4])
def test_both_generators_draw_the_same_tokens(dim: int) -> None:
    key = jnp.uint32(7), jnp.uint32(9)
    drawn = normals_on_gpu(key, jnp.uint32(5), 2, dim, interpret=True)
    source = StandardNormals(key, dim, "cpu")
    part = Part(jnp.uint32(5), jnp.int32(LEAF), None)
    for leaf in range(2):
        plain = source.tokens(part, jnp.int32(leaf), 1)[0].T
        np.testing.assert_allclose(drawn[leaf], plain, atol=2e-6)
    index = jnp.arange(LEAF, dtype=jnp.uint32) + np.uint32(LEAF)  # the second pair of leaf 6
    first, _ = box_muller(*threefry(key, (jnp.full(index.shape, 6, jnp.uint32), index)))
    np.testing.assert_allclose(drawn[1, 2], first, atol=2e-6)
    assert float(jnp.linalg.norm(drawn, axis=1).max()) <= source.largest_norm


def test_as_many_tilts_share_a_thread_as_its_registers_hold() -> None:
    assert [tilts_together(d, second=True) for d in (2, 8, 11, 16)] == [4, 2, 1, 0]
    assert [tilts_together(d, second=False) for d in (8, 24, 64)] == [4, 2, 0]


@pytest.mark.parametrize("given", [False, True], ids=["generated", "given"])
def test_a_block_on_a_gpu_sums_as_one_on_a_cpu(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((_blocks, "leaf_sums_on_gpu"), (_sources, "normals_on_gpu")):
        monkeypatch.setattr(module, name, partial(getattr(module, name), interpret=True))
    dim, leaves, valid = 3, 8, 7 * LEAF + 100
    rng = np.random.default_rng(3)
    with jax.enable_x64(True):
        tilts = jnp.asarray((30.0 if given else 0.5) * rng.standard_normal((2, dim)), jnp.float32)
        key = jnp.uint32(1), jnp.uint32(2)
        tokens = rng.standard_normal((leaves * LEAF, dim)).astype(np.float32) if given else None
        part = Part(jnp.uint32(0), jnp.int32(valid), tokens)
        found = []
        for platform in ("cpu", "gpu"):
            source = StandardNormals(key, dim, platform)
            if given:
                source = GivenTokens(jnp.zeros(dim, jnp.float32))
            bounded = is_bounded(source, np.asarray(tilts))
            assert bounded != given
            task = Task(source, tilts, leaves, 1, True, bounded, platform)
            found.append(jax.jit(lambda part, task=task: block_sums(task, part))(part))
    for name, one, other in zip(Sums._fields, *found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=name)
