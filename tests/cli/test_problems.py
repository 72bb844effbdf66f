"""Problems come from named arrays, or from the examples."""

import numpy as np
import pytest

from promptlimit.cli._inputs import EXAMPLES
from promptlimit.cli._problems import _EXAMPLES, example, from_arrays, limits
from promptlimit.measures import Empirical, Gaussian, Rademacher, UniformCube, UniformSphere

EYE = np.eye(2)
HEAD = {"key_query": EYE, "value": EYE, "query": np.array([1.0, 2.0])}


def test_every_example_that_is_named_can_be_built() -> None:
    assert tuple(_EXAMPLES) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_limits(name: str) -> None:
    result = limits(example(name))
    assert result.softmax.dtype == np.float64
    assert np.isfinite(result.softmax).all()
    assert result.kind == ("exact" if name == "tokens" else "limit")
    assert (result.distance < 1e-15) == (name == "gaussian")


def test_the_shifted_example_is_lemma_2_1() -> None:
    result = limits(example("shifted"))
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
    ],
)
def test_named_arrays_describe_the_prompt(prompt: dict, kind: type) -> None:
    assert isinstance(from_arrays({**HEAD, **prompt}).law, kind)


def test_factors_are_merged() -> None:
    rng = np.random.default_rng(0)
    k, q, v, o = (rng.normal(size=shape) for shape in ((3, 2), (3, 2), (4, 2), (1, 4)))
    factors = {"key_weight": k, "query_weight": q, "value_weight": v, "output": o}
    given = {**factors, "scale": np.array(0.5), "query": np.ones(2), "cov": EYE}
    result = limits(from_arrays(given, one_query=True))
    np.testing.assert_allclose(result.softmax, o @ v @ (0.5 * k.T @ q) @ np.ones(2), rtol=1e-13)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {**HEAD, "covv": EYE},
            "`array` must be one of 'cov', 'half_widths', 'key_query', 'key_weight', 'mean', "
            "'output', 'prompt', 'query', 'query_weight', 'radius', 'scale', 'tokens', 'value', "
            "'value_weight', 'weights', got 'covv'. Did you mean 'cov'?",
        ),
        ({"cov": EYE}, "`key_query` must be given for the attention, got only `cov`."),
        (
            {"key_query": EYE, "value": EYE, "cov": EYE},
            "`query` must be given for the problem, got only `key_query`, `value`, `cov`.",
        ),
        (
            {**HEAD, "key_weight": EYE, "cov": EYE},
            "`key_query` must not be given together with factors such as `key_weight`. "
            "Pass either the merged matrices or the factors.",
        ),
        (
            HEAD,
            "`prompt` must be described by `cov` (with `mean`) or by `tokens`, or named as one of "
            "'gaussian', 'tokens', 'rademacher', 'cube', 'sphere', "
            "got only `key_query`, `value`, `query`.",
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
def test_problems_that_do_not_fit_are_refused_in_one_sentence(given: dict, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole message is compared
        from_arrays(given, one_query=True)
    assert str(refusal.value) == message


def test_a_scale_must_be_one_number() -> None:
    factors = dict.fromkeys(("key_weight", "query_weight", "value_weight"), EYE)
    given = {**factors, "scale": np.array([1.0, 2.0]), "query": np.ones(2), "cov": EYE}
    with pytest.raises(ValueError, match=r"`scale` must be a number, got shape \(2,\)\."):
        from_arrays(given, one_query=True)


def test_outputs_beyond_double_precision_are_refused() -> None:
    huge = {"key_query": 1e200 * EYE, "value": 1e200 * EYE, "query": np.ones(2), "cov": EYE}
    with pytest.raises(ValueError, match="the outputs must be finite"):
        limits(from_arrays(huge))
