"""Stacks of layers: the forward pass on tokens, and the infinite-prompt limit."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import promoted
from promptlimit.attention._abstract import (
    AbstractAttention,
    as_query,
    require_affine_limit,
    require_gaussian_prompt,
    require_prompt,
)
from promptlimit.attention._heads import AbstractHead
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical, Gaussian, compiled

Carried = TypeVar("Carried")
Affine = tuple[Array, Array]

_LOOP = 3
"""The smallest number of consecutive layers of equal structure that are compiled as one loop."""

_SCORES = 2**20
"""The largest number of scores between tokens that are in memory at a time for one prompt."""

_COPIES = 3
"""The number of arrays as large as the scores: scores, exponentials, masked exponentials."""


class Stack(AbstractAttention):
    r"""The composition of layers $F_1,F_2,\dots$, applied to tokens and query.

    In each layer, every token attends to all tokens including itself. The query attends to the
    tokens, and no token attends to the query. With $\mu_1$ the prompt and $q_1$ the query,

        mu_{l+1} = F_l[mu_l]_# mu_l,      q_{l+1} = F_l[mu_l](q_l),

    where the push-forward $\mu_{l+1}$ is the law of $F_l[\mu_l](z)$ for a token z of law $\mu_l$.

    Over `Empirical` tokens this is the usual forward pass; the method `causal` applies a causal
    mask. Over a `Gaussian`, every $\mu_l$ is Gaussian and every layer is affine (Castin et al.
    2025), so the limit of the stack has a closed form. For other laws, the push-forward has no
    closed form; use `prompt_moments(stack, law, query, math.inf)`, which uses particles or
    quadrature.

    Args:
        layers: the layers, from the first to the last. A layer is a `Layer`, which has a residual,
            or a head or `MultiHead`, which has none. A stack in the list is replaced by its layers.

    >>> import jax, jax.numpy as jnp, promptlimit as pl
    >>> layer = pl.Layer(pl.SoftmaxAttention(key_query=[[0.2]], value=[[0.6]]))
    >>> stack = pl.Stack([layer, layer])
    >>> law, query = pl.Gaussian([0.5], [[1.0]]), jnp.array([1.0])
    >>> tokens = pl.Empirical(law.sample(2_000, key=jax.random.key(1)))
    >>> outputs = stack(law, query), stack(tokens, query), stack.causal(tokens, query)
    >>> print([round(float(output[0]), 3) for output in outputs])
    [2.15, 2.11, 2.124]
    >>> print(round(float(stack.push_forward(law).mean[0]), 3))
    1.505
    """

    layers: tuple[AbstractAttention, ...]

    def __init__(self, layers: Sequence[AbstractAttention]):
        if isinstance(layers, AbstractAttention) or not isinstance(layers, Iterable):
            raise ArgumentError(
                "layers",
                f"must be a list of layers, got {type(layers).__name__}. Pass "
                "[promptlimit.Layer(heads), ...].",
            )
        flat: list[AbstractAttention] = []
        for index, layer in enumerate(layers):
            if not isinstance(layer, AbstractAttention):
                raise ArgumentError(
                    f"layers[{index}]",
                    f"must be a layer, got {type(layer).__name__}. Pass promptlimit.Layer(heads).",
                )
            flat += layer.as_layers() or (layer,)
        if not flat:
            raise ArgumentError("layers", "must contain at least one layer, got none.")
        _require_chain(flat)
        self.layers = tuple(flat)

    @property
    def token_dim(self) -> int:
        """The dimension of the prompt's tokens."""
        return self.layers[0].token_dim

    @property
    def query_dim(self) -> int:
        """The dimension of a query."""
        return self.layers[0].query_dim

    @property
    def output_dim(self) -> int:
        """The dimension of the output, that of the last layer."""
        return self.layers[-1].output_dim

    def causal(self, prompt: Empirical, query: ArrayLike) -> Float[Array, " output_dim"]:
        """Return the output with a causal mask: token i attends only to tokens 1 to i.

        The mask does not change the limit of long prompts, but it increases the distance from this
        limit at finite lengths.

        Args:
            prompt: the tokens in order, without weights.
            query: the query, which comes after the tokens.
        """
        require_prompt(self, prompt)
        if not isinstance(prompt, Empirical) or prompt.weights is not None:
            thing = "tokens with weights" if isinstance(prompt, Empirical) else type(prompt)
            raise ArgumentError(
                "prompt",
                "must be tokens in order for a causal mask, got "
                f"{thing if isinstance(thing, str) else thing.__name__}. Call the stack itself "
                "for a law: the mask does not change its limit.",
            )
        return _causal_output(self.layers, prompt, as_query(self, query))

    def as_layers(self) -> tuple[AbstractAttention, ...]:
        """Return the layers."""
        return self.layers

    def as_heads(self) -> tuple[AbstractHead, ...] | None:
        """Return the heads of the layer if there is only one; otherwise None."""
        return self.layers[0].as_heads() if len(self.layers) == 1 else None

    def residual_matrix(self) -> Float[Array, "output_dim query_dim"] | None:
        """Return the residual of the layer if there is only one; otherwise None."""
        return self.layers[0].residual_matrix() if len(self.layers) == 1 else None

    def scratch_size(self, length: int) -> int:
        """Return the number of temporary values in the arrays of scores."""
        return _COPIES * length * _rows_at_a_time(length) if len(self.layers) > 1 else 0

    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        r"""Return the query after all layers."""
        if len(self.layers) == 1:
            return self.layers[0].attend(prompt, query)
        if isinstance(prompt, Empirical):
            return attend_through(self.layers, prompt, query)
        if isinstance(prompt, Gaussian):
            matrix, shift = self.affine_limit(prompt)
            return matrix @ query + shift
        raise ArgumentError(
            "prompt",
            f"must be tokens or Gaussian for a stack of {len(self.layers)} layers, got "
            f"{type(prompt).__name__}, whose image under a layer has no closed form. Call "
            "prompt_moments(stack, law, query, math.inf), or pass Empirical(law.sample(...)).",
        )

    def affine_limit(
        self, prompt: Gaussian
    ) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]]:
        r"""Return $(P, p)$ such that the query after all layers is $Pz + p$."""
        require_gaussian_prompt(self, prompt)
        return _composed_limit(self.layers, prompt)


def _require_chain(layers: Sequence[AbstractAttention]) -> None:
    """Raise an error unless each layer accepts the outputs of the previous layer."""
    for index, (below, layer) in enumerate(itertools.pairwise(layers)):
        if below.query_dim != below.token_dim:
            raise ArgumentError(
                f"layers[{index}]",
                "must take tokens and queries of the same dimension, because in all layers but the "
                f"last tokens are also queries, got tokens of dimension {below.token_dim} and "
                f"queries of dimension {below.query_dim}.",
            )
        if not below.output_dim == layer.token_dim == layer.query_dim:
            raise ArgumentError(
                f"layers[{index + 1}]",
                "must take tokens and queries of dimension "
                f"{below.output_dim}, the output of `layers[{index}]`, got {layer.token_dim} and "
                f"{layer.query_dim}.",
            )


@compiled
def _composed_limit(layers: tuple[AbstractAttention, ...], prompt: Gaussian) -> Affine:
    r"""Return the last $(P_l, p_l)$ of $P_{l+1}=M_lP_l$, $p_{l+1}=M_lp_l+c_l$, from $(I, 0)$.

    Here $(M_l, c_l)$ is the affine limit of layer $l$ over its tokens, whose law is
    $N(P_lm+p_l,\ P_l\Gamma P_l^\top)$.
    """

    def step(layer: AbstractAttention, so_far: Affine) -> Affine:
        p, shift = so_far
        image = Gaussian(p @ prompt.location + shift, p @ prompt.covariance @ p.T)
        m, c = require_affine_limit(layer, image)
        return m @ p, m @ shift + c

    first, *rest = layers
    return _through(rest, step, require_affine_limit(first, prompt))


@compiled
def _causal_output(layers: tuple[AbstractAttention, ...], prompt: Empirical, query: Array) -> Array:
    return attend_through(layers, prompt, query, causal=True)


def attend_through(
    layers: Sequence[AbstractAttention], prompt: Empirical, query: Array, *, causal: bool = False
) -> Float[Array, " output_dim"]:
    """Return the output of the last layer at the query.

    If `causal`, a causal mask is applied, and the prompt must have no weights.
    """
    arrays = jax.tree.leaves(eqx.filter((layers, prompt, query), eqx.is_inexact_array))
    dtype = promoted(*(array.dtype for array in arrays))  # the carry of a loop must keep its dtype

    def step(layer: AbstractAttention, rows: Array) -> Array:
        return _rows_after(layer, Empirical(rows[:-1], prompt.weights), rows, causal)

    start = jnp.concatenate([prompt.tokens, query[None]], dtype=dtype)
    rows = _through(layers[:-1], step, start)
    return layers[-1].attend(Empirical(rows[:-1], prompt.weights), rows[-1])


def _rows_after(
    layer: AbstractAttention, prompt: Empirical, rows: Float[Array, "rows d"], causal: bool
) -> Float[Array, "rows e"]:
    r"""Return the output $F[\mu](z)$ of a layer for each row $z$: the tokens, then the query.

    Without a mask, the sum of the linear heads is $\sum_hV_hSU_hz$ with $S$ the second moment of
    the tokens.
    """
    heads, residual = layer.as_heads(), layer.residual_matrix()
    if heads is None:
        return _row_by_row(layer, prompt, rows, causal)
    start = jnp.zeros((rows.shape[0], layer.output_dim), rows.dtype)
    if residual is not None:
        start = rows @ residual.T
    if not causal and (linear := [head for head in heads if head.kernel == "linear"]):
        tokens, weights = prompt.tokens, prompt.weights
        shares = 1.0 / prompt.length if weights is None else weights[None]
        second = (tokens.T * shares) @ tokens
        start = start + sum(rows @ (h.value @ second @ h.key_query).T for h in linear)
        heads = [head for head in heads if head.kernel != "linear"]

    def step(head: AbstractAttention, images: Array) -> Array:
        return images + _row_by_row(head, prompt, rows, causal)

    return _through(heads, step, start)


def _row_by_row(
    layer: AbstractAttention, prompt: Empirical, rows: Array, causal: bool
) -> Float[Array, "rows e"]:
    """Return the output for every row, computed in groups of rows to limit memory."""
    length, dtype = prompt.length, rows.dtype
    places = jnp.arange(length)

    def image(place_and_row: tuple[Array, Array]) -> Array:
        place, row = place_and_row
        if not causal:
            return layer.attend(prompt, row)
        seen = (places <= place).astype(dtype)
        return layer.attend(Empirical(prompt.tokens, seen / jnp.sum(seen)), row)

    every = jnp.arange(rows.shape[0]), rows
    at_a_time = _rows_at_a_time(length)
    if at_a_time == length:
        return jax.vmap(image)(every)
    # The gradient recomputes the scores, because storing all of them takes too much memory.
    return jax.lax.map(jax.checkpoint(image), every, batch_size=at_a_time)


def _rows_at_a_time(length: int) -> int:
    return min(length, max(1, _SCORES // length))


def _through(
    layers: Sequence[AbstractAttention],
    step: Callable[[AbstractAttention, Carried], Carried],
    start: Carried,
) -> Carried:
    """Apply `step` with each layer in turn, starting from `start`, and return the last value.

    Consecutive layers of equal structure are run in one loop, whose body is compiled once.
    """
    so_far = start
    for _, same in itertools.groupby(layers, _shape):
        run = tuple(same)
        if len(run) < _LOOP:
            for layer in run:
                so_far = step(layer, so_far)
            continue
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *run)
        so_far, _ = jax.lax.scan(lambda held, layer: (step(layer, held), None), so_far, stacked)
    return so_far


def _shape(layer: AbstractAttention) -> object:
    """Return a key that is equal for layers of equal structure.

    A layer with a leaf that is not an array has a unique key.
    """
    leaves, structure = jax.tree.flatten(layer)
    if not all(eqx.is_array(leaf) for leaf in leaves):
        return object()
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
