"""Heads and laws of the claims about continuous depth, on plain arrays."""

import numpy as np
from numpy.typing import NDArray

from promptlimit.attention import SoftmaxAttention
from promptlimit.depth import depth_flow
from promptlimit.measures import Gaussian
from promptlimit.results import DepthFlow

Matrix = NDArray[np.float64]


def random_covariance(rng: np.random.Generator, dim: int) -> Matrix:
    """Return a covariance with eigenvalues between a half and two."""
    return random_symmetric(rng, rng.uniform(0.5, 2.0, dim))


def random_symmetric(rng: np.random.Generator, eigenvalues: Matrix) -> Matrix:
    """Return a symmetric matrix with these eigenvalues and random axes."""
    axes, _ = np.linalg.qr(rng.normal(size=(len(eigenvalues),) * 2))
    return (axes * eigenvalues) @ axes.T


def random_head(rng: np.random.Generator, dim: int) -> tuple[Matrix, Matrix]:
    r"""Return U and a covariance $G_0$ whose flow blows up at depth 1.

    $C=\sqrt{G_0}(U+U^\top)\sqrt{G_0}$ has the eigenvalue 1, and the others are between -1 and 1/2.
    U also has an antisymmetric part, which the flow does not depend on when V = I.
    """
    G = random_covariance(rng, dim)
    rates = random_symmetric(rng, np.append(rng.uniform(-1.0, 0.5, dim - 1), 1.0))
    inverse = np.linalg.inv(root_of(G))
    skew = rng.normal(size=(dim, dim)) / dim
    return 0.5 * inverse @ rates @ inverse + skew - skew.T, G


def root_of(covariance: Matrix) -> Matrix:
    """Return the symmetric root."""
    variances, axes = np.linalg.eigh(covariance)
    return (axes * np.sqrt(np.maximum(variances, 0.0))) @ axes.T


def flow(
    key_query: Matrix,
    covariance: Matrix,
    times: list[float],
    *,
    value: Matrix | None = None,
    method: str = "auto",
) -> DepthFlow:
    """Return the flow of centred tokens under one softmax head, V = I when not given."""
    eye = np.eye(len(covariance))
    head = SoftmaxAttention(key_query, eye if value is None else value)
    return depth_flow(head, Gaussian(np.zeros(len(eye)), covariance), times, method=method)


def closed_form(key_query: Matrix, covariance: Matrix, time: float) -> Matrix:
    r"""Return $G_0(I-t(U+U^\top)G_0)^{-1}$."""
    symmetric = key_query + key_query.T
    return covariance @ np.linalg.inv(np.eye(len(covariance)) - time * symmetric @ covariance)


def distance(one: NDArray[np.inexact], other: NDArray[np.inexact]) -> float:
    """Return how far a matrix is from another, relative to that."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))
