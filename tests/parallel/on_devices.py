"""Results of one process with eight CPU devices, as JSON on standard output.

The tests start it once, because starting and compiling dominate the time:

    python tests/parallel/on_devices.py PART... FOLDER
"""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import promptlimit as pl
from parallel.processes import hexadecimal, streamed_numbers
from promptlimit.parallel import active_devices, collective_sums


def _problem() -> tuple[pl.SoftmaxAttention, pl.Rademacher]:
    matrices = np.array([[0.5, 0.2], [-0.3, 0.4]]), np.array([[1.0, 2.0]])
    return pl.SoftmaxAttention(*matrices), pl.Rademacher(np.array([1.0, 0.5]))


def _how() -> dict[str, Any]:
    return {"kind": "estimate", "key": jax.random.key(3)}


def _task() -> pl.LinearRegression:
    return pl.LinearRegression(np.eye(1), noise_variance=0.1)


def gap() -> list[str]:
    attention, signs = _problem()
    found = pl.output_gap(attention, signs, signs, [20], **_how(), samples=700)
    return hexadecimal(found.value, found.error)


def slope() -> list[str]:
    attention, signs = _problem()
    found = pl.gradient_gap(attention, signs, signs, [3], wrt="value", **_how(), samples=600)
    return hexadecimal(found.value)


def moments() -> list[str]:
    found = pl.prompt_moments(*_problem(), np.ones(2), 9, **_how(), rtol=0.05)
    return hexadecimal(found.mean, found.cov, found.mse)


def risk() -> list[str]:
    head = pl.SoftmaxAttention(0.3 * np.eye(2), np.array([[0.0, 1.0]]))
    found = pl.risk(head, _task(), 5, **_how(), samples=2500)
    return hexadecimal(found.value, found.error)


def estimates(_: Path) -> dict[str, dict[int, list[str]]]:
    """Return estimates on one device and on several, by name and number of devices."""
    return {"gap": _spread(gap, 8)}


def slopes(_: Path) -> dict[str, dict[int, list[str]]]:
    """Return more estimates on one device and on several."""
    return {"slope": _spread(slope, 2), "moments": _spread(moments, 4), "risk": _spread(risk, 2)}


def _spread(estimate: Callable[[], list[str]], several: int) -> dict[int, list[str]]:
    found = {}
    for devices in (1, several):
        with pl.use_devices(devices):
            found[devices] = estimate()
    return found


class _KilledError(Exception):
    pass


def _stop(progress: Any) -> None:
    if progress.done >= 40:
        raise _KilledError


def _trained(devices: int, folder: Path | None = None, watch: Any = None) -> dict[str, list]:
    def factors(key: Any) -> pl.Factored:
        return pl.dynamics.uniform_factors(1, key=key, kernel="linear")

    starts = [factors, lambda key: factors(jax.random.fold_in(key, 1))]
    how: dict[str, Any] = {
        "steps": 80,
        "batch": 8,
        "learning_rate": 0.05,
        "record": [0, 80],
        "points": 64,
    }
    plan = pl.TrainingPlan(**how)
    kept: dict[str, Any] = {"folder": folder, "every": 20, "watch": watch}
    with pl.use_devices(devices):
        done = pl.sgd(starts, _task(), 6, plan, key=jax.random.key(1), seeds=5, **kept)
    return {name: x.tolist() for name, x in {**done.parameters, "value": done.value}.items()}


def trainings(folder: Path) -> dict[str, Any]:
    """Return a training on one device, on four, and started on four and finished on one."""
    runs = {f"{devices}": _trained(devices) for devices in (1, 4)}
    with contextlib.suppress(_KilledError):
        _trained(4, folder, _stop)
    checkpoints = [str(path.relative_to(folder)) for path in folder.glob("*/checkpoint.npz")]
    return {"runs": {**runs, "resumed": _trained(1, folder)}, "checkpoints": checkpoints}


def streams(_: Path) -> dict[str, dict[str, Any]]:
    """Return streams on several devices in several chunks, by prompt, devices and chunk."""
    head, law = pl.SoftmaxAttention(np.eye(2), np.eye(2)), pl.Gaussian(np.ones(2), np.eye(2))
    tokens = np.random.default_rng(0).standard_normal((1_500_000, 2)).astype(np.float32)
    prompts = {
        "drawn": lambda: pl.streaming.Generated(law, 1_500_000, key=jax.random.key(0)),
        "held": lambda: tokens,
        "arriving": lambda: iter(np.array_split(tokens, 7)),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, prompt in prompts.items():
        for devices, chunk in ((1, 1), (4, 3) if name == "drawn" else (8, 1)):
            with pl.use_devices(devices):
                read = pl.stream(head, prompt(), [[0.3, 0.4]], [10, 400_000, 786_432], chunk=chunk)
            found.setdefault(name, {})[f"{devices} {chunk}"] = streamed_numbers(read)
    return found


def collectives(_: Path) -> dict[str, Any]:
    """Return the sums over all devices and their correct value."""
    sums, expected = collective_sums()
    return {"sums": sums.tolist(), "expected": expected}


def group(_: Path) -> dict[str, Any]:
    """Return the properties of a group of four devices."""
    with pl.use_devices(4):
        four = active_devices()
    names = ("size", "hosts", "process", "writes")
    return {name: getattr(four, name) for name in names}


def main() -> None:
    """Print the requested parts."""
    *asked, folder = sys.argv[1:]
    known = (estimates, slopes, trainings, streams, collectives, group)
    parts = {part.__name__: part for part in known}
    json.dump({name: parts[name](Path(folder)) for name in asked}, sys.stdout)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main()
