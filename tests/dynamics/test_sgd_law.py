"""Sums drawn in law have the law of sums over tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import promptlimit as pl
from promptlimit.tasks.regression import _batch_gradient, _law_sums, _token_sums
from promptlimit.tasks.regression._batch_gradient import RegressionNumbers, questions
from promptlimit.tasks.regression._law_sums import ATTEMPTS, chi_square, law_sums
from promptlimit.tasks.regression._token_sums import prompt_stream, token_sums

TASK = pl.LinearRegression(np.eye(3), noise_variance=0.1, prior_variance=1 / 3)
BATCH = 8192
SCORE = np.array([0.8, -0.3, 0.5, 0.2], np.float32)
VALUE = np.array([0.1, 0.9, -0.4, 0.6], np.float32)


KERNELS = ("softmax", "linear")


@functools.cache
def program(sums, length: int):
    """Both sums of a softmax and of a linear head, compiled once for all directions."""
    prompts = prompt_stream(4, (length,), BATCH, [jax.random.key(sums is token_sums)])
    return jax.jit(lambda a, b: sums(prompts, KERNELS, jnp.uint32(1), a, b))


def draws(sums, length: int, score=SCORE, value=VALUE) -> dict[str, np.ndarray]:
    """Both sums of heads whose directions are the same for every prompt, [batch, 8] a kernel."""
    a, b = (np.broadcast_to(each, (1, 2, BATCH, 4)) for each in (score, value))
    found = [np.asarray(part)[0] for part in program(sums, length)(a, b)]
    return dict(zip(KERNELS, np.concatenate(found, axis=-1), strict=True))


def moments_agree(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether all first, second and third moments are within five standard errors."""
    left, right = one, other
    for order in (1, 2, 3):
        features = [
            np.stack([np.prod(x[:, list(i)], axis=1) for i in np.ndindex(*(8,) * order)])
            if order < 3
            else (x**3).T
            for x in (left, right)
        ]
        error = np.sqrt(sum(f.var(axis=1) for f in features) / BATCH)
        if (np.abs(features[0].mean(axis=1) - features[1].mean(axis=1)) > 5 * error + 1e-6).any():
            return False
    return True


@pytest.mark.parametrize("length", [1, 12])
def test_sums_in_law_have_the_law_of_sums_over_tokens(length: int) -> None:
    law, tokens = draws(law_sums, length), draws(token_sums, length)
    for kernel in KERNELS:
        assert moments_agree(law[kernel], tokens[kernel])
        rng = np.random.default_rng(0)
        for direction in rng.normal(size=(4, 8)):
            found = stats.ks_2samp(law[kernel] @ direction, tokens[kernel] @ direction)
            assert found.pvalue > 1e-3 / 24  # pyright: ignore[reportAttributeAccessIssue]


def test_a_wrong_direction_is_noticed() -> None:
    law, tokens = draws(law_sums, 12, value=1.1 * VALUE), draws(token_sums, 12)
    assert not any(moments_agree(law[kernel], tokens[kernel]) for kernel in KERNELS)


@pytest.mark.parametrize(
    ("score", "value"), [(0 * SCORE, VALUE), (SCORE, 2 * SCORE), (SCORE, 0 * VALUE)]
)
def test_degenerate_directions_are_no_exception(score: np.ndarray, value: np.ndarray) -> None:
    law, tokens = (draws(sums, 12, score, value) for sums in (law_sums, token_sums))
    assert all(moments_agree(law[kernel], tokens[kernel]) for kernel in KERNELS)


def test_chi_squares_have_their_law() -> None:
    degrees = (1, 2, 3, 40, 1000)
    words = np.stack([jax.random.key_data(jax.random.key(each)) for each in degrees])

    @jax.jit
    def all_of_them(words):
        return [
            chi_square(each, 20_000, (key[0], key[1]), jnp.uint32(0), 0)
            for each, key in zip(degrees, words, strict=True)
        ]

    for each, found in zip(degrees, all_of_them(words), strict=True):
        assert stats.kstest(np.asarray(found), stats.chi2(each).cdf).pvalue > 1e-4  # pyright: ignore[reportAttributeAccessIssue]
    assert ATTEMPTS * np.log10(0.05) < -10


def test_no_number_is_drawn_twice_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, step = prompt_stream(4, (3,), 2, [jax.random.key(0)]), jnp.uint32(0)
    drawn = [np.arange(prompts.pairs * 3 * 2)]  # the tokens

    def noted(key, step, index):
        drawn.append(np.asarray(index).ravel())
        return jnp.zeros(index.shape, jnp.complex64)

    def noted_words(key, counter):
        drawn.append(np.asarray(counter[1]).ravel())
        return counter

    for module in (_batch_gradient, _law_sums, _token_sums):
        monkeypatch.setattr(module, "normal_pairs", noted)
    monkeypatch.setattr(_law_sums, "threefry", noted_words)
    questions(RegressionNumbers.of(TASK), prompts, step)
    _law_sums._normal_vectors(prompts, step)
    _law_sums._bartlett_diagonal(prompts, step)
    assert len(drawn) == 7  # tokens, questions, remainders, and twice two for the chi squares
    numbers = np.concatenate(drawn)
    assert np.unique(numbers).size == numbers.size
