"""Reproduce many claims and figures on several cores, in one setting or at many seeds."""

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from promptlimit._cores import usable_cores
from promptlimit.claims import ClaimResult, ReportFolder, StoredClaim
from promptlimit.storage import environment
from promptlimit.studies._stored import engine_hash
from promptlimit.studies._study import Claim, Figure, Item, Setting, Study
from promptlimit.studies._work import Outcome, Work, outcome
from promptlimit.studies._workers import worker_pool

_DURATIONS = {"part": 5.0, "claim": 2.0, "figure": 1.0}
"""Typical relative durations, for the estimate of the time left."""


@runtime_checkable
class Listener(Protocol):
    """An object that receives the progress of a reproduction."""

    def plan(self, words: str, items: Mapping[str, float]) -> None:
        """Receive a description of the plan, and a typical relative duration for each item."""

    def at(self, words: str) -> None:
        """Receive a description of the current computation."""

    def end(self, *items: str, outcome: str, seconds: float | None, stored: bool) -> None:
        """Receive the end of one or more items; `stored` is true if they were read from disk."""


def reproduce(
    chosen: Sequence[tuple[Study, Sequence[Claim | Figure]]],
    setting: Setting,
    folder: ReportFolder,
    listener: Listener,
    *,
    whole: bool,
) -> list[Outcome]:
    """Return the outcomes of claims and figures in the order of `chosen`; compute missing results.

    The outcomes of failed parts (computations that claims and figures share) come last.

    Args:
        chosen: studies, each with the claims and figures to reproduce.
        setting: the setting of all claims and figures.
        folder: the report folder in which results are stored.
        listener: the object that receives the progress.
        whole: whether to compute the parts of a study first if a missing result uses them.
    """
    for study, _ in chosen:
        study.require_complete()
    for study, _ in chosen:
        folder.save_study(study.description)

    def work(study: Study, item: Item) -> Work:
        label = f"{study.name}/{item.name}" if len(chosen) > 1 else item.name
        return Work(study, item, setting, label)

    wanted = [work(study, item) for study, items in chosen for item in items]
    missing = [piece for piece in wanted if not piece.is_stored(folder)]
    waiting_for_parts = {piece.study for piece in missing if _needs_parts(piece)}
    parts = [
        work(study, part)
        for study, _ in chosen
        if whole and study in waiting_for_parts
        for part in sorted(study.list_parts(setting), key=lambda part: part.stage)
    ]
    order = [*parts, *wanted]
    durations = {piece.label: _DURATIONS[piece.kind] for piece in order}
    listener.plan(_plan(order, setting, folder), durations)
    cores = min(usable_cores(), len(parts) + len(missing))
    if cores < 2:
        outcomes = {piece.key: _run_here(piece, folder, listener) for piece in order}
    else:
        outcomes = _run_in_parallel(order, folder, listener, cores)
    failed = [outcomes[part.key] for part in parts if outcomes[part.key].problem]
    return [outcomes[piece.key] for piece in wanted] + failed


def _needs_parts(work: Work) -> bool:
    return isinstance(work.item, Claim | Figure) and work.item.after_parts


def _plan(order: Sequence[Work], setting: Setting, folder: ReportFolder) -> str:
    counts = Counter(work.kind for work in order)
    kinds = [kind for kind in _DURATIONS if counts[kind]]
    items = ", ".join(f"{counts[kind]} {kind}{'s' * (counts[kind] > 1)}" for kind in kinds)
    return f"{items}, {'quick, ' * setting.quick}{setting.protocol} protocol, into {folder.path}"


def _run_in_parallel(
    order: Sequence[Work], folder: ReportFolder, listener: Listener, cores: int
) -> dict[tuple[str, str, str], Outcome]:
    """Return all outcomes by key, computed on several cores; work waits for the parts it needs."""
    outcomes: dict[tuple[str, str, str], Outcome] = {}
    waiting = sorted(order, key=lambda work: work.kind != "part")
    running: dict[Future[Outcome], Work] = {}

    def end(future: "Future[Outcome]") -> None:
        if not future.cancelled() and future.exception() is None:
            _report_end(running[future].label, future.result(), listener)

    with worker_pool(cores) as pool:
        while len(outcomes) < len(order):
            unfinished = [work for work in order if work.key not in outcomes]
            ready = [work for work in waiting if not any(work.needs(one) for one in unfinished)]
            here = [work for work in ready if work.needs_accelerator]
            for work in ready:
                waiting.remove(work)
                if work not in here:
                    future = pool.submit(outcome, work, folder)
                    running[future] = work
                    future.add_done_callback(end)
            for work in here:
                outcomes[work.key] = _run_here(work, folder, listener)
            left = [future for future, work in running.items() if work.key not in outcomes]
            if left and not here:
                listener.at(", ".join(running[future].label for future in left[:cores]))
                ended, _ = wait(left, return_when=FIRST_COMPLETED)
                outcomes |= {running[future].key: future.result() for future in ended}
    return outcomes


def _run_here(work: Work, folder: ReportFolder, listener: Listener) -> Outcome:
    """Compute one piece of work in this process."""
    listener.at(work.label)
    result = outcome(replace(work, setting=replace(work.setting, report=listener.at)), folder)
    _report_end(work.label, result, listener)
    return result


def _report_end(label: str, result: Outcome, listener: Listener) -> None:
    stored = result.stored is not None and not (result.fresh or result.redrawn)
    listener.end(label, outcome=result.summary, seconds=result.seconds, stored=stored)


def run_facts(setting: Setting, began: float) -> dict[str, Any]:
    """Return the versions, device, setting and duration of a command that ends now.

    `began` is the value of `time.monotonic()` at its beginning.
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


@dataclass(frozen=True)
class SeedVerdicts:
    """The verdicts of one claim at several seeds.

    Attributes:
        study: the name of the claim's study.
        name: the name of the claim.
        expected: the expected verdict, which the code of the study records.
        verdicts: the verdict by seed; "failed" if deciding the claim raised an error.
        differing: the reason for each verdict that differs from the expected one, by seed.
    """

    study: str
    name: str
    expected: str
    verdicts: dict[str, str]
    differing: dict[str, str]

    @property
    def decided(self) -> bool:
        """Whether the claim was decided at some seed; false if quick mode always skipped it."""
        return set(self.verdicts.values()) != {"not decided in quick mode"}


@dataclass(frozen=True)
class DecidedClaims:
    """The claims of a command, with their verdicts.

    Attributes:
        seed: the random seed.
        claims: the claims, in order.
    """

    seed: int
    claims: list[ClaimResult]


@dataclass(frozen=True)
class ClaimsAtSeeds:
    """The verdicts of claims at several seeds.

    Attributes:
        seeds: the random seeds.
        claims: the verdicts of each claim.
    """

    seeds: list[int]
    claims: list[SeedVerdicts]


def decide_at_seeds(
    chosen: Sequence[tuple[Study, Sequence[Claim]]],
    setting: Setting,
    seeds: Sequence[int],
    out: Path,
    listener: Listener,
) -> list[SeedVerdicts]:
    """Return the verdicts of claims at several seeds, one process per core.

    Each seed has a report folder, from which an interrupted command resumes.

    Args:
        chosen: studies, each with the claims to decide.
        setting: the setting; its seed is replaced by each of `seeds`.
        seeds: the seeds.
        out: the folder of the reports; the report of seed 3 is `out/seeds/3`.
        listener: the object that receives the progress.
    """
    for study, _ in chosen:
        study.require_complete()
    claims = [(study, claim) for study, listed in chosen for claim in listed]
    labels = {seed: f"seed {seed}" for seed in seeds}
    listener.plan(
        f"{len(claims)} claim{'s' * (len(claims) > 1)} at {len(seeds)} seeds, "
        f"{'quick, ' * setting.quick}{setting.protocol} protocol, into {out / 'seeds'}",
        dict.fromkeys(labels.values(), 1.0),
    )
    by_seed: dict[int, list[Outcome]] = {}
    with worker_pool(min(usable_cores(), len(seeds))) as pool:
        futures = {}
        for seed in seeds:
            folder = ReportFolder(out / "seeds" / str(seed))
            own = replace(setting, seed=seed, folder=folder.runs(engine_hash()))
            work = [Work(study, claim, own, claim.name) for study, claim in claims]
            futures[pool.submit(_outcomes, work, folder)] = seed
        for future in as_completed(futures):
            seed = futures[future]
            by_seed[seed] = ended = future.result()
            seconds = sum(one.seconds for one in ended)
            listener.end(labels[seed], outcome=_summary(ended), seconds=seconds, stored=False)
    return [
        _seed_verdicts(study, claim, {seed: by_seed[seed][place] for seed in seeds})
        for place, (study, claim) in enumerate(claims)
    ]


def _outcomes(work: Sequence[Work], folder: ReportFolder) -> list[Outcome]:
    return [outcome(piece, folder) for piece in work]


def _seed_verdicts(study: Study, claim: Claim, outcomes: Mapping[int, Outcome]) -> SeedVerdicts:
    verdicts, differing = {}, {}
    for seed, end in sorted(outcomes.items()):
        result = end.stored.result if isinstance(end.stored, StoredClaim) else None
        verdicts[str(seed)] = "failed" if result is None else result.verdict
        if result is None:
            differing[str(seed)] = end.problem
        elif not result.as_expected:
            failed = "; ".join(
                f"{check.name}: {check.value:.3g}, must be {check.relation} {check.tolerance:.3g}"
                for check in result.checks
                if not check.passed
            )
            differing[str(seed)] = f"{result.verdict} ({failed or 'every check passed'})"
    return SeedVerdicts(study.name, claim.name, claim.expected, verdicts, differing)


def _summary(outcomes: Sequence[Outcome]) -> str:
    results = [end.stored.result for end in outcomes if isinstance(end.stored, StoredClaim)]
    decided = [result for result in results if result.decided]
    well = sum(result.as_expected for result in decided)
    return f"{well} of {len(decided) + len(outcomes) - len(results)} verdicts as expected"
