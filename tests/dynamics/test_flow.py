"""Gradient flows against an independent integrator, closed forms, and finite differences."""

import dataclasses
import math
import re
import warnings
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import promptlimit as pl
from promptlimit.dynamics import (
    StabilisedRungeKutta,
    _comparison,
    _flow,
    ball_gap,
    block_defect,
    block_limit,
    imbalance,
    limit_band,
)
from promptlimit.dynamics._risks import (
    Parametrisation,
    RiskOfState,
    state_of,
    state_risks,
)
from promptlimit.dynamics._solver import Descent
from promptlimit.errors import OutsideTheoremWarning, UnreliableErrorWarning
from promptlimit.tasks import AbstractObjective, RiskProblem, exact_objectives

SIGMA = np.array([[1.0, 0.4], [0.4, 0.7]])
TASK = pl.LinearRegression(SIGMA)
POINTS = 512
START = pl.dynamics.block_start(TASK, 0.5)


def textbook(alpha: float, times: list[float]) -> np.ndarray:
    """(A, b) along A' = b S^2 - b^2 S^2 A S, b' = tr(A'S^2) - b tr(A'S^2 A S), by SciPy."""
    S = SIGMA

    def field(t: float, y: np.ndarray) -> np.ndarray:
        A, b = y[:4].reshape(2, 2), y[4]
        A_dot = b * S @ S - b**2 * S @ S @ A @ S
        b_dot = np.trace(A.T @ S @ S) - b * np.trace(A.T @ S @ S @ A @ S)
        return np.append(A_dot.ravel(), b_dot)

    start = np.append(alpha * np.eye(2).ravel() / math.sqrt(2.0), alpha)
    found = solve_ivp(field, (0, times[-1]), start, t_eval=times, rtol=1e-11, atol=1e-12)
    return found.y.T


def blocks(flow: pl.results.Trajectory) -> np.ndarray:
    A, b = flow.key_query[:, :2, :2], flow.value_matrix[:, 2, 2]
    return np.column_stack([A.reshape(len(b), 4), b])


@pytest.mark.parametrize(("solver", "error"), [(None, 1e-7), (StabilisedRungeKutta(), 1e-3)])
def test_the_infinite_flow_is_the_block_equation_of_the_paper(
    solver: StabilisedRungeKutta | None, error: float
) -> None:
    times = [0.0, 0.3, 1.0, 3.0, 6.0]
    flow = pl.gradient_flow(
        pl.dynamics.block_start(TASK, 0.5),
        TASK,
        math.inf,
        pl.dynamics.FlowPlan(times, solver=solver),
    )
    assert flow.kind == "limit"
    np.testing.assert_allclose(blocks(flow), textbook(0.5, times), atol=error)
    assert block_defect(flow).max() == 0.0
    assert math.isnan(flow.arrival_time)
    assert not flow.error.any()


def test_the_block_defect_is_the_largest_entry_outside_the_blocks_at_each_time() -> None:
    dim = TASK.token_dim - 1
    key_query, value = 0.3 * np.eye(dim + 1), np.zeros((dim + 1, dim + 1))
    value[-1, -1] = 0.2
    key_query[-1, 0], value[-1, 1] = -0.07, 0.05
    flow = pl.gradient_flow(pl.SoftmaxAttention(key_query, value), TASK, math.inf, [0.0, 0.5])
    defect = block_defect(flow)
    assert defect.shape == (2,)
    assert defect[0] == pytest.approx(0.07, rel=1e-6)
    assert 0.0 < defect[1] != defect[0]


def test_the_infinite_flow_ends_at_remark_5_3_and_conserves_the_balance() -> None:
    theta = np.array([[1.0, 0.3], [-0.2, 0.5]])
    start = pl.dynamics.block_start(TASK, 0.3, theta)
    flow = pl.gradient_flow(
        start, TASK, math.inf, pl.dynamics.FlowPlan([0.0, 1.0, math.inf], rtol=1e-11)
    )
    inverse = np.linalg.inv(SIGMA)
    c = np.trace(inverse @ inverse) ** 0.25
    np.testing.assert_allclose(flow.key_query[-1, :2, :2], inverse / c, atol=1e-9)
    np.testing.assert_allclose(flow.value_matrix[-1, 2, 2], c, atol=1e-9)
    limit = block_limit(TASK, 0.3, theta)
    np.testing.assert_allclose(limit.key_query[:2, :2], inverse / c, atol=1e-12)
    assert np.ptp(imbalance(flow)) < 1e-9
    assert flow.arrival_time >= 0.0
    assert flow.gradient_norms[-1] <= 1e-11


def test_a_singular_covariance_keeps_what_the_flow_cannot_see() -> None:
    task = pl.LinearRegression(np.diag([2.0, 0.0]))
    theta = np.array([[1.0, 0.0], [1.0, 1.0]])
    start = pl.dynamics.block_start(task, 0.4, theta)
    flow = pl.gradient_flow(start, task, math.inf, pl.dynamics.FlowPlan([math.inf], rtol=1e-11))
    limit = block_limit(task, 0.4, theta)
    np.testing.assert_allclose(flow.key_query[-1], limit.key_query, atol=1e-8)
    np.testing.assert_allclose(flow.value_matrix[-1], limit.value, atol=1e-8)
    # The seen part solves b S A = I there: b A_11 = 1/2.
    np.testing.assert_allclose(
        flow.value_matrix[-1, 2, 2] * flow.key_query[-1, 0, 0], 0.5, atol=1e-8
    )


def test_linear_attention_over_few_tokens_ends_at_its_optimum() -> None:
    task = pl.LinearRegression(SIGMA, noise_variance=0.3)
    start = pl.dynamics.block_start(task, 0.4, kernel="linear")
    flow = pl.gradient_flow(start, task, 7, pl.dynamics.FlowPlan([math.inf], rtol=1e-11))
    best = pl.linear_optimum(task, 7)
    assert isinstance(best.attention, pl.LinearAttention)
    np.testing.assert_allclose(flow.key_query[-1], best.attention.key_query, atol=1e-8)
    assert abs(flow.value[-1] - best.value) < 1e-12


NODES, WEIGHTS = np.polynomial.legendre.leggauss(14)
END = 2.0
TIMES = np.concatenate([[0.0], END * (NODES + 1) / 2, [END]])


def random_head() -> pl.SoftmaxAttention:
    """A start without any structure."""
    rng = np.random.default_rng(1)
    return pl.SoftmaxAttention(0.5 * rng.normal(size=(3, 3)), 0.5 * rng.normal(size=(3, 3)))


def objective(head: pl.AbstractAttention, length: float) -> AbstractObjective:
    """What a flow of this head descends."""
    exact = exact_objectives(RiskProblem(head, TASK, np.array([length])), POINTS)
    assert exact is not None
    return exact(16.0)


@pytest.fixture(scope="module")
def finite() -> pl.results.Trajectory:
    """A flow over 20 tokens, at the nodes of a quadrature rule."""
    return pl.gradient_flow(random_head(), TASK, 20, pl.dynamics.FlowPlan(TIMES, points=POINTS))


def test_a_finite_flow_descends_the_exact_risk(finite: pl.results.Trajectory) -> None:
    head = pl.SoftmaxAttention(finite.key_query[-1], finite.value_matrix[-1])
    # 512 points leave up to 3% here, growing along the flow: a coarse check of the law alone.
    assert abs(pl.risk(head, TASK, 20).value / finite.value[-1] - 1) < 0.05
    np.testing.assert_array_equal(finite.parameters["key_query"], finite.key_query)
    assert finite.kind == "exact"
    assert (np.diff(finite.value) < 0).all()
    assert (finite.error > 0).all()


def test_the_risk_falls_at_the_rate_of_the_squared_gradient(finite: pl.results.Trajectory) -> None:
    fall = END / 2 * WEIGHTS @ finite.gradient_norms[1:-1] ** 2
    assert abs(finite.value[0] - finite.value[-1] - fall) < 1e-4 * fall


def test_the_path_between_two_times_is_the_integral_of_the_gradient(
    finite: pl.results.Trajectory,
) -> None:
    """Central differences of the risk in every entry of U and v, at the quadrature's nodes."""
    step, moved = 1e-5, np.zeros((4, 3))
    with jax.enable_x64(True):
        risk = objective(random_head(), 20.0)
        at = jax.jit(lambda x: risk(pl.SoftmaxAttention(x[:3], x[3:])))
        for weight, U, V in zip(
            WEIGHTS, finite.key_query[1:], finite.value_matrix[1:], strict=False
        ):
            here = np.concatenate([U, V[-1:]])
            for index in np.ndindex(4, 3):
                up, down = here.copy(), here.copy()
                up[index] += step
                down[index] -= step
                moved[index] -= END / 2 * weight * float(at(up) - at(down)) / (2 * step)
    np.testing.assert_allclose(finite.key_query[-1] - finite.key_query[0], moved[:3], atol=1e-4)
    np.testing.assert_allclose(
        finite.value_matrix[-1, -1] - finite.value_matrix[0, -1], moved[3], atol=1e-4
    )


def test_a_finer_tolerance_changes_little(finite: pl.results.Trajectory) -> None:
    fine = pl.gradient_flow(
        random_head(), TASK, 20, pl.dynamics.FlowPlan(TIMES, points=POINTS, rtol=1e-7)
    )
    assert 0 < pl.trajectory_gap(finite, fine).merged.max() < 1e-6


def test_the_gradient_in_the_factors_follows_the_chain_rule(x64: None) -> None:
    """With U = c K'Q and OV: dR/dK = c Q (dR/dU)', dR/dV = O' dR/d(OV), and so on."""
    rng = np.random.default_rng(1)
    factors = [rng.uniform(-0.6, 0.6, size=shape) for shape in ((3, 3), (3, 3), (3, 3), (1, 3))]
    start = pl.Factored("linear", *factors, scale=0.5)
    risk = objective(start, 7.0)
    of_state = RiskOfState.of(risk, Parametrisation(start, np.float64), start)
    found = eqx.filter_jit(of_state.gradient)(state_of(start))
    merged = start.merged()
    head = pl.LinearAttention(merged.key_query, merged.value)
    by = pl.risk_gradient(head, TASK, 7).value
    K, Q, V, O = factors  # noqa: E741  # the letters of the docstring
    c = start.scale
    slopes = [
        c * Q @ by["key_query"].T,
        c * K @ by["key_query"],
        O.T @ by["value"],
        by["value"] @ V.T,
    ]
    want = np.concatenate([np.ravel(slope) for slope in slopes])
    np.testing.assert_allclose(found, want, atol=1e-13)
    states = np.geomspace(0.1, 1.0, 65)[:, None] * np.asarray(state_of(start))
    many, few = state_risks(of_state, states), state_risks(of_state, states[60:])
    np.testing.assert_allclose(many[60:], few, rtol=1e-13)
    np.testing.assert_allclose(many[-1], pl.risk(head, TASK, 7).value, rtol=1e-12)


def test_one_program_serves_all_lengths_tolerances_noises_and_numbers_of_times(
    finite: pl.results.Trajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, right = [], RiskOfState.gradient
    monkeypatch.setattr(RiskOfState, "gradient", lambda *a: calls.append(0) or right(*a))
    noisy = pl.LinearRegression(SIGMA, noise_variance=0.3, prior_variance=0.5)
    for task, times in ((TASK, [0.5, 1.0]), (noisy, [0.5, math.inf])):
        settings: dict[str, Any] = {"points": POINTS, "rtol": 1e-5, "arrival": 0.3}
        plan = pl.dynamics.FlowPlan(times, **settings)
        pl.gradient_flow(random_head(), task, 30, plan)
    assert not calls


def test_times_after_the_arrival_repeat_it() -> None:
    start = pl.dynamics.block_start(TASK, 0.5)
    flow = pl.gradient_flow(
        start, TASK, math.inf, pl.dynamics.FlowPlan([1.0, 500.0, 501.0, math.inf], arrival=1e-4)
    )
    assert 1.0 < flow.arrival_time < 500.0
    assert flow.gradient_norms[0] > 1e-4 >= flow.gradient_norms[1] > 1e-6
    for states in (flow.key_query, flow.value_matrix, flow.value):
        np.testing.assert_array_equal(states[1], states[2])
        np.testing.assert_array_equal(states[1], states[3])


def test_noise_shifts_the_floor_and_leaves_the_infinite_flow_in_blocks_alone() -> None:
    noisy = pl.LinearRegression(SIGMA, noise_variance=0.3)
    flows = [
        pl.gradient_flow(pl.dynamics.block_start(task, 0.5), task, math.inf, [0.0, 2.0, math.inf])
        for task in (TASK, noisy)
    ]
    assert pl.trajectory_gap(*flows).merged.max() == 0.0
    np.testing.assert_allclose(flows[1].value - flows[0].value, 0.15, atol=1e-15)


class Wrapped(pl.AbstractTask):
    """Gaussian regression that the library does not recognise."""

    inner: pl.LinearRegression

    @property
    def token_dim(self) -> int:
        return self.inner.token_dim

    def draw(self, *, key):
        return self.inner.draw(key=key)

    def query_of(self, token):
        return self.inner.query_of(token)

    def loss(self, output, token):
        return self.inner.loss(output, token)


class Copied(Wrapped):
    """The same with a reward for large outputs."""

    reward: jax.Array

    def loss(self, output, token):
        return self.inner.loss(output, token) - self.reward * jnp.sum(output**2)


def simulated(reward: float, times: list[float]) -> pl.results.Trajectory:
    return pl.gradient_flow(
        pl.dynamics.block_start(TASK, 0.5),
        Copied(TASK, jnp.asarray(reward)),
        5,
        pl.dynamics.FlowPlan(times, samples=512, rtol=1e-4),
        key=jax.random.key(0),
    )


def test_a_simulated_flow_scatters_about_the_exact_one() -> None:
    times = [0.0, 0.5, 1.0]
    exact = pl.gradient_flow(
        pl.dynamics.block_start(TASK, 0.5), TASK, 5, pl.dynamics.FlowPlan(times, points=POINTS)
    )
    found = simulated(0.0, times)
    assert found.kind == "estimate"
    assert (found.error > 0).all()
    assert (np.abs(found.value - exact.value) < 4.0 * found.error).all()
    assert pl.trajectory_gap(found, exact).merged[-1] < 0.02


def test_many_lengths_give_the_flow_of_each_along_an_axis(tmp_path) -> None:
    start, times, lengths = random_head(), [0.0, 0.3], [20, math.inf]
    plan = pl.dynamics.FlowPlan(times, points=POINTS)
    alone = [pl.gradient_flow(start, TASK, length, plan, folder=tmp_path) for length in lengths]
    # From the folder, where each length has a run of its own.
    both, limit = pl.gradient_flow(start, TASK, lengths, plan, folder=tmp_path), alone[1]
    assert (both.kind, both.value.shape, both.key_query.shape) == ("exact", (2, 2), (2, 2, 3, 3))
    for length, flow in zip(lengths, alone, strict=True):
        one = both.at(length)
        assert dataclasses.replace(one, config=flow.config) == flow
        np.testing.assert_array_equal(
            pl.trajectory_gap(both, limit).at(length).merged, pl.trajectory_gap(flow, limit).merged
        )
    with pytest.raises(ValueError, match=r"Select one first, as in at\(20\).attention\(start\)"):
        both.attention(start)
    with pytest.raises(ValueError, match="`b` must have the lengths of `a`"):
        pl.trajectory_gap(both, pl.gradient_flow(start, TASK, [5, 20], plan, folder=tmp_path))


def test_errors_of_a_flow_are_standard_errors_over_point_sets(
    finite: pl.results.Trajectory,
) -> None:
    """Against the scatter of flows from many point sets, within the accuracy of a few sets."""
    plans = [
        pl.dynamics.FlowPlan(TIMES, points=POINTS, replicate=10 + number, parameter_error=False)
        for number in range(8)
    ]
    flows = [pl.gradient_flow(random_head(), TASK, 20, plan) for plan in plans]
    assert all(flow.parameter_error is None for flow in flows)
    heads = np.stack([np.concatenate([f.key_query, f.value_matrix], axis=1) for f in flows])
    scatter = np.sqrt(heads.var(axis=0, ddof=1).sum(axis=(1, 2)))
    assert finite.parameter_error is not None
    ratio = finite.parameter_error[1:] / scatter[1:]
    assert ((ratio > 0.3) & (ratio < 3.0)).all()
    risks = np.stack([flow.value for flow in flows])
    # Five sets: Student's law widens the standard error by 3.3.
    ratio = finite.error / risks.std(axis=0, ddof=1)
    assert ((ratio > 1.0) & (ratio < 10.0)).all()


def test_a_flow_that_leaves_every_ball_is_refused_with_the_time() -> None:
    with pytest.raises(ArithmeticError) as refusal:
        simulated(2.0, [0.0, 1.0, 1000.0])
    assert re.fullmatch(
        r"the flow must stay within `radius` = 10000, but left that ball at time [0-9.]+\. "
        r"Request earlier times, or a larger radius\.",
        str(refusal.value),
    )


class FailsAfter(diffrax.Dopri5):
    """A solver that returns an error in each step that ends after a time."""

    time: float = 1.0
    failure: str = eqx.field(default="internal_error", static=True)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):  # noqa: PLR0917
        *found, result = super().step(terms, t0, t1, y0, args, solver_state, made_jump)
        failure = getattr(diffrax.RESULTS, self.failure)
        return *found, diffrax.RESULTS.where(t1 > self.time, failure, result)


@pytest.mark.parametrize("failure", ["internal_error", "nonlinear_divergence"])
def test_a_solver_that_fails_has_not_arrived(failure: str) -> None:
    """Also if it returns the error that ends the loop on arrival."""
    solver = FailsAfter(time=1.0, failure=failure)
    plan = pl.dynamics.FlowPlan([0.5, math.inf], solver=solver, arrival=1e-4)
    with pytest.raises(ArithmeticError) as refusal:
        pl.gradient_flow(START, TASK, math.inf, plan)
    assert re.fullmatch(
        r"`solver` must complete every step, but FailsAfter returned an error at time "
        r"[0-9.]+\. Pass another solver\.",
        str(refusal.value),
    )
    late = dataclasses.replace(plan, solver=FailsAfter(time=1e6, failure=failure))
    assert 1.0 < pl.gradient_flow(START, TASK, math.inf, late).arrival_time < 1e3


def test_the_band_of_lemma_e_1_holds_the_finite_flow() -> None:
    start, times = pl.dynamics.block_start(TASK, 0.3), [0.0, 0.02, 0.05]
    finite, infinite = (
        pl.gradient_flow(start, TASK, length, pl.dynamics.FlowPlan(times, points=POINTS))
        for length in (30, math.inf)
    )
    gap = ball_gap(TASK, 30, 0.9, key=jax.random.key(0), points=POINTS)
    band = limit_band(finite, infinite, gap)
    assert (band.distance[1:] < band.bound[1:]).all()
    assert (band.distance[1:] > 0.002 * band.bound[1:]).all()
    both = pl.gradient_flow(start, TASK, [30, math.inf], pl.dynamics.FlowPlan(times, points=POINTS))
    with pytest.raises(
        ValueError, match=r"^`finite` must be a flow at one length, got 2 lengths\."
    ):
        limit_band(both, infinite, gap)


@pytest.mark.parametrize("excess", [2.0, 0.3, 1e-3])
def test_the_smallest_length_is_found_within_its_ratio(
    excess: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_comparison, "excess_risk", lambda task, start, n, **_: 7.0 / (n + 2))
    right = math.ceil(7.0 / excess - 2)
    found = _comparison.smallest_length(START, TASK, excess, ratio=1.25)
    assert right <= found <= max(right + 1, 1.25 * right)


def test_the_excess_risk_of_long_prompts_is_that_of_their_ends() -> None:
    start = pl.dynamics.block_start(TASK, 0.5, kernel="linear")
    found = _comparison.excess_risk(start, TASK, 20)
    ends = [pl.gradient_flow(start, TASK, n, [1.0, math.inf]).value[-1] for n in (20, math.inf)]
    assert found == ends[0] - ends[1] > 0


class Fixed(pl.AbstractAttention):
    """An attention without parameters."""

    @property
    def token_dim(self):
        return 3

    @property
    def query_dim(self):
        return 3

    @property
    def output_dim(self):
        return 3

    def attend(self, prompt, query):
        return query


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": [0.0, 2.0, 1.0]}, "`times` must increase, got 2 before 1. Sort them."),
        (
            {"times": [-1.0, 2.0]},
            "`times` must be at least 0, got -1.0. A flow starts at time 0.",
        ),
        ({"times": []}, "`times` must be a list of at least one number, got shape (0,)."),
        (
            {"lengths": 0},
            "`lengths` must be a whole number from 1 to 1e30 or math.inf, got 0.0. "
            "It counts the tokens of a prompt.",
        ),
        (
            {"start": pl.SoftmaxAttention(jnp.eye(4), jnp.eye(4))},
            "`start` must take tokens of dimension 3 (that of the task's tokens), got 4.",
        ),
        (
            {"start": Fixed()},
            "`start` must have at least one array to train, got Fixed without any.",
        ),
        ({"rtol": 0.0}, "`rtol` must be positive and finite, got 0.0."),
        (
            {"task": Copied(TASK, jnp.zeros(()))},
            "`key` must be given for SoftmaxAttention on Copied, which has no exact answer here "
            "(Copied does not define `closed_risk`), got None. Pass key=jax.random.key(0) to "
            "simulate prompts.",
        ),
        (
            {"samples": 1},
            "`samples` must be a whole number of at least 2, got 1. This is the number of "
            "simulated prompts.",
        ),
        ({"replicate": -1}, "`replicate` must be a whole number of at least 0, got -1."),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(change: dict, message: str) -> None:
    request: dict[str, Any] = {
        "task": TASK,
        "start": START,
        "lengths": 10,
        "times": [1.0],
        **change,
    }
    planned = request.keys() & {"times", "rtol", "samples", "replicate"}
    options = {name: request.pop(name) for name in planned}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.gradient_flow(**request, plan=pl.dynamics.FlowPlan(**options))


def test_starts_outside_the_theorem_warn_and_are_made() -> None:
    with pytest.warns(OutsideTheoremWarning, match=r"Theorem 5.2 requires 0 < alpha < 0\.\d+ "):
        start = pl.dynamics.block_start(TASK, 5.0)
    assert float(start.value[2, 2]) == 5.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = pl.dynamics.block_start(TASK, 0.5, np.array([[2.0], [0.0]]))
    np.testing.assert_array_equal(inside.key_query, 0.5 * np.diag([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="`theta` must not be zero"):
        pl.dynamics.block_start(TASK, 0.5, np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"`theta` must have shape \(2, 3\)"):
        pl.dynamics.block_start(TASK, 0.5, np.eye(3))


def test_random_factors_are_pytorchs_and_the_same_for_both_kernels() -> None:
    soft, linear = (
        pl.dynamics.uniform_factors(5, key=jax.random.key(3), kernel=kernel)
        for kernel in ("softmax", "linear")
    )
    np.testing.assert_array_equal(soft.key_weight, linear.key_weight)
    assert (soft.kernel, linear.kernel) == ("softmax", "linear")
    assert soft.output is not None
    everything = np.concatenate(
        [np.ravel(x) for x in (soft.key_weight, soft.query_weight, soft.value_weight, soft.output)]
    )
    bound = 6**-0.5
    assert np.abs(everything).max() < bound
    assert abs(everything.std() - bound / 3**0.5) < 4 * bound / 114**0.5
    assert soft.scale == 1 / math.sqrt(6)


def test_flow_time_of_the_papers_protocol() -> None:
    assert pl.dynamics.flow_time(300_000, 1e-3) == 600.0
    with pytest.raises(ValueError, match="`learning_rate` must be positive"):
        pl.dynamics.flow_time(10, 0.0)


def test_a_flow_that_has_arrived_at_the_start_stays_there() -> None:
    task = pl.LinearRegression(SIGMA, noise_variance=0.3)
    best = pl.linear_optimum(task, 10)
    flow = pl.gradient_flow(best.attention, task, 10, [0.0, 1.0, math.inf])
    np.testing.assert_allclose(flow.value, best.value, rtol=1e-9)
    assert flow.arrival_time >= 0.0


def test_a_flow_from_the_saddle_itself_has_arrived_at_time_zero() -> None:
    zero = pl.LinearAttention(np.zeros((3, 3)), np.zeros((3, 3)))
    flow = pl.gradient_flow(zero, TASK, math.inf, [0.0, 1.0, math.inf])
    assert flow.arrival_time == 0.0
    np.testing.assert_array_equal(flow.value, flow.value[0])


def test_a_start_near_the_saddle_has_not_arrived() -> None:
    start = pl.dynamics.block_start(TASK, 1e-7, kernel="linear")
    flow = pl.gradient_flow(start, TASK, math.inf, [0.0, 10.0, math.inf])
    assert flow.value[0] > 0.5
    assert flow.value[-1] < 1e-12


def test_a_flow_that_follows_its_points_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that leaves the usual tables is followed in the widest, here small ones both."""
    monkeypatch.setattr(_flow, "SHARPNESS_RANGES", (4.0, 16.0))
    tried, right = [], _flow._attempt
    monkeypatch.setattr(_flow, "_attempt", lambda *a: tried.append(a[1]) or right(*a))
    start = pl.SoftmaxAttention(np.diag([3.0, 3.0, 0.0]), np.diag([0.0, 0.0, 2.0]))
    with pytest.warns(UnreliableErrorWarning, match="Raise `points`"):
        flow = pl.gradient_flow(start, TASK, 5, pl.dynamics.FlowPlan([0.0, 0.01], points=64))
    assert tried == [4.0, 16.0]
    assert (flow.error > 0).all()


def test_negative_starts_end_at_the_negatives_and_two_images_are_refused() -> None:
    up, down = block_limit(TASK, 0.4), block_limit(TASK, -0.4)
    np.testing.assert_allclose(down.value, -np.asarray(up.value))
    apart = pl.LinearRegression(np.diag([1.0, 0.0]), query_covariance=np.eye(2))
    with pytest.raises(ValueError, match=r"^`task` must have one covariance or two"):
        block_limit(apart, 0.4)


class Linked(Wrapped):
    """A user's task with a function in it."""

    link: object


def test_a_run_with_a_part_without_a_name_is_not_kept(tmp_path) -> None:
    task = Linked(TASK, lambda x: x)
    with pytest.raises(ValueError, match=r"^`folder` must be None for this run, because its part"):
        pl.gradient_flow(
            START,
            task,
            5,
            pl.dynamics.FlowPlan([0.0, 0.1], samples=4),
            key=jax.random.key(0),
            folder=tmp_path,
        )


def test_folders_with_an_equals_sign_are_read_again(tmp_path) -> None:
    start = pl.dynamics.block_start(TASK, 0.5, kernel="linear")
    folder = tmp_path / "alpha=0.5"
    first, again = (pl.gradient_flow(start, TASK, 10, [0.0, 1.0], folder=folder) for _ in range(2))
    np.testing.assert_array_equal(first.value, again.value)


def test_a_start_that_the_theorem_covers_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pl.dynamics.block_start(pl.LinearRegression(np.eye(4)), 0.99)
    with pytest.warns(OutsideTheoremWarning):
        pl.dynamics.block_start(pl.LinearRegression(np.eye(4)), 1.01)


def test_the_parameter_error_is_the_standard_deviation_of_two_flows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second flow, over other points, is the first one moved by 0.5 in all parameters."""
    first: list = []
    right = _flow._descent

    def descent(*arguments):
        if first:
            return first[0]._replace(states=first[0].states + 0.5)
        first.append(right(*arguments))
        return first[0]

    monkeypatch.setattr(_flow, "_descent", descent)
    flow = pl.gradient_flow(random_head(), TASK, 20, pl.dynamics.FlowPlan([0.0, 0.01], points=64))
    moved = np.array([[0.0, 0.5]] * state_of(random_head()).size)
    expected = math.sqrt(moved.var(axis=1, ddof=1).sum())
    found = np.asarray(flow.parameter_error)
    np.testing.assert_allclose(found, [0.0, expected])  # both start at one place


@pytest.mark.parametrize(
    ("finished", "sharpness", "left"),
    [(True, 15.9, False), (True, 24.1, True), (False, 14.3, False), (False, 14.5, True)],
)
def test_a_flow_leaves_the_tables_by_stopping_at_their_end_or_going_far_beyond(
    finished: bool, sharpness: float, left: bool
) -> None:
    no = jnp.array(False)
    descent = Descent(
        jnp.zeros((1, 2)),
        jnp.zeros(2),
        jnp.array(1.0),
        finished=jnp.array(finished),
        escaped=no,
        arrived=no,
        solver_failed=no,
    )
    assert _flow._Attempt(descent, 16.0, sharpness).left_the_tables == left


def test_the_largest_alpha_of_the_theorem_is_outside_it() -> None:
    """It is sqrt(2) / (d^(1/4) |Sigma|), here 1."""
    with pytest.warns(OutsideTheoremWarning, match="0 < alpha < 1 "):
        pl.dynamics.block_start(pl.LinearRegression(np.eye(4)), 1.0)
