"""Run the test suite on the oldest dependencies that pyproject.toml allows.

Everything is resolved to its lowest direct version into a virtual environment of its own; the
newest Python packages that these need in turn are left to the resolver.
"""

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-lowest"


def main() -> None:
    """Build the environment and run pytest in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pins = [requirement.replace(">=", "==") for requirement in wanted]
    venv.create(FOLDER, with_pip=True, clear=True)
    python = str(FOLDER / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
    editable = ["--no-deps", "--editable", str(ROOT)]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *editable], check=True)
    done = subprocess.run([python, "-m", "pytest", "--numprocesses", "2"], cwd=ROOT, check=False)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
