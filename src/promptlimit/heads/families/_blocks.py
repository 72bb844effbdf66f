"""The parts that transformers of every family are built of, in single precision."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Weights = Mapping[str, Array]
"""The arrays of one layer, or of what is around the layers, by their short names."""

ACTIVATION: dict[str, Callable[[Array], Array]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def layer_norm(
    rows: Float[Array, "n d"], weight: Float[Array, " d"], bias: Float[Array, " d"], epsilon: float
) -> Float[Array, "n d"]:
    """Return the rows centred, divided by their deviation, then scaled and shifted."""
    centred = rows - rows.mean(axis=1, keepdims=True)
    variance = (centred**2).mean(axis=1, keepdims=True)
    return centred / jnp.sqrt(variance + epsilon) * weight[None] + bias[None]


def rms_norm(
    rows: Float[Array, "n d"], weight: Float[Array, " d"], epsilon: float
) -> Float[Array, "n d"]:
    """Return the rows divided by their root mean square, then scaled."""
    return rows / jnp.sqrt((rows**2).mean(axis=1, keepdims=True) + epsilon) * weight[None]


def affine(
    rows: Float[Array, "n d"], weight: Float[Array, "d e"], bias: Float[Array, " e"] | None = None
) -> Float[Array, "n e"]:
    """Return `rows @ weight + bias`."""
    product = rows @ weight
    return product if bias is None else product + bias[None]


def split_heads(rows: Float[Array, "n wide"], heads: int) -> Float[Array, "heads n d"]:
    """Return the columns dealt out to the heads, consecutive ones to each."""
    return rows.reshape(rows.shape[0], heads, -1).transpose(1, 0, 2)


def rotated(
    rows: Float[Array, "heads n d"], positions: Float[Array, " n"], theta: float
) -> Float[Array, "heads n d"]:
    r"""Return queries or keys turned by their position (RoPE, halves paired).

    Coordinates $j$ and $j+d/2$ turn together by the angle $p\,\theta^{-2j/d}$ at position p.
    """
    half = rows.shape[2] // 2
    frequency = theta ** (-jnp.arange(half, dtype=rows.dtype) / half)
    angle = positions[:, None] * frequency[None]
    cos, sin = jnp.cos(angle)[None], jnp.sin(angle)[None]
    left, right = rows[:, :, :half], rows[:, :, half:]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=2)
