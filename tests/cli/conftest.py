"""Commands in this process, which is quicker than one of their own."""

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import pytest
import typer.main

from promptlimit.cli import _progress, main

_parser = functools.cache(typer.main.get_command)
"""The commands with their options, which typer makes anew at each call: half of a short one."""


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run commands in this process, in an empty folder, while time stands still.

    Double precision ends with the test.
    """

    monkeypatch.setattr(_progress, "_clock", lambda: 0.0)
    monkeypatch.setattr(typer.main, "get_command", _parser)

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
