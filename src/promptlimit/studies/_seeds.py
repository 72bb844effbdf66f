"""Claims decided at many seeds: a verdict is a property of the claim, not of the seed."""

import functools
import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from promptlimit._cores import usable_cores
from promptlimit.claims import ClaimResult, ReportFolder, StoredClaim
from promptlimit.studies._fingerprint import engine_hash
from promptlimit.studies._paper import Claim, Paper, Setting, paper_at, papers
from promptlimit.studies._work import Listener, Outcome, Work, outcome
from promptlimit.studies._workers import worker_pool


@dataclass(frozen=True)
class SeedVerdicts:
    """The verdicts of one claim at several seeds.

    Attributes:
        paper: the name of its paper.
        name: the name of the claim.
        expected: the verdict on record.
        results: the decided claim at each seed; None where deciding it failed.
        problems: the reason for each failure, by seed.
    """

    paper: str
    name: str
    expected: str
    results: dict[int, ClaimResult | None]
    problems: dict[int, str]

    @property
    def decided(self) -> bool:
        """Whether the claim was decided at any seed; quick mode leaves some claims out."""
        return any(result is None or result.decided for result in self.results.values())

    @property
    def differing(self) -> tuple[int, ...]:
        """The seeds at which the verdict is not the one on record."""
        return tuple(
            seed
            for seed, result in sorted(self.results.items())
            if result is None or not result.as_expected
        )

    def to_dict(self) -> dict[str, object]:
        """Return verdicts by seed, and the checks that failed where a verdict differs."""
        return {
            "paper": self.paper,
            "name": self.name,
            "expected": self.expected,
            "verdicts": {
                str(seed): "failed" if result is None else result.verdict
                for seed, result in sorted(self.results.items())
            },
            "differing": {str(seed): self.reason(seed) for seed in self.differing},
        }

    def reason(self, seed: int) -> str:
        """Return why the verdict at a seed is not the one on record."""
        result = self.results[seed]
        if result is None:
            return self.problems[seed]
        failed = [
            f"{check.name}: {check.value:.3g}, must be {check.relation} {check.tolerance:.3g}"
            for check in result.checks
            if not check.passed
        ]
        return f"{result.verdict} ({'; '.join(failed) or 'every check passed'})"


def decide_at_seeds(
    chosen: Sequence[tuple[Paper, Sequence[Claim]]],
    setting: Setting,
    seeds: Sequence[int],
    out: Path,
    listener: Listener,
) -> list[SeedVerdicts]:
    """Return the verdicts of claims at several seeds, one process per core.

    Each seed has its own report folder, so that an interrupted command resumes from the stored
    results.

    Args:
        chosen: papers, each with the claims to decide.
        setting: of all seeds; its own seed is not used.
        seeds: the seeds.
        out: the folder of the reports; seed 3 goes to `out/seeds/3`.
        listener: receives the progress.
    """
    addresses = [(paper.address, [claim.name for claim in claims]) for paper, claims in chosen]
    work = functools.partial(_at_seed, addresses, setting, out=out)
    labels = {seed: f"seed {seed}" for seed in seeds}
    count = sum(len(claims) for _, claims in chosen)
    listener.plan(
        f"{count} claim{'s' * (count > 1)} at {len(seeds)} seeds, {'quick, ' * setting.quick}"
        f"{setting.protocol} protocol, into {out / 'seeds'}",
        dict.fromkeys(labels.values(), 1.0),
    )
    by_seed: dict[int, list[Outcome]] = {}
    with worker_pool(min(usable_cores(), len(seeds))) as pool:
        futures = {pool.submit(work, seed): seed for seed in seeds}
        for future in as_completed(futures):
            seed = futures[future]
            by_seed[seed], seconds = future.result()
            listener.end(
                labels[seed], outcome=_summary(by_seed[seed]), seconds=seconds, stored=False
            )
    verdicts = []
    place = 0
    for paper, claims in chosen:
        for claim in claims:
            ends = {seed: by_seed[seed][place] for seed in seeds}
            results = {
                seed: end.stored.result if isinstance(end.stored, StoredClaim) else None
                for seed, end in ends.items()
            }
            problems = {seed: end.problem for seed, end in ends.items() if end.problem}
            verdicts.append(SeedVerdicts(paper.name, claim.name, claim.expected, results, problems))
            place += 1
    return verdicts


def _at_seed(
    addresses: Sequence[tuple[str, Sequence[str]]], setting: Setting, seed: int, *, out: Path
) -> tuple[list[Outcome], float]:
    """Return what deciding every claim at one seed gave, and how long it took."""
    began = time.monotonic()
    folder = ReportFolder(out / "seeds" / str(seed))
    own = replace(setting, seed=seed, folder=folder.runs(engine_hash()))
    known = {paper.name: paper for paper in papers()}
    outcomes = []
    for address, names in addresses:
        paper = known[address] if address in known else paper_at(Path(address))
        claims = {claim.name: claim for claim in paper.claims}
        outcomes += [outcome(Work(paper, claims[name], name), own, folder) for name in names]
    return outcomes, time.monotonic() - began


def _summary(outcomes: Sequence[Outcome]) -> str:
    results = [end.stored.result for end in outcomes if isinstance(end.stored, StoredClaim)]
    decided = [result for result in results if result.decided]
    well = sum(result.as_expected for result in decided)
    return f"{well} of {len(decided) + len(outcomes) - len(results)} verdicts as on record"
