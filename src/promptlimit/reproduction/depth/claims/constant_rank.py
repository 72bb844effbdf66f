"""Claim 4: continuous depth keeps the rank of the covariance; one layer need not."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.attention import Layer, SoftmaxAttention
from promptlimit.measures import Gaussian
from promptlimit.reproduction import Claim, Setting
from promptlimit.reproduction.depth._continuous import flow
from promptlimit.results import Check


def decide(setting: Setting) -> Sequence[Check]:
    """Return ranks along flows from singular covariances, and after one singular layer."""
    rng = np.random.default_rng(setting.seed)
    changed = 0.0
    with jax.enable_x64(True):
        for dim, rank in ((3, 2), (4, 1)) if setting.quick else ((3, 2), (4, 1), (5, 3), (6, 5)):
            U, V, lift = (rng.normal(size=shape) for shape in ((dim,) * 2, (dim,) * 2, (dim, rank)))
            G = lift @ lift.T / dim
            times = [0.0, 0.05, 0.1]
            ranks = flow(0.3 * U, G, times, value=0.3 * V, method="ode").ranks(1e-7)
            changed += float((ranks != rank).sum())
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        layer = Layer(SoftmaxAttention(np.outer(direction, direction), -np.eye(3)))
        image = layer.push_forward(Gaussian(np.zeros(3), np.eye(3)))
        left = np.linalg.matrix_rank(np.asarray(image.cov), tol=1e-9)
    return [
        Check("depths at which the rank is another than at the start", changed, "<=", 0.0),
        Check(
            "a layer with I + VGU singular: ranks lost of 3", 3.0 - left, ">=", 1.0, role="control"
        ),
    ]


CLAIM = Claim(
    number=4,
    name="constant-rank",
    statement="The rank of the covariance is the same at every finite depth of the flow.",
    reference="Alcalde, Ji and Zuazua 2026, abstract",
    decide=decide,
)
