"""Regressions and heads that several tests share."""

import numpy as np

import promptlimit as pl

ANISOTROPIC = np.array([[1.0, 0.4, 0.1], [0.4, 0.7, -0.2], [0.1, -0.2, 0.5]])
SINGULAR = np.outer([1.0, 0.5, 0.0], [1.0, 0.5, 0.0]) + np.outer([0.0, 1.0, -1.0], [0.0, 1.0, -1.0])

TASKS = {
    "anisotropic": pl.LinearRegression(ANISOTROPIC, noise_variance=0.2, prior_variance=0.5),
    "singular, no noise": pl.LinearRegression(0.5 * SINGULAR, prior_variance=0.6),
    "shifted query": pl.LinearRegression(
        ANISOTROPIC, noise_variance=0.1, prior_variance=0.4, query_covariance=0.3 * np.eye(3)
    ),
}

_RNG = np.random.default_rng(7)
KEY_QUERY = 0.35 * _RNG.normal(size=(4, 4))
VALUE = 0.6 * _RNG.normal(size=(2, 4))
VALUE_ROW = VALUE[-1]


def kms(dim, rho):
    """Return the Kac-Murdock-Szego covariance."""
    return rho ** np.abs(np.subtract.outer(np.arange(dim), np.arange(dim)))


def block(dim, a, b):
    """Return U = diag(aI, 0) and V = diag(0, b)."""
    key_query, value = np.zeros((dim + 1, dim + 1)), np.zeros((dim + 1, dim + 1))
    key_query[:dim, :dim], value[dim, dim] = a * np.eye(dim), b
    return key_query, value
