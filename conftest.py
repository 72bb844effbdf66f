"""Tests run with annotations checked, strict promotion and warnings as errors."""

import os
from collections.abc import Iterator
from pathlib import Path

# Workers, the processes that tests start, and later runs share programs that took long to compile.
# These are environment variables because child processes inherit them.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent / ".pytest_cache" / "programs")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**32))  # with a limit, jax locks it
# When jaxlib before 0.10.1 reads a program from the cache, it logs a spurious error.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis  # jax reads the variables when it is imported
import jaxtyping

CHECK = "promptlimit", "annotations.checked"  # tests/annotations.py

with jaxtyping.install_import_hook(*CHECK):
    import promptlimit._arrays

# A test may call the kernels of quadratures a million times, and checking a call takes longer than
# the call. So `_brackets` is imported without the hook, and with it `_gaussian_score` and
# `_score_law`, which it imports: their annotations are not checked.
import promptlimit.weights._brackets  # noqa: E402, F401

jaxtyping.install_import_hook(*CHECK)

import jax  # noqa: E402  # the hook must be installed before the rest of promptlimit is imported
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Hypothesis draws the same examples in every run, so that only a change can turn a test red.
hypothesis.settings.register_profile("same examples", derandomize=True, database=None)
hypothesis.settings.load_profile("same examples")


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Free compiled programs, about a megabyte each, where a folder of tests ends."""
    if nextitem is not None and nextitem.path.parent != item.path.parent:
        jax.clear_caches()


@pytest.fixture
def x64() -> Iterator[None]:
    """Run one test in double precision."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Call functions as users do, without checks of annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(params=["float32", "float64"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run one test in each precision, with the dtype's name."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param
