"""The predictors of a denoising task, compared with the Bayes predictor."""

import math
from collections.abc import Callable

import numpy as np

from promptlimit._arrays import Array, ArrayLike, as_float64
from promptlimit.attention import AbstractAttention, SoftmaxAttention
from promptlimit.concentration import gap_exponent
from promptlimit.errors import ArgumentError
from promptlimit.measures import Gaussian
from promptlimit.results import DenoisingReport, TunedLayers
from promptlimit.tasks._risk import bayes_excess, bayes_risk
from promptlimit.tasks.denoising import (
    LARGEST_GATE,
    Denoising,
    bayes_heads,
    bayes_layer,
    best_layer,
    linear_denoiser,
)


def denoising_report(
    task: Denoising,
    lengths: ArrayLike,
    *,
    two_heads: bool = False,
    best: bool = False,
    watch: Callable[[str, int, int], None] | None = None,
) -> DenoisingReport:
    """Return the mean squared distances of several predictors from the Bayes predictor.

    The predictors are the Bayes layer (Proposition 4.4 of the paper on mixtures), the linear head
    closest to the Bayes predictor and, if requested, the two heads of Theorem 4.1 and the best
    layer at each length. If a predictor does not exist for the task, `missing` of the result
    contains the reason.

    Args:
        task: the denoising task.
        lengths: whole numbers from 1 to 1e30; the function appends the infinite length.
        two_heads: whether to include the two heads, which takes about 15 seconds.
        best: whether to include the best layer, which takes about ten seconds per length.
        watch: a function that is called before each step and at the end. Its arguments are the name
            of the step, the number of finished steps and the number of all steps.

    >>> import promptlimit as pl
    >>> task = pl.Denoising([[2], [-2]], [0.5, 0.5], within_variance=1, noise_variance=1)
    >>> report = denoising_report(task, [100])
    >>> print({name: float(values[0].round(4)) for name, values in report.value.items()})
    {'layer': 0.1945, 'linear': 0.1486}
    """
    counts = np.append(np.ravel(as_float64(lengths)), math.inf)
    attentions, missing = _attentions(task, two_heads=two_heads)
    steps = [*attentions, *(f"best layer at L = {length:g}" for length in counts if best)]

    def tell(done: int) -> None:
        if watch is not None:
            watch(steps[min(done, len(steps) - 1)], done, len(steps))

    value: dict[str, Array] = {}
    error: dict[str, Array] = {}
    for done, (name, attention) in enumerate(attentions.items()):
        tell(done)
        excess = bayes_excess(attention, task, counts)
        value[name], error[name] = as_float64(excess.mse), as_float64(excess.mse_error)
        if not np.isfinite(value[name]).all():
            raise OverflowError(f"the excess of the predictor '{name}'")
    tuned: dict[str, Array] = {}
    if best:
        layers = []
        for place, length in enumerate(counts.tolist()):
            tell(len(attentions) + place)
            layers.append(best_layer(task, length))
        value["best"], error["best"] = _column(layers, "mse"), _column(layers, "mse_error")
        gate = _column(layers, "inverse_temperature")
        cold = np.divide(1.0, gate, out=np.full(gate.shape, np.inf), where=gate > 0.0)
        tuned = {"gate": gate, "temperature": cold}
        tuned |= {name: _column(layers, name) for name in ("gain", "residual")}
    tell(len(steps))
    eye = np.eye(task.token_dim)
    tokens, queries = (
        Gaussian(np.zeros(task.token_dim), variance * eye)
        for variance in (task.token_variance, task.query_variance)
    )
    rate = gap_exponent(SoftmaxAttention(eye / task.query_variance, eye), tokens, queries)
    return DenoisingReport(
        lengths=counts,
        value=value,
        error=error,
        tuned=tuned,
        missing=missing,
        bayes_risk=float(bayes_risk(task, math.inf).mse),
        tau=rate.tau,
        exponent=rate.value,
        largest_gate=LARGEST_GATE,
        means=tuple(map(tuple, as_float64(task.means).tolist())),
        weights=tuple(as_float64(task.weights).tolist()),
        within_variance=float(task.within_variance),
        noise_variance=float(task.noise_variance),
        clean_prompt=bool(task.clean_prompt),
    )


def _attentions(
    task: Denoising, *, two_heads: bool
) -> tuple[dict[str, AbstractAttention], dict[str, str]]:
    """Return the predictors that do not depend on L, and the reason for each missing predictor."""
    makers: dict[str, Callable[[Denoising], AbstractAttention]] = {"layer": bayes_layer}
    makers |= {"two_heads": bayes_heads} if two_heads else {}
    makers["linear"] = linear_denoiser
    attentions, missing = {}, {}
    for name, maker in makers.items():
        try:
            attentions[name] = maker(task)
        except ArgumentError as problem:
            if problem.argument != "task":
                raise
            missing[name] = f"the task {problem.requirement}"
    return attentions, missing


def _column(layers: list[TunedLayers], name: str) -> Array:
    return np.array([getattr(layer, name) for layer in layers])
