"""In-context regression in plain NumPy, token by token: an oracle that shares no code."""

import numpy as np


def root(cov):
    variances, axes = np.linalg.eigh(cov)
    return axes * np.sqrt(np.maximum(variances, 0.0))


def draw(task, prompts, length, rng):
    """Return covariates, labels, query and query label of simulated prompts."""
    dim = task.covariance.shape[0]
    noise = np.sqrt(task.noise_variance)
    w = np.sqrt(task.prior_variance) * rng.normal(size=(prompts, dim))
    x = rng.normal(size=(prompts, length, dim)) @ root(task.covariance).T
    y = np.einsum("nld,nd->nl", x, w) + noise * rng.normal(size=(prompts, length))
    query = rng.normal(size=(prompts, dim)) @ root(task.query_covariance).T
    target = np.einsum("nd,nd->n", query, w) + noise * rng.normal(size=prompts)
    return x, y, query, target


def losses(kernel, head, task, length, draws):
    """Return half the squared error of a head (U, v) on each of (number, rng) prompts."""
    (key_query, value_row), (prompts, rng) = head, draws
    x, y, query, target = draw(task, prompts, length, rng)
    tokens = np.concatenate([x, y[:, :, None]], axis=2)
    masked = np.concatenate([query, np.zeros((prompts, 1))], axis=1)
    scores = np.einsum("nlk,kj,nj->nl", tokens, key_query, masked, optimize=True)
    if kernel == "softmax":
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
    else:
        weights = scores / length
    predicted = np.einsum("nl,nlk,k->n", weights, tokens, value_row, optimize=True)
    return 0.5 * (predicted - target) ** 2


def ridge_losses(task, length, prompts, rng):
    """Return half the squared error of ridge regression with the prior's own penalty."""
    x, y, query, target = draw(task, prompts, length, rng)
    ridge = max(task.noise_variance / task.prior_variance, 1e-12)
    gram = np.einsum("nld,nle->nde", x, x) + ridge * np.eye(x.shape[2])
    fitted = np.linalg.solve(gram, np.einsum("nld,nl->nd", x, y)[:, :, None])[:, :, 0]
    return 0.5 * (np.einsum("nd,nd->n", query, fitted) - target) ** 2


def within(found, error, samples, errors=4.0):
    """Whether a number agrees with the mean of samples, in standard errors of both."""
    spread = samples.std(ddof=1) / np.sqrt(samples.size)
    return abs(found - samples.mean()) <= errors * np.hypot(spread, error)
