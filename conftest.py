"""Every test runs with annotations checked, promotion strict and warnings as errors.

Compiling is most of the work, and most programs run once: they are compiled without optimisation.
`make test-long` optimises them, and checks the annotations of each call.
"""

import ctypes
import dataclasses
import functools
import gc
import inspect
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import CodeType
from typing import Any

import hypothesis
import jaxtyping

THOROUGH = "THOROUGH" in os.environ
"""Whether each call is checked and programs are optimised, as `make test-long` wants it."""

_QUICKLY_COMPILED = [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
]
if metadata.version("jaxlib").startswith("0.10."):  # a later one ends at a flag it has not
    _QUICKLY_COMPILED.append("--xla_cpu_use_fusion_emitters=false")
if not THOROUGH:
    _others = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys((*_others, *_QUICKLY_COMPILED)))

os.environ.setdefault("NPROC", "1")  # threads of XLA: workers have a core each

# The same examples on every machine, so that a change alone turns a test red; others at length.
hypothesis.settings.register_profile("same examples", derandomize=True, database=None)
if not THOROUGH:
    hypothesis.settings.load_profile("same examples")

_FIRST, _FIRST_INSIDE, _LATER = 20, 5, 100
"""Calls of a function whose annotations are checked; fewer of one that another function defines;
of later calls, each so many-th.

Inner loops call small functions a million times; checking each of those calls doubles the time of
the whole test suite and finds nothing that the first ones do not. A function inside another is a
new one at each call of that, and its check is compiled anew: it is counted by its code.
"""
_CALLS: defaultdict[CodeType, Iterator[int]] = defaultdict(functools.partial(itertools.count, 1))


def _sampled(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decorator of jaxtyping's import hook, made to check some calls of a function."""

    def decorate(fn: Any = None, *, typechecker: Any) -> Any:
        if fn is None:
            return functools.partial(decorate, typechecker=typechecker)
        if THOROUGH:
            return jaxtyped(fn, typechecker=typechecker)
        if inspect.isclass(fn):  # of a dataclass, the fields
            if dataclasses.is_dataclass(fn) and inspect.isfunction(vars(fn).get("__init__")):
                fn.__init__ = decorate(fn.__init__, typechecker=typechecker)
            return fn
        calls = _CALLS[fn.__code__]
        first = _FIRST_INSIDE if "<locals>" in fn.__qualname__ else _FIRST
        checked = functools.cache(lambda: jaxtyped(fn, typechecker=typechecker))

        @functools.wraps(fn)
        def some_calls_checked(*args: Any, **kwargs: Any) -> Any:
            number = next(calls)
            this_one = number <= first or number % _LATER == 0
            return (checked() if this_one else fn)(*args, **kwargs)

        return some_calls_checked

    return decorate


jaxtyping.jaxtyped = _sampled(jaxtyping.jaxtyped)
jaxtyping.install_import_hook("promptlimit", "beartype.beartype")

import jax  # noqa: E402  # the hook must be in place before anything imports promptlimit
import pytest  # noqa: E402
from _pytest.unraisableexception import gc_collect_iterations_key  # noqa: E402
from jax._src.interpreters import mlir  # noqa: E402

# jax makes six milliseconds of dialects for each program, and keeps half a megabyte of them.
if hasattr(mlir, "make_ir_context"):
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
_CACHE = Path(__file__).parent / ".pytest_cache" / "jax"
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)  # others cost as much to keep

gc.freeze()  # what is imported stays
gc.set_threshold(200_000, 20, 20)  # tracing makes many objects and few cycles


_PACKAGE = Path(__file__).parent / "src" / "promptlimit"
_LONGEST = ("reproduction", "contract", "sgd", "gaps", "site", "cli", "flow", "devices", "atlas")
"""Files that take longest, begun first, so that no worker ends long after another."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Look for examples in those modules of the package alone that have some."""
    if collection_path.suffix != ".py" or _PACKAGE not in collection_path.parents:
        return None
    return b">>> " not in collection_path.read_bytes() or None


def pytest_configure(config: pytest.Config) -> None:
    """Look once, not five times, for what nobody closed: each look takes half a second."""
    config.stash[gc_collect_iterations_key] = 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    order = {f"test_{name}": place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


_LARGE, _MORE, _MOST = 1.4e9, 0.35e9, 1.7e9
_allowed = [_LARGE]
"""Bytes that may be in memory: beyond, programs go; what stays all the same is allowed, and more.

Where they go at the end of each file, that and compiling again take a tenth of the time.
"""


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Give back the memory of compiled programs, a megabyte each, where a file of tests ends."""
    if nextitem is not None and nextitem.path != item.path and _resident() > _allowed[-1]:
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        _allowed.append(min(max(_LARGE, _resident() + _MORE), _MOST))


def _resident() -> int:
    """Return the bytes in memory, 0 where the system does not tell as Linux does."""
    pages = Path("/proc/self/statm")
    return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else 0


@pytest.fixture(scope="session")
def users_environment() -> dict[str, str]:
    """Return the environment of commands that must run as a user's do: with optimised programs."""
    environment = dict(os.environ)
    flags = [
        flag for flag in environment.pop("XLA_FLAGS", "").split() if flag not in _QUICKLY_COMPILED
    ]
    return {**environment, "XLA_FLAGS": " ".join(flags)} if flags else environment


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
