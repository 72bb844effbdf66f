"""`check_law` accepts every law of the library and refuses laws whose methods disagree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import promptlimit as pl
from measures.cases import CASES, MIXED_SPHERE

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


WRONG = {
    "mean": (Normal(shift=0.05), "mean"),
    "scaled sampler": (Normal(scale=1.03), "covariance"),
    "covariance of two coordinates": (Correlated(), "covariance"),
    "tail": (Normal(straight=0.8), "transform"),
    "zero": (Normal(offset=0.01), "domain"),
    "gradient": (Slanted(), "derivatives"),
    "curvature": (Curved(), "derivatives"),
    "end of the domain": (Bounded(), "domain"),
    "beyond the domain": (Beyond(), "convexity"),
    "continuation": (Continued(), "continuation"),
    "parts": (Parted(), "Gaussian parts"),
    "proxy": (Light(), "variance proxy"),
    "shape": (Narrow(), "samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_law_that_contradicts_itself_is_refused_by_the_check_that_finds_it(case: str) -> None:
    law, check = WRONG[case]
    with pytest.raises(pl.errors.LawMismatchError, match=rf"^`law` must .* the check '{check}': "):
        pl.check_law(law, key=KEY)


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
