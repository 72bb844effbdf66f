"""Every error and warning that the library raises on purpose.

An error about an argument is an `ArgumentError`, a `ValueError` whose attribute `argument` is the
name of that argument.
"""

import re as _re


class ArgumentError(ValueError):
    """An argument of a public function does not meet its requirement.

    Printed as "`argument` requirement": the name in backquotes, then what it must be, what was
    given and a suggestion.

    Attributes:
        argument: the name of the argument.
        requirement: the rest of the message.

    >>> error = ArgumentError("length", "must be at least 1, got 0.")
    >>> error.argument, str(error)
    ('length', '`length` must be at least 1, got 0.')
    """

    def __init__(self, argument: str, requirement: str):
        self.argument, self.requirement = argument, requirement

    def __str__(self) -> str:
        return f"`{self.argument}` {self.requirement}"

    def renamed(self, **names: str) -> "ArgumentError":
        """Return the refusal in a caller's own names, which stand for those of the arguments.

        >>> print(ArgumentError("cov", "must fit `mean`.").renamed(cov="query_cov", mean="centre"))
        `query_cov` must fit `centre`.
        """
        requirement = _re.sub(
            "`([a-z_]+)`", lambda name: f"`{names.get(name[1], name[1])}`", self.requirement
        )
        return ArgumentError(names.get(self.argument, self.argument), requirement)


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


class OutsideDomainError(ArgumentError):
    """A tilt at which the log-Laplace transform of a law is not finite: it has no tilted law."""


class LawMismatchError(ArgumentError):
    """A law whose methods contradict each other; the message names the check that failed."""


class AccuracyError(ArithmeticError):
    """A quadrature measured its own error and found it too large to return a number.

    Attributes:
        argument: the name of the argument to change; None where no single one is responsible.
    """

    def __init__(self, message: str, *, argument: str | None = None):
        super().__init__(message)
        self.argument = argument


class InputFileError(ValueError):
    """A file cannot be used; the message is one sentence for its owner."""


class ConfigurationError(ValueError):
    """A folder belongs to another configuration; the message names the differences."""


class RunBusyError(OSError):
    """Another process is at work in the folder of a run."""


class MissingPackageError(ImportError):
    """An optional package is not installed; the message gives the command that installs it."""


class JoinError(RuntimeError):
    """The processes of a run did not find each other."""


class PeerLostError(RuntimeError):
    """Another process of the run is gone.

    The runtime cannot go on without it: this process ends, with code 1, soon after.
    """


class WriterError(RuntimeError):
    """What stopped the first process, as the others know it."""


class NoLimitWarning(UserWarning):
    """Finite prompts were simulated for a problem that has no limit."""


class SlowExpansionWarning(UserWarning):
    """A leading order in 1/L that is not reached at a length, and is therefore NaN."""


class UnreliableErrorWarning(UserWarning):
    """An estimate whose error bar cannot be trusted, or which stopped before its target."""


class OutsideTheoremWarning(UserWarning):
    """The start is one the theorem does not speak of; the flow from it is still exact."""
