"""`promptlimit reproduce`: decide the claims of studies and draw their figures."""

import difflib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from promptlimit._text import aligned, text_table
from promptlimit.cli._console import (
    JsonOption,
    SeedOption,
    UsageError,
    out_option,
    print_error,
    print_json,
    print_note,
    require_folder,
    use_double_precision,
)
from promptlimit.cli._progress import progress

if TYPE_CHECKING:
    from promptlimit.claims import Check, ClaimResult, StoredClaim
    from promptlimit.studies import Claim, Figure, SeedVerdicts, Study


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [NAME]...",
            help="A study by name, or the path of its Python file or folder; claims by number or "
            "name, figures by name. All studies unless given.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Use smaller settings (a minute or two); claims on training stay undecided.",
        ),
    ] = False,
    protocol: Annotated[
        str,
        typer.Option(
            "--protocol",
            metavar="HOW",
            help="exact: gradient flows and short training runs; full: also the paper's whole "
            "training protocol.",
        ),
    ] = "exact",
    out: Annotated[
        Path,
        out_option("Where claims and figures go."),
    ] = Path("report"),
    seed: SeedOption = 0,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="FIRST:END",
            help="Decide the claims at every seed from FIRST up to, not including, END; draw no "
            "figures.",
        ),
    ] = None,
    list_items: Annotated[
        bool, typer.Option("--list", help="List what can be reproduced and exit.")
    ] = False,
    figures_only: Annotated[
        bool, typer.Option("--figures-only", help="Draw the figures, decide nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Decide the claims of studies, draw their figures, and write a report.

    Stored results of the same code and the same options are reused. The exit status is 0 if every
    verdict is as its study expects, and 1 otherwise.
    """
    extent = _protocol(protocol)
    if not list_items:
        require_folder(out)
    if seeds is not None:
        if figures_only or list_items:
            raise UsageError(
                "--seeds must not be given together with --figures-only or --list",
                "--seeds only decides claims",
            )
        _at_seeds(names or [], _seed_range(seeds), quick, extent, out, as_json=as_json)
        return
    from promptlimit import studies

    with progress("reproduce") as shown:
        shown.at("starting")
        use_double_precision()
        from promptlimit.claims import ReportFolder, StoredClaim
        from promptlimit.results import plain

        began = time.monotonic()
        chosen_studies, items = _studies(names or [])
        if list_items:
            shown.close()
            _list(chosen_studies)
            return
        chosen = _chosen(chosen_studies, items, figures_only=figures_only)
        folder = ReportFolder(out)
        folder.require_layout()
        runs = folder.runs(studies.engine_hash())
        setting = studies.Setting(seed, quick, extent, folder=runs)
        outcomes = studies.reproduce(chosen, setting, folder, shown, whole=not items)
    for note in (outcome.note for outcome in outcomes if outcome.note):
        print_note(note)
    stored = [outcome.stored for outcome in outcomes if outcome.stored is not None]
    fresh = [outcome.stored for outcome in outcomes if outcome.stored and outcome.fresh]
    facts = studies.run_facts(setting, began)
    everything = folder.studies() <= {study.name for study in chosen_studies}
    whole = everything and not items and not figures_only
    folder.record(stored, fresh, facts, whole=whole)
    claims = [item for item in stored if isinstance(item, StoredClaim)]
    if as_json:
        print_json(plain(studies.DecidedClaims(seed, [claim.result for claim in claims])))
    elif claims:
        _print_claims(claims)
    drawings = {(o.stored.study, o.stored.name): o.svg for o in outcomes if o.stored and o.svg}
    failures = [outcome.problem for outcome in outcomes if outcome.problem]
    for failure in failures:
        print_error(failure, "the other items are stored; the same command resumes from them")
    # Written last, because damaged results of other studies in the folder may raise an error.
    page, _, problems = studies.write_pages(folder, chosen_studies, drawings)
    for problem in problems:
        print_note(problem)
    if not as_json:
        typer.echo(str(page))
    if failures or not all(claim.result.as_expected for claim in claims):
        raise typer.Exit(1)


def _seed_range(text: str) -> range:
    """Return the seeds that a text FIRST:END denotes, from FIRST to END - 1."""
    first, colon, end = text.partition(":")
    if not (colon and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise UsageError(
            f"--seeds must be FIRST:END with 0 <= FIRST < END, got '{text}'",
            "0:30 are the seeds 0 to 29",
        )
    return range(int(first), int(end))


def _at_seeds(
    names: Sequence[str],
    seeds: range,
    quick: bool,
    protocol: Literal["exact", "full"],
    out: Path,
    *,
    as_json: bool,
) -> None:
    """Decide claims at several seeds and print how often each claim has its expected verdict."""
    from promptlimit import studies

    with progress("reproduce") as shown:
        shown.at("starting")
        chosen_studies, items = _studies(names)
        chosen = [
            (study, [item for item in wanted if isinstance(item, studies.Claim)])
            for study, wanted in _chosen(chosen_studies, items, figures_only=False)
        ]
        setting = studies.Setting(quick=quick, protocol=protocol)
        verdicts = studies.decide_at_seeds(chosen, setting, seeds, out, shown)
    if as_json:
        print_json(asdict(studies.ClaimsAtSeeds(list(seeds), verdicts)))
    else:
        _print_seeds(verdicts, len(seeds))
    if any(verdict.differing for verdict in verdicts):
        raise typer.Exit(1)


def _print_seeds(verdicts: "Sequence[SeedVerdicts]", seeds: int) -> None:
    decided = [verdict for verdict in verdicts if verdict.decided]
    rows = (
        {
            "claim": f"{verdict.study}/{verdict.name}",
            "expected verdict": verdict.expected,
            "seeds with that verdict": f"{seeds - len(verdict.differing)} of {seeds}",
        }
        for verdict in decided
    )
    typer.echo(text_table(rows))
    for verdict in verdicts:
        for seed, reason in verdict.differing.items():
            typer.echo(f"{verdict.study}/{verdict.name} at seed {seed}: {reason}")
    well = sum(not verdict.differing for verdict in decided)
    left = len(verdicts) - len(decided)
    undecided = f"; {left} claims not decided in quick mode" if left else ""
    typer.echo(
        f"{well} of {len(decided)} claims have the expected verdict at all {seeds} seeds{undecided}"
    )


def _protocol(word: str) -> Literal["exact", "full"]:
    if word not in ("exact", "full"):
        raise UsageError(
            f"--protocol must be exact or full, got '{word}'", "full takes minutes on a GPU"
        )
    return word


def _studies(names: Sequence[str]) -> "tuple[list[Study], list[str]]":
    """Return the studies among the names, and the other names; all studies if none is named."""
    from promptlimit.studies import studies, study_at

    known = {study.name: study for study in studies()}
    named, items = [], []
    for name in names:
        if name in known:
            named.append(known[name])
        elif _is_path(name, known.values()):
            if not Path(name).exists():
                raise UsageError(f"{name} does not exist", f"known studies are {', '.join(known)}")
            named.append(study_at(Path(name)))
        else:
            items.append(name)
    return list(dict.fromkeys(named)) or list(known.values()), items


def _is_path(name: str, known: "Iterable[Study]") -> bool:
    """Return whether a name is the path of a study and not the name of a claim or figure."""
    if name.endswith((".py", "/")):
        return True
    return Path(name).is_dir() and not any(name in _items(study) for study in known)


def _items(study: "Study") -> "dict[str, Claim | Figure]":
    """Return the claims and figures of a study by name, and the claims also by number."""
    by_number: dict[str, Claim | Figure] = {str(claim.number): claim for claim in study.claims}
    return by_number | {item.name: item for item in (*study.claims, *study.figures)}


def _list(studies: "Sequence[Study]") -> None:
    for study in studies:
        typer.echo(f"{study.name}: {study.title}")
        claims = [[str(claim.number), claim.name, claim.reference] for claim in study.claims]
        figures = [["", figure.name, figure.title] for figure in study.figures]
        typer.echo(aligned(["", "name", ""], [*claims, *figures], left=[False, True, True]))


def _chosen(
    studies: "Sequence[Study]", names: Sequence[str], *, figures_only: bool
) -> "list[tuple[Study, list[Claim | Figure]]]":
    """Return each study with its requested items; without names, all items are requested."""
    chosen, missing = [], set(names)
    for study in studies:
        by_name = _items(study)
        wanted = [by_name[name] for name in names if name in by_name]
        missing -= set(by_name)
        items = [
            item
            for item in (*(() if figures_only else study.claims), *study.figures)
            if not names or item in wanted
        ]
        if items:
            chosen.append((study, items))
    if missing:
        known = [item.name for study in studies for item in (*study.claims, *study.figures)]
        name = sorted(missing)[0]
        near = difflib.get_close_matches(name, [*known, *(study.name for study in studies)], n=1)
        hint = f"did you mean '{near[0]}'?" if near else "promptlimit reproduce --list names all"
        raise UsageError(f"there is no study, claim or figure '{name}'", hint)
    if not chosen:
        words = "figure" if figures_only else "claim or figure"
        hint = "promptlimit reproduce --list names all"
        raise UsageError(f"STUDY and NAME must select at least one {words}, got none", hint)
    return chosen


def _print_claims(claims: "Sequence[StoredClaim]") -> None:
    """Print one line per claim, and how many verdicts are as expected."""
    results = [claim.result for claim in claims]
    rows = (
        {
            "study": claim.study,
            "": claim.result.number,
            "claim": claim.result.name,
            "verdict": _verdict(claim.result),
            "decided by": _number(claim.result.deciding),
        }
        for claim in claims
    )
    typer.echo(text_table(rows))
    counts = Counter(result.verdict for result in results)
    verdicts = ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common())
    decided = [result for result in results if result.decided]
    well = sum(result.as_expected for result in decided)
    typer.echo(f"{verdicts}; {well} of {len(decided)} verdicts as expected")


def _verdict(result: "ClaimResult") -> str:
    return result.verdict + ("" if result.as_expected else f" (expected: {result.expected})")


def _number(check: "Check | None") -> str:
    return "" if check is None else f"{check.value:.3g} {check.relation} {check.tolerance:.3g}"
