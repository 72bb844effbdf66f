r"""Sums over leaves on an NVIDIA GPU: one warp for each leaf and few tilts, all sums in registers.

Tokens lie dimension by dimension, so that the 32 threads of a warp read 32 neighbouring numbers.
Each thread adds up every 32nd token; products are fused into the additions by hand, which the
compiler is told not to do by itself.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Array, Float, Int32, UInt32

from promptlimit._normals import Words, box_muller, threefry
from promptlimit.streaming._leaves import LEAF
from promptlimit.streaming._sums import Sums, triangle

_LANES = 32
_AT_ONCE = 4
"""Tokens of each thread that are fetched together, so that one wait serves them all."""
_REGISTERS = 100
"""Sums a thread may hold; past it they spill, and all is lost."""
_DRAWN_AT_ONCE = 512
_LOG2_E = math.log2(math.e)


def tilts_together(dim: int, *, second: bool) -> int:
    """Return how many tilts a thread can serve, a power of two; 0 when not even one."""
    sums = 3 + dim + (triangle(dim) if second else 0)
    return next((count for count in (4, 2, 1) if count * (sums + dim) <= 1.2 * _REGISTERS), 0)


def leaf_sums_on_gpu(
    tokens: Float[Array, "leaves dim leaf"],
    tilts: Float[Array, "q dim"],
    level: Float[Array, "leaves q"],
    counts: Int32[Array, " leaves"],
    *,
    second: bool,
    interpret: bool = False,
) -> Sums:
    r"""Return the sums over the first tokens of many leaves.

    Args:
        tokens: in single precision.
        tilts: $t$.
        level: what is taken from the scores before the exponential, so that none overflows.
        counts: how many tokens of each leaf belong to the prompt.
        second: whether second moments are wanted.
        interpret: whether to run without a GPU, slowly.
    """
    leaves, dim, _ = tokens.shape
    together = tilts_together(dim, second=second)
    count = tilts.shape[0]
    more = -count % together
    padded = jnp.pad(tilts, ((0, more), (0, 0))) * np.float32(_LOG2_E)
    levels = jnp.pad(level, ((0, 0), (0, more))) * np.float32(_LOG2_E)
    width = 3 + dim + (triangle(dim) if second else 0)
    call = pl.pallas_call(
        functools.partial(_sum_leaf, dim=dim, together=together, second=second, plain=interpret),
        grid=((count + more) // together, leaves),
        in_specs=[
            pl.BlockSpec((together, dim), lambda i, _: (i, 0)),
            pl.BlockSpec((1, together), lambda i, leaf: (leaf, i)),
            pl.BlockSpec((1,), lambda _, leaf: (leaf,)),
            pl.BlockSpec((1, dim, LEAF), lambda _, leaf: (leaf, 0, 0)),
        ],
        out_specs=pl.BlockSpec((1, together, width), lambda i, leaf: (leaf, i, 0)),
        out_shape=jax.ShapeDtypeStruct((leaves, count + more, width), jnp.float32),
        **_compiler(interpret),
    )
    found = call(padded, levels, counts, tokens)[:, :count].astype(jnp.float64)
    top, rest = found[..., 0] / _LOG2_E + level.astype(jnp.float64), found[..., 1:]
    # From the level that was guessed to the largest score that was met.
    scale = jnp.where(top == -jnp.inf, 0.0, jnp.exp(level.astype(jnp.float64) - top))
    scaled = rest * scale[..., None]
    return Sums(
        top,
        scaled[..., 0],
        scaled[..., 1] * scale,
        scaled[..., 2 : 2 + dim],
        scaled[..., 2 + dim :],
    )


def _sum_leaf(
    tilt_ref: Any,
    level_ref: Any,
    count_ref: Any,
    token_ref: Any,
    out_ref: Any,
    *,
    dim: int,
    together: int,
    second: bool,
    plain: bool,
) -> None:
    """Sum over one leaf at a few tilts."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (_LANES,), 0)
    tilts = [[tilt_ref[q, j] for j in range(dim)] for q in range(together)]
    start = [-level_ref[0, q] for q in range(together)]
    count = count_ref[0]
    arithmetic = _PLAIN if plain else _INSTRUCTIONS

    def body(step: Array, sums: list[list[Array]]) -> list[list[Array]]:
        sums = list(sums)
        places = [(step * _AT_ONCE + each) * _LANES for each in range(_AT_ONCE)]
        fetched = [[token_ref[0, j, pl.ds(at, _LANES)] for j in range(dim)] for at in places]
        for at, u in zip(places, fetched, strict=True):
            inside = lane + at < count
            for q in range(together):
                score = jnp.where(inside, start[q], -jnp.inf)
                for j in range(dim):
                    score = arithmetic.multiply_add(u[j], tilts[q][j], score)
                sums[q] = _with_token(sums[q], u, score, arithmetic, second=second)
        return sums

    zero = jnp.zeros((_LANES,), jnp.float32)
    width = 3 + dim + (triangle(dim) if second else 0)
    none = [[jnp.full((_LANES,), -jnp.inf, jnp.float32), *[zero] * (width - 1)]] * together
    sums = jax.lax.fori_loop(0, LEAF // (_LANES * _AT_ONCE), body, none)
    for q in range(together):
        out_ref[0, q, 0] = jnp.max(sums[q][0])
        for k in range(1, width):
            out_ref[0, q, k] = jnp.sum(sums[q][k])


def _with_token(
    sums: list[Array], u: list[Array], score: Array, arithmetic: "_Arithmetic", *, second: bool
) -> list[Array]:
    """Return the sums with one token more, given its score in powers of two."""
    add, dim = arithmetic.multiply_add, len(u)
    weight = arithmetic.power_of_two(score)
    new = [arithmetic.larger(sums[0], score), sums[1] + weight, add(weight, weight, sums[2])]
    new += [add(weight, u[j], sums[3 + j]) for j in range(dim)]
    if second:
        weighed = [weight * each for each in u]
        pairs = [(weighed[j], u[k]) for j in range(dim) for k in range(j, dim)]
        new += [add(*pair, sums[3 + dim + i]) for i, pair in enumerate(pairs)]
    return new


class _Arithmetic(NamedTuple):
    """Single instructions of the GPU, or what stands for them elsewhere."""

    multiply_add: Callable[[Array, Array, Array], Array]
    power_of_two: Callable[[Array], Array]
    larger: Callable[[Array, Array], Array]


def _instruction(text: str, *arguments: Array) -> Array:
    """Return what an instruction of the GPU makes of its arguments, element by element."""
    from jax.experimental.pallas import triton  # noqa: PLC0415  # not everywhere

    shape = jnp.broadcast_shapes(*map(jnp.shape, arguments))
    places = ", ".join(f"${i}" for i in range(len(arguments) + 1))
    (found,) = triton.elementwise_inline_asm(
        f"{text} {places};",
        args=[jnp.broadcast_to(argument, shape) for argument in arguments],
        constraints="=f" + ",f" * len(arguments),
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(shape, jnp.float32)],
    )
    return found


_INSTRUCTIONS = _Arithmetic(
    functools.partial(_instruction, "fma.rn.f32"),
    functools.partial(_instruction, "ex2.approx.ftz.f32"),
    functools.partial(_instruction, "max.f32"),
)
_PLAIN = _Arithmetic(lambda a, b, c: a * b + c, jnp.exp2, jnp.maximum)


def normals_on_gpu(
    key: Words, first: UInt32[Array, ""], leaves: int, dim: int, *, interpret: bool = False
) -> Float[Array, "leaves dim leaf"]:
    """Return the standard normals of leaves `first`, `first + 1`, and so on."""
    head = jnp.stack([*key, first])
    call = pl.pallas_call(
        functools.partial(_draw_leaf, dim=dim),
        grid=(leaves,),
        in_specs=[pl.BlockSpec((3,), lambda _: (0,))],
        out_specs=pl.BlockSpec((1, dim, LEAF), lambda leaf: (leaf, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((leaves, dim, LEAF), jnp.float32),
        **_compiler(interpret, warps=4),
    )
    return call(head)


def _draw_leaf(head_ref: Any, out_ref: Any, *, dim: int) -> None:
    """Draw one leaf: token i's pair p comes from counter (leaf, p LEAF + i)."""
    number = head_ref[2] + pl.program_id(0).astype(jnp.uint32)
    key = head_ref[0], head_ref[1]
    lane = jax.lax.broadcasted_iota(jnp.uint32, (_DRAWN_AT_ONCE,), 0)

    def body(step: Array, _: Any) -> Any:
        at = step * _DRAWN_AT_ONCE
        for j in range(0, dim, 2):
            index = lane + (at + j // 2 * LEAF).astype(jnp.uint32)
            both = box_muller(*threefry(key, (jnp.full(index.shape, number), index)))
            for i, normals in enumerate(both[: dim - j]):
                out_ref[0, j + i, pl.ds(at, _DRAWN_AT_ONCE)] = normals
        return _

    jax.lax.fori_loop(0, LEAF // _DRAWN_AT_ONCE, body, 0)


def _compiler(interpret: bool, warps: int = 1) -> dict[str, Any]:
    if interpret:
        return {"interpret": True}
    from jax.experimental.pallas import triton  # noqa: PLC0415  # not everywhere

    return {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=1)}
