"""Steps of training against NumPy, the law of its data, and the flow it follows."""

import dataclasses
import functools
import inspect
import json
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import promptlimit as pl
from dynamics import training_reference as reference
from promptlimit._normals import normal_pairs, threefry
from promptlimit.dynamics._steps import first_state, take_steps
from promptlimit.tasks.regression import _risk as regression_risk
from promptlimit.tasks.regression._batch_gradient import (
    RegressionGradient,
    RegressionNumbers,
    questions,
)
from promptlimit.tasks.regression._packed_sums import packed_sums
from promptlimit.tasks.regression._token_sums import coordinates, prompt_stream, token_sums

KEY = jax.random.key(7)
KMS = 0.5 ** np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
AS_CODED = np.linalg.cholesky(KMS) @ KMS @ np.linalg.cholesky(KMS).T
LAWS = {
    "identity": pl.LinearRegression(np.eye(3), noise_variance=0.1, prior_variance=1 / 3),
    "kms": pl.LinearRegression(KMS, noise_variance=0.1, prior_variance=1 / 3),
    "kms-as-coded": pl.LinearRegression(
        AS_CODED, noise_variance=0.1, prior_variance=1 / 3, query_covariance=np.eye(3)
    ),
}
SOME_LAWS = [
    "kms-as-coded",
    "identity",
    "kms",
]
"""The one whose covariates and queries differ, and those that it includes."""
SCALE = 0.5
NAMES = ("key_weight", "query_weight", "value_weight", "output")


def start(kernel="softmax", dim=3):
    return lambda key: pl.dynamics.uniform_factors(dim, key=key, kernel=kernel)


BOTH = [start("softmax"), start("linear")]


def scaled(key):
    with jax.enable_x64(True):
        return dataclasses.replace(start()(key), scale=2.0)


def test_words_are_those_of_the_published_generator() -> None:
    key = jax.random.key_data(KEY)
    counters = np.stack([np.arange(5), np.arange(5) + 2**32 - 5]).astype(np.uint32)
    words = threefry((key[0], key[1]), (jnp.asarray(counters[0]), jnp.asarray(counters[1])))
    expected = reference.threefry(np.asarray(key), counters)
    np.testing.assert_array_equal(np.stack([np.asarray(word) for word in words]), expected)
    # The known answer of the authors' own test for zero key and counter.
    zero = jnp.zeros((), jnp.uint32)
    known = [int(word) for word in threefry((zero, zero), (zero, zero))]
    assert known == [0x6B200159, 0x99BA4EFE]


def test_normals_are_those_of_box_and_muller() -> None:
    key = jax.random.key_data(KEY)
    index = np.arange(20_000, dtype=np.uint32)
    step = jnp.uint32(3)
    found = np.asarray(jax.jit(normal_pairs)((key[0], key[1]), step, jnp.asarray(index)))
    expected = reference.normals(np.asarray(key), 3, index)
    np.testing.assert_allclose(np.real(found), expected[0], atol=2e-6)
    np.testing.assert_allclose(np.imag(found), expected[1], atol=2e-6)


@pytest.mark.parametrize("law", SOME_LAWS)
def test_a_step_follows_the_gradient_of_numpy(law: str) -> None:
    task, length, rate = LAWS[law], 5, 0.01
    plan = pl.TrainingPlan(steps=2, batch=16, learning_rate=rate, record=[0, 1, 2], points=256)
    found = pl.sgd(BOTH, task, length, plan, key=KEY, seeds=2)
    prompt_key = jax.random.fold_in(jax.random.fold_in(jax.random.split(KEY)[1], 0), length)
    words = np.asarray(jax.random.key_data(prompt_key))
    for step in (0, 1):
        data = reference.batch(task, words, length, step, 16)
        for place, kernel in enumerate(("softmax", "linear")):
            run = found.trajectory(length, place)
            factors = {name: run.parameters[name][step].astype(np.float64) for name in NAMES}
            slopes = reference.gradient(kernel, factors, SCALE, data)
            for name in NAMES:
                moved = factors[name] - rate * slopes[name]
                np.testing.assert_allclose(run.parameters[name][step + 1], moved, atol=3e-7)


def test_a_merged_head_with_several_outputs_learns_in_its_last_row() -> None:
    """As factors K = I, Q = U, V and O the last unit vector, of which O and K do not move."""
    rng = np.random.default_rng(2)
    U, V = (0.5 * rng.normal(size=shape).astype(np.float32) for shape in ((4, 4), (2, 4)))
    heads = [pl.SoftmaxAttention(U, V), pl.LinearAttention(U, V)]
    plan = pl.TrainingPlan(steps=1, batch=16, learning_rate=0.01, record=[0, 1], points=256)
    trained = pl.sgd(heads, LAWS["kms"], 5, plan, key=KEY)
    prompt_key = jax.random.fold_in(jax.random.fold_in(jax.random.split(KEY)[1], 0), 5)
    data = reference.batch(LAWS["kms"], np.asarray(jax.random.key_data(prompt_key)), 5, 0, 16)
    matrices = (np.eye(4), U, V, np.array([[0.0, 1.0]]))
    factors = {name: each.astype(np.float64) for name, each in zip(NAMES, matrices, strict=True)}
    for place, kernel in enumerate(("softmax", "linear")):
        slopes = reference.gradient(kernel, factors, 1.0, data)
        for name, by in (("key_query", "query_weight"), ("value", "value_weight")):
            moved = np.diff(trained.trajectory(5, place).parameters[name], axis=0)[0]
            np.testing.assert_allclose(moved, -0.01 * slopes[by], atol=3e-7)


@pytest.mark.parametrize("law", SOME_LAWS)
def test_the_data_have_the_moments_of_the_law(law: str) -> None:
    task, batch = LAWS[law], 20_000
    prompts = prompt_stream(task.token_dim, (2,), batch, [KEY])
    numbers = RegressionNumbers.of(task)

    @jax.jit
    def drawn(step):
        return questions(numbers, prompts, step), coordinates(prompts, step, jnp.uint32(0), batch)

    asked, drawn_normals = drawn(jnp.uint32(0))
    normals = np.asarray(drawn_normals, np.float64)
    assert abs(normals.mean()) < 5 / np.sqrt(normals.size)
    assert abs((normals**4).mean() - 3) < 5 * np.sqrt(96 / normals.size)
    tokens, query, target = reference.batch(
        task, jax.random.key_data(jax.random.fold_in(KEY, 2)), 2, 0, batch
    )
    root = np.linalg.cholesky(task.covariance)
    np.testing.assert_allclose(
        tokens[..., :-1], np.einsum("ij,bjl->bli", root, normals[:, :-1]), atol=1e-5
    )
    np.testing.assert_allclose(asked.query[0], query[:, :-1], atol=1e-5)
    np.testing.assert_allclose(asked.target[0], target, atol=1e-5)
    error = 5 * np.sqrt(2 / batch) * np.abs(task.covariance).max()
    covariances = {0: np.cov(tokens[:, 0, :-1].T), 1: np.cov(query[:, :-1].T)}
    np.testing.assert_allclose(covariances[0], task.covariance, atol=error)
    np.testing.assert_allclose(covariances[1], task.query_covariance, atol=error)
    variance = task.prior_variance * np.trace(task.query_covariance) + task.noise_variance
    assert abs(target.var() - variance) < 5 * np.sqrt(8 / batch) * variance


def test_lengths_packed_in_one_program_meet_the_same_prompts() -> None:
    lengths, kernels, step = (10, 33, 64), ("softmax", "linear", "softmax"), jnp.uint32(3)
    rng = np.random.default_rng(0)
    score, value = jnp.asarray(rng.normal(size=(2, 3, 3, 8, 4)), jnp.float32)
    prompts = prompt_stream(4, lengths, 8, [KEY] * 3)
    sums = jax.jit(lambda a, b: packed_sums(prompts, kernels, step, a, b))
    packed = sums(score, value)
    # A run that diverges at one length does not affect the others.
    lost = sums(score.at[1].set(np.nan), value.at[1].set(np.inf))
    for one, other in zip(packed, lost, strict=True):
        np.testing.assert_array_equal(one[::2], other[::2])
        assert np.isnan(other[1]).all()
    singles = [prompt_stream(4, (length,), 8, [KEY]) for length in lengths]
    alone = jax.jit(
        lambda a, b: [
            token_sums(single, kernels, step, a[i : i + 1], b[i : i + 1])
            for i, single in enumerate(singles)
        ]
    )(score, value)
    for i, sums_alone in enumerate(alone):
        for one, other in zip(packed, sums_alone, strict=True):
            np.testing.assert_allclose(one[i], other[0], atol=5e-6)


def test_neither_packing_nor_grouping_changes_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tabulated, right = [], regression_risk.tabulate_risks
    monkeypatch.setattr(
        regression_risk, "tabulate_risks", lambda *a: tabulated.append(a) or right(*a)
    )
    plan = pl.TrainingPlan(steps=20, batch=16, learning_rate=0.01, record=[0, 20], points=256)
    task = LAWS["kms"]
    packed, alone = (
        pl.sgd(BOTH, task, [5, 9], plan, key=KEY, seeds=2, packed=packed)
        for packed in (True, False)
    )
    assert alone.value.shape == (2, 2, 2, 2)
    assert set(map(str, tabulated)) == {"([5.0, 9.0], 16.0)"}  # both lengths at a time
    for name in NAMES:
        np.testing.assert_allclose(packed.parameters[name], alone.parameters[name], atol=2e-6)
    softmax = pl.sgd(start("softmax"), task, 9, plan, key=KEY)
    np.testing.assert_allclose(
        alone.parameters["output"][1, 0, 0], softmax.parameters["output"][0, 0, 0], atol=1e-7
    )


def test_seeds_with_prompts_of_their_own_differ_from_one_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixed = pl.dynamics.uniform_factors(3, key=KEY)
    plan = pl.TrainingPlan(steps=5, batch=16, learning_rate=0.01, record=[0, 5], points=256)
    settings: dict[str, Any] = {"plan": plan, "key": KEY, "seeds": 3}
    found = pl.sgd(fixed, LAWS["kms"], [5, 9], independent_prompts=True, **settings)
    moved = found.parameters["output"]
    assert moved.shape == (2, 1, 3, 2, 1, 4)
    assert (moved[:, 0, 0, 0] == moved[:, 0, 1, 0]).all()
    assert (moved[:, 0, 0, 1] != moved[:, 0, 1, 1]).all()
    # Other prompts and another start are numbers of one program.
    calls, right = [], RegressionGradient.__call__
    monkeypatch.setattr(RegressionGradient, "__call__", lambda *a: calls.append(0) or right(*a))
    other = pl.dynamics.uniform_factors(3, key=jax.random.key(8))
    pl.sgd(other, LAWS["kms"], 9, plan, key=jax.random.key(8))
    assert not calls
    with pytest.raises(ValueError, match="makes all runs equal"):
        pl.sgd(fixed, LAWS["identity"], 5, plan, key=KEY, seeds=2)


def test_the_number_of_steps_taken_at_once_changes_no_bit() -> None:
    target = jnp.arange(6.0, dtype=jnp.float32).reshape(1, 2, 3)

    def gradient(parameters, step):
        return parameters - target * step.astype(jnp.float32)

    optimiser = optax.adam(0.1)
    advance, ends = eqx.filter_jit(take_steps), []
    for pieces in ([(0, 13)], [(0, 5), (5, 6), (6, 13)]):
        state = first_state(optimiser, jnp.zeros((1, 2, 3), jnp.float32))
        for first, last in pieces:
            bounds = jnp.array([first, last], jnp.uint32)
            state = advance((optimiser, gradient), (state, bounds))
        ends.append(state)
    for one, other in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_smaller_the_rate_the_closer_to_the_flow() -> None:
    task, length, end = LAWS["kms"], 9, 2.0
    gaps = []
    for rate in (0.1, 0.001):
        steps = round(end / (2 * rate))
        plan = pl.TrainingPlan(steps=steps, learning_rate=rate, record=[0, steps], points=256)
        found = pl.sgd(BOTH, task, length, plan, key=KEY)
        runs = [found.trajectory(length, place) for place in (0, 1)]
        with jax.enable_x64(True):
            heads = [
                pl.Factored(
                    kernel,
                    *(run.parameters[name][0].astype(np.float64) for name in NAMES),
                    scale=SCALE,
                )
                for kernel, run in zip(("softmax", "linear"), runs, strict=True)
            ]
        flows = [
            pl.gradient_flow(head, task, length, pl.dynamics.FlowPlan(found.times, points=256))
            for head in heads
        ]
        apart = [pl.trajectory_gap(*pair) for pair in zip(runs, flows, strict=True)]
        assert [gap.times.size for gap in apart] == [2, 2]
        gaps.append([gap.merged[-1] for gap in apart])
        for run, flow in zip(runs, flows, strict=True):
            assert abs(run.value[-1] - flow.value[-1]) < 2 * np.sqrt(rate)
    # The squared distance falls like the rate: by 100 here, with much room for chance.
    large, small = np.array(gaps)
    assert (small < large / 5).all()
    assert (small < 1e-3).all()


def test_another_optimiser_takes_over() -> None:
    plan = pl.TrainingPlan(
        steps=30, batch=16, optimiser=optax.adam(1e-2), record=[0, 30], points=256
    )
    found = pl.sgd(BOTH, LAWS["identity"], 5, plan, key=KEY)
    assert (found.times == found.steps).all()
    assert (found.value[..., -1] < found.value[..., 0]).all()


def test_watchers_see_the_risk_of_the_first_start_seed_and_length() -> None:
    plan = pl.TrainingPlan(steps=4, learning_rate=0.05, batch=8, record=[0, 4])
    starts = [start("linear", 1), lambda key: start("linear", 1)(jax.random.fold_in(key, 1))]
    task, seen = pl.LinearRegression([[1.3]], noise_variance=0.1), {}
    given: dict[str, Any] = {"key": KEY, "seeds": 2, "packed": True}
    found = pl.sgd(
        starts, task, [6, 3], plan, **given, watch=lambda at: seen.update({at: at.risk()})
    )
    assert [(at.done, at.total, at.lengths) for at in seen] == [(0, 4, (6, 3)), (4, 4, (6, 3))]
    np.testing.assert_allclose(list(seen.values()), found.value[0, 0, 0], rtol=1e-5)
    risks = found.value[..., 1].ravel()
    assert np.unique(risks.round(4)).size == risks.size  # of all starts, seeds and lengths


def test_divergence_is_an_outcome_and_spares_the_other_runs() -> None:
    def large(key):
        head = pl.dynamics.uniform_factors(3, key=key, kernel="linear")
        with jax.enable_x64(True):
            return dataclasses.replace(head, value_weight=100.0 * head.value_weight)

    plan = pl.TrainingPlan(steps=15, learning_rate=0.05, record=range(16), points=256)
    found = pl.sgd([large, start("linear")], LAWS["identity"], 5, plan, key=KEY)
    assert found.diverged[0, 0, 0] >= 0
    assert found.diverged[0, 1, 0] == -1
    well = np.isfinite(found.parameters["output"][0, 0, 0]).all(axis=(1, 2))
    np.testing.assert_array_equal(np.flatnonzero(~well)[0], found.diverged[0, 0, 0])
    assert np.isnan(found.value[0, 0, 0, found.diverged[0, 0, 0] :]).all()
    assert np.isfinite(found.value[0, 1, 0]).all()
    stored = json.loads(found.to_json())
    np.testing.assert_array_equal(np.ravel(stored["diverged"]), found.diverged.ravel())
    assert stored["value"][0][0][0][-1] is None


DRAWN = pl.CovariateRegression(
    pl.Gaussian(np.zeros(2), np.eye(2)), noise_variance=0.1, prior_variance=0.5
)
"""A task that draws its prompts itself."""


def test_a_step_on_another_task_descends_twice_its_risk() -> None:
    r"""With $T=\frac cL\sum y_l\langle x_l,x_q\rangle$ the slope in c is $c\,E[A^2]-E[Ay]$."""
    d, length, rate = 2, 4, 1e-4
    prior, noise = DRAWN.prior_variance, DRAWN.noise_variance
    head = pl.LinearAttention(np.diag([1.0, 1.0, 0.0]), np.diag([0.0, 0.0, 1.0]))
    plan = pl.TrainingPlan(steps=2, batch=8192, learning_rate=rate, record=[0, 1, 2], samples=512)
    found = pl.sgd(head, DRAWN, length, plan, key=KEY)
    slope = prior * d * (1 + (d + 1) / length) + noise * d / length - prior * d
    moved = np.diff(found.parameters["value"][0, 0, 0, :, -1, -1]) / (-2 * rate)
    np.testing.assert_allclose(moved, slope, atol=0.2)
    # Fresh prompts: little but chance parts two steps this short.
    assert abs(moved[0] - moved[1]) > 0.005


USUAL = {"start": start(), "task": LAWS["identity"], "lengths": 5, "key": KEY}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"lengths": [5, 0.5]},
            "`lengths` must be whole numbers from 1 or math.inf, each once, got 0.5.",
        ),
        ({"steps": 0}, "`steps` must be a whole number from 1 to 2147483647, got 0."),
        ({"sampling": "wishart"}, "`sampling` must be one of 'tokens', 'law', got 'wishart'."),
        ({"record": [3, 2]}, "`record` must be increasing whole numbers from 0 to 5, got [3, 2]."),
        (
            {"record": np.array([3, 2], np.uint8)},
            "`record` must be increasing whole numbers from 0 to 5, got [3 2].",
        ),
        (
            {"start": [start(), scaled]},
            "`start` must contain attentions of one parametrisation, got several, such as two "
            "scales of the scores. Train them in separate calls with the "
            "same key.",
        ),
        (
            {"samples": 0},
            "`samples` must be a whole number of at least 2, got 0. This is the number of "
            "simulated prompts.",
        ),
        ({"learning_rate": -1.0}, "`learning_rate` must be positive and finite, got -1.0."),
        ({"learning_rate": True}, "`learning_rate` must be positive and finite, got True."),
        (
            {"label": "adam"},
            "`label` must name the `optimiser`, and 'sgd' is reserved for plain descent, got "
            "'adam'.",
        ),
        (
            {"label": "sgd", "optimiser": optax.adam(1e-3)},
            "`label` must name the `optimiser`, and 'sgd' is reserved for plain descent, got "
            "'sgd'.",
        ),
        (
            {"start": [start(), pl.SoftmaxAttention(np.eye(4), np.eye(4))]},
            "`start` must contain attentions whose arrays have the same names and shapes, got 2 "
            "kinds. Train them in separate calls with the same key.",
        ),
        ({"steps": True}, "`steps` must be a whole number from 1 to 2147483647, got True."),
    ],
)
def test_bad_requests_are_refused(change: dict, message: str) -> None:
    request = {name: change.get(name, usual) for name, usual in USUAL.items()}
    planned = {name: value for name, value in change.items() if name not in USUAL}
    make = functools.partial(pl.TrainingPlan, **{"steps": 5, **planned})  # refused when made
    train = make if planned else functools.partial(pl.sgd, plan=make(), **request)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # compared in full
        train()
    assert str(caught.value) == message


def test_what_is_no_plan_and_what_is_no_rule_are_refused_where_types_are_not_checked() -> None:
    message = "`plan` must be a TrainingPlan, got int. Pass TrainingPlan(steps=1000)."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        inspect.unwrap(pl.sgd)(start(), LAWS["identity"], 5, 20, key=KEY)  # pyright: ignore[reportArgumentType]
    plan = object.__new__(pl.TrainingPlan)
    message = (
        "`optimiser` must be an optax optimiser, such as optax.adam(1e-3), got <function adam at "
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        inspect.unwrap(pl.TrainingPlan.__init__)(plan, 5, optimiser=optax.adam)


def test_a_plan_is_changed_as_a_whole() -> None:
    plan = pl.TrainingPlan(steps=1000, learning_rate=0.5)
    assert plan.recorded_steps[[0, 1, -1]].tolist() == [0, 1, 1000]
    assert dataclasses.replace(plan, steps=10).times[-1] == pl.dynamics.flow_time(10, 0.5) == 10.0
    assert dataclasses.replace(plan, optimiser=optax.adam(0.1)).times[-1] == 1000.0
    assert pl.TrainingPlan(5, record=np.array([0, 5])) == pl.TrainingPlan(5, record=(0, 5))
    with pytest.raises(ValueError, match="from 0 to 4, got"):
        dataclasses.replace(pl.TrainingPlan(5, record=[0, 5]), steps=4)


def test_descent_and_flow_from_one_start_are_compared_in_two_lines() -> None:
    kernels = ("softmax", "linear")
    task = LAWS["identity"]
    heads = [pl.dynamics.block_start(task, 0.5, kernel=kernel) for kernel in kernels]
    plan = pl.TrainingPlan(steps=40, learning_rate=0.02, record=[0, 20, 40], points=256)
    trained = pl.sgd(heads, task, 9, plan, key=KEY)
    for place, head in enumerate(heads):
        flow = pl.gradient_flow(head, task, 9, pl.dynamics.FlowPlan(plan.times, points=256))
        gap = pl.trajectory_gap(trained.trajectory(9, place), flow)
        np.testing.assert_array_equal(gap.times, plan.times)
        assert gap.parameters is not None
        assert gap.parameters[0] < 1e-12  # single precision compared with double
        # The path is short of the noise of forty batches: rate^2 steps tr C, C of order 1.
        assert 0 < gap.parameters[-1] < 0.02 < flow.value[0] - flow.value[-1]
    with pytest.raises(ValueError, match="`length` must be one of 9, got 5"):
        trained.trajectory(5)
    for name, index, last in (("start", 9, len(heads) - 1), ("seed", -1, 0)):
        message = f"^`{name}` must be a whole number from 0 to {last}, got {index}.$"
        with pytest.raises(ValueError, match=message):
            trained.trajectory(**{name: index})


def test_a_start_keeps_its_kernel_for_every_seed() -> None:
    kernels = iter(("softmax", "linear"))

    def either(key):
        return start(next(kernels))(key)

    with pytest.raises(ValueError, match="must return the same kernel for every key"):
        pl.sgd(either, LAWS["identity"], 5, pl.TrainingPlan(5), key=KEY, seeds=2)
