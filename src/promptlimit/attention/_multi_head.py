"""Sums of heads over one prompt."""

import dataclasses
import re
from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import float_array, require_shape, type_name
from promptlimit.attention._abstract import AbstractAttention
from promptlimit.attention._heads import AbstractHead, GradientStructure
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Gaussian, full_precision


class AbstractHeadSum(AbstractAttention):
    r"""The sum $\sum_hT_h[\mu](z)$ of attentions over one prompt."""

    heads: tuple[AbstractAttention, ...]

    def __init__(self, heads: Sequence[AbstractAttention]):
        self.heads = tuple(heads)
        if not self.heads:
            raise ArgumentError("heads", "must hold at least one attention, got none.")
        for index, head in enumerate(self.heads):
            if not isinstance(head, AbstractAttention):
                raise ArgumentError(
                    f"heads[{index}]", f"must be an attention, got {type_name(head)}."
                )
        shapes = [(head.token_dim, head.query_dim, head.output_dim) for head in self.heads]
        if len(set(shapes)) > 1:
            raise ArgumentError(
                "heads",
                "must all have the same dimensions of tokens, queries and outputs, got "
                f"(token, query, output) = {shapes}.",
            )

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
        r"""Return $\sum_h T_h[\mu](z)$."""
        return jnp.sum(jnp.stack([head(prompt, query) for head in self.heads]), axis=0)

    @full_precision
    def affine_limit(
        self, prompt: Gaussian
    ) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]] | None:
        r"""Return the sums of the heads' matrices and shifts; None if a head has none."""
        limits = [head.affine_limit(prompt) for head in self.heads]
        known = [limit for limit in limits if limit is not None]
        if len(known) < len(limits):
            return None
        matrices, shifts = zip(*known, strict=True)
        return jnp.sum(jnp.stack(matrices), axis=0), jnp.sum(jnp.stack(shifts), axis=0)

    def as_heads(self) -> tuple[AbstractHead, ...] | None:
        """Return the heads of all attentions $T_h$; None if a $T_h$ is not a sum of heads."""
        parts = [part.as_heads() for part in self.heads]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return tuple(head for part in known for head in part)

    def residual_matrix(self) -> Float[Array, "output_dim query_dim"] | None:
        """Return the sum of the residuals of all attentions $T_h$; None if no $T_h$ has one."""
        residuals = [part.residual_matrix() for part in self.heads]
        known = [residual for residual in residuals if residual is not None]
        return jnp.sum(jnp.stack(known), axis=0) if known else None

    def matrices(self) -> list[str]:
        """Return the names of the heads' matrices, such as "heads[0].value", then of its own."""
        pairs = ((i, name) for i, head in enumerate(self.heads) for name in head.matrices())
        return [*(f"heads[{i}].{name}" for i, name in pairs), *super().matrices()]

    def gradient_structure(self, wrt: str) -> GradientStructure | None:
        """Return the structure of the gradient in a matrix of a head; None for other matrices."""
        named = re.fullmatch(r"heads\[(\d+)\]\.(.+)", wrt)
        return None if named is None else self.heads[int(named[1])].gradient_structure(named[2])


class MultiHead(AbstractHeadSum):
    r"""The sum of heads $O\sum_h T_h[\mu](z)$, over one prompt.

    For concatenated heads followed by an output matrix, pass one `Factored` per head. Its `output`
    is the block of columns of the output matrix that multiplies this head.

    Args:
        heads: the attentions $T_h$, whose outputs have the same dimension.
        output: $O$, applied to the sum; the identity when None.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> head = pl.SoftmaxAttention(jnp.eye(2), jnp.eye(2))
    >>> both = pl.MultiHead([head, head], output=[[1.0, 1.0]])
    >>> print(both(pl.Gaussian([0.0, 0.0], jnp.eye(2)), jnp.array([1.0, 2.0])))
    [6.]
    """

    output: Float[Array, "output_dim head_output_dim"] | None

    def __init__(self, heads: Sequence[AbstractAttention], output: ArrayLike | None = None):
        super().__init__(heads)
        if output is not None:
            output = float_array("output", output, rank=2)
            reason = "as many columns as a head has outputs"
            require_shape("output", output, (output.shape[0], self.heads[0].output_dim), reason)
        self.output = output

    @property
    def output_dim(self) -> int:
        """The dimension of the output."""
        return super().output_dim if self.output is None else self.output.shape[0]

    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        r"""Return $O\sum_h T_h[\mu](z)$."""
        total = super().attend(prompt, query)
        return total if self.output is None else self.output @ total

    @full_precision
    def affine_limit(
        self, prompt: Gaussian
    ) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]] | None:
        r"""Return $O$ times the sums of the heads' matrices and shifts; None if a head has none."""
        limit = super().affine_limit(prompt)
        if limit is None or self.output is None:
            return limit
        return self.output @ limit[0], self.output @ limit[1]

    @full_precision
    def as_heads(self) -> tuple[AbstractHead, ...] | None:
        r"""Return the heads of all $T_h$, with $O$ multiplied into their value matrices."""
        heads = super().as_heads()
        if heads is None or self.output is None:
            return heads
        return tuple(head.with_value(self.output @ head.value) for head in heads)

    @full_precision
    def residual_matrix(self) -> Float[Array, "output_dim query_dim"] | None:
        r"""Return $O$ times the sum of the residuals of all $T_h$; None if no $T_h$ has one."""
        residual = super().residual_matrix()
        return residual if residual is None or self.output is None else self.output @ residual

    @full_precision
    def gradient_structure(self, wrt: str) -> GradientStructure | None:
        """Return the structure of the gradient in a matrix of a head.

        The result is None for `output`, and for the heads' value matrices if `output` is given.
        """
        structure = super().gradient_structure(wrt)
        if structure is None or self.output is None:
            return structure
        if structure.left is None:  # the constant of a value matrix would depend on O
            return None
        head = structure.head.with_value(self.output @ structure.head.value)
        return dataclasses.replace(structure, head=head)
