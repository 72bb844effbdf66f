"""What does start-up cost?

Each line starts a fresh interpreter. The command line must not pay for jax when it only prints its
help, and loading every public name must not cost much more than jax and equinox themselves. The
commands take turns, so that whatever else the machine does falls on all alike.

    python benchmarks/start_up.py [--smallest]
"""

import math
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROUNDS = 5
TARGET = 2.0
JAX, EVERYTHING = "import jax, equinox", "every public name"
# typer and rich load most of themselves only when they print, so importing them is half the story.
BARE_APP = """
import typer
app = typer.Typer()
@app.command()
def one(): pass
@app.command()
def two(): pass
app(["--help"])
"""


def main(smallest: bool = False) -> None:
    """Print the median wall time of each start, and the ratio of the target."""
    starts = {
        "python -c pass": python("pass"),
        "import typer, rich": python("import typer, rich"),
        "bare typer --help": python(BARE_APP),
        "promptlimit --help": command("promptlimit", "--help"),
        JAX: python("import jax, equinox"),
        EVERYTHING: python("import promptlimit as pl\nfor name in dir(pl): getattr(pl, name)"),
    }
    times = {name: seconds(arguments) for name, arguments in starts.items()}
    known = {name: arguments for name, arguments in starts.items() if not math.isnan(times[name])}
    rounds = 1 if smallest else ROUNDS
    print(f"medians of {rounds} alternating fresh starts, Python {sys.version.split()[0]}")
    if not smallest:
        times |= median_times(known, rounds)
    base = times["python -c pass"]
    for name in starts:
        if name not in known:
            print(f"  {name:20} skipped: the command is not installed here")
        else:
            print(f"  {name:20} {times[name]:6.3f} s   {times[name] / base:6.1f} x python -c pass")
    ratio = times[EVERYTHING] / times[JAX]
    verdict = "met" if ratio < TARGET else "missed"
    print(
        f"  target: every public name / import jax, equinox < {TARGET}: {verdict} with {ratio:.2f}"
    )


def python(program: str) -> list[str]:
    """Return the arguments that run a program in a fresh interpreter."""
    return [sys.executable, "-c", program]


def command(name: str, *arguments: str) -> list[str]:
    """Return the arguments that run a command installed next to this interpreter."""
    return [str(Path(sysconfig.get_path("scripts")) / name), *arguments]


def seconds(arguments: list[str]) -> float:
    """Return the wall seconds of one start, output discarded; NaN if there is no such command."""
    begin = time.perf_counter()
    try:
        subprocess.run(  # noqa: S603  # the arguments are ours
            arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
    except FileNotFoundError:
        return math.nan
    return time.perf_counter() - begin


def median_times(starts: dict[str, list[str]], rounds: int) -> dict[str, float]:
    """Return the median wall seconds of each start; they take turns."""
    turns = [[seconds(arguments) for arguments in starts.values()] for _ in range(rounds)]
    return {
        name: statistics.median(each)
        for name, each in zip(starts, zip(*turns, strict=True), strict=True)
    }


if __name__ == "__main__":
    main("--smallest" in sys.argv)
