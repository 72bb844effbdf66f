"""Problems from named arrays in files, and the examples."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from promptlimit.attention import Stack, limits
from promptlimit.cli._options import Example, StackExample
from promptlimit.files import example_problem, example_stack, read_problem, standard_problem
from promptlimit.measures import Empirical, Gaussian, Rademacher, UniformCube, UniformSphere
from promptlimit.results import Limits

EYE = np.eye(2)
HEAD = {"key_query": EYE, "value": EYE, "query": np.array([1.0, 2.0])}


def names(option: Any) -> list[str]:
    """Return the values that an option may have."""
    return get_args(option)[1].metavar.split("|")


def written(folder: Path, arrays: dict[str, Any]) -> list[str]:
    texts = {n: x for n, x in arrays.items() if isinstance(x, str)}
    np.savez(folder / "arrays.npz", **{n: x for n, x in arrays.items() if n not in texts})
    (folder / "texts.json").write_text(json.dumps(texts))
    return [str(folder / "arrays.npz"), str(folder / "texts.json")]


def limits_of(name: str) -> Limits:
    problem = example_problem(name)
    return limits(problem.attention, problem.measure, problem.query)


@pytest.mark.parametrize("name", names(Example))
def test_every_example_has_limits(name: str) -> None:
    result = limits_of(name)
    assert result.softmax.dtype == np.float64
    assert np.isfinite(result.softmax).all()
    assert result.kind == ("exact" if name == "tokens" else "limit")
    assert (result.distance < 1e-15) == (name == "gaussian")


@pytest.mark.parametrize("name", names(StackExample))
def test_every_example_of_a_stack_has_three_layers(name: str) -> None:
    attention = example_stack(name).attention
    assert isinstance(attention, Stack)
    assert len(attention.layers) == 3


def test_the_shifted_example_is_lemma_2_1() -> None:
    result = limits_of("shifted")
    u, v = np.array([[0.8, 0.3], [-0.2, 0.5]]), np.array([[1.0, 0.0], [0.5, 1.0]])
    m, cov, z = np.array([1.0, -0.5]), np.array([[1.0, 0.4], [0.4, 0.5]]), np.array([1.0, -0.5])
    np.testing.assert_allclose(result.softmax, v @ (m + cov @ u @ z), rtol=1e-14)
    np.testing.assert_allclose(result.linear, v @ (cov + np.outer(m, m)) @ u @ z, rtol=1e-14)


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ({"mean": np.zeros(2), "cov": EYE}, Gaussian),
        ({"cov": EYE}, Gaussian),
        ({"tokens": EYE}, Empirical),
        ({"tokens": EYE, "weights": np.array([0.25, 0.75])}, Empirical),
        ({"prompt": "rademacher", "half_widths": np.ones(2)}, Rademacher),
        ({"prompt": "cube", "half_widths": np.ones((1, 2))}, UniformCube),
        ({"prompt": "sphere", "radius": np.array([[2.0]])}, UniformSphere),
        ({}, type(None)),
    ],
)
def test_named_arrays_describe_the_prompt(tmp_path: Path, prompt: dict, kind: type) -> None:
    assert isinstance(read_problem(written(tmp_path, {**HEAD, **prompt})).law, kind)


def test_factors_are_merged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    k, q, v, o = (rng.normal(size=shape) for shape in ((3, 2), (3, 2), (4, 2), (1, 4)))
    factors = {"key_weight": k, "query_weight": q, "value_weight": v, "output": o}
    given = {**factors, "scale": np.array(0.5), "query": np.ones(2), "cov": EYE}
    problem = read_problem(written(tmp_path, given))
    result = limits(problem.attention, problem.measure, problem.query)
    np.testing.assert_allclose(result.softmax, o @ v @ (0.5 * k.T @ q) @ np.ones(2), rtol=1e-13)


def test_arrays_of_later_files_replace_those_of_earlier_ones(tmp_path: Path) -> None:
    np.save(tmp_path / "value.npy", 2 * EYE)
    sources = [*written(tmp_path, HEAD), f"value={tmp_path / 'value.npy'}"]
    attention: Any = read_problem(sources, kernel="linear").attention
    np.testing.assert_array_equal(attention.value, 2 * EYE)
    assert type(attention).__name__ == "LinearAttention"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cov": EYE}, "`key_query` must be given, got only `cov`."),
        (
            {"key_query": EYE, "value": EYE, "cov": EYE},
            "`query` must be given, or `queries` one per row, or `query_cov` of Gaussian queries, "
            "got none of the three.",
        ),
        (
            {**HEAD, "key_weight": EYE, "cov": EYE},
            "`key_query` must not be given together with factors such as `key_weight`. "
            "Pass either the merged matrices or the factors.",
        ),
        (
            {**HEAD, "half_widths": np.ones(2)},
            "`prompt` must be one of 'gaussian', 'tokens', 'rademacher', 'cube', 'sphere' if "
            "neither `tokens` nor `cov` is given, got none.",
        ),
        (
            {**HEAD, "prompt": "gausian", "cov": EYE},
            "`prompt` must be one of 'gaussian', 'tokens', 'rademacher', 'cube', 'sphere', "
            "got 'gausian'. Did you mean 'gaussian'?",
        ),
        (
            {**HEAD, "cov": EYE, "tokens": EYE},
            "`cov` must not be given for a prompt of kind 'tokens'. "
            "Leave it out, or name another prompt.",
        ),
        ({**HEAD, "cov": "one"}, "`cov` must be an array, got the text 'one'."),
    ],
)
def test_problems_that_do_not_fit_are_errors(tmp_path: Path, given: dict, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole message is compared
        read_problem(written(tmp_path, given))
    assert str(refusal.value) == message


def test_one_query_and_a_law_are_required_where_they_are_used(tmp_path: Path) -> None:
    problem = read_problem(written(tmp_path, {**HEAD, "query": np.ones(2)}))
    with pytest.raises(ValueError, match="`prompt` must be described by"):
        _ = problem.measure
    with pytest.raises(ValueError, match="`query` must be one query here, got a law"):
        _ = standard_problem(2, 0.5).query


def test_a_scale_must_be_one_number(tmp_path: Path) -> None:
    factors = dict.fromkeys(("key_weight", "query_weight", "value_weight"), EYE)
    given = {**factors, "scale": np.array([1.0, 2.0]), "query": np.ones(2), "cov": EYE}
    with pytest.raises(ValueError, match=r"`scale` must be a number, got shape \(2,\)\."):
        read_problem(written(tmp_path, given))


def test_outputs_beyond_double_precision_are_errors(tmp_path: Path) -> None:
    huge = {"key_query": 1e200 * EYE, "value": 1e200 * EYE, "query": np.ones(2), "cov": EYE}
    problem = read_problem(written(tmp_path, huge))
    with pytest.raises(ValueError, match="must have outputs in the range of double precision"):
        limits(problem.attention, problem.measure, problem.query)
