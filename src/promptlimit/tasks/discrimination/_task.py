r"""Discrimination in context: tokens $(x, y)$ with x from two Gaussian classes $y=\pm1$."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit._arrays import ArrayLike, Number, numpy_only, real_numbers, require_unmasked
from promptlimit._inputs import (
    float_array,
    is_traced,
    require_shape,
    require_weights,
    to_device,
)
from promptlimit.attention import AbstractAttention, SoftmaxAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Gaussian, Mixture, require_covariance
from promptlimit.tasks._abstract import AbstractTask


class ScoreCoordinates(NamedTuple):
    r"""The score of a head over an infinite prompt as a function of the covariates x.

    The score is $f(x)=\langle w,x\rangle+b+r\,\sigma(s_0+\langle s,x\rangle)$ with the logistic
    function $\sigma$, whose value is called the gate. The numbers $(w,b,r,s,s_0)$ are the effective
    coordinates of one head on `Discrimination`: the risk of the head at $L=\infty$ depends only on
    them (equations 6 and 7 of the paper on mixtures).

    Attributes:
        slope: the vector $w$, [d].
        intercept: the number $b$.
        gain: the factor $r$ of the gate.
        gate_slope: the vector $s$ in the gate, [d].
        gate_intercept: the number $s_0=\log(\pi_+/\pi_-)$ in the gate.
    """

    slope: Float[Array | np.ndarray, " d"]
    intercept: Float[Array | np.ndarray, ""]
    gain: Float[Array | np.ndarray, ""]
    gate_slope: Float[Array | np.ndarray, " d"]
    gate_intercept: Float[Array | np.ndarray, ""]

    def score(self, covariates: ArrayLike) -> np.ndarray:
        r"""Return $f(x)$ for covariates [..., d], in double precision."""
        w, b, r, s, s0 = (np.asarray(part, np.float64) for part in self)
        x = real_numbers("covariates", covariates)
        return np.asarray(x @ w + b + r / (1.0 + np.exp(-(s0 + x @ s))))


class Discrimination(AbstractTask):
    r"""Linear discriminant analysis in context: is the query of class $+1$ or $-1$?

    Tokens are $(x, y)$ in $\mathbb R^{d+1}$: $y=\pm1$ with probabilities $\pi_\pm$ and
    $x\sim N(m_y,\Gamma)$ given $y$. The query is $(x, 0)$, the last coordinate of the output is the
    score $f$, and the loss is logistic, $\log(1+e^{-yf})$. The linear discriminant has the smallest
    risk (`bayes`), and one softmax head over an infinite prompt attains it (`bayes_head`).

    Risks of one head over infinite prompts, and of one softmax head over L tokens, are exact. In
    more than two dimensions a risk over L tokens takes minutes. The loss is not a squared error, so
    use `value` of a `Risk` and not `mse`.

    Args:
        means: the means $m_{+1}$ and $m_{-1}$ of the classes, in this order, shape `[2, d]`.
        weights: the probabilities $\pi_+$ and $\pi_-$ of the classes.
        cov: the covariance $\Gamma$ of x within each class, positive definite, shape `[d, d]`.

    >>> import math, numpy as np, promptlimit as pl
    >>> task = pl.Discrimination([[1.0, 0.0], [0.0, 1.0]], [0.6, 0.4], np.eye(2))
    >>> head = task.bayes_head()
    >>> print(
    ...     f"{pl.bayes_risk(task, math.inf).value:.6f} {pl.risk(head, task, math.inf).value:.6f}"
    ... )
    0.478696 0.478696
    >>> print(task.coordinates(head).slope, task.bayes.slope)
    [ 1. -1.] [ 1. -1.]
    """

    means: Float[np.ndarray, "2 d"]
    weights: Float[np.ndarray, "2"]
    cov: Float[np.ndarray, "d d"]

    @numpy_only("Build the task outside.")
    def __init__(self, means: ArrayLike, weights: ArrayLike, cov: ArrayLike):
        with jax.enable_x64(True):
            centres = float_array("means", means, rank=2)
            if centres.shape[0] != 2 or centres.shape[1] == 0:
                raise ArgumentError(
                    "means",
                    "must be two rows, the mean of class +1 and that of class -1, got "
                    f"shape {centres.shape}. This task has exactly two "
                    "classes.",
                )
            dim = centres.shape[1]
            probabilities = float_array("weights", weights, rank=1)
            require_shape("weights", probabilities, (2,), "one weight per class")
            require_weights("weights", probabilities)
            covariance = float_array("cov", cov, rank=2)
            require_shape("cov", covariance, (dim, dim), "one row and column per covariate")
            require_covariance("cov", covariance)
        self.means, self.weights, self.cov = (
            np.asarray(array, np.float64) for array in (centres, probabilities, covariance)
        )
        self.cov = (self.cov + self.cov.T) / 2
        self._require_two_classes()

    def _require_two_classes(self) -> None:
        if self.weights.min() <= 0.0:
            raise ArgumentError(
                "weights", f"must be positive, got {self.weights.min():g}. Each class must occur."
            )
        variances = np.linalg.eigvalsh(self.cov)
        if variances[0] <= 1e-12 * variances[-1]:
            raise ArgumentError(
                "cov",
                f"must be positive definite, got {variances[0]:.3g} for its smallest "
                "eigenvalue. Without noise in some direction the classes may be separated exactly.",
            )
        if np.array_equal(*self.means):
            raise ArgumentError(
                "means",
                f"must differ, got {self.means[0].tolist()} twice. The classes would be the same.",
            )

    @property
    def token_dim(self) -> int:
        """The dimension of a token: covariates and a label."""
        return self.means.shape[1] + 1

    @property
    def prompt(self) -> Mixture:
        r"""The law of a token: $N((m_y,y),\ \Gamma\oplus0)$ with weight $\pi_y$."""
        xp = jnp if is_traced(self.means) else np
        cov = xp.pad(self.cov, ((0, 1), (0, 1)))
        labels = (1.0, -1.0)
        classes = [
            Gaussian(xp.append(mean, label), cov)
            for mean, label in zip(self.means, labels, strict=True)
        ]
        return Mixture(self.weights, classes)

    def draw(self, *, key: PRNGKeyArray) -> tuple[AbstractMeasure, AbstractMeasure]:  # noqa: ARG002
        """Return the law of a token of the prompt, and the same law for the target token."""
        return self.prompt, self.prompt

    def query_of(self, token: Float[Array, " token_dim"]) -> Float[Array, " token_dim"]:
        """Return the query $(x, 0)$ of a target token $(x, y)$."""
        return token.at[-1].set(0.0)

    def loss(
        self, output: Float[Array, " output_dim"], token: Float[Array, " token_dim"]
    ) -> Float[Array, ""]:
        r"""Return $\log(1+e^{-yf})$, with f the last coordinate of the output."""
        return jax.nn.softplus(-token[-1] * output[-1])

    @property
    def log_odds(self) -> float:
        r"""The logarithm $s_0=\log(\pi_+/\pi_-)$ of the odds of the classes."""
        return math.log(self.weights[0] / self.weights[1])

    @property
    def bayes(self) -> ScoreCoordinates:
        r"""The score of smallest risk, $\log P(y=1\mid x)/P(y=-1\mid x)=\langle w_*,x\rangle+b_*$.

        Here $w_*=\Gamma^{-1}(m_{+1}-m_{-1})$ and $b_*=s_0-\langle w_*,m_{+1}+m_{-1}\rangle/2$.
        """
        slope = np.linalg.solve(self.cov, self.means[0] - self.means[1])
        intercept = self.log_odds - slope @ self.means.mean(axis=0)
        no_gate = np.zeros(()), np.zeros_like(slope), np.asarray(self.log_odds)
        return ScoreCoordinates(slope, np.asarray(intercept), *no_gate)

    def bayes_head(self) -> SoftmaxAttention:
        r"""Return a softmax head whose score over an infinite prompt is the Bayes score.

        The blocks are those of `coordinates`, and $w_*$ and $b_*$ are those of `bayes`. With
        $u_{12}=-U_{11}(m_{+1}-m_{-1})/2$ the gate is constant ($s=0$). If $\pi_+\ne\pi_-$, then
        $U_{11}=\Gamma^{-1}$, $v_{21}=w_*$, and $v_{22}$ fits the intercept. If $\pi_+=\pi_-$, then
        $v_{22}=0$, $v_{21}$ is $w_*$ plus the multiple of the midpoint $\bar m$ of the means for
        which $\langle v_{21},\bar m\rangle=b_*$, and
        $U_{11}=w_*v_{21}^\top/\langle v_{21},\Gamma v_{21}\rangle$.
        """
        slope, intercept = self.bayes.slope, float(self.bayes.intercept)
        centre, prior = self.means.mean(axis=0), self.weights[0] - self.weights[1]
        if prior != 0.0:
            value, label = slope, (intercept - self.weights @ (self.means @ slope)) / prior
            query = np.linalg.inv(self.cov)
        else:
            size, label = centre @ centre, 0.0
            moved = (intercept - slope @ centre) * centre
            value = slope + (moved / size if size > 0.0 else moved)
            query = np.outer(slope, value) / (value @ self.cov @ value)
        return block_head(query, -query @ (self.means[0] - self.means[1]) / 2, value, label)

    def coordinates(self, attention: AbstractAttention) -> ScoreCoordinates:
        r"""Return the effective coordinates of one head; differentiable.

        A softmax head with the blocks
        $U^\top=\begin{pmatrix}U_{11}&u_{12}\\u_{21}^\top&u_{22}\end{pmatrix}$ of the transpose, the
        last row $(v_{21}, v_{22})$ of $V$ and $\delta=m_{+1}-m_{-1}$ has

            w = U_11 Γ v_21,   b = <v_21, m_-1> - v_22,
            r = <v_21, δ> + 2 v_22,   s = 2 u_12 + U_11 δ.

        A linear head with the last row v of $V$ has b = 0, r = 0 and s = 0, and w contains the
        first d entries of $(E[zz^\top]U)^\top v$.
        """
        head = attention.single_head()
        if head is None or head.token_dim != self.token_dim or head.query_dim != self.token_dim:
            raise ArgumentError(
                "attention",
                f"must be one head over tokens of dimension {self.token_dim}, got "
                f"{type(attention).__name__} over {attention.token_dim}.",
            )
        law = (to_device(part, head.value.dtype) for part in (self.means, self.cov, self.weights))
        compute = _linear_coordinates if head.kernel == "linear" else _softmax_coordinates
        return compute(*law, head.key_query, head.value)


def block_head(
    query_block: ArrayLike, label_block: ArrayLike, value_block: ArrayLike, label_value: Number
) -> SoftmaxAttention:
    r"""Return the softmax head on `Discrimination` with the four given blocks and zeros elsewhere.

    Args:
        query_block: the block $U_{11}$ of $U^\top$, [d, d], for scores from covariates.
        label_block: the block $u_{12}$ of $U^\top$, [d], for scores from labels.
        value_block: the block $v_{21}$ of the last row of V, [d], for values from covariates.
        label_value: the last entry $v_{22}$ of V, for values from labels.
    """
    blocks = {"query_block": query_block, "label_block": label_block, "value_block": value_block}
    for name, given in blocks.items():
        require_unmasked(name, given)
    block = np.asarray(query_block, np.float64)
    dim = block.shape[0]
    key_query, value = np.zeros((dim + 1, dim + 1)), np.zeros((dim + 1, dim + 1))
    key_query[:dim, :dim], key_query[dim, :dim] = block.T, label_block
    value[dim, :dim], value[dim, dim] = value_block, label_value
    return SoftmaxAttention(key_query, value)


@jax.jit
def _softmax_coordinates(
    means: Array, cov: Array, weights: Array, key_query: Array, value: Array
) -> ScoreCoordinates:
    first, second = means
    U11, u12 = key_query[:-1, :-1].T, key_query[-1, :-1]
    v21, v22 = value[-1, :-1], value[-1, -1]
    difference = first - second
    return ScoreCoordinates(
        slope=U11 @ (cov @ v21),
        intercept=v21 @ second - v22,
        gain=v21 @ difference + 2.0 * v22,
        gate_slope=2.0 * u12 + U11 @ difference,
        gate_intercept=jnp.log(weights[0] / weights[1]),
    )


@jax.jit
def _linear_coordinates(
    means: Array, cov: Array, weights: Array, key_query: Array, value: Array
) -> ScoreCoordinates:
    dtype = value.dtype
    tokens = jnp.concatenate([means, jnp.array([[1.0], [-1.0]], dtype)], axis=1)
    second = tokens.T @ (weights[:, None] * tokens) + jnp.pad(cov, ((0, 1), (0, 1)))
    slope = (second @ key_query[:, :-1]).T @ value[-1]
    zero, log_odds = jnp.zeros((), dtype), jnp.log(weights[0] / weights[1])
    return ScoreCoordinates(slope, zero, zero, jnp.zeros_like(slope), log_odds)
