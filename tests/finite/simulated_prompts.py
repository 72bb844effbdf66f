"""Prompts simulated in plain NumPy: an oracle that shares no code with the library."""

import numpy as np


def draw(law, prompts, length, rng):
    """Return tokens [prompts, length, d] of a mixture given as (weights, means, covs)."""
    weights, means, covs = law
    choice = rng.choice(len(weights), size=(prompts, length), p=weights)
    normals = rng.normal(size=(prompts, length, means.shape[1]))
    roots = []
    for cov in covs:
        variances, axes = np.linalg.eigh(cov)
        roots.append(axes * np.sqrt(np.maximum(variances, 0.0)))
    tokens = means[choice]
    for c, root in enumerate(roots):
        tokens = tokens + (choice == c)[:, :, None] * (normals @ root.T)
    return tokens


def weights_of(tokens, tilt):
    scores = tokens @ tilt
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def outputs(kernel, tokens, tilt, value, own=None):
    """Return the attention outputs [prompts, e] over prompts of tokens [prompts, length, d]."""
    if own is not None:
        tokens = np.concatenate([tokens, np.broadcast_to(own, tokens[:, :1].shape)], axis=1)
    if kernel == "softmax":
        read = np.einsum("nl,nld->nd", weights_of(tokens, tilt), tokens)
    else:
        read = np.einsum("nl,nld->nd", tokens @ tilt, tokens) / tokens.shape[1]
    return read @ value.T


def spreads(kernel, tokens, tilt):
    """Return the derivative of what a head reads in its tilt, [prompts, d, d]."""
    if kernel == "linear":
        return np.einsum("nld,nle->nde", tokens, tokens) / tokens.shape[1]
    weights = weights_of(tokens, tilt)
    mean = np.einsum("nl,nld->nd", weights, tokens)
    second = np.einsum("nl,nld,nle->nde", weights, tokens, tokens)
    return second - np.einsum("nd,ne->nde", mean, mean)


def agrees(found, samples, errors=4.0):
    """Whether an exact mean lies within standard errors of the mean of samples, entry by entry."""
    spread = samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0])
    return bool(np.all(np.abs(found - samples.mean(axis=0)) <= errors * spread + 1e-12))
