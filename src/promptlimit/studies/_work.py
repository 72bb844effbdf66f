"""Read a claim or figure of a reproduction from disk, or compute it; compute parts."""

import math
import shlex
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from promptlimit.claims import Check, ClaimResult, Origin, ReportFolder, StoredClaim, StoredFigure
from promptlimit.errors import InputFileError
from promptlimit.reporting import FORMATS, QUICK_FORMATS
from promptlimit.studies._finding import find_study
from promptlimit.studies._stored import drawing_hash, drawn_figure, item_hash
from promptlimit.studies._study import Claim, Figure, Item, Part, Setting, Study


@dataclass(frozen=True, eq=False)
class Work:
    """A claim, figure or part to compute in a setting.

    Decorated functions cannot be pickled. Pickling therefore stores the address of the study and
    the name of the item, which worker processes look up.

    Attributes:
        study: the study.
        item: the claim, figure or part.
        setting: the setting.
        label: the name in progress messages, unique within a command.
    """

    study: Study
    item: Item
    setting: Setting
    label: str

    def __reduce__(self) -> tuple[Any, ...]:
        place = (self.study.address, self.kind, self.item.name)
        return _find_work, (*place, self.setting, self.label)

    @property
    def key(self) -> tuple[str, str, str]:
        """The name of the study, the kind and the name of the item."""
        return self.study.name, self.kind, self.item.name

    @property
    def kind(self) -> str:
        """One of "claim", "figure" and "part"."""
        return type(self.item).__name__.lower()

    @property
    def digest(self) -> str:
        """The hash of the name, code and setting that determine the result."""
        return item_hash(self.study, self.kind, self.item.name, self.setting)

    @property
    def needs_accelerator(self) -> bool:
        """Whether the work uses an accelerator and must therefore run in the parent process."""
        accelerated = isinstance(self.item, Part) and self.item.accelerated
        return accelerated and jax.default_backend() != "cpu"

    def needs(self, other: "Work") -> bool:
        """Return whether this work must wait until `other` has ended."""
        if self.study is not other.study or not isinstance(other.item, Part):
            return False
        if isinstance(self.item, Part):
            return other.item.stage < self.item.stage
        return self.item.after_parts

    def is_stored(self, folder: ReportFolder) -> bool:
        """Return whether the folder contains a file with the hash of this work."""
        return folder.holds(self.study.name, f"{self.kind}s", self.item.name, self.digest)


def _find_work(address: str, kind: str, name: str, setting: Setting, label: str) -> Work:
    study = find_study(address)
    items: dict[str, Any] = {
        "claim": study.claims,
        "figure": study.figures,
        "part": study.list_parts(setting) if kind == "part" else (),
    }
    (item,) = (item for item in items[kind] if item.name == name)
    return Work(study, item, setting, label)


@dataclass(frozen=True)
class Outcome:
    """The result of one piece of work.

    Attributes:
        stored: the stored claim or figure; None for a part or a failure.
        fresh: whether the result was computed rather than read from disk.
        redrawn: whether the pictures of a figure were drawn rather than read from disk.
        seconds: the duration.
        svg: the drawing of a figure, for the page.
        note: the reason why a damaged file was computed again; usually empty.
        problem: the reason for a failure; empty if there was none.
    """

    stored: StoredClaim | StoredFigure | None
    fresh: bool = True
    redrawn: bool = False
    seconds: float = 0.0
    svg: bytes = b""
    note: str = ""
    problem: str = ""

    @property
    def summary(self) -> str:
        """A short description, such as the verdict of a claim."""
        if self.problem:
            return "failed"
        if isinstance(self.stored, StoredClaim):
            result = self.stored.result
            news = "" if result.as_expected else f", expected {result.expected}"
            return f"{result.verdict}{news}{', stored' * (not self.fresh)}"
        if self.stored is None:
            return "computed"
        return "drawn" if self.fresh else "redrawn" if self.redrawn else "stored"


def outcome(work: Work, folder: ReportFolder) -> Outcome:
    """Return the outcome of a piece of work: read from disk if it is stored, otherwise computed.

    An exception in the code of a study does not stop other work: it is described in
    `Outcome.problem` and stored for the report. Only an `OSError` or `MemoryError` is raised.
    """
    item = f"the {work.kind} {work.item.name} of {work.study.name}"
    began = time.monotonic()
    try:
        result = _outcome(work, folder)
    except (OSError, MemoryError):  # errors of the machine stop all work
        raise
    except InputFileError as problem:
        result = Outcome(None, problem=f"{item} failed: {problem}")
    except Exception as problem:  # the code of a study may raise anything
        reason = f"{type(problem).__name__}: {problem}".strip().removesuffix(":")
        where = "".join(traceback.format_tb(problem.__traceback__)[-1:]).strip().partition("\n")[0]
        result = Outcome(None, problem=f"{item} raised {reason} ({where})")
    if not isinstance(work.item, Part):
        folder.save_failure(work.study.name, work.item.name, result.problem)
    return replace(result, seconds=time.monotonic() - began)


def _outcome(work: Work, folder: ReportFolder) -> Outcome:
    if isinstance(work.item, Claim):
        return _claim_outcome(work, work.item, folder)
    if isinstance(work.item, Figure):
        return _figure_outcome(work, work.item, folder)
    in_double_precision(work.item.compute, work.setting)
    return Outcome(None)


def _claim_outcome(work: Work, claim: Claim, folder: ReportFolder) -> Outcome:
    stored, note = _stored(folder.claim, work)
    if stored is not None and stored.result == _result(claim, stored.result.checks):
        return Outcome(stored, fresh=False)
    began = time.monotonic()
    result = decide(claim, work.setting)
    fresh = StoredClaim(work.study.name, result, _origin(work, began))
    folder.save_claim(fresh)
    return Outcome(fresh, note=note)


def _figure_outcome(work: Work, figure: Figure, folder: ReportFolder) -> Outcome:
    study = work.study
    stored, note = _stored(folder.figure, work)
    fresh = stored is None
    if stored is None:
        began = time.monotonic()
        stored = StoredFigure(
            study=study.name,
            name=figure.name,
            title=figure.title,
            caption=figure.caption,
            reference=figure.reference,
            section=figure.section,
            arrays=_arrays(figure, work.setting),
            origin=_origin(work, began),
        )
        folder.save_figure(stored)
        stored = folder.figure(study.name, figure.name) or stored  # a later redrawing reads it too
    formats = QUICK_FORMATS if work.setting.quick else FORMATS
    drawn, svg = drawn_figure(study, stored, folder, drawing_hash(study), formats)
    return Outcome(drawn, fresh, redrawn=drawn is not stored, svg=svg, note=note)


def _arrays(figure: Figure, setting: Setting) -> dict[str, np.ndarray]:
    """Return the arrays that a figure shows, computed in double precision."""
    returned = in_double_precision(figure.compute, setting)
    if not isinstance(returned, Mapping):
        raise InputFileError(
            f"{figure.name} must return a dictionary of arrays by name, got "
            f"{type(returned).__name__}."
        )
    arrays = {name: np.asarray(array) for name, array in returned.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise InputFileError(
                f"{figure.name} must return arrays of real numbers, got {array.dtype} for '{name}'."
            )
    return arrays


def _stored(read: Any, work: Work) -> tuple[Any, str]:
    """Return the stored item or None, and a note if its file is damaged.

    The item is None if it is not stored, or if its hash differs from that of the work.
    """
    try:
        item = read(work.study.name, work.item.name)
    except InputFileError as problem:
        return None, f"{problem} It was computed again."
    return (item, "") if item is not None and item.origin.digest == work.digest else (None, "")


def _origin(work: Work, began: float) -> Origin:
    setting, seconds = work.setting, round(time.monotonic() - began, 2)
    quick = " --quick" if setting.quick else ""
    protocol = "" if setting.protocol == "exact" else f" --protocol {setting.protocol}"
    item = shlex.join([work.study.address, work.item.name])
    command = f"promptlimit reproduce {item}{quick}{protocol} --seed {setting.seed}"
    return Origin(command, setting.to_dict(), seconds, work.digest)


def decide(claim: Claim, setting: Setting) -> ClaimResult:
    """Return a claim with its checks, computed in double precision."""
    if setting.quick and not claim.quick:
        return _result(claim, ())
    checks = in_double_precision(lambda given: _as_tuple(claim.decide(given)), setting)
    for check in checks:
        if not isinstance(check, Check):
            raise InputFileError(
                f"{claim.name} must yield checks or return a list of checks, got "
                f"{type(check).__name__}. Use at_most or at_least."
            )
        if math.isnan(check.value) or math.isnan(check.tolerance):
            raise InputFileError(
                f"the check '{check.name}' of {claim.name} must compare two numbers, got "
                f"{check.value} {check.relation} {check.tolerance}."
            )
    if not any(check.role == "control" for check in checks):
        raise InputFileError(
            f"the checks of {claim.name} must include a control: a case where the statement is "
            "known to be false."
        )
    return _result(claim, checks)


def _as_tuple(returned: object) -> tuple[Any, ...]:
    return tuple(returned) if isinstance(returned, Iterable) else (returned,)


def _result(claim: Claim, checks: tuple[Check, ...]) -> ClaimResult:
    return ClaimResult(
        number=claim.number,
        name=claim.name,
        statement=claim.statement,
        reference=claim.reference,
        expected=claim.expected,
        checks=checks,
        evidence=claim.evidence,
    )


def in_double_precision(compute: Callable[[Setting], Any], setting: Setting) -> Any:
    """Return `compute(setting)`, with double precision and the CPU as the defaults of jax."""
    with jax.enable_x64(True), on_cpu():
        return compute(setting)


def on_cpu() -> AbstractContextManager:
    """Return a context in which jax computes on the CPU, even if there is an accelerator."""
    if jax.default_backend() == "cpu":
        return nullcontext()
    try:
        return jax.default_device(jax.devices("cpu")[0])
    except RuntimeError:  # jax was configured without a CPU
        return nullcontext()


def on_accelerator() -> AbstractContextManager:
    """Return a context in which jax computes on an accelerator if there is one."""
    return nullcontext() if jax.default_backend() == "cpu" else jax.default_device(None)
