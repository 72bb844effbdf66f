"""Claim 7: the bound on the limit, the bound on the largest token, and the convex hull."""

from collections.abc import Sequence

import jax
import numpy as np
from scipy.integrate import quad
from scipy.spatial import ConvexHull
from scipy.stats import chi2

from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.measures import (
    AbstractMeasure,
    Empirical,
    Gaussian,
    Mixture,
    Rademacher,
    UniformCube,
    UniformSphere,
)
from promptlimit.studies import Check, Claim, Setting
from promptlimit.studies.large_prompt._ensembles import generic_problem, random_parameters

_DIM = 3


def _sub_gaussian_laws() -> list[tuple[AbstractMeasure, float]]:
    """Return centred laws with their variance proxies."""
    cov = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    largest = float(np.linalg.eigvalsh(cov).max())
    zero = np.zeros(_DIM)
    return [
        (Gaussian(zero, cov), largest),
        (Rademacher([1.0, 0.5, 2.0]), 4.0),
        (UniformCube([1.0, 0.5, 2.0]), 4.0 / 3.0),
        (UniformSphere(_DIM, 1.5), 1.5**2 / _DIM),
        (Mixture([0.5, 0.5], [Gaussian(zero, cov), Gaussian(zero, np.eye(_DIM))]), largest),
    ]


def _shifted_over_bound() -> float:
    """Return the ratio of Lemma D.1 for tokens of mean (1, 1, 1), which are not centred."""
    attention, _, z = generic_problem(1.0, _DIM)
    u, v, query = np.asarray(attention.key_query), np.asarray(attention.value), 0.01 * z
    norms = np.linalg.norm(v, 2) * np.linalg.norm(u, 2) * np.linalg.norm(query)
    output = attention(Gaussian(np.ones(_DIM), np.eye(_DIM)), query)
    return float(np.linalg.norm(np.asarray(output)) / (2 * norms))


def _limit_over_bound(rng: np.random.Generator, law: AbstractMeasure, proxy: float) -> float:
    r"""Return the largest $|T[\mu](z)|/(2\sigma^2\|V\|\|U\||z|)$ met (Lemma D.1)."""
    worst = 0.0
    for size in (0.1, 1.0, 10.0):
        for _ in range(10):
            u, v = random_parameters(rng, _DIM)
            z = size * rng.normal(size=_DIM)
            norms = np.linalg.norm(v, 2) * np.linalg.norm(u, 2) * np.linalg.norm(z)
            output = np.linalg.norm(np.asarray(SoftmaxAttention(u, v)(law, z)))
            worst = max(worst, float(output / (2 * proxy * norms)))
    return worst


def _largest_token(dim: int, length: int) -> float:
    r"""Return $E\max_{i\le L}|z_i|^2$ for standard normal tokens, by quadrature."""
    top = chi2.isf(1e-18 / length, dim)

    def tail(x: float) -> float:
        return float(-np.expm1(length * np.log1p(-chi2.sf(x, dim)))) if x > 0 else 1.0

    centre = chi2.isf(min(0.5, 1.0 / length), dim)
    return quad(tail, 0, centre, limit=200)[0] + quad(tail, centre, top, limit=200)[0]


def _token_ratios(scale: float, log_two: float) -> list[float]:
    return [
        _largest_token(dim, length) / (scale * np.log(length) + log_two * dim * np.log(2.0))
        for dim in (1, 3, 10)
        for length in (2, 10, 1000, 10**6, 10**9)
    ]


def _distance_outside(kernel: type, rng: np.random.Generator, key: jax.Array) -> float:
    """Return how far outputs leave the convex hull of the values, at most; inside is negative."""
    worst = -np.inf
    law = Gaussian(np.zeros(_DIM), np.eye(_DIM))
    for own in jax.random.split(key, 20):
        u, v = random_parameters(rng, _DIM)
        tokens = law.sample(12, key=own)
        hull = ConvexHull(np.asarray(tokens) @ v.T)
        query = 20 * rng.normal(size=_DIM)  # linear outputs grow with the query, the hull does not
        output = np.asarray(kernel(2 * u, v)(Empirical(tokens), query))
        worst = max(worst, float((hull.equations @ np.append(output, 1.0)).max()))
    return worst


def decide(setting: Setting) -> Sequence[Check]:
    """Return the bounds' tightest cases, and controls that break them."""
    seed = setting.seed
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    ratio = max(_limit_over_bound(rng, law, proxy) for law, proxy in _sub_gaussian_laws())
    bound = "the statement is an upper bound"
    return [
        Check(
            r"largest ratio of ${|T[\mu](z)|}$ to its bound $2\sigma^2{\|V\|}\,{\|U\|}\,{|z|}$, "
            "five laws",
            ratio,
            "<=",
            1.0,
            basis=bound,
        ),
        Check(
            r"largest ratio of $\mathbb{E}\max_i{|z_i|}^2$ to its bound "
            r"$4\sigma^2(\ln L + \frac{d}{2}\ln 2)$, $L$ from 2 to $10^9$",
            max(_token_ratios(4.0, 2.0)),
            "<=",
            1.0,
            basis=bound,
        ),
        Check(
            "largest distance of softmax outputs outside the convex hull of the values",
            _distance_outside(SoftmaxAttention, rng, key),
            "<=",
            1e-10,
            basis="rounding error, with a margin of $10^5$",
        ),
        Check(
            r"ratio of ${|T[\mu](z)|}$ to its bound for tokens of mean $(1, 1, 1)$, which are "
            "not centred, at a small query",
            _shifted_over_bound(),
            ">=",
            1.0,
            role="control",
            basis="the bound itself",
        ),
        Check(
            r"largest ratio of $\mathbb{E}\max_i{|z_i|}^2$ to the smaller value $2\sigma^2\ln L$",
            max(_token_ratios(2.0, 0.0)),
            ">=",
            1.0,
            role="control",
            basis="the bound itself",
        ),
        Check(
            "largest distance of linear outputs outside the convex hull of the values",
            _distance_outside(LinearAttention, rng, key),
            ">=",
            1e-3,
            role="control",
            basis="$10^7$ times the tolerance of the statement",
        ),
    ]


CLAIM = Claim(
    number=7,
    name="elementary-bounds",
    statement=r"For centred $\sigma$-sub-Gaussian tokens of law $\mu$, softmax attention "
    r"satisfies ${|T[\mu](z)|} \le 2\sigma^2{\|V\|}\,{\|U\|}\,{|z|}$, and the largest of $L$ "
    "tokens satisfies "
    r"$\mathbb{E}\max_{i\le L}{|z_i|}^2 \le 4\sigma^2(\ln L + \frac{d}{2}\ln 2)$. The outputs of "
    "softmax attention lie in the convex hull of the values.",
    reference="Lemmas D.1 and D.2, Section 2",
    decide=decide,
)
