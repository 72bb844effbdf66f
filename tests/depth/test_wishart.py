"""Exact moments of Wishart matrices, and their draws, against textbooks and each other."""

import numpy as np
from numpy.testing import assert_allclose

from promptlimit.depth import bartlett_factors, trace_moments


def test_moments_match_textbook_formulas():
    for d, n in [(1, 1), (3, 2), (5, 40), (4, 10**30)]:
        means = trace_moments(d, n, 3)
        assert means[0] == d
        assert means[1] == n * d
        assert means[2] == n * d * (n + d + 1)
        assert means[3] == n * d * (n**2 + d**2 + 3 * n * d + 3 * n + 3 * d + 4)


def test_moments_in_one_dimension_are_those_of_chi_square():
    n, expected = 7, 1
    means = trace_moments(1, n, 20)
    for power in range(1, 21):
        expected *= n + 2 * power - 2
        assert means[power] == expected


def test_a_matrix_and_its_transpose_have_the_same_moments():
    assert trace_moments(3, 11, 16)[1:] == trace_moments(11, 3, 16)[1:]


def test_bartlett_draws_have_the_exact_moments():
    for d, length in [(3, 2.0), (3, 5.0), (2, 1e6)]:
        factor, normals = bartlett_factors(d, length, 4096, 0, extra=2)
        S = factor @ factor.mT / length
        traces = np.array(
            [np.trace(np.linalg.matrix_power(S, k), axis1=1, axis2=2) for k in (1, 3)]
        )
        exact = np.array(trace_moments(d, int(length), 3))[[1, 3]] / length ** np.array([1, 3])
        errors = traces.std(axis=1) / 64
        assert (np.abs(traces.mean(axis=1) - exact.astype(float)) < 4 * errors).all()
        assert_allclose(normals.T @ normals / 4096, np.eye(2), atol=0.02)
