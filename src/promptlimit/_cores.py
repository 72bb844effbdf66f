"""How many cores there are for this process."""

import os


def usable_cores() -> int:
    """Return how many CPU cores this process may run on, where the system says; else all of them.

    A scheduler or a container may leave it fewer than the machine has.

    >>> usable_cores() >= 1
    True
    """
    if hasattr(os, "process_cpu_count"):  # from Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
