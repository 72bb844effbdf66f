"""Claims and figures: read where they are stored, else computed, on several cores side by side."""

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax

from promptlimit._cores import usable_cores
from promptlimit.claims import Check, ClaimResult, Origin, ReportFolder, StoredClaim, StoredFigure
from promptlimit.errors import InputFileError
from promptlimit.reporting import FORMATS, QUICK_FORMATS
from promptlimit.storage import environment
from promptlimit.studies._devices import on_cpu
from promptlimit.studies._fingerprint import drawing_hash, item_hash
from promptlimit.studies._paper import Claim, Figure, Item, Paper, Part, Setting
from promptlimit.studies._pictures import drawn_figure
from promptlimit.studies._workers import worker_pool

_USUAL = {"part": 5.0, "claim": 2.0, "figure": 1.0}
"""Relative durations, for the estimate of the time left."""


Key: TypeAlias = tuple[str, str, str]
"""Paper, kind and name."""


@runtime_checkable
class Listener(Protocol):
    """Receives the progress."""

    def plan(self, words: str, items: Mapping[str, float]) -> None:
        """Receive the plan: names, each with its usual relative duration."""

    def at(self, words: str) -> None:
        """Receive a description of the current computation."""

    def end(self, *items: str, outcome: str, seconds: float | None, stored: bool) -> None:
        """Receive the end of one or more items."""


class Work(NamedTuple):
    """One piece of work: an item of a paper, with a label that is unique among all of them."""

    paper: Paper
    item: Item
    label: str

    @property
    def key(self) -> Key:
        """A unique key."""
        return self.paper.name, self.kind, self.item.name

    @property
    def kind(self) -> str:
        """Whether it is a "claim", a "figure", or a "part" of a study."""
        return type(self.item).__name__.lower()

    @property
    def after_study(self) -> bool:
        """Whether it is a claim or figure that reads what the parts of a study compute."""
        return not isinstance(self.item, Part) and self.item.after_study

    @property
    def needs_accelerator(self) -> bool:
        """Whether it must run in the process that has an accelerator, if there is one."""
        accelerated = isinstance(self.item, Part) and self.item.accelerated
        return accelerated and jax.default_backend() != "cpu"

    def needs(self, other: "Work") -> bool:
        """Whether it reads what another piece of work computes."""
        if self.paper != other.paper or not isinstance(other.item, Part):
            return False
        if isinstance(self.item, Part):
            return other.item.stage < self.item.stage
        return self.item.after_study


@dataclass(frozen=True)
class Outcome:
    """The result of one piece of work.

    Attributes:
        stored: the claim or figure as it lies on disk; None of a part.
        fresh: whether it was computed now.
        seconds: how long it took.
        svg: the drawing of a figure, for the page.
        note: a sentence about a file that had to be written again; mostly empty.
        problem: why there is nothing; empty where all went well.
    """

    stored: StoredClaim | StoredFigure | None
    fresh: bool
    seconds: float
    svg: bytes = b""
    note: str = ""
    problem: str = ""

    @property
    def words(self) -> str:
        """How it ended, in a few words: the verdict of a claim."""
        if self.problem:
            return "failed"
        if isinstance(self.stored, StoredClaim):
            result = self.stored.result
            news = "" if result.as_expected else f", on record {result.expected}"
            return f"{result.verdict}{news}{', stored' * (not self.fresh)}"
        if self.stored is None:
            return "computed"
        return "drawn" if self.fresh else "stored"


def reproduce(
    chosen: Sequence[tuple[Paper, Sequence[Claim | Figure]]],
    setting: Setting,
    folder: ReportFolder,
    listener: Listener,
    *,
    whole: bool,
) -> list[Outcome]:
    """Return the outcomes of claims and figures, in their order, read from disk or computed now.

    Args:
        chosen: papers, each with the claims and figures to reproduce.
        setting: of all claims and figures.
        folder: where results are stored.
        listener: receives the progress.
        whole: whether the parts of a study are computed first, side by side.
    """
    for paper, _ in chosen:
        paper.require_drawable()
        folder.save_paper(paper.words)
    several = len(chosen) > 1
    wanted = [_work(paper, item, several) for paper, items in chosen for item in items]
    missing = [work for work in wanted if not _seems_stored(work, setting, folder)]
    studies = [paper for paper, _ in chosen if any(_of_study(work, paper) for work in missing)]
    parts = [
        _work(paper, part, several)
        for paper in studies
        for part in (paper.parts(setting) if whole else ())
    ]
    order = [*parts, *wanted]
    listener.plan(_plan(order, setting, folder), {work.label: _USUAL[work.kind] for work in order})
    cores = min(usable_cores(), len(parts) + len(missing))
    if cores < 2:
        outcomes = {work.key: _here(work, setting, folder, listener) for work in order}
    else:
        outcomes = _side_by_side(order, setting, folder, listener, cores)
    failed = [outcomes[part.key] for part in parts if outcomes[part.key].problem]
    return [outcomes[work.key] for work in wanted] + failed


def _work(paper: Paper, item: Item, several: bool) -> Work:
    return Work(paper, item, f"{paper.name}/{item.name}" if several else item.name)


def _of_study(work: Work, paper: Paper) -> bool:
    return work.paper == paper and work.after_study


def _plan(order: Sequence[Work], setting: Setting, folder: ReportFolder) -> str:
    """Return what is going to be computed, in words."""
    counts = Counter(work.kind for work in order)
    kinds = [kind for kind in _USUAL if counts[kind]]
    what = " and ".join(f"{counts[kind]} {kind}{'s' * (counts[kind] > 1)}" for kind in kinds)
    return f"{what}, {'quick, ' * setting.quick}{setting.protocol} protocol, into {folder.path}"


def _seems_stored(work: Work, setting: Setting, folder: ReportFolder) -> bool:
    digest = item_hash(work.paper, work.kind, work.item.name, setting)
    return folder.holds(work.paper.name, f"{work.kind}s", work.item.name, digest)


def _side_by_side(
    order: Sequence[Work],
    setting: Setting,
    folder: ReportFolder,
    listener: Listener,
    cores: int,
) -> dict[Key, Outcome]:
    """Compute everything on several cores, each piece of work once all it needs has ended."""
    outcomes: dict[Key, Outcome] = {}
    waiting = sorted(order, key=lambda work: work.kind != "part")
    running: dict[Future[Outcome], Work] = {}

    def end(future: "Future[Outcome]") -> None:
        if not future.cancelled() and future.exception() is None:
            _tell(running[future].label, future.result(), listener)

    with worker_pool(cores) as pool:
        while len(outcomes) < len(order):
            unfinished = [work for work in order if work.key not in outcomes]
            ready = [work for work in waiting if not any(work.needs(one) for one in unfinished)]
            here = [work for work in ready if work.needs_accelerator]
            for work in ready:
                waiting.remove(work)
                if work not in here:
                    future = pool.submit(outcome, work, setting, folder)
                    running[future] = work
                    future.add_done_callback(end)
            for work in here:
                outcomes[work.key] = _here(work, setting, folder, listener)
            left = [future for future, work in running.items() if work.key not in outcomes]
            if left and not here:
                listener.at(", ".join(running[future].label for future in left[:cores]))
                ended, _ = wait(left, return_when=FIRST_COMPLETED)
                outcomes |= {running[future].key: future.result() for future in ended}
    return outcomes


def _here(work: Work, setting: Setting, folder: ReportFolder, listener: Listener) -> Outcome:
    """Compute in this process."""
    listener.at(work.label)
    result = outcome(work, replace(setting, tell=listener.at), folder)
    _tell(work.label, result, listener)
    return result


def _tell(label: str, result: Outcome, listener: Listener) -> None:
    stored = result.stored is not None and not result.fresh
    listener.end(label, outcome=result.words, seconds=result.seconds, stored=stored)


def outcome(work: Work, setting: Setting, folder: ReportFolder) -> Outcome:
    """Return the outcome of one piece of work, read from disk where it is stored, else computed.

    An exception in the code of a paper becomes the outcome's problem and does not stop other work.
    """
    began = time.monotonic()
    try:
        result = _outcome(work, setting, folder)
    except (OSError, MemoryError):  # of the machine, and so for all of them
        raise
    except Exception as problem:  # code of others may raise anything
        words = f"{type(problem).__name__}: {problem}".strip().removesuffix(":")
        where = "".join(traceback.format_tb(problem.__traceback__)[-1:]).strip().partition("\n")[0]
        told = f"the {work.kind} {work.item.name} of {work.paper.name} raised {words} ({where})"
        result = Outcome(None, True, 0.0, problem=told)
    return replace(result, seconds=time.monotonic() - began)


def _outcome(work: Work, setting: Setting, folder: ReportFolder) -> Outcome:
    if isinstance(work.item, Claim):
        return _claim_outcome(work.paper, work.item, setting, folder)
    if isinstance(work.item, Figure):
        return _figure_outcome(work.paper, work.item, setting, folder)
    in_double_precision(work.item.compute, setting)
    return Outcome(None, True, 0.0)


def decide(claim: Claim, setting: Setting) -> ClaimResult:
    """Return a claim with the numbers that decide it, computed in double precision."""
    if setting.quick and not claim.quick:
        return _result(claim, ())
    checks = tuple(in_double_precision(claim.decide, setting))
    if not any(check.role == "control" for check in checks):
        raise ValueError(
            f"the checks of {claim.name} must have a control among them: a case where the "
            "statement is known to be false."
        )
    return _result(claim, checks)


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
    """Return the result of a computation in double precision, on the CPU by default."""
    with jax.enable_x64(True), on_cpu():
        return compute(setting)


def _claim_outcome(paper: Paper, claim: Claim, setting: Setting, folder: ReportFolder) -> Outcome:
    digest = item_hash(paper, "claim", claim.name, setting)
    stored, note = _stored(folder.claim, paper, claim.name, digest)
    if stored is not None and stored.result == _result(claim, stored.result.checks):
        return Outcome(stored, False, 0.0)  # the words are those of the code, not of the file
    began = time.monotonic()
    result = decide(claim, setting)
    fresh = StoredClaim(paper.name, result, _origin(paper, claim.name, setting, digest, began))
    folder.save_claim(fresh)
    return Outcome(fresh, True, 0.0, note=note)


def _figure_outcome(
    paper: Paper, figure: Figure, setting: Setting, folder: ReportFolder
) -> Outcome:
    digest = item_hash(paper, "figure", figure.name, setting)
    stored, note = _stored(folder.figure, paper, figure.name, digest)
    fresh = stored is None
    if stored is None:
        began = time.monotonic()
        stored = StoredFigure(
            paper=paper.name,
            name=figure.name,
            title=figure.title,
            caption=figure.caption,
            reference=figure.reference,
            section=figure.section,
            drawing=figure.drawing,
            arrays=in_double_precision(figure.compute, setting),
            origin=_origin(paper, figure.name, setting, digest, began),
        )
        folder.save_figure(stored)
        stored = folder.figure(paper.name, figure.name) or stored  # as every later drawing sees it
    formats = QUICK_FORMATS if setting.quick else FORMATS
    stored, svg = drawn_figure(paper, stored, folder, drawing_hash(paper), formats)
    return Outcome(stored, fresh, 0.0, svg, note)


def _stored(read: Any, paper: Paper, name: str, digest: str) -> tuple[Any, str]:
    """Return what is stored with that hash, else None; and a note where a file is damaged."""
    try:
        item = read(paper.name, name)
    except InputFileError as problem:
        return None, f"{problem} It was computed again."
    return (item, "") if item is not None and item.origin.digest == digest else (None, "")


def _origin(paper: Paper, name: str, setting: Setting, digest: str, began: float) -> Origin:
    seconds = round(time.monotonic() - began, 2)
    return Origin(command(paper, name, setting), setting.to_dict(), seconds, digest)


def command(paper: Paper, name: str, setting: Setting) -> str:
    """Return the command line that computes an item again."""
    quick = " --quick" if setting.quick else ""
    protocol = "" if setting.protocol == "exact" else f" --protocol {setting.protocol}"
    return f"promptlimit reproduce {paper.address} {name}{quick}{protocol} --seed {setting.seed}"


def run_facts(setting: Setting, began: float) -> dict[str, Any]:
    """Return when, where and with what a reproduction ran that ends now.

    Args:
        setting: its setting.
        began: when, by the monotonic clock.
    """
    device, seconds = jax.devices()[0], time.monotonic() - began
    started = datetime.fromtimestamp(time.time() - seconds, UTC)
    return {
        "versions": environment(),
        "device": f"{device.platform}: {device.device_kind}, {os.cpu_count()} CPU cores",
        "setting": setting.to_dict(),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
