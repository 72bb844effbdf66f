"""The promise of `error`: random problems lie within four errors of independent oracles.

Oracles are quadratures in plain NumPy (`oracle_statistics`), closed forms, or simulated prompts. A
simulation adds six of its standard errors: a thousand looks then raise a false alarm with a
probability of about 1e-6.
"""

import functools
import warnings

import numpy as np
import pytest

import promptlimit as pl
from oracle_statistics import oracle, table

pytestmark = pytest.mark.usefixtures("x64")

LENGTHS = (2, 10, 100, 10**4, 10**8, 10**12)
RISK_LENGTHS = (2, 30, 1000, 10**6, 10**12)
LOOK = 6.0
tabulated = functools.cache(table)


def assert_covered(value, error, truth, slack=0.0):
    """Require the truth within 4 errors, the slack of the oracle, and rounding."""
    value, error, truth = (np.asarray(one, float) for one in (value, error, truth))
    allowed = 4 * error + slack + 1e-12 * np.abs(value)
    ratio = np.abs(value - truth) / np.maximum(allowed, 1e-300)
    assert (ratio <= 1).all(), f"off by {ratio.max():.3g} of what is allowed: {value} for {truth}"


def spreads(rng):
    """Return a random covariance of a random dimension up to 3."""
    dim = int(rng.integers(1, 4))
    root = rng.normal(size=(dim, dim))
    return root @ root.T / dim + 0.1 * np.eye(dim)


def gaussian_head(rng, sharpness):
    """Return a head, a Gaussian law, a query, and V and t of the tokens they score."""
    covariance = spreads(rng)
    dim = covariance.shape[0]
    U, V = rng.normal(size=(2, dim, dim))
    mean, query = rng.normal(size=(2, dim))
    tilt = U @ query
    U *= sharpness / np.sqrt(tilt @ covariance @ tilt)
    return pl.SoftmaxAttention(U, V), pl.Gaussian(mean, covariance), query


def squared_gap(head, law, query, length):
    """Return E|T_L - T|^2 and the error of that oracle, by the two directions of a token."""
    U, V, gamma = (np.asarray(one) for one in (head.key_query, head.value, law.covariance))
    tilt = U @ query
    sigma = float(np.sqrt(tilt @ gamma @ tilt))
    found, doubt = oracle(sigma, length)
    along = np.sum((V @ gamma @ tilt) ** 2) / sigma**2
    across = np.trace(V @ gamma @ V.T) - along

    def gap(one):
        return along * (one.participation + sigma**2 * one.excess) + across * one.participation

    parts = doubt.participation + 6 * doubt.cubic + 6 * doubt.square
    return gap(found), along * (1 + sigma**2) * parts + across * doubt.participation


def problems(count, seed):
    """Yield generators and sharpnesses, mild and sharp, and lengths from 2 to 1e12."""
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        yield rng, float(np.exp(rng.uniform(np.log(0.05), np.log(8.0)))), LENGTHS[i % len(LENGTHS)]


def test_prompt_moments_cover_the_truth():
    for rng, sharpness, length in problems(300, 1):
        head, law, query = gaussian_head(rng, sharpness)
        found = pl.prompt_moments(head, law, query, length)
        truth, doubt = squared_gap(head, law, query, length)
        assert found.kind == "exact"
        assert_covered(found.mse, found.error, truth, doubt)


def test_output_gaps_cover_the_truth():
    for rng, sharpness, length in problems(200, 2):
        head, law, query = gaussian_head(rng, sharpness)
        queries = np.stack([query, 0.5 * query, -0.2 * query])
        found = pl.output_gap(head, law, queries, [length])
        truths = [squared_gap(head, law, one, length) for one in queries]
        truth, doubt = np.mean(truths, axis=0)
        assert found.kind == "exact"
        assert_covered(found.value[0], found.error[0], truth, doubt)


def test_gradient_gaps_in_the_value_cover_the_truth():
    for rng, sharpness, length in problems(200, 3):
        head, law, query = gaussian_head(rng, sharpness)
        dim = query.size
        found = pl.gradient_gap(head, law, query[None], [length], wrt="value")
        plain = pl.SoftmaxAttention(head.key_query, np.eye(dim))
        truth, doubt = squared_gap(plain, law, query, length)
        assert_covered(found.value[0], found.error[0], dim * truth, dim * doubt)


def test_gradient_gaps_in_the_key_query_cover_simulated_prompts():
    for rng, sharpness, _ in problems(200, 4):
        head, law, query = gaussian_head(rng, min(sharpness, 3.0))
        length = int(rng.choice([2, 5, 20, 60]))
        gamma, V, U = (np.asarray(one) for one in (law.covariance, head.value, head.key_query))
        tokens = rng.normal(size=(2000, length, query.size)) @ np.linalg.cholesky(gamma).T
        scores = tokens @ (U @ query)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        centred = tokens - (p[..., None] * tokens).sum(axis=1, keepdims=True)
        spread = np.einsum("nl,nli,nlj->nij", p, centred, centred)
        squares = (((spread - gamma) @ V.T) ** 2).sum(axis=(1, 2)) * (query @ query)
        found = pl.gradient_gap(head, law, query[None], [length], wrt="key_query")
        slack = LOOK * squares.std() / np.sqrt(squares.size)
        assert_covered(found.value[0], found.error[0], squares.mean(), slack)


def test_length_statistics_cover_the_truth():
    for _, sharpness, length in problems(200, 5):
        found = pl.length_statistics(sharpness, length)
        truth, doubt = oracle(sharpness, length)
        for name in ("participation", "log_partition", "entropy"):
            value, slack = float(getattr(found, name)), getattr(doubt, name)
            assert_covered(value, found.errors[name], getattr(truth, name), slack)


def test_output_laws_cover_simulated_prompts():
    for rng, sharpness, _ in problems(200, 6):
        head, law, query = gaussian_head(rng, sharpness)
        length = int(rng.choice([1, 2, 5, 40]))
        gamma, V, U = (np.asarray(one) for one in (law.covariance, head.value, head.key_query))
        shape = (4000, length, query.size)
        tokens = np.asarray(law.mean) + rng.normal(size=shape) @ np.linalg.cholesky(gamma).T
        scores = tokens @ (U @ query)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs = np.einsum("nl,nli->ni", p, tokens) / p.sum(axis=1)[:, None] @ V[-1]
        thresholds = np.quantile(outputs, [0.1, 0.5, 0.9])
        found = pl.output_law(head, law, query, length, thresholds=thresholds)
        # Quantiles of the simulation itself: an exceedance is off by a binomial deviation.
        share = np.array([0.9, 0.5, 0.1])
        slack = LOOK * np.sqrt(share * (1 - share) / 4000) + 1 / 4000
        assert_covered(found.value, found.error, share, slack)


def regression(rng, dim, label_row):
    """Return a regression, U, and the last row of V, from mild to sharp."""
    root = rng.normal(size=(dim, dim))
    task = pl.LinearRegression(
        root @ root.T / dim + 0.2 * np.eye(dim),
        noise_variance=float(rng.uniform(0, 0.5)),
        prior_variance=float(rng.uniform(0.2, 1.0)),
    )
    scale = float(np.exp(rng.uniform(np.log(0.1), np.log(1.0))))
    U, V = np.zeros((dim + 1,) * 2), np.zeros((dim + 1,) * 2)
    U[:dim, :dim] = scale * rng.normal(size=(dim, dim))
    U[dim, :dim] = scale * rng.normal(size=dim) if label_row else 0.0
    V[dim] = rng.normal(size=dim + 1)
    return task, U, V


def risk_by_quadrature(task, U, V, length):  # noqa: N803 - the letters of the formula
    """Return the risk by a trapezoidal rule in x and w, of one covariate, and its error.

    Splines have six digits; beyond their end the statistics are between their last value and 1.
    """
    (S,), (H,) = task.covariance[0], task.query_covariance[0]
    A, u, v1, b = U[0, 0], U[1, 0], V[1, 0], V[1, 1]
    z = np.linspace(-9.5, 9.5, 500)
    mass = np.exp(-0.5 * z**2)
    x, w = np.sqrt(H) * z[:, None], np.sqrt(task.prior_variance) * z[None]
    mass = mass[:, None] * mass / mass.sum() ** 2
    s2 = task.noise_variance
    squared = S * (A * x + u * x * w) ** 2 + s2 * (u * x) ** 2
    c = S * (v1 + b * w) * (A * x + u * x * w) + s2 * b * u * x
    f = S * (v1 + b * w) ** 2 + s2 * b**2 - 2 * c * (c - w * x)
    curves = tabulated(length)
    P, rho = curves(squared)
    value = 0.5 * float(s2 + (mass * ((c - w * x) ** 2 + f * P + c**2 * rho)).sum())
    beyond = mass * (squared > curves.largest**2)
    return value, 1e-6 * value + 0.5 * float((beyond * (abs(f) * (1 - P) + c**2 * (1 - rho))).sum())


def answered(U, V, task, length, tolerance):  # noqa: N803 - the letters of the formula
    """Return the risk of a head, or None where the library refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pl.errors.UnreliableErrorWarning)
        try:
            return pl.risk(pl.SoftmaxAttention(U, V), task, length, rtol=tolerance)
        except (pl.errors.AccuracyError, ValueError):
            return None


@pytest.mark.parametrize("label_row", [False, True])
def test_risks_cover_a_quadrature_at_every_length(label_row):
    answers = 0
    for i in range(100):
        rng = np.random.default_rng([7, i, label_row])
        task, U, V = regression(rng, 1, label_row)
        length = RISK_LENGTHS[i % len(RISK_LENGTHS)]
        found = answered(U, V, task, length, 5e-3)
        if found is not None:
            answers += 1
            assert found.value >= 0.5 * task.noise_variance
            truth, doubt = risk_by_quadrature(task, U, V, length)
            assert_covered(found.value, found.error, truth, doubt)
    assert answers >= 90


@pytest.mark.parametrize("label_row", [False, True])
def test_risks_cover_simulated_prompts(label_row):
    answers = 0
    for i in range(60):
        rng = np.random.default_rng([8, i, label_row])
        dim = int(rng.integers(2, 5))
        task, U, V = regression(rng, dim, label_row)
        length, count = int(rng.choice([2, 10, 30])), 6000
        found = answered(U, V, task, length, 2e-2)
        if found is None:
            continue
        answers += 1
        root = np.linalg.cholesky(task.covariance)
        w = np.sqrt(task.prior_variance) * rng.normal(size=(count, dim))
        x = rng.normal(size=(count, length + 1, dim)) @ root.T
        y = np.einsum("nli,ni->nl", x, w)
        y += np.sqrt(task.noise_variance) * rng.normal(size=y.shape)
        tilt = x[:, -1] @ U[:, :dim].T
        scores = np.einsum("nli,ni->nl", x[:, :-1], tilt[:, :dim]) + y[:, :-1] * tilt[:, dim:]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        values = x[:, :-1] @ V[dim, :dim] + V[dim, dim] * y[:, :-1]
        losses = 0.5 * ((p * values).sum(axis=1) - y[:, -1]) ** 2
        slack = LOOK * losses.std() / np.sqrt(count)
        assert_covered(found.value, found.error, losses.mean(), slack)
    assert answers >= 50


def test_excesses_over_bayes_cover_a_quadrature():
    for i in range(200):
        rng = np.random.default_rng([9, i])
        means, share = rng.normal(size=2) * 2, float(rng.uniform(0.2, 0.8))
        g, x = float(rng.uniform(0.2, 1.5)), float(rng.uniform(0.2, 1.5))
        weights = np.array([share, 1 - share])
        task = pl.Denoising(means[:, None], weights, within_variance=g, noise_variance=x)
        u, v = rng.normal(size=2)
        head = pl.SoftmaxAttention([[u]], [[v]]) if i % 2 else pl.LinearAttention([[u]], [[v]])
        found = pl.bayes_excess(head, task, np.inf)
        s = g + x
        z = np.linspace(means.min() - 12 * np.sqrt(s), means.max() + 12 * np.sqrt(s), 6001)
        density = np.exp(-((z[:, None] - means) ** 2) / (2 * s)) * weights / np.sqrt(2 * np.pi * s)
        posterior = density / density.sum(axis=1, keepdims=True)
        bayes = g / s * z + x / s * posterior @ means
        tilted = weights * np.exp(np.clip(means * u * z[:, None] + 0.0, -600, 600))
        softmax = v * ((tilted / tilted.sum(axis=1, keepdims=True)) @ means + s * u * z)
        linear = v * u * z * (s + weights @ means**2)
        missed = (softmax if i % 2 else linear) - bayes
        truth = 0.5 * (z[1] - z[0]) * float(density.sum(axis=1) @ missed**2)
        assert_covered(found.value, found.error, truth, 1e-10 * truth)
