"""Settings of NumPy and jax, and objects of other libraries, which work or give one sentence."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import promptlimit as pl

LAW = pl.Gaussian([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]])
ATTENTION = pl.SoftmaxAttention([[0.5, 0.0], [0.0, 0.5]], [[1.0, -1.0]])
QUERY = [1.0, -1.0]
MIXTURE = pl.Mixture([0.5, 0.5], [LAW, pl.Gaussian([1.0, 2.0], np.eye(2))])
TASK = pl.LinearRegression(np.eye(2), noise_variance=0.1, prior_variance=0.5)
START = pl.dynamics.block_start(TASK, 0.3)
KEYS = jax.random.split(jax.random.key(0), 3)
SHARP = pl.SoftmaxAttention(8.0 * np.eye(2), np.eye(2))


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Call functions as users do, without checks of annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


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
        match=r"^`key` must be one random key, got an array of keys, shape \(3,\)\. Pass one of",
    ):
        function(keys)


def test_a_key_is_not_a_query() -> None:
    for call, name in (
        (lambda: ATTENTION(LAW, KEYS), "query"),
        (lambda: pl.prompt_moments(ATTENTION, LAW, KEYS[0], 10), "query"),
        (lambda: pl.output_gap(ATTENTION, LAW, KEYS, 10), "queries"),
        (lambda: pl.prompt_moments(ATTENTION, LAW, QUERY, KEYS[0]), "lengths"),
        (lambda: pl.Gaussian(KEYS, np.eye(3)), "mean"),
    ):
        with pytest.raises(ValueError, match=f"^`{name}` must hold numbers, got a random key"):
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
    ):
        with pytest.raises(
            ValueError,
            match=rf"^`{name}` must be an array that NumPy can read, got a tensor \(dtype torch\."
            r"bfloat16, device cuda:0, requires_grad True\)\. Pass tensor\.detach\(\)\.float",
        ):
            call()


def test_none_is_not_a_model() -> None:
    with pytest.raises(ValueError, match=r"^`path` must be the folder of a model or a .gguf f"):
        pl.heads.load(None)


def test_a_mixture_with_its_arguments_in_the_wrong_order_says_so() -> None:
    swapped: Any = [0.5, 0.5]
    with pytest.raises(
        ValueError, match=r"^`weights` must .*: the arguments are in the wrong order"
    ):
        pl.Mixture([LAW, LAW], swapped)
