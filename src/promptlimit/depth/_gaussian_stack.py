r"""A stack of softmax layers over Gaussian tokens, on which the limit of every layer is affine.

Layer l is $F_l[\mu](z)=R_lz+\sum_hV_l^h\nabla\Lambda_\mu(U_l^hz)$, with $R_l$ the residual, $U_l^h$
and $V_l^h$ the key-query and value matrices of head h, and $\Lambda_\mu$ the log-Laplace transform.
Each token attends to all tokens, including itself, and so does the query. Over tokens $N(m_l,G_l)$
the layer is $z\mapsto M_lz+c_l$, so tokens stay Gaussian (Castin, Ablin, Carrillo and Peyré 2025).
"""

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import jax
import numpy as np

from promptlimit._arrays import Array, as_float64
from promptlimit.attention import AbstractAttention
from promptlimit.measures import sqrtm_psd

SHARPEST = 0.5
r"""The bias has an expansion in 1/L only if $\tau_l^2$ (`GaussianStack.squared_tau`) is below this
number in every layer but the last."""

SLOWEST = 0.25
"""The bias approaches its leading order more slowly than 1/L if q (`GaussianStack.own_exponent`) is
at least this number in a layer before the last."""


@dataclasses.dataclass(frozen=True)
class LayerMatrices:
    r"""The matrices of one layer.

    Attributes:
        residual: $R$, [e, d].
        heads: $(U^h, V^h)$ for each head, [d, d] and [e, d].
    """

    residual: Array
    heads: tuple[tuple[Array, Array], ...]

    def read(self, second: Array) -> Array:
        r"""Return $\sum_hV^hSU^h$, [..., e, d], for a second moment or covariance S."""
        return sum((v @ second @ u for u, v in self.heads), np.zeros(self.residual.shape))


@dataclasses.dataclass(frozen=True)
class GaussianStack:
    r"""Softmax layers over tokens $N(m,G)$, and their limits.

        M_l = R_l + sum_h V_l^h G_l U_l^h,    c_l = sum_h V_l^h m_l,    P_l = M_{l-1}...M_0,
        m_{l+1} = M_l m_l + c_l,    G_l = P_l G P_l',    Z_l(z) = m_l + P_l (z - m)

    Tokens before layer l have the law $N(m_l,G_l)$, and $Z_l(z)$ is a token or query z before layer
    l. Leading axes of `mean`, `cov` and queries correspond to several laws of tokens under the same
    layers.

    Attributes:
        mean: $m=m_0$, [..., d].
        cov: $G=G_0$, [..., d, d].
        layers: the matrices of the layers, from the first to the last.
    """

    mean: Array
    cov: Array
    layers: tuple[LayerMatrices, ...]

    @staticmethod
    def of(layers: Sequence[AbstractAttention], mean: Array, cov: Array) -> "GaussianStack":
        """Return a stack over tokens N(mean, cov); `unsupported_layer(layers)` must be None."""
        with jax.enable_x64(True):
            return GaussianStack(mean, cov, tuple(_matrices(layer) for layer in layers))

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def token_dims(self) -> list[int]:
        """The dimension of tokens before every layer."""
        return [layer.residual.shape[1] for layer in self.layers]

    @cached_property
    def _limits(self) -> tuple[list[Array], list[Array], list[Array]]:
        mean, path = self.mean[..., None], np.eye(self.mean.shape[-1])
        maps, means, paths = [], [mean], [path]
        for layer in self.layers:
            cov = path @ self.cov @ path.mT
            maps.append(layer.residual + layer.read(cov))
            mean = maps[-1] @ mean + sum(v @ mean for _, v in layer.heads)
            path = maps[-1] @ path
            means.append(mean)
            paths.append(path)
        return maps, means, paths

    @property
    def maps(self) -> list[Array]:
        """$M_l$ of every layer, [..., e, d]."""
        return self._limits[0]

    @property
    def means(self) -> list[Array]:
        """$m_l$ before every layer and after the last, columns [..., d, 1]."""
        return self._limits[1]

    @property
    def paths(self) -> list[Array]:
        """$P_l$ before every layer and after the last, [..., e, d]."""
        return self._limits[2]

    @cached_property
    def root(self) -> Array:
        r"""$G^{1/2}$, symmetric."""
        return sqrtm_psd(self.cov)

    def position(self, level: int, query: Array) -> Array:
        """Return $Z_l(z)$ as columns, [..., e, 1]."""
        return self.means[level] + self.paths[level] @ (query - self.mean)[..., None]

    def output(self, query: Array) -> Array:
        """Return the output over the infinite prompt at a query, [..., e]."""
        return self.position(self.depth, query)[..., 0]

    def carry(self, level: int, head: int, until: int) -> Array:
        r"""Return $N=M_{l'-1}\cdots M_{l+1}V_l^h$, from a head of layer l to layer l' = `until`."""
        matrix = self.layers[level].heads[head][1]
        for between in range(level + 1, until):
            matrix = self.maps[between] @ matrix
        return matrix

    def below(self, level: int) -> list[tuple[int, int]]:
        """Return (layer, index) of every head of the layers before layer `level`."""
        return [(j, h) for j in range(level) for h in range(len(self.layers[j].heads))]

    def whitened_key_query(self, level: int, head: int) -> Array:
        r"""Return $\omega=G^{1/2}P_l'U_l^hP_lG^{1/2}$, [..., d, d].

        Its norm $\tau$ equals the norm of $G_l^{1/2}U_l^hG_l^{1/2}$. If tokens have mean zero, the
        sharpness at a token $G_l^{1/2}x$ is at most $\tau|x|$.
        """
        across = self.paths[level] @ self.root
        return across.mT @ self.layers[level].heads[head][0] @ across

    def squared_tau(self, level: int) -> float:
        r"""Return $\tau_l^2$, the largest squared norm of $\omega$ over the heads and the laws."""
        heads = range(len(self.layers[level].heads))
        norms = [np.linalg.norm(self.whitened_key_query(level, h), 2, axis=(-2, -1)) for h in heads]
        return float(np.max(norms, initial=0.0)) ** 2

    def own_exponent(self, level: int) -> float:
        r"""Return q, the largest eigenvalue of $(I-(I-\omega)'(I-\omega))/2$ over heads and laws.

        If it is negative, q = 0. The weight of a token on itself grows at most as $e^{q|\xi|^2}$,
        with $\xi$ the standardised token. The bias approaches its leading order as
        $L^{-(1/2-q)/q}$, which is not faster than 1/L if $q\ge1/4$.
        """
        heads = range(len(self.layers[level].heads))
        eye = np.eye(self.mean.shape[-1])
        least = [
            np.linalg.norm(eye - self.whitened_key_query(level, h), -2, axis=(-2, -1))
            for h in heads
        ]
        return 0.5 - 0.5 * float(np.min(least, initial=1.0)) ** 2

    def sharp_layer(self) -> str | None:
        r"""Return a message if a layer before the last has $\tau_l^2\ge1/2$; otherwise None."""
        for level in range(self.depth - 1):
            if (sharpness := self.squared_tau(level)) >= SHARPEST:
                return (
                    f"layer {level} is so sharp that its tokens' errors do not fall as 1/L "
                    f"(tau^2 = {sharpness:.4g}, and it must be below 1/2)"
                )
        return None

    def slow_layer(self) -> str | None:
        """Return a message if a layer before the last has q of 1/4 or more; otherwise None."""
        for level in range(self.depth - 1):
            if (exponent := self.own_exponent(level)) >= SLOWEST:
                return (
                    f"the tokens of layer {level} attend to themselves so much that the bias "
                    "approaches its leading order more slowly than 1/L "
                    f"(q = {exponent:.4g}, and it must be below 1/4)"
                )
        return None


def unsupported_layer(layers: Sequence[AbstractAttention]) -> str | None:
    """Return why the layers do not form a `GaussianStack`; None if they do."""
    for number, layer in enumerate(layers):
        heads = layer.as_heads()
        if heads is None:
            return f"layer {number} does not implement `as_heads`"
        if any(head.kernel != "softmax" for head in heads):
            return f"layer {number} has a head that is not softmax"
        if layer.query_dim != layer.token_dim:
            return f"layer {number} has queries and tokens of different dimensions"
    return None


def _matrices(layer: AbstractAttention) -> LayerMatrices:
    residual = layer.residual_matrix()
    shape = layer.output_dim, layer.query_dim
    return LayerMatrices(
        np.zeros(shape) if residual is None else as_float64(residual),
        tuple(
            (as_float64(head.key_query), as_float64(head.value)) for head in layer.as_heads() or ()
        ),
    )
