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
    axes, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    return (axes * rng.uniform(0.5, 2.0, dim)) @ axes.T


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
