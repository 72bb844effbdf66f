"""Every test runs with annotations checked, promotion strict and warnings as errors."""

from collections.abc import Iterator
from pathlib import Path

from jaxtyping import install_import_hook

install_import_hook("promptlimit", "beartype.beartype")

import jax  # noqa: E402  # the hook must be in place before anything imports promptlimit
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
_CACHE = Path(__file__).parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture
def x64() -> Iterator[None]:
    """Run one test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run one test in each precision, with the dtype's name."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
