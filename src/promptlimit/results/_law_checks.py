"""The outcome of checks that compare the methods of a law with each other."""

from promptlimit._text import aligned
from promptlimit.results._result import Result


class LawCheck(Result):
    """One check of a law, which passed or does not apply.

    Attributes:
        name: the name of the check.
        comparisons: the number of compared numbers; 0 if the check does not apply.
        largest: the largest ratio of a deviation to the allowed deviation.
        note: the reason why the check does not apply, or the comparisons that were omitted.
    """

    name: str
    comparisons: int
    largest: float
    note: str = ""


class LawReport(Result):
    """The checks that a law passed.

    Attributes:
        law: the name of the class of the law.
        samples: the number of tokens that were drawn.
        false_alarm: an upper bound on the probability that a correct law fails.
        checks: the checks, in order.
    """

    law: str
    samples: int
    false_alarm: float
    checks: tuple[LawCheck, ...]

    def __getitem__(self, name: str) -> LawCheck:
        """Return the check of this name."""
        return next(check for check in self.checks if check.name == name)

    def __str__(self) -> str:
        """Return a table with one row per check."""
        rows = []
        for check in self.checks:
            share = f"{check.largest:.2g}" if check.comparisons else "-"
            rows.append([check.name, str(check.comparisons), f"{share}  {check.note}".rstrip()])
        head = f"{self.law}: {self.samples} samples, false alarms below {self.false_alarm:g}"
        headings = ("check", "comparisons", "largest share of what is allowed")
        return f"{head}\n{aligned(headings, rows, left=(True, False, True))}"
