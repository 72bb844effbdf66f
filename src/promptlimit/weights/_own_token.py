r"""Statistics of softmax weights over Gaussian tokens, with the query as one more token.

The query has score $s_0$, measured from the mean of the others', which are $\sigma g_l$. With
$c=e^{u+s_0}$ and the transforms $\varphi$, $a_{k,j}=E[(g-\sigma)^jx^ke^{-x}]$, over L other tokens,

    own            P0  = int c e^-c phi^L
    own_square     P00 = int c^2 e^-c phi^L
    participation  S2  = L int a_20 e^-c phi^{L-1}
    score_error    B2  = L int a_22 e^-c phi^{L-1} + L(L-1) sigma^2 int a_20^2 e^-c phi^{L-2}
    coupling       X   = -sigma L int c a_20 e^-c phi^{L-1}

(docs/finite.md). `prompt_integrals` gives the same numbers, as second moments of the values (own
token, h), in four to six times the time; the bias of a stack needs about a thousand of them.
"""

import dataclasses

import numpy as np

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError
from promptlimit.weights._brackets import brackets
from promptlimit.weights._functional import KnownTokens, nodes_of
from promptlimit.weights._gaussian_score import GaussianScore, log_from, score_window

_TOLERANCE = 1e-9
_SMALLEST = 1e-6
"""Smaller sharpnesses are replaced by this one."""


@dataclasses.dataclass(frozen=True)
class OwnTokenStatistics:
    r"""Means over prompts, [n] each: $p_0$ is the weight of the query, $p_l$ those of the others.

    Attributes:
        own: $E\,p_0$.
        own_square: $E\,p_0^2$.
        participation: $E\sum_lp_l^2$, without the query.
        score_error: $E(\sum_lp_l(g_l-\sigma))^2$.
        coupling: $E\,p_0\sum_lp_l(g_l-\sigma)$.
    """

    own: Array
    own_square: Array
    participation: Array
    score_error: Array
    coupling: Array


def own_token_statistics(sharpness: Array, own_score: Array, length: float) -> OwnTokenStatistics:
    r"""Return the statistics at $(\sigma, s_0)$, [n] each, over L other tokens; L may be zero.

    Raises:
        AccuracyError: the weights do not add up to one within 1e-9.
    """
    if length == 0.0:  # the query has all the weight
        one, none = np.ones(sharpness.size), np.zeros(sharpness.size)
        return OwnTokenStatistics(one, one, none, none, none)
    points = zip(sharpness.tolist(), own_score.tolist(), strict=True)
    rows = np.array([_integrals(max(sigma, _SMALLEST), own, length) for sigma, own in points])
    mass = rows[:, 0]
    worst = int(np.argmax(np.abs(mass - 1.0)))
    if not abs(mass[worst] - 1.0) <= _TOLERANCE:
        raise AccuracyError(
            f"`own_token_statistics` must have weights of sum one, got {mass[worst]:.10g} at "
            f"sharpness {sharpness[worst]:g}, own score {own_score[worst]:g}, length {length:g}."
        )
    return OwnTokenStatistics(*rows[:, 1:].T)


def _integrals(sharpness: float, own_score: float, length: float) -> list[float]:
    """Return the sum of all weights, and the statistics in their order."""
    own_token = KnownTokens(np.array([own_score]), np.zeros((1, 0)))
    u = nodes_of([score_window(0.0, sharpness, length, length), own_token.window()])
    score = GaussianScore(0.0, sharpness, u)
    (a10, _, _), (a20, _, a22) = score.moments((1, 2), 2, sharpness)
    c = own_token.at(u).x[:, 0]
    quantities = {
        "mass": {0: c, 1: a10},
        "own": {0: c},
        "own_square": {0: c * c},
        "participation": {1: a20},
        "score_error": {1: a22, 2: (sharpness * a20) ** 2},
        "coupling": {1: -sharpness * c * a20},
    }
    log_phi, lengths = log_from(*score.kept_and_lost), np.array([length])
    found = brackets(quantities, u, log_phi, lengths, known=c)
    return [float(found[name].mean()) for name in quantities]
