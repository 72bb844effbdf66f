r"""The exact law of a softmax mean of scalars over L tokens: three moments and tail probabilities.

A token has a score $s$ and a value $v$, jointly Gaussian within each component of the law. The
softmax mean over L tokens is $f_L=\sum_iv_ie^{s_i}/\sum_ie^{s_i}$. Scores are shifted such that
$E\,e^s=1$, so the limit is $f=E\,ve^s$. The cost does not depend on L (docs/finite.md, section 8).
"""

import dataclasses
import math

import numpy as np

from promptlimit._arrays import Array
from promptlimit._quadrature import NORMAL_REACH
from promptlimit.measures import GaussianParts
from promptlimit.weights._brackets import brackets
from promptlimit.weights._functional import nodes_of
from promptlimit.weights._gaussian_score import MixtureScore, mixture_window

_FIRST_STEP, _LAST_STEP = 0.34, 0.04
r"""The first step in $\log\omega$, and the step below which it is not halved again."""

_NOISE = 0.1
r"""$\epsilon$ in `upper_tails`, divided by the slope $\beta_k$."""

_ROUNDING, _NEGLIGIBLE, _LINEAR, _HIGHEST = 1e-10, 1e-13, 1e-7, 1e100
r"""The rounding error of a probability; the sizes of terms at which `_one_sided_sum` stops towards
large and towards small frequencies; and the largest frequency."""


@dataclasses.dataclass(frozen=True)
class ScoredValues:
    r"""Scores $s=c_k+\sigma_kg$ and values $v=\mu_k+\beta_kg+\sqrt{\rho_k}\,g'$ by component k.

    g and g' are independent standard normals.

    Attributes:
        weights: $\pi_k$, [k].
        scores: $c_k$, [k], shifted such that $\sum_k\pi_ke^{c_k+\sigma_k^2/2}=1$.
        sharpness: $\sigma_k$, [k].
        values: $\mu_k$, [k].
        slopes: $\beta_k$, [k].
        rests: $\rho_k$, [k], the variance of a value given the score of its token.
    """

    weights: Array
    scores: Array
    sharpness: Array
    values: Array
    slopes: Array
    rests: Array

    @staticmethod
    def along(parts: GaussianParts, tilt: Array, row: Array) -> "ScoredValues":
        r"""Return the scores $\langle t,z\rangle$ and values $\langle r,z\rangle$ of Gaussian z.

        t is `tilt`, and r is `row`, a row of the value matrix.
        """
        covs = parts.all_covs()
        sigma = np.sqrt(np.maximum(np.einsum("i,kij,j->k", tilt, covs, tilt), 0.0))
        spread = np.maximum(np.einsum("i,kij,j->k", row, covs, row), 0.0)
        shared = np.einsum("i,kij,j->k", tilt, covs, row)
        slopes = np.divide(shared, sigma, out=np.zeros_like(sigma), where=sigma > 0.0)
        rests = np.maximum(spread - slopes**2, 0.0)
        rests[rests < 1e-14 * spread] = 0.0
        scores = parts.means @ tilt
        masses = np.log(parts.weights) + scores + 0.5 * sigma**2
        top = masses.max()
        scores = scores - top - math.log(np.exp(masses - top).sum())
        return ScoredValues(parts.weights, scores, sigma, parts.means @ row, slopes, rests)

    @property
    def limit(self) -> float:
        r"""$f=\sum_k\alpha_k(\mu_k+\beta_k\sigma_k)$ with $\alpha_k=\pi_ke^{c_k+\sigma_k^2/2}$."""
        gates = self.weights * np.exp(self.scores + 0.5 * self.sharpness**2)
        return float(gates @ (self.values + self.slopes * self.sharpness))

    @property
    def hull(self) -> tuple[float, float]:
        """The range outside which values, and thus softmax means, have negligible probability."""
        spread = NORMAL_REACH * np.sqrt(self.slopes**2 + self.rests)
        return float((self.values - spread).min()), float((self.values + spread).max())

    def nodes(self, tilts: float) -> tuple[Array, Array]:
        r"""Return nodes g and weights for means of $f(g)e^{k\sigma g}$ with k up to `tilts`."""
        sigma = float(self.sharpness.max())
        top = min(NORMAL_REACH + tilts * sigma, 37.0)
        step = min(0.15, 0.4 / max(sigma, 1e-9))
        count = math.ceil((top + NORMAL_REACH) / step)
        g = np.linspace(-NORMAL_REACH, top, count + 1)
        return g, np.exp(-0.5 * g**2) * ((top + NORMAL_REACH) / count / math.sqrt(2.0 * math.pi))


def deviation_moments(tokens: ScoredValues, lengths: Array) -> Array:
    r"""Return $E(f_L-f)^j$ for j = 1, 2, 3, [lengths, 3]; zero for infinite lengths.

    With $y=v-f$, $\varphi(u)=E\exp(-e^{s+u})$ and $A_{kj}(u)=E\,y^je^{k(s+u)}\exp(-e^{s+u})$,

        E(f_L-f)   = L ∫ A_11 φ^(L-1) du
        E(f_L-f)^2 = L ∫ A_22 φ^(L-1) + (L-1) A_11^2 φ^(L-2) du
        E(f_L-f)^3 = L/2 ∫ A_33 φ^(L-1) + 3 (L-1) A_22 A_11 φ^(L-2) + (L-1)(L-2) A_11^3 φ^(L-3) du,

    because $D^{-j}=\frac1{(j-1)!}\int e^{ju}\exp(-e^uD)\,du$ for $D=\sum_ie^{s_i}$.
    """
    moments, finite = np.zeros((lengths.size, 3)), np.isfinite(lengths)
    if finite.any():
        counts = lengths[finite]
        ends = float(counts.max()), max(float(counts.min()) - 1.0, 0.5)
        u = nodes_of([mixture_window(tokens.scores, tokens.sharpness, *ends)])
        a11, a22, a33, log_phi = _deviation_transforms(tokens, u)
        powers = {
            "first": {1: a11},
            "second": {1: a22, 2: a11**2},
            "third": {1: a33 / 2, 2: 1.5 * a22 * a11, 3: a11**3 / 2},
        }
        found = brackets(powers, u, log_phi, counts)
        moments[finite] = np.stack([rules.mean(axis=0) for rules in found.values()], axis=1)
    return moments


def _deviation_transforms(tokens: ScoredValues, u: Array) -> tuple[Array, Array, Array, Array]:
    r"""Return $A_{11}$, $A_{22}$, $A_{33}$ and $\log\varphi$, [u] each.

    In a component, y is $a+\beta h$ plus noise of variance $\rho$, with a constant a and
    $h=g-\sigma$. With $x=e^{s+u}$, $E[hxe^{-x}]=-\sigma E[x^2e^{-x}]$ by Stein's lemma.
    """
    score = MixtureScore.of(tokens.weights, tokens.scores, tokens.sharpness, u)
    gates = tokens.weights * np.exp(tokens.scores + 0.5 * tokens.sharpness**2)
    a = tokens.values + tokens.slopes * tokens.sharpness
    a = a - a[np.argmax(gates)]
    a = a - gates @ a / gates.sum()
    b, rest = tokens.slopes, tokens.rests
    f2, f3 = score.moments((2, 3), 3)
    drift = score.drift(a) - (b * tokens.sharpness) @ f2[0]
    square = (a * a + rest) @ f2[0] + (2.0 * a * b) @ f2[1] + (b * b) @ f2[2]
    cube = (a * (a * a + 3.0 * rest)) @ f3[0] + (3.0 * b * (a * a + rest)) @ f3[1]
    cube = cube + (3.0 * a * b * b) @ f3[2] + b**3 @ f3[3]
    return drift, square, cube, score.log_phi


def sinh_thresholds(mean: float, spread: float, hull: tuple[float, float], step: float) -> Array:
    """Return thresholds c that cover `hull`, evenly spaced in asinh((c - mean) / spread).

    One of the thresholds is the mean.
    """
    ends = [math.asinh((end - mean) / spread) / step for end in hull]
    return mean + spread * np.sinh(step * np.arange(math.floor(ends[0]), math.ceil(ends[1]) + 1))


def upper_tails(
    tokens: ScoredValues, length: float, thresholds: Array, *, agreement: float = 1e-7
) -> tuple[Array, Array]:
    r"""Return $P(f_L>c)$ at each threshold, and an estimate of its numerical error.

    The event is $\sum_ie^{s_i}(v_i-c)>0$. By the inversion formula of Gil-Pelaez,

        P(f_L > c) = 1/2 + (1/π) ∫ Im ψ_c(ω)^L dω/ω,    ψ_c(ω) = E exp(iω e^s (v - c)).

    The integral is computed with the trapezoidal rule in $\log\omega$. If a value is almost a
    function of the score ($\rho_k\approx0$), $\psi_c$ decreases as slowly as $\omega^{-1/2}$. The
    tail is then computed for values with additional noise of standard deviation $\epsilon$ and
    $\epsilon/2$, and extrapolated to $\epsilon=0$ as an even function of $\epsilon$.

    Args:
        tokens: the scores and values of a token.
        length: $L$, finite.
        thresholds: $c$, [m].
        agreement: the difference of two quadrature rules below which refinement stops.
    """
    if length == 1.0:
        return _one_token(tokens, thresholds), np.zeros_like(thresholds)
    edged = tokens.rests < (0.5 * _NOISE * tokens.slopes) ** 2
    if not edged.any():
        return _gil_pelaez(tokens, length, thresholds, agreement)
    noise = np.where(edged, (_NOISE * tokens.slopes) ** 2, 0.0)
    (wide, _), (narrow, error) = (
        _gil_pelaez(
            dataclasses.replace(tokens, rests=tokens.rests + part * noise),
            length,
            thresholds,
            agreement,
        )
        for part in (1.0, 0.25)
    )
    tails = np.clip(narrow + (narrow - wide) / 3.0, 0.0, 1.0)
    return tails, error + _NOISE**2 * np.abs(narrow - wide)


def _one_token(tokens: ScoredValues, thresholds: Array) -> Array:
    from scipy.special import ndtr  # noqa: PLC0415  # slow to import

    spread = np.sqrt(tokens.slopes**2 + tokens.rests)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = (tokens.values - thresholds[:, None]) / spread
    return np.nan_to_num(ndtr(distance), nan=0.0) @ tokens.weights


def _gil_pelaez(
    tokens: ScoredValues, length: float, thresholds: Array, agreement: float
) -> tuple[Array, Array]:
    r"""Return $P(f_L>c)$ and its measured error, [m] each.

    The difference of a trapezoidal rule and the rule shifted by half a step measures the error of
    both. The mean of these two rules is the rule of half the step, whose error is far smaller. The
    step is halved again at thresholds where the difference is larger than `agreement`.
    """
    contour = _Contour.of(tokens, thresholds)
    tails, distance = np.full_like(thresholds, 0.5), np.full_like(thresholds, np.inf)
    unsure, step = np.arange(thresholds.size), _FIRST_STEP
    sums = _frequency_sum(contour, length, step, 0.0)
    while unsure.size and step > _LAST_STEP:
        between = _frequency_sum(contour, length, step, 0.5 * step)
        distance[unsure] = np.abs(sums - between) * (step / math.pi)
        sums, step = sums + between, 0.5 * step
        tails[unsure] = 0.5 + sums * (step / math.pi)
        further = distance[unsure] > agreement
        unsure, sums, contour = unsure[further], sums[further], contour.rows(further)
    return np.clip(tails, 0.0, 1.0), _ROUNDING + distance


def _frequency_sum(contour: "_Contour", length: float, step: float, shift: float) -> Array:
    r"""Return $\sum_j\mathrm{Im}\,\psi_c(\omega_j)^L$ over nodes $\log\omega_j$, [m]."""
    middle = math.exp(shift) / (length * contour.size)
    upward = _one_sided_sum(contour, length, middle, step)
    return upward + _one_sided_sum(contour, length, middle * math.exp(-step), -step)


def _one_sided_sum(contour: "_Contour", length: float, first: float, step: float) -> Array:
    r"""Return the sum over frequencies from `first` upwards, or downwards for a negative `step`.

    The sum upwards ends where $\psi_c^L$ is negligible. The sum downwards ends where
    $\mathrm{Im}\,\psi_c^L$ is linear in $\omega$. Its remaining terms are a geometric series.
    """
    frequency, total = first, np.zeros(contour.terms.shape[0])
    active = np.arange(total.size)
    while active.size:
        power = contour.power(frequency, length)
        imaginary = np.imag(power)
        total[active] += imaginary
        size = np.abs(power) if step > 0.0 else np.abs(imaginary)
        left = (size > (_NEGLIGIBLE if step > 0.0 else _LINEAR)) & (frequency < _HIGHEST)
        if step < 0.0:
            total[active[~left]] += imaginary[~left] / math.expm1(-step)
        if not left.all():
            active, contour = active[left], contour.rows(left)
        frequency *= math.exp(step)
    return total


@dataclasses.dataclass(frozen=True)
class _Contour:
    r"""The integrand of $\psi_c$ along the contour $g+i\eta(g)$, for m thresholds and n nodes.

    For $\beta>0$, the phase $e^s(v-c)$ of a component decreases in g up to
    $g_1=(c-\mu)/\beta-1/\sigma$, and then increases. Let
    $\eta=\min(.5/\sigma,.7)\tanh(\max(1,\sigma)(g-g_1))$. The sign of $\eta$ is that of the slope
    of the phase, so the exponential decays along the contour instead of oscillating.

    Attributes:
        masses: the complex weights of the nodes, [m, n].
        terms: $e^s(v-c)$ with v the mean of the value given the score, [m, n].
        squares: $e^{2s}\rho$, the variance of $e^s(v-c)$ given the score, [m, n].
        size: an estimate of the size of values, which determines the first frequency.
    """

    masses: np.ndarray
    terms: np.ndarray
    squares: np.ndarray
    size: float

    @staticmethod
    def of(tokens: ScoredValues, thresholds: Array) -> "_Contour":
        g, normal = tokens.nodes(2.0)
        c = thresholds[:, None, None]
        sigma, beta = tokens.sharpness[:, None], tokens.slopes[:, None]
        mu, rho = tokens.values[:, None], tokens.rests[:, None]
        soft, steep = np.maximum(sigma, 1e-8), np.maximum(1.0, sigma)
        rise = (beta * (g + 1.0 / soft) + mu - c) / np.maximum(np.abs(beta), 1e-12)
        height, lean = np.minimum(0.5 / soft, 0.7), np.tanh(steep * rise)
        z = g + 1j * height * lean
        slope = 1.0 + 1j * height * steep * (1.0 - lean**2) * np.sign(beta)
        shares = tokens.weights[:, None] * normal
        weights = np.exp(tokens.scores[:, None] + sigma * z)
        shape = thresholds.size, -1
        return _Contour(
            (shares * np.exp(0.5 * (g**2 - z**2)) * slope).reshape(shape),
            (weights * (mu + beta * z - c)).reshape(shape),
            (weights**2 * rho).reshape(shape),
            float(np.abs(tokens.values).max() + np.abs(tokens.slopes).max() + rho.max() ** 0.5),
        )

    def rows(self, kept: np.ndarray) -> "_Contour":
        """Return the contour for the thresholds `kept`."""
        return _Contour(self.masses[kept], self.terms[kept], self.squares[kept], self.size)

    def power(self, frequency: float, length: float) -> np.ndarray:
        r"""Return $\psi_c(\omega)^L$, [m]."""
        exponents = 1j * frequency * self.terms - 0.5 * frequency**2 * self.squares
        change = np.einsum("mn,mn->m", self.masses, np.expm1(exponents))
        squared = change.real * (2.0 + change.real) + change.imag**2  # |1 + change|^2 - 1
        # np.log1p of a complex number would round the modulus, and L multiplies this error.
        modulus = 0.5 * np.log1p(np.maximum(squared, np.finfo(np.float64).eps - 1.0))
        phase = np.arctan2(change.imag, 1.0 + change.real)
        return np.exp(length * (modulus + 1j * phase))
