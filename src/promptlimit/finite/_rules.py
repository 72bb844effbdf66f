"""One table a quantity: in which ways it can be had, and why not in the others.

What `kind="auto"` takes, the error that lists what is possible, and the table of the documentation
are all read off the same list of rules.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Generic, TypeVar

from jaxtyping import PRNGKeyArray

from promptlimit._errors import ArgumentError
from promptlimit._inputs import require_choice, require_random_key, require_samples
from promptlimit.finite._problem import Problem
from promptlimit.results import Kind, KindUnavailableError

Computed = TypeVar("Computed")

_MOST_SAMPLES = 2**16
_TARGET = 0.01
_KINDS: tuple[Kind, ...] = ("limit", "exact", "asymptotic", "bound", "estimate")


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much work a rule may do.

    Attributes:
        key: randomness, for prompts that are simulated.
        samples: the most of them; a default when None, and all of them without `rtol`.
        rtol: the relative standard error at which to stop earlier; a default without `samples`.
        tolerance: the relative error at which a quadrature over queries stops.
    """

    key: PRNGKeyArray | None = None
    samples: int | None = None
    rtol: float | None = None
    tolerance: float = 1e-7

    def __post_init__(self) -> None:
        rtol = self.rtol
        if rtol is not None and not 0.0 < rtol < math.inf:
            raise ArgumentError(
                "rtol", f"must be positive, got {rtol}. It is a relative standard error."
            )
        require_samples(self.samples)
        require_random_key(self.key)

    @property
    def most_samples(self) -> int:
        """The most prompts to simulate."""
        return _MOST_SAMPLES if self.samples is None else int(self.samples)

    @property
    def target(self) -> float:
        """The relative standard error at which to stop earlier; zero to simulate them all."""
        if self.rtol is not None:
            return float(self.rtol)
        return _TARGET if self.samples is None else 0.0


@dataclasses.dataclass(frozen=True)
class Rule(Generic[Computed]):
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
    compute: Callable[[Problem, Effort], Computed]


@dataclasses.dataclass(frozen=True)
class Quantity(Generic[Computed]):
    """A quantity and its rules: of one kind, the quickest first and the most general last.

    `rules` is a list, so that a rule of one's own can be put before the others.
    """

    name: str
    rules: list[Rule[Computed]]

    def possible(self, problem: Problem) -> dict[Kind, Rule[Computed]]:
        """Return the first rule that applies, of every kind that can be had."""
        rules = [self.first(problem, kind) for kind in _KINDS]
        return {rule.kind: rule for rule in rules if isinstance(rule, Rule)}

    def choose(self, problem: Problem, kind: str, effort: Effort) -> Rule[Computed]:
        """Return the rule for the kind asked for, or for the best that can be had.

        No kind is replaced by another in silence: what cannot be had is an error that says why,
        and what can.
        """
        kinds = {rule.kind for rule in self.rules} - {"limit"}
        require_choice("kind", kind, ["auto", *(name for name in _KINDS if name in kinds)])
        if kind != "estimate" and isinstance(limit := self.first(problem, "limit"), Rule):
            return limit
        if kind == "auto":
            return self._best(problem, effort)
        rule = self.first(problem, kind)
        if not isinstance(rule, Rule):
            allowed = " or ".join(f"'{name}'" for name in self.possible(problem) if name != "limit")
            raise KindUnavailableError(
                "kind", f"must be {allowed} for {problem.subject}, got '{kind}': {rule}."
            )
        if kind == "estimate" and effort.key is None:
            raise ArgumentError(
                "key",
                "must be given for kind='estimate', got None. "
                "Pass key=jax.random.key(0) to simulate prompts.",
            )
        return rule

    def _best(self, problem: Problem, effort: Effort) -> Rule[Computed]:
        rule = self.first(problem, "exact")
        if isinstance(rule, Rule):
            return rule
        if effort.key is None:
            others = [name for name in self.possible(problem) if name not in ("exact", "estimate")]
            words = " or ".join(f"kind='{name}'" for name in others)
            raise ArgumentError(
                "key",
                f"must be given for {problem.subject}, which has no exact answer here "
                f"({rule}), got None. Pass key=jax.random.key(0) to simulate prompts"
                f"{f', or {words}' if words else ''}.",
            )
        return self.choose(problem, "estimate", effort)

    def first(self, problem: Problem, kind: str) -> Rule[Computed] | str:
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
