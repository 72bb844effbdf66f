"""A bad measure gets one sentence that names the argument, the value and the way out."""

import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import ArgumentError

EYE = [[1.0, 0.0], [0.0, 1.0]]


class Fixed(pl.AbstractMeasure):
    dim = 1

    def log_laplace(self, tilt):
        return 0.5 * tilt @ tilt

    def sample(self, length, *, key):
        return jax.random.normal(key, (length, 1))


class Shaped(Fixed):
    def log_laplace(self, tilt):
        return 0.5 * tilt**2


class InNumPy(Fixed):
    def log_laplace(self, tilt):
        return -np.log(1.0 - tilt[0] ** 2)


def _sampled(law, length, key):
    return law.sample(length, key=key)


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "covariance not symmetric": (
        lambda: pl.Gaussian([0.0, 0.0], [[1.0, 0.5], [0.25, 1.0]]),
        "`cov` must be symmetric, got 0.5 at (0, 1) and 0.25 at (1, 0). "
        "If they differ only by rounding, take the average of the matrix and its transpose.",
    ),
    "covariance not positive": (
        lambda: pl.Gaussian([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]]),
        "`cov` must be positive semi-definite, got smallest eigenvalue -1. "
        "If it was estimated, project it: clip its eigenvalues at zero.",
    ),
    "covariance of another size": (
        lambda: pl.Gaussian([0.0, 0.0], [[1.0]]),
        "`cov` must have shape (2, 2) (the length of `mean`, twice), got (1, 1).",
    ),
    "covariance a vector": (
        lambda: pl.Gaussian([0.0, 0.0], [1.0, 1.0]),
        "`cov` must be a matrix, got shape (2,).",
    ),
    "mean a complex list": (
        lambda: pl.Gaussian([0, 1j], EYE),
        "`mean` must hold real numbers, got [0, 1j]. Pass an array of floats.",
    ),
    "mean a number": (lambda: pl.Gaussian(0.0, EYE), "`mean` must be a vector, got shape ()."),
    "mean empty": (
        lambda: pl.Gaussian([], np.zeros((0, 0))),
        "`mean` must have at least one entry, got an empty vector.",
    ),
    "mean not a number": (
        lambda: pl.Gaussian([0.0, float("nan")], EYE),
        "`mean` must be finite, got nan at index 1. Replace that entry.",
    ),
    "covariance infinite": (
        lambda: pl.Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0, float("inf")]]),
        "`cov` must be finite, got inf at index 1, 1. Replace that entry.",
    ),
    "covariance ragged": (
        lambda: pl.Gaussian([0.0, 0.0], [[1.0, 0.0], [0.0]]),
        "`cov` must be an array, got rows of different lengths. Make them equal.",
    ),
    "mean complex": (
        lambda: pl.Gaussian(np.array([1j]), [[1.0]]),
        "`mean` must hold real numbers, got dtype complex128. Pass an array of floats.",
    ),
    "mean text": (
        lambda: pl.Gaussian(["a"], [[1.0]]),
        "`mean` must hold real numbers, got an array of text. Pass an array of floats.",
    ),
    "no tokens": (
        lambda: pl.Empirical(np.zeros((0, 3))),
        "`tokens` must hold at least one token, got shape (0, 3). "
        "Attention over an empty prompt is not defined.",
    ),
    "tokens a vector": (
        lambda: pl.Empirical([1.0, 2.0]),
        "`tokens` must be a matrix, got shape (2,).",
    ),
    "tokens with a hole": (
        lambda: pl.Empirical([[1.0, 2.0], [float("nan"), 0.0]]),
        "`tokens` must be finite, got nan at index 1, 0. Replace that entry.",
    ),
    "weights of another length": (
        lambda: pl.Empirical([[1.0], [2.0]], [1.0]),
        "`weights` must have shape (2,) (one weight per token), got (1,).",
    ),
    "weights negative": (
        lambda: pl.Empirical([[1.0], [2.0]], [1.5, -0.5]),
        "`weights` must not be negative, got -0.5 at index 1.",
    ),
    "weights that do not sum to one": (
        lambda: pl.Empirical([[1.0], [2.0]], [0.5, 0.25]),
        "`weights` must sum to one, got a sum of 0.75. Divide them by their sum.",
    ),
    "query of another dimension": (
        lambda: pl.Empirical([[1.0], [2.0]]).including(jnp.zeros(2)),
        "`query` must have shape (1,) (the dimension of a token), got (2,).",
    ),
    "mixture of nothing": (
        lambda: pl.Mixture([], []),
        "`components` must contain at least one measure, got none.",
    ),
    "mixture of different dimensions": (
        lambda: pl.Mixture([0.5, 0.5], [pl.Rademacher([1.0]), pl.Rademacher([1.0, 1.0])]),
        "`components` must all have the same dimension, got dimensions [1, 2].",
    ),
    "mixture weights too many": (
        lambda: pl.Mixture([0.5, 0.5], [pl.Rademacher([1.0])]),
        "`weights` must have shape (1,) (one weight per component), got (2,).",
    ),
    "mixture weights not a law": (
        lambda: pl.Mixture([0.5], [pl.Rademacher([1.0])]),
        "`weights` must sum to one, got a sum of 0.5. Divide them by their sum.",
    ),
    "affine matrix too narrow": (
        lambda: pl.Affine(pl.Rademacher([1.0, 1.0]), [[1.0]], [0.0]),
        "`matrix` must have shape (1, 2) (one column per dimension of `measure`), got (1, 1).",
    ),
    "affine shift too long": (
        lambda: pl.Affine(pl.Rademacher([1.0]), [[1.0]], [0.0, 1.0]),
        "`shift` must have shape (1,) (one entry per row of `matrix`), got (2,).",
    ),
    "half-widths negative": (
        lambda: pl.UniformCube([1.0, -2.0]),
        "`half_widths` must not be negative, got -2. Pass absolute values.",
    ),
    "half-widths empty": (
        lambda: pl.Rademacher([]),
        "`half_widths` must have at least one entry, got an empty vector.",
    ),
    "sphere in no dimension": (
        lambda: pl.UniformSphere(0),
        "`dim` must be a whole number of at least 1, got 0.",
    ),
    "sphere of negative radius": (
        lambda: pl.UniformSphere(2, -1.0),
        "`radius` must not be negative, got -1.",
    ),
    "sphere of infinite radius": (
        lambda: pl.UniformSphere(2, float("inf")),
        "`radius` must be finite, got inf. Replace that entry.",
    ),
    "tilt of another dimension": (
        lambda: pl.Rademacher([1.0]).tilted_mean(jnp.zeros(2)),
        "`tilt` must have shape (1,) (the measure's dimension), got (2,).",
    ),
    "negative length": (
        lambda: _sampled(pl.Gaussian([0.0], [[1.0]]), -3, jax.random.key(0)),
        "`length` must be a whole number of at least 0, got -3.",
    ),
    "fractional length": (
        lambda: _sampled(pl.UniformSphere(2), 2.5, jax.random.key(0)),
        "`length` must be a whole number of at least 0, got 2.5.",
    ),
    "length a text": (
        lambda: _sampled(Fixed(), "x", jax.random.key(0)),
        "`length` must be a whole number of at least 0, got 'x'.",
    ),
    "number as a key": (
        lambda: _sampled(pl.Rademacher([1.0]), 3, 0),
        "`key` must be a random key, got int. Pass jax.random.key(0).",
    ),
    "no key": (
        lambda: _sampled(Fixed(), 3, None),
        "`key` must be a random key, got None. Pass jax.random.key(0).",
    ),
    "transform with a shape": (
        lambda: Shaped().tilted_mean(jnp.ones(1)),
        "`log_laplace` of Shaped must return a number, got shape (1,). Sum over the coordinates.",
    ),
    "transform in NumPy": (
        lambda: pl.check_law(InNumPy(), key=jax.random.key(0)),
        "`log_laplace` of InNumPy, or of a law inside it, must use functions of "
        "jax.numpy, got one of NumPy, which jax "
        "cannot differentiate. Replace it by the function of jax.numpy with the same name.",
    ),
    "class in place of a law": (
        lambda: pl.measures.require_measure("law", pl.Gaussian),
        "`law` must be a measure, got the class Gaussian instead of an instance. "
        "Pass Gaussian(...) with its parameters.",
    ),
}


@pytest.mark.parametrize(("build", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_measure_is_refused_in_one_sentence(build: Callable, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole message is compared
        build()
    assert str(refusal.value) == message


def test_rounding_is_not_taken_for_a_bad_covariance(precision: str) -> None:
    factor = np.random.default_rng(0).normal(size=(8, 5)).astype(precision)
    covariance = factor @ factor.T  # singular, symmetric and positive up to rounding
    assert pl.Gaussian(np.zeros(8, precision), covariance).dim == 8


@pytest.mark.parametrize("indefinite", [[[-1.0, 0.0], [0.0, -1.0]], [[1.0, 2.0], [2.0, 1.0]]])
def test_an_indefinite_covariance_is_nan_while_tracing(indefinite: list) -> None:
    @jax.jit
    def results(cov: jax.Array) -> tuple[jax.Array, ...]:
        law = pl.Gaussian(jnp.zeros(2), cov)
        return law.cov, law.log_laplace(jnp.ones(2)), law.sample(3, key=jax.random.key(0))

    for result in results(jnp.array(indefinite)):
        assert np.isnan(result).all()
    for cov in (np.zeros((2, 2)), [[1.0, 1.0], [1.0, 1.0]], [[1e-30, 0.0], [0.0, 1.0]]):
        np.testing.assert_array_equal(results(jnp.array(cov))[0], jnp.array(cov))


def test_values_are_not_checked_while_tracing() -> None:
    @jax.jit
    def mean_of(weights: jax.Array) -> jax.Array:
        return pl.Empirical(jnp.array([[1.0], [2.0]]), weights).mean

    np.testing.assert_allclose(mean_of(jnp.array([0.25, 0.75])), [1.75])


def test_integers_lists_and_numpy_arrays_become_floats() -> None:
    for mean in ([1, 2], np.array([1, 2]), np.array([1.0, 2.0]), jnp.array([1, 2])):
        assert pl.Gaussian(mean, EYE).mean.dtype == jnp.float32


def test_mixed_precisions_meet_in_the_finer_one(x64: None) -> None:
    measure = pl.Gaussian(jnp.zeros(2, jnp.float32), jnp.eye(2, dtype=jnp.float64))
    assert measure.mean.dtype == jnp.float64


def test_a_numpy_integer_is_a_dimension() -> None:
    assert pl.UniformSphere(np.int64(3)).dim == 3


def test_a_coarse_tilt_does_not_coarsen_a_fine_measure(x64: None) -> None:
    measure = pl.Gaussian(jnp.zeros(2), jnp.eye(2))
    assert measure.tilted_mean(jnp.ones(2, jnp.float32)).dtype == jnp.float64


def test_a_measure_may_store_what_is_not_an_array() -> None:
    class Named(pl.AbstractMeasure):
        name: str
        size: int

        @property
        def dim(self) -> int:
            return self.size

        def log_laplace(self, tilt: jax.Array) -> jax.Array:
            return 0.5 * (tilt @ tilt)

        def sample(self, length: int, *, key: jax.Array) -> jax.Array:
            return jax.random.normal(key, (length, self.size))

    attention = pl.SoftmaxAttention(np.eye(2), np.eye(2))
    np.testing.assert_allclose(attention(Named("mine", 2), [1.0, 2.0]), [1.0, 2.0])


@pytest.mark.parametrize("weighted", [False, True])
def test_tokens_far_from_the_origin_keep_their_covariance(weighted: bool) -> None:
    tokens = np.asarray(1000 + jax.random.normal(jax.random.key(0), (1000, 2)))
    weights = np.full(1000, 1e-3, np.float32) if weighted else None
    want = np.cov(tokens.astype(float).T, bias=True)
    got = pl.Empirical(tokens, weights).cov
    np.testing.assert_allclose(got, want, rtol=0, atol=3e-4)  # rounding of the tokens themselves
    np.testing.assert_allclose(got, got.T, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("mixture", "tilt", "want"),
    [
        (
            lambda: pl.Mixture([0.5, 0.5], [pl.Gaussian([m], [[1.0]]) for m in (1e-3, -1e-3)]),
            1e3,
            1.0,
        ),
        (
            lambda: pl.Mixture([0.5, 0.5], [pl.Gaussian([m], [[1.0]]) for m in (1000.0, 1001.0)]),
            0.0,
            1.25,
        ),
    ],
)
def test_mixtures_keep_the_covariance_their_components_share(mixture, tilt, want) -> None:
    np.testing.assert_allclose(mixture().tilted_cov(jnp.array([tilt])), [[want]], rtol=1e-5)


def test_two_points_have_a_variance_that_decays_and_never_turns_negative() -> None:
    got = pl.UniformSphere(1).tilted_cov(jnp.array([20.0]))[0, 0]
    np.testing.assert_allclose(got, 1 / np.cosh(20.0) ** 2, rtol=1e-5)


def test_half_precision_is_computed_in_single() -> None:
    third = jnp.full(3, 1 / 3, jnp.float16)
    assert pl.Gaussian(jnp.zeros(2, jnp.float16), jnp.eye(2)).mean.dtype == jnp.float32
    with pytest.raises(ValueError, match="must sum to one"):
        pl.Empirical(jnp.zeros((3, 1)), third)


@pytest.mark.parametrize(
    "law", [pl.UniformSphere(3), pl.UniformCube([1.0] * 3), pl.Rademacher([1.0] * 3)]
)
def test_a_tilt_of_another_dimension_is_refused_everywhere(law: pl.AbstractMeasure) -> None:
    with pytest.raises(ValueError, match="`tilt` must have shape"):
        law.log_laplace(jnp.ones(1))


def test_weights_in_double_precision_must_sum_to_one_to_ten_digits(x64: None) -> None:
    with pytest.raises(ValueError, match=r"^`weights` must sum to one, got a sum of 1.0000001"):
        pl.Empirical([[1.0], [2.0]], [0.5, 0.5 + 1e-7])


def test_one_bad_entry_of_a_large_array_is_found() -> None:
    tokens = np.zeros((20_000, 1), np.float32)
    tokens[12_345] = np.nan
    message = "`tokens` must be finite, got nan at index 12345, 0. Replace that entry."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pl.Empirical(tokens)


def test_half_precision_alone_is_computed_in_single() -> None:
    assert pl.Empirical(np.array([[1.0], [2.0]], np.float16)).tokens.dtype == np.float32


def test_a_coordinate_may_always_be_zero() -> None:
    np.testing.assert_array_equal(pl.Rademacher([1.0, 0.0]).cov, [[1.0, 0.0], [0.0, 0.0]])


def _aligned(values: list[float]) -> np.ndarray:
    """Return the values where jax can use a NumPy array's memory as its own: at 64 bytes."""
    memory = np.zeros(8 * len(values) + 64, np.uint8)
    first = -memory.ctypes.data % 64
    array = memory[first : first + 8 * len(values)].view(np.float64)
    array[:] = values
    return array


def test_a_measure_stays_when_the_array_it_was_made_of_changes(x64: None) -> None:
    mean = _aligned([1.0, 2.0])
    measure = pl.Gaussian(mean, EYE)
    mean[:] = 7.0
    np.testing.assert_array_equal(measure.mean, [1.0, 2.0])


def test_an_array_on_a_device_of_its_users_choice_stays_there() -> None:
    mean = jax.device_put(np.array([1, 2]), jax.devices()[0])
    assert pl.Gaussian(mean, EYE).location.committed
    assert not pl.Gaussian([1, 2], EYE).location.committed


def test_other_formats_of_numbers_are_read_as_what_they_hold() -> None:
    for dtype in ("bfloat16", "float16", ">f8", "longdouble", "bool", "uint8", "int64"):
        host = np.array([0, 1], jnp.bfloat16 if dtype == "bfloat16" else dtype)
        location = pl.Gaussian(host, EYE).location
        assert location.dtype == jnp.float32
        np.testing.assert_array_equal(location, [0.0, 1.0])
    assert float(pl.Gaussian([2**40], [[1.0]]).mean[0]) == 2.0**40  # beyond 32 bits


def test_a_new_shape_compiles_nothing() -> None:
    programs = []

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            programs.append((duration_secs, kwargs))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for dtype in (np.float32, np.float64, np.int32):
            pl.Gaussian(np.zeros(23, dtype), np.eye(23))
            pl.SoftmaxAttention(np.zeros((19, 17), dtype), np.zeros((13, 19)))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert programs == []


class Passing(pl.AbstractAttention):
    token_dim = query_dim = output_dim = 1

    def attend(self, prompt, query):
        return prompt.tilted_mean(query)


@pytest.mark.parametrize("dim", [1.0, "1", None, 0, True])
def test_dimensions_are_whole_numbers(monkeypatch, dim):
    sentence = f"must be a whole number of at least 1, got {dim!r}"
    head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    monkeypatch.setattr(Fixed, "dim", dim)
    with pytest.raises(ArgumentError, match=f"^`dim` of Fixed {sentence}"):
        pl.prompt_moments(head, Fixed(), [0.5], 4)
    monkeypatch.setattr(Passing, "output_dim", dim)
    with pytest.raises(ArgumentError, match=f"^`output_dim` of Passing {sentence}"):
        pl.prompt_moments(Passing(), pl.Gaussian([0.0], [[1.0]]), [0.5], 4)


def test_an_attention_must_return_a_vector_of_its_dimension(monkeypatch):
    monkeypatch.setattr(Passing, "output_dim", 2)
    with pytest.raises(
        ArgumentError,
        match=r"^`attend` of Passing must return an array of shape \(2,\), .* got shape \(1,\)",
    ):
        Passing()(pl.Gaussian([0.0], [[1.0]]), jnp.ones(1))


def test_a_user_defined_law_chooses_the_form_of_the_arguments_of_sample():
    class Point(Fixed):
        def sample(self, n, key):  # ty: ignore[lost-keyword-for-regular-parameter]  # a form in use
            return jnp.zeros((n, 1))

    key = jax.random.key(0)
    for call in (lambda: Point().sample(3, key), lambda: Point().sample(n=3, key=key)):
        assert call().shape == (3, 1)
    with pytest.raises(ValueError, match="`length` must be a whole number of at least 0"):
        Point().sample(-1, key)
