"""`check_law` accepts every law of the library and refuses laws whose methods disagree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import zeta

import promptlimit as pl
from measures.cases import CASES, MIXED_SPHERE
from promptlimit.weights import Ray, _check_law

KEY = jax.random.key(3)
LAWS = {**CASES, "mixture with a sphere": MIXED_SPHERE}


@pytest.mark.parametrize("name", LAWS)
def test_every_law_of_the_library_passes(name: str) -> None:
    report = pl.check_law(LAWS[name].build(), key=KEY)
    assert max(check.largest for check in report.checks if check.comparisons) < 1.0
    assert report["mean"].comparisons > 0
    assert report["covariance"].comparisons > 0
    assert report["tilted mean"].comparisons > 0
    assert report.false_alarm == 1e-6
    assert "tilted mean" in str(report)


class Normal(pl.AbstractMeasure):
    """Standard normal tokens, each method open to one planted error."""

    shift: float = 0.0
    scale: float = 1.0
    offset: float = 0.0
    straight: float = 1e6

    @property
    def dim(self):
        return 1

    def log_laplace(self, tilt):
        t = tilt[0]
        end = self.straight * jnp.sign(jnp.real(t))
        line = end * t - 0.5 * self.straight**2
        inside = jnp.abs(jnp.real(t)) <= self.straight
        return self.offset + jnp.where(inside, 0.5 * t**2, line)

    def sample(self, length, *, key):
        return self.shift + self.scale * jax.random.normal(key, (length, 1))


class Slanted(Normal):
    """A `tilted_mean` that differs from the derivative of `log_laplace`."""

    def tilted_mean(self, tilt):
        return 1.01 * tilt


class Curved(Normal):
    def tilted_cov(self, tilt):
        return jnp.full((1, 1), 1.0) + 0.02 * tilt[0] ** 2


class Bounded(Normal):
    """A transform with a bounded domain, although `finite_everywhere` is True."""

    def log_laplace(self, tilt):
        return jnp.where(jnp.abs(tilt[0]) < 2.0, 0.5 * tilt[0] ** 2, jnp.nan)

    @property
    def finite_everywhere(self):
        return True


class Beyond(pl.AbstractMeasure):
    """Two-sided exponential tokens whose formula is finite beyond its pole."""

    @property
    def dim(self):
        return 1

    def log_laplace(self, tilt):
        return -jnp.log(jnp.abs(1.0 - tilt[0] ** 2))

    def sample(self, length, *, key):
        return jax.random.laplace(key, (length, 1))


class Continued(Normal):
    """Analytic at complex tilts, but not the continuation of the values at real tilts."""

    def log_laplace(self, tilt):
        t = tilt[0]
        return 0.5 * t**2 + (0.02 * t**4 if jnp.iscomplexobj(t) else 0.0)


class Parted(Normal):
    def gaussian_parts(self):
        return pl.measures.GaussianParts(np.ones(1), np.zeros((1, 1)), np.full((1, 1, 1), 1.001))


class Light(Normal):
    def variance_proxy(self):
        return pl.measures.VarianceProxy(np.zeros(1), np.full((1, 1), 0.99))


class Correlated(pl.AbstractMeasure):
    """Independent coordinates by `log_laplace`; correlated ones by `sample`."""

    @property
    def dim(self):
        return 2

    def log_laplace(self, tilt):
        return 0.5 * jnp.sum(tilt**2)

    def sample(self, length, *, key):
        x = jax.random.normal(key, (length, 2))
        return jnp.stack([x[:, 0], 0.06 * x[:, 0] + np.sqrt(1 - 0.06**2) * x[:, 1]], axis=1)


class Narrow(Normal):
    def sample(self, length, *, key):
        return jax.random.normal(key, (length,))


class Gapped(Normal):
    """A transform whose domain is not an interval."""

    def log_laplace(self, tilt):
        inside = (jnp.abs(tilt[0]) < 1.0) | (jnp.abs(tilt[0]) > 3.0)
        return jnp.where(inside, 0.5 * tilt[0] ** 2, jnp.nan)


class Infinite(Normal):
    def sample(self, length, *, key):
        return jax.random.normal(key, (length, 1)).at[0].set(jnp.inf)


class Logistic(Normal):
    r"""Logistic tokens, $-\log(\sin(\pi t)/(\pi t))$; a power series for |t| below `near`."""

    near: float = 1e-9

    def log_laplace(self, tilt):
        t = tilt[0]
        is_near = jnp.abs(t) < self.near
        series = sum(float(zeta(2 * k)) / k * t ** (2 * k) for k in range(1, 13))
        far = jnp.where(is_near, 0.5, t)
        far = -jnp.log(jnp.sin(jnp.pi * far) / (jnp.pi * far))
        inside = jnp.abs(jnp.real(t)) < 1
        return jnp.where(inside, jnp.where(is_near, series, far), jnp.nan)

    def sample(self, length, *, key):
        return jax.random.logistic(key, (length, 1))


class Quotient(Normal):
    """Uniform tokens on [-1, 1], with a quotient whose derivatives at zero are NaN."""

    def log_laplace(self, tilt):
        t = tilt[0]
        return jnp.where(t == 0, 0.0, jnp.log(jnp.sinh(t) / t))

    def sample(self, length, *, key):
        return jax.random.uniform(key, (length, 1), minval=-1.0)


ALONG = "standard deviations along coordinate 0"
DIFFER = (
    r"`log_laplace` gives {} and the samples differ by {}\d* \(\d+\.?\d* standard errors, at most "
    r"6\.\d+ are allowed\)"
)
WRONG = {
    "mean": (Normal(shift=0.05), "mean", r"coordinate 0, " + DIFFER.format(0, r"\+0\.0")),
    "scaled sampler": (Normal(scale=1.03), "covariance", DIFFER.format(1, r"\+0\.0")),
    "units of the tokens": (
        pl.Affine(Normal(scale=1.03), [[10.0]], [0.0]),
        "covariance",
        DIFFER.format(100, r"\+[5-7]\.\d"),
    ),
    "covariance of two coordinates": (Correlated(), "covariance", DIFFER.format(1, r"\+0\.0")),
    "tail": (Normal(straight=0.8), "transform", f"{ALONG}, " + DIFFER.format(1, r"\+0\.0")),
    "zero": (Normal(offset=0.01), "domain", "`log_laplace` is 0.01 at zero, not 0"),
    "gradient": (
        Slanted(),
        "derivatives",
        f"`tilted_mean` is 0.303 at 0.3 {ALONG}, where differences of `log_laplace` give 0.3",
    ),
    "curvature": (
        Curved(),
        "derivatives",
        f"`tilted_cov` is 1.0072 at 0.6 {ALONG}, where differences of `log_laplace` give 1",
    ),
    "digits near zero": (
        Logistic(),
        "digits near zero",
        rf"`tilted_\w+` is .* in float64 at -?1e-0[678] {ALONG}, where the tilted moments "
        r"at 0 give .*\. The derivatives of `log_laplace` lose digits near zero",
    ),
    "digits near zero in single precision": (
        Logistic(near=1e-5),
        "digits near zero",
        rf"`tilted_cov` is .* in float32 at -?0\.001 {ALONG}",
    ),
    "not differentiable at zero": (
        Quotient(),
        "digits near zero",
        "the tilted moments at 0 give nan",
    ),
    "end of the domain": (
        Bounded(),
        "domain",
        f"`finite_everywhere` is True and `log_laplace` is not finite at -6 {ALONG}",
    ),
    "gap in the domain": (
        Gapped(),
        "domain",
        "`log_laplace` is not finite on an interval along coordinate 0",
    ),
    "beyond the domain": (
        Beyond(),
        "convexity",
        rf"`log_laplace` is not convex at -?\d\.?\d* {ALONG}",
    ),
    "continuation": (
        Continued(),
        "continuation",
        rf"the real part at 0\+1j times 1.2 {ALONG}, " + DIFFER.format(r"0\.507363", r"-0\.0"),
    ),
    "parts": (
        Parted(),
        "Gaussian parts",
        f"at -1.2 {ALONG} `log_laplace` is 0.72 and `gaussian_parts` give 0.72072",
    ),
    "proxy": (
        Light(),
        "variance proxy",
        f"at -1.2 {ALONG} `log_laplace` is 0.72, more than the 0.7128 of `variance_proxy`",
    ),
    "shape": (
        Narrow(),
        "samples",
        r"`sample` returns shape \(1024,\) for 1024 tokens of dimension 1",
    ),
    "infinite tokens": (Infinite(), "samples", "`sample` returns tokens that are not finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_law_that_contradicts_itself_is_refused_by_the_check_that_finds_it(case: str) -> None:
    law, check, message = WRONG[case]
    with pytest.raises(
        pl.errors.LawMismatchError, match=rf"^`law` must .* the check '{check}': .*{message}"
    ):
        pl.check_law(law, key=KEY)
    assert not jax.config.read("jax_enable_x64")


def test_a_power_series_keeps_digits_near_zero(precision: str) -> None:
    assert pl.check_law(Logistic(near=0.25), key=KEY)["digits near zero"].largest < 0.1
    for tilt in (1e-2, 1e-5, 1e-9):
        truth = np.pi**2 / 3 * tilt * (1.0 + np.pi**2 / 15 * tilt**2)
        got = Logistic(near=0.25).tilted_mean(jnp.array([tilt], precision))
        np.testing.assert_allclose(got, [truth], rtol=3e-7)


class Scaled(Normal):
    """Methods that are wrong by a given factor."""

    factor: float = 1.0

    def tilted_mean(self, tilt):
        return self.factor * tilt

    def gaussian_parts(self):
        cov = np.full((1, 1, 1), 1.0 + 0.02 * (self.factor - 1.0))
        return pl.measures.GaussianParts(np.ones(1), np.zeros((1, 1)), cov)


def test_deviations_are_shares_of_the_allowed_ones() -> None:
    report = pl.check_law(Scaled(factor=1.001, offset=9e-7), key=KEY)
    assert report["domain"].largest == pytest.approx(0.9, rel=1e-6)
    assert report["derivatives"].largest == pytest.approx(0.001 / 0.002, rel=1e-3)
    pull = 0.5 * 1.2**2
    share = (0.02 * 0.001 * pull - 9e-7) / (1e-5 * (1.0 + pull))
    assert report["Gaussian parts"].largest == pytest.approx(share, rel=1e-3)
    with pytest.raises(pl.errors.LawMismatchError, match="the check 'domain'"):
        pl.check_law(Normal(offset=1.1e-6), key=KEY)


@pytest.mark.parametrize(("samples", "left_out"), [(2**17, 4), (2**12, 6), (2**10, 10)])
def test_tilts_whose_weights_are_too_skewed_are_left_out(samples: int, left_out: int) -> None:
    # e^{3 s^2 / 2} is at most 0.03 times the root of the number of samples.
    scales = np.array([0.3, 0.6, 1.2, 2.4, 4.8])
    assert 2 * int((np.exp(1.5 * scales**2) > 0.03 * np.sqrt(samples)).sum()) == left_out
    report = pl.check_law(Normal(), key=KEY, samples=samples)
    assert report["tilts left out"].note == f"{left_out} of 10: too few samples for them"


def test_laws_without_a_transform_or_a_continuation_get_a_note() -> None:
    class Heavy(pl.AbstractMeasure):
        @property
        def dim(self):
            return 1

        def sample(self, length, *, key):
            return jax.random.cauchy(key, (length, 1))

    class Real(Normal):
        def log_laplace(self, tilt):
            return 0.5 * jnp.abs(tilt[0]) ** 2

    domain = pl.check_law(Heavy(), key=KEY)["domain"]
    assert (domain.comparisons, domain.note) == (
        0,
        "the transform is finite only at zero: no limit exists",
    )
    continuation = pl.check_law(Real(), key=KEY)["continuation"]
    assert continuation.comparisons == 0
    assert continuation.note.startswith("no exact results: its `log_laplace` ")


def test_an_error_beyond_the_centre_alone_leaves_mean_and_covariance_right() -> None:
    law = Normal(straight=0.8)
    assert law.mean == 0.0
    assert law.cov == 1.0
    with pytest.raises(
        pl.errors.LawMismatchError, match="`log_laplace` gives 1 and the samples differ"
    ):
        pl.check_law(law, key=KEY)


def test_a_correct_law_passes_at_every_key() -> None:
    largest = [
        pl.check_law(Normal(), key=jax.random.key(seed))["tilted mean"].largest
        for seed in range(12)
    ]
    # The largest of a few dozen normal numbers against the 7 standard errors that are allowed.
    assert 0.05 < np.mean(largest) < 0.6


def test_a_rare_token_that_no_sample_holds_raises_no_alarm() -> None:
    rare = pl.Empirical([[0.0], [1.0], [3e4]], [0.5, 0.5 - 1e-9, 1e-9])
    report = pl.check_law(rare, key=KEY)
    assert "more samples are needed" in str(report)


def test_a_rare_token_that_a_sample_holds_raises_no_alarm_either() -> None:
    key = jax.random.key(129)  # the first at which the rare token is drawn
    with jax.enable_x64(True):
        rare = pl.Empirical([[0.0], [1.0], [3e3]], [0.5, 0.5 - 1e-7, 1e-7])
        keys = (jax.random.fold_in(key, 1 + chunk) for chunk in range(8))
        assert max(float(rare.sample(2**14, key=one).max()) for one in keys) > 2.0
        assert "more samples are needed" in str(pl.check_law(rare, key=key))


def test_a_law_that_ends_is_checked_inside_its_domain() -> None:
    class Exponential(Beyond):
        def log_laplace(self, tilt):
            return -jnp.log1p(-(tilt[0] ** 2))

    report = pl.check_law(Exponential(), key=KEY)
    assert report["tilted mean"].comparisons >= 2
    with pytest.raises(pl.errors.LawMismatchError, match="the check 'covariance'"):
        pl.check_law(pl.Product([Exponential(), Normal(scale=1.1)]), key=KEY)


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^`samples` must be a whole number of at least 1024, got 100\.$"
    ):
        pl.check_law(Normal(), key=KEY, samples=100)


def test_bounds_of_moments_are_close_for_normal_scores() -> None:
    """E x^4 = 3 and E x^6 = 15; the smallest multiple of the tilt gives nearly equality."""
    with jax.enable_x64(True):
        law, tilt = pl.Gaussian([0.0], [[1.0]]), np.ones(1)
        fourth, sixth = _check_law._Direction("e", tilt, Ray(law, tilt)).moment_bounds(0.0)
    assert 3.0 <= fourth < 3.1
    assert 15.0 <= sixth < 50.0


TWO_POINTS = {"right": 0.1, "left": 0.9, "even": 0.5}
"""The probabilities of the point 1; the other one is 0."""


def two_points(share: float) -> tuple[np.ndarray, np.ndarray, pl.Empirical]:
    """Return the centred points, their probabilities, and the law of the tokens 0 and 1."""
    shares = np.array([1.0 - share, share])
    return np.array([0.0, 1.0]) - share, shares, pl.Empirical([[0.0], [1.0]], shares)


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("share", TWO_POINTS.values(), ids=TWO_POINTS)
def test_bounds_of_moments_of_skewed_scores_are_their_formula(share: float, scale: float) -> None:
    """The means of cosh are sums over two points."""
    points, shares, _ = two_points(share)
    x = points * scale / np.sqrt(share * (1.0 - share))
    s, variance = np.geomspace(0.1, 4.0, 12), scale**2
    rest = np.cosh(s[:, None] * x) @ shares - 1.0 - s**2 * variance / 2.0
    with jax.enable_x64(True):
        law = two_points(share)[2]
        tilt = np.array([scale / np.sqrt(share * (1.0 - share))])
        direction = _check_law._Direction("e", tilt, Ray(law, tilt))
        fourth, sixth = direction.moment_bounds(float(tilt[0] * share))
    assert fourth >= shares @ x**4 * (1.0 - 1e-6)
    assert sixth >= shares @ x**6 * (1.0 - 1e-6)
    assert fourth == pytest.approx((24.0 * rest / s**4).min(), rel=0.01)  # differences of Lambda
    formula = (720.0 * rest - 30.0 * s**4 * variance**2) / s**6
    assert sixth == pytest.approx(formula.min(), rel=0.05)


@pytest.mark.parametrize("scale", [0.2, 1.0, 4.0])
@pytest.mark.parametrize(("share", "kept"), [(0.3, True), (1e-3, False)])
def test_means_are_compared_unless_the_score_is_too_skewed_at_any_scale_of_the_tilt(
    share: float, kept: bool, scale: float
) -> None:
    """The bound E|x|^3 / sd^3 <= 0.06 sqrt(1024) = 1.92 holds for p = 0.3, but not for 0.001."""
    points, shares, _ = two_points(share)
    skewness = shares @ np.abs(points) ** 3 / (shares @ points**2) ** 1.5
    assert (skewness < 1.92) == kept
    with jax.enable_x64(True):
        law = two_points(share)[2]
        subject = _check_law._Subject.of(law, 1024, KEY, (np.float64,))
        tilt = scale * subject.directions[0].tilt
        direction = _check_law._Direction("e", tilt, Ray(law, tilt))
        subject = dataclasses.replace(subject, directions=[direction])
        found = next(iter(_check_law._moments(subject)))
    assert isinstance(found, _check_law._SampleMeans)
    assert found.labels == ["e"] * kept


def test_rounding_to_single_precision_is_no_difference_even_next_to_far_larger_tokens() -> None:
    class Rounded(pl.AbstractMeasure):
        """Tokens (1000 / 3, x) with a normal x; samples are single-precision numbers."""

        @property
        def dim(self):
            return 2

        def log_laplace(self, tilt):
            return 1000.0 / 3.0 * tilt[0] + 0.5 * tilt[1] ** 2

        def sample(self, length, *, key):
            x = jax.random.normal(key, (length,), jnp.float32)
            return jnp.stack([jnp.full(length, 1000.0 / 3.0, jnp.float32), x], axis=1)

    report = pl.check_law(Rounded(), key=KEY, samples=1024)
    assert report["mean"].comparisons == 2 + 1 + 4  # axes, their sum and random directions
    assert 0.0 < report["mean"].largest < 1.0


def test_rounding_may_change_means_and_covariances_by_a_millionth_of_the_tokens_own_size() -> None:
    """Tokens of mean 300 and standard deviation 0.1 have size 3000 in standard deviations."""
    with jax.enable_x64(True):
        law = pl.Gaussian([300.0], [[0.01]])
        subject = _check_law._Subject.of(law, 1024, KEY, (np.float64,))
        found = {one.check: one for one in _check_law._moments(subject)}
    mean, covariance = found["mean"], found["covariance"]
    assert isinstance(mean, _check_law._SampleMeans)
    assert isinstance(covariance, _check_law._SampleMeans)
    assert mean.floor == pytest.approx(1e-6 * 3000.0, rel=1e-3)
    assert covariance.floor == pytest.approx(1e-6 * 3000.0**2, rel=1e-3)
