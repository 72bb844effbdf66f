r"""A claim on the assumptions on moments and on the lemmas of Appendix C about moments.

$T_L$ is the output over $L$ tokens and $T$ its limit. The sharpness $\sigma$ is the standard
deviation of the scores at one query. Averages over queries are for $U=\tau I$ and standard normal
tokens and queries.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from scipy.special import comb, gammaln, softmax
from scipy.stats import chi2, norm

from promptlimit._quadrature import normal_gauss, product_rule
from promptlimit.attention import SoftmaxAttention
from promptlimit.concentration import gap_exponent, output_gap
from promptlimit.measures import Gaussian
from promptlimit.reporting import CONTRAST, FAINT, INK, LIMIT, plot_series, shades
from promptlimit.studies import (
    Check,
    Setting,
    at_least,
    at_most,
    control_at_least,
    distance_in_errors,
    within_errors,
)
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import (
    generic_problem,
    local_slopes,
    standard_problem,
)
from promptlimit.weights import weight_moments

_SHARP, _MILD = 0.5, 0.3
"""Values of $\\tau$. The fourth moment falls like $L^{-2}$ only up to $\\tau=1/\\sqrt6$."""

_FAR = np.array([1e20, 1e24])
_LENGTH, _SHARPNESS = 50, 0.5
_PROMPTS = 40_000
_POWERS = ((4, 0), (4, 4), (8, 4), (8, 8))


_STEP, _REACH = 0.1, 20.0
"""The step and the upper end of the midpoint rule over queries, in standard deviations."""


def fourth_weight_moments(sharpness: float, lengths: np.ndarray) -> np.ndarray:
    r"""Return $E\,B^4$, $E[B^2S_2]$ and $E\,S_2^2$ at lengths above 1, [3, length].

    $B=\sum_lp_lg_l-\sigma$ is the error of the mean of the standardised scores $g_l$ under the
    weights $p_l$, and $S_2=\sum_lp_l^2$.
    """
    found = weight_moments(("BBBB", "BBS", "SS"), sharpness, lengths)
    return np.stack([moment.value for moment in found.values()])


def fourth_moment(
    attention: SoftmaxAttention, law: Gaussian, query: np.ndarray, length: int
) -> float:
    r"""Return $E|T_L(z)-T(z)|^4$ at one query.

    Let $\Gamma$ be the covariance of the tokens, $e$ the unit vector along $\Gamma^{1/2}Uz$,
    $p=V\Gamma^{1/2}e$ and $Q=V\Gamma^{1/2}(I-ee^\top)\Gamma^{1/2}V^\top$. With $B$ and $S_2$ of
    `fourth_weight_moments`, $T_L-T$ is $Bp$ plus a vector that, given the weights, is Gaussian with
    covariance $S_2Q$. Therefore

    $$E|T_L-T|^4=|p|^4E\,B^4+(2|p|^2\mathrm{tr}\,Q+4p^\top Qp)\,E[B^2S_2]
    +\big((\mathrm{tr}\,Q)^2+2\,\mathrm{tr}\,Q^2\big)E\,S_2^2.$$
    """
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

    The average over queries uses the midpoint rule, which converges geometrically.
    """
    queries = _STEP * (np.arange(round(_REACH / _STEP)) + 0.5)
    density = 2 * _STEP * np.exp(-(queries**2) / 2) / np.sqrt(2 * np.pi)
    rows = [fourth_weight_moments(tau * float(query), lengths)[0] for query in queries]
    return density @ np.array(rows)


def gaussian_constant(p: int, q: int, dim: int, scale: float) -> float:
    r"""Return $M_{p,q}=E|z|^q|\xi+kz|^p$ for even p and standard normal $\xi,z$ in $\mathbb R^d$.

    `dim` is $d$ and `scale` is $k$. Given $z$, $|\xi+kz|^2$ has a non-central chi-square law. Its
    moment of order $n=p/2$ is a polynomial in $k^2|z|^2$, so that

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
    """Return $M_{p,q}$ of `gaussian_constant` in two dimensions, by Gauss quadrature."""
    nodes, mass = product_rule([normal_gauss(12)] * 4)
    noise, query = nodes[:, :2], nodes[:, 2:]
    sizes = (np.linalg.norm(query, axis=1) ** q, np.linalg.norm(noise + scale * query, axis=1) ** p)
    return float(mass @ (sizes[0] * sizes[1]))


def _largest_markov(scale: float) -> float:
    r"""Return the largest $P(|\xi+kz|^4\ge M_{4,0}/\delta)/\delta$ over $\delta$, for $d=2$."""
    levels = np.logspace(-8, 0, 81)
    reach = np.sqrt(gaussian_constant(4, 0, 2, scale) / levels) / (1 + scale**2)
    return float((chi2.sf(reach, 2) / levels).max())


def _simulated_fourth(seed: int) -> np.ndarray:
    """Return the distance between a simulated and the exact fourth moment, in standard errors."""
    attention, law, query = generic_problem(_SHARPNESS)
    rng = np.random.default_rng([seed, 7])
    factor = np.linalg.cholesky(np.asarray(law.covariance))
    U, V = np.asarray(attention.key_query), np.asarray(attention.value)
    mean = np.asarray(law.location)
    limit = V @ (mean + factor @ factor.T @ U @ query)
    tokens = mean + rng.normal(size=(_PROMPTS, _LENGTH, mean.size)) @ factor.T
    weights = softmax(tokens @ (U @ query), axis=1)
    errors = np.einsum("nl,nld->nd", weights, tokens) @ V.T - limit
    fourth = (errors**2).sum(axis=1) ** 2
    return distance_in_errors(fourth, fourth_moment(attention, law, query, _LENGTH))


def fourth_exponent(tau: float) -> float:
    r"""Return the exponent $\min(2,\sqrt{1/\tau^2+1/4}-1/2)$ of the fourth moment in $1/L$."""
    return min(2.0, math.sqrt(1 / tau**2 + 0.25) - 0.5)


@STUDY.claim(24, reference="Assumptions 3.3 and 4.2(iii), Lemmas C.2, C.5, C.6, C.8 and C.9")
def moment_lemmas(setting: Setting) -> Iterator[Check]:
    r"""The moments in Assumptions 3.3 and 4.2(iii) and Lemmas C.5 and C.8 are finite for every
    sub-Gaussian law, so that the assumptions exclude none of the laws in the paper. For standard
    normal tokens $\xi$ and queries $z$ and $U = kI$, the only case tested here, they are $M_{p,q} =
    \mathbb{E}\,{|z|}^q\,{|\xi + kz|}^p$. Lemma C.2 holds with the constant 1 in place of 3. From $L
    = 2$ on, the second and fourth moments of Lemmas C.6 and C.9 fall polynomially. For standard
    normal tokens and queries and $U = \tau I$, the fourth moment falls like $L^{-2}$ up to $\tau^2
    = 1/6$, and like $L$ to the power $1/2 - (1/\tau^2 + 1/4)^{1/2}$ beyond (derived here).
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
        _simulated_fourth(setting.seed),
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
        rf"Lemmas C.6 and C.9, $\tau = {_SHARP}$: slope of the square root of the fourth moment "
        "minus slope of the second moment, the loss of the Cauchy-Schwarz steps of Appendix E",
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
        basis=rf"two hundred times the tolerance at $\tau = {_MILD}$",
    )
    yield control_at_least(
        "two-sided exponential tokens, which are not sub-Gaussian, $k = 1/2$: share of "
        "standard normal queries at which tilted moments are infinite",
        2 * float(norm.sf(2.0)),
        0.01,
        basis="theory: the log-Laplace transform is infinite from a tilt of 1 on",
    )


_TAUS = np.array([_MILD, _SHARP, 0.7, 1.0])
_FINE = np.sort(np.append(np.geomspace(0.2, 2.0, 60), np.sqrt([1 / 6, 0.5])))


@STUDY.figure("Fourth moments converge more slowly than second moments", reference="Lemma C.9")
def fourth_moments(setting: Setting) -> dict[str, np.ndarray]:
    r"""Second and fourth moments of the error $T_L - T$ of softmax attention over $L$ standard
    normal tokens with $U = \tau I$, averaged over standard normal queries. Left: the exact ratio
    $\mathbb{E}{|T_L - T|}^4/(\mathbb{E}{|T_L - T|}^2)^2$. This ratio stays bounded up to
    $\tau^2 = 1/6$ and grows like a power of $L$ beyond. Right: the exponent of the second moment
    (Lemma C.6) and half the exponent of the fourth moment (Lemma C.9). Between $\tau^2 = 1/6$ and
    $\tau^2 = 1/2$ the second moment falls like $1/L$, but the square root of the fourth moment
    falls more slowly. This is the loss of the Cauchy-Schwarz steps of Appendix E. Dots are minus
    half the slopes of the exact fourth moment at $L = 10^{22}$.
    """
    lengths = np.logspace(1, 12, 4 if setting.quick else 23).round()
    taus = _TAUS.tolist()[1:3] if setting.quick else _TAUS.tolist()
    second = np.array([output_gap(*standard_problem(1, tau), lengths).value for tau in taus])
    fourth = np.array([mean_fourth_moment(tau, lengths) for tau in taus])
    measured = [local_slopes(mean_fourth_moment(tau, _FAR), _FAR)[0] for tau in taus]
    return {
        "lengths": lengths,
        "sharpnesses": np.array(taus),
        "ratio": fourth / second**2,
        "measured": -0.5 * np.array(measured),
        "fine": _FINE,
        "second": np.array([gap_exponent(*standard_problem(1, tau)).value for tau in _FINE]),
        "fourth": 0.5 * np.array([fourth_exponent(tau) for tau in _FINE]),
    }


@fourth_moments.drawing
def draw_fourth_moments(data: Mapping[str, np.ndarray]) -> Figure:
    """Return ratios of moments on the left, exponents on the right."""
    figure = Figure(figsize=(9.2, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    colours = shades(data["sharpnesses"].size)
    for tau, row, colour in zip(data["sharpnesses"], data["ratio"], colours, strict=True):
        plot_series(left, data["lengths"], row, f"τ = {tau:g}", color=colour)
    left.set(xscale="log", yscale="log", xlabel="length $L$ of the prompt")
    left.set_ylabel("fourth moment / squared second moment")
    left.legend()
    plot_series(right, data["fine"], data["second"], "second moment", color=CONTRAST)
    plot_series(right, data["fine"], data["fourth"], "fourth moment, halved", color=LIMIT)
    dots, label = {"color": INK, "markersize": 4.5}, "half of its slope, $L=10^{22}$"
    plot_series(right, data["sharpnesses"], data["measured"], label, "o", **dots)
    for square, words in ((1 / 6, r"$\tau^2=1/6$"), (0.5, r"$\tau^2=1/2$")):
        right.axvline(math.sqrt(square), color=FAINT, dashes=(4, 2), linewidth=1.0)
        right.annotate(words, (1.03 * math.sqrt(square), 0.03), color=INK)
    right.set(xscale="log", ylim=(0.0, 1.08), xlabel=r"sharpness $\tau$ of the scores")
    right.set_xticks([0.2, 0.5, 1.0, 2.0], ["0.2", "0.5", "1", "2"])
    right.xaxis.set_minor_locator(NullLocator())
    right.set_ylabel("exponent")
    right.legend(loc="lower left", bbox_to_anchor=(0.0, 0.12), fontsize=9)
    return figure
