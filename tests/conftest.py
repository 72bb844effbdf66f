"""One browser for the tests of all pages."""

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, Literal

import pytest

from reporting.page.visits import CHROMIUM, Visit


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return the browser; root may only run it without its sandbox."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
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
        context.set_default_timeout(15_000)
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
