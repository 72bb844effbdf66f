"""A seed that changes with every commit, for tests whose verdict must hold at any seed."""

import subprocess
from pathlib import Path


def commit_seed(folder: Path = Path(__file__).parent) -> int:
    """Return the first 8 hex digits of the commit modulo 2**31, or 0 without git or a repository.

    A test that uses it shows the seed in its message, so that a failure can be repeated.
    """
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return 0
    return int(done.stdout[:8], 16) % 2**31 if done.returncode == 0 else 0
