r"""The law of the sharpness at a Gaussian query, and of quadratic forms given the sharpness.

The sharpness $\sigma$ is the standard deviation of the scores at a query z. For Gaussian tokens of
covariance $\Gamma$ it is $\sigma=|Gz|$ with $G=\Gamma^{1/2}U$. For $z\sim N(z_0,S)$, $\sigma^2$ is
a weighted sum of non-central chi-squares. Its density, weighted by a product $\varphi$ of quadratic
forms of z, is an integral in the complex plane:

    E[phi; sigma^2 = s] = 1/(2 pi i) int e^{-theta s} M(theta) E_theta[phi] d theta

with $M(\theta)=Ee^{\theta\sigma^2}$, and $E_\theta$ the mean under the law of z tilted by
$e^{\theta\sigma^2}$, which is Gaussian. M has a cut at $\theta\ge1/(2\lambda_1)$ with $\lambda_1$
the largest eigenvalue of $S^{1/2}G'GS^{1/2}$. The path is a hyperbola around the cut, through the
saddle point of $e^{-\theta s}M(\theta)$. At the saddle point the integrand is about as large as the
integral, so small densities keep their digits.

The average of a gap over queries is an integral over the radius $\rho$ of `SharpnessLaw`. Fejer's
rule is applied in the variable $\operatorname{arsinh}((\rho-\rho_c)/w)$ with $\rho_c$ and w of
`_edge`. Each level of the rule doubles the number of points and reuses those of the previous level.
Derived in docs/gaps.md.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit._quadrature import fejer_weights
from promptlimit.errors import AccuracyError, ArgumentError
from promptlimit.finite import Queries

_NEGLIGIBLE = 1e-14
_BISECTIONS = 60
_SLOPE = 0.6
"""The largest slope of the path relative to the vertical; Gaussians decay if it is below 1."""
_STEP = 0.4
"""The step along the path, in widths of the peak of the integrand."""
_WIDEST_STEP = 0.1
"""The largest step in the parameter of the path; singularities are at distance 1."""
_DECAY = 40.0
"""The path ends where the integrand has fallen by a factor of e to this power."""
_SCOUTS = np.concatenate([np.arange(0.0, 16.0), np.geomspace(16.0, 240.0, 48)])
"""The integrand is evaluated after these numbers of steps to find the end of the path."""
_LARGEST = 1e70
_CONDITION = 1e5
"""The largest accepted ratio of the sum of absolute values to the absolute value of the sum."""
_TYPICAL_NODES = 128
_ENTRIES_AT_ONCE = 2**21

Complex = NDArray[np.complex128]

Integrand = Callable[[Array, Array], Array]
"""A function of the sharpness, [n], and weighted densities, [products, n]; returns [n, lengths].

The densities are those of the radius, weighted by each product of quadratic forms.
"""

LogSize = Callable[[Array], Array]
"""A function of the sharpness, [n], that approximates log(integrand / density), [n, lengths]."""

_FIRST_LEVEL = 32
_LAST_LEVEL = 1024
_NARROW = 0.25
_SCAN_POINTS = 128
_SCAN_START = 1e-9
_DROPPED = 80.0
_CUT = 34.0
"""The range ends where the integrand is below its maximum by a factor of e to this power."""


Product = tuple[Array, ...]
"""The symmetric matrices A, [q, q], of a product of up to three quadratic forms $z'Az$."""


def product_at(product: Product, points: Array) -> Array:
    """Return a product of quadratic forms at points [n, q]."""
    values = np.ones(len(points))
    for matrix in product:
        values = values * np.einsum("ni,ij,nj->n", points, matrix, points)
    return values


@dataclasses.dataclass(frozen=True)
class SharpnessLaw:
    r"""The law of $\sigma^2=f+\sum_j(c_j+\sqrt{\lambda_j}\,\xi_j)^2$ at the query $z=z_0+R\xi$.

    Here $\xi$ is standard normal. The radius is $\rho=\sqrt{\sigma^2-f}$.

    Attributes:
        variances: $\lambda_j$, largest first, [r]; zero in directions without effect on scores.
        shifts: $c_j$, [r].
        floor: $f$, which is the same for all queries.
        centre: $z_0$, [q].
        axes: $R$, [q, r].
    """

    variances: Array
    shifts: Array
    floor: float
    centre: Array
    axes: Array

    @property
    def tau(self) -> float:
        r"""$\tau=\|\Gamma^{1/2}US^{1/2}\|_{op}$, which determines the rate of the gap."""
        return float(np.sqrt(self.variances.max(initial=0.0)))

    @property
    def is_fixed(self) -> bool:
        """Whether all queries have the same sharpness."""
        return self.tau == 0.0

    def sharpness(self, radius: Array) -> Array:
        r"""Return $\sigma=\sqrt{f+\rho^2}$ at radii $\rho$."""
        return np.sqrt(self.floor + radius**2)

    def density(self, radius: Array, products: tuple[Product, ...]) -> Array:
        r"""Return the density of the radius weighted by each product $\varphi$, [products, n].

        Radii are positive. An empty product is 1, and its row is the density itself.
        """
        lifted = tuple(self._lifted(product) for product in products)
        size = self.variances.size + 1
        entries = _TYPICAL_NODES * size * (size if max(map(len, products)) == 3 else 1)
        block = max(1, _ENTRIES_AT_ONCE // entries)
        pieces = [
            self._density(radius[start : start + block], lifted)
            for start in range(0, radius.size, block)
        ]
        return np.concatenate(pieces, axis=1)

    def _lifted(self, product: Product) -> Product:
        r"""Return the forms in the coordinates $(1,\xi)$, in which $z$ is linear."""
        lift = np.column_stack([self.centre, self.axes])
        return tuple(lift.T @ matrix @ lift for matrix in product)

    def _density(self, radius: Array, products: tuple[Product, ...]) -> Array:
        s = radius**2
        saddle, scale = self._saddle(s)
        step, nodes = self._steps(s, saddle, scale)
        place = step[:, None] * np.arange(nodes)
        theta, slope = _hyperbola(place, saddle[:, None], scale[:, None])
        weight = np.exp(self._log_laplace(theta) - theta * s[:, None]) * slope
        weight *= (step / np.pi)[:, None]
        weight[:, 0] *= 0.5
        mean, variance = self._tilted(theta.ravel())
        means = [mean_of_product(product, mean, variance) for product in products]
        summed = weight * np.stack(means).reshape(len(products), *theta.shape)
        _require_little_cancellation(summed)
        return 2.0 * radius * np.sum(summed.real, axis=-1)

    def _steps(self, s: Array, saddle: Array, scale: Array) -> tuple[Array, int]:
        """Return the step along the path for each s, and the number of nodes."""
        lam, shift = self._seen()
        narrow = 1.0 - 2.0 * lam * saddle[:, None]
        curvature = (scale / _SLOPE) ** 2 * np.sum(
            2.0 * (lam / narrow) ** 2 + 4.0 * lam * shift**2 / narrow**3, axis=1
        )
        step = np.minimum(_STEP / np.sqrt(curvature), _WIDEST_STEP)
        theta, _ = _hyperbola(_SCOUTS * step[:, None], saddle[:, None], scale[:, None])
        size = (self._log_laplace(theta) - theta * s[:, None]).real
        alive = np.any(size > size[:, :1] - _DECAY, axis=0)
        last = int(np.flatnonzero(alive)[-1])
        return step, int(np.ceil(_SCOUTS[min(last + 1, _SCOUTS.size - 1)])) + 1

    def _seen(self) -> tuple[Array, Array]:
        """Return the variances and shifts of the directions that affect the scores."""
        seen = self.variances > 0.0
        return self.variances[seen], self.shifts[seen]

    def _log_laplace(self, theta: Complex) -> Complex:
        r"""Return $\log Ee^{\theta(\sigma^2-f)}$, off the cut $\theta\ge1/(2\lambda_1)$."""
        total = np.zeros_like(theta)
        for lam, shift in zip(self.variances, self.shifts, strict=True):
            if lam > 0.0:
                narrow = 1.0 - 2.0 * lam * theta
                total += theta * shift**2 / narrow - 0.5 * np.log(narrow)
        return total

    def _tilted(self, theta: Complex) -> tuple[Complex, Complex]:
        r"""Return means and variances of $(1,\xi)$ tilted by $e^{\theta\sigma^2}$, [n, 1 + r]."""
        narrow = 1.0 - 2.0 * theta[:, None] * self.variances
        one = np.ones((theta.size, 1), dtype=np.complex128)
        pull = 2.0 * theta[:, None] * np.sqrt(self.variances) * self.shifts / narrow
        return np.hstack([one, pull]), np.hstack([0.0 * one, 1.0 / narrow])

    def _saddle(self, s: Array) -> tuple[Array, Array]:
        r"""Return the saddle point, where $\partial\log M=s$, and the scale of the path through it.

        At distance a from the cut, the equation is $\sum_j\lambda_j/n_j+c_j^2/n_j^2=s$ with
        $n_j=1-\lambda_j/\lambda_1+2\lambda_ja$. It is solved for $\log a$ by bisection.
        """
        lam, shift = self._seen()
        far = 0.25 * lam.size / s
        spread = float(np.sum((shift / (2.0 * lam)) ** 2))
        high = np.log(far + np.sqrt(far**2 + spread / s)) + np.log(2.0)
        low = np.log(0.25 / s)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            narrow = 1.0 - lam / lam[0] + 2.0 * lam * np.exp(middle)[:, None]
            too_close = np.sum(lam / narrow + (shift / narrow) ** 2, axis=1) > s
            low, high = np.where(too_close, middle, low), np.where(too_close, high, middle)
        distance = np.exp(0.5 * (low + high))
        return 0.5 / lam[0] - distance, 2.0 * _SLOPE**2 * distance

    def tilted_mean_of(self, theta: float, product: Product) -> float:
        r"""Return $E[e^{\theta\sigma^2}\varphi(z)]$; infinite if $2\theta\lambda_1\ge1$."""
        if 2.0 * theta * self.variances.max(initial=0.0) >= 1.0:
            return float("inf")
        at = np.array([theta], dtype=np.complex128)
        mean, variance = self._tilted(at)
        value = mean_of_product(self._lifted(product), mean, variance)
        scale = np.exp(self._log_laplace(at) + theta * self.floor)
        return float((scale * value).real[0])


def _hyperbola(place: Array, saddle: Array, scale: Array) -> tuple[Complex, Complex]:
    r"""Return $\theta=\theta_0+b(\cosh v-1)+i\frac b\kappa\sinh v$ and $-i\,d\theta/dv$.

    v is `place`, $\theta_0$ the saddle point, b the scale and $\kappa$ = `_SLOPE`. Relative to the
    vertical, the slope of the path is zero at the saddle point and never above $\kappa$, so the
    integrand decays along it.
    """
    cosh, sinh = np.cosh(place), np.sinh(place)
    theta = saddle + scale * (cosh - 1.0) + 1j * (scale / _SLOPE) * sinh
    return theta, scale * (cosh / _SLOPE - 1j * sinh)


def _require_little_cancellation(summed: Complex) -> None:
    total = np.abs(np.sum(summed.real, axis=-1))
    condition = np.sum(np.abs(summed), axis=-1) / np.maximum(total, np.finfo(np.float64).tiny)
    worst = float(np.max(np.where(total > 0.0, condition, 0.0), initial=0.0))
    if not worst <= _CONDITION:
        raise AccuracyError(
            f"Terms of a density must not cancel by more than a factor of {_CONDITION:g}, got "
            f"{worst:.1e}. Please report these queries, and pass kind='estimate' instead.",
            argument="queries",
        )


def require_within_reach(sharpness: Array) -> None:
    """Raise ArgumentError for a sharpness whose fourth power overflows."""
    largest = float(np.max(np.nan_to_num(sharpness, nan=np.inf), initial=0.0))
    if largest > _LARGEST:
        raise ArgumentError(
            "queries",
            f"must keep the standard deviation of scores below {_LARGEST:g}, got "
            f"{largest:.4g}. Rescale the parameters, the tokens or the queries.",
        )


def sharpness_law(transform: Array, centre: Array, cov: Array) -> SharpnessLaw:
    r"""Return the law of $\sigma=|Gz|$ for $z\sim N(z_0,S)$.

    Args:
        transform: $G$, [d, q].
        centre: $z_0$, [q].
        cov: $S$, [q, q], positive semidefinite.
    """
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    left, scales, right = np.linalg.svd(transform @ root)
    require_within_reach(np.append(scales, np.abs(transform @ centre)))
    variances = np.zeros(root.shape[1])
    variances[: scales.size] = scales**2
    fixed = transform @ centre
    size = max(variances.max(initial=0.0), float(fixed @ fixed))
    variances[variances <= _NEGLIGIBLE * size] = 0.0
    shifts = np.zeros(root.shape[1])
    seen = int(np.count_nonzero(variances))
    shifts[:seen] = left[:, :seen].T @ fixed
    floor = float(np.sum((fixed - left[:, :seen] @ shifts[:seen]) ** 2))
    return SharpnessLaw(variances, shifts, floor, centre, root @ right.T)


def mean_of_product(forms: Product, mean: Complex, variance: Complex) -> Complex:
    r"""Return $E\prod_iQ_i(x)$ for n laws $N(m,\mathrm{diag}\,D)$ of x and forms $Q_i=x'A_ix$.

    It is the sum, over all partitions of the set of forms, of the product of the joint cumulants of
    the blocks. The formula also applies to complex m and D. The cumulants are

        k(Q1)         = tr A1 D + m'A1 m
        k(Q1, Q2)     = 2 tr A1 D A2 D + 4 m'A1 D A2 m
        k(Q1, Q2, Q3) = 8 tr A1 D A2 D A3 D
                        + 8 (m'A1 D A2 D A3 m + m'A2 D A1 D A3 m + m'A1 D A3 D A2 m)

    Args:
        forms: the matrices $A_i$, at most three.
        mean: $m$, [n, q].
        variance: the diagonals of $D$, [n, q].
    """
    pulled = [mean @ form for form in forms]
    first = [
        variance @ np.diag(form) + np.sum(pull * mean, axis=-1)
        for form, pull in zip(forms, pulled, strict=True)
    ]
    if not forms:
        return np.ones(mean.shape[0], dtype=np.complex128)
    if len(forms) == 1:
        return first[0]

    def second(i: int, j: int) -> Complex:
        trace = np.sum((variance @ (forms[i] * forms[j])) * variance, axis=-1)
        return 2.0 * trace + 4.0 * np.sum(pulled[i] * variance * pulled[j], axis=-1)

    if len(forms) == 2:
        return second(0, 1) + first[0] * first[1]
    together = second(0, 1) * first[2] + second(0, 2) * first[1] + second(1, 2) * first[0]
    return _third(forms, pulled, variance) + together + first[0] * first[1] * first[2]


def _third(forms: Product, pulled: list[Complex], variance: Complex) -> Complex:
    """Return the joint cumulant of three forms; fast if the second has few nonzero eigenvalues."""
    one, two, three = forms
    values, vectors = np.linalg.eigh(two)
    kept = np.abs(values) > _NEGLIGIBLE * np.abs(values).max(initial=0.0)
    rows = vectors.T[kept] * variance[:, None, :]
    pairs = (rows @ one) * variance[:, None, :] * (rows @ three)
    trace = pairs.sum(axis=2) @ values[kept]
    spread = [pull * variance for pull in pulled]
    paths = (
        np.sum((spread[0] @ two) * spread[2], axis=-1)
        + np.sum((spread[1] @ one) * spread[2], axis=-1)
        + np.sum((spread[0] @ three) * spread[1], axis=-1)
    )
    return 8.0 * (trace + paths)


def over_queries(
    queries: Queries,
    transform: Array,
    products: tuple[Product, ...],
    integrand: Integrand,
    log_size: LogSize,
    *,
    tolerance: float,
    largest_error: float = 1e-3,
) -> tuple[Array, Array]:
    r"""Return the average of $\sum_kf_k(\sigma)\varphi_k(z)$ over queries z, and its error.

    $\varphi_k$ are the `products`, `integrand` contains the $f_k$, and $\sigma=|Gz|$ with G =
    `transform`. The other arguments are those of `average`. At a query of positive probability, its
    weight times $\varphi_k$ replaces the density in the integrand. The error is that of the
    quadrature over Gaussian queries.
    """
    value = error = np.zeros(())
    if queries.points.size:
        seen = queries.points @ transform.T
        require_within_reach(np.abs(seen))
        rows = [queries.weights * product_at(product, queries.points) for product in products]
        value = integrand(np.linalg.norm(seen, axis=1), np.stack(rows)).sum(axis=0)
    for part in queries.gaussians:
        law = sharpness_law(transform, part.mean, part.cov)
        if law.is_fixed:  # the forms may still depend on the query
            means = np.array([[law.tilted_mean_of(0.0, product)] for product in products])
            mean = integrand(np.array([math.sqrt(law.floor)]), means)[0]
            change = np.zeros_like(mean)
        else:
            mean, change = average(
                law, products, integrand, log_size, tolerance, largest_error=largest_error
            )
        value, error = value + part.weight * mean, error + part.weight * change
    return value, error


def average(
    law: SharpnessLaw,
    products: tuple[Product, ...],
    integrand: Integrand,
    log_size: LogSize,
    tolerance: float,
    *,
    largest_error: float = 1e-3,
) -> tuple[Array, Array]:
    r"""Return the integral of the integrand over the sharpness and its error, [lengths] each.

    The error is the difference of the last two levels of the rule.

    Args:
        law: the law of the sharpness, which must not be fixed.
        products: the $\varphi_k$ by which the densities in the integrand are weighted.
        integrand: see `Integrand`.
        log_size: see `LogSize`; it determines the range of integration.
        tolerance: the relative error at which to stop.
        largest_error: the relative error above which AccuracyError is raised.
    """
    edge, width = _edge(law)
    ends = _range(law, log_size)
    low, high = (math.asinh((radius - edge) / width) for radius in ends)
    centre, half = 0.5 * (low + high), 0.5 * (high - low)

    def contributions(angles: Array) -> Array:
        place = centre + half * np.cos(angles)
        radius = np.clip(edge + width * np.sinh(place), np.finfo(np.float64).tiny, None)
        jacobian = half * width * np.cosh(place)
        density = law.density(radius, products) * jacobian
        return integrand(law.sharpness(radius), density)

    level = _FIRST_LEVEL
    terms = contributions(np.pi * np.arange(1, level) / level)
    value = fejer_weights(level) @ terms
    while True:
        level *= 2
        between = contributions(np.pi * np.arange(1, level, 2) / level)
        merged = np.empty((level - 1, *terms.shape[1:]))
        merged[0::2], merged[1::2] = between, terms
        terms, previous = merged, value
        value = fejer_weights(level) @ terms
        error = np.abs(value - previous)
        if np.all(error <= tolerance * np.abs(value)):
            return value, error
        if level == _LAST_LEVEL:
            _refuse_large(error, np.abs(value), largest_error)
            return value, error


def _refuse_large(error: Array, size: Array, largest: float) -> None:
    worst = float(np.max(error / np.maximum(size, np.finfo(np.float64).tiny)))
    if not worst <= largest:
        raise AccuracyError(
            f"An average over queries must reach a relative error of {largest:g}, got "
            f"{worst:.1e}. Please report these queries, and pass kind='estimate' instead.",
            argument="queries",
        )


def _edge(law: SharpnessLaw) -> tuple[float, float]:
    r"""Return the radius $\rho_c$ near which the density varies fastest, and the scale w there.

    Directions with a much smaller variance than the widest direction add a nearly constant amount
    to the squared radius. So the density rises steeply where the radius is the norm of the shifts
    of these directions.
    """
    seen = law.variances > 0.0
    narrow = seen & (law.variances < _NARROW * law.variances.max())
    chosen = narrow if narrow.any() else seen
    return float(np.linalg.norm(law.shifts[chosen])), math.sqrt(law.variances[chosen].min())


def _range(law: SharpnessLaw, log_size: LogSize) -> tuple[float, float]:
    """Return the range of radii of the integral, from a scan of the size of the integrand.

    Geometric steps resolve broad laws, and even steps near the typical radius resolve narrow laws.
    """
    spread = float(np.max(-log_size(law.sharpness(np.array([0.0]))), initial=0.0)) + _DROPPED
    broad = math.sqrt(float(np.sum(law.variances))) + math.sqrt(2.0 * law.variances.max() * spread)
    edge, _ = _edge(law)
    centre = float(np.linalg.norm(law.shifts))
    most = centre + broad
    radius = np.concatenate(
        [
            np.geomspace(_SCAN_START * most, most, _SCAN_POINTS),
            np.linspace(max(centre - broad, _SCAN_START * broad), most, _SCAN_POINTS),
            edge + np.geomspace(_SCAN_START * broad, broad, _SCAN_POINTS),
        ]
    )
    radius = np.unique(radius)
    with np.errstate(divide="ignore", under="ignore"):
        size = np.log(np.maximum(law.density(radius, ((),))[0], 0.0))
    sizes = size[:, None] + log_size(law.sharpness(radius))
    sizes = np.where(np.isnan(sizes), -np.inf, sizes)
    kept = np.flatnonzero(np.any(sizes > sizes.max(axis=0) - _CUT, axis=1))
    first, last = max(int(kept[0]) - 1, 0), min(int(kept[-1]) + 1, radius.size - 1)
    return (0.0 if first == 0 else float(radius[first])), float(radius[last])
