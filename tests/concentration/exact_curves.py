"""Exact gap curves averaged over Gaussian queries, by panels of Gauss-Legendre nodes."""

import functools
import math

import numpy as np
from scipy.special import gammaln

from promptlimit.weights import weight_statistics

FINEST, RATIO, COARSEST, TOP = 0.4, 0.12, 2.0, 19.0
"""Widths of the panels in the sharpness, which are the same for all curves, and where they end."""


def averaged_gap(tau, lengths, dim=1):
    r"""Return $E|T_L-T|^2$ for tokens and queries N(0, I_d), U = tau I, V = I.

    Given |z|, it is $E(A-\sigma)^2+(d-1)E S_2$ at sharpness tau |z|; |z| has the chi law. The
    panels are fine enough for tau from 0.2 to 2, and far lengths at all of them.
    """
    nodes, weights = _panels()
    score_error, participation = _statistics(tuple(np.ravel(lengths).tolist()))
    radius = nodes / tau
    log_density = (
        (dim - 1) * np.log(radius) - radius**2 / 2 - (dim / 2 - 1) * math.log(2) - gammaln(dim / 2)
    )
    return (weights / tau * np.exp(log_density)) @ (score_error + (dim - 1) * participation)


def sharp_exponent(tau):
    """Return kappa(tau), the exponent of the averaged gap up to logarithms."""
    return 1.0 if tau**2 <= 0.5 else math.sqrt(1 / tau**2 + 0.25) - 0.5


@functools.cache
def _statistics(lengths):
    """Return the statistics that all curves at these lengths share, [nodes, lengths] each."""
    found = weight_statistics(_panels()[0][:, None], lengths)
    return found.score_error, found.participation


def _panels(order=8):
    nodes, weights = np.polynomial.legendre.leggauss(order)
    ends = [0.0]
    while ends[-1] < TOP:
        ends.append(ends[-1] + min(max(FINEST, RATIO * ends[-1]), COARSEST))
    middle, half = np.add(ends[1:], ends[:-1])[:, None] / 2, np.diff(ends)[:, None] / 2
    return (middle + half * nodes).ravel(), (half * weights).ravel()
