r"""The fourth moment of the error of a finite prompt, exactly.

With $B=A-\sigma$, $S_2=\sum p_l^2$, $p=V\Gamma^{1/2}e$ and $Q=V\Gamma^{1/2}(I-ee^\top)\Gamma^{1/2}
V^\top$, the error is $Bp$ plus, given the weights, a Gaussian vector of covariance $S_2Q$, so that

$$E|T_L-T|^4=|p|^4E\,B^4+(2|p|^2\mathrm{tr}\,Q+4p^\top Qp)\,E[B^2S_2]
+\big((\mathrm{tr}\,Q)^2+2\,\mathrm{tr}\,Q^2\big)E\,S_2^2.$$
"""

import numpy as np

from promptlimit.attention import SoftmaxAttention
from promptlimit.measures import Gaussian
from promptlimit.weights import weight_moments

_STEP, _REACH = 0.1, 20.0
"""The step of the midpoint rule over queries, and its end in standard deviations."""


def fourth_weight_moments(sharpness: float, lengths: np.ndarray) -> np.ndarray:
    r"""Return $E\,B^4$, $E[B^2S_2]$ and $E\,S_2^2$ at lengths above 1, [3, length]."""
    found = weight_moments(("BBBB", "BBS", "SS"), sharpness, lengths)
    return np.stack([moment.value for moment in found.values()])


def fourth_moment(
    attention: SoftmaxAttention, law: Gaussian, query: np.ndarray, length: int
) -> float:
    r"""Return $E|T_L(z)-T(z)|^4$ at one query."""
    cov, V = np.asarray(law.covariance), np.asarray(attention.value)
    values, axes = np.linalg.eigh(cov)
    root = (axes * np.sqrt(values.clip(0.0))) @ axes.T
    tilt = root @ np.asarray(attention.key_query) @ query
    sharpness = float(np.linalg.norm(tilt))
    e = tilt / sharpness
    p = V @ root @ e
    Q = V @ root @ (np.eye(e.size) - np.outer(e, e)) @ root @ V.T
    fourth, mixed, square = fourth_weight_moments(sharpness, np.array([float(length)]))[:, 0]
    size, trace = p @ p, np.trace(Q)
    return float(
        size**2 * fourth
        + (2 * size * trace + 4 * p @ Q @ p) * mixed
        + (trace**2 + 2 * np.trace(Q @ Q)) * square
    )


def mean_fourth_moment(tau: float, lengths: np.ndarray) -> np.ndarray:
    r"""Return $E|T_L-T|^4$ for tokens and queries $N(0,1)$, $U=\tau$, $V=1$, [length].

    The midpoint rule over queries converges geometrically.
    """
    queries = _STEP * (np.arange(round(_REACH / _STEP)) + 0.5)
    density = 2 * _STEP * np.exp(-(queries**2) / 2) / np.sqrt(2 * np.pi)
    rows = [fourth_weight_moments(tau * float(query), lengths)[0] for query in queries]
    return density @ np.array(rows)
