"""Run the tests with several versions of Python and jax, each pair in its own environment.

    python tests/versions.py --pythons 3.12 3.13 --jax 0.10 0.12 --tests tests/measures
    python tests/versions.py --lowest

With `--lowest` every direct dependency has the oldest version that pyproject.toml allows. The
environments are kept in `.venv-versions` until pyproject.toml changes.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
FOLDER = ROOT / ".venv-versions"
TOOLS = ["--editable", ".[heads,xarray]", "--group", "dev"]
UNAVAILABLE = "No matching distribution found for jax=="


def main() -> None:
    """Test each pair of versions, print a table of the outcomes and exit 1 if a test failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--pythons", nargs="*", default=[this], help="3.12, or a path")
    parser.add_argument("--jax", nargs="*", default=[], help="0.11; the newest if none is given")
    parser.add_argument("--lowest", action="store_true", help="the oldest versions allowed")
    parser.add_argument("--jobs", default="2", help="processes of pytest")
    parser.add_argument(
        "--tests", nargs=argparse.REMAINDER, default=[], help="arguments of pytest; come last"
    )
    options = parser.parse_args()
    pins = lower_bounds() if options.lowest else []
    outcomes = [
        (python, jax, _outcome(python, jax, pins, [*options.tests, "--numprocesses", options.jobs]))
        for python in options.pythons or [this]
        for jax in options.jax or ["lowest" if pins else "newest"]
    ]
    for python, jax, outcome in outcomes:
        print(f"Python {python:6} jax {jax:7} {outcome}")
    sys.exit(any(outcome.startswith("failed") for *_, outcome in outcomes))


def lower_bounds() -> list[str]:
    """Return every requirement with a lower bound, pinned to it: `jax==0.8.3`."""
    settings = tomllib.loads(PROJECT.read_text("utf-8"))
    lists = [
        settings["project"]["dependencies"],
        *settings["project"]["optional-dependencies"].values(),
        *settings["dependency-groups"].values(),
    ]
    lines = [line for requirements in lists for line in requirements if isinstance(line, str)]
    bounds = [re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", line) for line in lines]
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound is not None]


def _outcome(python: str, jax: str, pins: list[str], arguments: list[str]) -> str:
    """Build one environment, run pytest in it and return the outcome in words."""
    executable = _interpreter(python)
    if executable is None:
        return "failed: this Python was not found; give its path"
    environment = FOLDER / f"{Path(python).name}-jax-{jax}"
    problem = _install(executable, environment, jax, pins)
    if problem:
        return problem
    inside = str(environment / "bin" / "python")
    ask = "from importlib.metadata import version as v; print('jax', v('jax'), 'numpy', v('numpy'))"
    answer = subprocess.run([inside, "-c", ask], check=True, capture_output=True, text=True)
    versions = answer.stdout.strip()
    print(f"\n{environment.name}: {versions}", flush=True)
    done = subprocess.run([inside, "-m", "pytest", *arguments], cwd=ROOT, check=False)
    return f"{'failed' if done.returncode else 'passed'} with {versions}"


def _install(executable: str, environment: Path, jax: str, pins: list[str]) -> str:
    """Make an environment unless there is one; return the reason if that is impossible, or ""."""
    complete = environment / "complete"
    if complete.exists() and complete.stat().st_mtime > PROJECT.stat().st_mtime:
        return ""
    subprocess.run([executable, "-m", "venv", "--clear", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "pip>=25.1"], check=True)  # the first that reads dependency groups
    constraints = environment / "constraints.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in pins), "utf-8")
    wanted = [f"jax=={jax}.*"] if jax[0].isdigit() else []
    command = [*pip, *wanted, *TOOLS, "--constraint", str(constraints)]
    done = subprocess.run(command, cwd=ROOT, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        is_absent = UNAVAILABLE in done.stderr
        return f"skipped: no jax {jax} for it" if is_absent else "failed: pip, see above"
    complete.touch()
    return ""


def _interpreter(python: str) -> str | None:
    """Return the path of a Python: a path as it is, a version from the search path or pyenv."""
    return next((path for path in _candidates(python) if _runs(path)), None)


def _candidates(python: str) -> Iterator[str]:
    if "/" in python:
        yield python
        return
    if found := shutil.which(f"python{python}"):
        yield found
    installed = (Path.home() / ".pyenv" / "versions").glob(f"{python}.*/bin/python")
    yield from map(str, installed)


def _runs(path: str) -> bool:
    """Return whether it runs: pyenv puts programs on the search path that only print an error."""
    try:
        return not subprocess.run([path, "--version"], check=False, capture_output=True).returncode
    except OSError:
        return False


if __name__ == "__main__":
    main()
