import shutil
import subprocess
from pathlib import Path

import pytest

from commit import commit_seed

GIT = ("git", "-c", "user.name=A", "-c", "user.email=a@example.org")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_seed_is_the_first_digits_of_the_commit(tmp_path: Path) -> None:
    assert commit_seed(tmp_path) == 0
    for command in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "empty")):
        subprocess.run([*GIT, *command], cwd=tmp_path, check=True)
    (head,) = (tmp_path / ".git" / "refs" / "heads").iterdir()
    assert commit_seed(tmp_path) == int(head.read_text()[:8], 16) & 0x7FFFFFFF


def test_without_git_the_seed_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit_seed() == 0
