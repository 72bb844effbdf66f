"""The base class of attentions: outputs, their derivatives, and limits over Gaussian tokens."""

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import (
    ENABLE_DOUBLE,
    cast,
    float_array,
    float_arrays,
    in_double,
    require_choice,
    require_dimension,
    require_finite,
    require_shape,
    to_device,
)
from promptlimit.errors import ArgumentError
from promptlimit.measures import (
    AbstractMeasure,
    Gaussian,
    compiled,
    is_infinite,
    require_measure,
    require_moments,
)

if TYPE_CHECKING:
    from promptlimit.attention._heads import AbstractHead, GradientStructure


AttentionT = TypeVar("AttentionT", bound="AbstractAttention")


class AbstractAttention(eqx.Module):
    r"""A map from a prompt $\mu$ and a query $z$ to an output $T[\mu](z)$.

    The prompt is a measure: a list of tokens, or the law of one token if the prompt is infinite.

    A subclass implements `token_dim`, `query_dim`, `output_dim` and `attend`. The optional methods
    `as_heads`, `residual_matrix`, `as_layers`, `affine_limit` and `gradient_structure` describe its
    structure. Exact methods for finite prompts require `as_heads` or `as_layers`; without them,
    prompts are simulated.
    """

    @property
    @abc.abstractmethod
    def token_dim(self) -> int:
        """The dimension of the prompt's tokens."""

    @property
    @abc.abstractmethod
    def query_dim(self) -> int:
        """The dimension of a query, usually equal to that of a token."""

    @property
    @abc.abstractmethod
    def output_dim(self) -> int:
        """The dimension of the output."""

    @abc.abstractmethod
    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        r"""Return $T[\mu](z)$ for one query.

        `attention(prompt, query)` checks the arguments and calls this method for each query.
        """

    def __call__(
        self, prompt: AbstractMeasure, query: ArrayLike
    ) -> Float[Array, "*queries output_dim"]:
        r"""Return $T[\mu](z)$, for one query or for each query of a batch.

        Args:
            prompt: the measure $\mu$; wrap an array of tokens as `Empirical(tokens)`.
            query: the query $z$, shape `[query_dim]`, or queries, shape `[n, query_dim]`.

        Raises:
            OutsideDomainError: the log-Laplace transform of the prompt is not finite at the tilt
                $t=Uz$ of a head.
            ArgumentError: the output overflows in single precision but not in double precision.

        In code that jax traces, no error is raised; the output is then not finite.
        """
        require_prompt(self, prompt)
        point = as_queries(self, query)
        output = _output(self, prompt, point)
        if is_infinite(output):
            if not prompt.finite_everywhere:
                with jax.default_matmul_precision("highest"):
                    for one in point.reshape(-1, self.query_dim):
                        self.attend(prompt, one)  # not compiled, so that the error names the tilt
                    require_moments(prompt)
            _require_no_overflow(self, prompt, point)
        return output

    def affine_limit(
        self, prompt: Gaussian
    ) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]] | None:
        r"""Return $(M, b)$ with $T[\mu](z) = Mz + b$ for every query, over $\mu=N(m,\Gamma)$.

        For a softmax head $M = V\Gamma U$ and $b = Vm$ (Lemma 2.1 of the paper). For a linear head
        $M = V(\Gamma+mm^\top)U$ and $b = 0$. By default the method adds the limits of the heads in
        `as_heads`, and `residual_matrix` to $M$. It returns None if `as_heads` returns None.
        """
        require_gaussian_prompt(self, prompt)
        heads = self.as_heads()
        return None if heads is None else _sum_of_limits(heads, self.residual_matrix(), prompt)

    def push_forward(self, prompt: Gaussian) -> Gaussian:
        r"""Return the law of $T[\mu](z)$ if the query is itself a token, $z\sim\mu=N(m,\Gamma)$.

        If $Mz+b$ is the affine limit, this law is $N(Mm+b,\ M\Gamma M^\top)$ (Lemma 2.1).

        >>> import jax.numpy as jnp, promptlimit as pl
        >>> attention = pl.SoftmaxAttention(key_query=[[2.0]], value=[[1.0]])
        >>> image = attention.push_forward(pl.Gaussian([1.0], [[1.0]]))
        >>> print(image.mean, image.cov)
        [3.] [[4.]]
        """
        matrix, shift = require_affine_limit(self, prompt)
        if self.query_dim != self.token_dim:
            raise ArgumentError(
                "push_forward",
                f"must have queries and tokens of equal dimension, got queries of dimension "
                f"{self.query_dim} and tokens of dimension {self.token_dim}.",
            )
        return Gaussian(*_image(matrix, shift, prompt))

    def jacobian(
        self, prompt: AbstractMeasure, query: ArrayLike, *, wrt: str
    ) -> Float[Array, "output_dim rows columns"]:
        r"""Return $\nabla_\theta T_i[\mu](z)$ for each output $i$ and one matrix $\theta$.

        For a softmax head, let $m_t$ and $C_t$ be the tilted mean and covariance at $t=Uz$, and let
        $v_i$ be the rows of $V$. Then $\nabla_UT_i = C_tv_iz^\top$ and $\nabla_{v_i}T_i = m_t$.

        Args:
            prompt: the measure $\mu$.
            query: the query $z$.
            wrt: the name of the matrix $\theta$, such as "key_query", "value" or "heads[0].value";
                `matrices` lists the names.
        """
        require_matrix(self, wrt)
        require_prompt(self, prompt)
        point = as_query(self, query)
        jacobian = _jacobian(self, prompt, point, wrt)
        if is_infinite(jacobian):
            self(prompt, point)
        return jacobian

    def as_heads(self) -> "tuple[AbstractHead, ...] | None":
        r"""Return the heads of which this attention is the sum; None if it is not a sum of heads.

        Each head has its merged matrices: the key-query matrix $U_h$ and the value matrix $V_h$.
        They must be differentiable functions of the parameters. The sum may also contain the term
        of `residual_matrix`.
        """
        return None

    def residual_matrix(self) -> Float[Array, "output_dim query_dim"] | None:
        """Return the matrix $C$ of a term $Cz$ that is added to the heads; None without a term."""
        return None

    def as_layers(self) -> "tuple[AbstractAttention, ...] | None":
        """Return the layers, from the first to the last; None if the attention is not a stack."""
        return None

    def scratch_size(self, length: int) -> int:  # noqa: ARG002  # for subclasses
        """Return the number of temporary values that a call stores for a prompt of this length."""
        return 0

    def single_head(self) -> "AbstractHead | None":
        """Return this attention as one head $(U,V)$; None for several heads or a residual."""
        heads = self.as_heads()
        if heads is None or len(heads) != 1 or self.residual_matrix() is not None:
            return None
        return heads[0]

    def gradient_structure(self, wrt: str) -> "GradientStructure | None":  # noqa: ARG002  # for subclasses
        """Return the factors of the gradient in the matrix named `wrt`; None if not known."""
        return None

    def matrices(self) -> list[str]:
        """Return the names of the matrices of this attention, which `jacobian` accepts."""
        fields = (field.name for field in dataclasses.fields(self))
        return [name for name in fields if eqx.is_array(getattr(self, name))]

    def with_arrays(self: AttentionT, arrays: Mapping[str, ArrayLike]) -> AttentionT:
        """Return this attention with some arrays replaced.

        Args:
            arrays: the new arrays by name, such as "value" or "heads[0].value"; `array_names`
                lists the names. The new arrays keep their own precision.

        >>> import promptlimit as pl
        >>> both = pl.MultiHead([pl.LinearAttention([[1.0]], [[1.0]])] * 2)
        >>> print(both.with_arrays({"heads[1].value": [[5.0]]}).heads[1].value)
        [[5.]]
        """
        moving, rest = eqx.partition(self, eqx.is_inexact_array)
        leaves, structure = jax.tree.flatten(moving)
        names = array_names(self)
        for name in arrays:
            require_choice("arrays", name, names)
        with jax.enable_x64(True):
            for place, name in enumerate(names):
                if name in arrays:
                    number = to_device(arrays[name])
                    require_shape(name, number, leaves[place].shape, "as in the attention")
                    leaves[place] = number
        return eqx.combine(jax.tree.unflatten(structure, leaves), rest)


def array_names(attention: AbstractAttention) -> list[str]:
    """Return the names of the arrays of an attention, such as "value" or "heads[0].value"."""
    arrays = eqx.filter(attention, eqx.is_inexact_array)
    return [jtu.keystr(path).lstrip(".") for path, _ in jtu.tree_leaves_with_path(arrays)]


@compiled
def _sum_of_limits(
    heads: "tuple[AbstractHead, ...]", residual: Array | None, prompt: Gaussian
) -> tuple[Array, Array]:
    matrices, shifts = zip(*(head.affine_limit(prompt) for head in heads), strict=True)
    matrix, shift = sum(matrices[1:], matrices[0]), sum(shifts[1:], shifts[0])
    return matrix if residual is None else residual + matrix, shift


@compiled
def _image(matrix: Array, shift: Array, prompt: Gaussian) -> tuple[Array, Array]:
    """Return the mean and covariance of $Mz+b$ for a token z, with M = `matrix`, b = `shift`."""
    covariance = matrix @ prompt.covariance @ matrix.T
    return matrix @ prompt.location + shift, 0.5 * (covariance + covariance.T)


def _require_no_overflow(
    attention: AbstractAttention, prompt: AbstractMeasure, query: Array
) -> None:
    """Raise an error if the output is finite in double precision but not in single precision."""
    if query.dtype != jnp.float32:
        return
    with jax.enable_x64(True):
        exact = _output(in_double(attention), in_double(prompt), cast(query, jnp.float64))
        if not is_infinite(exact):
            raise ArgumentError(
                "query",
                "must keep the scores within the range of single precision, but float32 overflows: "
                f"in double precision the output is {exact}. {ENABLE_DOUBLE}",
            )


@compiled
def _output(attention: AbstractAttention, prompt: AbstractMeasure, query: Array) -> Array:
    def attend(point: Array) -> Array:
        output = attention.attend(prompt, point)
        shape = getattr(output, "shape", None)
        if shape != (attention.output_dim,):
            got = type(output).__name__ if shape is None else f"shape {shape}"
            raise ArgumentError(
                "attend",
                f"of {type(attention).__name__} must return an array of shape "
                f"({attention.output_dim},), its `output_dim`, got {got}.",
            )
        return output

    return attend(query) if query.ndim == 1 else jax.vmap(attend)(query)


@compiled
def _jacobian(
    attention: AbstractAttention, prompt: AbstractMeasure, query: Array, wrt: str
) -> Array:
    moving, rest = eqx.partition(attention, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(moving)
    place = array_names(attention).index(wrt)

    def output(parameter: Array) -> Array:
        moved = jax.tree.unflatten(structure, [*leaves[:place], parameter, *leaves[place + 1 :]])
        return eqx.combine(moved, rest)(prompt, query)

    return jax.jacrev(output)(leaves[place])


def require_matrix(attention: AbstractAttention, wrt: str) -> None:
    """Raise an error if `wrt` is not in `attention.matrices()`."""
    if not (matrices := attention.matrices()):
        raise ArgumentError(
            "wrt",
            f"must name a matrix of the attention, got {wrt!r} for a {type(attention).__name__}, "
            "which has none. Use one of its heads or layers instead.",
        )
    require_choice("wrt", wrt, matrices)


# Functions, not methods: equinox wraps a method at every access, which is slow for small prompts.
def require_prompt(attention: AbstractAttention, prompt: object) -> None:
    """Raise an error if the prompt is not a measure with the attention's token dimension."""
    measure = require_measure("prompt", prompt)
    if measure.dim != attention.token_dim:
        require_dimension(attention, "token_dim")
        require_dimension(measure, "dim")
        raise ArgumentError(
            "prompt",
            f"must have tokens of dimension {attention.token_dim} (as the attention expects), got "
            f"{measure.dim}.",
        )


def require_gaussian_prompt(attention: AbstractAttention, prompt: object) -> None:
    """Raise an error if the prompt is not a Gaussian with the attention's token dimension."""
    require_prompt(attention, prompt)
    if not isinstance(prompt, Gaussian):
        raise ArgumentError(
            "prompt",
            f"must be Gaussian for an affine limit, got {type(prompt).__name__}. "
            "Call the attention itself: it takes any measure.",
        )


def require_affine_limit(
    attention: AbstractAttention, prompt: Gaussian
) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]]:
    """Return the affine limit of an attention; raise an error if it has none."""
    limit = attention.affine_limit(prompt)
    if limit is None:
        raise ArgumentError(
            "attention",
            "must have an affine limit over Gaussian tokens, but "
            f"{type(attention).__name__} implements neither `as_heads` nor `affine_limit`.",
        )
    return limit


def as_query(attention: AbstractAttention, query: object) -> Float[Array, " query_dim"]:
    """Return one query as an array; raise an error if it has the wrong dimension."""
    array = float_array("query", query, rank=1)
    reason = "as the attention expects"
    require_shape("query", array, (attention.query_dim,), reason)
    return array


def as_queries(attention: AbstractAttention, query: object) -> Float[Array, "*queries query_dim"]:
    """Return one query or a batch of queries as an array; raise an error for a wrong dimension."""
    (array,) = float_arrays(query=query)
    if array.ndim < 2:
        return as_query(attention, array)
    if array.ndim > 2:
        raise ArgumentError(
            "query",
            f"must be a vector, or a matrix with one query per row, got shape {array.shape}.",
        )
    require_finite("query", array)
    reason = "as the attention expects"
    require_shape("query", array, (array.shape[0], attention.query_dim), reason)
    return array
