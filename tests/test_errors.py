import pickle

import numpy as np
import pytest

import promptlimit as pl
from promptlimit.results import ArgumentError, NotAnalyticError

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
        pl.OutsideDomainError("tilt", "must be small."),
        pl.LawMismatchError("law", "must agree."),
        NotAnalyticError("its transform is real"),
        pl.AccuracyError("too few points.", argument="points"),
    ],
)
def test_typed_errors_survive_the_way_between_processes(error):
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(again) is type(error)
    assert (str(again), again.argument) == (str(error), error.argument)


def test_an_error_about_a_law_is_about_the_measure():
    error = NotAnalyticError("its transform is real")
    assert (error.argument, str(error)) == ("measure", "its transform is real")
