"""How long does an atlas of MiniLM take, in how much memory, and does its cost grow linearly?

Each number of windows runs in a process of its own, so that its peak memory is its own; the time
of loading and compiling is in it. Prints a small table; nothing is asserted. Run on an otherwise
idle machine; `make example` installs the model.
"""

import json
import resource
import subprocess
import sys
import time

COUNTS = (6, 12, 24)
_WORKER = "--worker"


def measure(count: int) -> None:
    """Print seconds and peak memory of one atlas, as JSON."""
    from promptlimit import heads  # noqa: PLC0415 - the parent process needs none of it

    started, used = time.perf_counter(), time.process_time()
    folder = heads.ENCODER.path
    if folder is None:
        sys.exit(f"the model is not installed: {heads.ENCODER.install}")
    text = next(iter(heads.example_texts().values()))[: 24 * 512 * 24]
    model = heads.load(folder)
    loaded = time.perf_counter() - started
    done = heads.atlas(model, text, windows=count)
    print(
        json.dumps(
            {
                "windows": done.windows,
                "load": loaded,
                "wall": time.perf_counter() - started,
                "processor": time.process_time() - used,
                "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


def main(smallest: bool = False) -> None:
    """Run every size and print the table."""
    print("windows of 512   wall s   processor s   of it loading, wall s   peak MB")
    for count in (1,) if smallest else COUNTS:
        command = [sys.executable, __file__, _WORKER, str(count)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
        print(
            f"{found['windows']:14d} {found['wall']:8.1f} {found['processor']:13.1f} "
            f"{found['load']:23.1f} {found['megabytes']:9.0f}"
        )


if __name__ == "__main__":
    if _WORKER in sys.argv:
        measure(int(sys.argv[-1]))
    else:
        main("--smallest" in sys.argv)
