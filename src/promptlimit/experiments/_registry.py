"""What can be reproduced: every module of `claims` and of `figures` adds one item by existing."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import jax
import numpy as np

from promptlimit.results import Check, ClaimResult, Verdict


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and how this library decides it.

    Attributes:
        number: its place among the nineteen claims of the reproduction.
        name: a short name for the command line.
        statement: what is claimed, in one sentence.
        reference: where the paper claims it.
        decide: the numbers that decide it, from a seed.
        expected: the verdict on record; anything else is news.
    """

    number: int
    name: str
    statement: str
    reference: str
    decide: Callable[[int], Sequence[Check]]
    expected: Verdict = "holds"


@dataclass(frozen=True)
class FigureRecipe:
    """A figure: its caption here, its data from `compute`, its drawing in `reporting`.

    Attributes:
        name: a short name, shared with the module of `reporting.figures` that draws it.
        caption: what the figure shows.
        compute: the arrays it is drawn from, from a seed.
    """

    name: str
    caption: str
    compute: Callable[[int], dict[str, np.ndarray]]


def all_claims() -> tuple[Claim, ...]:
    """Return every claim, by number."""
    found = [module.CLAIM for module in _modules("promptlimit.experiments.claims")]
    return tuple(sorted(found, key=lambda claim: claim.number))


def all_figures() -> tuple[FigureRecipe, ...]:
    """Return every figure, by name."""
    return tuple(module.FIGURE for module in _modules("promptlimit.experiments.figures"))


def decide(claim: Claim, *, seed: int) -> ClaimResult:
    """Return the claim with its numbers, computed in double precision."""
    with jax.enable_x64(True):
        checks = tuple(claim.decide(seed))
    return ClaimResult(
        number=claim.number,
        name=claim.name,
        statement=claim.statement,
        reference=claim.reference,
        expected=claim.expected,
        checks=checks,
    )


def figure_data(recipe: FigureRecipe, *, seed: int) -> dict[str, np.ndarray]:
    """Return the arrays a figure is drawn from, computed in double precision."""
    with jax.enable_x64(True):
        return recipe.compute(seed)


def _modules(package: str) -> list[ModuleType]:
    folder = importlib.import_module(package).__path__
    names = sorted(info.name for info in pkgutil.iter_modules(folder))
    return [importlib.import_module(f"{package}.{name}") for name in names]
