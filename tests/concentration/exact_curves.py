"""Exact gap curves averaged over Gaussian queries, by panels of Gauss-Legendre nodes."""

import math

import numpy as np
from scipy.special import gammaln

from promptlimit.finite import weight_statistics


def averaged_gap(tau, lengths, dim=1):
    r"""Return $E|T_L-T|^2$ for tokens and queries N(0, I_d), U = tau I, V = I.

    Given |z|, it is $E(A-\sigma)^2+(d-1)E S_2$ at sharpness tau |z|; |z| has the chi law.
    """
    length = np.atleast_1d(np.asarray(lengths, dtype=float))
    # A gap of order 1/L is not lost to queries further out than this, nor is sharpness above 40.
    top = math.sqrt(dim) + math.sqrt(2 * (30 + math.log(length.max())))
    nodes, weights = _panels(min(top, 40.0 / tau))
    log_density = (
        (dim - 1) * np.log(nodes) - nodes**2 / 2 - (dim / 2 - 1) * math.log(2) - gammaln(dim / 2)
    )
    found = weight_statistics((tau * nodes)[:, None], length)
    gap = found.score_error + (dim - 1) * found.participation
    return (weights * np.exp(log_density)) @ gap


def sharp_exponent(tau):
    """Return kappa(tau), the exponent of the averaged gap up to logarithms."""
    return 1.0 if tau**2 <= 0.5 else math.sqrt(1 / tau**2 + 0.25) - 0.5


def _panels(top, panels=16, order=10):
    nodes, weights = np.polynomial.legendre.leggauss(order)
    ends = np.linspace(0.0, top, panels + 1)
    half = np.diff(ends)[:, None] / 2
    return ((ends[1:] + ends[:-1])[:, None] / 2 + half * nodes).ravel(), (half * weights).ravel()
