"""Settings of NumPy and jax, and objects of other libraries, which work or give one sentence."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError

LAW = pl.Gaussian([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])
ATTENTION = pl.SoftmaxAttention([[0.5, 0.0], [0.0, 0.5]], [[1.0, -1.0]])
QUERY = [1.0, -1.0]
MIXTURE = pl.Mixture([0.5, 0.5], [LAW, pl.Gaussian([1.0, 2.0], np.eye(2))])
TASK = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
START = pl.dynamics.block_start(TASK, 0.3)
KEYS = jax.random.split(jax.random.key(0), 3)
SHARP = pl.SoftmaxAttention(8.0 * np.eye(2), np.eye(2))

pytestmark = pytest.mark.usefixtures("unchecked")


def sgd(key: Any = KEYS[0]) -> pl.results.Training:
    return pl.sgd(START, TASK, 10, pl.TrainingPlan(steps=2, batch=4), key=key)


def flow(key: Any = None) -> pl.results.Trajectory:
    return pl.gradient_flow(START, TASK, 10, [0.0, 0.1], key=key)


def simulated(key: Any) -> pl.results.PromptMoments:
    return pl.prompt_moments(ATTENTION, LAW, QUERY, 10, kind="estimate", key=key, samples=64)


CALLS: dict[str, Callable[[], Any]] = {
    "limit": lambda: ATTENTION(MIXTURE, QUERY),
    "limit of a sphere": lambda: ATTENTION(pl.UniformSphere(2), QUERY),
    "prompt_moments": lambda: pl.prompt_moments(SHARP, LAW, QUERY, [10, 1e12]).mean,
    "of a mixture": lambda: pl.prompt_moments(ATTENTION, MIXTURE, QUERY, 10).mean,
    "of a sphere": lambda: pl.prompt_moments(ATTENTION, pl.UniformSphere(2), QUERY, 10).mean,
    "required_length": lambda: (
        pl.required_length(ATTENTION, LAW, [QUERY], tolerance=0.1).exact  # README
    ),
    "weight_statistics": lambda: pl.weight_statistics([0.0, 1.0, 30.0], 1000).participation,
    "length_statistics": lambda: pl.length_statistics([0.0, 5.0], 1000).entropy,
    "risk": lambda: pl.risk(START, TASK, 10).value,
    "risk_gradient": lambda: pl.risk_gradient(START, TASK, 10).value["value"],
    "gradient_flow": lambda: flow().value,
    "sgd": lambda: sgd().value,
    "stream": lambda: pl.stream(SHARP, 9.0 * np.eye(2), [QUERY]).output,
    "heads": lambda: pl.heads.Head([[90.0]], [[0.0], [9.0]], [[1.0], [2.0]]).outputs(),
}


@pytest.mark.parametrize("name", CALLS)
def test_floating_point_errors_that_numpy_raises_do_not_stop_the_library(name: str) -> None:
    expected = CALLS[name]()
    with np.errstate(all="raise"):
        found = CALLS[name]()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "stream"])
def test_functions_work_without_jit(name: str) -> None:
    expected = CALLS[name]()
    with jax.disable_jit():
        found = CALLS[name]()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_numbers_too_large_for_single_precision_are_named() -> None:
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            ValueError,
            match=r"^`query` must fit in single precision, got 1e\+48, which overflows float32\.",
        ):
            ATTENTION(LAW, np.array([1e48, 0.0]))


@pytest.mark.parametrize("law", [MIXTURE, pl.UniformSphere(2)], ids=["mixture", "sphere"])
def test_an_overflow_of_single_precision_is_named(law: pl.AbstractMeasure) -> None:
    query = np.array([1e20, 0.0], np.float32)
    attention = pl.SoftmaxAttention(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32))
    with jax.enable_x64(False):
        law = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), law)
        with pytest.raises(ValueError, match=r"^`query` must keep .*, but float32 overflows"):
            attention(law, query)
        assert np.isnan(jax.jit(lambda z: attention(law, z))(query)).all()


@pytest.mark.parametrize("keys", [KEYS, jax.random.split(jax.random.PRNGKey(0), 3)])
@pytest.mark.parametrize("function", [simulated, sgd, flow])
def test_several_keys_are_refused(function: Callable[..., Any], keys: jax.Array) -> None:
    with pytest.raises(
        ValueError,
        match=r"^`key` must be one random key, got an array of keys with shape \(3,\)\. Pass one",
    ):
        function(keys)


def test_a_key_is_not_a_query() -> None:
    for call, name in (
        (lambda: ATTENTION(LAW, KEYS), "query"),
        (lambda: pl.prompt_moments(ATTENTION, LAW, KEYS[0], 10), "query"),
        (lambda: pl.output_gap(ATTENTION, LAW, KEYS, 10), "queries"),
        (lambda: pl.prompt_moments(ATTENTION, LAW, QUERY, KEYS[0]), "lengths"),
        (lambda: pl.Gaussian(KEYS, np.eye(3)), "mean"),
        (lambda: pl.stream(ATTENTION, KEYS, [QUERY]), "prompt"),
    ):
        with pytest.raises(ValueError, match=f"^`{name}` must hold real numbers, got a random key"):
            call()


class Tensor:
    """A tensor with the errors of PyTorch where NumPy cannot read it."""

    dtype, device, requires_grad = "torch.bfloat16", "cuda:0", True

    def detach(self) -> "Tensor":
        return self

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")


def test_tensors_that_numpy_cannot_read_are_refused() -> None:
    tensor = Tensor()
    for call, name in (
        (lambda: ATTENTION(LAW, tensor), "query"),
        (lambda: pl.prompt_moments(ATTENTION, LAW, QUERY, tensor), "lengths"),
        (lambda: pl.weight_statistics(tensor, 10), "sharpness"),
        (lambda: pl.Gaussian([tensor, tensor], np.eye(2)), "mean"),
        (lambda: pl.Empirical(tensor), "tokens"),
        (lambda: pl.heads.Head(tensor, [[1.0]], [[1.0]]), "queries"),
        (lambda: pl.stream(ATTENTION, tensor, [QUERY]), "prompt"),
        (lambda: pl.stream(ATTENTION, [tensor], [QUERY]), "prompt"),
    ):
        with pytest.raises(
            ValueError,
            match=rf"^`{name}` must be an array that NumPy can read, got a tensor \(dtype torch\."
            r"bfloat16, device cuda:0, requires_grad True\)\. Pass tensor\.detach\(\)\.float",
        ):
            call()


def test_tensors_of_pytorch_are_read_where_numpy_can_and_refused_otherwise() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    for dtype in (torch.float32, torch.float64, torch.float16):
        tensor = torch.tensor(VECTOR, dtype=dtype)
        for name, call in TAKERS.items():
            np.testing.assert_array_equal(call(tensor), call(tensor.numpy()), err_msg=name)
    unreadable = (
        torch.tensor(VECTOR, dtype=torch.bfloat16),
        torch.tensor(VECTOR, requires_grad=True),
    )
    for tensor in unreadable:
        for name, call in TAKERS.items():
            with pytest.raises(ArgumentError, match=rf"^`{name}` must be an array that NumPy can"):
                call(tensor)
        for call in TAKERS.values():
            np.testing.assert_allclose(call(tensor.detach().float().cpu()), call(VECTOR), rtol=1e-6)


VECTOR = [0.5, 1.0]
TAKERS: dict[str, Callable[[Any], Any]] = {
    "query": lambda v: pl.prompt_moments(ATTENTION, LAW, v, 10).mean,
    "mean": lambda v: pl.Gaussian(v, np.eye(2)).mean,
    "tokens": lambda v: pl.Empirical([v, v]).tokens,
    "value": lambda v: pl.SoftmaxAttention(np.eye(2), [v]).value,
    "sharpness": lambda v: pl.weight_statistics(v, 10).participation,
    "times": lambda v: pl.dynamics.FlowPlan(v).times,
    "thresholds": lambda v: pl.output_law(ATTENTION, LAW, QUERY, 10, thresholds=v).value,
    "queries": lambda v: pl.heads.Head([v], [QUERY], [QUERY]).outputs(),
}
"""Functions of one vector, by the name of the argument that takes it."""


class Units(np.ndarray):
    """A subclass of NumPy's array, as libraries for units have them."""


def _pandas() -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")


def _xarray() -> Any:
    return pytest.importorskip("xarray", reason="xarray is not installed: pip install xarray")


READ: dict[str, Callable[[], Any]] = {
    "subclass": lambda: np.array(VECTOR).view(Units),
    "big-endian": lambda: np.array(VECTOR, ">f8"),
    "series": lambda: _pandas().Series(VECTOR, index=["a", "b"]),
    "nullable series": lambda: _pandas().Series(VECTOR, dtype="Float64"),
    "index": lambda: _pandas().Index(VECTOR),
    "data array": lambda: _xarray().DataArray(VECTOR, dims="x"),
}


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("kind", READ)
def test_vectors_of_other_libraries_are_read_as_arrays(kind: str, name: str) -> None:
    np.testing.assert_array_equal(TAKERS[name](READ[kind]()), TAKERS[name](np.array(VECTOR)))


@pytest.mark.parametrize(
    "matrix",
    [
        lambda rows: np.array(rows).view(np.matrix),
        lambda rows: _pandas().DataFrame(rows),
    ],
    ids=["numpy.matrix", "data frame"],
)
def test_matrices_of_other_libraries_are_read_as_arrays(matrix: Callable[..., Any]) -> None:
    rows = [[2.0, 0.5], [0.5, 1.0]]
    np.testing.assert_array_equal(pl.Gaussian(QUERY, matrix(rows)).cov, rows)
    np.testing.assert_array_equal(pl.Empirical(matrix(rows)).tokens, rows)
    np.testing.assert_array_equal(pl.LinearRegression(matrix(rows)).covariance, rows)


REFUSED: dict[str, Callable[[], Any]] = {
    "records": lambda: np.rec.fromarrays([VECTOR, VECTOR]),
    "complex": lambda: np.array(VECTOR, complex),
    "missing": lambda: [0.5, None],
    "dictionary": lambda: {"a": 0.5},
    "set": lambda: {0.5, 1.0},
    "text": lambda: _pandas().Series(["0.5", "1.0"]),
    "dates": lambda: _pandas().Series(_pandas().to_datetime(["2020", "2021"])),
    "durations": lambda: _pandas().to_timedelta([1, 2]),
    "missing in a series": lambda: _pandas().Series([0.5, None], dtype="object"),
    "dataset": lambda: _xarray().Dataset({"a": ("x", VECTOR)}),
}


@pytest.mark.parametrize("name", TAKERS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_an_array_of_numbers_is_refused_in_one_sentence(kind: str, name: str) -> None:
    with pytest.raises(ArgumentError) as refusal:
        TAKERS[name](REFUSED[kind]())
    sentence = str(refusal.value)
    assert re.match(rf"`{name}` must .*, got .*\.$", sentence)


@pytest.mark.parametrize("variance", [VECTOR, np.array(VECTOR), "a", None, {}, 1j])
def test_a_variance_is_one_number(variance: Any) -> None:
    means, shares = [[1.0], [2.0]], [0.5, 0.5]
    for name, call in (
        ("noise_variance", lambda: pl.LinearRegression(np.eye(2), noise_variance=variance)),
        ("prior_variance", lambda: pl.LinearRegression(np.eye(2), prior_variance=variance)),
        (
            "within_variance",
            lambda: pl.Denoising(means, shares, within_variance=variance, noise_variance=1.0),
        ),
    ):
        with pytest.raises(
            ArgumentError, match=f"^`{name}` must (be a number|hold real numbers), got"
        ):
            call()


def test_none_is_not_a_model() -> None:
    with pytest.raises(ValueError, match=r"^`path` must be the folder of a model or a .gguf f"):
        pl.heads.load(None)


@pytest.mark.parametrize("path", [3, b"x", ["a"], np.eye(2)])
def test_what_is_not_a_path_is_refused(path: Any) -> None:
    for call in (pl.heads.load, pl.load, lambda path: pl.save(path, LAW)):
        with pytest.raises(ValueError, match=r"^`path` must be the path of a f.*, got "):
            call(path)


def test_a_mixture_with_its_arguments_in_the_wrong_order_says_so() -> None:
    swapped: Any = [0.5, 0.5]
    with pytest.raises(
        ValueError, match=r"^`weights` must .*: the arguments are in the wrong order"
    ):
        pl.Mixture([LAW, LAW], swapped)
