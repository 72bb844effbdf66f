"""Worker processes, one per core, that share compiled programs."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait

_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",  # the parent process uses the memory of an accelerator
    "NPROC": "1",  # one thread of XLA, because there is a process per core
    "OMP_NUM_THREADS": "1",  # one thread of the linear algebra of NumPy and SciPy
    "OPENBLAS_NUM_THREADS": "1",
}
_CACHE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30),  # with a limit, jax locks the folder to write
    "TF_CPP_MIN_LOG_LEVEL": "3",  # jaxlib before 0.10.1 logs an error when it reads the cache
}


class WorkerLostError(OSError):
    """A worker process was ended from outside."""


@contextlib.contextmanager
def worker_pool(count: int) -> Generator[ProcessPoolExecutor]:
    """Yield a pool of `count` processes; leaving the block ends them, even while they compute.

    Workers must therefore write files atomically. They share jax's cache of compiled programs in a
    temporary folder. Except on Windows, only the parent process receives Ctrl-C.
    """
    with tempfile.TemporaryDirectory(prefix="promptlimit-") as cache:
        pool = ProcessPoolExecutor(
            count,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(cache,),
        )
        try:
            with _interrupts_blocked():  # workers inherit the mask
                for _ in range(count):
                    pool.submit(os.getpid)  # starts a worker
            yield pool
        except BrokenProcessPool as problem:
            raise WorkerLostError(
                "a worker process was ended from outside. Memory may have run out; the same "
                "command continues from the stored results."
            ) from problem
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
                process.join()


def _start_worker(cache: str) -> None:
    """Set the environment before NumPy and jax load, and end this process with its parent."""
    os.environ.update(_ENVIRONMENT)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # a user's cache keeps its limits
        os.environ.update({**_CACHE, **os.environ}, JAX_COMPILATION_CACHE_DIR=cache)
    threading.Thread(target=_end_with_parent, args=(cache,), daemon=True).start()


def _end_with_parent(cache: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        shutil.rmtree(cache, ignore_errors=True)  # a killed parent process leaves it
        os._exit(1)


@contextlib.contextmanager
def _interrupts_blocked() -> Generator[None]:
    """Block Ctrl-C in this context; processes that are started in the context never receive it."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    from multiprocessing import resource_tracker  # noqa: PLC0415  # not for Windows

    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
