"""One table a quantity: in which ways it can be had, and why not in the others.

What `kind="auto"` takes, the error that lists what is possible, and the table of the documentation
are all read off the same list of rules.
"""

import dataclasses
from collections.abc import Callable
from typing import Generic, TypeVar

from jaxtyping import PRNGKeyArray

from promptlimit._inputs import require_choice, require_random_key
from promptlimit.finite._accuracy import KindUnavailableError
from promptlimit.finite._problem import Problem
from promptlimit.results import Kind

Found = TypeVar("Found")

KINDS: tuple[Kind, ...] = ("limit", "exact", "asymptotic", "bound", "estimate")


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much work a rule may do.

    Attributes:
        key: randomness, for prompts that are simulated.
        samples: how many of them; a default when None.
        rtol: the relative standard error at which to stop earlier.
        tolerance: the relative error at which a quadrature over queries stops.
    """

    key: PRNGKeyArray | None = None
    samples: int | None = None
    rtol: float | None = None
    tolerance: float = 1e-7


@dataclasses.dataclass(frozen=True)
class Rule(Generic[Found]):
    """One way to have a quantity.

    Attributes:
        kind: what the numbers are.
        scope: for what it is, in words.
        method: how it is done, in words.
        obstacle: from a problem to the reason why the rule does not apply, None if it does.
        compute: from a problem and an effort to the numbers.
    """

    kind: Kind
    scope: str
    method: str
    obstacle: Callable[[Problem], str | None]
    compute: Callable[[Problem, Effort], Found]


@dataclasses.dataclass(frozen=True)
class Quantity(Generic[Found]):
    """A quantity and its rules: of one kind, the quickest first and the most general last.

    `rules` is a list, so that a rule of one's own can be put before the others.
    """

    name: str
    rules: list[Rule[Found]]

    def possible(self, problem: Problem) -> dict[Kind, Rule[Found]]:
        """Return the first rule that applies, of every kind that can be had."""
        found: dict[Kind, Rule[Found]] = {}
        for kind in KINDS:
            rule = self.first(problem, kind)
            if isinstance(rule, Rule):
                found[kind] = rule
        return found

    def choose(self, problem: Problem, kind: str, key: object) -> Rule[Found]:
        """Return the rule for the kind asked for, or for the best that can be had.

        No kind is replaced by another in silence: what cannot be had is an error that says why,
        and what can.
        """
        kinds = [each for each in KINDS if any(rule.kind == each for rule in self.rules)]
        require_choice("kind", kind, ["auto", *(each for each in kinds if each != "limit")])
        require_random_key(key)
        if kind != "estimate" and isinstance(limit := self.first(problem, "limit"), Rule):
            return limit
        if kind == "auto":
            return self._best(problem, key)
        found = self.first(problem, kind)
        if not isinstance(found, Rule):
            allowed = " or ".join(f"'{each}'" for each in self.possible(problem) if each != "limit")
            raise KindUnavailableError(
                f"`kind` must be {allowed} for {problem.subject}, got '{kind}': {found}."
            )
        if kind == "estimate" and key is None:
            raise ValueError(
                "`key` must be given for kind='estimate', got None. "
                "Pass key=jax.random.key(0) to simulate prompts."
            )
        return found

    def _best(self, problem: Problem, key: object) -> Rule[Found]:
        found = self.first(problem, "exact")
        if isinstance(found, Rule):
            return found
        if key is None:
            others = [each for each in self.possible(problem) if each not in ("exact", "estimate")]
            words = " or ".join(f"kind='{each}'" for each in others)
            raise ValueError(
                f"`key` must be given for {problem.subject}, which has no exact answer here "
                f"({found}), got None. Pass key=jax.random.key(0) to simulate prompts"
                f"{f', or {words}' if words else ''}."
            )
        return self.choose(problem, "estimate", key)

    def first(self, problem: Problem, kind: str) -> Rule[Found] | str:
        """Return the first rule of a kind that applies, else why the last of them does not."""
        reason = "no rule gives it"
        for rule in self.rules:
            if rule.kind == kind:
                obstacle = rule.obstacle(problem)
                if obstacle is None:
                    return rule
                reason = obstacle
        return reason

    def table(self) -> str:
        """Return the rules as a table in Markdown."""
        rows = [f"| `{rule.kind}` | {rule.scope} | {rule.method} |" for rule in self.rules]
        return "\n".join(["| kind | for | how |", "|---|---|---|", *rows])


def first_obstacle(*reasons: tuple[bool, str]) -> str | None:
    """Return the reason of the first condition that holds."""
    return next((reason for holds, reason in reasons if holds), None)
