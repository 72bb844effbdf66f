"""The rate of the infinite-prompt flow and the constant of its PL inequality."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.dynamics import FlowPlan, block_start, flow_rate
from promptlimit.errors import ArgumentError


def _excess(task, alpha, theta, times):
    """Return the excess risk along the flow, by an accurate solver."""
    start = block_start(task, alpha, theta)
    flow = pl.gradient_flow(start, task, math.inf, FlowPlan(times, rtol=1e-12, arrival=1e-14))
    return flow.value - 0.5 * task.noise_variance


CASES = {
    "diagonal": (np.diag([1.0, 0.6, 0.3]), 1.0, 0.7, None),
    "equal eigenvalues": (np.eye(3), 0.5, 0.8, None),
    "not commuting": (np.diag([1.0, 0.4]), 1.0, 0.6, [[1.0, 0.0], [0.7, 0.4]]),
    "singular": (np.diag([1.0, 0.5, 0.0]), 1.0, 0.6, None),
    "correlated": (pl.measures.ar1_covariance(3, 0.5), 0.4, 0.5, None),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_excess_risk_of_the_flow_falls_at_the_rate(case):
    covariance, prior, alpha, theta = case
    task = pl.LinearRegression(covariance, prior_variance=prior)
    found = flow_rate(task, alpha, theta)
    late = np.array([22.0, 23.0]) / found.rate  # faster modes are gone, rounding is not reached
    first, last = np.log(_excess(task, alpha, theta, [0.0, *late]))[1:]
    assert (first - last) / (late[1] - late[0]) == pytest.approx(found.rate, rel=1e-3)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("spectrum", [(1.0, 0.8), (1.0, 0.9, 0.85), (1.0, 0.5, 0.1)])
def test_a_generic_start_excites_the_least_curvature_at_the_end(spectrum):
    S, dim = jnp.diag(jnp.array(spectrum)), len(spectrum)

    def excess(parameters):
        off = parameters[-1] * S @ parameters[:-1].reshape(dim, dim) - jnp.eye(dim)
        return 0.5 * jnp.trace(off @ S @ off.T)

    theta = np.random.default_rng(0).normal(size=(dim, dim))
    found = flow_rate(pl.LinearRegression(np.diag(spectrum)), 0.5, theta)
    c = sum(size**-2.0 for size in spectrum) ** 0.25
    end = jnp.concatenate([jnp.diag(1.0 / jnp.array(spectrum) / c).ravel(), jnp.array([c])])
    curvatures = np.linalg.eigvalsh(jax.hessian(excess)(end))
    assert abs(curvatures[0]) < 1e-12  # along the minima
    assert found.rate == pytest.approx(2.0 * curvatures[1], rel=1e-9)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_pl_inequality_bounds_the_excess_risk_along_the_whole_flow(case):
    covariance, prior, alpha, theta = case
    task = pl.LinearRegression(covariance, prior_variance=prior)
    found = flow_rate(task, alpha, theta)
    times = np.linspace(0.0, 5.0 / found.rate, 60)
    excess = _excess(task, alpha, theta, times)
    # |grad R|^2 = -dR/dt, so that the inequality bounds the slope of log(R - R*)
    slopes = -np.diff(np.log(excess)) / np.diff(times)
    assert found.pl_constant > 0.0
    assert slopes.min() >= found.pl_constant


def test_reference_values():
    three = flow_rate(pl.LinearRegression(np.diag([1.0, 0.6, 0.3])), 0.7)
    assert three.rate == pytest.approx(0.327759699, rel=1e-8)
    assert three.pl_constant == pytest.approx(0.0182492479, rel=1e-8)
    correlated = pl.LinearRegression(pl.measures.ar1_covariance(5, 0.5), prior_variance=0.2)
    assert flow_rate(correlated, 0.3).rate == pytest.approx(0.0916652292, rel=1e-8)
    isotropic = pl.LinearRegression(np.eye(5), prior_variance=0.2, noise_variance=0.1)
    assert flow_rate(isotropic, 0.9).rate == pytest.approx(2 * 0.2 * 2 * math.sqrt(5.0), rel=1e-12)


def test_two_covariances_are_refused_with_an_alternative():
    task = pl.LinearRegression(np.eye(2), query_covariance=2.0 * np.eye(2))
    with pytest.raises(ArgumentError, match=r"`task` must have one covariance.*gradient_flow"):
        flow_rate(task, 0.5)


def test_rates_and_constants_are_proportional_to_the_prior_variance():
    """So is the excess risk: a larger prior variance only makes the flow faster."""
    one, four = (
        flow_rate(pl.LinearRegression(np.diag([1.0, 0.6, 0.3]), prior_variance=prior), 0.7)
        for prior in (1.0, 4.0)
    )
    assert one.pl_constant > 0.0
    assert four.pl_constant == pytest.approx(4.0 * one.pl_constant, rel=1e-12)
    assert four.rate == pytest.approx(4.0 * one.rate, rel=1e-12)
