"""Claim 4: continuous depth keeps the rank of the covariance; one layer need not."""

from collections.abc import Sequence

import jax
import numpy as np

from promptlimit.attention import Layer, SoftmaxAttention
from promptlimit.measures import Gaussian
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.depth._continuous import flow, random_symmetric


def decide(setting: Setting) -> Sequence[Check]:
    """Return ranks along flows from singular covariances, and after one singular layer.

    U and V have norm 1, and the eigenvalues of G₀ that are not zero are between 1/2 and 2. Then
    ‖G‖ stays below 3.4 to t = 0.1, for ‖G‖' ≤ 2‖G‖², and the least of these eigenvalues stays above
    e^(−0.68)/2 = 0.25: seven hundredths of the largest.
    """
    rng = np.random.default_rng(setting.seed)
    changed = 0.0
    with jax.enable_x64(True):
        for dim, rank in ((3, 2), (4, 1)) if setting.quick else ((3, 2), (4, 1), (5, 3), (6, 5)):
            U, V = (matrix / np.linalg.norm(matrix, 2) for matrix in rng.normal(size=(2, dim, dim)))
            spectrum = np.append(rng.uniform(0.5, 2.0, rank), np.zeros(dim - rank))
            G = random_symmetric(rng, spectrum)
            times = [0.0, 0.05, 0.1]
            ranks = flow(U, G, times, value=V, method="ode").ranks(1e-6)
            changed += float((ranks != rank).sum())
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        layer = Layer(SoftmaxAttention(np.outer(direction, direction), -np.eye(3)))
        image = layer.push_forward(Gaussian(np.zeros(3), np.eye(3)))
        left = np.linalg.matrix_rank(np.asarray(image.cov), tol=1e-9)
    return [
        Check(
            "number of depths at which the rank differs from that at the start",
            changed,
            "<=",
            0.0,
            basis="a count; a cut at $10^{-6}$ of the largest eigenvalue separates 0.07 from "
            "the solver's $10^{-9}$",
        ),
        Check(
            "a layer with $I + VGU$ singular: ranks lost, of 3",
            3.0 - left,
            ">=",
            1.0,
            role="control",
            basis=r"a count; in closed form the layer is $I - uu^\top$, which has one rank less",
        ),
    ]


CLAIM = Claim(
    number=4,
    name="constant-rank",
    statement="The covariance of the tokens has the same rank at every finite depth of the flow.",
    reference="Alcalde, Ji and Zuazua 2026, abstract",
    decide=decide,
)
