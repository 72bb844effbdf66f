"""Studies: claims with their checks, and figures with their arrays.

A study is a Python module, or a package whose public submodules each register claims and figures:

    STUDY = Study(title="On coins", citation="Author, 2026")

    @STUDY.claim(1, reference="Theorem 1")
    def fair(setting):
        '''A coin is fair.'''
        yield at_most("distance of the share of heads from 1/2", ..., 0.1, basis="...")
        yield control_at_least("the same for a loaded coin", ..., 0.3, basis="...")

    @STUDY.figure("Heads by toss", reference="Figure 1")
    def tosses(setting):
        '''The share of heads against the number of tosses.'''
        return {"share": ...}

    @tosses.drawing
    def draw_tosses(arrays):
        return matplotlib_figure

A study has the name of its module, a figure the name of its function, and a claim the name of its
function with dashes in place of underscores. The docstring of a claim is its statement, and that of
a figure its caption, with TeX between dollar signs. This module does not import jax.
"""

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from promptlimit.claims import Check, StoredStudy, Verdict
from promptlimit.errors import ArgumentError, InputFileError

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TAKEN = ("claims", "figures", "runs")
"""Names that a study cannot have, because a report has folders with these names."""

Protocol = Literal["exact", "full"]
Arrays = Mapping[str, "np.ndarray"]


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Setting:
    """The settings of a reproduction, passed to every claim and figure.

    Attributes:
        seed: the seed of all random numbers.
        quick: whether to compute less, for continuous integration: fewer lengths, starts and
            draws.
        protocol: "exact" computes gradient flows and a few runs of gradient descent; "full" also
            runs the whole training protocol of a paper.
        folder: the folder of trajectories and training runs, which figures and claims share. An
            interrupted command resumes from this folder. If None, runs are only kept in memory.
        report: a function that receives a short description of the current computation.
    """

    seed: int = 0
    quick: bool = False
    protocol: Protocol = "exact"
    folder: Path | None = None
    report: Callable[[str], object] = field(default=_silent, compare=False, repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return the settings that determine the numbers."""
        return {"seed": self.seed, "quick": self.quick, "protocol": self.protocol}


@dataclass(frozen=True)
class Claim:
    """A statement and the function that computes the checks that decide it.

    Attributes:
        number: the number of the claim in its study, from 1 to 999.
        name: a short name for the command line.
        statement: the statement that the checks test.
        reference: the place of the statement in the paper.
        decide: a function that returns or yields checks, at least one of them a negative control.
        expected: the expected verdict; `promptlimit reproduce` fails if the verdict differs.
        evidence: the reasons for an expected verdict other than "holds", in a few sentences.
        after_parts: whether the claim uses results of the parts of the study (see `Part`).
        quick: whether quick mode decides the claim. If not, quick mode does not call `decide`, and
            the verdict is "not decided in quick mode".
    """

    number: int
    name: str
    statement: str
    reference: str
    decide: Callable[[Setting], Iterable[Check]]
    expected: Verdict = "holds"
    evidence: str = ""
    after_parts: bool = False
    quick: bool = True

    def __post_init__(self) -> None:
        _require_name(self.name)
        if not 1 <= self.number <= 999:
            raise ArgumentError(
                "number", f"must be from 1 to 999, got {self.number} for {self.name}."
            )


@dataclass(eq=False)
class Figure:
    """A figure: its title and caption, the arrays it shows, and the function that draws them.

    Attributes:
        name: a short name for the command line.
        title: the subject of the figure, in a few words.
        caption: a description of what the figure shows.
        compute: a function that returns the arrays.
        section: "paper" if the paper contains this figure, "beyond" if it does not.
        reference: the number of the figure in the paper, or the place that defines what it shows.
        after_parts: whether the figure uses results of the parts of the study (see `Part`).
        draw: a function of the arrays that returns a Matplotlib figure.
    """

    name: str
    title: str
    caption: str
    compute: Callable[[Setting], Arrays]
    section: Literal["paper", "beyond"] = "beyond"
    reference: str = ""
    after_parts: bool = False
    draw: "Callable[[Arrays], matplotlib.figure.Figure] | None" = None

    def __post_init__(self) -> None:
        _require_name(self.name)

    def drawing(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Decorate the function that draws this figure from its arrays.

        One function can draw several figures: stack their decorators.
        """
        self.draw = function
        return function


@dataclass(frozen=True)
class Part:
    """A computation that several claims and figures share and that is stored in `Setting.folder`.

    Parts run before the claims and figures, in parallel processes. They only save time: a claim or
    figure must give the same result without them.

    Attributes:
        name: a short description.
        compute: a function that computes and stores the results.
        stage: the part starts when all parts of lower stages have ended.
        accelerated: whether the part runs on an accelerator if there is one.
    """

    name: str
    compute: Callable[[Setting], object]
    stage: int = 0
    accelerated: bool = False


Item = Claim | Figure | Part


class Study:
    """Claims and figures, registered by decorators in a module or package.

    Args:
        title: the title of the study, or of the paper that it reproduces.
        citation: authors, place and year.
        link: an address that starts with https://; optional.
        summary: the findings, in a few sentences.
        key_figure: the name of the figure that represents the study on the report's first page.
        order: the sort key of studies in a report; lower numbers come first.
        module: the name of the module that defines the study; by default the module that is being
            imported.
    """

    def __init__(
        self,
        title: str,
        *,
        citation: str = "",
        link: str = "",
        summary: str = "",
        key_figure: str = "",
        order: int = 1,
        module: str | None = None,
    ):
        self.title, self.citation, self.link = title, citation, link
        self.summary, self.key_figure, self.order = summary, key_figure, order
        self.module = _module_being_imported() if module is None else module
        self.address = self.name
        """The argument of `promptlimit reproduce` that finds the study: its name or its path."""
        self._claims: list[Claim] = []
        self._figures: list[Figure] = []
        self._parts: Callable[[Setting], Iterable[Part]] | None = None
        self._complete = False
        if self.name in _TAKEN:
            raise InputFileError(
                f"the study {self.name} must have a different name: a report has a folder "
                f"{self.name} already."
            )
        if link and not link.startswith("https://"):
            raise ArgumentError("link", f"must start with https://, got '{link}'.")

    def __repr__(self) -> str:
        return f"Study({self.title!r}, module={self.module!r})"

    @property
    def name(self) -> str:
        """The last part of the name of the study's module."""
        return self.module.rpartition(".")[2]

    @property
    def source(self) -> Path:
        """The path of the module's file, or of the package's folder."""
        module = importlib.import_module(self.module)
        return Path(module.__path__[0] if hasattr(module, "__path__") else str(module.__file__))

    @property
    def description(self) -> StoredStudy:
        """The title, citation and other text that a report shows."""
        return StoredStudy(
            name=self.name,
            title=self.title,
            citation=self.citation,
            link=self.link,
            summary=self.summary,
            key_figure=self.key_figure,
            order=self.order,
            address=self.address,
            claim_names=tuple(claim.name for claim in self.claims),
            figure_names=tuple(figure.name for figure in self.figures),
        )

    def claim(
        self,
        number: int,
        *,
        reference: str = "",
        expected: Verdict = "holds",
        evidence: str = "",
        after_parts: bool = False,
        quick: bool = True,
        name: str | None = None,
    ) -> Callable[[Callable[[Setting], Iterable[Check]]], Claim]:
        """Return a decorator that registers a function of a `Setting` as a claim.

        The function returns or yields checks. Its docstring is the statement. See also the
        attributes of `Claim`.

        Args:
            number: the number of the claim in the study.
            reference: the place of the statement in the paper.
            expected: the expected verdict.
            evidence: the reasons for an expected verdict other than "holds".
            after_parts: whether the claim uses results of the parts of the study.
            quick: whether quick mode decides the claim.
            name: the name for the command line; by default that of the function, with dashes.
        """

        def register(function: Callable[[Setting], Iterable[Check]]) -> Claim:
            called = name or _name_of(function).replace("_", "-")
            statement = self._docstring(function, f"the claim {called}", "its statement")
            claim = Claim(
                number=number,
                name=called,
                statement=statement,
                reference=reference,
                decide=function,
                expected=expected,
                evidence=evidence,
                after_parts=after_parts,
                quick=quick,
            )
            return self._add_claim(claim)

        return register

    def figure(
        self,
        title: str,
        *,
        reference: str = "",
        section: Literal["paper", "beyond"] = "beyond",
        after_parts: bool = False,
        name: str | None = None,
        caption: str | None = None,
    ) -> Callable[[Callable[[Setting], Arrays]], Figure]:
        """Return a decorator that registers a function of a `Setting` as a figure.

        The function returns the arrays of the figure, by name. If the function is called NAME,
        decorate the function that draws the arrays with `NAME.drawing`.

        Args:
            title: the subject of the figure, in a few words.
            reference: the number of the figure in the paper, or the place that defines what the
                figure shows.
            section: "paper" if the paper contains the figure, otherwise "beyond".
            after_parts: whether the figure uses results of the parts of the study.
            name: the name for the command line; by default that of the function.
            caption: a description of the figure; by default the docstring of the function.
        """

        def register(function: Callable[[Setting], Arrays]) -> Figure:
            called = name or _name_of(function)
            text = caption or self._docstring(function, f"the figure {called}", "its caption")
            figure = Figure(
                called, title, text, function, section, reference, after_parts=after_parts
            )
            return self._add_figure(figure)

        return register

    def parts(self, function: Callable[[Setting], Iterable[Part]]) -> Callable:
        """Decorate the function of a `Setting` that returns the parts of the study."""
        self._parts = function
        return function

    def list_parts(self, setting: Setting) -> tuple[Part, ...]:
        """Return the parts of the study, in the order that the decorated function returns."""
        self._import_all()
        return () if self._parts is None else tuple(self._parts(setting))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """All claims, sorted by number."""
        self._import_all()
        return tuple(sorted(self._claims, key=lambda claim: claim.number))

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, sorted by section ("paper" first) and by name."""
        self._import_all()
        return tuple(
            sorted(self._figures, key=lambda figure: (figure.section == "beyond", figure.name))
        )

    def draw(self, name: str, arrays: Arrays) -> "matplotlib.figure.Figure":
        """Return the figure called `name`, drawn from its arrays."""
        from matplotlib.figure import Figure  # noqa: PLC0415  # Matplotlib loads slowly

        from promptlimit.reporting import theme  # noqa: PLC0415  # as above

        drawing = {figure.name: figure.draw for figure in self.figures}.get(name)
        if drawing is None:
            raise InputFileError(f"the study {self.name} has no figure '{name[:40]}'")
        with theme():
            drawn = drawing(arrays)
        if not isinstance(drawn, Figure):
            raise InputFileError(
                f"the drawing of {name} must return a Matplotlib figure, got "
                f"{type(drawn).__name__}."
            )
        return drawn

    def require_complete(self) -> None:
        """Raise an error if a figure has no function that draws it."""
        for figure in self.figures:
            if figure.draw is None:
                raise InputFileError(
                    f"the figure {figure.name} of {self.name} must have a drawing: decorate a "
                    f"function of its arrays with @{figure.name}.drawing."
                )

    def _docstring(self, function: Any, item: str, role: str) -> str:
        own = function is not None and not isinstance(function, functools.partial)
        text = " ".join((function.__doc__ or "").split()) if own else ""
        if not text:
            raise InputFileError(f"{item} of {self.name} must have a docstring, which is {role}.")
        return text

    def _add_claim(self, claim: Claim) -> Claim:
        for other in self._claims:
            if other.number == claim.number:
                raise InputFileError(
                    f"claims of {self.name} must have different numbers, but {other.name} and "
                    f"{claim.name} both have number {claim.number}."
                )
        self._require_new_name(claim.name)
        self._claims.append(claim)
        return claim

    def _add_figure(self, figure: Figure) -> Figure:
        self._require_new_name(figure.name)
        self._figures.append(figure)
        return figure

    def _require_new_name(self, name: str) -> None:
        if name in {item.name for item in (*self._claims, *self._figures)}:
            raise InputFileError(
                f"claims and figures of {self.name} must have different names, got {name} twice."
            )

    def _import_all(self) -> None:
        """Import the public submodules of the package once, which registers their items."""
        if self._complete:
            return
        places: list[str] = [*getattr(sys.modules.get(self.module), "__path__", ())]
        for name in _public_modules(places):
            import_for_study(f"{self.module}.{name}", Path(places[0]) / name)
        self._complete = True


def import_for_study(name: str, place: Path) -> ModuleType:
    """Import and return a module; if this fails, raise an `InputFileError` that names `place`."""
    try:
        return importlib.import_module(name)
    except InputFileError:
        raise
    except Exception as problem:  # the code of a study may raise anything
        raise InputFileError(
            f"{place} must be a module of a study, but importing it raised "
            f"{type(problem).__name__}: {problem}"
        ) from problem


def _public_modules(places: list[str]) -> list[str]:
    names = (module.name for module in pkgutil.iter_modules(places))
    return sorted(name for name in names if not name.startswith("_"))


def _require_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            "name", f"must be letters, digits, dots, dashes and underscores, got '{name}'."
        )


def _name_of(function: Callable) -> str:
    name = getattr(function, "__name__", "")
    if not name:
        raise ArgumentError("name", "must be given for an object without a name of its own.")
    return name


def _module_being_imported() -> str:
    """Return the name of the innermost module whose top-level code is running."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return "__main__" if frame is None else frame.f_globals["__name__"]
