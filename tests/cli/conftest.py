"""Commands in this process, which is quicker than one of their own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest

from promptlimit.cli import _progress, main


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run commands in this process, in an empty folder, while time stands still.

    Double precision ends with the test.
    """

    monkeypatch.setattr(_progress, "_clock", lambda: 0.0)

    def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["promptlimit", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        code = stopped.value.code
        return subprocess.CompletedProcess(
            arguments, code if isinstance(code, int) else 0, printed.out, printed.err
        )

    before = jax.config.read("jax_enable_x64")
    yield run_here
    jax.config.update("jax_enable_x64", before)
