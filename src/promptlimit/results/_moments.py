"""Attention over infinite prompts, and its moments over random finite prompts."""

import numpy as np

from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, axis, derived, variable


class Limits(Result):
    r"""The outputs of softmax and linear attention with matrices U and V over a prompt $\mu$.

    Attributes:
        softmax: the softmax output at the query $z$, $V\nabla\Lambda_\mu(Uz)$ with the log-Laplace
            transform $\Lambda_\mu$.
        linear: the linear output at $z$, $V E_\mu[z'z'^\top]\,Uz$ for tokens $z'$.
        kind: "limit" if the prompt is the law of a token, "exact" if it is a list of tokens.
        error: 0, because both are closed forms.
    """

    softmax: np.ndarray = variable("output")
    linear: np.ndarray = variable("output")
    kind: Kind
    error: float

    @property
    @derived()
    def distance(self) -> float:
        """The Euclidean distance between the two outputs."""
        return float(np.linalg.norm(self.softmax - self.linear))

    def notes(self) -> list[str]:
        """Return the distance and the kind in a sentence."""
        return [f"The distance between the two outputs is {self.distance:.6g}; kind: {self.kind}."]


class PromptMoments(Result):
    r"""Moments over random prompts of $T_L$, the attention output at one query.

    The shapes are those for one length. For an array of lengths, the axes of lengths come first in
    all arrays except `limit` and `limit_error`.

    Attributes:
        lengths: $L$, the number of tokens drawn, without the query.
        mean: $E\,T_L$, [output_dim].
        bias: $E\,T_L - T$ with the limit $T$, [output_dim], accurate even if `mean - limit` has no
            correct digits. For the leading order of a stack, `bias` and `mean` are NaN if the bias
            has no leading order (docs/depth-theory.md).
        cov: the covariance of $T_L$, [output_dim, output_dim].
        mse: $E|T_L - T|^2$.
        effective_tokens: $1/E\sum_lp_l^2$ with the attention weights $p_l$ of all tokens; NaN for
            an attention that is not one head.
        limit: $T$, the output for an infinite prompt, [output_dim]. `limit`, `bias` and `mse` are
            NaN if no limit exists (docs/tutorials/2-a-law-of-my-own.md).
        kind: "exact", "estimate", "asymptotic", or "limit" if all lengths are infinite.
        error: the error of `mse`: the measured numerical error ("exact"), one standard error
            ("estimate"), NaN ("asymptotic"), 0 at infinite length.
        samples: the number of simulated prompts; 0 unless the kind is "estimate".
        limit_error: the error of `limit`, [output_dim]: 0 for a closed form; for a quadrature, the
            change when its points were last doubled; for particles, one standard error over
            replicas.
        bias_error: the error of `bias`, [output_dim]: one standard error if prompts were simulated,
            otherwise 0.
        fixed_weights: the mean attention weights of the k tokens that are in every prompt, [k]:
            known tokens, then the query if it is in the prompt, then sinks. The weights are NaN for
            an attention that is not one head. None if no token is in every prompt.
    """

    lengths: np.ndarray = axis("length", "L", scale="log")
    mean: np.ndarray = variable("length", "output")
    bias: np.ndarray = variable("length", "output")
    cov: np.ndarray = variable("length", "output", "other_output")
    mse: np.ndarray = variable("length")
    effective_tokens: np.ndarray = variable("length")
    limit: np.ndarray = variable("output")
    kind: Kind
    error: np.ndarray = variable("length")
    samples: np.ndarray = variable("length")
    limit_error: np.ndarray = variable("output")
    bias_error: np.ndarray = variable("length", "output")
    fixed_weights: np.ndarray | None = variable("length", "known", default=None)

    @property
    @derived("length", label="mean squared error", scale="log")
    def value(self) -> np.ndarray:
        """The mean squared error, to which `error` refers."""
        return self.mse


class GradientMoments(Result):
    r"""The mean squared difference between the gradients of the output $T_L$ and of its limit $T$.

    Attributes:
        lengths: $L$, the number of tokens drawn, without the query.
        value: $E\sum_i\|\nabla_\theta T_{L,i} - \nabla_\theta T_i\|_F^2$, summed over the
            coordinates i of the output.
        wrt: the name of the parameter $\theta$.
        kind: the kind of the numbers, as in `PromptMoments`.
        error: the error of `value`, as in `PromptMoments`.
        samples: the number of simulated prompts; 0 unless the kind is "estimate".
    """

    lengths: np.ndarray = axis("length", "L", scale="log")
    value: np.ndarray = variable("length", label="mean square of the change", scale="log")
    wrt: str
    kind: Kind
    error: np.ndarray = variable("length")
    samples: np.ndarray = variable("length")
