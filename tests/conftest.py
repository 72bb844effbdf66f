"""One browser for the tests of all pages, and commands in this process."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import pytest
import typer.main

from promptlimit.cli import _progress, main
from reporting.page.visits import CHROMIUM, Visit

_PATIENCE = 300_000  # milliseconds: a busy machine must not fail a test


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return the browser; root may only run it without its sandbox."""
    playwright = pytest.importorskip("playwright.sync_api")
    playwright.expect.set_options(timeout=_PATIENCE)
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=_PATIENCE
        )
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any) -> Visit:
    """Return what opens a page, and on leaving it sees that it was quiet and stayed at home."""

    @contextlib.contextmanager
    def visited(
        address: str,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
        home: str | None = None,
    ) -> Generator[Any]:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(_PATIENCE)
        page = context.new_page()
        asked: list[str] = []
        troubles: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(address)
        yield page
        assert troubles == []
        files = {url for url in asked if not url.startswith("data:")}
        assert files == {address} if home is None else all(url.startswith(home) for url in files)
        context.close()

    return visited


_parser = functools.cache(typer.main.get_command)
"""The commands, built once: typer otherwise rebuilds them at each call."""


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Run commands in this process, in an empty folder, while time stands still.

    Double precision and environment variables that a command sets end with the test.
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

    before = jax.config.read("jax_enable_x64"), dict(os.environ)
    yield run_here
    jax.config.update("jax_enable_x64", before[0])
    os.environ.clear()
    os.environ.update(before[1])
