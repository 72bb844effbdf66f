"""Every number says what it is; what is not good enough, or cannot be had, is refused."""

from typing import Literal, TypeAlias

from promptlimit._errors import ArgumentError

Kind = Literal["exact", "limit", "asymptotic", "bound", "estimate"]
"""What a value is.

- `exact`: prompts integrated out, by closed form or quadrature.
- `limit`: the prompt is infinite.
- `asymptotic`: the leading order in 1/L.
- `bound`: proved, above the truth.
- `estimate`: prompts simulated; the error is a standard error.
"""


class AccuracyError(ArithmeticError):
    """A quadrature measured its own error and found it too large to return a number.

    Attributes:
        argument: the name of the argument to change; None where no single one is responsible.
    """

    def __init__(self, message: str, *, argument: str | None = None):
        super().__init__(message)
        self.argument = argument


class OutsideDomainError(ArgumentError):
    """A tilt at which the log-Laplace transform of a law is not finite: it has no tilted law."""


class KindUnavailableError(ArgumentError):
    """A kind of number that cannot be had for a problem; others may."""


class NotAnalyticError(KindUnavailableError):
    """A log-Laplace transform that cannot be continued to complex tilts; says why.

    The message is the reason alone, so that a caller can put it into a sentence about the problem.
    """

    def __init__(self, reason: str):
        super().__init__("measure", reason)

    def __str__(self) -> str:
        return self.requirement


Length: TypeAlias = float | int
"""The number of tokens of a prompt: whole, or infinite. Run-time checks take no int for a float."""
