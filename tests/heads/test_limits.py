"""Heads and their limits: the weighings against the library's own measures, and Gaussian tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.heads import Head
from promptlimit.heads import _weighing as weighing
from promptlimit.heads._limits import Limits, PerHead, layer_sums
from promptlimit.heads._measure import query_rows
from promptlimit.heads._model import LayerHeads
from promptlimit.heads._prediction import GRID, prediction
from promptlimit.heads._weighing import _squared_distances, clusters_of, sinks_of
from promptlimit.measures import full_precision


def random_head(*, causal: bool, length: int = 24) -> Head:
    rng = np.random.default_rng(3)
    queries, keys = rng.normal(size=(2, length, 3))
    keys[::3] += 2.0
    values = rng.normal(size=(length, 2)) + keys[:, :2]
    return Head(queries, keys, values, scale=0.7, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
def test_every_limit_is_attention_on_the_measure_it_names(causal: bool) -> None:
    head = random_head(causal=causal)
    members = clusters_of(head.queries, head.keys, 3, seed=5)
    rows = [4, 11, 23]
    scores = jnp.float32(head.scale) * jnp.asarray(head.queries @ head.keys.T)
    inside = weighing.inside_of(jnp.arange(24), 24, causal=causal)
    weights = {
        "tokens": weighing.softmax_weights(scores, inside),
        "gaussian": weighing.gaussian_weights(scores, inside),
        "mixture": weighing.mixture_weights(scores, inside, members),
        "sinks": weighing.mixture_weights(
            scores, inside, sinks_of(head.queries, head.keys, head.scale, 2)
        ),
    }
    for row in rows:
        position = row if causal else None
        with jax.enable_x64(True):
            prompts = {
                "tokens": head.tokens(position),
                "gaussian": head.gaussian(position),
                "mixture": head.mixture(3, seed=5, position=position),
                "sinks": head.with_sinks(2, position=position),
            }
            query = head.queries[row].astype(np.float64)
            answers = {name: head.attention(prompt, query) for name, prompt in prompts.items()}
        for name, expected in answers.items():
            found = np.asarray(weights[name])[row] @ head.values
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(
            head.outputs()[row],
            np.asarray(weights["tokens"])[row] @ head.values,
            rtol=1e-5,
            atol=1e-6,
        )


def test_blocks_of_queries_change_nothing() -> None:
    rng = np.random.default_rng(0)
    queries, keys = rng.normal(size=(2, 1100, 2)).astype(np.float32)

    @full_precision
    def rows(part: jax.Array, positions: jax.Array) -> jax.Array:
        inside = weighing.inside_of(positions, 1100, causal=True)
        return weighing.softmax_weights(part @ keys.T, inside) @ keys

    whole = rows(jnp.asarray(queries), jnp.arange(1100))
    np.testing.assert_allclose(weighing.in_blocks(rows, jnp.asarray(queries)), whole, atol=1e-6)


def test_clusters_find_groups_that_queries_can_tell_apart() -> None:
    rng = np.random.default_rng(1)
    group = rng.integers(3, size=90)
    keys = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])[group] + 0.1 * rng.normal(size=(90, 2))
    found = np.asarray(clusters_of(rng.normal(size=(50, 2)), keys, 3, seed=0)).argmax(axis=1)
    assert len({(a, b) for a, b in zip(group, found, strict=True)}) == 3
    blind = np.array([[0.0, 1.0], [0.0, -1.0]])
    halves = np.asarray(clusters_of(blind, keys, 2, seed=0)).argmax(axis=1)
    assert len({(a == 2, b) for a, b in zip(group, halves, strict=True)}) == 2


@pytest.mark.parametrize(("shortest", "tolerance"), [(8, 2e-3), (64, 5e-5)])
def test_tables_agree_with_the_engine(shortest: int, tolerance: float) -> None:
    table = prediction(shortest, 64)
    rng = np.random.default_rng(2)
    squared = rng.uniform(0.0, 40.0, 12).astype(np.float32)
    length = rng.integers(shortest, 65, 12)
    found = table.at_own_length(jnp.asarray(squared), jnp.asarray(length, jnp.float32))
    exact = pl.weight_statistics(np.sqrt(squared.astype(np.float64)), length)
    np.testing.assert_allclose(found.participation, exact.participation, rtol=tolerance)
    np.testing.assert_allclose(found.score_error, exact.score_error, rtol=tolerance)
    sigma = np.sqrt(squared.astype(np.float64))
    partition = pl.length_statistics(sigma, length).log_partition
    growth = 2.0 * (partition - np.log(length)) / sigma**2
    np.testing.assert_allclose(found.growth, growth, rtol=tolerance)
    at_grid = table.at_grid(squared[:2])
    exact = pl.weight_statistics(np.sqrt(squared[:2].astype(np.float64)), np.array(GRID)[:, None])
    np.testing.assert_allclose(at_grid[0], exact.participation, rtol=1e-3)
    np.testing.assert_allclose(at_grid[1], exact.score_error, rtol=1e-3)


@functools.cache
def sums_over_gaussian_tokens(causal: bool) -> tuple[LayerHeads, dict]:
    """Return heads over independent Gaussian tokens, and their sums with the tokens' true limit."""
    heads, length = 400, 64
    rng = np.random.default_rng(7)
    root = rng.normal(size=(5, 5)) / np.sqrt(5)
    tokens = rng.normal(size=(heads, length, 5)) @ root.T + np.array([0.5, 0.0, 1.0, 2.0, -1.0])
    queries = rng.normal(size=(heads, length, 3)) * np.array([0.6, 0.4, 0.4])
    maps = [(root @ root.T)[3:, :3], np.array([2.0, -1.0])]
    maps = [np.tile(part[None], (heads, *(1,) * part.ndim)) for part in maps]
    queries, keys, values, matrix, shift = (
        jnp.asarray(a, jnp.float32) for a in (queries, tokens[..., :3], tokens[..., 3:], *maps)
    )
    layer = LayerHeads(queries, keys, values)
    given = PerHead(matrix, shift, jax.random.split(jax.random.key(0), heads))
    table = prediction(8 if causal else 64, 64)
    positions = np.arange(7 if causal else 0, length)
    lengths = positions + 1 if causal else np.full(length, length)
    rows = query_rows(layer, np.ones(heads), positions, table, Limits(causal, 2, 2), given)
    return layer, layer_sums(rows, np.asarray(queries)[:, positions], lengths, table)


@pytest.mark.parametrize("causal", [True, False])
def test_gaussian_tokens_behave_as_predicted(causal: bool) -> None:
    _, sums = sums_over_gaussian_tokens(causal)
    scores, errors = sums["means"], sums["errors"]

    def close(measured: np.ndarray, predicted: np.ndarray, bias: float) -> None:
        difference = measured - predicted
        error = difference.std() / np.sqrt(len(difference))
        size = predicted.mean()
        assert abs(difference.mean()) < 4 * error + bias * size, (difference.mean(), error)
        assert error < 0.05 * size

    # Sharpness is taken from the sample here, which shifts both predictions by a few per cent.
    close(scores["participation"], scores["participation_predicted"], 0.03 if not causal else 0.08)
    close(errors["corpus"], sums["predicted_error"], 0.05 if not causal else 0.12)
    assert errors["mixture"].mean() < errors["uniform"].mean()
    assert abs(scores["kurtosis"].mean()) < 0.35


def test_the_predicted_error_is_that_of_prompt_moments() -> None:
    layer, sums = sums_over_gaussian_tokens(causal=False)
    head = Head(*(np.asarray(part[0]) for part in layer), scale=1.0)
    with jax.enable_x64(True):
        law = head.gaussian()
        exact = sum(
            float(pl.prompt_moments(head.attention, law, query, 64).mse)
            for query in head.queries.astype(np.float64)
        )
    assert float(sums["predicted_error"][0]) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        (([[1.0]], [[1.0, 2.0]], [[1.0]]), {},
         "`keys` must have the 1 columns of `queries`, got 2."),
        (([[1.0]], [[1.0]], [[1.0], [2.0]]), {},
         "`values` must have one row for each of the 1 keys, got 2."),
        (([1.0], [[1.0]], [[1.0]]), {},
         r"`queries` must be a matrix, one row per token, got shape \(1,\)."),
        (([[np.nan]], [[1.0]], [[1.0]]), {}, "`queries` must be finite, got nan."),
        (([["a"]], [[1.0]], [[1.0]]), {}, "`queries` must be a matrix of numbers, got list."),
        (([[1.0]], [[1.0]], [[1.0]]), {"scale": -1.0}, "`scale` must be positive, got -1.0."),
        (
            ([[1.0]], [[1.0], [2.0]], [[1.0], [2.0]]), {"causal": True},
            "`queries` must be as many as the 2 keys of a causal head, got 1.",
        ),
    ],
)  # fmt: skip
def test_heads_by_hand_are_checked(arrays: tuple, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Head(*arrays, **options)


class Tensor:
    """A tensor of PyTorch that NumPy cannot read, with the errors that PyTorch raises."""

    def __init__(self, dtype: str, error: Exception):
        self.dtype, self.device, self.error = dtype, "cpu", error
        self.requires_grad = isinstance(error, RuntimeError)

    def detach(self) -> "Tensor":
        return self

    def __array__(self, dtype: object = None) -> np.ndarray:
        raise self.error


@pytest.mark.parametrize(
    ("tensor", "what"),
    [
        (
            Tensor("torch.bfloat16", TypeError("Got unsupported ScalarType BFloat16")),
            "dtype torch.bfloat16, device cpu",
        ),
        (
            Tensor(
                "torch.float32", RuntimeError("Can't call numpy() on Tensor that requires grad")
            ),
            "dtype torch.float32, device cpu, requires_grad True",
        ),
    ],
)
def test_tensors_that_numpy_cannot_read_get_a_sentence(tensor: Tensor, what: str) -> None:
    message = (
        rf" must be an array that NumPy can read, got a tensor \({what}\)\. "
        r"Pass tensor\.detach\(\)\.float\(\)\.cpu\(\)\.$"
    )
    with pytest.raises(ValueError, match=f"^`keys`{message}"):
        Head([[1.0]], tensor, [[1.0]])
    with pytest.raises(ValueError, match=f"^`key_query`{message}"):
        pl.SoftmaxAttention(tensor, [[1.0]])


def test_a_causal_prompt_needs_its_end() -> None:
    head = random_head(causal=True)
    with pytest.raises(ValueError, match="`position` must be given for a causal head, got None"):
        head.gaussian()
    with pytest.raises(ValueError, match="`position` must be from 0 to 23, got 24"):
        head.tokens(24)
    with pytest.raises(
        ValueError, match="`clusters` must be from 1 to the number of tokens, 24, got 25"
    ):
        head.mixture(25, position=3)


def test_sinks_are_the_keys_that_queries_prefer() -> None:
    rng = np.random.default_rng(4)
    queries, keys = rng.normal(size=(40, 2)) + np.array([2.0, 0.0]), 0.1 * rng.normal(size=(30, 2))
    keys[17], keys[3] = (3.0, 0.0), (-3.0, 0.0)
    assert np.asarray(sinks_of(queries, keys, 1.0, 1))[:, 0].argmax() == 17
    with pytest.raises(
        ValueError, match="`sinks` must be at least 0 and below the number of tokens, 30, got 30"
    ):
        sinks_of(queries, keys, 1.0, 30)


def test_sinks_are_the_keys_that_attract_most_at_the_scale_of_the_head() -> None:
    members = sinks_of(np.array([[0.0], [2.0]]), np.array([[0.125], [-0.875]]), 2.0, 1)
    np.testing.assert_array_equal(members[:, 0], [1.0, 0.0])


def test_squared_distances_are_those_of_differences() -> None:
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(7, 3)), rng.normal(size=(4, 3))
    direct = ((points[:, None] - centres[None]) ** 2).sum(axis=-1)
    found = _squared_distances(*(jnp.asarray(rows, jnp.float32) for rows in (points, centres)))
    np.testing.assert_allclose(found, direct, rtol=1e-5)
    same = _squared_distances(*(jnp.asarray(points, jnp.float32),) * 2)
    np.testing.assert_allclose(np.diag(same), 0.0, atol=1e-5)
    assert (np.asarray(same) >= 0.0).all()
