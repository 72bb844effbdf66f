"""A paper: who wrote it, what it claims, what it shows. Each is a package of its own.

Every folder next to this module that has these files is a paper:

    PAPER/__init__.py       defines PAPER, a `Paper`
    PAPER/claims/NAME.py    defines CLAIM, a `Claim`
    PAPER/figures/NAME.py   defines FIGURE, a `Figure`, or FIGURES, several drawn alike
    PAPER/drawings/NAME.py  defines draw(arrays), which draws them
    PAPER/study.py          defines parts(setting), what several of them share; if there is any

A package of the same shape that lies elsewhere is read by `paper_at`. Nothing here imports jax:
claims and figures are imported on first use, and drawings without them.
"""

import functools
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from promptlimit.claims import Check, StoredPaper, Verdict
from promptlimit.errors import ArgumentError, InputFileError

if TYPE_CHECKING:
    import matplotlib.figure
    import numpy as np

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_TAKEN = ("claims", "figures", "runs")
"""Folders of a report that do not belong to a paper."""

Protocol = Literal["exact", "full"]
Arrays = Mapping[str, "np.ndarray"]


def _silent(_: str) -> None:
    pass


@dataclass(frozen=True)
class Setting:
    """The settings of a reproduction, the folder of its runs, and a function for progress.

    Attributes:
        seed: of everything random.
        quick: whether to do less, for continuous integration: fewer lengths, starts and draws.
        protocol: "exact" follows gradient flows and a few runs of gradient descent; "full" also
            runs the whole training protocol of the paper.
        folder: where trajectories and training runs are kept, so that figures and claims share
            them and an interrupted reproduction can resume; None keeps them in memory.
        tell: a function called with a short description of the current computation.
    """

    seed: int = 0
    quick: bool = False
    protocol: Protocol = "exact"
    folder: Path | None = None
    tell: Callable[[str], object] = field(default=_silent, compare=False, repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return what decides the numbers."""
        return {"seed": self.seed, "quick": self.quick, "protocol": self.protocol}


@dataclass(frozen=True)
class Claim:
    """A statement of a paper and how this library decides it.

    Attributes:
        number: its place among the claims of the paper.
        name: a short name for the command line.
        statement: what is claimed, in one sentence.
        reference: where the paper claims it.
        decide: the numbers that decide it, in a setting.
        expected: the verdict on record; anything else is news.
        evidence: why the verdict on record is not "holds", in a few sentences.
        after_study: whether it reads what the parts of the paper's study compute.
        quick: whether the settings of quick mode decide it; if not, its verdict there is "not
            decided in quick mode" and `decide` is not called.
    """

    number: int
    name: str
    statement: str
    reference: str
    decide: Callable[[Setting], Sequence[Check]]
    expected: Verdict = "holds"
    evidence: str = ""
    after_study: bool = False
    quick: bool = True

    def __post_init__(self) -> None:
        _require_name("name", self.name)
        if not 1 <= self.number <= 999:
            raise ArgumentError(
                "number", f"must be from 1 to 999, got {self.number} for {self.name}."
            )


@dataclass(frozen=True)
class Figure:
    """A figure: its words, and the arrays it is drawn from.

    Attributes:
        name: a short name for the command line.
        title: its subject, in a few words.
        caption: what the figure shows.
        compute: the arrays it is drawn from, in a setting.
        section: whether the paper has this figure, or it goes beyond the paper.
        reference: the figure of the paper, or where the quantity is defined.
        after_study: whether it reads what the parts of the paper's study compute.
    """

    name: str
    title: str
    caption: str
    compute: Callable[[Setting], Arrays]
    section: Literal["paper", "beyond"] = "beyond"
    reference: str = ""
    after_study: bool = False

    def __post_init__(self) -> None:
        _require_name("name", self.name)

    @property
    def drawing(self) -> str:
        """The module of `drawings` that draws it: named as the one that computes it."""
        function = self.compute
        while isinstance(function, functools.partial):
            function = function.func
        return function.__module__.rpartition(".")[2]


@dataclass(frozen=True)
class Part:
    """Something that several claims and figures share, computed into the folder of the setting.

    Whatever needs it must be able to compute it: parts are only a way to have it earlier, side by
    side in several processes, with progress. One claim alone is decided without them.

    Attributes:
        name: a short description.
        compute: what computes it.
        stage: a part starts when all parts of lower stages have ended.
        accelerated: whether it runs on an accelerator where there is one.
    """

    name: str
    compute: Callable[[Setting], object]
    stage: int = 0
    accelerated: bool = False


Item = Claim | Figure | Part


@dataclass(frozen=True)
class Paper:
    """A paper and the package that reproduces it.

    Attributes:
        package: the name of the package, `__name__` in its `__init__`.
        title: of the paper.
        citation: authors, place and year.
        link: an address that starts with https://, or nothing.
        summary: what the reproduction found, in a few sentences.
        key_figure: the name of the figure that stands for the paper on the first page.
        order: papers of lower order come first in a report.
    """

    package: str
    title: str
    citation: str
    link: str = ""
    summary: str = ""
    key_figure: str = ""
    order: int = 1

    def __post_init__(self) -> None:
        if self.name in _TAKEN:
            raise ArgumentError(
                "package", f"must not end in {self.name}, which is another folder of a report."
            )
        if self.link and not self.link.startswith("https://"):
            raise ArgumentError("link", f"must start with https://, got '{self.link}'.")

    @property
    def name(self) -> str:
        """The name of its folder, by which the command line knows it."""
        return self.package.rpartition(".")[2]

    @property
    def address(self) -> str:
        """What the command line finds it by: its name, or its folder if it lies elsewhere."""
        own = self.package.startswith(f"{__name__.rpartition('.')[0]}.")
        return self.name if own else str(self.folder)

    @property
    def folder(self) -> Path:
        """Where its package lies."""
        return Path(importlib.import_module(self.package).__path__[0])

    @property
    def words(self) -> StoredPaper:
        """Its description for pages; claims are counted without importing them."""
        count = len(self._names("claims"))
        return StoredPaper(
            self.name,
            self.title,
            self.citation,
            self.link,
            self.summary,
            self.key_figure,
            self.order,
            count,
        )

    @functools.cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Every claim, by number."""
        claims = [_defined(module, Claim, "CLAIM") for module in self._modules("claims")]
        numbers = [claim.number for claim in claims]
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"claims of {self.name} must have different numbers, got {numbers}.")
        return tuple(sorted(claims, key=lambda claim: claim.number))

    @functools.cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Every figure: those of the paper, then those beyond it, by name."""
        figures: list[Figure] = []
        for module in self._modules("figures"):
            figures += getattr(module, "FIGURES", None) or (_defined(module, Figure, "FIGURE"),)
        return tuple(sorted(figures, key=lambda figure: (figure.section == "beyond", figure.name)))

    def require_drawable(self) -> None:
        """Refuse names that are there twice, and figures that nothing draws, before any work."""
        names = [item.name for item in (*self.claims, *self.figures)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"claims and figures of {self.name} must differ in name, got {twice}.")
        drawings = self._names("drawings")
        for figure in self.figures:
            if figure.drawing not in drawings:
                raise ValueError(
                    f"the figure {figure.name} of {self.name} must have a drawing: there is no "
                    f"drawings/{figure.drawing}.py beside figures/{figure.drawing}.py."
                )

    def parts(self, setting: Setting) -> tuple[Part, ...]:
        """Return what its claims and figures share, in the order in which to compute it."""
        if "study" not in self._names(""):
            return ()
        return tuple(self._module("study").parts(setting))

    def draw(self, drawing: str, arrays: Arrays) -> "matplotlib.figure.Figure":
        """Return a figure, drawn from its arrays by the module of `drawings` of that name."""
        from promptlimit.reporting import theme  # noqa: PLC0415  # matplotlib, when it is needed

        if drawing not in self._names("drawings"):
            raise ValueError(f"the paper {self.name} has no drawing '{drawing[:40]}'")
        with theme():
            return importlib.import_module(f"{self.package}.drawings.{drawing}").draw(arrays)

    def _names(self, below: str) -> list[str]:
        places = [str(self.folder / below)]
        names = (module.name for module in pkgutil.iter_modules(places))
        return sorted(name for name in names if not name.startswith("_"))

    def _modules(self, below: str) -> list[ModuleType]:
        return [self._module(f"{below}.{name}") for name in self._names(below)]

    def _module(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(f"{self.package}.{name}")
        except Exception as problem:  # code of others may raise anything
            file = self.folder / f"{name.replace('.', '/')}.py"
            raise InputFileError(
                f"{file} must be a module of a paper, but importing it raised "
                f"{type(problem).__name__}: {problem}"
            ) from problem


def _require_name(argument: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ArgumentError(
            argument, f"must be letters, digits, dots, dashes and underscores, got '{name}'."
        )


def _defined(module: ModuleType, kind: type, name: str) -> Any:
    item = getattr(module, name, None)
    if not isinstance(item, kind):
        raise InputFileError(f"{module.__file__} must define {name}, a {kind.__name__}.")
    return item


def papers() -> tuple[Paper, ...]:
    """Return the papers of this library, in their order and then by name."""
    here = __name__.rpartition(".")[0]
    folders = pkgutil.iter_modules(importlib.import_module(here).__path__)
    names = [module.name for module in folders if module.ispkg]
    found = [importlib.import_module(f"{here}.{name}").PAPER for name in names]
    return tuple(sorted(found, key=lambda paper: (paper.order, paper.name)))


def paper_at(folder: Path) -> Paper:
    """Return the paper of a package that lies elsewhere.

    Args:
        folder: the package; its parent folder is added to Python's search path.
    """
    place = folder.resolve()
    if not (place / "__init__.py").is_file() or not place.name.isidentifier():
        raise InputFileError(
            f"{folder} must be a Python package that defines PAPER, but it has no __init__.py or "
            "its name is none of a package."
        )
    if place.name in {paper.name for paper in papers()}:
        raise InputFileError(f"{folder} must have a name of its own: a paper is called so here.")
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    module = importlib.import_module(place.name)
    paper = getattr(module, "PAPER", None)
    if not isinstance(paper, Paper) or paper.folder.resolve() != place:
        raise InputFileError(
            f"{folder} must define PAPER = Paper(__name__, ...) in its __init__.py, and no other "
            f"package may be called {place.name}."
        )
    return paper
