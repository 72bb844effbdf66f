"""Flows and training of attentions that are not one head, on squared and on other losses."""

import functools
import itertools
import json
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import promptlimit as pl

KEY = jax.random.key(5)
COV = np.array([[1.0, 0.3], [0.3, 0.8]])
BATCH, RATE, CLIP = 16, 0.05, 5.0
RULE = optax.chain(optax.clip_by_global_norm(CLIP), optax.sgd(RATE))
CLIPPED: dict[str, Any] = {"batch": BATCH, "optimiser": RULE, "label": "clipped", "samples": 256}
TASK = pl.LinearRegression(np.diag([1.0, 0.5]), noise_variance=0.1, prior_variance=0.5)
HEAD = pl.dynamics.block_start(TASK, 0.4, kernel="linear")


class Sided(pl.AbstractTask):
    """Guess the sign of the last coordinate of a token: a logistic loss, in law of random means."""

    @property
    def token_dim(self):
        return 2

    def draw(self, *, key):
        law = pl.Gaussian(jax.random.normal(key, (2,)), COV)
        return law, law

    def query_of(self, token):
        return token.at[-1].set(0.0)

    def loss(self, output, token):
        return jnp.logaddexp(0.0, -jnp.sign(token[-1]) * output[-1])


def layer(size=1.0, dim=2, kernels=("softmax", "linear"), seed=3):
    rng = np.random.default_rng(seed)
    types = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}
    heads = [types[kernel](*(0.5 * rng.normal(size=(2, dim, dim)))) for kernel in kernels]
    heads = [head.with_value(size * head.value) for head in heads]
    return pl.Layer(heads, 0.5 * rng.normal(size=(dim, dim)))


NAMES = (
    "heads[0].key_query",
    "heads[0].value",
    "heads[1].key_query",
    "heads[1].value",
    "residual",
)


@functools.cache
def prompts(length, step):
    """Return the prompts of a batch and their queries, as the task draws them."""
    key = jax.random.fold_in(jax.random.split(KEY)[1], 0)
    key = jax.random.fold_in(jax.random.fold_in(key, 0 if math.isinf(length) else length), step)
    batch = []
    for own in jax.random.split(key, BATCH):
        law_key, query_key, tokens_key = jax.random.split(own, 3)
        law, queries = Sided().draw(key=law_key)
        token = np.asarray(queries.sample(1, key=query_key)[0], np.float64)
        if math.isinf(length):
            batch.append((np.asarray(law.mean, np.float64), token))
        else:
            batch.append((np.asarray(law.sample(length, key=tokens_key), np.float64), token))
    return batch


def plain_loss(arrays, batch, length):
    """Return twice the mean loss of a softmax head, a linear head and a residual, in NumPy."""
    (U, V), (W, X), C = arrays[:2], arrays[2:4], arrays[4]
    total = 0.0
    for prompt, token in batch:
        q = np.array([token[0], 0.0])
        if math.isinf(length):
            tilted, second = prompt + COV @ U @ q, COV + np.outer(prompt, prompt)
        else:
            weights = np.exp(prompt @ U @ q)
            tilted, second = weights @ prompt / weights.sum(), prompt.T @ prompt / length
        output = V @ tilted + X @ second @ W @ q + C @ q
        total += 2 * np.logaddexp(0.0, -np.sign(token[1]) * output[1]) / len(batch)
    return total


def plain_gradient(arrays, batch, length):
    slopes = [np.zeros_like(array) for array in arrays]
    for number, slope in enumerate(slopes):
        for place in np.ndindex(*slope.shape):
            ends = []
            for sign in (1, -1):
                moved = [array.copy() for array in arrays]
                moved[number][place] += sign * 1e-5
                ends.append(plain_loss(moved, batch, length))
            slope[place] = (ends[0] - ends[1]) / 2e-5
    return slopes


@pytest.fixture(scope="module")
def trained():
    """Two layers, one of them loud, trained side by side with clipped gradients."""
    plan = pl.TrainingPlan(steps=2, record=[0, 1, 2], **CLIPPED)
    starts = [layer(), layer(size=8.0, seed=4)]
    return pl.sgd(starts, Sided(), [math.inf, 4], plan, key=KEY, packed=True)


def test_steps_are_those_of_numpy_on_the_same_prompts_each_run_clipped_by_its_own_norm(trained):
    """On finite prompts and on their laws, with a loss other than the squared error."""
    clipped = []
    for start, (i, length), step in itertools.product((0, 1), enumerate((math.inf, 4)), (0, 1)):
        run = [trained.parameters[name][i, start, 0].astype(np.float64) for name in NAMES]
        slopes = plain_gradient([array[step] for array in run], prompts(length, step), length)
        norm = math.sqrt(sum(np.sum(slope**2) for slope in slopes))
        clipped.append(norm > CLIP)
        for array, slope in zip(run, slopes, strict=True):
            moved = array[step] - RATE * min(1.0, CLIP / norm) * slope
            assert_allclose(array[step + 1], moved, atol=2e-6)
    assert clipped == [False] * 4 + [True] * 4


def test_training_without_one_head_has_parameters_by_name_and_no_merged_matrices(trained, tmp_path):
    assert trained.key_query is trained.value_matrix is None
    assert list(trained.parameters) == list(NAMES)
    assert trained.kernels == ("Layer(softmax, linear)",) * 2
    assert (trained.kind, trained.lengths) == ("estimate", (math.inf, 4))
    run = trained.trajectory(math.inf, 1)
    pl.save(tmp_path / "run.npz", run)
    loaded = pl.load(tmp_path / "run.npz")
    assert loaded.key_query is loaded.value_matrix is None
    assert (loaded.lengths, loaded.kind) == (math.inf, "estimate")
    for name in NAMES:
        assert_array_equal(loaded.parameters[name], trained.parameters[name][0, 1, 0])
    end = trained.attention(layer(), 4, 1)
    assert_array_equal(end.residual, trained.parameters["residual"][1, 1, 0, -1])
    assert json.loads(trained.to_json())["lengths"] == [None, 4]
    dataset = trained.to_xarray()
    assert "key_query" not in dataset
    assert dataset["parameters.heads[1].value"].dims[-1] == "heads[1].value.column"
    labels = [line.get_label() for line in trained.plot().lines]
    assert labels[0] == "L = inf, Layer(softmax, linear)"
    gap = pl.trajectory_gap(run, trained.trajectory(4, 1))
    assert gap.merged is None
    apart = [trained.parameters[name][:, 1, 0].astype(np.float64) for name in NAMES]
    assert_allclose(gap.value, sum(np.sum((x[0] - x[1]) ** 2, axis=(1, 2)) for x in apart))
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # compared in full
        run.merged()
    assert str(caught.value) == (
        "`key_query` and `value_matrix` must belong to one head, got a trajectory of "
        f"{', '.join(NAMES)}. Its arrays are in `parameters`."
    )


class StopHereError(Exception):
    pass


def test_a_layer_resumes_to_the_identical_bits(tmp_path):
    plan = pl.TrainingPlan(steps=40, record=[0, 7, 40], **CLIPPED)
    arguments = ([layer(), layer(seed=9)], Sided(), math.inf, plan)

    def interrupt(progress):
        if progress.done >= 20:
            raise StopHereError

    with pytest.raises(StopHereError):
        pl.sgd(*arguments, key=KEY, folder=tmp_path, every=10, watch=interrupt)
    seen = []
    resumed = pl.sgd(
        *arguments, key=KEY, folder=tmp_path, every=10, watch=lambda at: seen.append(at.done)
    )
    whole = pl.sgd(*arguments, key=KEY)
    assert 0 < seen[0] < 40
    for name in NAMES:
        assert_array_equal(resumed.parameters[name], whole.parameters[name])
    assert_array_equal(resumed.value, whole.value)


def test_a_flow_of_several_heads_descends_their_exact_risk(tmp_path, x64):
    start = layer(dim=3, kernels=("linear", "linear"))
    times = [0.0, 0.01, 2.0]
    flow = pl.gradient_flow(start, TASK, 6, times, folder=tmp_path)
    assert flow.kind == "exact"
    assert not flow.error.any()
    assert flow.key_query is None
    assert list(flow.parameters) == list(NAMES)
    assert np.all(np.diff(flow.value) < 0)
    for place in range(3):
        here = flow.attention(start, place)
        assert_allclose(pl.risk(here, TASK, 6).value, flow.value[place], rtol=1e-12)
    slopes = pl.risk_gradient(flow.attention(start, 0), TASK, 6).value
    norm = math.sqrt(sum(np.sum(slope**2) for slope in slopes.values()))
    assert_allclose(flow.gradient_norms[0], norm, rtol=1e-12)
    middle = pl.risk_gradient(flow.attention(start, 1), TASK, 6).value
    for name in NAMES:
        mean = (slopes[name] + middle[name]) / 2
        moved = np.diff(flow.parameters[name][:2], axis=0)[0]
        assert_allclose(moved, -0.01 * mean, rtol=1e-3, atol=1e-6)
    again = pl.gradient_flow(start, TASK, 6, times, folder=tmp_path)
    assert_array_equal(again.parameters["residual"], flow.parameters["residual"])


def test_one_head_among_heads_flows_and_trains_as_itself(x64):
    one = pl.MultiHead([HEAD])
    flows = [pl.gradient_flow(start, TASK, math.inf, [0.0, 1.0]) for start in (HEAD, one)]
    assert_array_equal(flows[1].key_query, flows[0].key_query)
    assert_array_equal(flows[1].parameters["heads[0].value"], flows[0].parameters["value"])
    plan = pl.TrainingPlan(steps=3, batch=8, record=[0, 3], points=256)
    runs = [pl.sgd(start, TASK, 5, plan, key=KEY) for start in (HEAD, one)]
    assert_array_equal(runs[1].key_query, runs[0].key_query)
    assert runs[1].kernels == ("linear",)
    gap = pl.trajectory_gap(runs[0].trajectory(), runs[1].trajectory())
    assert gap.parameters is None
    assert not gap.value.any()


def test_training_at_infinity_follows_the_infinite_flow():
    start = pl.dynamics.block_start(TASK, 0.4)
    plan = pl.TrainingPlan(steps=100, batch=256, learning_rate=0.01, record=[0, 50, 100])
    run = pl.sgd(start, TASK, math.inf, plan, key=KEY)
    assert run.kind == run.trajectory().kind == "limit"
    flow = pl.gradient_flow(start, TASK, math.inf, plan.times)
    assert pl.trajectory_gap(run.trajectory(), flow).value[-1] < 0.01
    assert_allclose(run.value[0, 0, 0], flow.value, atol=0.02)


class Gated(pl.AbstractAttention):
    """A user-defined attention without heads: with a vector, a number and a mask."""

    value: jax.Array
    gate: jax.Array
    shift: jax.Array
    mask: jax.Array

    @property
    def token_dim(self):
        return 2

    @property
    def query_dim(self):
        return 2

    @property
    def output_dim(self):
        return 2

    def attend(self, prompt, query):
        gate = self.mask.astype(query.dtype) * self.gate
        return jnp.tanh(self.shift) * (self.value @ prompt.mean) + gate * query[0]


def gated(mask):
    return Gated(jnp.eye(2), jnp.array([0.3, -0.2]), jnp.asarray(0.5), jnp.array(mask))


def test_an_attention_that_is_no_sum_of_heads_flows_and_is_kept(tmp_path):
    """Its integers stay, and are not taken for those of another flow."""
    plan = pl.dynamics.FlowPlan([0.0, 0.5], samples=64, rtol=1e-3)
    flows = [
        pl.gradient_flow(gated(mask), Sided(), 3, plan, key=KEY, folder=tmp_path)
        for mask in ([1, 1], [1, 0])
    ]
    assert flows[0].parameters["shift"].shape == (2,)
    assert np.all(np.diff(flows[0].value) < 0)
    moved = [np.diff(flow.parameters["gate"], axis=0)[0, 1] for flow in flows]
    assert abs(moved[0]) > 0.01
    assert abs(moved[1]) < 1e-12
    loaded = pl.gradient_flow(gated([1, 1]), Sided(), 3, plan, key=KEY, folder=tmp_path)
    assert_array_equal(loaded.parameters["gate"], flows[0].parameters["gate"])
    assert loaded.to_xarray()["parameters.gate"].dims == ("time", "gate.row")
    assert loaded.attention(gated([1, 1])).mask.tolist() == [1, 1]


def attend(trajectory, *arguments):
    return lambda: trajectory.attention(*arguments)


def refused(trained, tmp_path):
    run = trained.trajectory(4)
    law = pl.TrainingPlan(steps=2, sampling="law")
    plain = pl.TrainingPlan(steps=2, samples=8)
    kernels = iter([("softmax", "linear"), ("linear", "linear")])
    return {
        "`sampling` must be 'tokens' unless every start is one head and every length is finite, "
        "got 'law' for Layer(softmax, linear) at lengths [4].": lambda: pl.sgd(
            layer(), Sided(), 4, law, key=KEY
        ),
        "`start` must return attentions that differ only in their arrays, got other "
        "differences between two keys. Pass one function for each.": lambda: pl.sgd(
            lambda key: layer(kernels=next(kernels)), Sided(), 4, plain, key=KEY, seeds=2
        ),
        "`lengths` must be whole numbers from 1 or math.inf, each once, got -inf.": lambda: pl.sgd(
            layer(), Sided(), -math.inf, plain, key=KEY
        ),
        "`place` must be one of 3 times, from 0 or from the end, got 3.": attend(run, layer(), 3),
        "`arrays` must be one of 'key_query', 'value', got 'heads[0].key_query'.": attend(
            run, pl.LinearAttention(COV, COV)
        ),
        "heads[0].key_query": attend(run, layer(dim=3)),
        "`b` must have parameters of the same names and shapes as `a`": lambda: pl.trajectory_gap(
            run, pl.gradient_flow(HEAD, TASK, math.inf, [0.0])
        ),
    }


def test_what_cannot_be_is_refused_in_one_sentence(trained, tmp_path):
    for message, ask in refused(trained, tmp_path).items():
        with pytest.raises(ValueError, match=re.escape(message)):
            ask()
