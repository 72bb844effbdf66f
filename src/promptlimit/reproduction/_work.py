"""Claims and figures: read where they are stored, else computed, on several cores side by side."""

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable

import jax

from promptlimit._cores import usable_cores
from promptlimit.claims import Check, ClaimResult, Origin, ReportFolder, StoredClaim, StoredFigure
from promptlimit.errors import InputFileError
from promptlimit.reporting import FORMATS, QUICK_FORMATS
from promptlimit.reproduction._devices import on_cpu
from promptlimit.reproduction._fingerprint import drawing_hash, item_hash
from promptlimit.reproduction._paper import Claim, Figure, Item, Paper, Setting
from promptlimit.reproduction._pictures import drawn_figure
from promptlimit.reproduction._processes import Helper, Task
from promptlimit.storage import environment

_CORES_FOR_GROUPS = 4
_USUAL = {"part": 5.0, "claim": 2.0, "figure": 1.0}
"""How long one takes, beside the others."""


Key: TypeAlias = tuple[str, str, str]
"""Paper, kind and name."""


@runtime_checkable
class Listener(Protocol):
    """What is told how far the work is."""

    def plan(self, words: str, items: Mapping[str, float]) -> None:
        """Hear what is to be done: names, each with the time it usually takes."""

    def at(self, words: str) -> None:
        """Hear what is being done."""

    def end(self, *items: str, outcome: str, seconds: float | None, stored: bool) -> None:
        """Hear that items ended."""


class Work(NamedTuple):
    """One thing to do: an item of a paper, and what it is called beside the others."""

    paper: Paper
    item: Item
    label: str

    @property
    def key(self) -> Key:
        """What tells it from all others."""
        return self.paper.name, self.kind, self.item.name

    @property
    def kind(self) -> str:
        """Whether it is a "claim", a "figure", or a "part" of a study."""
        return type(self.item).__name__.lower()

    @property
    def after_study(self) -> bool:
        """Whether it belongs to the study of its paper."""
        return getattr(self.item, "after_study", True)


@dataclass(frozen=True)
class Outcome:
    """What came of one thing.

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
    new_helper: Callable[[], Helper[Outcome]] = Helper,
) -> list[Outcome]:
    """Return what came of claims and figures, in their order, read from disk or computed now.

    Args:
        chosen: papers, each with its claims and figures that are wanted.
        setting: theirs.
        folder: where they go.
        listener: what is told of each as it ends.
        whole: whether studies are computed part by part first, for progress.
        new_helper: starts another process that takes a share, or returns one that was started.
    """
    for paper, _ in chosen:
        paper.require_drawable()
    several = len(chosen) > 1
    wanted = [_work(paper, item, several) for paper, items in chosen for item in items]
    first: list[Work] = []
    for paper, _ in chosen:
        folder.save_paper(paper.words)
        of_study = [work for work in wanted if work.paper == paper and work.after_study]
        if whole and not all(_seems_stored(work, setting, folder) for work in of_study):
            first += [_work(paper, part, several) for part in paper.parts(setting)]
        first += of_study
    theory = [work for work in wanted if not work.after_study]
    order = [*first, *reversed(theory)]  # the other process comes from the front
    listener.plan(_plan(order, setting, folder), {work.label: _USUAL[work.kind] for work in order})
    stored = all(_seems_stored(work, setting, folder) for work in wanted)
    elsewhere = [] if stored else _elsewhere(theory, first)  # to start is longer than to read
    outcomes = _together(order, elsewhere, setting, folder, listener, new_helper=new_helper)
    broken = [outcomes[work.key] for work in order if work not in wanted]
    return [outcomes[work.key] for work in wanted] + [part for part in broken if part.problem]


def _work(paper: Paper, item: Item, several: bool) -> Work:
    return Work(paper, item, f"{paper.name}/{item.name}" if several else item.name)


def _plan(order: Sequence[Work], setting: Setting, folder: ReportFolder) -> str:
    """Return what is going to be computed, in words."""
    counts = Counter(work.kind for work in order)
    kinds = [kind for kind in _USUAL if counts[kind]]
    what = " and ".join(f"{counts[kind]} {kind}{'s' * (counts[kind] > 1)}" for kind in kinds)
    return f"{what}, {'quick, ' * setting.quick}{setting.protocol} protocol, into {folder.path}"


def _elsewhere(theory: Sequence[Work], study: Sequence[Work]) -> list[list[Work]]:
    """Return what other processes do beside the study, until this one takes it from them.

    Theory, and then the last group of parts; with more cores, each group apart.
    """
    cores = usable_cores()
    if cores < 2 or not theory or not study:
        return []
    groups: dict[tuple[str, str], list[Work]] = {}
    for work in study:
        group = getattr(work.item, "group", None)
        if group is not None:
            groups.setdefault((work.paper.name, group), []).append(work)
    queues = list(groups.values())
    if cores < _CORES_FOR_GROUPS:
        return [[*theory, *(queues[-1] if queues else ())]]
    return [[*theory], *queues]


def _seems_stored(work: Work, setting: Setting, folder: ReportFolder) -> bool:
    digest = item_hash(work.paper, work.kind, work.item.name, setting)
    return folder.holds(work.paper.name, f"{work.kind}s", work.item.name, digest)


def _together(
    order: Sequence[Work],
    elsewhere: Sequence[list[Work]],
    setting: Setting,
    folder: ReportFolder,
    listener: Listener,
    *,
    new_helper: Callable[[], Helper[Outcome]],
) -> dict[Key, Outcome]:
    """Do the work in order; what another process has begun is waited for when its turn comes."""
    by_key = {work.key: work for work in order}

    def tell(key: Hashable, result: Outcome) -> None:
        _tell(by_key[cast(Key, key)].label, result, listener)

    def tasks(queue: Sequence[Work]) -> list[Task[Outcome]]:
        return [(work.key, outcome, (work, setting, folder)) for work in queue]

    helpers: list[Helper[Outcome]] = []
    here = replace(setting, tell=listener.at)
    try:
        for queue in elsewhere:
            helpers.append(new_helper())
            helpers[-1].give(tasks(queue), tell)
        results: dict[Key, Outcome] = {}
        for place, work in enumerate(order):
            for helper in helpers[:1]:
                helper.give(tasks(_after_parts(order, place)), tell)
            results[work.key] = _in_turn(work, helpers, here, folder, listener)
        return results
    finally:
        for helper in helpers:
            helper.close()


def _after_parts(order: Sequence[Work], place: int) -> list[Work]:
    """Return what else of a study can be done once its last part has ended, the last first.

    Nothing where this process has an accelerator: others have none, and would train again what was
    trained there.
    """
    work = order[place]
    if jax.default_backend() != "cpu" or work.kind == "part":
        return []
    if place == 0 or order[place - 1].kind != "part":
        return []
    later = order[place + 1 :]
    return [one for one in reversed(later) if one.paper == work.paper and one.after_study]


def _in_turn(
    work: Work,
    helpers: Sequence[Helper[Outcome]],
    setting: Setting,
    folder: ReportFolder,
    listener: Listener,
) -> Outcome:
    listener.at(work.label)
    result = None
    if not any(helper.take(work.key) for helper in helpers):
        ends = (helper.result(work.key, work.label) for helper in helpers)
        result = next((end for end in ends if end is not None), None)
    if result is None:  # nobody else has begun it
        result = outcome(work, setting, folder)
    _tell(work.label, result, listener)  # even if it is told: the callback may come too late
    return result


def _tell(label: str, result: Outcome, listener: Listener) -> None:
    stored = result.stored is not None and not result.fresh
    listener.end(label, outcome=result.words, seconds=result.seconds, stored=stored)


def outcome(work: Work, setting: Setting, folder: ReportFolder) -> Outcome:
    """Return what comes of one thing: read where it is stored, else computed.

    What a paper's own code raises is told with the name of the item, and stops no other.
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
    """Return what is computed in double precision, on the CPU unless it asks for more."""
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
