"""Log-partition function, entropy and fixed weights: mpmath, identities, enumeration, sampling."""

import dataclasses
import itertools
import json
import math
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import promptlimit as pl
from promptlimit.errors import AccuracyError
from promptlimit.lengths import _length_statistics as engine

REFERENCE = json.loads(
    pathlib.Path(__file__).with_name("length_statistics_reference.json").read_text("utf-8")
)
NAMES = (
    "log_partition",
    "log_partition_variance",
    "entropy",
    "entropy_variance",
    "participation",
)


@pytest.mark.parametrize(
    "entry", REFERENCE, ids=lambda e: "-".join([e["sharpness"], e["length"], *e["fixed"]])
)
def test_agrees_with_the_stored_digits_of_mpmath(entry):
    fixed = [float(score) for score in entry["fixed"]]
    statistics = pl.length_statistics(
        float(entry["sharpness"]), float(entry["length"]), fixed_scores=fixed
    )
    for name in NAMES:
        away = abs(getattr(statistics, name) - float(entry[name]))
        assert away <= 20 * statistics.errors[name] + 1e-12 * abs(float(entry[name])), name
    weights = [float(entry[f"fixed_{index}"]) for index in range(len(fixed))]
    assert_allclose(statistics.fixed_weights, weights, rtol=1e-12)
    assert statistics.error == statistics.errors["entropy"]
    assert statistics.variance_relative_error < 1e-10


def test_the_table_of_anchors_is_in_the_reference():
    """Values known beforehand to 14 digits: E ln Z, Var ln Z, E S_2, E H, Var H at (2, 1000)."""
    anchors = (
        8.8883265833250,
        0.035438239515375,
        0.029034300559851,
        5.0044637855644,
        0.14423499961414,
    )
    statistics = pl.length_statistics(2.0, 1000)
    order = (0, 1, 4, 2, 3)
    assert_allclose([getattr(statistics, NAMES[i]) for i in order], anchors, rtol=3e-13)
    needle = pl.length_statistics(4.0, [10, 1000], fixed_scores=[[8.0], [14.0]])
    assert_allclose(needle.fixed_weights[:, 0], [0.71644804036294, 0.51983522321612], rtol=1e-13)


def test_it_agrees_with_the_weight_statistics_and_with_derivatives_in_the_sharpness():
    r"""$dE\ln Z/d\sigma=\sigma(1-ES_2)$; $d\mathrm{Var}\ln Z/d\sigma=2\mathrm{Cov}(\ln Z,A)$."""
    h, lengths = 1e-3, np.array([2, 50, 1e6, 1e12])
    for sigma in (0.4, 1.7, 9.0, 38.0):
        near = pl.length_statistics(np.array([-2, -1, 0, 1, 2])[:, None] * h + sigma, lengths)
        weights = pl.weight_statistics(sigma, lengths)
        assert_allclose(near.participation[2], weights.participation, rtol=1e-12)

        def slope(rows: np.ndarray) -> np.ndarray:
            return (8 * (rows[3] - rows[1]) - (rows[4] - rows[0])) / (12 * h)

        assert_allclose(slope(near.log_partition), weights.mean_score, rtol=1e-9)
        # Var H = Var ln Z + Var(sigma A) - 2 sigma Cov(ln Z, A)
        energy = sigma**2 * (weights.score_error - (sigma * weights.participation) ** 2)
        cov = (near.log_partition_variance + energy - near.entropy_variance)[2] / (2 * sigma)
        scale = np.sqrt(near.log_partition_variance[2] * energy) / sigma
        gap = np.abs(slope(near.log_partition_variance) - 2 * cov) / scale
        assert (gap < 1e-7).all(), sigma


def test_long_prompts_follow_the_expansion_in_one_over_the_length():
    sigma, length = np.array([0.3, 1.0, 1.5]), 1e6
    q = np.exp(sigma**2)
    statistics = pl.length_statistics(sigma, length)
    corrections = length * (statistics.entropy - math.log(length) + sigma**2 / 2)
    assert_allclose(corrections, sigma**2 * q - (q - 1) / 2, rtol=1e-3)
    assert_allclose(statistics.log_partition_variance * length, q - 1, rtol=1e-4)
    variance = q * (1 - sigma**2 + sigma**4) - 1
    assert_allclose(statistics.entropy_variance * length, variance, rtol=1e-2)
    longer = pl.length_statistics(sigma, 1e12)
    assert_allclose(longer.log_partition_variance * 1e12, q - 1, rtol=1e-9)
    assert_allclose(longer.entropy_variance * 1e12, variance, rtol=1e-9)


def test_small_sharpness_keeps_every_digit_of_the_variance_of_the_entropy():
    lengths = np.array([2.0, 30.0, 1e12])
    tiny = pl.length_statistics(1e-7, lengths).entropy_variance
    assert_allclose(tiny, 1e-28 * (lengths - 1) / (2 * lengths**2), rtol=3e-11)
    across = pl.length_statistics(np.array([0.0699999999, 0.0700000001])[:, None], lengths)
    ratio = across.entropy_variance[1] / across.entropy_variance[0]
    assert_allclose(ratio, (0.0700000001 / 0.0699999999) ** 4, rtol=1e-10)
    # with a token of weight 1/3 the entropy changes by -p_l (s_l - R) per unit of a free score
    beside = pl.length_statistics(1e-6, 10, fixed_scores=[math.log(5.0)]).entropy_variance
    assert_allclose(beside, 1e-12 * 10 * (math.log(5.0) / 3 / 15) ** 2, rtol=1e-9)


def simulated(draw, fixed, prompts: int, seed: int = 3) -> dict[str, tuple[float, float]]:
    """Return means with standard errors over prompts, by plain NumPy."""
    scores = draw(np.random.default_rng(seed))
    scores = np.concatenate([scores, np.broadcast_to(fixed, (prompts, len(fixed)))], axis=1)
    log_z = np.logaddexp.reduce(scores, axis=1)
    p = np.exp(scores - log_z[:, None])
    entropy = -(p * np.log(p)).sum(axis=1)
    columns = {
        "log_partition": log_z,
        "entropy": entropy,
        "participation": (p**2).sum(axis=1),
        "log_partition_variance": (log_z - log_z.mean()) ** 2,
        "entropy_variance": (entropy - entropy.mean()) ** 2,
    }
    columns |= {f"fixed_{i}": p[:, i - len(fixed)] for i in range(len(fixed))}
    return {name: (c.mean(), c.std() / math.sqrt(prompts)) for name, c in columns.items()}


def within(statistics, expected: dict[str, tuple[float, float]], errors: float = 4.0) -> None:
    for name, (mean, error) in expected.items():
        index = name.partition("fixed_")[2]
        value = statistics.fixed_weights[int(index)] if index else getattr(statistics, name)
        assert abs(value - mean) < errors * error, name


class TwoSidedExponential(pl.AbstractMeasure):
    """A user-defined law that has only a transform."""

    scale: jax.Array

    @property
    def dim(self) -> int:
        return 1

    def log_laplace(self, tilt):
        return -jnp.sum(jnp.log1p(-((self.scale * tilt) ** 2)))

    def sample(self, length, *, key):
        return self.scale * jax.random.laplace(key, (length, 1))


N = 40_000
MIXED = pl.lengths.GaussianScores([0.5, 1.5, 0.0], means=[0.0, 1.0, -1.0], weights=[0.5, 0.3, 0.2])


def mixed(rng: np.random.Generator) -> np.ndarray:
    part = rng.choice(3, (N, 20), p=[0.5, 0.3, 0.2])
    noise = rng.normal(size=part.shape)
    return np.array([0.0, 1.0, -1.0])[part] + np.array([0.5, 1.5, 0.0])[part] * noise


@pytest.mark.parametrize(
    ("law", "draw"),
    [
        (1.2, lambda rng: 1.2 * rng.normal(size=(N, 20))),
        (MIXED, mixed),
        (
            pl.lengths.ListedScores([0.0, 2.0, -1.0]),
            lambda rng: rng.choice([0.0, 2.0, -1.0], (N, 20)),
        ),
    ],
    ids=["Gaussian", "mixture", "list"],
)
def test_simulated_prompts_with_sinks_agree_in_all_statistics(law, draw):
    statistics = pl.length_statistics(law, 20, fixed_scores=[2.5, -1.0])
    within(statistics, simulated(draw, [2.5, -1.0], N))


def test_draws_from_a_list_are_enumerated():
    scores, weights, fixed = np.array([0.3, 1001.0, -2.0]), np.array([0.5, 0.2, 0.3]), [1000.0]
    statistics = pl.length_statistics(
        pl.lengths.ListedScores(scores, weights), 3, fixed_scores=fixed
    )
    moments = np.zeros(6)
    for places in itertools.product(range(3), repeat=3):
        prompt = np.append(scores[list(places)], fixed) - 1000.0
        log_z = np.logaddexp.reduce(prompt)
        p = np.exp(prompt - log_z)
        entropy = log_z - p @ prompt
        share = weights[list(places)].prod()
        row = [log_z, log_z**2, entropy, entropy**2, p @ p, p[-1]]
        moments += share * np.array(row)
    log_z, second, entropy, square, participation, weight = moments
    assert_allclose(statistics.log_partition, log_z + 1000.0, rtol=1e-14)
    assert_allclose(statistics.log_partition_variance, second - log_z**2, rtol=1e-11)
    assert_allclose(statistics.entropy, entropy, rtol=1e-12)
    assert_allclose(statistics.entropy_variance, square - entropy**2, rtol=1e-11)
    assert_allclose(statistics.participation, participation, rtol=1e-13)
    assert_allclose(statistics.fixed_weights, [weight], rtol=1e-13)


def test_any_law_goes_along_its_ray_and_a_gaussian_there_is_the_gaussian():
    """Laws without `gaussian_parts`: two-sided exponential tokens, and a Gaussian."""

    class Disguised(pl.AbstractMeasure):
        """A standard Gaussian without `gaussian_parts`."""

        @property
        def dim(self) -> int:
            return 1

        def log_laplace(self, tilt):
            return 0.5 * jnp.sum(tilt**2)

        def sample(self, length, *, key):
            return jax.random.normal(key, (length, 1))

    lengths, fixed = np.array([2.0, 100.0, 1e12]), [1.0, 3.0]
    ray = pl.length_statistics(
        pl.lengths.TokenScores(Disguised(), [1.3]), lengths, fixed_scores=fixed
    )
    exact = pl.length_statistics(1.3, lengths, fixed_scores=fixed)
    for name in (*NAMES, "fixed_weights"):
        assert_allclose(getattr(ray, name), getattr(exact, name), rtol=1e-10, err_msg=name)
    assert (ray.variance_relative_error < 1e-9).all()
    law = pl.lengths.TokenScores(TwoSidedExponential(jnp.array(0.4)), [1.0])
    statistics = pl.length_statistics(law, 20, fixed_scores=[1.0])
    draws = simulated(lambda rng: rng.laplace(scale=0.4, size=(N, 20)), [1.0], N)
    within(statistics, draws)


def test_tokens_that_know_their_parts_are_gaussians_and_lists():
    mixture = pl.Mixture(
        [0.25, 0.75], [pl.Gaussian([0.0, 1.0], np.eye(2)), pl.Gaussian([1.0, 0.0], 4 * np.eye(2))]
    )
    along = pl.length_statistics(pl.lengths.TokenScores(mixture, [0.6, 0.8]), [2, 1e6])
    by_hand = pl.lengths.GaussianScores([1.0, 2.0], means=[0.8, 0.6], weights=[0.25, 0.75])
    expected = pl.length_statistics(by_hand, [2, 1e6])
    tokens = np.random.default_rng(0).normal(size=(30, 2))
    with jax.enable_x64(True):
        listed = pl.length_statistics(
            pl.lengths.TokenScores(pl.Empirical(tokens), [1.0, 2.0]), [1, 7]
        )
    plain = pl.length_statistics(pl.lengths.ListedScores(tokens @ [1.0, 2.0]), [1, 7])
    for name in NAMES:
        assert_allclose(getattr(along, name), getattr(expected, name), rtol=1e-13)
        assert_allclose(getattr(listed, name), getattr(plain, name), rtol=1e-12, atol=1e-15)


def test_a_mixture_of_one_law_with_itself_is_that_law():
    twice = pl.lengths.GaussianScores(
        [2.0, 2.0, 0.4], means=[5.0, 5.0, -400.0], weights=[0.5, 0.5 - 1e-30, 1e-30]
    )
    one, moved = pl.length_statistics(2.0, [2, 1e9]), pl.length_statistics(twice, [2, 1e9])
    assert_allclose(moved.log_partition, one.log_partition + 5.0, rtol=1e-13)
    for name in NAMES[1:]:
        assert_allclose(getattr(moved, name), getattr(one, name), rtol=1e-12)


def test_weights_of_listed_scores_may_miss_sum_one_by_rounding():
    weights = np.full(10, 0.1 * (1.0 + 1e-12))
    scores = np.linspace(-1.0, 1.0, 10)
    one, other = (
        pl.length_statistics(pl.lengths.ListedScores(scores, shares), [3, 1e4])
        for shares in (None, weights)
    )
    np.testing.assert_allclose(one.entropy, other.entropy, rtol=1e-11)


def test_mixtures_are_long_lists_even_where_some_prompts_have_low_scores_alone():
    weights, means, sharpness = [0.37, 0.54, 0.09], [-4.5, 5.3, -0.3], [0.08, 0.6, 1.7]
    lists = []
    for w, m, sigma in zip(weights, means, sharpness, strict=True):
        g = np.arange(-9.5, 9.5 + 2 * sigma, min(0.15, 0.1 / sigma))
        density = np.exp(-0.5 * g**2)
        lists.append((w * density / density.sum(), m + sigma * g))
    shares, scores = (np.concatenate(column) for column in zip(*lists, strict=True))
    listed = pl.lengths.ListedScores(scores, shares / shares.sum())
    mixed = pl.lengths.GaussianScores(sharpness, means, weights)
    one, other = (
        pl.length_statistics(law, [1, 2, 30, 1e5, 1e12], fixed_scores=[1.9])
        for law in (listed, mixed)
    )
    for name in (*NAMES, "fixed_weights"):
        assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-11, err_msg=name)


def test_ends_are_closed_forms():
    alone = pl.length_statistics([0.0, 3.0], 1)
    assert_allclose(alone.log_partition_variance, [0.0, 9.0])
    assert (alone.entropy == 0).all()
    assert (alone.participation == 1).all()
    flat = pl.length_statistics(0.0, 10, fixed_scores=[math.log(5.0)])
    assert_allclose(flat.log_partition, math.log(15.0))
    assert_allclose(flat.fixed_weights, [1 / 3])
    assert_allclose(flat.entropy, -10 / 15 * math.log(1 / 15) - math.log(1 / 3) / 3)
    assert_allclose(flat.participation, 10 / 225 + 1 / 9)
    infinite = pl.length_statistics([1.0, 2.0], math.inf, fixed_scores=[3.0])
    assert infinite.kind == "limit"
    assert np.isinf(infinite.entropy).all()
    assert (infinite.fixed_weights == 0).all()
    assert (infinite.effective_tokens == np.inf).all()
    narrow = pl.length_statistics(1e-6, 10, fixed_scores=[math.log(5.0)])
    assert_allclose(narrow.entropy, flat.entropy, rtol=1e-11)
    far = pl.length_statistics(1.0, 2, fixed_scores=[1000.0, -3.0])
    assert_allclose(far.fixed_weights, [1.0, 0.0], atol=1e-15)
    assert far.entropy >= 0


def test_both_effective_numbers_of_tokens_are_named_and_differ():
    head = pl.length_statistics(2.0, 8192)
    assert_allclose([head.entropy, head.effective_tokens], [7.029, 186], rtol=3e-3)
    assert_allclose(head.entropy_tokens, np.exp(head.entropy))
    assert head.value is head.entropy


def test_arguments_broadcast_and_results_are_labelled():
    shaped = pl.length_statistics(
        np.array([[0.5], [2.0]]), [10, 100, 1000], fixed_scores=np.zeros((1, 1, 2))
    )
    assert shaped.entropy.shape == (2, 3)
    assert shaped.fixed_weights.shape == (2, 3, 2)
    one = pl.length_statistics(2.0, 100, fixed_scores=[0.0, 0.0])
    assert_allclose(shaped.entropy[1, 1], one.entropy, rtol=1e-13)
    labelled = pl.length_statistics(1.0, [10, 100]).to_xarray()
    assert labelled["entropy"].dims == ("length",)
    axes = pl.length_statistics(1.0, [10, 100, math.inf]).plot()
    assert axes.get_ylabel() == "entropy H, nats"


def test_length_statistics_load_without_jax():
    code = (
        "import sys, promptlimit as pl; print(pl.length_statistics(1.0, 2).entropy); "
        "pl.inverse_temperature(1.0, 100, margin=5.0, weight=0.3); print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    entropy, loaded = done.stdout.split()
    assert entropy.startswith("0.539500061688")
    assert loaded == "False"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pl.length_statistics([1.0, 41.0], 3),
            "`sharpness` must be between 0 and 40, got 41.0. It is the standard deviation of the "
            "scores, sqrt(t' Gamma t).",
        ),
        (
            lambda: pl.length_statistics(1.0, 0),
            "`lengths` must be a whole number from 1 to 1e30 or math.inf, got 0.0. It counts the "
            "tokens of a prompt.",
        ),
        (
            lambda: pl.length_statistics(1.0, 3, fixed_scores=[math.inf]),
            "`fixed_scores` must be between -2000 and 2000, got inf. They are relative to "
            "the mean of the free scores.",
        ),
        (
            lambda: pl.length_statistics([1.0, 2.0], [1, 2, 3]),
            "`sharpness` must broadcast with `lengths` and `fixed_scores`, without its last axis, "
            "got shapes (2,), (3,) and (0,).",
        ),
        (
            lambda: pl.lengths.ListedScores([0.0, 3000.0]),
            "`scores` must be within 2000 of each other, got a range of 3000. Lower the inverse "
            "temperature.",
        ),
        (
            lambda: pl.lengths.ListedScores([1.0, math.nan]),
            "`scores` must be finite, got nan. Leave it out.",
        ),
        (
            lambda: pl.lengths.GaussianScores([1.0, 2.0], weights=[0.5, 0.6]),
            "`weights` must be 2 positive numbers of sum one, got 2 of sum 1.1. Divide them by "
            "their sum.",
        ),
        (
            lambda: pl.lengths.GaussianScores(-1.0),
            "`sharpness` must be between 0 and 40, got -1.0. It is the standard deviation of the "
            "scores, sqrt(t' Gamma t).",
        ),
        (
            lambda: pl.lengths.entropy_prediction(np.zeros(10), 100),
            "`scores` must be at least 32 scores, got 10. Take more keys at the query.",
        ),
        (
            lambda: pl.lengths.entropy_prediction(np.zeros(100), math.inf),
            "`lengths` must be finite, got inf. The entropy grows as ln L.",
        ),
        (
            lambda: pl.length_statistics(np.array([1.0 + 1.0j]), 3),
            "`sharpness` must hold real numbers, got array([1.+1.j]). Pass a number, "
            "GaussianScores, "
            "ListedScores or TokenScores.",
        ),
        (
            lambda: pl.length_statistics(1.0, 3, fixed_scores=np.array([1.0j])),
            "`fixed_scores` must hold real numbers, got array([0.+1.j]). Pass a list of scores.",
        ),
        (
            lambda: pl.lengths.ListedScores(np.array([1.0j])),
            "`scores` must hold real numbers, got array([0.+1.j]).",
        ),
        (
            lambda: pl.lengths.entropy_prediction(np.zeros(100), 9, fixed_scores="ab"),
            "`fixed_scores` must hold real numbers, got 'ab'. Pass a list of scores.",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_in_one_sentence(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_scores_that_hardly_differ_leave_the_first_order_alone():
    r"""To first order $\ln Z$ changes by $p\sigma\sum g$, p the weight of a free token."""
    sigma, length = np.array([1e-300, 1e-100, 1e-18, 1e-12, 1e-8]), 1000
    for fixed in ([], [1.0]):
        moments = pl.length_statistics(sigma, length, fixed_scores=fixed)
        partition = length + np.exp(fixed).sum()
        expected = length * (sigma / partition) ** 2
        assert_allclose(moments.log_partition_variance, expected, rtol=1e-14)
        assert (moments.variance_relative_error < 1e-10).all()


def test_a_needle_that_takes_all_weight_leaves_no_variance():
    sure = pl.length_statistics(0.04, 1000, fixed_scores=[2000.0])
    assert sure.entropy_variance == 0.0
    assert sure.fixed_weights == 1.0


def test_refuses_when_its_own_checks_fail(monkeypatch):
    right = engine.in_window

    def spoiled(*args):
        means = right(*args)
        return dataclasses.replace(means, mass=means.mass * (1 + 1e-9))

    monkeypatch.setattr(engine, "in_window", spoiled)
    with pytest.raises(AccuracyError, match=r"^`length_statistics` must reach a relative error of"):
        pl.length_statistics(1.0, 10)


def test_a_guess_from_a_list_is_within_its_error_of_the_law_behind_it():
    """Over thirty lists of 256 scores, bias and spread agree with the returned errors."""
    rng, lengths = np.random.default_rng(1), np.array([16, 256, 65536])
    truth = pl.length_statistics(1.0, lengths).entropy
    guesses = [pl.lengths.entropy_prediction(rng.normal(size=256), lengths) for _ in range(30)]
    values = np.stack([guess.value for guess in guesses])
    error = np.mean([guess.error for guess in guesses], axis=0)
    assert (np.abs(values.mean(axis=0) - truth) < 3 * error / math.sqrt(30)).all()
    assert_allclose(values.std(axis=0), error, rtol=0.35)
    assert_allclose(
        error, math.sqrt((math.e - 1) / 256), rtol=0.15
    )  # q (1 - sigma^2 + sigma^4) - 1
    naive = np.stack([guess.naive for guess in guesses]).mean(axis=0)
    assert truth[0] - naive[0] > 5 * error[0] / math.sqrt(30)  # the naive rule, downwards
    assert all(guess.trusted and guess.kind == "estimate" for guess in guesses)


def test_the_bias_of_a_guess_is_that_of_leaving_out_each_score():
    scores = np.random.default_rng(4).normal(size=512)

    def naive(some: np.ndarray) -> float:
        p = np.exp(some - np.logaddexp.reduce(some))
        return -float(p @ np.log(p)) - math.log(some.size)

    without = np.mean([naive(np.delete(scores, j)) for j in range(512)])
    guess = pl.lengths.entropy_prediction(scores, [64, 4096])
    assert_allclose(guess.bias, 511 * (without - naive(scores)), rtol=0.05)
    assert_allclose(guess.value + guess.bias, guess.plug_in)
    assert_allclose(guess.naive - np.log([64, 4096]), naive(scores))
    assert pl.lengths.entropy_prediction(scores, 1).value == 0  # one token has no entropy to lose


def test_a_guess_beside_sinks_is_a_jackknife():
    rng = np.random.default_rng(2)
    truth = pl.length_statistics(1.0, 4096, fixed_scores=[6.0]).entropy
    guesses = [
        pl.lengths.entropy_prediction(rng.normal(size=128), 4096, fixed_scores=[6.0])
        for _ in range(8)
    ]
    values = np.array([guess.value for guess in guesses])
    errors = np.array([guess.error for guess in guesses])
    assert abs(values.mean() - truth) < 3 * errors.mean() / math.sqrt(8)
    assert 0.5 < values.std() / errors.mean() < 1.7


def test_the_bias_of_a_guess_beside_sinks_is_that_of_leaving_out_sixteenths():
    """Extrapolated to infinitely many scores, as for a bias proportional to one over the number."""
    scores = np.random.default_rng(5).normal(size=32)
    guess = pl.lengths.entropy_prediction(scores, 100, fixed_scores=[2.0])

    def listed(some: np.ndarray) -> float:
        law = pl.lengths.ListedScores(some)
        return float(pl.length_statistics(law, 100, fixed_scores=[2.0]).entropy)

    without = np.mean([listed(np.delete(scores, [k, k + 16])) for k in range(16)])
    slope = (without - listed(scores)) / (1 / 30 - 1 / 32)  # of value(N) = limit + slope / N
    assert_allclose(guess.bias, slope / 32, rtol=1e-9)
