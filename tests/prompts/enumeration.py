"""Moments by summing over all prompts, in plain NumPy."""

import itertools

import numpy as np


def moments_of(prompts, tilt, value, known=(), sinks=(), offsets=None):  # noqa: PLR0917
    """Return mean, covariance, E S_2 and the mean weights of known tokens and sinks.

    Args:
        prompts: pairs of a probability and tokens [L, d].
        tilt: t.
        value: V.
        known: tokens of every prompt, [k, d].
        sinks: their scores.
        offsets: added to the scores of the L tokens, [L].
    """
    known = np.reshape(np.asarray(known, float), (-1, len(tilt)))
    outputs, probabilities, squares, weights = [], [], [], []
    for probability, tokens in prompts:
        everything = np.concatenate([tokens, known])
        scores = everything @ tilt
        scores[: len(tokens)] += 0.0 if offsets is None else offsets
        scores = np.concatenate([scores, sinks])
        p = np.exp(scores - scores.max())
        p /= p.sum()
        outputs.append(value @ (p[: len(everything)] @ everything))
        probabilities.append(probability)
        squares.append(p @ p)
        weights.append(p[len(tokens) :])
    probabilities, outputs = np.array(probabilities), np.array(outputs)
    assert abs(probabilities.sum() - 1.0) < 1e-12
    mean = probabilities @ outputs
    centred = outputs - mean
    cov = (probabilities[:, None] * centred).T @ centred
    return mean, cov, probabilities @ squares, probabilities @ np.array(weights)


def independent(tokens, weights, length):
    """Yield all prompts of independent tokens with their probabilities."""
    for places in itertools.product(range(len(tokens)), repeat=length):
        yield np.prod([weights[i] for i in places]), tokens[list(places)]


def limit_of(tokens, weights, tilt, value):
    """Return attention over the law of a token."""
    p = weights * np.exp(tokens @ tilt)
    return value @ (p @ tokens / p.sum())
