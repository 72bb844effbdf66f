"""One head with separate key, query, value and output matrices, as in a trained transformer."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from promptlimit._arrays import ArrayLike
from promptlimit._inputs import float_array, require_choice, require_shape, to_device
from promptlimit.attention._abstract import AbstractAttention
from promptlimit.attention._heads import (
    AbstractHead,
    GradientStructure,
    LinearAttention,
    SoftmaxAttention,
    require_key_query,
    require_scale,
)
from promptlimit.attention._kernels import KERNELS, KernelName, kernel_named
from promptlimit.measures import AbstractMeasure, full_precision


class Factored(AbstractAttention):
    r"""One head with separate factors $K, Q, V, O$: $T[\mu](z) = OV\,r(\mu,\ c\,K^\top Qz)$.

    The kernel $r(\mu,t)$ is $\nabla\Lambda_\mu(t)$ (softmax) or $E_\mu[z'\langle z',t\rangle]$
    (linear). The output depends only on $U = c\,K^\top Q$ and $OV$, but gradient descent on the
    factors differs from gradient descent on these products. Use this class to study training.

    Args:
        kernel: "softmax" or "linear".
        key_weight: $K$, shape `[head_dim, token_dim]`.
        query_weight: $Q$, shape `[head_dim, query_dim]`.
        value_weight: $V$, shape `[value_dim, token_dim]`.
        output: $O$, shape `[output_dim, value_dim]`; the identity when None.
        scale: $c$, the factor on the scores.

    >>> import jax.numpy as jnp, promptlimit as pl
    >>> factored = pl.Factored("softmax", jnp.eye(2), 3.0 * jnp.eye(2), jnp.eye(2), scale=0.5)
    >>> print(factored.merged().key_query)
    [[1.5 0. ]
     [0.  1.5]]
    """

    kernel: KernelName = eqx.field(static=True)
    key_weight: Float[Array, "head_dim token_dim"]
    query_weight: Float[Array, "head_dim query_dim"]
    value_weight: Float[Array, "value_dim token_dim"]
    output: Float[Array, "output_dim value_dim"] | None
    scale: float = eqx.field(static=True)

    def __init__(
        self,
        kernel: str,
        key_weight: ArrayLike,
        query_weight: ArrayLike,
        value_weight: ArrayLike,
        output: ArrayLike | None = None,
        *,
        scale: float = 1.0,
    ):
        kernel_name = require_choice("kernel", kernel, KERNELS)
        key, query = require_key_query(key_weight, query_weight)
        value = float_array("value_weight", value_weight, rank=2)
        reason = "as many columns as `key_weight`"
        require_shape("value_weight", value, (value.shape[0], key.shape[1]), reason)
        if output is not None:
            output = float_array("output", output, rank=2)
            reason = "as many columns as `value_weight` has rows"
            require_shape("output", output, (output.shape[0], value.shape[0]), reason)
        self.kernel = kernel_name
        self.key_weight = key
        self.query_weight = query
        self.value_weight = value
        self.output = output
        self.scale = require_scale(scale)

    @property
    def token_dim(self) -> int:
        """The dimension of the prompt's tokens."""
        return self.key_weight.shape[1]

    @property
    def query_dim(self) -> int:
        """The dimension of a query."""
        return self.query_weight.shape[1]

    @property
    def output_dim(self) -> int:
        """The dimension of the output."""
        return (self.value_weight if self.output is None else self.output).shape[0]

    @full_precision
    def merged(self) -> SoftmaxAttention | LinearAttention:
        r"""Return the same map with merged parameters $U = c\,K^\top Q$ and $OV$."""
        head = SoftmaxAttention if self.kernel == "softmax" else LinearAttention
        value = self.value_weight if self.output is None else self.output @ self.value_weight
        return head.from_kqv(self.key_weight, self.query_weight, value, scale=self.scale)

    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        r"""Return $OV\,r(\mu,\ c\,K^\top Qz)$."""
        tilt = self.scale * (self.key_weight.T @ (self.query_weight @ query))
        value = self.value_weight @ kernel_named(self.kernel).read(prompt, tilt)
        return value if self.output is None else self.output @ value

    def as_heads(self) -> tuple[AbstractHead, ...]:
        """Return the merged head."""
        return (self.merged(),)

    @full_precision
    def gradient_structure(self, wrt: str) -> GradientStructure | None:
        r"""Return the structure of the gradient with respect to $K$, $Q$, $V$ or $O$.

        Let $C=\partial r/\partial t$, and let $v_i$ and $o_i$ be row i of $OV$ and of $O$. The
        gradients of output $T_i$ are $\nabla_K=c\,Qz\,(Cv_i)^\top$, $\nabla_Q=c\,KCv_iz^\top$,
        $\nabla_V=o_ir^\top$ and $\nabla_{o_i}=Vr$.
        """
        head, outputs = self.merged(), float(self.output_dim)
        dtype = head.key_query.dtype
        token, query = (to_device(np.eye(size), dtype) for size in head.key_query.shape)
        match wrt:
            case "key_weight":
                return GradientStructure(head, left=token, factor=self.scale * self.query_weight)
            case "query_weight":
                return GradientStructure(head, left=self.scale * self.key_weight, factor=query)
            case "output":
                return GradientStructure(head.with_value(self.value_weight), constant=outputs)
            case "value_weight":
                size = outputs if self.output is None else jnp.sum(self.output**2)
                return GradientStructure(head.with_value(token), constant=size)
        return None
