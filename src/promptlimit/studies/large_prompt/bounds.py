"""Claims on elementary bounds of outputs and tokens, and on formulas of gradients."""

from collections.abc import Iterator

import jax
import numpy as np
from scipy.integrate import quad
from scipy.spatial import ConvexHull
from scipy.special import softmax
from scipy.stats import chi2

from promptlimit.attention import Factored, LinearAttention, SoftmaxAttention
from promptlimit.measures import (
    AbstractMeasure,
    Empirical,
    Gaussian,
    Mixture,
    Rademacher,
    UniformCube,
    UniformSphere,
)
from promptlimit.studies import Check, Setting, at_most, control_at_least
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import (
    generic_problem,
    random_parameters,
    relative_error,
)

_DIM = 3


def _sub_gaussian_laws() -> list[tuple[AbstractMeasure, float]]:
    r"""Return centred laws, each with its variance proxy $\sigma^2$ as a sub-Gaussian law."""
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
    """Return the ratio of Lemma D.1 (see `_limit_over_bound`) for tokens of mean (1, 1, 1)."""
    attention, _, z = generic_problem(1.0, _DIM)
    u, v, query = np.asarray(attention.key_query), np.asarray(attention.value), 0.01 * z
    norms = np.linalg.norm(v, 2) * np.linalg.norm(u, 2) * np.linalg.norm(query)
    output = attention(Gaussian(np.ones(_DIM), np.eye(_DIM)), query)
    return float(np.linalg.norm(np.asarray(output)) / (2 * norms))


def _limit_over_bound(rng: np.random.Generator, law: AbstractMeasure, proxy: float) -> float:
    r"""Return the largest $|T[\mu](z)|/(2\sigma^2\|V\|\|U\||z|)$ of 30 problems (Lemma D.1)."""
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
    r"""Return $E\max_i|z_i|^2$ divided by `scale` ln L + `log_two` d ln 2, for several d and L."""
    return [
        _largest_token(dim, length) / (scale * np.log(length) + log_two * dim * np.log(2.0))
        for dim in (1, 3, 10)
        for length in (2, 10, 1000, 10**6, 10**9)
    ]


def _distance_outside(kernel: type, rng: np.random.Generator, key: jax.Array) -> float:
    """Return the largest signed distance of outputs from the hull of values; negative inside."""
    worst = -np.inf
    law = Gaussian(np.zeros(_DIM), np.eye(_DIM))
    for own in jax.random.split(key, 20):
        u, v = random_parameters(rng, _DIM)
        tokens = law.sample(12, key=own)
        hull = ConvexHull(np.asarray(tokens) @ v.T)
        query = 20 * rng.normal(size=_DIM)  # large, so that linear outputs leave the hull
        output = np.asarray(kernel(2 * u, v)(Empirical(tokens), query))
        worst = max(worst, float((hull.equations @ np.append(output, 1.0)).max()))
    return worst


@STUDY.claim(7, reference="Lemmas D.1 and D.2, Section 2")
def elementary_bounds(setting: Setting) -> Iterator[Check]:
    r"""For centred $\sigma$-sub-Gaussian tokens of law $\mu$, softmax attention satisfies
    ${|T[\mu](z)|} \le 2\sigma^2{\|V\|}\,{\|U\|}\,{|z|}$, and the largest of $L$ tokens satisfies
    $\mathbb{E}\max_{i\le L}{|z_i|}^2 \le 4\sigma^2(\ln L + \frac{d}{2}\ln 2)$. The outputs of
    softmax attention over a finite prompt are in the convex hull of the values. The first bound is
    tested for five laws, the rest for standard normal tokens.
    """
    seed = setting.seed
    rng, key = np.random.default_rng(seed), jax.random.key(seed)
    ratio = max(_limit_over_bound(rng, law, proxy) for law, proxy in _sub_gaussian_laws())
    bound = "the statement is an upper bound"
    yield at_most(
        r"largest ratio of ${|T[\mu](z)|}$ to its bound $2\sigma^2{\|V\|}\,{\|U\|}\,{|z|}$, "
        "five laws",
        ratio,
        1.0,
        basis=bound,
    )
    yield at_most(
        r"largest ratio of $\mathbb{E}\max_i{|z_i|}^2$ to its bound "
        r"$4\sigma^2(\ln L + \frac{d}{2}\ln 2)$, standard normal tokens, $L$ from 2 to $10^9$",
        max(_token_ratios(4.0, 2.0)),
        1.0,
        basis=bound,
    )
    yield at_most(
        "largest distance of softmax outputs outside the convex hull of the values",
        _distance_outside(SoftmaxAttention, rng, key),
        1e-10,
        basis="rounding error, with a margin of $10^5$",
    )
    yield control_at_least(
        r"ratio of ${|T[\mu](z)|}$ to its bound for tokens of mean $(1, 1, 1)$, which are "
        "not centred, at a small query",
        _shifted_over_bound(),
        1.0,
        basis="the bound itself",
    )
    yield control_at_least(
        r"largest ratio of $\mathbb{E}\max_i{|z_i|}^2$ to the smaller value $2\sigma^2\ln L$",
        max(_token_ratios(2.0, 0.0)),
        1.0,
        basis="the bound itself",
    )
    yield control_at_least(
        "largest distance of linear outputs outside the convex hull of the values",
        _distance_outside(LinearAttention, rng, key),
        1e-3,
        basis="$10^7$ times the tolerance of the statement",
    )


_DIM, _HEAD_DIM, _OUTPUTS = 3, 4, 2
_EXACT, _DIFFERENCED = 1e-10, 1e-7
_ROUNDING = "rounding error, with a margin of $10^6$"


def _textbook(tokens: np.ndarray, k: np.ndarray, q: np.ndarray, v: np.ndarray, z: np.ndarray):
    weights = softmax(tokens @ (k.T @ (q @ z)))
    return weights, v @ (weights @ tokens)


def _closed_forms(tokens: np.ndarray, k: np.ndarray, q: np.ndarray, v: np.ndarray, z: np.ndarray):
    """Return the gradients of Appendix C.7 over finitely many tokens, by weighted sums."""
    weights, _ = _textbook(tokens, k, q, v, z)
    mean = weights @ tokens
    cov = (tokens - mean).T @ ((tokens - mean) * weights[:, None])
    by_u = np.stack([np.outer(cov @ row, z) for row in v])
    return {
        "key_query": by_u,
        "value": np.einsum("ij,k->ijk", np.eye(_OUTPUTS), mean),
        "key_weight": np.stack([q @ one.T for one in by_u]),
        "query_weight": np.stack([k @ one for one in by_u]),
    }


def _differences(tokens: np.ndarray, k: np.ndarray, q: np.ndarray, v: np.ndarray, z: np.ndarray):
    """Return central differences of the textbook formula in each entry of the key matrix K."""
    step, result = 1e-5, np.empty((_OUTPUTS, *k.shape))
    for index in np.ndindex(*k.shape):
        up, down = k.copy(), k.copy()
        up[index] += step
        down[index] -= step
        rise = _textbook(tokens, up, q, v, z)[1] - _textbook(tokens, down, q, v, z)[1]
        result[(slice(None), *index)] = rise / (2 * step)
    return result


@STUDY.claim(8, reference="Appendix C.7")
def gradient_formulas(setting: Setting) -> Iterator[Check]:
    r"""Let $m$ and $C$ be the mean and covariance of the tokens under the tilt $t = Uz$, and $v_i$
    the $i$-th row of $V$. Then $\nabla_{v_i} T_i = m$ and $\nabla_U T_i = C v_i z^\top$, and for $U
    = K^\top Q$ the chain rule gives $\nabla_K T_i = Q(\nabla_U T_i)^\top$ and $\nabla_Q T_i =
    K\,\nabla_U T_i$.
    """
    numbers = np.arange(1.0, 1.0 + _HEAD_DIM * _DIM).reshape(_HEAD_DIM, _DIM)
    k, q = 0.5 * np.sin(numbers), 0.5 * np.cos(numbers)
    v, z = np.cos(numbers[:_OUTPUTS] ** 2), np.array([1.0, -0.7, 0.4])
    law = Gaussian([0.5, -1.0, 0.2], np.diag([1.0, 0.5, 2.0]))
    prompt = Empirical(law.sample(40, key=jax.random.key(setting.seed)))
    closed = _closed_forms(np.asarray(prompt.tokens), k, q, v, z)
    factored = Factored("softmax", k, q, v)
    merged = factored.merged()
    checks = [
        at_most(
            f"gradient with respect to {symbol}: automatic differentiation compared with the "
            "closed form",
            relative_error(np.asarray(owner.jacobian(prompt, z, wrt=name)), closed[name]),
            _EXACT,
            basis=_ROUNDING,
        )
        for owner, name, symbol in (
            (merged, "key_query", "$U$"),
            (merged, "value", "$V$"),
            (factored, "key_weight", "$K$"),
            (factored, "query_weight", "$Q$"),
        )
    ]
    differences = _differences(np.asarray(prompt.tokens), k, q, v, z)
    cov, mean = np.asarray(law.covariance), np.asarray(law.location)
    gaussian = np.stack([np.outer(cov @ row, z) for row in v])
    by_u = np.asarray(merged.jacobian(law, z, wrt="key_query"))
    by_v = np.asarray(merged.jacobian(law, z, wrt="value"))[0, 0]
    untransposed = np.stack([q @ one for one in closed["key_query"]])
    yield from checks
    yield at_most(
        "gradient with respect to $K$: finite differences compared with the closed form",
        relative_error(differences, closed["key_weight"]),
        _DIFFERENCED,
        basis="theory: central differences with step $10^{-5}$ have errors of $10^{-10}$; margin",
    )
    yield at_most(
        r"Gaussian prompt $\mathcal{N}(m, \Gamma)$: gradient with respect to $U$ compared "
        r"with $\Gamma v_i z^\top$",
        relative_error(by_u, gaussian),
        _EXACT,
        basis=_ROUNDING,
    )
    yield at_most(
        r"Gaussian prompt $\mathcal{N}(m, \Gamma)$: gradient with respect to $v_i$ compared "
        r"with $m + \Gamma Uz$",
        relative_error(by_v, mean + cov @ np.asarray(merged.key_query) @ z),
        _EXACT,
        basis=_ROUNDING,
    )
    yield control_at_least(
        "gradient with respect to $K$ without the transpose, compared with finite differences",
        relative_error(untransposed, differences),
        1e-2,
        basis="$10^5$ times the tolerance of the statement",
    )
