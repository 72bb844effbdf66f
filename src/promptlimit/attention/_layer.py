"""A transformer layer: heads and a residual."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import float_array, promoted, require_shape, to_device
from promptlimit.attention._abstract import AbstractAttention
from promptlimit.attention._heads import AbstractHead, GradientStructure
from promptlimit.attention._multi_head import MultiHead
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Gaussian


class Layer(AbstractAttention):
    r"""The layer $Cz+\sum_hT_h[\mu](z)$: heads over one prompt and a residual matrix.

    The residual does not depend on the prompt, so gaps between prompts are those of the heads. A
    residual matrix is a parameter and is trained; the default identity is fixed. Use `MultiHead`
    for heads without a residual.

    Args:
        heads: the attentions $T_h$, with outputs of one dimension; one or several.
        residual: $C$, shape `[output_dim, query_dim]`; the identity when None.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> head = pl.SoftmaxAttention(jnp.eye(2), jnp.eye(2))
    >>> prompt, query = pl.Gaussian([0.0, 0.0], jnp.eye(2)), jnp.array([1.0, 2.0])
    >>> print(pl.Layer(head)(prompt, query), pl.Layer([head, head], -jnp.eye(2))(prompt, query))
    [2. 4.] [1. 2.]
    """

    heads: tuple[AbstractAttention, ...]
    residual: Float[Array, "output_dim query_dim"] | None

    def __init__(
        self,
        heads: AbstractAttention | Sequence[AbstractAttention],
        residual: ArrayLike | None = None,
    ):
        if not isinstance(heads, AbstractAttention | Sequence):
            raise ArgumentError("heads", f"must be attentions, got {type(heads).__name__}.")
        several = (heads,) if isinstance(heads, AbstractAttention) else tuple(heads)
        self.heads = MultiHead(several).heads
        shape = (self.output_dim, self.query_dim)
        if residual is None:
            if shape[0] != shape[1]:
                raise ArgumentError(
                    "residual",
                    "must be a matrix if outputs and queries differ in dimension, "
                    f"got None for outputs of dimension {shape[0]} and queries of dimension "
                    f"{shape[1]}.",
                )
            self.residual = None
            return
        matrix = float_array("residual", residual, rank=2)
        require_shape("residual", matrix, shape, "from queries to outputs")
        self.residual = matrix

    @property
    def token_dim(self) -> int:
        """The dimension of the prompt's tokens."""
        return self.heads[0].token_dim

    @property
    def query_dim(self) -> int:
        """The dimension of a query."""
        return self.heads[0].query_dim

    @property
    def output_dim(self) -> int:
        """The dimension of the output."""
        return self.heads[0].output_dim

    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        r"""Return $Cz+\sum_hT_h[\mu](z)$."""
        return self.residual_matrix() @ query + MultiHead(self.heads).attend(prompt, query)

    def affine_limit(
        self, prompt: Gaussian
    ) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]] | None:
        r"""Return the sums of the heads' matrices and shifts, with $C$ among the matrices."""
        limit = MultiHead(self.heads).affine_limit(prompt)
        return None if limit is None else (self.residual_matrix() + limit[0], limit[1])

    def as_heads(self) -> tuple[AbstractHead, ...] | None:
        """Return the heads of every part."""
        return MultiHead(self.heads).as_heads()

    def matrices(self) -> list[str]:
        """Return the names of all matrices, such as "heads[0].value" and "residual"."""
        return [*MultiHead(self.heads).matrices(), *super().matrices()]

    def gradient_structure(self, wrt: str) -> GradientStructure | None:
        """Return the structure of the gradient in a matrix of one head; None for `residual`."""
        return MultiHead(self.heads).gradient_structure(wrt)

    def residual_matrix(self) -> Float[Array, "output_dim query_dim"]:
        r"""Return $C$."""
        if self.residual is not None:
            return self.residual
        arrays = jax.tree.leaves(eqx.filter(self.heads, eqx.is_inexact_array))
        dtypes = [array.dtype for array in arrays] or [jnp.result_type(float)]
        return to_device(np.eye(self.query_dim), promoted(*dtypes))
