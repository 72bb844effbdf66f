"""The errors and warnings of the library.

An error about an argument is an `ArgumentError`, a `ValueError` with the name of the argument.
"""

import re as _re


class ArgumentError(ValueError):
    """An argument of a public function does not meet its requirement.

    The message starts with the name of the argument in backquotes, followed by the requirement, the
    value that was passed and a suggestion.

    Attributes:
        argument: the name of the argument.
        requirement: the message without the name.

    >>> error = ArgumentError("length", "must be at least 1, got 0.")
    >>> error.argument, str(error)
    ('length', '`length` must be at least 1, got 0.')
    """

    def __init__(self, argument: str, requirement: str):
        self.argument, self.requirement = argument, requirement

    def __str__(self) -> str:
        return f"`{self.argument}` {self.requirement}"

    def renamed(self, **names: str) -> "ArgumentError":
        """Return an `ArgumentError` with other names of arguments, given as `old=new`.

        >>> print(ArgumentError("cov", "must fit `mean`.").renamed(cov="query_cov", mean="centre"))
        `query_cov` must fit `centre`.
        """
        requirement = _re.sub(
            "`([a-z_]+)`", lambda name: f"`{names.get(name[1], name[1])}`", self.requirement
        )
        return ArgumentError(names.get(self.argument, self.argument), requirement)


class KindUnavailableError(ArgumentError):
    """The requested kind of result is not available for a problem; other kinds may be available."""


class NotAnalyticError(KindUnavailableError):
    """A log-Laplace transform cannot be continued to complex tilts.

    The message is the reason, as a clause that callers insert into a sentence.
    """

    def __init__(self, reason: str):
        super().__init__("measure", reason)

    def __str__(self) -> str:
        return self.requirement


class OutsideDomainError(ArgumentError):
    """The log-Laplace transform of a law is not finite at a tilt, so there is no tilted law."""


class LawMismatchError(ArgumentError):
    """The methods of a law contradict each other; the message names the check that failed."""


class TaskMismatchError(ArgumentError):
    """A formula of a task differs from simulated prompts; the message names the method."""


class AccuracyError(ArithmeticError):
    """The measured error of a quadrature is too large to return a number.

    Attributes:
        argument: the name of the argument to change; None if no single argument is responsible.
    """

    def __init__(self, message: str, *, argument: str | None = None):
        super().__init__(message)
        self.argument = argument


class InputFileError(ValueError):
    """A file cannot be used; the message states the requirement and the problem."""


class ConfigurationError(ValueError):
    """The folder of a run has a different configuration; the message lists the differences."""


class RunBusyError(OSError):
    """Another process is writing to the folder of a run."""


class MissingPackageError(ImportError):
    """An optional package is not installed; the message gives the command that installs it."""


class JoinError(RuntimeError):
    """A process could not join a run of several processes."""


class PeerLostError(RuntimeError):
    """Another process of the run was lost; this process will soon exit with status 1."""


class WriterError(RuntimeError):
    """Process 0 of a run stopped with an error; raised in the other processes."""


class NoLimitWarning(UserWarning):
    """The problem has no limit over infinite prompts; only finite prompts were simulated."""


class SlowExpansionWarning(UserWarning):
    """The leading order in 1/L is not reliable at a length; the result at this length is NaN."""


class UnreliableErrorWarning(UserWarning):
    """The error of an estimate is not reliable, or the estimate stopped before its target."""


class OutsideTheoremWarning(UserWarning):
    """The start of a flow is outside the assumptions of a theorem; the flow itself is valid."""
