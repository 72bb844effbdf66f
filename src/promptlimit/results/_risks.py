"""Risks of in-context prediction, their gradients and their errors."""

import numpy as np

from promptlimit.results._kinds import Kind
from promptlimit.results._result import Result, axis, derived, variable


class Risk(Result):
    r"""The risk of a predictor on an in-context task, at one length or at many.

    For one length the fields are numbers; for many lengths, arrays with the shape of `lengths`.

    Attributes:
        value: the mean loss; for regression half the mean squared error, including the noise of
            the query's label.
        error: the error of `value`: 0 for a closed form, NaN for "asymptotic", one standard error
            over prompts for "estimate". For an average over quadrature points ("exact", "limit"),
            one standard error over eight independent point sets, widened by Student's law, plus
            the error of interpolation tables.
        kind: "exact", "limit", "asymptotic" or "estimate"; "limit" if all lengths are infinite.
        lengths: $L$, the number of tokens of a prompt.
        samples: the number of quadrature points (0 for a closed form), or of simulated prompts.
    """

    value: float | np.ndarray = variable("length", label="risk", scale="log")
    error: float | np.ndarray = variable("length")
    kind: Kind
    lengths: float | np.ndarray = axis("length", "L", scale="log")
    samples: int | np.ndarray = variable("length")

    @property
    @derived("length")
    def mse(self) -> float | np.ndarray:
        """Twice `value`: the mean squared error; meaningful only for squared loss."""
        return 2.0 * self.value

    @property
    @derived("length")
    def mse_error(self) -> float | np.ndarray:
        """The error of `mse`."""
        return 2.0 * self.error


class RiskGradient(Result):
    r"""The gradient of a risk with respect to the matrices of an attention.

    Attributes:
        value: the gradient with respect to each matrix, by the name of the matrix, such as "value"
            or "heads[0].value". For many lengths, the axes of lengths come first.
        error: the error of each entry, as in `Risk`.
        kind: "exact", "limit" or "estimate".
        lengths: $L$, the number of tokens of a prompt.
        samples: the number of points or prompts, as in `Risk`.
    """

    value: dict[str, np.ndarray] = variable("length", label="gradient of the risk")
    error: dict[str, np.ndarray] = variable("length")
    kind: Kind
    lengths: float | np.ndarray = axis("length", "L", scale="log")
    samples: int | np.ndarray = variable("length")


class TunedLayers(Result):
    r"""The best layer $cz+vA_L$ of a denoising task at one length or at many.

    Here z is the query and $A_L$ the softmax-weighted mean of L tokens with the key-query matrix
    $U=(u/s)I$. For one length the fields are numbers; for many lengths, arrays with the shape of
    `lengths`.

    Attributes:
        lengths: $L$, the number of tokens of a prompt.
        inverse_temperature: $u$, which is 1 for the gate of the Bayes denoiser.
        gain: $v$, with the value matrix $V=vI$.
        residual: $c$, with the residual matrix $C=cI$.
        value: the excess risk, half the mean squared distance to the Bayes predictor.
        error: the measured error of `value`.
        kind: "exact", or "limit" if all lengths are infinite.
        query_variance: $s$, the variance of a query within its component.
        dim: the dimension of a token.
    """

    lengths: float | np.ndarray = axis("length", "L", scale="log")
    inverse_temperature: float | np.ndarray = variable("length")
    gain: float | np.ndarray = variable("length")
    residual: float | np.ndarray = variable("length")
    value: float | np.ndarray = variable("length", label="excess risk", scale="log")
    error: float | np.ndarray = variable("length")
    kind: Kind
    query_variance: float
    dim: int

    @property
    @derived("length")
    def mse(self) -> float | np.ndarray:
        """Twice `value`: the mean squared distance to the Bayes predictor."""
        return 2.0 * self.value

    @property
    @derived("length")
    def mse_error(self) -> float | np.ndarray:
        """The error of `mse`."""
        return 2.0 * self.error

    def matrices(self, place: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return U, V and C at one length, as arguments for `SoftmaxAttention` and `Layer`.

        Args:
            place: the index of the length.
        """
        columns = (self.inverse_temperature, self.gain, self.residual)
        factor, gain, residual = (float(np.ravel(column)[place]) for column in columns)
        eye = np.eye(self.dim)
        return factor / self.query_variance * eye, gain * eye, residual * eye
