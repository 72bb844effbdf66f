"""Pages in a real browser: opened from disk, seen to be quiet and to ask nothing of a network."""

import contextlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)

NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM, reason="no Chromium was found; on Debian: apt-get install chromium"
    ),
]

Visit = Callable[..., contextlib.AbstractContextManager[Any]]
"""From an address, a width and a colour scheme to the page that is open meanwhile.

`home` is where a page of several files may ask; a page that is one file asks for itself alone.
"""
