r"""Checks that the methods of a law agree: log-Laplace transform, derivatives and samples.

A check is a function in `_CHECKS` that yields comparisons (`_Finding`). The comparisons with
samples use means over samples whose expectation is zero if `log_laplace` is the transform
$\Lambda(t)$ of the law from which `sample` draws. The standard errors of these means are computed
from $\Lambda$, not from the samples, so a rare token that is not among the samples causes no false
alarm.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.stats import norm

from promptlimit._arrays import Array, as_float64, require_whole, with_numpy_defaults
from promptlimit._inputs import in_double, in_precision, require_key, to_device
from promptlimit.errors import LawMismatchError, NotAnalyticError, OutsideDomainError
from promptlimit.measures import AbstractMeasure, has_transform, require_measure
from promptlimit.results import LawCheck, LawReport
from promptlimit.weights._ray import Ray

_FALSE_ALARM = 1e-6
"""The documented probability of a false alarm."""

_NOMINAL = 1e-9
"""The probability of a false alarm if all means were normal. Skewed means make it larger."""

_SKEWED = 0.06
r"""The largest $\gamma/\sqrt n$, for n samples of a statistic of skewness $\gamma$.

At a threshold of x = 7 standard errors, the skewness multiplies the tail probability of the mean by
about $e^{\gamma x^3/(6\sqrt n)}\le e^{3.43}=31$.
"""

_FEWEST = 1024
_CHUNK = 2**14
_MOST_AXES = 32
_DENSE = 4
_GRID = np.linspace(-6.0, 6.0, 49)
_SCALES = (0.3, 0.6, 1.2, 2.4, 4.8)
"""Standard deviations of the scores at the tilts of the checks; tilts of both signs are used."""

_MULTIPLES = np.array([1j, 0.5 + 1j])
"""Complex multiples of a tilt at which the continuation is compared with samples."""

_DIGITS = 1e-6
"""The largest relative difference due to rounding, because laws may use single precision."""

_TOLERANCE = 5e-4
"""The largest relative error of finite differences."""

_NEAR_ZERO = np.array([sign * 10.0**-k for k in range(3, 9) for sign in (1.0, -1.0)])
"""Small tilts at which the derivatives must keep their digits, in standard deviations."""

_LOST = 1e3
"""The largest rounding error of a derivative near zero, in units of the machine precision."""

_STEP = 0.05
_SMALLEST = 1e-300
_COSH = np.geomspace(0.1, 4.0, 12)


@with_numpy_defaults
def check_law(law: AbstractMeasure, *, key: PRNGKeyArray, samples: int = 2**17) -> LawReport:
    r"""Check that the methods of a law describe the same probability measure; raise if they do not.

    Call this function once in the tests of a user-defined law. Exact results use `log_laplace` and
    never call `sample`, so they do not reveal that the two disagree. The report has a row for each
    check:

    - *samples*: `sample` returns an array of the right shape with finite entries;
    - *domain*: $\Lambda(0)=0$, and along each direction $\Lambda$ is finite on an interval that
      contains 0, or everywhere if the law sets `finite_everywhere`;
    - *convexity* of $\Lambda$ along each direction;
    - *derivatives*: `mean` and `cov` at tilt 0, and `tilted_mean` and `tilted_cov` at other tilts,
      against finite differences of `log_laplace`;
    - *digits near zero*: `tilted_mean` and `tilted_cov` at small tilts, against values that follow
      from the mean and covariance at tilt 0, in double precision, and also in single precision
      unless jax has 64-bit numbers enabled;
    - *mean* and *covariance* against samples;
    - *transform* and *tilted mean*: $E\,e^{\langle t,z\rangle-\Lambda(t)}=1$ and
      $E\,e^{\langle t,z\rangle-\Lambda(t)}(z-\nabla\Lambda(t))=0$ over samples, at tilts whose
      scores have standard deviations from 0.3 to 4.8, unless there are too few samples for a tilt;
    - *tilts left out*: the number of tilts for which there are too few samples;
    - *continuation*: the check *transform* at complex tilts, which exact results use, if
      `log_laplace` is analytic;
    - *Gaussian parts* and *variance proxy* against $\Lambda$, if the law provides them.

    The probability that a correct law fails any check is below 1e-6. A comparison with samples is
    left out if its statistic is too skewed for the number of samples. The report counts omissions.

    Args:
        law: the law of a token.
        key: the random key of the samples.
        samples: the number of tokens to draw, at least 1024.

    Raises:
        LawMismatchError: a check fails. The message names the first such check and both numbers.

    >>> import jax, promptlimit as pl
    >>> print(pl.check_law(pl.Rademacher([1.0]), key=jax.random.key(0))["mean"].comparisons)
    1
    """
    require_measure("law", law)
    require_key(key)
    require_whole("samples", samples, _FEWEST)
    single = () if jax.config.read("jax_enable_x64") else (np.float32,)
    lenient = jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard")
    with jax.enable_x64(True), lenient[0], lenient[1]:
        subject = _Subject.of(in_double(law), int(samples), key, (np.float64, *single))
        checks = _CHECKS if has_transform(subject.law) else (_no_transform,)
        findings = itertools.chain.from_iterable(check(subject) for check in checks)
        rows = _report_rows(subject.law, findings)
    return LawReport(type(law).__name__, int(samples), _FALSE_ALARM, rows)


@dataclasses.dataclass(frozen=True)
class _Finding:
    """One comparison.

    Attributes:
        check: the name of the check.
        share: the deviation as a fraction of the allowed deviation; None for a note.
        message: the note in the report, or the error message if `share` is above 1.
    """

    check: str
    share: float | None
    message: str


def _report_rows(law: AbstractMeasure, findings: Iterator[_Finding]) -> tuple[LawCheck, ...]:
    """Return one row per check, or raise at the first comparison that fails."""
    shares: dict[str, list[float]] = {"samples": [0.0]}  # `_drawn` raises if it fails
    notes: dict[str, str] = {}
    for finding in findings:
        row = shares.setdefault(finding.check, [])
        if finding.share is None:
            notes[finding.check] = finding.message
        elif finding.share <= 1.0:
            row.append(finding.share)
        else:
            raise _mismatch(law, finding.check, finding.message)
    return tuple(
        LawCheck(name, len(row), max(row, default=math.nan), notes.get(name, ""))
        for name, row in shares.items()
    )


def _mismatch(law: AbstractMeasure, check: str, message: str) -> LawMismatchError:
    return LawMismatchError(
        "law",
        f"must have methods that describe one law, got {type(law).__name__} tokens that fail the "
        f"check '{check}': {message}.",
    )


# ---------------------------------------------------------------- the law and its directions


@dataclasses.dataclass(frozen=True)
class _Direction:
    """A direction in which tilts are checked.

    Attributes:
        name: the direction in messages.
        tilt: the tilt u in this direction at which the scores have standard deviation one, unless
            they are constant, [d].
        ray: the multiples of u.
    """

    name: str
    tilt: Array
    ray: Ray

    def at(self, multiples: Array) -> Array:
        r"""Return $\Lambda(cu)$ at real multiples c."""
        return np.real(self.ray.log_laplace(np.asarray(multiples, np.float64)))

    def derivatives(self, at: float) -> tuple[float, float]:
        r"""Return $d\Lambda(cu)/dc$ and $d^2\Lambda(cu)/dc^2$ at c = `at` from differences.

        Both are NaN if the differences do not converge.
        """
        before = self._differences(at, _STEP)
        for power in range(1, 10):
            now = self._differences(at, _STEP / 4.0**power)
            pairs = zip(before, now, strict=True)
            if all(abs(a - b) <= _TOLERANCE * max(1.0, abs(b)) for a, b in pairs):
                return before
            before = now
        return math.nan, math.nan

    def _differences(self, at: float, step: float) -> tuple[float, float]:
        r"""Return the first and second derivatives from five values of $\Lambda(cu)$."""
        far_left, left, here, right, far_right = self.at(at + step * np.arange(-2.0, 3.0))
        slope = (8.0 * (right - left) - (far_right - far_left)) / (12.0 * step)
        bend = 16.0 * (left + right) - (far_left + far_right) - 30.0 * here
        return float(slope), float(bend / (12.0 * step**2))

    def moment_bounds(self, centre: float) -> tuple[float, float]:
        r"""Return upper bounds of the fourth and sixth central moments of the score at the tilt u.

        Let x be the centred score and v its variance. Since $\cosh x\ge1+x^2/2+x^4/4!+x^6/6!$ and
        $E\,x^4\ge v^2$, $E\,x^4\le4!\,(E\cosh sx-1-s^2v/2)/s^4$ and
        $E\,x^6\le6!\,(E\cosh sx-1-s^2v/2-s^4v^2/4!)/s^6$ for every s. The function returns the
        smallest bounds over several s.

        Args:
            centre: the mean of the score.
        """
        variance = self.derivatives(0.0)[1]
        with np.errstate(over="ignore", invalid="ignore"):
            right, left = self.at(_COSH), self.at(-_COSH)
            cosh = 0.5 * (np.exp(right - _COSH * centre) + np.exp(left + _COSH * centre))
            rest = cosh - 1.0 - 0.5 * _COSH**2 * variance
            fourth = 24.0 * rest / _COSH**4
            sixth = (720.0 * rest - 30.0 * _COSH**4 * variance**2) / _COSH**6
        finite = np.isfinite(cosh)
        if not finite.any():
            return math.inf, math.inf
        return max(float(fourth[finite].min()), variance**2), float(sixth[finite].min())

    def third_derivative_bound(self) -> float:
        r"""Return an upper bound of $|d^3\Lambda(cu)/dc^3|$ for $|c|\le10^{-3}$.

        This derivative is the third central moment of the score under the tilted law. Let x be the
        score minus its mean without tilt. For every s, the moment is at most
        $8E|x|^3e^{|cx|}\le16(3/(es'))^3E\cosh sx$ with $s'=s-10^{-3}$. The function returns the
        smallest bound over several s.
        """
        centre = self.derivatives(0.0)[0]
        with np.errstate(over="ignore", invalid="ignore"):
            cosh = 0.5 * sum(np.exp(self.at(s) - s * centre) for s in (_COSH, -_COSH))
        bounds = 16.0 * (3.0 / (math.e * (_COSH - _NEAR_ZERO.max()))) ** 3 * cosh
        return float(np.nan_to_num(bounds, nan=math.inf).min())

    def moments(self, law: AbstractMeasure, at: float) -> tuple[float, float]:
        r"""Return $d\Lambda(cu)/dc$ and $d^2\Lambda(cu)/dc^2$ from tilted moments of `law`."""
        tilt = to_device(at * self.tilt, jnp.result_type(float))
        mean, cov = as_float64(law.tilted_mean(tilt)), as_float64(law.tilted_cov(tilt))
        return float(self.tilt @ mean), float(self.tilt @ cov @ self.tilt)


@dataclasses.dataclass(frozen=True)
class _Subject:
    """A law, the directions along which it is checked, and the size of its tokens.

    Attributes:
        law: the law, in double precision.
        samples: the number of tokens to draw.
        key: the random key of the samples.
        directions: coordinate axes, sums of two axes if the dimension is small, and random
            directions.
        mean: the mean of a token, [d]; NaN if zero is not inside the domain.
        cov: the covariance of a token, [d, d]; NaN if zero is not inside the domain.
        size: the root mean square norm of a token.
        precisions: the dtypes in which derivatives near zero are checked.
    """

    law: AbstractMeasure
    samples: int
    key: PRNGKeyArray
    directions: list[_Direction]
    mean: Array
    cov: Array
    size: float
    precisions: tuple[type[np.floating], ...]

    @staticmethod
    def of(
        law: AbstractMeasure,
        samples: int,
        key: PRNGKeyArray,
        precisions: tuple[type[np.floating], ...],
    ) -> "_Subject":
        """Return the subject. Samples set the scale of directions without a positive variance."""
        tokens = _drawn(law, jax.random.fold_in(key, 0), _FEWEST)
        size = float(np.sqrt((tokens**2).sum(axis=1).mean()))
        try:
            mean, cov = as_float64(law.mean), as_float64(law.cov)
        except OutsideDomainError:
            mean, cov = np.full(law.dim, np.nan), np.full((law.dim, law.dim), np.nan)
        directions = []
        for name, unit in _unit_vectors(law.dim).items():
            along, variance = tokens @ unit, float(unit @ cov @ unit)
            deviation = math.sqrt(variance) if variance > 0.0 else float(along.std())
            scales = (deviation, abs(float(along[0])))
            tilt = unit / next((one for one in scales if one > _DIGITS * size), size or 1.0)
            directions.append(_Direction(name, tilt, Ray(law, tilt)))
        return _Subject(law, samples, key, directions, mean, cov, size, precisions)

    @property
    def has_moments(self) -> bool:
        """Whether mean and covariance are finite."""
        return bool(np.isfinite(self.mean).all() and np.isfinite(self.cov).all())

    def tilted_moments(self, tilt: Array) -> tuple[Array, Array]:
        """Return the mean and the covariance under the tilted law."""
        point = to_device(tilt)
        return as_float64(self.law.tilted_mean(point)), as_float64(self.law.tilted_cov(point))

    @cached_property
    def tilts(self) -> "tuple[list[_Tilt], int]":
        """The tilts for which there are enough samples, and the number of tilts left out."""
        allowed = 0.5 * _SKEWED * math.sqrt(self.samples)
        scales = np.array([sign * scale for scale in _SCALES for sign in (1.0, -1.0)])
        found, few = [], self.directions[:2] + self.directions[2:][-2:]
        for direction in few:
            values = np.stack([direction.at(factor * scales) for factor in (1.0, 2.0, 3.0)])
            with np.errstate(invalid="ignore", over="ignore"):
                uneven = np.exp(values[2] - 1.5 * values[1])
            for n in np.flatnonzero(uneven <= allowed):
                numbers = float(scales[n]), float(values[0, n]), float(values[1, n])
                found.append(_Tilt(direction, *numbers))
        return found, len(few) * scales.size - len(found)


class _Tilt(NamedTuple):
    r"""A tilt t = `scale` times `direction.tilt`, with $\Lambda(t)$ and $\Lambda(2t)$."""

    direction: _Direction
    scale: float
    value: float
    twice: float

    @property
    def tilt(self) -> Array:
        """The tilt t."""
        return self.scale * self.direction.tilt

    @property
    def place(self) -> str:
        """The tilt as text for messages."""
        return f"{self.scale:g} standard deviations along {self.direction.name}"


def _drawn(law: AbstractMeasure, key: PRNGKeyArray, count: int) -> Array:
    """Return tokens from `sample`, [count, d]; raise if their shape or an entry is invalid."""
    tokens = as_float64(law.sample(count, key=key))
    if tokens.shape != (count, law.dim):
        shape = f"shape {tokens.shape} for {count} tokens of dimension {law.dim}"
        raise _mismatch(law, "samples", f"`sample` returns {shape}")
    if not np.isfinite(tokens).all():
        raise _mismatch(law, "samples", "`sample` returns tokens that are not finite")
    return tokens


def _unit_vectors(dim: int) -> dict[str, Array]:
    eye = np.eye(dim)
    axes = np.unique(np.linspace(0, dim - 1, min(dim, _MOST_AXES)).round().astype(int))
    named = {f"coordinate {i}": eye[i] for i in axes}
    if dim <= 6:
        pairs = itertools.combinations(range(dim), 2)
        named |= {f"coordinates {i} + {j}": eye[i] + eye[j] for i, j in pairs}
    if dim > 1:
        dense = np.random.default_rng(0).normal(size=(_DENSE, dim))
        named |= {f"direction {k}": row for k, row in enumerate(dense)}
    return {name: row / np.linalg.norm(row) for name, row in named.items()}


# ---------------------------------------------------------------- checks without samples


def _no_transform(_: _Subject) -> Iterator[_Finding]:
    yield _Finding("domain", None, "the transform is finite only at zero: no limit exists")


def _domain(subject: _Subject) -> Iterator[_Finding]:
    for direction in subject.directions:
        at_zero = float(direction.at(np.zeros(1))[0])
        message = f"`log_laplace` is {at_zero:.6g} at zero, not 0"
        yield _Finding("domain", abs(at_zero) / _DIGITS, message)
        finite = np.isfinite(direction.at(_GRID))
        if subject.law.finite_everywhere and not finite.all():
            message = (
                "`finite_everywhere` is True and `log_laplace` is not finite at "
                f"{_GRID[~finite][0]:g} standard deviations along {direction.name}"
            )
            yield _Finding("domain", math.inf, message)
        inside = np.flatnonzero(finite)
        if not finite[inside[0] : inside[-1] + 1].all():
            message = f"`log_laplace` is not finite on an interval along {direction.name}"
            yield _Finding("domain", math.inf, message)


def _convexity(subject: _Subject) -> Iterator[_Finding]:
    for direction in subject.directions:
        values = direction.at(_GRID)
        bend = values[2:] - 2.0 * values[1:-1] + values[:-2]
        shares = np.nan_to_num(-bend / (_DIGITS * (1.0 + np.abs(values[1:-1]))), nan=0.0)
        worst = int(np.argmax(shares))
        message = (
            f"`log_laplace` is not convex at {_GRID[1 + worst]:g} standard deviations along "
            f"{direction.name}"
        )
        yield _Finding("convexity", max(0.0, float(shares[worst])), message)


def _derivatives(subject: _Subject) -> Iterator[_Finding]:
    if subject.has_moments:
        for direction in subject.directions:
            yield from _slopes(direction, 0.0, subject.mean, subject.cov)
    else:
        yield _Finding("moments", None, "zero is not inside the domain")
    tilts, unresolved = subject.tilts
    for one in tilts:
        yield from _slopes(one.direction, one.scale, *subject.tilted_moments(one.tilt))
    if unresolved:
        note = f"{unresolved} of {unresolved + len(tilts)}: too few samples for them"
        yield _Finding("tilts left out", None, note)


def _slopes(direction: _Direction, at: float, mean: Array, cov: Array) -> Iterator[_Finding]:
    """Yield comparisons of a mean and covariance with finite differences along a direction."""
    found = float(direction.tilt @ mean), float(direction.tilt @ cov @ direction.tilt)
    methods = ("`tilted_mean`", "`tilted_cov`") if at else ("`mean`", "`cov`")
    length = np.linalg.norm(direction.tilt)
    units = (length, length**2)
    for method, here, there, unit in zip(
        methods, found, direction.derivatives(at), units, strict=True
    ):
        if not math.isnan(there):
            share = abs(here - there) / (4.0 * _TOLERANCE * max(1.0, abs(there)))
            message = (
                f"{method} is {here / unit:.6g} at {at:g} standard deviations along "
                f"{direction.name}, where differences of `log_laplace` give {there / unit:.6g}"
            )
            yield _Finding("derivatives", share, message)


def _near_zero(subject: _Subject) -> Iterator[_Finding]:
    r"""Yield comparisons of the first two derivatives of $\Lambda(cu)$ at small c and at zero.

    Let B be an upper bound of the third derivative. The first derivative changes by c times the
    second derivative, up to an error of $Bc^2/2$, and the second derivative by at most $B|c|$.
    Derivatives of formulas such as $\log(\sinh(t)/t)$ lose all digits near zero.
    """
    few = subject.directions[:2] + subject.directions[2:][-2:]
    bounded = [(one, one.third_derivative_bound()) for one in few]
    for dtype in subject.precisions:
        with jax.enable_x64(dtype == np.float64):  # a `yield` inside would leave it changed
            law = in_precision(subject.law, dtype)
            findings = [
                finding
                for direction, bound in bounded
                if math.isfinite(bound)
                for finding in _lost_digits(law, direction, bound, subject.size)
            ]
        yield from findings


def _lost_digits(
    law: AbstractMeasure, direction: _Direction, bound: float, size: float
) -> Iterator[_Finding]:
    """Yield the comparisons along one direction, in the current precision of jax."""
    dtype, length = jnp.result_type(float), float(np.linalg.norm(direction.tilt))
    rounding, size = _LOST * float(jnp.finfo(dtype).eps), 1.0 + size * length
    mean, cov = direction.moments(law, 0.0)
    for at in _NEAR_ZERO:
        mean_there, cov_there = direction.moments(law, at)
        change = 4.0 * _TOLERANCE * cov
        for method, found, expected, allowed, power in (
            (
                "tilted_mean",
                mean_there,
                mean + at * cov,
                abs(at) * (change + 0.5 * bound * abs(at)),
                1,
            ),
            ("tilted_cov", cov_there, cov, change + bound * abs(at), 2),
        ):
            share = abs(found - expected) / (rounding * size**power + allowed)
            message = (
                f"`{method}` is {found / length**power:.6g} in {dtype} at {at:g} standard "
                f"deviations along {direction.name}, where the tilted moments at 0 give "
                f"{expected / length**power:.6g}. The derivatives of `log_laplace` lose digits "
                "near zero; replace its formula by a power series there"
            )
            yield _Finding("digits near zero", np.nan_to_num(share, nan=math.inf), message)


def _parts_and_proxy(subject: _Subject) -> Iterator[_Finding]:
    parts, proxy = subject.law.gaussian_parts(), subject.law.variance_proxy()
    for direction, scale in itertools.product(subject.directions, (-1.2, -0.3, 0.3, 1.2)):
        tilt, value = scale * direction.tilt, float(direction.at(np.array([scale]))[0])
        allowed = 10.0 * _DIGITS * (1.0 + abs(value))
        claim = (
            f"at {scale:g} standard deviations along {direction.name} `log_laplace` is {value:.6g}"
        )
        if parts is not None:
            pull = np.einsum("cij,i,j->c", parts.all_covs(), tilt, tilt)
            other = np.logaddexp.reduce(np.log(parts.weights) + parts.means @ tilt + 0.5 * pull)
            message = f"{claim} and `gaussian_parts` give {other:.6g}"
            yield _Finding("Gaussian parts", abs(other - value) / allowed, message)
        if proxy is not None:
            most = float(tilt @ proxy.mean + 0.5 * tilt @ proxy.matrix @ tilt)
            message = f"{claim}, more than the {most:.6g} of `variance_proxy`"
            yield _Finding("variance proxy", max(value - most, 0.0) / allowed, message)


# ---------------------------------------------------------------- checks with samples


@dataclasses.dataclass(frozen=True)
class _SampleMeans:
    """Means over samples of n statistics whose expectation is zero for a correct law.

    Attributes:
        check: the name of the check.
        labels: the tilt or direction of each statistic, [n].
        claimed: the values according to `log_laplace`, [n].
        deviation: the standard deviation of each statistic for one token, [n].
        floor: the largest difference that rounding can cause.
        statistic: a function that returns the statistics, [samples, n], of tokens, [samples, d].
        units: the factors by which messages divide the numbers, [n] or a number.
    """

    check: str
    labels: list[str]
    claimed: Array
    deviation: Array
    floor: float
    statistic: Callable[[Array], Array]
    units: Array | float = 1.0


def _against_samples(subject: _Subject) -> Iterator[_Finding]:
    """Yield the comparisons of sample means with zero."""
    means = []
    for one in itertools.chain(_moments(subject), _tilted_means(subject), _continuation(subject)):
        if isinstance(one, _Finding):
            yield one
        else:
            means.append(one)
    count = sum(len(one.labels) for one in means)
    totals = [np.zeros(len(one.labels)) for one in means]
    for block, start in enumerate(range(0, subject.samples, _CHUNK)):
        key = jax.random.fold_in(subject.key, 1 + block)
        tokens = _drawn(subject.law, key, min(_CHUNK, subject.samples - start))
        for place, one in enumerate(means):
            totals[place] += one.statistic(tokens).sum(axis=0)
    most = float(norm.isf(_NOMINAL / (2 * max(count, 1))))
    for one, total in zip(means, totals, strict=True):
        found, errors = total / subject.samples, one.deviation / math.sqrt(subject.samples)
        units = np.broadcast_to(one.units, found.shape)
        rows = zip(one.labels, one.claimed, found, errors, units, strict=True)
        for label, claimed, mean, error, unit in rows:
            size = f"{abs(mean) / error:.3g} standard errors" if error > 0.0 else "no noise"
            message = (
                f"{label}, `log_laplace` gives {claimed / unit:.6g} and the samples differ by "
                f"{mean / unit:+.3g} ({size}, at most {most:.3g} are allowed)"
            )
            allowed = max(most * error + one.floor, _SMALLEST)
            yield _Finding(one.check, abs(mean) / allowed, message)


def _moments(subject: _Subject) -> Iterator[_SampleMeans | _Finding]:
    """Yield the checks of mean and covariance along the directions."""
    if not subject.has_moments:
        return
    directions = subject.directions
    tilts = np.stack([direction.tilt for direction in directions])
    centres, spreads = tilts @ subject.mean, np.einsum("ki,ij,kj->k", tilts, subject.cov, tilts)
    pairs = zip(directions, centres, strict=True)
    fourth, sixth = np.array([one.moment_bounds(float(c)) for one, c in pairs]).T
    quartic = np.maximum(fourth - spreads**2, 0.5 * spreads**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Upper bounds of E|x|^3 / sd^3 for x and for x^2 - v, with x the centred score of variance
        # v. The bound for x^2 - v is loose and is therefore divided by 3.
        skewed = np.sqrt(fourth) / spreads
        uneven = (sixth + spreads**3) / (3.0 * quartic**1.5)
    lengths = np.linalg.norm(tilts, axis=1)
    size = subject.size * float(lengths.max())
    for check, claimed, variance, ratio, power in (
        ("mean", centres, spreads, skewed, 1),
        ("covariance", spreads, quartic, uneven, 2),
    ):
        resolved = (ratio <= _SKEWED * math.sqrt(subject.samples)) | (spreads == 0.0)
        rows = np.flatnonzero(resolved & np.isfinite(variance))

        def statistic(tokens: Array, rows: np.ndarray = rows, power: int = power) -> Array:
            along = tokens @ tilts[rows].T - centres[rows]
            return along if power == 1 else along**2 - spreads[rows]

        labels = [directions[k].name for k in rows]
        deviation, floor = np.sqrt(np.maximum(variance[rows], 0.0)), _DIGITS * size**power
        units = lengths[rows] ** power
        yield _SampleMeans(check, labels, claimed[rows], deviation, floor, statistic, units)
        if rows.size < len(directions):
            note = f"{len(directions) - rows.size} comparisons: more samples are needed"
            yield _Finding(f"{check}, left out", None, note)


def _tilted_means(subject: _Subject) -> Iterator[_SampleMeans]:
    r"""Yield the checks *transform* and *tilted mean* of `check_law`."""
    for one in subject.tilts[0]:
        mean, _ = subject.tilted_moments(one.tilt)
        later, cov = subject.tilted_moments(2.0 * one.tilt)

        def transform(tokens: Array, one: _Tilt = one) -> Array:
            return np.expm1(tokens @ one.tilt - one.value)[:, None]

        def moved(tokens: Array, one: _Tilt = one, mean: Array = mean) -> Array:
            return np.exp(tokens @ one.tilt - one.value)[:, None] * (tokens - mean)

        growth = math.exp(one.twice - 2.0 * one.value)
        spread = np.sqrt(np.maximum([growth - 1.0], 0.0))
        yield _SampleMeans("transform", [one.place], np.ones(1), spread, 10.0 * _DIGITS, transform)
        labels = [f"coordinate {i} at {one.place}" for i in range(mean.size)]
        spread = np.sqrt(growth * np.maximum(np.diag(cov) + (later - mean) ** 2, 0.0))
        yield _SampleMeans(
            "tilted mean", labels, mean, spread, 10.0 * _DIGITS * subject.size, moved
        )


def _continuation(subject: _Subject) -> Iterator[_SampleMeans | _Finding]:
    r"""Yield the checks of $\Lambda$ at complex tilts, or a note if $\Lambda$ is not analytic."""
    tilts = [one for one in subject.tilts[0] if abs(one.scale) <= 1.2]
    try:
        for one in tilts[:1]:
            Ray(subject.law, 0.3 * one.direction.tilt).require_analytic()
    except (NotAnalyticError, OutsideDomainError) as error:
        yield _Finding("continuation", None, f"no exact results: {error}")
        return
    for one in tilts:
        multiples = one.scale * _MULTIPLES
        real = one.direction.at(multiples.real)
        values = np.exp(one.direction.ray.log_laplace(multiples) - real)
        growth = np.exp(one.direction.at(2.0 * multiples.real) - 2.0 * real)

        def statistic(
            tokens: Array, one: _Tilt = one, real: Array = real, values: np.ndarray = values
        ) -> Array:
            powers = np.exp(np.outer(tokens @ one.tilt, _MULTIPLES) - real) - values
            return np.concatenate([powers.real, powers.imag], axis=1)

        parts = itertools.product(("real", "imaginary"), _MULTIPLES)
        labels = [f"the {part} part at {c:g} times {one.place}" for part, c in parts]
        claimed = np.concatenate([values.real, values.imag])
        spread = np.tile(np.sqrt(growth), 2)
        yield _SampleMeans("continuation", labels, claimed, spread, 10.0 * _DIGITS, statistic)


Check = Callable[[_Subject], Iterator[_Finding]]

_CHECKS: tuple[Check, ...] = (
    _domain,
    _convexity,
    _derivatives,
    _near_zero,
    _parts_and_proxy,
    _against_samples,
)
