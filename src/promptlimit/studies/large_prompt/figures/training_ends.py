"""Figures 2 and 6: risks after training against the length of the prompt."""

import functools
from collections.abc import Sequence

import numpy as np

from promptlimit.studies import Figure, Setting
from promptlimit.studies.large_prompt.protocol import protocol_task
from promptlimit.studies.large_prompt.study import (
    ANISOTROPIC,
    ISOTROPIC,
    NOISE_LENGTHS,
    Arrays,
    by_law,
    curves,
    descent,
    ends,
    noise_rise,
)
from promptlimit.tasks import bayes_risk

_BETWEEN = np.unique(np.geomspace(10, 1000, 33).round())
_POINTS = 256  # a thousandth of the risk, which no eye sees


def compute(setting: Setting, *, laws: Sequence[str]) -> Arrays:
    """Return what Figures 2 and 6 are drawn from."""
    arrays: Arrays = {}
    between = _BETWEEN[::4] if setting.quick else _BETWEEN
    for law in laws:
        at_end, along, trained = ends(setting, law), curves(setting, law), descent(setting, law)
        arrays |= by_law(
            law,
            {
                "lengths": at_end.lengths,
                "errors": at_end.errors,
                "accuracy": at_end.accuracy,
                "optimum": at_end.optimum,
                "ridge_lengths": between,
                "ridge": np.asarray(bayes_risk(protocol_task(law), between, points=_POINTS).mse),
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
            arrays |= by_law(law, {f"noise_{name}": array for name, array in noise.items()})
    if "identity" not in laws:
        arrays["isotropic_optimum"] = ends(setting, "identity").optimum
    return arrays


FIGURES = (
    Figure(
        name="figure_2",
        title="Risk after training against the length of the prompt, isotropic covariates",
        caption="Mean squared error at the end of training, for softmax and linear attention "
        "from the block start of the theory over isotropic covariates, with the closed-form "
        "optimum of linear attention, the Bayes predictor (ridge regression) and the noise "
        "floor. Lines are gradient flows of exact risks up to time 600, as after 300,000 steps "
        "at rate 0.001. Bands, hardly wider than the lines, are twice the mean increase due to "
        "gradient noise at the rate and batch size of the paper, estimated at $L = 10$ and "
        "$100$ and taken as constant beyond. Rings are training runs from a converging random "
        "start, at ten times that rate unless the full protocol is chosen. Crosses are random "
        "starts that ended more than a tenth above the least excess.",
        compute=functools.partial(compute, laws=ISOTROPIC),
        section="paper",
        reference="Figure 2",
        after_parts=True,
    ),
    Figure(
        name="figure_6",
        title="Risk after training against the length of the prompt, anisotropic covariates",
        caption="Mean squared error at the end of training, for softmax and linear attention "
        "from the block start of the theory over anisotropic covariates, whose covariance has "
        "entries $2^{-{|i-j|}}$, with the closed-form optimum of linear attention, the Bayes "
        "predictor (ridge regression) and the noise floor. Lines are gradient flows of exact "
        "risks up to time 600, as after 300,000 steps at rate 0.001. Bands, hardly wider than "
        "the lines, are twice the mean increase due to gradient noise at the rate and batch "
        "size of the paper, estimated at $L = 10$ and $100$ and taken as constant beyond. Rings "
        "are training runs from a converging random start, at ten times that rate unless the "
        "full protocol is chosen. Crosses are random starts that ended more than a tenth above "
        "the least excess. Left: the law that the paper states. Right: the law that a public "
        "copy of its code draws, where the prompt does not reveal the covariance of the query "
        "and errors fall more slowly. Grey: the optimum of linear attention over isotropic "
        "covariates, for comparison.",
        compute=functools.partial(compute, laws=ANISOTROPIC),
        section="paper",
        reference="Figure 6",
        after_parts=True,
    ),
)
