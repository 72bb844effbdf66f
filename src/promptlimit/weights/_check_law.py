r"""Compare the methods of a law with each other: transform, derivatives, samples, continuation.

Statistical comparisons are means of independent numbers whose expectation is zero if
`log_laplace` is the transform of what `sample` draws. Their standard errors follow from the
transform as well, so that a rare token which the samples miss raises no alarm.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.stats import norm

from promptlimit._arrays import Array, as_float64, with_numpy_defaults
from promptlimit._inputs import in_double, require_random_key, require_samples, to_device
from promptlimit.errors import ArgumentError, LawMismatchError, NotAnalyticError, OutsideDomainError
from promptlimit.measures import AbstractMeasure, require_measure
from promptlimit.results import LawCheck, LawReport
from promptlimit.weights._ray import Ray

_FALSE_ALARM = 1e-6
"""The stated probability of a false alarm."""

_NOMINAL = 1e-9
"""The level of the normal quantiles; the factor to `_FALSE_ALARM` is left to skewness."""

_SKEWED = 0.06
r"""The largest ratio of third to second moments, as a share of $\sqrt n$.

With thresholds of x = 7 standard errors, a skewness $\gamma$ multiplies tails by about
$e^{\gamma x^3/(6\sqrt n)}$, which is $e^{3.4}=31$ here.
"""

_FEWEST = 1024
_CHUNK = 2**14
_MOST_AXES = 32
_DENSE = 4
_SCALES = (0.3, 0.6, 1.2, 2.4, 4.8)
"""Standard deviations of the scores at the tilts that are tried, of both signs."""

_MULTIPLES = np.array([1j, 0.5 + 1j])
"""Complex multiples of a tilt at which the continuation is compared with samples."""

_DIGITS = 1e-6
"""Relative differences below this are rounding: laws may compute in single precision."""

_CLOSE = 5e-4
"""The relative difference that derivatives by finite differences may have."""

_STEP = 0.05
_SMALLEST = 1e-9
_COSH = np.geomspace(0.1, 4.0, 12)


@with_numpy_defaults
def check_law(law: AbstractMeasure, *, key: PRNGKeyArray, samples: int = 2**17) -> LawReport:
    r"""Check that the methods of a law describe one probability measure; raise if they do not.

    Call it once in the tests of your own law: exact results use `log_laplace` and never call
    `sample`. The report has a row for each of these checks:

    - *samples*: `sample` returns an array of the right shape with finite entries;
    - *domain*: $\Lambda(0)=0$, and $\Lambda$ is finite on an interval around 0 along each
      direction, everywhere if the law says `finite_everywhere`;
    - *convexity* of $\Lambda$ along each direction;
    - *derivatives at zero* and *derivatives*: `mean` and `cov`, then `tilted_mean` and
      `tilted_cov` at other tilts, against finite differences of `log_laplace`;
    - *mean* and *covariance* against samples;
    - *transform* and *tilted mean*: $E\,e^{\langle t,z\rangle-\Lambda(t)}=1$ and
      $E\,e^{\langle t,z\rangle-\Lambda(t)}(z-\nabla\Lambda(t))=0$ over samples, at tilts whose
      scores have standard deviations from 0.3 to 4.8, as far as the samples resolve them;
    - *tilts left out*: how many of those tilts the samples do not resolve;
    - *continuation*: the same transform at complex tilts, which exact results use, if
      `log_laplace` is analytic;
    - *Gaussian parts* and *variance proxy* against $\Lambda$, where the law has them.

    Comparisons with samples allow as many standard errors as keep the probability that a correct
    law fails below 1e-6 in total. A comparison whose distribution is too skewed for that many
    samples is left out, and the report counts it.

    Args:
        law: the law of a token.
        key: randomness of the samples.
        samples: how many tokens to draw.

    Raises:
        LawMismatchError: names the first check that fails, with both numbers.

    >>> import jax, promptlimit as pl
    >>> print(pl.check_law(pl.Rademacher([1.0]), key=jax.random.key(0))["mean"].comparisons)
    1
    """
    require_measure("law", law)
    require_random_key(key)
    require_samples(samples)
    if key is None:
        raise ArgumentError("key", "must be a random key, got None. Pass jax.random.key(0).")
    if samples is None or samples < _FEWEST:
        raise ArgumentError(
            "samples", f"must be a whole number of at least {_FEWEST}, got {samples}."
        )
    lenient = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
    with jax.enable_x64(True), lenient[0], lenient[1]:
        return _Checks(in_double(law), int(samples)).run(key)


@dataclasses.dataclass(frozen=True)
class _Direction:
    """A direction u, scaled so that scores along it have standard deviation one, if any."""

    name: str
    tilt: Array
    ray: Ray

    def at(self, multiples: Array) -> Array:
        r"""Return $\Lambda(cu)$, real."""
        return np.real(self.ray.log_laplace(np.asarray(multiples, np.float64)))


@dataclasses.dataclass
class _Comparison:
    """Means over samples that must be zero: sums so far, standard errors for one sample."""

    name: str
    labels: list[str]
    claimed: Array
    deviation: Array
    floor: float
    statistic: Callable[[Array], Array]
    total: Array


class _Checks:
    def __init__(self, law: AbstractMeasure, samples: int):
        self.law, self.samples = law, samples
        self.name = type(law).__name__
        self.rows: list[LawCheck] = []

    def run(self, key: PRNGKeyArray) -> LawReport:
        """Return the report, or raise at the first check that fails."""
        first = self._draw(jax.random.fold_in(key, 0), _FEWEST)
        directions = self._directions(first)
        if self._without_transform(directions):
            return self._report()
        self._domain(directions)
        self._convexity(directions)
        comparisons = [*self._moments(directions), *self._tilted(directions)]
        self._own_statements(directions)
        self._compare(comparisons, key)
        return self._report()

    def _report(self) -> LawReport:
        return LawReport(self.name, self.samples, _FALSE_ALARM, tuple(self.rows))

    def _fail(self, check: str, words: str) -> LawMismatchError:
        return LawMismatchError(
            "law",
            f"must have methods that describe one law, got {self.name} tokens that fail the "
            f"check '{check}': {words}.",
        )

    def _pass(self, name: str, shares: Array | list[float], note: str = "") -> None:
        shares = as_float64(shares).ravel()
        largest = float(shares.max()) if shares.size else math.nan
        self.rows.append(LawCheck(name, int(shares.size), largest, note))

    def _draw(self, key: PRNGKeyArray, count: int) -> Array:
        tokens = as_float64(self.law.sample(count, key=key))
        if tokens.shape != (count, self.law.dim):
            raise self._fail(
                "samples",
                f"`sample` returns shape {tokens.shape} for {count} tokens of dimension "
                f"{self.law.dim}",
            )
        if not np.isfinite(tokens).all():
            raise self._fail("samples", "`sample` returns tokens that are not finite")
        return tokens

    def _directions(self, tokens: Array) -> list[_Direction]:
        """Return axes, pairs of them in few dimensions, and dense directions."""
        dim = self.law.dim
        eye = np.eye(dim)
        axes = np.unique(np.linspace(0, dim - 1, min(dim, _MOST_AXES)).round().astype(int))
        named = {f"coordinate {i}": eye[i] for i in axes}
        if dim <= 6:
            pairs = itertools.combinations(range(dim), 2)
            named |= {f"coordinates {i} + {j}": eye[i] + eye[j] for i, j in pairs}
        if dim > 1:
            dense = np.random.default_rng(0).normal(size=(_DENSE, dim))
            named |= {f"direction {k}": row for k, row in enumerate(dense)}
        mean, cov = self._mean_and_cov()
        size = float(np.sqrt((tokens**2).sum(axis=1).mean()))
        found = []
        for name, row in named.items():
            unit = row / np.linalg.norm(row)
            spread = float(unit @ cov @ unit) if np.isfinite(cov).all() else 0.0
            along = tokens @ unit
            scale = math.sqrt(spread) if spread > 0.0 else float(along.std())
            if scale <= _DIGITS * size:
                scale = abs(float(along[0]))
            scale = scale if scale > _DIGITS * size else size or 1.0
            found.append(_Direction(name, unit / scale, Ray(self.law, unit / scale)))
        self.mean, self.cov, self.size = mean, cov, size
        return found

    def _mean_and_cov(self) -> tuple[Array, Array]:
        try:
            return as_float64(self.law.mean), as_float64(self.law.cov)
        except OutsideDomainError:
            dim = self.law.dim
            return np.full(dim, np.nan), np.full((dim, dim), np.nan)

    def _without_transform(self, directions: list[_Direction]) -> bool:
        """Whether the transform is finite at zero alone: then there is nothing to compare."""
        near = np.array([-_SMALLEST, _SMALLEST])
        if any(np.isfinite(direction.at(near)).any() for direction in directions):
            return False
        if self.law.finite_everywhere:
            raise self._fail(
                "domain", "`finite_everywhere` is True and `log_laplace` is finite at zero alone"
            )
        self._pass("samples", [0.0])
        self._pass("domain", [], "no transform away from zero: no limit exists")
        return True

    def _domain(self, directions: list[_Direction]) -> None:
        grid, shares = np.linspace(-6.0, 6.0, 49), []
        for direction in directions:
            at_zero = float(direction.at(np.array([0.0]))[0])
            if not abs(at_zero) <= _DIGITS:
                raise self._fail("domain", f"`log_laplace` is {at_zero:.6g} at zero, not 0")
            shares.append(abs(at_zero) / _DIGITS)
            finite = np.isfinite(direction.at(grid))
            if self.law.finite_everywhere and not finite.all():
                at = grid[~finite][0]
                raise self._fail(
                    "domain",
                    "`finite_everywhere` is True and `log_laplace` is not finite at "
                    f"{at:g} standard deviations along {direction.name}",
                )
            edges = np.flatnonzero(finite)
            if not finite[edges[0] : edges[-1] + 1].all():
                raise self._fail(
                    "domain", f"`log_laplace` is finite on no interval along {direction.name}"
                )
        self._pass("samples", [0.0])
        self._pass("domain", shares)

    def _convexity(self, directions: list[_Direction]) -> None:
        grid, shares = np.linspace(-6.0, 6.0, 49), []
        for direction in directions:
            values = direction.at(grid)
            bend = values[2:] - 2.0 * values[1:-1] + values[:-2]
            allowed = _DIGITS * (1.0 + np.abs(values[1:-1]))
            seen = np.isfinite(bend)
            if np.any(bend[seen] < -allowed[seen]):
                at = grid[1:-1][seen][np.argmin(bend[seen])]
                raise self._fail(
                    "convexity",
                    f"`log_laplace` is not convex at {at:g} standard deviations along "
                    f"{direction.name}",
                )
            shares.append(float(np.max(-bend[seen] / allowed[seen], initial=0.0)))
        self._pass("convexity", shares)

    def _derivatives(
        self, direction: _Direction, at: float, mean: Array, cov: Array
    ) -> Iterator[float]:
        """Yield the shares of what slope and curvature may differ from finite differences."""
        found = float(direction.tilt @ mean), float(direction.tilt @ cov @ direction.tilt)
        differences = _settled_differences(direction, at)
        for word, here, there in zip(
            ("`tilted_mean`", "`tilted_cov`"), found, differences, strict=True
        ):
            if math.isnan(there):
                continue
            allowed = 4.0 * _CLOSE * max(1.0, abs(there))
            if not abs(here - there) <= allowed:
                raise self._fail(
                    "derivatives",
                    f"{word} is {here:.6g} at {at:g} standard deviations along {direction.name}, "
                    f"where differences of `log_laplace` give {there:.6g}",
                )
            yield abs(here - there) / allowed

    def _moments(self, directions: list[_Direction]) -> Iterator[_Comparison]:
        """Yield the comparisons of mean and covariance with samples."""
        if not (np.isfinite(self.mean).all() and np.isfinite(self.cov).all()):
            self._pass("moments", [], "zero is not inside the domain")
            return
        shares = [
            share
            for direction in directions
            for share in self._derivatives(direction, 0.0, self.mean, self.cov)
        ]
        self._pass("derivatives at zero", shares)
        tilts = np.stack([direction.tilt for direction in directions])
        centres, spreads = tilts @ self.mean, np.einsum("ki,ij,kj->k", tilts, self.cov, tilts)
        bounds = np.array(
            [_moment_bounds(one, c) for one, c in zip(directions, centres, strict=True)]
        )
        fourth, sixth = bounds.T
        quartic = np.maximum(fourth - spreads**2, 0.5 * spreads**2)
        names = [direction.name for direction in directions]
        allowed = _SKEWED * math.sqrt(self.samples)
        with np.errstate(divide="ignore", invalid="ignore"):
            skewed = np.sqrt(fourth) / spreads  # bounds E|x|^3 / sd^3
            uneven = (sixth + spreads**3) / (3.0 * quartic**1.5)  # the bound is some 3 times larger
        size = self.size * np.linalg.norm(tilts, axis=1)
        for name, claimed, variance, ratio, power in (
            ("mean", centres, spreads, skewed, 1),
            ("covariance", spreads, quartic, uneven, 2),
        ):
            kept = (ratio <= allowed) | (spreads == 0.0)
            chosen = np.flatnonzero(kept & np.isfinite(variance))

            def statistic(tokens: Array, rows: np.ndarray = chosen, power: int = power) -> Array:
                along = tokens @ tilts[rows].T - centres[rows]
                return along if power == 1 else along**2 - spreads[rows]

            yield _Comparison(
                name,
                [names[k] for k in chosen],
                claimed[chosen],
                np.sqrt(np.maximum(variance[chosen], 0.0)),
                _DIGITS * float(size.max()) ** power,
                statistic,
                np.zeros(chosen.size),
            )
            self._left_out(name, len(names) - chosen.size)

    def _left_out(self, name: str, count: int) -> None:
        if count:
            self._pass(f"{name}, left out", [], f"{count} comparisons: more samples are needed")

    def _tilted(self, directions: list[_Direction]) -> Iterator[_Comparison]:
        """Yield comparisons at tilts whose weights the samples resolve."""
        allowed = 0.5 * _SKEWED * math.sqrt(self.samples)
        scales = np.array([sign * scale for scale in _SCALES for sign in (1.0, -1.0)])
        few = directions[:2] + directions[2:][-2:]
        shares: list[float] = []
        skipped, compared = 0, 0
        for direction in few:
            values = np.stack([direction.at(factor * scales) for factor in (1.0, 2.0, 3.0)])
            with np.errstate(invalid="ignore", over="ignore"):
                ratio = np.exp(values[2] - 1.5 * values[1])
            for scale, value, twice, uneven in zip(scales, *values[:2], ratio, strict=True):
                if not uneven <= allowed:
                    skipped += 1
                    continue
                compared += 1
                tilt = scale * direction.tilt
                mean, cov = self._tilted_moments(tilt)
                shares += self._derivatives(direction, float(scale), mean, cov)
                yield from self._at_tilt(direction, float(scale), mean, float(value), float(twice))
        self._pass("derivatives", shares)
        if skipped:
            self._pass(
                "tilts left out", [], f"{skipped} of {skipped + compared}: too few samples for them"
            )

    def _tilted_moments(self, tilt: Array) -> tuple[Array, Array]:
        point = to_device(tilt)
        return as_float64(self.law.tilted_mean(point)), as_float64(self.law.tilted_cov(point))

    def _at_tilt(
        self, direction: _Direction, scale: float, mean: Array, value: float, twice: float
    ) -> Iterator[_Comparison]:
        tilt, growth = scale * direction.tilt, math.exp(twice - 2.0 * value)
        where = f"{scale:g} standard deviations along {direction.name}"
        later, cov = self._tilted_moments(2.0 * tilt)
        spread = np.diag(cov)

        def weights(tokens: Array) -> Array:
            return np.exp(tokens @ tilt - value)

        yield _Comparison(
            "transform",
            [where],
            np.ones(1),
            np.array([math.sqrt(max(growth - 1.0, 0.0))]),
            10.0 * _DIGITS,
            lambda tokens: weights(tokens)[:, None] - 1.0,
            np.zeros(1),
        )
        yield _Comparison(
            "tilted mean",
            [f"coordinate {i} at {where}" for i in range(mean.size)],
            mean,
            np.sqrt(growth * np.maximum(spread + (later - mean) ** 2, 0.0)),
            10.0 * _DIGITS * self.size,
            lambda tokens: weights(tokens)[:, None] * (tokens - mean),
            np.zeros(mean.size),
        )
        if abs(scale) <= 1.2:
            yield from self._continued(direction, scale)

    def _continued(self, direction: _Direction, scale: float) -> Iterator[_Comparison]:
        """Yield the comparison of the transform at complex tilts, where it is analytic."""
        reason = self._not_analytic(direction)
        if reason is not None:
            return
        tilt = scale * direction.tilt
        multiples = scale * _MULTIPLES
        real = direction.at(multiples.real)
        values = np.exp(direction.ray.log_laplace(multiples) - real)
        growth = np.exp(direction.at(2.0 * multiples.real) - 2.0 * real)

        def statistic(tokens: Array) -> Array:
            powers = np.exp(np.outer(tokens @ tilt, _MULTIPLES) - real) - values
            return np.concatenate([powers.real, powers.imag], axis=1)

        labels = [
            f"the {part} part at {c:g} times {scale:g} standard deviations along {direction.name}"
            for part in ("real", "imaginary")
            for c in _MULTIPLES
        ]
        yield _Comparison(
            "continuation",
            labels,
            np.concatenate([values.real, values.imag]),
            np.tile(np.sqrt(growth), 2),
            10.0 * _DIGITS,
            statistic,
            np.zeros(len(labels)),
        )

    def _not_analytic(self, direction: _Direction) -> str | None:
        if not hasattr(self, "analytic"):
            self.analytic: str | None = None
            try:
                Ray(self.law, 0.3 * direction.tilt).require_analytic()
            except (NotAnalyticError, OutsideDomainError) as error:
                self.analytic = str(error)
                self._pass("continuation", [], f"no exact results: {error}")
        return self.analytic

    def _own_statements(self, directions: list[_Direction]) -> None:
        """Compare `gaussian_parts` and `variance_proxy` with the transform."""
        parts, proxy = self.law.gaussian_parts(), self.law.variance_proxy()
        scales = np.array([-1.2, -0.3, 0.3, 1.2])
        shares: dict[str, list[float]] = {"Gaussian parts": [], "variance proxy": []}
        for direction, scale in itertools.product(directions, scales):
            value, tilt = float(direction.at(np.array([scale]))[0]), scale * direction.tilt
            allowed = 10.0 * _DIGITS * (1.0 + abs(value))
            where = f"{scale:g} standard deviations along {direction.name}"
            if parts is not None:
                pull = np.einsum("cij,i,j->c", parts.all_covs(), tilt, tilt)
                other = np.logaddexp.reduce(np.log(parts.weights) + parts.means @ tilt + 0.5 * pull)
                if not abs(other - value) <= allowed:
                    raise self._fail(
                        "Gaussian parts",
                        f"`log_laplace` is {value:.6g} and `gaussian_parts` give {other:.6g} at "
                        f"{where}",
                    )
                shares["Gaussian parts"].append(abs(other - value) / allowed)
            if proxy is not None:
                most = float(tilt @ proxy.mean + 0.5 * tilt @ proxy.matrix @ tilt)
                if not value - most <= allowed:
                    raise self._fail(
                        "variance proxy",
                        f"`log_laplace` is {value:.6g}, more than the {most:.6g} of "
                        f"`variance_proxy`, at {where}",
                    )
                shares["variance proxy"].append(max(value - most, 0.0) / allowed)
        for name, found in shares.items():
            if found:
                self._pass(name, found)

    def _compare(self, comparisons: list[_Comparison], key: PRNGKeyArray) -> None:
        """Draw the samples, and compare their means with zero."""
        count = sum(len(one.labels) for one in comparisons)
        if not count:
            return
        most = float(norm.isf(_NOMINAL / (2 * count)))
        done = 0
        while done < self.samples:
            size = min(_CHUNK, self.samples - done)
            tokens = self._draw(jax.random.fold_in(key, 1 + done // _CHUNK), size)
            for one in comparisons:
                one.total += one.statistic(tokens).sum(axis=0)
            done += size
        shares: dict[str, list[float]] = {}
        for one in comparisons:
            means = one.total / self.samples
            errors = one.deviation / math.sqrt(self.samples)
            allowed = most * errors + one.floor
            for label, claimed, mean, error, limit in zip(
                one.labels, one.claimed, means, errors, allowed, strict=True
            ):
                if not abs(mean) <= limit:
                    raise self._fail(one.name, _difference(label, claimed, mean, error, most))
                shares.setdefault(one.name, []).append(abs(mean) / limit)
        for name, found in shares.items():
            self._pass(name, found)


def _difference(label: str, claimed: float, mean: float, error: float, most: float) -> str:
    size = f"{abs(mean) / error:.3g} standard errors" if error > 0.0 else "without any spread"
    return (
        f"{label}, `log_laplace` gives {claimed:.6g} and the samples differ by {mean:+.3g} "
        f"({size}, at most {most:.3g} are allowed)"
    )


def _settled_differences(direction: _Direction, at: float) -> tuple[float, float]:
    """Return slope and curvature along a direction by steps at which both settle; NaN without."""
    before = _differences(direction, at, _STEP)
    for power in range(1, 10):
        now = _differences(direction, at, _STEP / 4.0**power)
        if all(abs(a - b) <= _CLOSE * max(1.0, abs(b)) for a, b in zip(before, now, strict=True)):
            return before
        before = now
    return math.nan, math.nan


def _differences(direction: _Direction, at: float, step: float) -> tuple[float, float]:
    """Return slope and curvature along a direction by five values of the transform."""
    far_left, left, here, right, far_right = direction.at(at + step * np.arange(-2.0, 3.0))
    slope = (8.0 * (right - left) - (far_right - far_left)) / (12.0 * step)
    bend = 16.0 * (left + right) - (far_left + far_right) - 30.0 * here
    return float(slope), float(bend / (12.0 * step**2))


def _moment_bounds(direction: _Direction, centre: float) -> tuple[float, float]:
    r"""Return bounds of the fourth and sixth moments of a centred score, from its transform.

    Since $\cosh x\ge1+x^2/2+x^4/4!+x^6/6!$ and $E\,x^4\ge v^2$, v the variance,
    $E\,x^4\le4!\,(E\cosh sx-1-s^2v/2)/s^4$ and
    $E\,x^6\le6!\,(E\cosh sx-1-s^2v/2-s^4v^2/4!)/s^6$; the least of them over a few s.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        right, left = direction.at(_COSH), direction.at(-_COSH)
        cosh = 0.5 * (np.exp(right - _COSH * centre) + np.exp(left + _COSH * centre))
        variance = _settled_differences(direction, 0.0)[1]
        fourth = 24.0 * (cosh - 1.0 - 0.5 * _COSH**2 * variance) / _COSH**4
        sixth = 720.0 * (cosh - 1.0 - 0.5 * _COSH**2 * variance) - 30.0 * _COSH**4 * variance**2
        sixth = sixth / _COSH**6
    finite = np.isfinite(cosh)
    if not finite.any():
        return math.inf, math.inf
    return max(float(fourth[finite].min()), variance**2), float(sixth[finite].min())
