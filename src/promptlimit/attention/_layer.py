"""Transformer layers: heads and a residual."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import float_array, promoted, require_shape, to_device
from promptlimit.attention._abstract import AbstractAttention
from promptlimit.attention._multi_head import AbstractHeadSum
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Gaussian, full_precision


class Layer(AbstractHeadSum):
    r"""The layer $Cz+\sum_hT_h[\mu](z)$: heads over one prompt and a residual matrix.

    A given residual matrix is a trainable parameter; the default identity is fixed. Use `MultiHead`
    for heads without a residual.

    Args:
        heads: one attention or several attentions $T_h$, whose outputs have the same dimension.
        residual: $C$, shape `[output_dim, query_dim]`; the identity when None.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> head = pl.SoftmaxAttention(jnp.eye(2), jnp.eye(2))
    >>> prompt, query = pl.Gaussian([0.0, 0.0], jnp.eye(2)), jnp.array([1.0, 2.0])
    >>> print(pl.Layer(head)(prompt, query), pl.Layer([head, head], -jnp.eye(2))(prompt, query))
    [2. 4.] [1. 2.]
    """

    residual: Float[Array, "output_dim query_dim"] | None

    def __init__(
        self,
        heads: AbstractAttention | Sequence[AbstractAttention],
        residual: ArrayLike | None = None,
    ):
        if not isinstance(heads, AbstractAttention | Sequence):
            raise ArgumentError("heads", f"must be attentions, got {type(heads).__name__}.")
        several = (heads,) if isinstance(heads, AbstractAttention) else tuple(heads)
        super().__init__(several)
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

    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        r"""Return $Cz+\sum_hT_h[\mu](z)$."""
        return self._own_residual() @ query + super().attend(prompt, query)

    def affine_limit(
        self, prompt: Gaussian
    ) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]] | None:
        r"""Return $C$ plus the heads' matrices, and the heads' shifts; None if a head has none."""
        limit = super().affine_limit(prompt)
        return None if limit is None else (self._own_residual() + limit[0], limit[1])

    @full_precision
    def residual_matrix(self) -> Float[Array, "output_dim query_dim"]:
        r"""Return $C$ plus the residuals of all $T_h$."""
        own, inner = self._own_residual(), super().residual_matrix()
        return own if inner is None else own + inner

    def _own_residual(self) -> Float[Array, "output_dim query_dim"]:
        if self.residual is not None:
            return self.residual
        arrays = jax.tree.leaves(eqx.filter(self.heads, eqx.is_inexact_array))
        dtypes = [array.dtype for array in arrays] or [jnp.result_type(float)]
        return to_device(np.eye(self.query_dim), promoted(*dtypes))
