"""Merged heads, which consist of a key-query matrix U, a value matrix V and a kernel."""

import math
from typing import TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import float_arrays, require_finite, require_rank, require_shape, to_device
from promptlimit.attention._abstract import AbstractAttention, require_gaussian_prompt
from promptlimit.attention._kernels import KernelName, kernel_named
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Gaussian, compiled, full_precision

HeadT = TypeVar("HeadT", bound=AbstractAttention)


class GradientStructure(eqx.Module):
    r"""The gradient of $T=V\,r(\mu,Uz)$ in one matrix, reduced to the kernel $r$.

    Let D be the squared distance between the gradients over two prompts at a query $z$, summed over
    outputs. For a value matrix $D=a\,|V'(r_1-r_2)|^2$, where $r_1$ and $r_2$ are the kernels over
    the two prompts. For a score matrix $D=a\,|Fz|^2\,|B(C_1-C_2)V'^\top|^2$ with
    $C_i=\partial r_i/\partial t$.

    Attributes:
        head: the head with the value matrix $V'$ in place of $V$.
        left: $B$, [k, token_dim], for a score matrix; None for a value matrix.
        constant: $a$.
        factor: $F$, [f, query_dim], for a score matrix; None for a value matrix.
    """

    head: "AbstractHead"
    left: Float[Array, "k token_dim"] | None = None
    constant: float | Float[Array, ""] = 1.0
    factor: Float[Array, "f query_dim"] | None = None


class AbstractHead(AbstractAttention):
    r"""A head with merged parameters: $T[\mu](z) = V\,r(\mu, Uz)$.

    The softmax kernel $r(\mu,t)=\nabla\Lambda_\mu(t)$ is the mean of the tokens with softmax
    weights. The linear kernel $E_\mu[z'\langle z',t\rangle]$ weights tokens by their scores.
    """

    key_query: eqx.AbstractVar[Float[Array, "token_dim query_dim"]]
    value: eqx.AbstractVar[Float[Array, "output_dim token_dim"]]
    kernel: eqx.AbstractClassVar[KernelName]

    @classmethod
    @full_precision
    def from_kqv(
        cls: type[HeadT],
        key_weight: ArrayLike,
        query_weight: ArrayLike,
        value_weight: ArrayLike,
        *,
        scale: float = 1.0,
    ) -> HeadT:
        r"""Return the head with $U = \text{scale}\cdot K^\top Q$ and the value matrix $V$.

        Args:
            key_weight: $K$, shape `[head_dim, token_dim]`.
            query_weight: $Q$, shape `[head_dim, query_dim]`.
            value_weight: $V$, shape `[output_dim, token_dim]`.
            scale: the factor on the scores. Transformers use $1/\sqrt{\text{head\_dim}}$; the
                default here is 1.

        >>> import promptlimit as pl
        >>> head = pl.SoftmaxAttention.from_kqv([[1.0, 2.0]], [[3.0, 4.0]], [[1.0, 0.0]], scale=0.5)
        >>> print(head.key_query)
        [[1.5 2. ]
         [3.  4. ]]
        """
        key, query = require_key_query(key_weight, query_weight)
        return cls(_product(require_scale(scale), key, query), value_weight)  # ty: ignore[too-many-positional-arguments]  # heads take both

    @property
    def token_dim(self) -> int:
        """The dimension of the prompt's tokens."""
        return self.key_query.shape[0]

    @property
    def query_dim(self) -> int:
        """The dimension of a query."""
        return self.key_query.shape[1]

    @property
    def output_dim(self) -> int:
        """The dimension of the output."""
        return self.value.shape[0]

    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        r"""Return $V\,r(\mu, Uz)$."""
        return self.value @ kernel_named(self.kernel).read(prompt, self.key_query @ query)

    def affine_limit(
        self, prompt: Gaussian
    ) -> tuple[Float[Array, "output_dim query_dim"], Float[Array, " output_dim"]]:
        r"""Return $(VGU, Vc)$, where $r(\mu,t)=Gt + c$ is the kernel over the Gaussian prompt."""
        require_gaussian_prompt(self, prompt)
        return _limit_of_head(self, prompt)

    def as_heads(self) -> "tuple[AbstractHead, ...]":
        """Return a tuple that contains only this head."""
        return (self,)

    def with_value(self: HeadT, value: Float[Array, "output_dim token_dim"]) -> HeadT:
        """Return the head with another value matrix."""
        return eqx.tree_at(lambda head: head.value, self, value)

    def gradient_structure(self, wrt: str) -> "GradientStructure | None":
        r"""Return the structure of $\nabla_UT_i=Cv_iz^\top$ or $\nabla_{v_i}T_i=r$.

        Here $C=\partial r/\partial t$, and $v_i$ is row $i$ of $V$.
        """
        dtype = self.key_query.dtype
        if wrt == "value":
            return GradientStructure(
                self.with_value(to_device(np.eye(self.token_dim), dtype)),
                constant=float(self.output_dim),
            )
        if wrt == "key_query":
            left, factor = (to_device(np.eye(size), dtype) for size in self.key_query.shape)
            return GradientStructure(self, left=left, factor=factor)
        return None


@compiled
def _limit_of_head(head: AbstractHead, prompt: Gaussian) -> tuple[Array, Array]:
    matrix, shift = kernel_named(head.kernel).affine(prompt)
    return head.value @ matrix @ head.key_query, head.value @ shift


class SoftmaxAttention(AbstractHead):
    r"""Softmax attention $T[\mu](z) = V\,\nabla\Lambda_\mu(Uz)$.

    Over `Empirical` tokens it is the textbook formula $\sum_i p_iVz_i$ with
    $p = \mathrm{softmax}_i\langle z_i,Uz\rangle$. Over a `Gaussian` it is the infinite-prompt limit
    $Vm + V\Gamma Uz$ (Lemma 2.1 of the paper).

    Args:
        key_query: $U = K^\top Q$, shape `[token_dim, query_dim]`.
        value: $V$, shape `[output_dim, token_dim]`.

    >>> import jax, jax.numpy as jnp, promptlimit as pl
    >>> attention = pl.SoftmaxAttention(key_query=[[0.5]], value=[[1.0]])
    >>> law, query = pl.Gaussian([0.0], [[1.0]]), jnp.array([1.0])
    >>> prompt = pl.Empirical(law.sample(100_000, key=jax.random.key(0)))
    >>> print(attention(law, query), attention(prompt, query).round(2))
    [0.5] [0.5]
    """

    key_query: Float[Array, "token_dim query_dim"]
    value: Float[Array, "output_dim token_dim"]
    kernel = "softmax"

    def __init__(self, key_query: ArrayLike, value: ArrayLike):
        self.key_query, self.value = _merged_parameters(key_query, value)


class LinearAttention(AbstractHead):
    r"""Linear attention $T[\mu](z) = V\,E_\mu[z'z'^\top]\,Uz$.

    Over `Empirical` tokens it is $\frac1L\sum_i\langle z_i,Uz\rangle Vz_i$. Over an infinite prompt
    of Gaussian tokens of mean m it equals softmax attention if $Vm=0$, for example if m = 0.
    Otherwise the two attentions differ.

    Args:
        key_query: $U = K^\top Q$, shape `[token_dim, query_dim]`.
        value: $V$, shape `[output_dim, token_dim]`.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> attention = pl.LinearAttention(key_query=[[1.0]], value=[[1.0]])
    >>> print(attention(pl.Rademacher([1.0]), jnp.array([2.0])))
    [2.]
    """

    key_query: Float[Array, "token_dim query_dim"]
    value: Float[Array, "output_dim token_dim"]
    kernel = "linear"

    def __init__(self, key_query: ArrayLike, value: ArrayLike):
        self.key_query, self.value = _merged_parameters(key_query, value)


def _merged_parameters(key_query: ArrayLike, value: ArrayLike) -> tuple[Array, Array]:
    u, v = _matrices(key_query=key_query, value=value)
    reason = "as many columns as `key_query` has rows"
    require_shape("value", v, (v.shape[0], u.shape[0]), reason)
    return u, v


def require_key_query(key_weight: ArrayLike, query_weight: ArrayLike) -> tuple[Array, Array]:
    """Return K and Q as arrays; raise an error if their shapes are not compatible."""
    key, query = _matrices(key_weight=key_weight, query_weight=query_weight)
    reason = "as many rows as `key_weight`"
    require_shape("query_weight", query, (key.shape[0], query.shape[1]), reason)
    return key, query


def _matrices(**named: ArrayLike) -> tuple[Array, ...]:
    """Return finite matrices as arrays of one dtype; raise an error for other arguments."""
    matrices = float_arrays(**named)
    for name, matrix in zip(named, matrices, strict=True):
        require_rank(name, matrix, 2)
        require_finite(name, matrix)
    return matrices


@jax.jit
def _product(scale: float | Array, key: Array, query: Array) -> Array:
    return scale * (key.T @ query)


def require_scale(scale: float) -> float:
    """Return the factor on the scores; raise an error if it is not finite."""
    if not math.isfinite(scale):
        raise ArgumentError("scale", f"must be finite, got {scale}.")
    return float(scale)
