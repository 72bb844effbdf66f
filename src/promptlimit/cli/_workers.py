"""Claims and figures made one after the other, or on several cores side by side."""

import functools
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from promptlimit.cli._console import CommandError, use_double_precision
from promptlimit.cli._progress import AbstractProgress
from promptlimit.cli._reproduced import Item, claim_item, figure_item

if TYPE_CHECKING:
    from promptlimit.experiments import Claim, FigureRecipe, Setting

_CORES_FOR_LAWS = 4
_USUAL = {"part": 5.0, "claim": 2.0, "figure": 1.0}
"""How long one takes, beside the others."""


class _Work(NamedTuple):
    """One thing to do.

    Attributes:
        kind: "claim", "figure", or "part" for a part of the training study.
        name: of the claim or figure; the law of a part.
        length: of a part.
    """

    kind: str
    name: str
    length: int = 0

    @property
    def label(self) -> str:
        """What it is, in words."""
        if self.kind != "part":
            return self.name
        return f"{self.name}, " + (f"L = {self.length}" if self.length else "training runs")


class _Done(NamedTuple):
    """What came of one thing: the claim or figure, none of a part, and the seconds it took."""

    item: Item | None
    seconds: float

    @property
    def stored(self) -> bool:
        """Whether it was on disk before."""
        return self.item is not None and not self.item.fresh

    @property
    def outcome(self) -> str:
        """How it ended, in a few words: the verdict of a claim."""
        if self.item is None:
            return "computed"
        result = self.item.result
        if result is None:
            return "stored" if self.stored else "drawn"
        news = "" if result.as_expected else f", on record {result.expected}"
        return f"{result.verdict}{news}{', stored' * self.stored}"


def made(
    wanted: "Sequence[Claim | FigureRecipe]",
    setting: "Setting",
    out: Path,
    shown: AbstractProgress,
    *,
    whole: bool,
) -> list[Item]:
    """Return the items, in their order, each read from disk or made now.

    Args:
        wanted: claims and figures.
        setting: theirs.
        out: where they go.
        shown: what is told of each as it ends.
        whole: whether the study of training is prepared part by part first, for progress.
    """
    theory = [_work(item) for item in wanted if not item.of_training]
    training = [_work(item) for item in wanted if item.of_training]
    if whole and training and not _stored(training, setting, out):
        training = [*_parts(setting), *training]
    elsewhere = _elsewhere(theory, training)
    order = [*training, *reversed(theory)]  # the other process comes from the front
    shown.plan(_plan(order, setting, out), {work.label: _USUAL[work.kind] for work in order})
    done = _together(order, elsewhere, setting, out, shown)
    return [item for work in map(_work, wanted) if (item := done[work]) is not None]


def _plan(order: Sequence[_Work], setting: "Setting", out: Path) -> str:
    """Return what is going to be made, in words."""
    counts = Counter(work.kind for work in order)
    kinds = [kind for kind in ("claim", "figure", "part") if counts[kind]]
    what = " and ".join(f"{counts[kind]} {kind}{'s' * (counts[kind] > 1)}" for kind in kinds)
    what += " of the training study" * ("part" in kinds)
    return f"{what}, {'quick, ' * setting.quick}{setting.protocol} protocol, into {out}"


def _elsewhere(theory: list[_Work], training: list[_Work]) -> list[list[_Work]]:
    """Return what other processes do beside training, until this one takes it from them.

    Theory, and then the flows of the last law; with more cores, the flows of each law apart.
    """
    from promptlimit.parallel import usable_cores

    cores = usable_cores()
    if cores < 2 or not theory or not training:
        return []
    flows = [work for work in training if work.kind == "part" and work.length]
    by_law = [
        [work for work in flows if work.name == law]
        for law in dict.fromkeys(work.name for work in flows)
    ]
    if cores < _CORES_FOR_LAWS:
        return [[*theory, *(by_law[-1] if by_law else ())]]
    return [theory, *by_law]


def _work(item: "Claim | FigureRecipe") -> _Work:
    return _Work("claim" if hasattr(item, "number") else "figure", item.name)


def _parts(setting: "Setting") -> list[_Work]:
    from promptlimit.experiments import study_parts

    return [_Work("part", law, length) for law, length in study_parts(setting)]


def _stored(training: Sequence[_Work], setting: "Setting", out: Path) -> bool:
    """Return whether all items seem to be on disk, so that there is nothing to prepare."""
    from promptlimit.experiments import item_hash

    def seems_stored(work: _Work) -> bool:
        path = out / f"{work.kind}s" / f"{work.name}.json"
        name = item_hash(work.kind, work.name, setting)
        return path.is_file() and name.encode() in path.read_bytes()

    return all(seems_stored(work) for work in training)


def _together(
    order: Sequence[_Work],
    elsewhere: Sequence[list[_Work]],
    setting: "Setting",
    out: Path,
    shown: AbstractProgress,
) -> dict[_Work, Item | None]:
    """Do the work in order; what another process has begun is waited for when its turn comes."""
    pools = [_pool() for _ in elsewhere]
    try:
        with _only_cpu():
            delegated = {
                work: pool.submit(_do, work, setting, out)
                for pool, queue in zip(pools, elsewhere, strict=True)
                for work in queue
            }
            for work, future in delegated.items():
                future.add_done_callback(functools.partial(_tell_ended, work, shown))
            return _in_order(order, delegated, replace(setting, tell=shown.at), out, shown)
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


def _in_order(
    order: Sequence[_Work],
    delegated: Mapping[_Work, Future],
    setting: "Setting",
    out: Path,
    shown: AbstractProgress,
) -> dict[_Work, Item | None]:
    items = {}
    for work in order:
        shown.at(work.label)
        future = delegated.get(work)
        if future is None or future.cancel():  # nobody else has begun it
            done = _do(work, setting, out)
        else:
            done = _awaited(work, future)
        _tell(work, done, shown)  # even if it is told already: the callback may come too late
        items[work] = done.item
    return items


def _tell_ended(work: _Work, shown: AbstractProgress, future: Future) -> None:
    """Tell what another process has done; what went wrong is told where it is waited for."""
    if not future.cancelled() and future.exception() is None:
        _tell(work, future.result(), shown)


def _tell(work: _Work, done: _Done, shown: AbstractProgress) -> None:
    shown.end(work.label, outcome=done.outcome, seconds=done.seconds, stored=done.stored)


def _awaited(work: _Work, future: Future) -> _Done:
    try:
        return future.result()
    except BrokenProcessPool as problem:
        raise CommandError(
            f"the process that was to compute '{work.label}' was ended from outside",
            "memory may have run out; the same command goes on from what is stored",
        ) from problem


def _pool() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        1, mp_context=context, initializer=_set_up_worker, initargs=(os.getpid(),)
    )


def _set_up_worker(parent: int) -> None:
    """Make this process ready to compute, and let it end when the one that started it is gone."""
    threading.Thread(target=_end_without, args=(parent,), daemon=True).start()
    use_double_precision()


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)  # nobody is left to tell; files are written whole or not at all


@contextmanager
def _only_cpu() -> Iterator[None]:
    """Let processes started now see no accelerator: its memory belongs to this one."""
    before = os.environ.get("JAX_PLATFORMS")
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAX_PLATFORMS"]
        else:
            os.environ["JAX_PLATFORMS"] = before


def _do(work: _Work, setting: "Setting", out: Path) -> _Done:
    began = time.monotonic()
    item = _item(work, setting, out)
    return _Done(item, time.monotonic() - began)


def _item(work: _Work, setting: "Setting", out: Path) -> Item | None:
    from promptlimit import experiments

    if work.kind == "part":
        experiments.prepare(setting, work.name, work.length)
        return None
    if work.kind == "claim":
        (claim,) = (each for each in experiments.all_claims() if each.name == work.name)
        return claim_item(claim, setting, out)
    (recipe,) = (each for each in experiments.all_figures() if each.name == work.name)
    return figure_item(recipe, setting, out)
