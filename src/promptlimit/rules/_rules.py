"""Quantities and the rules that compute them.

A quantity, such as the moments of a finite prompt, has a list of rules. Each rule computes numbers
of one kind for some problems. A problem consists of the validated arguments of a call. The list of
rules determines which rule a call uses, the error if no rule applies, the tables of the
documentation and the result of `explain`.
"""

import contextvars
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from promptlimit._inputs import require_choice
from promptlimit._text import aligned
from promptlimit.errors import AccuracyError, ArgumentError, KindUnavailableError
from promptlimit.results import Kind
from promptlimit.rules._effort import Effort

_KINDS: tuple[Kind, ...] = ("limit", "exact", "asymptotic", "bound", "estimate")


@runtime_checkable
class Subject(Protocol):
    """A problem: the validated arguments of a call."""

    @property
    def subject(self) -> str:
        """A description of the problem, for messages."""


ProblemT = TypeVar("ProblemT", bound=Subject)
Computed = TypeVar("Computed")
Known = TypeVar("Known")
ComputeT = TypeVar("ComputeT", bound=Callable[..., Any])


class OutOfScope(str):
    """An obstacle of a rule that is meant for another class of problems.

    Messages show it only if no rule has a more specific obstacle.
    """

    __slots__ = ()


class UserReason(str):
    """Several obstacles in one text, including the obstacles of all user-defined rules."""

    __slots__ = ()


def unwrap(value: Known | None) -> Known:
    """Return a value that is never None for a problem to which the rule applies."""
    if value is None:
        raise TypeError("a rule must not compute where its obstacle holds")
    return value


def applies_always(problem: object) -> None:  # noqa: ARG001
    """Return None: the obstacle of a rule that applies to every problem."""
    return


@dataclasses.dataclass(frozen=True)
class Rule(Generic[ProblemT, Computed]):
    """One method for computing a quantity.

    Attributes:
        kind: the kind of the computed numbers.
        scope: a phrase that describes the problems to which the rule applies.
        method: a phrase that describes the computation.
        obstacle: a function of a problem that returns None if the rule applies to it, and otherwise
            the reason as a clause.
        compute: a function of a problem and an effort that returns the numbers.
        any_prompt: whether the rule also applies to prompts whose tokens are not independent draws
            from one measure.
    """

    kind: Kind
    scope: str
    method: str
    obstacle: Callable[[ProblemT], str | None]
    compute: Callable[[ProblemT, Effort], Computed]
    any_prompt: bool = False

    def reason(self, problem: ProblemT) -> str | None:
        """Return None if the rule applies to a problem, and otherwise the reason."""
        if not self.any_prompt and (words := getattr(problem, "prompt_description", None)):
            return OutOfScope(f"the prompt has {words}")
        reason = self.obstacle(problem)
        if reason is not None and not (isinstance(reason, str) and reason):
            raise TypeError(
                f"`obstacle` of the rule for {self.scope} must return None where the rule applies "
                f"and a sentence where it does not, got {reason!r}."
            )
        return reason

    @property
    def is_user_defined(self) -> bool:
        """Whether the function of the rule is defined outside this package."""
        function: Any = self.compute
        while isinstance(function, partial):
            function = function.func
        return not str(getattr(function, "__module__", "")).startswith("promptlimit.")


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The rules of a quantity and whether they apply to a problem; `str` returns a table.

    Attributes:
        quantity: the name of the quantity.
        subject: a description of the problem.
        chosen: the rule that the call would use; None if it would raise an error.
        obstacles: pairs of a rule and its obstacle, None if the rule applies.
        error: the message of the error that the call would raise, or None.
    """

    quantity: str
    subject: str
    chosen: Rule[Any, Any] | None
    obstacles: tuple[tuple[Rule[Any, Any], str | None], ...]
    error: str | None

    def __str__(self) -> str:
        rows = []
        for rule, obstacle in self.obstacles:
            status = "applies" if obstacle is None else f"no: {obstacle}"
            chosen = rule is self.chosen
            head = (">" if chosen else "", rule.kind, rule.scope, rule.method)
            rows.append((*head, "chosen" if chosen else status))
        headings = ("", "kind", "rule", "method", "status")
        header = [f"{self.quantity}: {self.subject}"]
        header += [] if self.error is None else [f"error: {self.error}"]
        return "\n".join([*header, aligned(headings, rows, left=[True] * len(headings))])

    def __repr__(self) -> str:
        return str(self)


class _ExplainedError(BaseException):
    """Ends a call made by `explain` at the point where it would choose a rule."""

    def __init__(self, explanation: Explanation):
        super().__init__()
        self.explanation = explanation


_explained: contextvars.ContextVar[tuple[object, ...]] = contextvars.ContextVar(
    "explained", default=()
)


@dataclasses.dataclass(frozen=True, eq=False)
class Quantity(Generic[ProblemT, Computed]):
    """A quantity and its rules. Among the rules of one kind, the first that applies is used.

    Attributes:
        name: the name of the public function.
        rules: the rules, to which `rule` adds and from which `remove` removes.
        hint: a suggestion for the error if no rule applies.
        returns: a description of the object that the rules return.
    """

    name: str
    rules: list[Rule[ProblemT, Computed]] = dataclasses.field(default_factory=list)
    hint: str = ""
    returns: str = ""

    def rule(
        self,
        *,
        kind: str,
        scope: str,
        method: str,
        obstacle: Callable[[ProblemT], str | None] = applies_always,
        first: bool = False,
        any_prompt: bool = False,
    ) -> Callable[[ComputeT], ComputeT]:
        """Return a decorator that registers a function of a problem and an effort as a rule.

        The new rule replaces a rule of the same kind and scope whose function has the same module
        and name, so that a notebook cell can be executed again.

        Args:
            kind: the kind of the computed numbers.
            scope: a phrase that describes the problems to which the rule applies.
            method: a phrase that describes the computation.
            obstacle: a function of a problem that returns None if the rule applies to it, and
                otherwise the reason as a clause.
            first: whether the rule precedes the rules that are already registered.
            any_prompt: whether the rule also applies to prompts whose tokens are not independent
                draws from one measure.
        """
        own = require_choice("kind", kind, _KINDS)

        def register(compute: ComputeT) -> ComputeT:
            for other in [one for one in self.rules if _same_name(one.compute, compute)]:
                if other.kind == own and other.scope == scope:
                    self.rules.remove(other)
            added = Rule(own, scope, method, obstacle, compute, any_prompt)
            self.rules.insert(0 if first else len(self.rules), added)
            return compute

        return register

    def remove(self, compute: Callable[..., Any]) -> None:
        """Remove every rule with this function."""
        kept = [one for one in self.rules if one.compute is not compute]
        if len(kept) == len(self.rules):
            raise ArgumentError("compute", f"must be a rule of {self.name}, got {compute!r}.")
        self.rules[:] = kept

    def possible(self, problem: ProblemT) -> dict[Kind, Rule[ProblemT, Computed]]:
        """Return, by kind, the first rule that applies; kinds without such a rule are omitted."""
        rules = [self.first(problem, kind) for kind in _KINDS]
        return {rule.kind: rule for rule in rules if isinstance(rule, Rule)}

    def choose(self, problem: ProblemT, kind: str, effort: Effort) -> Rule[ProblemT, Computed]:
        """Return the rule for the requested kind; for "auto", the best available rule.

        If the requested kind is not available, the error gives the reason and lists the available
        kinds. If a rule of kind "limit" applies, it is returned for every kind except "estimate".
        """
        self.explain_here(problem, kind, effort)
        return self._choose(problem, kind, effort)

    def explain_here(self, problem: ProblemT, kind: str, effort: Effort) -> None:
        """Raise the explanation if `explain` made the current call; otherwise do nothing.

        `choose` calls this method. A function that uses rules of several kinds calls it directly.
        """
        if self in _explained.get():
            raise _ExplainedError(self._explanation(problem, kind, effort))

    def compute(
        self, rule: Rule[ProblemT, Computed], problem: ProblemT, kind: str, effort: Effort
    ) -> tuple[Rule[ProblemT, Computed], Computed]:
        """Return the rule that computed the result, and the result.

        If `rule` raises `AccuracyError` or `KindUnavailableError`, the rule of kind "estimate" is
        used instead, provided that `kind` is "auto", a key is given and such a rule applies.
        """
        try:
            return rule, rule.compute(problem, effort)
        except (AccuracyError, KindUnavailableError):
            other = self.first(problem, "estimate")
            if kind != "auto" or effort.key is None or other is rule or isinstance(other, str):
                raise
            return other, other.compute(problem, effort)

    def _choose(self, problem: ProblemT, kind: str, effort: Effort) -> Rule[ProblemT, Computed]:
        kinds = {rule.kind for rule in self.rules} - {"limit"}
        names = ["auto", *(name for name in _KINDS if name in kinds)]
        if kind == "limit":
            if not _is_infinite(problem):
                raise KindUnavailableError(
                    "kind",
                    f"must be one of {', '.join(map(repr, names))} for {problem.subject} at finite "
                    "lengths, got 'limit'. Pass lengths=math.inf to compute the limit.",
                )
            kind = "exact"
        require_choice("kind", kind, names)
        if kind != "estimate" and isinstance(limit := self.first(problem, "limit"), Rule):
            return limit
        if kind == "auto":
            return self._best(problem, effort)
        rule = self.first(problem, kind)
        if not isinstance(rule, Rule):
            raise self._unavailable(problem, kind, rule)
        if kind == "estimate" and effort.key is None:
            raise ArgumentError(
                "key",
                "must be given for kind='estimate', got None. "
                "Pass key=jax.random.key(0) to simulate prompts.",
            )
        return rule

    def _unavailable(self, problem: ProblemT, kind: str, reason: str) -> KindUnavailableError:
        names = [f"'{name}'" for name in self.possible(problem) if name != "limit"]
        if not names:
            why = "no rule covers it" if isinstance(reason, OutOfScope) else reason
            hint = f" {self.hint}" if self.hint else ""
            return KindUnavailableError(
                self.name, f"is not available for {problem.subject}: {why}.{hint}"
            )
        return KindUnavailableError(
            "kind",
            f"must be {' or '.join(names)} for {problem.subject}, got '{kind}': {reason}.",
        )

    def _best(self, problem: ProblemT, effort: Effort) -> Rule[ProblemT, Computed]:
        rule = self.first(problem, "exact")
        if isinstance(rule, Rule):
            return rule
        reason = self._reason(problem, "exact", "limit")
        if not any(one.kind == "estimate" for one in self.rules):
            raise self._unavailable(problem, "auto", reason)
        if effort.key is None:
            others = [name for name in self.possible(problem) if name not in ("exact", "estimate")]
            words = " or ".join(f"kind='{name}'" for name in others)
            raise ArgumentError(
                "key",
                f"must be given for {problem.subject}, which has no exact answer here "
                f"({reason}), got None. Pass key=jax.random.key(0) to simulate prompts"
                f"{f', or {words}' if words else ''}.",
            )
        return self._choose(problem, "estimate", effort)

    def first(self, problem: ProblemT, kind: str) -> Rule[ProblemT, Computed] | str:
        """Return the first rule of a kind that applies, or the reason why no rule applies."""
        rules = (rule for rule in self.rules if rule.kind == kind)
        found = next((rule for rule in rules if rule.reason(problem) is None), None)
        return self._reason(problem, kind) if found is None else found

    def _reason(self, problem: ProblemT, *kinds: str) -> str:
        """Return why no rule of these kinds applies.

        The text contains the obstacles of all user-defined rules, and one obstacle of a built-in
        rule: that of the last rule with an obstacle, of the first kind in `kinds` with such a rule.
        An `OutOfScope` obstacle is used only if there is no other obstacle.
        """
        users: list[str] = []
        near: list[str] = []
        far: list[str] = []
        for kind in kinds:
            rules = [rule for rule in self.rules if rule.kind == kind]
            built_in, other_scope = [], []
            for rule, reason in ((rule, rule.reason(problem)) for rule in rules):
                if isinstance(reason, OutOfScope):
                    other_scope.append(reason)
                elif rule.is_user_defined or isinstance(reason, UserReason):
                    users.append(str(reason))
                elif reason is not None:
                    built_in.append(reason)
            near, far = near or built_in[-1:], far or other_scope[-1:]
        if users:
            return UserReason("; ".join(dict.fromkeys([*users, *near])))
        return (near or far or [OutOfScope("no rule computes it")])[-1]

    def table(self) -> str:
        """Return the rules as a table in Markdown."""
        rows = [f"| `{rule.kind}` | {rule.scope} | {rule.method} |" for rule in self.rules]
        return "\n".join(["| kind | applies to | method |", "|---|---|---|", *rows])

    def _explanation(self, problem: ProblemT, kind: str, effort: Effort) -> Explanation:
        obstacles = tuple((rule, rule.reason(problem)) for rule in self.rules)
        chosen, error = None, None
        try:
            chosen = self._choose(problem, kind, effort)
        except ValueError as raised:
            error = str(raised)
        return Explanation(self.name, problem.subject, chosen, obstacles, error)


def _is_infinite(problem: object) -> bool:
    """Return whether a problem has lengths and all of them are infinite."""
    lengths = getattr(problem, "lengths", ())
    return np.size(lengths) > 0 and bool(np.isinf(lengths).all())


def _same_name(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    names = [
        (getattr(function, "__module__", None), getattr(function, "__qualname__", None))
        for function in (one, other)
    ]
    return names[0] == names[1] and None not in names[0]


_QUANTITIES = "__quantities__"


def computes(*quantities: Quantity[Any, Any]) -> Callable[[ComputeT], ComputeT]:
    """Return a decorator that records for `explain` which quantities a public function computes.

    If there are several quantities, the arguments of a call determine which one it computes.
    """

    def mark(function: ComputeT) -> ComputeT:
        setattr(function, _QUANTITIES, quantities)
        return function

    return mark


def explain(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Explanation:
    """Return the rule that a call would use and, for every rule, whether it applies.

    The arguments are validated as in the call, but nothing is computed.

    Args:
        function: a public function that has rules, such as `promptlimit.output_gap`.
        *arguments: the positional arguments of the call.
        **keywords: the keyword arguments of the call.

    >>> import promptlimit as pl
    >>> head = pl.SoftmaxAttention(key_query=[[1.0]], value=[[1.0]])
    >>> normal = pl.Gaussian([0.0], [[1.0]])
    >>> found = pl.explain(pl.output_gap, head, normal, normal, [10, 1000])
    >>> print(found.chosen.kind, found.chosen.method)
    exact one integral over the sharpness
    >>> print(found.obstacles[1][1])
    it is not a linear head
    """
    quantities = getattr(function, _QUANTITIES, ())
    if not quantities:
        name = getattr(function, "__name__", type(function).__name__)
        raise ArgumentError(
            "function",
            f"must be a function that has rules, got {name}. "
            "Pass one such as promptlimit.prompt_moments, not its result.",
        )
    token = _explained.set(quantities)
    try:
        function(*arguments, **keywords)
    except _ExplainedError as stopped:
        return stopped.explanation
    finally:
        _explained.reset(token)
    raise AssertionError(f"{quantities[0].name} returned without choosing a rule")
