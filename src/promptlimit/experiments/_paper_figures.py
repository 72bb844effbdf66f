"""The arrays behind the paper's figures, for one covariance law or several."""

import functools
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from promptlimit.experiments._protocol import LENGTHS, protocol_task
from promptlimit.experiments._setting import Setting
from promptlimit.experiments._start_gap import (
    population_gradient_gap,
    same_batch_gradient_gap,
    squared_output_gap,
)
from promptlimit.experiments._study import (
    KERNELS,
    NOISE_LENGTHS,
    RATE,
    TIMES,
    curves,
    descent,
    ends,
    noise_rise,
    random_start,
    start_numbers,
)
from promptlimit.tasks import bayes_risk

Arrays = dict[str, np.ndarray]

ANISOTROPIC = ("kms", "kms-as-coded")
_BETWEEN = np.unique(np.geomspace(10, 1000, 33).round())


def gap_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which gradients are compared at the start."""
    return (10, 100) if setting.quick else (10, 30, 100, 300, 1000)


def output_lengths(setting: Setting) -> tuple[int, ...]:
    """Return the lengths at which outputs are compared at the start."""
    return LENGTHS[::6] if setting.quick else LENGTHS


@functools.cache
def start_gaps(setting: Setting, law: str) -> Arrays:
    """Return squared gaps between softmax and linear attention at random starts, [start, length].

    The mean over batches is from simulated prompts; the other two are exact.
    """
    task, lengths = protocol_task(law), gap_lengths(setting)
    batches = 96 if setting.quick else 32  # quick has fewer starts to average over
    found: dict[str, list] = {"output": [], "population": [], "batch": []}
    for index in start_numbers(setting, law):
        starts = [random_start(setting, index, kernel) for kernel in KERNELS]
        key = jax.random.fold_in(jax.random.key(setting.seed), 3_000 + index)
        setting.tell(f"gaps at start {index}: {law}")
        found["output"].append(squared_output_gap(task, starts[0], output_lengths(setting)))
        found["population"].append(
            [population_gradient_gap(task, starts, length) for length in lengths]
        )
        found["batch"].append(
            [
                same_batch_gradient_gap(task, starts, length, key=key, batches=batches)
                for length in lengths
            ]
        )
    arrays = {
        "output": np.array([gap.value for gap in found["output"]]),
        "output_error": np.array([gap.error for gap in found["output"]]),
    }
    for name in ("population", "batch"):
        arrays[name] = np.array([[gap.value for gap in row] for row in found[name]])
        arrays[f"{name}_error"] = np.array([[gap.error for gap in row] for row in found[name]])
    return arrays


def gap_arrays(setting: Setting, laws: Sequence[str]) -> Arrays:
    """Return what Figures 1 and 5 are drawn from."""
    arrays = {
        "lengths": np.array(output_lengths(setting)),
        "gradient_lengths": np.array(gap_lengths(setting)),
    }
    for law in laws:
        arrays |= _named(law, start_gaps(setting, law))
    return arrays


def end_arrays(setting: Setting, laws: Sequence[str]) -> Arrays:
    """Return what Figures 2 and 6 are drawn from."""
    arrays: Arrays = {}
    between = _BETWEEN[::4] if setting.quick else _BETWEEN
    for law in laws:
        at_end, along, trained = ends(setting, law), curves(setting, law), descent(setting, law)
        arrays |= _named(
            law,
            {
                "lengths": at_end.lengths,
                "errors": at_end.errors,
                "accuracy": at_end.accuracy,
                "optimum": at_end.optimum,
                "ridge_lengths": between,
                "ridge": np.asarray(bayes_risk(protocol_task(law), between).mse),
                "floor": np.array(at_end.floor),
                "curve_lengths": along.lengths,
                "start_errors": along.errors[..., -1],
                "converged": along.converged,
                "trained_lengths": np.array(trained.lengths),
                "trained": 2 * trained.value[:, :, 0, -1].T,
                "trained_time": trained.times[-1:],
            },
        )
        if not setting.quick:
            noise = {"lengths": np.array(NOISE_LENGTHS), "rise": noise_rise(setting, law)}
            arrays |= _named(law, {f"noise_{name}": array for name, array in noise.items()})
    if "identity" not in laws:
        arrays["isotropic_optimum"] = ends(setting, "identity").optimum
    return arrays


def training_arrays(setting: Setting, laws: Sequence[str]) -> Arrays:
    """Return what Figures 3, 4, 7 and 8 are drawn from; steps are those of the paper's protocol."""
    arrays: Arrays = {"steps": TIMES / (2 * RATE)}
    for law in laws:
        found, trained = curves(setting, law), descent(setting, law)
        gap = [
            _squared_distance(trained.parameters, place) for place in range(len(trained.lengths))
        ]
        arrays |= _named(
            law,
            {
                "lengths": found.lengths,
                "errors": found.errors,
                "distances": found.distances,
                "best": found.best,
                "floor": np.array(found.floor),
                "converged": found.converged,
                "shown": np.array(found.shown),
                "trained_lengths": np.array(trained.lengths),
                "trained_steps": trained.times / (2 * RATE),
                "trained_errors": 2 * np.moveaxis(trained.value[:, :, 0], 0, 1),
                "trained_distances": np.array(gap),
            },
        )
    return arrays


def _squared_distance(parameters: Mapping[str, np.ndarray], place: int) -> np.ndarray:
    """Return the squared distance between softmax and linear factors along training."""
    pairs = [(each[place, 0, 0], each[place, 1, 0]) for each in parameters.values()]
    return np.sum([((a - b) ** 2).sum(axis=(1, 2)) for a, b in pairs], axis=0)


def _named(law: str, arrays: Arrays) -> Arrays:
    return {f"{law}.{name}": array for name, array in arrays.items()}
