"""The active devices, on which simulations and training run."""

import contextlib
import functools
from collections.abc import Generator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from promptlimit.errors import ArgumentError

AXIS = "devices"


@dataclass(frozen=True)
class DeviceGroup:
    """A group of devices, in one process or in several.

    Attributes:
        mesh: the devices, as a jax mesh with one axis, "devices".
        hosts: the number of processes.
        process: the index of this process, from 0.
    """

    mesh: Mesh
    hosts: int
    process: int

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.mesh.size

    @property
    def local(self) -> tuple[int, ...]:
        """The indices of the devices of this process in `mesh`."""
        if self.hosts == 1:
            return tuple(range(self.size))
        places = enumerate(self.mesh.devices.flat)
        return tuple(i for i, device in places if device.process_index == self.process)

    @property
    def writes(self) -> bool:
        """Whether this process writes files and shows progress; only process 0 does."""
        return self.process == 0


_CURRENT: ContextVar[DeviceGroup | None] = ContextVar("devices", default=None)


def active_devices() -> DeviceGroup:
    """Return the devices of the enclosing `use_devices`; without one, jax's default device."""
    current = _CURRENT.get()
    return _of((_default_device(),), 1, 0) if current is None else current


@contextlib.contextmanager
def use_devices(devices: int | str = "all") -> Generator[None]:
    """Run simulations and training inside the context on several devices.

    Estimates have the same bits on any number of devices. Training distributes seeds over the
    devices; its results on different numbers of devices agree up to rounding.

    Args:
        devices: the number of devices, or "all" for all devices of all processes. With several
            processes only "all" is supported.

    >>> import jax, numpy as np, promptlimit as pl
    >>> attention = pl.SoftmaxAttention(np.eye(2), np.eye(2))
    >>> tokens = pl.Gaussian(np.zeros(2), np.eye(2))
    >>> how = {"kind": "estimate", "key": jax.random.key(0), "samples": 64}
    >>> alone = pl.prompt_moments(attention, tokens, np.ones(2), 10, **how)
    >>> with pl.use_devices():
    ...     together = pl.prompt_moments(attention, tokens, np.ones(2), 10, **how)
    >>> bool(alone.mse == together.mse)
    True
    """
    with _active(_chosen(devices)):
        yield


def alone() -> AbstractContextManager[None]:
    """Use the default device of this process inside the context, even within `use_devices`."""
    return _active(None)


@contextlib.contextmanager
def _active(group: DeviceGroup | None) -> Generator[None]:
    token = _CURRENT.set(group)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def all_devices() -> DeviceGroup:
    """Return all devices of all processes."""
    return _of(tuple(jax.devices()), jax.process_count(), jax.process_index())


def _chosen(devices: int | str) -> DeviceGroup | None:
    """Return the group that the argument of `use_devices` selects; None for the default device."""
    limited = devices != "all"
    if limited and not (isinstance(devices, Integral) and int(devices) >= 1):
        raise ArgumentError("devices", f"must be 'all' or a whole number from 1, got {devices!r}.")
    hosts = jax.process_count()
    if hosts > 1:
        if limited:
            raise ArgumentError(
                "devices",
                f"must be 'all' in a run of {hosts} processes, got {devices}.",
            )
        return all_devices()
    there = jax.devices(_default_device().platform)
    count = int(devices) if limited else len(there)
    if count > len(there):
        raise ArgumentError(
            "devices", f"must be at most {len(there)}, got {count}. {_suggestion(there[0], count)}"
        )
    return None if count == 1 else _of(tuple(there[:count]), 1, 0)


def _suggestion(device: Any, count: int) -> str:
    if device.platform != "cpu":
        return f"jax finds no more devices of kind {device.device_kind}."
    return (
        "A CPU is one device by default. For more, set before jax is first used: "
        f"jax.config.update('jax_num_cpu_devices', {count}), or "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}."
    )


def _default_device() -> Any:
    chosen: Any = getattr(jax.config, "jax_default_device")  # noqa: B009  # not in jax's types
    if chosen is None or isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen


@functools.lru_cache(maxsize=64)
def _of(devices: tuple[Any, ...], hosts: int, process: int) -> DeviceGroup:
    return DeviceGroup(Mesh(np.array(devices, dtype=object), (AXIS,)), hosts, process)
