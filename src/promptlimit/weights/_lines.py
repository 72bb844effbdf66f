r"""The law of a token along a tilt t, as integrals over complex multiples ct of the tilt.

With s the score of a token and $x=e^{s+u}$, Mellin's inversion formula on a vertical line is

    F_k[f](u) = E[f x^k e^{-x}] = 1/(2 pi i) int Gamma(k-c) e^{cu} E[f e^{cs}] dc,    Re c < k.

On a line to the right of some of the poles c = k, k+1, ..., the means of the first terms of
$f\,x^k(1-x+x^2/2-\dots)$, one for each of these poles, are added to the integral. For each u, the
line crosses the real axis near the minimum of the integrand on that axis, so that few digits cancel
(docs/finite.md, section 3).
"""

import dataclasses
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy.special import digamma, loggamma

from promptlimit._arrays import Array
from promptlimit.errors import AccuracyError, NotAnalyticError
from promptlimit.measures import AbstractMeasure
from promptlimit.weights._atoms import token_list
from promptlimit.weights._gaussian_law import GaussianLaw
from promptlimit.weights._gaussian_score import log_from
from promptlimit.weights._ray import (
    LEFT,
    NEAR,
    POINTS,
    RIGHT,
    Complex,
    Ray,
)
from promptlimit.weights._score_law import (
    EPSILON,
    NEGLIGIBLE,
    SMALLEST,
    AbstractProducts,
    AbstractScoreLaw,
    PartitionMeans,
    Scores,
    SquareMeans,
    assembled,
)

_SLACK = 4.0
"""The largest excess of the log-integrand over its minimum, where a line crosses the axis."""

_COARSE = 0.5
"""The spacing in u of the grid on which lines are chosen."""

_HIGHEST = 90.0
"""The largest imaginary part of a node. Above it, the gamma function is negligible."""

_MOST_PARTS = 64
"""The largest number of Gaussian parts for `GaussianLaw`; for more parts `RayLaw` is faster."""

_FIXED_COST = 20.0
"""The cost of a line apart from its nodes, in units of the period (`_nearest_copies`)."""

_MOST_NODES = 2**15
_MOST_WAVES = 2**23
"""The largest number of nodes c times nodes u on one line; enough for scores up to 500 apart."""

_SHIFTS = 12
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


@dataclasses.dataclass(frozen=True)
class Line:
    r"""One vertical line of integration, with its nodes in the upper half plane.

    Attributes:
        real: $c_0$, the point at which the line crosses the real axis.
        log_size: the logarithm of the integrand at $c_0$, without the factor $e^{c_0u}$.
        multiples: the nodes c, [j].
        weights: the weights of the trapezoidal rule, which include the lower half plane and the
            factor $1/(2\pi)$, [j].
        start: the first u for which the line is used.
    """

    real: float
    log_size: float
    multiples: Complex
    weights: Array
    start: float

    def waves(self, u: Array) -> Complex:
        r"""Return $e^{(c-c_0)u}$, [j, u], for evenly spaced u."""
        if self.multiples.size * u.size > _MOST_WAVES:
            raise _too_far_apart(self.multiples.size)
        return np.exp(np.outer(self.multiples - self.real, u))

    def scale(self, u: Array) -> Array:
        r"""Return the integrand at $c_0$, including the factor $e^{c_0u}$, [u]."""
        return np.exp(self.real * u + self.log_size)

    def rounding(self, u: Array) -> Array:
        """Return an estimate of the relative rounding error of a term of the sum over c, [u]."""
        return EPSILON * (4.0 + np.abs(self.real * u) + abs(self.log_size))


@dataclasses.dataclass(frozen=True)
class _Kernel:
    r"""The kernel $x^ke^{-x^n}$, whose Mellin transform is $\frac1n\Gamma((k-c)/n)$.

    Attributes:
        power: k.
        exponent: n.
        most: the largest real part of a line.
    """

    power: int
    exponent: int = 1
    most: float = math.inf

    def log_transform(self, c: Complex) -> Complex:
        return loggamma((self.power - c) / self.exponent) - math.log(self.exponent)


@dataclasses.dataclass(frozen=True)
class RayLaw(AbstractScoreLaw):
    """The law of a token, for any law whose log-Laplace transform is analytic."""

    ray: Ray

    @property
    def tilt(self) -> Array:
        """The tilt t."""
        return self.ray.tilt

    @cached_property
    def _axis(self) -> tuple[Array, Array, tuple[float, float]]:
        r"""Real c at which a line may cross, $\Lambda(ct)$ there, and `at_poles`."""
        low, high = self.ray.domain
        points, log_laplace = POINTS, self.ray.on_points
        if (low, high) != (LEFT, RIGHT):
            ends = [low + (high - low) * NEAR, high - (high - low) * NEAR]
            points = np.unique(np.concatenate([POINTS, *ends]))
            log_laplace = self.ray.log_laplace(points)
        poles = np.abs(points[:, None] - np.arange(4)).min(axis=1)
        usable = (poles > 0.5 * NEAR[0]) & (points > low) & (points < high)
        once, twice = (float(log_laplace[np.searchsorted(points, pole)]) for pole in (1, 2))
        return points[usable], log_laplace[usable], (once, twice)

    @property
    def at_poles(self) -> tuple[float, float]:
        r"""$\Lambda(t)$ and $\Lambda(2t)$."""
        return self._axis[2]

    @property
    def offset(self) -> float:
        """Zero."""
        return 0.0

    def score_of(self, token: Array) -> float:
        return float(token @ self.tilt)

    @property
    def log_mean(self) -> float:
        return self.at_poles[0]

    def window(self, longest: float, shortest: float) -> tuple[float, float]:
        # 1 - phi <= E x^c for 0 < c <= 1, and phi <= 4 Gamma(-c) E x^c for -60 <= c < 0.
        points, log_laplace, _ = self._axis
        inside = (points > 0.0) & (points <= 1.0)
        target = -NEGLIGIBLE - math.log(longest)
        left = ((target - log_laplace[inside]) / points[inside]).max()
        left = max(left, target - self.log_mean)
        below = points < -0.01
        if not below.any():
            raise _slow_tail(self.ray.domain[0])
        size = log_laplace[below] + loggamma(-points[below] + 0j).real
        right = ((-NEGLIGIBLE / shortest - 4.0 - size) / points[below]).min()
        return float(left), float(right)

    def _lines(self, kernel: _Kernel, low: float, high: float, pole: int) -> list[Line]:
        """Return lines for all u from `low` to `high`, in increasing order of `Line.start`."""
        points, log_laplace, at_poles = self._axis
        power, allowed = kernel.power, points < kernel.most
        points, log_laplace = points[allowed], log_laplace[allowed]
        log_size = kernel.log_transform(points.astype(np.complex128)).real + log_laplace
        nearest = _nearest_copies(points, log_size, power)
        placed = np.isfinite(nearest).all(axis=0)
        points, log_size, nearest = points[placed], log_size[placed], nearest[:, placed]
        if not points.size:
            raise _slow_tail(self.ray.domain[0])
        grid = np.arange(low, high + _COARSE, _COARSE)
        excess = log_size + np.outer(grid, points)
        floor = excess.min(axis=1)
        crossed = points[excess.argmin(axis=1)] > pole
        leading = pole * grid + at_poles[pole - 1]
        floor = np.where(crossed, np.maximum(floor, leading), floor)
        runs = _runs(excess - floor[:, None] <= _SLACK)
        lines, start = [], 0
        while start < grid.size:
            usable = np.flatnonzero(runs[start])
            stops = np.minimum(start + runs[start, usable], grid.size - 1)
            ends = np.stack([np.full(usable.size, grid[start]), grid[stops]])
            period = np.max([nearest[0, usable] + ends, nearest[1, usable] - ends], axis=(0, 1))
            best = int((runs[start, usable] / (period + _FIXED_COST)).argmax())
            at = int(usable[best])
            numbers = points[at], log_size[at], period[best], grid[start]
            lines.append(_line(kernel, *map(float, numbers)))
            start += int(runs[start, at])
        return lines

    def integrands(self, kernel: _Kernel, u: Array, pole: int) -> list[tuple[Line, Complex, slice]]:
        r"""Return the lines, each with its integrand at its nodes and the slice of u that use it.

        The integrand is the Mellin transform of the kernel times $e^{\Lambda(ct)}$ and the weights
        of the nodes, divided by its size at $c_0$. Nodes at which the integrand is negligible are
        left out. To the right of the pole at c = `pole`, 1 or 2, a line may cross the axis where
        the integrand is as large as the term of this pole.
        """
        lines = self._lines(kernel, u[0], u[-1], pole)
        multiples = np.concatenate([line.multiples for line in lines])
        exponent = self.ray.log_laplace(multiples) + kernel.log_transform(multiples)
        if not np.isfinite(exponent).all():
            raise NotAnalyticError(
                "its `log_laplace` is not finite at complex multiples of the tilt"
            )
        ends = np.searchsorted(u, [*(line.start for line in lines[1:]), np.inf])
        begins = np.concatenate([[0], ends[:-1]])
        pieces = np.split(exponent, np.cumsum([line.multiples.size for line in lines])[:-1])
        integrands = []
        for line, mine, begin, end in zip(lines, pieces, begins, ends, strict=True):
            if begin == end:
                continue
            relative = mine - line.log_size
            kept = relative.real > -NEGLIGIBLE
            nodes = line.multiples[kept], line.weights[kept]
            fewer = dataclasses.replace(line, multiples=nodes[0], weights=nodes[1])
            integrands.append((fewer, nodes[1] * np.exp(relative[kept]), slice(begin, end)))
        return integrands

    def ends(self, value: Array) -> tuple[Array, Array, Array]:
        ends = np.array([1.0, 0.0], dtype=np.complex128)
        ((_, slopes, curvatures),) = self.ray.derivatives(value, ends)
        if not np.isfinite(slopes[0]).all():
            raise NotAnalyticError("the gradient of its `log_laplace` is not finite at the tilt")
        return slopes[0].real, slopes[1].real, curvatures[1].real

    def readings(
        self, value: Array, limit: Array, products: AbstractProducts
    ) -> Iterator[tuple[slice, Complex, Complex, Array, Array]]:
        r"""Yield places, $V\nabla\Lambda(ct)-T$ and $V\nabla^2\Lambda(ct)V'$ there, and errors.

        Errors are measured by computing the derivatives again at multiples c that differ in the
        last digits, because a user-defined transform may lose digits. Near a zero of $E\,e^{cs}$,
        the errors of the two derivatives are large and cancel in the second moment. The error of
        the second moment is therefore measured directly.
        """
        if not isinstance(products, LineProducts):
            raise TypeError(f"products of lines are needed, got {type(products).__name__}")
        c = products.multiples
        moved = c * (1.0 + 8.0 * EPSILON) + 1j * EPSILON
        pairs = np.stack([c, moved], axis=1).ravel()  # chunks are even, so pairs stay together
        for part, slopes, curvatures in self.ray.derivatives(value, pairs):
            slope, curvature = slopes[::2], curvatures[::2]
            limit_errors = EPSILON * np.linalg.norm(slope, axis=1)
            errors = np.linalg.norm(slope - slopes[1::2], axis=1) + limit_errors
            centred = slope - limit
            squares = ((slopes - limit) ** 2).sum(axis=1) + np.trace(curvatures, axis1=1, axis2=2)
            second_errors = np.abs(squares[::2] - squares[1::2])
            second_errors += limit_errors * (2.0 * np.linalg.norm(centred, axis=1) + limit_errors)
            places = slice(part.start // 2, part.stop // 2)
            yield places, centred, curvature, errors, second_errors

    def scores(self, u: Array) -> Scores:
        at_poles = self.at_poles
        log_phi, rounding, mass = np.empty((3, u.size))
        for line, integrand, part in self.integrands(_Kernel(0), u, 1):
            here = u[part]
            waves, scale = line.waves(here), line.scale(here)
            zeroth = (integrand @ waves).real * scale
            first = ((-line.multiples * integrand) @ waves).real * scale
            once = np.exp(here + at_poles[0]) if line.real > 1.0 else 0.0
            twice = np.exp(2.0 * here + at_poles[1]) if line.real > 2.0 else 0.0
            mass[part] = first + once - twice
            size = np.abs(integrand).sum() * scale + once + twice
            if line.real > 0.0:  # the integral is phi minus the first terms of 1 - x + x^2/2 - ...
                log_phi[part] = np.log1p(np.maximum(zeroth - once + 0.5 * twice, -1.0 + EPSILON))
            else:
                log_phi[part] = np.log(np.maximum(zeroth, SMALLEST))
            rounding[part] = line.rounding(here) * size * np.exp(-log_phi[part])
        return Scores(u, np.minimum(log_phi, 0.0), rounding, mass)

    def partition_means(self, u: Array) -> PartitionMeans:
        return ray_score_means(self, u)

    def square_window(self, longest: float, shortest: float) -> tuple[float, float]:
        points, log_laplace, _ = self._axis
        inside = (points > 0.0) & (points <= 2.0)
        target = -NEGLIGIBLE - math.log(longest)
        low = 2.0 * ((target - log_laplace[inside]) / points[inside]).max()
        low = min(low, target - math.log(longest) - 2.0 * self.log_mean)
        return float(low), 2.0 * self.window(longest, shortest)[1]

    def square_means(self, u: Array) -> SquareMeans:
        r"""Return $\ln E\,e^{-x^2}$, $E[xe^{-x^2}]$ and $E[x^2e^{-x^2}]$ with $x=e^{s+u/2}$.

        For the mean of $x^ke^{-x^2}$, lines are to the left of the first pole at c = k. For k = 0,
        lines may also be between the poles at 0 and 2, where the integral is the mean of
        $e^{-x^2}-1$.
        """
        found = np.empty((3, u.size))
        for power, most in ((0, 2.0), (1, 1.0), (2, 2.0)):
            for line, integrand, part in self.integrands(_Kernel(power, 2, most), 0.5 * u, 2):
                here = 0.5 * u[part]
                value = (integrand @ line.waves(here)).real * line.scale(here)
                if power == 0:
                    less = value if line.real > 0.0 else value - 1.0
                    value = log_from(1.0 + value if line.real > 0.0 else value, -less)
                found[power, part] = value
        return SquareMeans(u, *found)

    def products(self, power: int, u: Array) -> "LineProducts":
        density, start, lines = np.empty(u.size), 0, []
        for line, integrand, part in self.integrands(_Kernel(power), u, power):
            here = u[part]
            c, waves, scale = line.multiples, line.waves(here), line.scale(here)
            upper, lower = integrand, integrand / (power - 1.0 - c)
            for order, pole in enumerate(range(power, math.ceil(line.real))):
                # add the terms of x^k (1 - x + ...) and x^{k-1} (1 - x + ...) for these poles
                c = np.append(c, float(pole))
                term = (pole - line.real) * here + self._axis[2][pole - 1] - line.log_size
                waves = np.vstack([waves, np.exp(term)])
                sign = (-1.0) ** order
                upper = np.append(upper, sign / math.factorial(order))
                lower = np.append(lower, -sign / math.factorial(order + 1))
            density[part] = (upper @ waves).real * scale
            place = slice(start, start + c.size)
            rounding = line.rounding(here)
            lines.append(_LineSums(place, part, c, upper, lower, waves, scale, rounding))
            start += c.size
        return LineProducts(density, np.ones(start), lines)


@dataclasses.dataclass(frozen=True)
class _LineSums:
    r"""Factors that turn $E[fe^{cs}]/E[e^{cs}]$ on one line into $F_k[f]$ and $F_{k-1}[f]$.

    Attributes:
        place: the positions of the multiples of this line among the multiples of all lines.
        part: the nodes u that use the line.
        multiples: c, [j].
        upper: the factors of $F_k$, [j].
        lower: the factors of $F_{k-1}$, [j].
        waves: $e^{(c-c_0)u}$, [j, u].
        scale: $e^{c_0u}$ times the size of the integrand, [u].
        rounding: the relative rounding error of a term, [u].
    """

    place: slice
    part: slice
    multiples: Complex
    upper: Complex
    lower: Complex
    waves: Complex
    scale: Array
    rounding: Array


@dataclasses.dataclass(frozen=True)
class LineProducts(AbstractProducts):
    """Sums over multiples c on lines."""

    lines: list[_LineSums]

    @cached_property
    def multiples(self) -> Complex:
        """The multiples c of all lines, [j]."""
        return np.concatenate([line.multiples for line in self.lines])

    def shares(self, weights: Array) -> tuple[Complex, Array]:
        shares, roundings = [], []
        for line in self.lines:
            weighted = weights[:, line.part] * line.scale
            shares.append((weighted @ line.waves.T) * line.upper)
            roundings.append((weighted @ line.rounding)[:, None] * np.abs(line.upper))
        return np.concatenate(shares, axis=1), np.concatenate(roundings, axis=1)

    def lower(self, centred: Complex, mean_errors: Array) -> tuple[Array, Array]:

        lowered = np.empty((self.density.size, centred.shape[1]))
        errors = np.empty(self.density.size)
        for line in self.lines:
            terms = line.lower[:, None] * centred[line.place]
            lowered[line.part] = (terms.T @ line.waves).real.T * line.scale[:, None]
            sizes = np.linalg.norm(terms, axis=1), np.abs(line.lower) * mean_errors[line.place]
            of_sums, of_means = (size @ np.abs(line.waves) for size in sizes)
            errors[line.part] = (of_sums * line.rounding + of_means) * line.scale
        return lowered, errors


def _runs(good: np.ndarray) -> np.ndarray:
    """Return, for each entry, the number of consecutive true entries from it down its column."""
    rows = np.arange(len(good))[:, None]
    next_false = np.where(good, len(good), rows)[::-1]
    return np.minimum.accumulate(next_false, axis=0)[::-1] - rows


def _nearest_copies(points: Array, log_size: Array, power: int) -> Array:
    r"""Return the smallest period $P=2\pi/h$ with negligible aliases at u = 0, [2, point].

    A trapezoidal rule of step h adds aliases to the integral F(u): copies shifted in u by
    multiples of P. On the line through a point, an alias is at most $e^{-\delta P}$ times the
    integrand on a second line at distance $\delta$ without a pole in between. The two rows are for
    second lines to the right and to the left. At other u, P is larger by u or by -u, respectively.
    """
    distance = points[None, :] - points[:, None]
    strip = np.floor(np.maximum(points, power - 0.5))
    allowed = strip[None, :] == strip[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = (log_size[None, :] - log_size[:, None] + NEGLIGIBLE) / np.abs(distance)
    sides = [np.where(allowed & (sign * distance > 0), needed, np.inf) for sign in (1, -1)]
    return np.stack([side.min(axis=1) for side in sides])


def _line(kernel: _Kernel, real: float, log_size: float, period: float, start: float) -> Line:
    step = 2.0 * math.pi / max(period, 2.0)
    height = np.arange(0.0, _HIGHEST, step)
    if height.size > _MOST_NODES:
        raise _too_far_apart(height.size)
    decay = kernel.log_transform(real + 1j * height).real
    height = height[: int(np.flatnonzero(decay > decay[0] - NEGLIGIBLE)[-1]) + 2]
    weights = np.full(height.size, step / math.pi)
    weights[0] *= 0.5
    return Line(real, log_size, (real + 1j * height).astype(np.complex128), weights, start)


def _too_far_apart(nodes: int) -> AccuracyError:
    return AccuracyError(
        "the law of the scores must be narrow enough to integrate over, got one that needs "
        f"{nodes} nodes per line: scores lie hundreds apart, or their density falls slowly on one "
        "side. Scale the attention down.",
        argument="attention",
    )


def _slow_tail(low: float) -> AccuracyError:
    return AccuracyError(
        "the lower tail of the scores must fall fast enough to integrate over, got a log-Laplace "
        f"transform that is finite only above {low:.2g} times the tilt. Scale the attention down.",
        argument="attention",
    )


def score_law(measure: AbstractMeasure, tilt: Array) -> AbstractScoreLaw:
    """Return the law of a token along a tilt, from a list, Gaussian parts or the complex ray.

    Raises:
        NotAnalyticError: the law is neither a list nor a mixture of at most 64 Gaussians, and its
            transform is not analytic at complex tilts.
    """
    parts = measure.gaussian_parts()
    if parts is not None and parts.covs is None:
        return token_list(parts.weights, parts.means, tilt)
    if parts is not None and parts.weights.size <= _MOST_PARTS:
        return GaussianLaw(parts.weights, parts.means, parts.all_covs(), tilt)
    ray = Ray(measure, tilt)
    ray.require_analytic()
    return RayLaw(ray)


# ---------------------------------------------------------------- means for the log-partition


def ray_score_means(law: RayLaw, u: Array) -> PartitionMeans:
    r"""Return the `PartitionMeans` of a law on the ray.

    The Mellin transform of $x^ke^{-x}(\ln x)^j$ is $\Gamma^{(j)}(k-c)$: $\Gamma(k-c)$ times digamma
    and trigamma functions. The terms of the poles contain derivatives of $\Lambda$.
    """
    ends = np.array([1.0, 2.0], dtype=np.complex128)
    ((_, slopes, curvatures),) = law.ray.derivatives(law.tilt[None], ends)
    once, twice = law.at_poles
    tilted_mean, second_mean = (float(slope) for slope in slopes[:, 0].real)
    second_variance = float(curvatures[1, 0, 0].real)
    sums: dict[str, Array] = {}
    _add_first_powers(law, u, sums, (once, tilted_mean), (twice, second_mean))
    _add_squares(law, u, sums, (twice, second_mean, second_variance))
    level = u + tilted_mean
    sums["lean"] = sums["log_square"] - level * sums["square"]
    sums["spread"] = (
        sums["log_squares"] - 2.0 * level * sums["log_square"] + level**2 * sums["square"]
    )
    delta = np.minimum(sums["complement"], 1.0)
    excess = np.maximum(sums["remainder"] - 0.5 * delta**2, SMALLEST)
    errors = [
        sums["remainder_error"] / excess,
        (1.0 + np.abs(level)) * sums["missing_error"] / np.maximum(-sums["drift"], SMALLEST),
        (1.0 + level**2) * sums["square_error"] / np.maximum(sums["spread"], SMALLEST),
    ]
    return assembled(u, once, tilted_mean, sums, np.max(errors, axis=0))


def _add_first_powers(
    law: RayLaw,
    u: Array,
    sums: dict[str, Array],
    once: tuple[float, float],
    twice: tuple[float, float],
) -> None:
    r"""Add the means of $e^{-x}$, $xe^{-x}$ and $x\ln x\,e^{-x}$ to `sums`.

    `once` and `twice` are $(\Lambda,\Lambda')$, with derivatives in c, at c = 1 and at c = 2.
    """
    names = ("phi", "complement", "remainder", "mass", "missing", "log_mass", "drift")
    names += ("drift_missing", "remainder_error", "missing_error")
    sums |= {name: np.empty(u.size) for name in names}
    for line, integrand, part in law.integrands(_Kernel(0), u, 2):
        here = u[part]
        c, x = line.multiples, np.exp(here + once[0])
        rising = -c * integrand
        zeroth, first, logarithm = _along(
            line, here, [integrand, rising, rising * digamma(1.0 - c)]
        )
        square = np.exp(2.0 * here + twice[0]) if line.real > 2.0 else np.zeros_like(here)
        if line.real > 1.0:
            remainder, missing = zeroth + 0.5 * square, square - first
            log_missing = square * (here + twice[1]) - logarithm
            complement, mass = x - remainder, x - missing
            log_mass = x * (here + once[1]) - log_missing
            drift = (here + once[1]) * missing - log_missing
        else:
            complement = -zeroth if line.real > 0.0 else 1.0 - zeroth
            mass, log_mass = first, logarithm
            remainder, missing = x - complement, x - mass
            drift = log_mass - (here + once[1]) * mass
        phi = zeroth if line.real < 0.0 else 1.0 - complement
        errors = (
            _rounding_error(line, here, terms, value)
            for terms, value in ((integrand, remainder), (rising, missing))
        )
        rows = (phi, complement, remainder, mass, missing, log_mass, drift, drift, *errors)
        for name, row in zip(names, rows, strict=True):
            sums[name][part] = row


def _add_squares(
    law: RayLaw, u: Array, sums: dict[str, Array], twice: tuple[float, float, float]
) -> None:
    r"""Add the means of $(\ln x)^jx^2e^{-x}$ to `sums`.

    `twice` is $(\Lambda,\Lambda',\Lambda'')$, with derivatives in c, at c = 2.
    """
    names = ("square", "log_square", "log_squares", "square_error")
    sums |= {name: np.empty(u.size) for name in names}
    for line, integrand, part in law.integrands(_Kernel(2), u, 2):
        here = u[part]
        slope, curvature = digamma(2.0 - line.multiples), trigamma(2.0 - line.multiples)
        rows = _along(
            line, here, [integrand, slope * integrand, (slope**2 + curvature) * integrand]
        )
        if line.real > 2.0:
            level = here + twice[1]
            added = np.exp(2.0 * here + twice[0])
            rows = rows + added * np.stack([np.ones_like(level), level, level**2 + twice[2]])
        rows = (*rows, _rounding_error(line, here, integrand, rows[0]))
        for name, row in zip(names, rows, strict=True):
            sums[name][part] = row


def _along(line: Line, u: Array, integrands: list[Complex]) -> Array:
    """Return the integrals of several integrands along a line, [integrand, u]."""
    return (np.stack(integrands) @ line.waves(u)).real * line.scale(u)


def _rounding_error(line: Line, u: Array, integrand: Complex, value: Array) -> Array:
    """Return the rounding error of an integral along a line plus the terms of poles, `value`."""
    summed = line.rounding(u) * np.abs(integrand).sum() * line.scale(u)
    return summed + 4.0 * EPSILON * (1.0 + np.abs(u)) * np.abs(value)


def trigamma(z: Complex) -> Complex:
    r"""Return $\psi'(z)$ for complex z to the right of -3.

    $\psi'(z)=\sum_{k<12}(z+k)^{-2}+\psi'(z+12)$, and
    $\psi'(w)\approx1/w+1/(2w^2)+\sum_nB_{2n}/w^{2n+1}$ with the Bernoulli numbers $B_{2n}$.
    """
    near = sum((z + k) ** -2 for k in range(_SHIFTS))
    w = z + _SHIFTS
    series = sum(b * w ** -(2.0 * n + 3.0) for n, b in enumerate(_BERNOULLI))
    return near + 1.0 / w + 0.5 / w**2 + series
