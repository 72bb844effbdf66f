"""What can be reproduced: every module of `claims` and of `figures` adds one item by existing."""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import jax
import numpy as np

from promptlimit.experiments._devices import on_cpu
from promptlimit.experiments._setting import Setting
from promptlimit.results import Check, ClaimResult, Verdict

_FIRST_OF_TRAINING = 13


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and how this library decides it.

    Attributes:
        number: its place among the nineteen claims of the reproduction.
        name: a short name for the command line.
        statement: what is claimed, in one sentence.
        reference: where the paper claims it.
        decide: the numbers that decide it, in a setting.
        expected: the verdict on record; anything else is news.
        evidence: why the verdict on record is not "holds", in a few sentences.
    """

    number: int
    name: str
    statement: str
    reference: str
    decide: Callable[[Setting], Sequence[Check]]
    expected: Verdict = "holds"
    evidence: str = ""

    @property
    def of_training(self) -> bool:
        """Whether it is about the experiments of the paper's section 6."""
        return self.number >= _FIRST_OF_TRAINING


@dataclass(frozen=True)
class FigureRecipe:
    """A figure: its caption here, its data from `compute`, its drawing in `reporting`.

    Attributes:
        name: a short name, shared with the module of `reporting.figures` that draws it.
        title: what it is about, in a few words.
        caption: what the figure shows.
        compute: the arrays it is drawn from, in a setting.
        section: whether the paper has this figure, or it goes beyond the paper.
        reference: the figure of the paper, or where the quantity is defined.
        after_training: whether it needs the training study though the paper has no such figure.
    """

    name: str
    title: str
    caption: str
    compute: Callable[[Setting], dict[str, np.ndarray]]
    section: Literal["paper", "beyond"] = "beyond"
    reference: str = ""
    after_training: bool = False

    @property
    def of_training(self) -> bool:
        """Whether it is about the experiments of the paper's section 6."""
        return self.section == "paper" or self.after_training


def all_claims() -> tuple[Claim, ...]:
    """Return every claim, by number."""
    found = [module.CLAIM for module in _modules("promptlimit.experiments.claims")]
    return tuple(sorted(found, key=lambda claim: claim.number))


def all_figures() -> tuple[FigureRecipe, ...]:
    """Return every figure: those of the paper, then those beyond it, by name."""
    found = [module.FIGURE for module in _modules("promptlimit.experiments.figures")]
    return tuple(sorted(found, key=lambda recipe: (recipe.section == "beyond", recipe.name)))


def decide(claim: Claim, setting: Setting) -> ClaimResult:
    """Return the claim with its numbers, computed in double precision."""
    with jax.enable_x64(True), on_cpu():
        checks = tuple(claim.decide(setting))
    return ClaimResult(
        number=claim.number,
        name=claim.name,
        statement=claim.statement,
        reference=claim.reference,
        expected=claim.expected,
        checks=checks,
        evidence=claim.evidence,
    )


def figure_data(recipe: FigureRecipe, setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays a figure is drawn from, computed in double precision."""
    with jax.enable_x64(True), on_cpu():
        return recipe.compute(setting)


def _modules(package: str) -> list[ModuleType]:
    folder = importlib.import_module(package).__path__
    names = sorted(info.name for info in pkgutil.iter_modules(folder))
    return [importlib.import_module(f"{package}.{name}") for name in names]
