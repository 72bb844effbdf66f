r"""One pass over the heads of a model, for `atlas` and `causal_atlas`.

A `Measurement` computes statistics of some queries, and the outputs of a head and of its
approximations at these queries. This module contains the loops over prompts, layers, heads and
blocks of queries, the squared errors of the approximations and their $R^2$.
"""

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from promptlimit._inputs import to_device
from promptlimit.errors import ArgumentError
from promptlimit.heads._model import LayerHeads
from promptlimit.heads._parts import Parts
from promptlimit.heads._prediction import Prediction
from promptlimit.heads._prompts import HeadPrompts
from promptlimit.heads._weighing import in_blocks
from promptlimit.measures import full_precision

Found = TypeVar("Found")
Progress = Callable[[str, int, int], None]
"""A function of the name of the step, the number of finished parts and their total."""
Part = dict[str, Any]
"""Arrays by name, or mappings of arrays."""
Named = dict[str, Array]
"""Arrays by name, one row per query."""
_THREADS = 4
SOFTMAX = "softmax"
"""The name of the head itself in mappings of outputs; the other names are approximations."""


class QueryRows(NamedTuple):
    """Statistics and errors at the queries of a layer, in double precision.

    Attributes:
        statistics: statistics at each query, by name, [heads, queries].
        errors: the squared distance of each approximation from the output of the head, by name,
            [heads, queries].
        totals: the squared distances of the outputs from their mean over queries, summed over
            queries, by name, [heads]; "softmax" is the head itself.
        outputs: the outputs of the head itself, [heads, queries, e].
    """

    statistics: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]
    totals: dict[str, np.ndarray]
    outputs: np.ndarray


@runtime_checkable
class Measurement(Protocol):
    """A measurement of a head. It must be hashable, so that each measurement is compiled once."""

    def rows(
        self, head: LayerHeads, scale: Array, prediction: Prediction, given: Any
    ) -> Callable[[Array, Array], tuple[Named, Named]]:
        """Return a function of queries [n, d] and their positions [n].

        The function returns statistics [n] and outputs [n, e] by name. The outputs include
        "softmax", the output of the head itself.

        Args:
            head: queries, keys and values of one head.
            scale: the factor on the scores of the head.
            prediction: the weight statistics of Gaussian tokens.
            given: further arrays for this head.
        """


def query_rows(  # noqa: PLR0917 - in the order of their use
    heads: LayerHeads,
    scales: Float[np.ndarray, " heads"],
    positions: Int[np.ndarray, " queries"],
    prediction: Prediction,
    measurement: Measurement,
    given: Any = (),
) -> QueryRows:
    """Return statistics and errors at some queries of a layer, computed head by head.

    Args:
        heads: queries, keys and values of a layer.
        scales: the factor on the scores of each head.
        positions: the positions of the measured queries.
        prediction: the weight statistics of Gaussian tokens.
        measurement: the statistics and the approximations.
        given: arrays with one entry per head along the first axis; `measurement.rows` gets the
            entries of its head as `given`.
    """
    rows = _device_rows(
        heads,
        to_device(scales, jnp.float32),
        to_device(positions, jnp.int32),
        prediction,
        given,
        measurement=measurement,
    )
    return QueryRows(*jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), rows))


@functools.partial(jax.jit, static_argnames="measurement")
@full_precision
def _device_rows(
    heads: LayerHeads,
    scales: Array,
    positions: Array,
    prediction: Prediction,
    given: Any,
    *,
    measurement: Any,
) -> tuple[Named, Named, Named, Array]:
    def of_head(operands: tuple[LayerHeads, Array, Any]) -> tuple[Named, Named, Named, Array]:
        head, scale, own = operands
        rows = measurement.rows(head, scale, prediction, own)
        statistics, outputs = in_blocks(rows, head.queries, positions)
        exact = outputs[SOFTMAX]
        errors = {
            name: ((exact - output) ** 2).sum(axis=1)
            for name, output in outputs.items()
            if name != SOFTMAX
        }
        totals = {n: ((a - a.mean(axis=0)[None]) ** 2).sum() for n, a in outputs.items()}
        return statistics, errors, totals, exact

    return jax.lax.map(of_head, (heads, scales, given))


def in_every_layer(
    prompts: HeadPrompts,
    measure: Callable[[int, int, LayerHeads], Part],
    what: str,
    report: Progress,
    parts: Parts,
) -> Part:
    """Return `measure(prompt, layer, heads)` for all layers of all prompts, [prompts, layers, ...].

    Results that `parts` contains are not computed again. `what` is the name of the step for
    `report`. Raises `ArgumentError` if scores overflow single precision.
    """
    done, total = itertools.count(1), prompts.count * len(prompts.scales)
    report(what, 0, total)

    def of_prompt(index: int) -> Part:
        layers = range(len(prompts.scales))
        found = {n: part for n in layers if (part := parts.load(_name(index, n))) is not None}
        for _ in found:
            report(what, next(done), total)
        for layer, heads in enumerate(prompts.layers(index)) if len(found) < len(layers) else ():
            if layer not in found:
                found[layer] = finite_part(index, layer, heads)
                parts.save(_name(index, layer), found[layer])
                report(what, next(done), total)
        return _stacked([found[layer] for layer in layers])

    def finite_part(index: int, layer: int, heads: LayerHeads) -> Part:
        finite = all(np.isfinite(part).all() for part in heads)
        part = measure(index, layer, heads) if finite else {}
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(part) or [np.nan]):
            raise ArgumentError(
                "model",
                "must have scores that are finite in single precision, but those of layer "
                f"{layer} of {prompts.name} overflow. Check that its weights are trained.",
            )
        return part

    return _stacked(list(in_threads(of_prompt, 0, prompts.count)))


def _name(prompt: int, layer: int) -> str:
    """Return the name under which the measurement of one layer on one prompt is stored."""
    return f"prompt-{prompt}-layer-{layer}"


def _stacked(parts: list[Part]) -> Part:
    """Stack the arrays of the parts along a new first axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *parts)


def in_threads(work: Callable[[int], Found], first: int, end: int) -> Iterator[Found]:
    """Yield `work(index)` for indices from `first` to `end - 1` in order, computed in threads."""
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        yield from pool.map(work, range(first, end))


def explained(
    errors: Mapping[str, np.ndarray], totals: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    r"""Return $R^2=1-\sum\mathrm{error}/\sum\mathrm{total}$, and its standard error.

    The sums are over windows, the first axis of all arrays. The standard error is that of the
    jackknife over windows, and infinite for a single window.
    """
    r2 = {name: 1.0 - share_of(e.sum(axis=0), totals.sum(axis=0)) for name, e in errors.items()}
    if len(totals) == 1:
        return r2, {name: np.full(totals.shape[1:], np.inf) for name in errors}
    others = totals.sum(axis=0) - totals
    without = {name: share_of(e.sum(axis=0) - e, others) for name, e in errors.items()}
    count = len(totals)
    return r2, {name: np.sqrt((count - 1) * e.var(axis=0)) for name, e in without.items()}


def share_of(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return `part / whole`; NaN if `whole` is 0, as for a head with a constant output."""
    return part / np.where(whole > 0, whole, np.nan)
