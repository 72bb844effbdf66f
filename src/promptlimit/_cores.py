"""The number of cores of this process."""

import os


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use.

    A scheduler or a container may allow fewer cores than the machine has.

    >>> usable_cores() >= 1
    True
    """
    if hasattr(os, "process_cpu_count"):  # from Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
