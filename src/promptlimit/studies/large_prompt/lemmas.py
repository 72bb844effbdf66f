"""The assumptions on moments, and the lemmas of Appendix C that other claims do not decide."""

import math
from collections.abc import Iterator

import numpy as np
from scipy.special import comb, gammaln
from scipy.stats import chi2, norm

from promptlimit._quadrature import normal_gauss, product_rule
from promptlimit.concentration import output_gap
from promptlimit.studies import (
    Check,
    Setting,
    at_least,
    at_most,
    control_at_least,
    within_errors,
)
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import (
    generic_problem,
    local_slopes,
    standard_problem,
)
from promptlimit.studies.large_prompt._fourth_moments import fourth_moment, mean_fourth_moment

_SHARP, _MILD = 0.5, 0.3
"""Standard deviations of scores above and below the $1/\\sqrt6$ up to which $L^{-2}$ holds."""

_FAR = np.array([1e20, 1e24])
_LENGTH, _SHARPNESS = 50, 0.5
_PROMPTS = 40_000
_POWERS = ((4, 0), (4, 4), (8, 4), (8, 8))


def gaussian_constant(p: int, q: int, dim: int, scale: float) -> float:
    r"""Return $M_{p,q}=E|z|^q|\xi+kz|^p$ for even p and standard normal $\xi,z$ in $\mathbb R^d$.

    Given z, $|\xi+kz|^2$ is non-central chi-square; with $n=p/2$ its n-th moment is a polynomial in
    $k^2|z|^2$, and

    $$M_{p,q}=\sum_{j\le n}\binom nj\Big(\frac{k^2}2\Big)^j2^{n+q/2+j}\,
    \frac{\Gamma(n+\frac d2)\,\Gamma(\frac{d+q}2+j)}{\Gamma(j+\frac d2)\,\Gamma(\frac d2)}.$$
    """
    n, half = p // 2, dim / 2
    total = 0.0
    for j in range(n + 1):
        logarithm = (
            gammaln(n + half) + gammaln(half + q / 2 + j) - gammaln(j + half) - gammaln(half)
        )
        total += comb(n, j) * (scale**2 / 2) ** j * 2 ** (n + q / 2 + j) * math.exp(logarithm)
    return total


def _by_quadrature(p: int, q: int, scale: float) -> float:
    """Return the same in two dimensions, by a rule that is exact for these polynomials."""
    nodes, mass = product_rule([normal_gauss(12)] * 4)
    noise, query = nodes[:, :2], nodes[:, 2:]
    sizes = (np.linalg.norm(query, axis=1) ** q, np.linalg.norm(noise + scale * query, axis=1) ** p)
    return float(mass @ (sizes[0] * sizes[1]))


def _largest_markov(scale: float) -> float:
    r"""Return the largest $P(|\xi+kz|^4\ge M_{4,0}/\delta)/\delta$, in two dimensions."""
    levels = np.logspace(-8, 0, 81)
    reach = np.sqrt(gaussian_constant(4, 0, 2, scale) / levels) / (1 + scale**2)
    return float((chi2.sf(reach, 2) / levels).max())


def _simulated_fourth(seed: int) -> float:
    """Return the distance of the exact fourth moment from simulated prompts, in standard errors."""
    attention, law, query = generic_problem(_SHARPNESS)
    rng = np.random.default_rng([seed, 7])
    factor = np.linalg.cholesky(np.asarray(law.covariance))
    U, V = np.asarray(attention.key_query), np.asarray(attention.value)
    mean = np.asarray(law.location)
    limit = V @ (mean + factor @ factor.T @ U @ query)
    tokens = mean + rng.normal(size=(_PROMPTS, _LENGTH, mean.size)) @ factor.T
    weights = np.exp(tokens @ (U @ query))
    weights /= weights.sum(axis=1, keepdims=True)
    errors = np.einsum("nl,nld->nd", weights, tokens) @ V.T - limit
    fourth = (errors**2).sum(axis=1) ** 2
    exact = fourth_moment(attention, law, query, _LENGTH)
    return float((fourth.mean() - exact) / (fourth.std(ddof=1) / math.sqrt(_PROMPTS)))


def fourth_exponent(tau: float) -> float:
    r"""Return the rate of the fourth moment, $\min(2,\sqrt{1/\tau^2+1/4}-1/2)$."""
    return min(2.0, math.sqrt(1 / tau**2 + 0.25) - 0.5)


@STUDY.claim(24, reference="Assumptions 3.3 and 4.2(iii), Lemmas C.2, C.5, C.6, C.8 and C.9")
def moment_lemmas(setting: Setting) -> Iterator[Check]:
    r"""The moments in Assumptions 3.3 and 4.2(iii) and Lemmas C.5 and C.8 are finite for
    every sub-Gaussian law, with constants $M_{p,q} = \mathbb{E}\,{|z|}^q\,{|\xi + kz|}^p$ for
    Gaussian tokens and $U = kI$, so that the assumptions exclude none of the laws in the paper.
    Lemma C.2 holds with the constant 1 in place of 3. From $L = 2$ on, the second and fourth
    moments of Lemmas C.6 and C.9 fall polynomially: the fourth like $L^{-2}$ up to $\tau^2 = 1/6$,
    and like $L$ to the power $1/2 - (1/\tau^2 + 1/4)^{1/2}$ beyond (derived here).
    """
    errors = [
        abs(gaussian_constant(p, q, 2, 0.5) / _by_quadrature(p, q, 0.5) - 1) for p, q in _POWERS
    ]
    yield at_most(
        "Assumptions 3.3 and 4.2(iii), Lemmas C.5 and C.8: closed form of $M_{p,q}$ compared with "
        "quadrature, $p, q$ up to 8, largest relative error",
        max(errors),
        1e-10,
        basis="rounding error, with a margin of $10^5$",
    )
    yield at_most(
        r"Lemma C.2: largest $P({|\xi + kz|}^4 \ge M_{4,0}/\delta)/\delta$, $\delta$ from "
        "$10^{-8}$ to 1",
        _largest_markov(0.5),
        1.0,
        basis="Markov's inequality",
    )
    yield within_errors(
        f"Lemma C.9: exact fourth moment at $L = {_LENGTH}$ compared with {_PROMPTS:,} simulated "
        "prompts",
        [_simulated_fourth(setting.seed)],
    )
    slopes = {
        tau: float(local_slopes(mean_fourth_moment(tau, _FAR), _FAR)[0]) for tau in (_MILD, _SHARP)
    }
    yield at_most(
        rf"Lemma C.9, $\tau = {_MILD}$: slope of the fourth moment at $L = 10^{{22}}$, distance "
        "from $-2$",
        abs(slopes[_MILD] + 2),
        1e-3,
        basis="theory: the first correction is of order $1/L$; margin",
    )
    yield at_most(
        rf"Lemma C.9, $\tau = {_SHARP}$: slope of the fourth moment at $L = 10^{{22}}$, distance "
        f"from ${-fourth_exponent(_SHARP):.4f}$",
        abs(slopes[_SHARP] + fourth_exponent(_SHARP)),
        0.04,
        basis=r"theory: the slope approaches its limit like $1/\ln L = 0.02$; twice that",
    )
    second = output_gap(*standard_problem(1, _SHARP), _FAR).value
    yield at_least(
        rf"Lemmas C.6 and C.9, $\tau = {_SHARP}$: slope of the root of the fourth moment minus "
        "slope of the second, which the Cauchy-Schwarz steps of Appendix E lose",
        slopes[_SHARP] / 2 - float(local_slopes(second, _FAR)[0]),
        0.2,
        basis=f"theory: the limit is ${1 - fourth_exponent(_SHARP) / 2:.4f}$; margin",
    )
    yield control_at_least(
        "Lemma C.6 at $L = 1$, where the printed bound is 0: second moment",
        float(output_gap(*standard_problem(1, _SHARP), [1]).value[0]),
        0.1,
        basis=r"theory: the second moment of one token is $1 + \tau^2$",
    )
    yield control_at_least(
        rf"rate $L^{{-2}}$ at $\tau = {_SHARP}$, beyond $\tau^2 = 1/6$: slope of the fourth "
        "moment plus 2",
        slopes[_SHARP] + 2,
        0.2,
        basis="two hundred times the tolerance at the smaller sharpness",
    )
    yield control_at_least(
        "two-sided exponential tokens, which are not sub-Gaussian, $k = 1/2$: share of "
        "standard normal queries at which tilted moments are infinite",
        2 * float(norm.sf(2.0)),
        0.01,
        basis="theory: the log-Laplace transform is infinite from a tilt of 1 on",
    )
