"""The kernels for GPUs, run without one, against the plain leaves."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from promptlimit._normals import box_muller, threefry
from promptlimit.streaming import _blocks, _sources
from promptlimit.streaming._blocks import Task, block_sums, is_bounded
from promptlimit.streaming._gpu import leaf_sums_on_gpu, normals_on_gpu, tilts_together
from promptlimit.streaming._leaves import LEAF, leaf_sums
from promptlimit.streaming._sources import GivenTokens, Part, StandardNormals
from promptlimit.streaming._sums import Sums


@pytest.mark.parametrize(("dim", "second"), [(4, True), (3, False)])
def test_the_kernel_sums_as_the_plain_leaf_does(dim: int, second: bool) -> None:
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        tokens = jnp.asarray(rng.standard_normal((2, dim, LEAF)), jnp.float32)
        tilts = jnp.asarray(0.5 * rng.standard_normal((3, dim)), jnp.float32)
        counts = jnp.array([LEAF, 1000], jnp.int32)
        level = jnp.full((2, 3), 2.0, jnp.float32)
        found = leaf_sums_on_gpu(tokens, tilts, level, counts, second=second, interpret=True)
        for leaf in range(2):
            plain = leaf_sums(tokens[leaf].T, tilts, counts[leaf], second=second)
            for name, got, expected in zip(plain._fields, found, plain, strict=True):
                size = np.abs(expected).max(initial=1e-30)
                np.testing.assert_allclose(got[leaf], expected, atol=3e-6 * size, err_msg=name)


def test_a_leaf_without_tokens_has_no_sums() -> None:
    with jax.enable_x64(True):
        none = jnp.zeros(1, jnp.int32)
        tokens, tilts = jnp.ones((1, 2, LEAF), jnp.float32), jnp.ones((1, 2), jnp.float32)
        level = jnp.zeros((1, 1), jnp.float32)
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


@pytest.mark.parametrize(("size", "valid"), [(13.0, 1), (40.0, LEAF)])
def test_no_weight_is_lost_below_what_single_precision_holds(
    size: float, valid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((_blocks, "leaf_sums_on_gpu"), (_sources, "normals_on_gpu")):
        monkeypatch.setattr(module, name, partial(getattr(module, name), interpret=True))
    found = []
    with jax.enable_x64(True):
        tilts = jnp.full((1, 1), size, jnp.float32)
        part = Part(jnp.uint32(0), jnp.int32(valid), None)
        for platform in ("cpu", "gpu"):
            source = StandardNormals((jnp.uint32(1), jnp.uint32(2)), 1, platform)
            task = Task(source, tilts, 2, 1, False, is_bounded(source, np.asarray(tilts)), platform)
            found.append(jax.jit(lambda part, task=task: block_sums(task, part))(part))
    for name, one, other in zip(Sums._fields, *found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, err_msg=name)


def test_the_kernels_are_such_as_the_compiler_for_gpus_takes() -> None:
    def shape(*axes: int, dtype: type = jnp.float32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(axes, dtype)

    def drawn_and_summed(tilts: jax.Array, counts: jax.Array, key: jax.Array) -> Sums:
        tokens = normals_on_gpu((key, key), key, 2, 8)
        level = jnp.zeros((2, 16), jnp.float32)
        return leaf_sums_on_gpu(tokens, tilts, level, counts, second=True)

    given = shape(16, 8), shape(2, dtype=jnp.int32), shape(dtype=jnp.uint32)
    with jax.enable_x64(True):
        traced = jax.jit(drawn_and_summed).trace(*given)
        assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()
