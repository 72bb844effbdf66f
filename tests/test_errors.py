import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError, NotAnalyticError

HEAD = pl.SoftmaxAttention(key_query=[[0.4]], value=[[1.0]])
WIDE = pl.SoftmaxAttention(key_query=np.eye(2), value=np.eye(2))
NORMAL = pl.Gaussian([0.0], [[1.0]])
TASK = pl.LinearRegression([[1.0]], noise_variance=0.1)


@pytest.mark.parametrize(
    ("argument", "refused"),
    [
        ("cov", lambda: pl.Gaussian([0.0], [[-1.0]])),
        ("weights", lambda: pl.Empirical([[1.0], [2.0]], weights=[0.3, 0.3])),
        ("value", lambda: pl.SoftmaxAttention(key_query=[[0.4]], value=[[np.nan]])),
        ("layers[1]", lambda: pl.Stack([pl.Layer(HEAD), pl.Layer(WIDE)])),
        ("query", lambda: pl.prompt_moments(HEAD, NORMAL, [1.0, 2.0], 10)),
        ("lengths", lambda: pl.prompt_moments(HEAD, NORMAL, [1.0], [10.5])),
        ("kind", lambda: pl.prompt_moments(HEAD, NORMAL, [1.0], 10, kind="exat")),
        ("key", lambda: pl.prompt_moments(HEAD, NORMAL, [1.0], 10, kind="estimate")),
        ("queries", lambda: pl.output_gap(HEAD, NORMAL, [[1.0, 2.0]], [10])),
        ("measure", lambda: pl.output_gap(HEAD, pl.Gaussian([0, 0], np.eye(2)), NORMAL, [10])),
        ("tolerance", lambda: pl.required_length(HEAD, NORMAL, NORMAL, -1.0)),
        ("sharpness", lambda: pl.weight_statistics(-1.0, 10)),
        ("sharpness", lambda: pl.length_statistics([1.0, 2.0], [1, 2, 3])),
        ("weight", lambda: pl.inverse_temperature(1.0, 10, margin=2.0)),
        ("noise_variance", lambda: pl.LinearRegression([[1.0]], noise_variance=-1.0)),
        ("samples", lambda: pl.risk(WIDE, TASK, 10, samples=1)),
        ("values", lambda: pl.fit_rate([1, 2], [1.0, 0.0])),
    ],
)
def test_a_refusal_carries_the_name_that_its_message_begins_with(argument, refused):
    with pytest.raises(ArgumentError) as caught:
        refused()
    assert caught.value.argument == argument
    assert str(caught.value).startswith(f"`{argument}` ")


@pytest.mark.parametrize(
    "error",
    [
        ArgumentError("length", "must be positive, got 0."),
        pl.KindUnavailableError("kind", "must be 'estimate'."),
        pl.errors.OutsideDomainError("tilt", "must be small."),
        pl.errors.LawMismatchError("law", "must agree."),
        pl.errors.TaskMismatchError("closed_risk", "must agree."),
        NotAnalyticError("its transform is real"),
        pl.errors.AccuracyError("too few points.", argument="points"),
    ],
)
def test_typed_errors_survive_the_way_between_processes(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error)
    assert (str(again), again.argument) == (str(error), error.argument)


def test_an_error_about_a_law_is_about_the_measure():
    error = NotAnalyticError("its transform is real")
    assert (error.argument, str(error)) == ("measure", "its transform is real")


TRANSFORMS = {
    "jit": jax.jit,
    "vmap": lambda function: lambda x: jax.vmap(function)(x[None]),
    "grad": lambda function: jax.grad(lambda x: jnp.sum(function(x))),
}
MATRIX, VECTOR, NUMBER = jnp.eye(2), jnp.ones(2), jnp.array(1.0)
PLANE = pl.Gaussian([0.0, 0.0], np.eye(2))


def head(matrix):
    return pl.SoftmaxAttention(key_query=matrix, value=np.eye(2))


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    ("words", "at", "called"),
    [
        (("prompt_moments", "query", "attention itself"), VECTOR,
         lambda x: pl.prompt_moments(WIDE, PLANE, x, 10).mse),
        (("prompt_moments", "measure", "attention itself"), MATRIX,
         lambda x: pl.prompt_moments(WIDE, pl.Gaussian([0.0, 0.0], x), [1.0, 2.0], 10).mse),
        (("output_law", "thresholds", "attention itself"), VECTOR,
         lambda x: pl.output_law(WIDE, PLANE, [1.0, 2.0], 10, thresholds=x).mean),
        (("output_gap", "attention", "attention itself"), MATRIX,
         lambda x: pl.output_gap(head(x), PLANE, PLANE, [10]).value),
        (("weight_statistics", "sharpness", "`weights.weight_interpolant`"), NUMBER,
         lambda x: pl.weight_statistics(x, 10).participation),
        (("length_statistics", "lengths", "`weights.weight_interpolant`"), NUMBER,
         lambda x: pl.length_statistics(1.0, x).entropy),
        (("required_length", "tolerance", "outside"), NUMBER,
         lambda x: pl.required_length(WIDE, PLANE, PLANE, x).exact),
        (("risk", "attention", "`tasks.risk_function`"), MATRIX,
         lambda x: pl.risk(head(x), TASK, 10).value),
        (("LinearRegression", "noise_variance", "Build the task outside"), NUMBER,
         lambda x: pl.bayes_risk(pl.LinearRegression([[1.0]], noise_variance=x), 10).value),
    ],
)  # fmt: skip
def test_numpy_functions_name_what_to_use_under_jax(transform, words, at, called):
    function, argument, instead = words
    with pytest.raises(ArgumentError) as caught:
        TRANSFORMS[transform](called)(at)
    assert caught.value.argument == argument
    sentence = str(caught.value)
    assert f"for `{function}`, which computes with NumPy, got an array that jax traces" in sentence
    assert instead in sentence


def test_a_call_inside_jit_without_traced_arguments_says_so():
    def inside(x):
        return x + pl.prompt_moments(WIDE, PLANE, [1.0, 2.0], 10).mse

    with pytest.raises(
        TypeError, match=r"^`prompt_moments` must be called outside `jit`, because it "
    ):
        jax.jit(inside)(1.0)
    assert np.isfinite(jax.grad(inside)(1.0))


def test_the_named_alternatives_work_under_jax():
    weights = pl.weights.weight_interpolant(10, max_sharpness=4.0)
    assert np.isfinite(jax.jit(jax.grad(lambda s: weights(s)["participation"]))(1.0))
    assert np.isfinite(jax.grad(lambda u: jnp.sum(head(u)(PLANE, VECTOR)))(MATRIX)).all()
    measured = pl.tasks.risk_function(TASK, 10, max_sharpness=4.0)
    assert np.isfinite(jax.grad(measured)(MATRIX / 2, VECTOR)).all()
