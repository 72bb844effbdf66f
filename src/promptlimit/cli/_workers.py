"""Claims and figures made one after the other, or on a CPU in two processes side by side."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from promptlimit.cli._console import item_progress, use_double_precision
from promptlimit.cli._reproduced import Item, claim_item, figure_item

if TYPE_CHECKING:
    from promptlimit.experiments import Claim, FigureRecipe, Setting


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


def made(
    wanted: "Sequence[Claim | FigureRecipe]", setting: "Setting", out: Path, *, whole: bool
) -> list[Item]:
    """Return the items, in their order, each read from disk or made now.

    Args:
        wanted: claims and figures.
        setting: theirs.
        out: where they go.
        whole: whether the study of training is prepared part by part first, for progress.
    """
    theory = [_work(item) for item in wanted if not item.of_training]
    training = [_work(item) for item in wanted if item.of_training]
    if whole and training and not _stored(training, setting, out):
        training = [*_parts(setting), *training]
    queues = [queue for queue in (theory, training) if queue]
    side_by_side = len(queues) > 1 and _on_several_cores()
    done = _side_by_side(queues, setting, out) if side_by_side else _in_turn(queues, setting, out)
    return [done[_work(item)] for item in wanted]


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


def _on_several_cores() -> bool:
    """Return whether two processes help: an accelerator has one memory, to be held by one."""
    import jax

    return jax.default_backend() == "cpu" and len(os.sched_getaffinity(0)) > 1


def _in_turn(queues: Sequence[list[_Work]], setting: "Setting", out: Path) -> dict:
    work = [each for queue in queues for each in queue]
    done = {}
    with item_progress([each.label for each in work]) as (tell, finished):
        for each in work:
            tell(each.label)
            done[each] = _do(each, replace(setting, tell=tell), out)
            finished()
    return done


def _side_by_side(queues: Sequence[list[_Work]], setting: "Setting", out: Path) -> dict:
    """Do each queue in a process of its own; the first error ends both."""
    context = multiprocessing.get_context("spawn")
    pools = [
        ProcessPoolExecutor(1, mp_context=context, initializer=use_double_precision) for _ in queues
    ]
    done: dict[_Work, Item | None] = {}
    try:
        waiting: dict[Future, _Work] = {
            pool.submit(_do, work, setting, out): work
            for pool, queue in zip(pools, queues, strict=True)
            for work in queue
        }
        with item_progress([work.label for work in waiting.values()]) as (tell, finished):
            for future in as_completed(waiting):
                done[waiting[future]] = future.result()
                running = [work.label for each, work in waiting.items() if each.running()]
                tell(" | ".join(running[:2]))
                finished()
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)
    return done


def _do(work: _Work, setting: "Setting", out: Path) -> Item | None:
    from promptlimit import experiments

    if work.kind == "part":
        experiments.prepare(setting, work.name, work.length)
        return None
    if work.kind == "claim":
        (claim,) = (each for each in experiments.all_claims() if each.name == work.name)
        return claim_item(claim, setting, out)
    (recipe,) = (each for each in experiments.all_figures() if each.name == work.name)
    return figure_item(recipe, setting, out)
