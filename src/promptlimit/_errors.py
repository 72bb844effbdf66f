"""The error of an argument that does not meet its requirement."""

import re


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
        requirement = re.sub(
            "`([a-z_]+)`", lambda name: f"`{names.get(name[1], name[1])}`", self.requirement
        )
        return ArgumentError(names.get(self.argument, self.argument), requirement)
