"""Where things run: exact averages on the CPU, training on an accelerator."""

from contextlib import AbstractContextManager, nullcontext

import jax


def on_cpu() -> AbstractContextManager:
    """Compute on the CPU, also where there is an accelerator."""
    if jax.default_backend() == "cpu":
        return nullcontext()
    try:
        return jax.default_device(jax.devices("cpu")[0])
    except RuntimeError:  # the user told jax to see no CPU
        return nullcontext()


def on_accelerator() -> AbstractContextManager:
    """Compute where jax computes by default."""
    return nullcontext() if jax.default_backend() == "cpu" else jax.default_device(None)
