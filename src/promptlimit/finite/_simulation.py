"""Monte Carlo over prompts: any measure, any attention, with an error bar and a word of warning."""

import dataclasses
import math
import warnings
from itertools import islice
from numbers import Integral
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import PRNGKeyArray

from promptlimit.attention import AbstractAttention
from promptlimit.finite._array_types import Array
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.parallel import Program, agreed, in_chunks

MEMORY_BUDGET = 2**26
"""Bytes that the prompts simulated at one time may take."""

LARGEST_PROMPT = 2**30
"""Bytes one prompt may take."""

_COPIES = 4
"""How many arrays of the size of a prompt its simulation holds: draws, tokens, scores, products."""

_FIRST_LOOK = 256
"""Prompts before the relative error is first looked at; then at every doubling."""

DEFAULT_RTOL = 0.01
DEFAULT_SAMPLES = 2**16


class UnreliableErrorWarning(UserWarning):
    """An estimate whose error bar cannot be trusted, or which stopped before its target."""


@dataclasses.dataclass(frozen=True)
class Stopping:
    """When to stop: at a relative standard error of the mean square, or at a number of prompts."""

    rtol: float
    samples: int
    rtol_was_asked: bool


def stopping(rtol: float | None, samples: int | None) -> Stopping:
    """Return when to stop; a number of prompts given without `rtol` is used to the last."""
    if rtol is not None and not 0.0 < rtol < math.inf:
        raise ValueError(f"`rtol` must be positive, got {rtol}. It is a relative standard error.")
    if samples is not None and not (isinstance(samples, Integral) and samples >= 2):
        raise ValueError(
            f"`samples` must be a whole number of at least 2, got {samples}. It counts prompts."
        )
    by_default = DEFAULT_RTOL if samples is None else 0.0
    target = by_default if rtol is None else float(rtol)
    return Stopping(target, samples or DEFAULT_SAMPLES, rtol is not None)


class Simulation(eqx.Module):
    """What is simulated: prompts of tokens from a measure, read by an attention at a query."""

    attention: AbstractAttention
    measure: AbstractMeasure
    query: JaxArray
    including_query: bool = eqx.field(static=True)
    key: PRNGKeyArray

    def prompt(self, count: int, index: JaxArray) -> Empirical:
        """Return the prompt of this index, drawn from `fold_in(key, index)`."""
        key = jax.random.fold_in(self.key, index)
        prompt = Empirical(self.measure.sample(count, key=key))
        return prompt.including(self.query) if self.including_query else prompt


class Batch(NamedTuple):
    """What is measured on prompts.

    Attributes:
        program: (simulation, tokens a prompt, *constants), indices -> arrays, one row a prompt.
        constants: what it needs besides.
    """

    program: Program
    constants: tuple[Any, ...]


def simulated(
    simulation: Simulation,
    length: float,
    stop: Stopping,
    batch: Batch,
) -> tuple[Array, ...]:
    """Return what `batch` makes of each prompt, stacked; the first of it is the squared error.

    Prompt i draws its tokens from `fold_in(key, i)`, and the decision to stop is taken after the
    same numbers of prompts whatever the chunks and the devices, so results depend on the key alone.
    """
    count = tokens_that_fit(length, simulation.measure.dim)
    chunk = _chunk(count, simulation.measure.dim, stop.samples)
    chunks = in_chunks(batch.program, (simulation, count, *batch.constants), chunk)
    pieces: list[tuple[Array, ...]] = []
    look = min(_FIRST_LOOK, stop.samples)
    while True:
        pieces += islice(chunks, -(-look // chunk) - len(pieces))
        columns = tuple(np.concatenate(column)[:look] for column in zip(*pieces, strict=True))
        if look == stop.samples or agreed(np.array(_relative_error(columns[0]) <= stop.rtol)):
            break
        look = min(2 * look, stop.samples)
    warn_when_unreliable(columns[0], stop)
    return columns


def tokens_that_fit(length: float, dim: int) -> int:
    """Return a length as a number of tokens, or refuse a prompt that memory will not hold."""
    most = LARGEST_PROMPT // (8 * dim * _COPIES)
    if length > most:
        raise ValueError(
            f"`length` must be at most {most} to simulate prompts of dimension {dim}, "
            f"got {length:g}. Ask for a kind that does not simulate."
        )
    return int(length)


def _chunk(count: int, dim: int, samples: int) -> int:
    """Return how many prompts to hold at a time: a power of two up to the first look."""
    fitting = max(1, MEMORY_BUDGET // (8 * count * dim * _COPIES))
    wanted = 2 ** math.ceil(math.log2(min(samples, _FIRST_LOOK)))
    return min(wanted, 2 ** int(math.log2(fitting)))


def standard_error(values: Array) -> float:
    """Return the standard error of the mean of independent values."""
    return float(values.std(ddof=1) / math.sqrt(values.size))


def _relative_error(squares: Array) -> float:
    mean = float(squares.mean())
    return standard_error(squares) / mean if mean > 0.0 else 0.0


def warn_when_unreliable(squares: Array, stop: Stopping) -> bool:
    r"""Warn when the error bar is itself uncertain, or larger than was asked for, and say if so.

    The variance of n values of kurtosis $\kappa$ is known to a relative $\sqrt{(\kappa-1)/n}$; past
    one half, a few prompts decide the error bar. Few values hide their tails, so that $\kappa$ is
    taken to be at least a Gaussian's.
    """
    count, reached = squares.size, _relative_error(squares)
    centred = (squares - squares.mean()) ** 2
    variance = float(centred.mean())
    kurtosis = max(3.0, float((centred**2).mean()) / variance**2) if variance > 0.0 else 1.0
    uneven = kurtosis - 1.0 > 0.25 * count
    if uneven:
        equal = squares.sum() ** 2 / np.sum(squares**2)
        warnings.warn(
            f"The squared errors of {count} prompts are so uneven, worth {equal:.1f} equal ones, "
            "that their standard error cannot be trusted. Raise `samples`, or ask for "
            "kind='exact' where it is possible.",
            UnreliableErrorWarning,
            stacklevel=5,
        )
    short = stop.rtol_was_asked and reached > stop.rtol
    if short:
        warnings.warn(
            f"{count} prompts reach a relative standard error of {reached:.2g}, not the "
            f"{stop.rtol:g} asked for. Raise `samples`.",
            UnreliableErrorWarning,
            stacklevel=5,
        )
    return uneven or short


def output_batch(limit: Array, tilt: Array | None) -> Batch:
    """Return the batch of squared errors, deviations from the limit and participations.

    Args:
        limit: what the outputs deviate from.
        tilt: the scores of the weights whose participation is wanted; NaN without.
    """
    return Batch(_outputs, (jnp.asarray(limit), None if tilt is None else jnp.asarray(tilt)))


def gradient_batch(limit: Array, wrt: str) -> Batch:
    """Return the batch of squared distances of a parameter gradient from its limit."""
    return Batch(_gradients, (jnp.asarray(limit), wrt))


def _outputs(
    shared: tuple[Simulation, int, JaxArray, JaxArray | None], indices: JaxArray
) -> tuple[JaxArray, JaxArray, JaxArray]:
    simulation, count, limit, tilt = shared

    def one(index: JaxArray) -> tuple[JaxArray, JaxArray, JaxArray]:
        prompt = simulation.prompt(count, index)
        deviation = simulation.attention(prompt, simulation.query) - limit
        weights = jnp.full((1,), jnp.nan)
        if tilt is not None:
            weights = jax.nn.softmax(prompt.tokens @ tilt)
        return jnp.sum(deviation**2), deviation, jnp.sum(weights**2)

    return jax.vmap(one)(indices)


def _gradients(shared: tuple[Simulation, int, JaxArray, str], indices: JaxArray) -> tuple[JaxArray]:
    simulation, count, limit, wrt = shared

    def one(index: JaxArray) -> JaxArray:
        prompt = simulation.prompt(count, index)
        jacobian = simulation.attention.jacobian(prompt, simulation.query, wrt=wrt)
        return jnp.sum((jacobian - limit) ** 2)

    return (jax.vmap(one)(indices),)
