"""Flows and training on a user's own task: exact, without a key, and in law."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from tasks.own_tasks import (
    SCATTER,
    VALUE,
    HiddenMean,
    KnownMean,
    PointedMean,
    best,
    pointed_rule,
    textbook,
)

START = pl.SoftmaxAttention(0.3 * np.eye(2), VALUE)
KEY = jax.random.key(11)


def descended(length, time):
    r"""$V(t)=V_*+(V_0-V_*)e^{-(I+S/L)t}$, as $V'=I-V(I+S/L)$."""
    rates, axes = np.linalg.eigh(np.eye(2) + SCATTER / length)
    return best(length) + (VALUE - best(length)) @ (axes * np.exp(-rates * time)) @ axes.T


def test_a_flow_on_a_formula_needs_no_key_and_ends_at_the_posterior_mean(x64):
    times = [0.0, 0.4, 1.5, math.inf]
    flows = pl.gradient_flow(
        START, KnownMean(SCATTER), [3, math.inf], pl.dynamics.FlowPlan(times, rtol=1e-9)
    )
    assert (flows.kind, flows.value.shape) == ("exact", (2, 4))
    for length, kind in ((3, "exact"), (math.inf, "limit")):
        flow = flows.at(length)
        assert flow.kind == kind
        for place, time in enumerate(times[:-1]):
            V = descended(length, time)
            assert_allclose(flow.value_matrix[place], V, atol=1e-7)
            assert_allclose(flow.value[place], textbook(V, length)[0], atol=1e-7)
        assert_allclose(flow.value_matrix[-1], best(length), atol=1e-8)
        assert not flow.error.any()
        assert np.ptp(flow.key_query, axis=0).max() == 0.0
    with pytest.raises(ValueError, match="`key` must be given for SoftmaxAttention on H"):
        pl.gradient_flow(START, HiddenMean(SCATTER), 3, times)


@pointed_rule()
def test_a_flow_over_points_of_the_tasks_own_says_how_far_they_are_off(x64):
    flow = pl.gradient_flow(
        START, PointedMean(SCATTER), 3, pl.dynamics.FlowPlan([0.0, 0.4], points=4096)
    )
    exact = [textbook(descended(3, time), 3)[0] for time in (0.0, 0.4)]
    assert flow.kind == "exact"
    assert np.all(np.abs(flow.value - exact) > 0)
    assert np.all(np.abs(flow.value - exact) < 2 * flow.error)


def test_training_in_law_takes_the_steps_of_training_on_tokens():
    task, rate = KnownMean(SCATTER), 0.01
    settings: dict[str, Any] = {"steps": 1, "batch": 2**14, "learning_rate": rate, "record": [0, 1]}
    plans = [pl.TrainingPlan(sampling=sampling, **settings) for sampling in ("tokens", "law")]
    runs = [pl.sgd(START, task, 5, plan, key=KEY) for plan in plans]
    slope = 2 * textbook(VALUE, 5)[1]
    for found in runs:
        moved = -np.diff(found.value_matrix[0, 0, 0], axis=0)[0] / rate
        # A slope is 2 (V z - m) z' on average: standard deviations of about 4 over 128 draws' root.
        assert_allclose(moved, slope, atol=4 * 4 / 2**7)
        assert found.kind == "exact"
        assert_allclose(found.value[0, 0, 0, 0], textbook(VALUE, 5)[0], rtol=1e-6)
        assert not found.error.any()
    assert np.any(runs[0].value_matrix != runs[1].value_matrix)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # compared in full
        pl.sgd(START, HiddenMean(SCATTER), 5, plans[1], key=KEY)
    assert str(caught.value) == (
        "`sampling` must be 'tokens' for HiddenMean, got 'law'. No rule draws the sums of its "
        "prompts."
    )


def test_several_lengths_train_in_law_in_one_program():
    settings: dict[str, Any] = {"steps": 600, "learning_rate": 0.01, "record": [600], "batch": 256}
    plan = pl.TrainingPlan(sampling="law", **settings)
    found = pl.sgd(START, KnownMean(SCATTER), [2, 50], plan, key=KEY)
    for i, length in enumerate((2, 50)):
        assert_allclose(found.value_matrix[i, 0, 0, 0], best(length), atol=0.06)
        assert found.value[i, 0, 0, 0] < 1.02 * pl.bayes_risk(KnownMean(SCATTER), length).value


class Doubled(pl.AbstractAttention):
    """A user's own attention: one head whose key-query matrix is twice what it keeps."""

    value: jax.Array
    half: jax.Array
    kernel: str = eqx.field(static=True)

    @property
    def token_dim(self):
        return self.half.shape[0]

    @property
    def query_dim(self):
        return self.half.shape[1]

    @property
    def output_dim(self):
        return self.value.shape[0]

    def attend(self, prompt, query):
        return self.as_heads()[0](prompt, query)

    def as_heads(self):
        return (pl.SoftmaxAttention(2.0 * self.half, self.value),)


def test_an_attention_of_ones_own_flows_by_the_chain_rule(x64):
    task, rng = (
        pl.LinearRegression(np.diag([1.0, 0.5]), noise_variance=0.1),
        np.random.default_rng(3),
    )
    U, V = 0.6 * rng.normal(size=(2, 3, 3))
    own, head = Doubled(jnp.asarray(V), jnp.asarray(U / 2), "softmax"), pl.SoftmaxAttention(U, V)
    flow = pl.gradient_flow(own, task, math.inf, pl.dynamics.FlowPlan([0.0, 1e-4], points=256))
    by = pl.gradient_flow(head, task, math.inf, pl.dynamics.FlowPlan([0.0, 1e-4], points=256))
    assert flow.kind == by.kind == "limit"
    assert_allclose(flow.value[0], by.value[0], rtol=1e-13)
    assert_allclose(flow.key_query[0], U, rtol=1e-13)
    moved, usual = (np.diff(each.key_query, axis=0)[0] for each in (flow, by))
    # dR/d(U/2) = 2 dR/dU, and U moves twice as far again: four times.
    assert_allclose(moved, 4 * usual, rtol=5e-3, atol=1e-9)
    assert list(flow.parameters) == ["value", "half"]


def test_an_attention_of_ones_own_trains_by_the_chain_rule():
    task, rng = (
        pl.LinearRegression(np.diag([1.0, 0.5]), noise_variance=0.1),
        np.random.default_rng(3),
    )
    U, V = 0.6 * rng.normal(size=(2, 3, 3))
    own, head = Doubled(jnp.asarray(V), jnp.asarray(U / 2), "softmax"), pl.SoftmaxAttention(U, V)
    plan = pl.TrainingPlan(steps=1, batch=16, learning_rate=0.1, record=[0, 1], points=256)
    runs = [pl.sgd(start, task, 5, plan, key=KEY).trajectory() for start in (own, head)]
    half, whole = (np.diff(run.key_query, axis=0)[0] for run in runs)
    assert_allclose(half, 4 * whole, atol=1e-6)
    assert_allclose(runs[0].value_matrix, runs[1].value_matrix, atol=1e-6)
    assert runs[0].kind == "exact"


class NanLoss(HiddenMean):
    def loss(self, output, token):
        return jnp.nan * output[0]


def test_a_flow_of_a_loss_that_is_nan_is_an_error():
    plan = pl.dynamics.FlowPlan([0.0, 1.0], samples=16)
    message = r"^`start` must have a finite risk and gradient, .*methods of NanLoss"
    with pytest.raises(pl.errors.ArgumentError, match=message):
        pl.gradient_flow(START, NanLoss(SCATTER), 3, plan, key=KEY)
