"""How much do the special paths of exact results gain over the general ones?

Each path is switched off by replacing one private name. Processor time is compared, which other
work on the machine disturbs least. Prints a small table; nothing is asserted.
"""

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

import promptlimit as pl
from promptlimit.finite import _prompt_moments
from promptlimit.tasks.denoising import _prompts
from promptlimit.tasks.discrimination import _law
from promptlimit.tasks.regression import _risk


def seconds(action: Callable[[], object]) -> float:
    """Return the processor time of an action, in seconds."""
    started = time.process_time()
    action()
    return time.process_time() - started


def compare(
    name: str, run: Callable[[int], object], module: Any, switch: str, general: object
) -> None:
    """Print the times of the special path and of the general one, each of a second call."""
    _, special = [seconds(lambda n=n: run(n)) for n in (0, 1)]
    with mock.patch.object(module, switch, general):
        _, slow = [seconds(lambda n=n: run(n)) for n in (2, 3)]
    print(f"{name:<44} {special:7.2f} s  general {slow:7.2f} s  {slow / special:5.1f} x")


def main(smallest: bool = False) -> None:
    """Time isotropic heads, light queries, polar coordinates, and heads beside a mean."""
    points = 4 if smallest else None
    dim = 2 if smallest else 5
    block = np.diag(np.append(np.ones(dim), 0.0))
    regression = pl.LinearRegression(np.eye(dim), noise_variance=0.1, prior_variance=0.2)
    head = pl.SoftmaxAttention(0.7 * block, 0.9 * np.eye(dim + 1))
    compare(
        "isotropic regression, a new length",
        lambda number: pl.risk(head, regression, 10 + number),
        _risk,
        "radial_risk",
        lambda *_: None,
    )
    classes = pl.Discrimination([[1.0], [-1.0]], [0.6, 0.4], [[1.0]])
    length = 1 if smallest else 10
    compare(
        "discrimination, light queries",
        lambda _: pl.risk(classes.bayes_head(), classes, length, points=points),
        _law,
        "_LIGHT_SHARE",
        0.0,
    )
    mixture = pl.Denoising(3.0 * np.eye(2, 6), [0.5, 0.5], within_variance=1.0, noise_variance=4.0)
    layer = pl.tasks.bayes_layer(mixture)
    compare(
        "denoising in 6 dimensions, polar coordinates",
        lambda number: pl.bayes_excess(layer, mixture, 100 + number, points=points),
        _prompts,
        "is_scalar",
        lambda _: False,
    )
    scores = pl.SoftmaxAttention([[1.5]], [[1.0]])
    beside = pl.MultiHead([scores, pl.SoftmaxAttention([[0.0]], [[-1.0]])])
    lengths = np.array([10.0]) if smallest else np.round(np.geomspace(10, 1e4, 12))
    for law in (pl.Gaussian([0.0], [[1.0]]), pl.UniformCube([1.0])):
        compare(
            f"a softmax head beside a mean, {type(law).__name__} tokens",
            lambda _, law=law: pl.prompt_moments(beside, law, [1.0], lengths),
            _prompt_moments,
            "_softmax_and_mean",
            lambda _: None,
        )


if __name__ == "__main__":
    main("--smallest" in sys.argv)
