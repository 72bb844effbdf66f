"""Streams against attention on tokens in memory, and the bits that must not depend on how."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import promptlimit as pl
from promptlimit.errors import InputFileError
from promptlimit.results import StreamedAttention
from promptlimit.streaming import Progress
from promptlimit.streaming._request import active_platform, leaves_per_block, most_blocks
from promptlimit.streaming._sums import LEAF, BlockTree, no_sums
from streaming.plain_sums import plain_attention, plain_sums

DIM = 3
LENGTHS = [1, 2, 4096, 5000, 131072, 200_000]
PLATFORM = active_platform()
BLOCK = leaves_per_block(PLATFORM) * LEAF
NAMES = ("log_sum_exp", "max_score", "max_weight", "participation", "entropy", "mean", "cov")


def _head(kernel: str = "softmax") -> pl.SoftmaxAttention | pl.LinearAttention:
    rng = np.random.default_rng(0)
    matrices = rng.standard_normal((DIM, DIM)), rng.standard_normal((2, DIM))
    with jax.enable_x64(True):
        kinds = {"softmax": pl.SoftmaxAttention, "linear": pl.LinearAttention}
        return kinds[kernel](*(0.4 * matrix for matrix in matrices))


def _tokens(length: int = 300_000) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.standard_normal((length, DIM)) @ np.diag([1.0, 0.3, 2.0]) + np.array([50.0, -3, 0.1])


QUERIES = np.random.default_rng(2).standard_normal((4, DIM))
FEWER = QUERIES[:3]
"""One query fewer, so that linear attention, which adds a tilt, reuses the compiled programs."""


def _same_bits(one: StreamedAttention, other: StreamedAttention) -> bool:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(np.float64, 1e-9), (np.float32, 2e-5)],
)
def test_a_stream_is_attention_on_the_tokens_in_memory(dtype: type, tolerance: float) -> None:
    head, tokens = _head(), _tokens().astype(dtype)
    found = pl.stream(head, tokens, FEWER, LENGTHS, linear=True)
    assert found.lengths.tolist() == [*LENGTHS, len(tokens)]
    assert found.dtype == np.dtype(dtype).name
    matrices = np.asarray(head.key_query), np.asarray(head.value)
    for i, length in enumerate(found.lengths):
        expected = plain_attention(*matrices, tokens[:length].astype(np.float64), FEWER)
        for name, value in expected.items():
            got = getattr(found, name)[i]
            scale = max(1.0, np.abs(value).max()) if name == "entropy" else np.abs(value).max()
            assert np.abs(got - value).max() <= tolerance * max(scale, 1e-300), (name, length)


def test_tokens_far_from_the_first_one_keep_their_digits_in_single_precision() -> None:
    tokens = _tokens(10_000).astype(np.float32)
    tokens[0] += 3000.0  # an outlier, like the token that texts begin with
    tokens[5000:] -= np.float32(1000.0)
    head, queries = _head(), 1e-3 * QUERIES
    found = pl.stream(head, tokens, queries, [4000])
    matrices = np.asarray(head.key_query), np.asarray(head.value)
    for i, length in enumerate(found.lengths):
        expected = plain_attention(*matrices, tokens[:length].astype(np.float64), queries)
        for name in ("mean", "log_sum_exp", "participation"):
            np.testing.assert_allclose(getattr(found, name)[i], expected[name], rtol=1e-5)
        scale = np.abs(expected["cov"]).max()
        assert found.cov is not None
        assert np.abs(found.cov[i] - expected["cov"]).max() < 1e-4 * scale


def test_linear_attention_is_its_own_output() -> None:
    tokens = _tokens(10_000)
    found = pl.stream(_head("linear"), tokens, FEWER)
    assert found.linear_output is not None
    assert np.array_equal(found.output, found.linear_output)
    matrices = [np.asarray(getattr(_head("linear"), name)) for name in ("key_query", "value")]
    expected = plain_attention(matrices[0], matrices[1], tokens, FEWER)["linear_output"]
    np.testing.assert_allclose(found.output[0], expected, rtol=1e-11)


def test_a_prefix_has_the_bits_of_a_prompt_that_ends_there() -> None:
    tokens = _tokens()
    long = pl.stream(_head(), tokens, QUERIES, LENGTHS)
    for i in (2, 3, 4, 5):
        short = pl.stream(_head(), tokens[: LENGTHS[i]], QUERIES)
        assert all(np.array_equal(getattr(short, n)[0], getattr(long, n)[i]) for n in NAMES)


@pytest.mark.parametrize("length", [1, 3, 5, 6, 7])
def test_a_prefix_of_many_blocks_is_summed_as_if_empty_ones_followed_in_any_order(
    length: int,
) -> None:
    rng = np.random.default_rng(length)
    tilts = rng.standard_normal((2, DIM))
    blocks = [plain_sums(rng.standard_normal((50, DIM)), tilts) for _ in range(length + 1)]
    none = no_sums(2, DIM, DIM * (DIM + 1) // 2)
    prefix, whole = BlockTree(), BlockTree()
    for number in range(length):
        prefix.add(number, blocks[number])
    for number in rng.permutation(8).tolist():
        whole.add(number, blocks[number] if number <= length else none)
    (root,) = whole.nodes.values()
    assert all(np.array_equal(x, y) for x, y in zip(prefix.total(blocks[-1]), root, strict=True))


def test_neither_chunks_nor_blocks_nor_files_change_a_bit(tmp_path: Path) -> None:
    tokens, head = _tokens().astype(np.float32), _head()
    np.save(tmp_path / "tokens.npy", tokens)

    def pieces(sizes: list[int]) -> Iterator[np.ndarray]:
        start, turn = 0, 0
        while start < len(tokens):
            yield tokens[start : start + sizes[turn % len(sizes)]]
            start, turn = start + sizes[turn % len(sizes)], turn + 1

    whole = pl.stream(head, tokens, QUERIES, LENGTHS, chunk=1)
    others = [
        pl.stream(head, str(tmp_path / "tokens.npy"), QUERIES, LENGTHS),  # all in one round
        pl.stream(head, pieces([1, 70_000, 4096]), QUERIES, LENGTHS, chunk=2),
        pl.stream(head, pieces([150_000]), QUERIES, LENGTHS, chunk=1),
    ]
    assert all(_same_bits(whole, other) for other in others)


def test_moments_left_out_change_no_others() -> None:
    tokens = _tokens(20_000)
    full, lean = (pl.stream(_head(), tokens, QUERIES, covariance=c) for c in (True, False))
    assert lean.cov is None
    assert lean.linear_output is None
    # Elsewhere a product of other shapes may be added in another order.
    tolerance = 0.0 if PLATFORM == "cpu" else 1e-10
    for name in NAMES[:-1]:
        np.testing.assert_allclose(getattr(full, name), getattr(lean, name), rtol=tolerance)


def test_generated_gaussian_prompts_deviate_from_the_limit_as_the_exact_engine_says() -> None:
    length, prompts = 6000, 24
    mean, cov = np.array([0.5, -1.0, 0.2]), np.diag([1.0, 0.5, 2.0]) + 0.2
    law, head = pl.Gaussian(mean, cov), _head()
    exact = pl.prompt_moments(head, law, QUERIES[0], length)
    drawn = [pl.streaming.Generated(law, length, key=jax.random.key(i)) for i in range(prompts)]
    outputs = np.stack([pl.stream(head, p, QUERIES, chunk=1).output[0, 0] for p in drawn])
    deviation = outputs - exact.mean
    square = np.einsum("pi,ij,pj->p", deviation, np.linalg.inv(exact.cov), deviation)
    error = square.std(ddof=1) / np.sqrt(prompts)
    assert abs(square.mean() - 2.0) < 4 * error  # two outputs
    assert error < 0.5
    of_mean = deviation.mean(axis=0) / np.sqrt(np.diag(exact.cov) / prompts)
    assert np.abs(of_mean).max() < 4


@pytest.mark.parametrize(
    "law",
    [
        pl.UniformCube([1.0, 2.0, 0.5]),
        pl.Mixture(
            [0.3, 0.7],
            [pl.Gaussian(np.ones(3), np.eye(3)), pl.Gaussian(np.zeros(3), 0.1 * np.eye(3))],
        ),
    ],
    ids=["cube", "mixture"],
)
def test_generated_prompts_of_any_measure_reach_its_limit(law: pl.AbstractMeasure) -> None:
    prompt = pl.streaming.Generated(law, 200_000, key=jax.random.key(0))
    found = pl.stream(_head(), prompt, QUERIES)
    for i, query in enumerate(QUERIES):
        spread = np.sqrt(np.diag(np.asarray(found.cov)[0, i]) * found.participation[0, i])
        read = pl.SoftmaxAttention(np.asarray(_head().key_query, np.float32), np.eye(DIM))
        limit = np.asarray(read(law, query), np.float64)
        assert (np.abs(found.mean[0, i] - limit) < 5 * spread + 1e-6).all()


def test_drawn_tokens_far_from_zero_keep_their_digits() -> None:
    far = pl.Gaussian(np.full(3, 1000.0), np.eye(3))
    prompt = pl.streaming.Generated(
        pl.Mixture([0.5, 0.5], [far, far]), 100_000, key=jax.random.key(0)
    )
    found = pl.stream(_head(), prompt, 1e-3 * QUERIES)
    np.testing.assert_allclose(np.asarray(found.cov)[0, 0], np.eye(3), atol=0.03)


def test_generated_tokens_depend_on_key_and_place_alone() -> None:
    law = pl.Gaussian(np.zeros(DIM), np.eye(DIM))

    def read(length: int, seed: int) -> StreamedAttention:
        prompt = pl.streaming.Generated(law, length, key=jax.random.key(seed))
        return pl.stream(_head(), prompt, QUERIES, [70_000], chunk=1)

    long, short = read(200_000, 0), read(70_000, 0)
    assert all(np.array_equal(getattr(long, n)[0], getattr(short, n)[0]) for n in NAMES)
    assert not np.array_equal(read(70_000, 1).mean, short.mean)


def test_watching_counts_tokens_up_to_the_end() -> None:
    seen: list[Progress] = []
    pl.stream(_head(), _tokens().astype(np.float32), QUERIES, chunk=1, watch=seen.append)
    counts = [each.done for each in seen]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 300_000)
    assert seen[0].total == 300_000


def test_lengths_that_an_iterable_never_reaches_give_a_warning() -> None:
    tokens = _tokens(5000)
    with pytest.warns(UserWarning, match=r"ended after 5000 tokens, before the lengths \[6000\]"):
        found = pl.stream(_head(), iter([tokens]), QUERIES, [10, 6000])
    assert found.lengths.tolist() == [10, 5000]


def test_an_iterable_that_ends_with_a_block_is_whole() -> None:
    tokens = _tokens(2 * 131072).astype(np.float32)
    one = pl.stream(_head(), iter([tokens[:0], tokens, tokens[:0]]), QUERIES, chunk=1)
    assert _same_bits(one, pl.stream(_head(), tokens, QUERIES))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": np.ones(3)}, "`queries` must be a matrix"),
        (
            {"queries": np.ones((2, 4))},
            r"`queries` must have shape \[n, 3\], one query per row, got",
        ),
        ({"prompt": np.ones((5, 4))}, "`prompt` must have tokens of dimension 3, .* got 4"),
        ({"prompt": np.ones(5)}, r"`prompt` must have one token per row, got .* shape \[5\]"),
        ({"prompt": np.array([["a"] * 3])}, "`prompt` must contain real numbers, got dtype"),
        ({"prompt": iter([])}, "`prompt` must contain at least one token, got none"),
        ({"prompt": iter([np.ones((0, 3))])}, "`prompt` must contain at least one token"),
        ({"prompt": 3}, "`prompt` must be a `Generated`, an array .* got int"),
        ({"prompt": [np.ones((5, 3)), np.ones((5, 2))]}, r"blocks \[n, 3\], got one of shape"),
        ({"lengths": [5, 5]}, r"`lengths` must increase, got \[5, 5\]. Sort them"),
        ({"lengths": [0]}, "`lengths` must be a whole number from 1 to 8.8e\\+12, got 0"),
        ({"lengths": [101]}, "`lengths` must be at most 100, the length of the prompt, got 101"),
        (
            {"chunk": 0},
            f"`chunk` must be a whole number from 1 to {most_blocks(PLATFORM)}, got 0. It counts",
        ),
        ({"every": 0.0}, "`every` must be positive, got 0.0. It is in seconds"),
    ],
)
def test_bad_input_is_one_sentence(change: dict, message: str) -> None:
    given: dict[str, Any] = {"prompt": _tokens(100), "queries": QUERIES, "lengths": None, **change}
    positional = [given.pop(name) for name in ("prompt", "queries", "lengths")]
    with pytest.raises(ValueError, match=message):
        pl.stream(_head(), *positional, **given)


@pytest.mark.parametrize("collect", [list, iter])
def test_a_report_on_blocks_requires_lengths(collect: Any) -> None:
    head, blocks = pl.SoftmaxAttention([[0.5]], [[1.0]]), [np.ones((5, 1)), np.ones((7, 1))]
    message = "`lengths` must be given for an iterable of blocks, got None for a list"
    with pytest.raises(ValueError, match=message):
        pl.streaming.stream_report(head, collect(blocks), [[1.0]], watch=False)
    report = pl.streaming.stream_report(head, collect(blocks), [[1.0]], [6], watch=False)
    assert report.streamed.lengths.tolist() == [6, 12]


def test_several_heads_are_refused_with_the_way_out() -> None:
    both = pl.MultiHead([_head(), _head()])
    with pytest.raises(ValueError, match="`attention` must be one head, got MultiHead"):
        pl.stream(both, _tokens(10), QUERIES)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nonfinite_tokens_are_named_by_place(bad: float) -> None:
    tokens = _tokens(300_000)
    tokens[200_000, 1] = bad
    with pytest.raises(ValueError, match=_not_finite(200_000, 300_000)):
        pl.stream(_head(), tokens, QUERIES)


@pytest.mark.parametrize("collect", [np.concatenate, iter], ids=["array", "iterator"])
def test_a_first_token_that_is_not_finite_is_named_alone(collect: Any) -> None:
    blocks = [_tokens(5), _tokens(7)]
    blocks[0][0, 2] = np.nan
    message = "finite tokens with finite scores, but some of the tokens 0 to 0 are not. Remove"
    with pytest.raises(ValueError, match=message):
        pl.stream(_head(), collect(blocks), QUERIES)


def _not_finite(place: int, length: int) -> str:
    """Return the expected message for a token, which names its block."""
    first = place // BLOCK * BLOCK
    last = min(first + BLOCK, length) - 1
    start = "finite tokens with finite scores, but some of the tokens"
    return f"{start} {first} to {last} are not. Remove"


def test_block_sizes_and_their_limits() -> None:
    assert leaves_per_block("cpu") * LEAF == 131072
    assert (most_blocks("cpu"), most_blocks("gpu")) == (16383, 127)


@pytest.mark.parametrize("length", [200_000, 131072 + 16 * LEAF], ids=["cut", "whole leaves"])
def test_tokens_whose_scores_are_all_too_low_for_their_precision_are_named(length: int) -> None:
    tokens = np.zeros((length, DIM), np.float32)
    tokens[131072:, 0] = -1e30
    head = pl.SoftmaxAttention(1e10 * np.eye(DIM), np.eye(DIM))
    with pytest.raises(ValueError, match=_not_finite(131072, length)):
        pl.stream(head, tokens, [[1.0, 0.0, 0.0]] * len(QUERIES))


def test_tokens_whose_squares_single_precision_cannot_hold_are_read_in_any_number() -> None:
    tokens = (1e20 + 1e16 * _tokens(LEAF + 100)).astype(np.float32)
    head, queries = _head(), 1e-17 * QUERIES
    found = pl.stream(head, tokens, queries)
    matrices = np.asarray(head.key_query), np.asarray(head.value)
    expected = plain_attention(*matrices, tokens.astype(np.float64), queries)
    np.testing.assert_allclose(found.log_sum_exp[0], expected["log_sum_exp"], rtol=1e-5)
    assert np.abs(np.asarray(found.cov)[0] - expected["cov"]).max() < 1e-4 * expected["cov"].max()


def test_files_other_than_arrays_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.ones((3, 3)))
    np.save(tmp_path / "objects.npy", np.array([None, 1], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("text")
    for name in ("two.npz", "objects.npy", "text.npy", "missing.npy"):
        with pytest.raises(InputFileError, match="`prompt` must be") as refusal:
            pl.stream(_head(), tmp_path / name, QUERIES)
        assert "allow_pickle" not in str(refusal.value)


def test_the_numbers_go_to_json() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = pl.stream(_head(), _tokens(100), QUERIES, covariance=False).to_dict()
    assert found["cov"] is None
    assert found["lengths"] == [100]
