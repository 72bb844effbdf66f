"""Training over devices: each has all starts, its own share of the seeds, and draws the prompts.

Between two looks a device is alone with its runs. At a look the state is whole again, on the host
and in the order it has on one device, so that a checkpoint does not know how many there were.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from promptlimit.dynamics._training_gradients import gradient_of
from promptlimit.dynamics._training_loop import Advance, State, advancer, steps_of
from promptlimit.dynamics._training_request import Cell, TrainingRequest
from promptlimit.parallel import crew, on_crew, spread


class Shares(NamedTuple):
    """How the seeds of a cell lie over devices.

    Attributes:
        devices: how many are used.
        starts: how many starts there are.
        seeds: how many seeds there are.
        own: how many of them a device has; the last ones may repeat the last seed.
    """

    devices: int
    starts: int
    seeds: int
    own: int

    def of(self, device: int, runs: Any) -> Any:
        """Return the runs of one device, from arrays [members, starts x seeds, ...]."""
        mine = np.minimum(device * self.own + np.arange(self.own), self.seeds - 1)

        def share(leaf: Any) -> np.ndarray:
            host = np.asarray(leaf)
            split = host.reshape(host.shape[0], self.starts, self.seeds, *host.shape[2:])
            return split[:, :, mine].reshape(host.shape[0], -1, *host.shape[2:])

        return jax.tree.map(share, runs)

    def whole(self, shares: Any) -> Any:
        """Return all runs, from arrays [devices, members, starts x own seeds, ...].

        >>> shares, runs = Shares(2, 1, 3, 2), np.array([[10, 11, 12]])
        >>> both = np.stack([shares.of(0, runs), shares.of(1, runs)])
        >>> both.tolist(), shares.whole(both).tolist()
        ([[[10, 11]], [[12, 12]]], [[10, 11, 12]])
        """

        def join(leaf: np.ndarray) -> np.ndarray:
            members, rest = leaf.shape[1], leaf.shape[3:]
            split = leaf.reshape(-1, members, self.starts, self.own, *rest)
            lined = np.moveaxis(split, 0, 2).reshape(members, self.starts, -1, *rest)
            return lined[:, :, : self.seeds].reshape(members, -1, *rest)

        return jax.tree.map(join, shares)


def shares(seeds: int, starts: int, devices: int, *, all_of_them: bool) -> Shares:
    """Return how to share seeds out: evenly, over no more devices than there is work for.

    Args:
        seeds: how many there are.
        starts: how many starts there are.
        devices: how many there may be.
        all_of_them: whether every device must take part, idle or not.

    >>> shares(5, 2, 4, all_of_them=False)
    Shares(devices=3, starts=2, seeds=5, own=2)
    """
    own = -(-seeds // devices)
    return Shares(devices if all_of_them else -(-seeds // own), starts, seeds, own)


def advancer_of(request: TrainingRequest, cell: Cell) -> Advance:
    """Return what moves a cell on, on the devices at work; one where seeds have their own prompts.

    With several processes all devices take part, since every process must hear of the result.
    """
    team = crew()
    if team.size == 1 or cell[0][1] is not None:
        return advancer(request.optimiser, gradient_of(request, cell))
    plan = shares(request.seeds, len(request.starts), team.size, all_of_them=team.hosts > 1)
    if plan.devices == 1:
        return advancer(request.optimiser, gradient_of(request, cell))
    part = dataclasses.replace(request, starts=tuple(row[: plan.own] for row in request.starts))
    program = _program(steps_of(request.optimiser, gradient_of(part, cell)))

    def advance(state: State, first: int, last: int) -> State:
        bounds = np.array([first, last], np.uint32)
        with spread("all" if team.hosts > 1 else plan.devices):
            found = on_crew(program, None, lambda device: (plan.of(device, state), bounds))
        return plan.whole(found)

    return advance


def _program(steps: Callable[[State, Any], State]) -> Callable[[None, Any], State]:
    def program(_: None, part: tuple[State, Any]) -> State:
        return steps(*part)

    return program
