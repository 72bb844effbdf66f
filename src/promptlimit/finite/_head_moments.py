r"""Moments of one head in closed form: Gaussian tokens, linear attention, leading order in 1/L.

$T_L$ is the output at the tilt t over L random tokens, T its limit, and V the value matrix. Derived
in docs/finite.md.

For softmax over Gaussian tokens $z=m+\Gamma^{1/2}x$ with $x\sim N(0,I)$, the weights depend on a
token only through $g=\langle e,x\rangle$ with $e=\Gamma^{1/2}t/\sigma$ and $\sigma^2=t'\Gamma t$.
Components of x orthogonal to e are independent of the weights. For linear attention, $T_L$ is the
mean of $Y=Vz\langle z,t\rangle$ over L random and k known tokens z.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit.finite._polynomial_moments import (
    TiltedMoments,
    outer_product_spread,
    read_moments,
    squares_product,
    tilted_moments,
)
from promptlimit.finite._problem import KnownPart, TiltedHead
from promptlimit.measures import AbstractMeasure, GaussianParts
from promptlimit.prompts import Leading
from promptlimit.weights import weight_statistics


@dataclasses.dataclass(frozen=True)
class MomentRows:
    r"""Moments of $T_L$ and of its deviation from $T$, named as in `PromptMoments`.

    n is the number of lengths, e the dimension of the output, and k the number of known tokens and
    sinks.

    Attributes:
        limit: $T$, [e].
        bias: $E\,T_L - T$, [n, e].
        cov: the covariance of $T_L$, [n, e, e].
        mse: $E|T_L - T|^2$, [n].
        participation: $E\sum_lp_l^2$ with the softmax weights $p_l$, [n].
        error: the absolute error of `mse`, [n].
        samples: the number of simulated prompts, [n]; None without simulation.
        limit_error: the error of `limit`, [e]; None if it is a closed form.
        bias_error: the standard error of `bias`, [n, e]; None without simulation.
        mean: $E\,T_L$, [n, e], if no limit exists; None if the mean is `limit` plus `bias`.
        fixed_weights: the mean weights of known tokens and sinks, [n, k].
    """

    limit: Array
    bias: Array
    cov: Array
    mse: Array
    participation: Array
    error: Array
    samples: np.ndarray | None = None
    limit_error: Array | None = None
    bias_error: Array | None = None
    mean: Array | None = None
    fixed_weights: Array = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))

    @property
    def value(self) -> Array:
        """The mean squared error `mse`; its numerical error is `error`."""
        return self.mse

    @staticmethod
    def at_infinity(limit: Array, count: int, known: int = 0) -> "MomentRows":
        """Return the moments for infinite lengths, with `known` known tokens of weight zero."""
        dim = limit.size
        shapes = [(count, dim), (count, dim, dim), (count,), (count,), (count,)]
        zeros = (np.zeros(shape) for shape in shapes)
        return MomentRows(limit, *zeros, fixed_weights=np.zeros((count, known)))

    def put(self, rows: NDArray[np.bool_] | int, *moments: Array | float) -> None:
        """Set bias, cov, mse, participation and error, in this order, at the lengths in `rows`."""
        arrays = (self.bias, self.cov, self.mse, self.participation, self.error)
        for array, moment in zip(arrays, moments, strict=True):
            array[rows] = moment


def leading_error(lengths: Array) -> Array:
    """Return the error of a leading order: NaN for finite lengths, zero for infinite ones."""
    return np.where(np.isinf(lengths), 0.0, np.nan)


@dataclasses.dataclass(frozen=True)
class WhitenedTokens:
    r"""Gaussian tokens $m+\Gamma^{1/2}x$ with $x\sim N(0,I)$, and a tilt t in the coordinates x.

    Attributes:
        root: $\Gamma^{1/2}$, symmetric, [d, d].
        sharpness: $\sigma=|\Gamma^{1/2}t|$.
        direction: $e=\Gamma^{1/2}t/\sigma$, [d]; the first unit vector when $\sigma=0$.
    """

    root: Array
    sharpness: float
    direction: Array

    @staticmethod
    def along(tilt: Array, gaussian: GaussianParts) -> "WhitenedTokens":
        """Return the whitened coordinates for a Gaussian law and a tilt."""
        root = gaussian.root()
        seen = root @ tilt
        sharpness = float(np.linalg.norm(seen))
        direction = seen / sharpness if sharpness > 0.0 else np.eye(tilt.size)[0]
        return WhitenedTokens(root, sharpness, direction)


def gaussian_spread_error(
    tokens: WhitenedTokens, left: Array, value: Array, length: Array
) -> tuple[Array, Array]:
    r"""Return $E\|K(\hat C-\Gamma)V^\top\|_F^2$ with K = `left`, and its numerical error.

    Under the softmax weights, x has the covariance M, and a token has the covariance
    $\hat C=\Gamma^{1/2}M\Gamma^{1/2}$. The result is $\mathrm{tr}(DP)$ with
    $N=\Gamma^{1/2}K^\top K\Gamma^{1/2}$, $P=\Gamma^{1/2}V^\top V\Gamma^{1/2}$ and
    $D=E[(M-I)N(M-I)]$.
    """
    statistics = weight_statistics(tokens.sharpness, length)
    inner, outer = left @ tokens.root, value @ tokens.root
    products = spread_products(inner.T @ inner, outer.T @ outer, tokens.direction)
    terms = [getattr(statistics, name) * product for name, product in products.items()]
    return np.sum(terms, axis=0), statistics.relative_error * np.sum(np.abs(terms), axis=0)


def spread_products(inner: Array, outer: Array, direction: Array) -> dict[str, float]:
    r"""Return the factor of each field of `WeightStatistics` in $\mathrm{tr}(DP)$, by name.

    D is defined in `gaussian_spread_error`. N is `inner`, P is `outer`, and e is `direction`.
    """
    both = outer @ inner
    p, n, x = (float(direction @ matrix @ direction) for matrix in (outer, inner, both))
    forms = 1.0, p, n, x, p * n
    terms = spread_terms(*(float(np.trace(matrix)) for matrix in (inner, outer, both)))
    return {name: sum(c * forms[form] for c, form in pairs) for name, pairs in terms.items()}


def spread_terms(
    inner_trace: float, outer_trace: float, product_trace: float
) -> dict[str, tuple[tuple[float, int], ...]]:
    r"""Return the factor of each weight statistic in $\mathrm{tr}(DP)$ as a polynomial.

    D, N and P are defined in `gaussian_spread_error`; the arguments are the traces of N, P and PN.
    A polynomial consists of pairs (coefficient, index of a form). The forms are 1, $p=e'Pe$,
    $n=e'Ne$, $x=e'PNe$ and pn, with e of `WhitenedTokens`. The factors are

        spread_error           p n
        residual               (tr N - n) p + n (tr P - p) + 2 (x - p n)
        spread_participation   -2 (x - p n)
        participation_square   tr PN - 2 x + p n
        coupling               tr PN - 2 x + p n + (tr N - n)(tr P - p)
    """
    tn, tp, tx = inner_trace, outer_trace, product_trace
    one, p, n, x, pn = range(5)
    return {
        "spread_error": ((1.0, pn),),
        "residual": ((tn, p), (tp, n), (2.0, x), (-4.0, pn)),
        "spread_participation": ((-2.0, x), (2.0, pn)),
        "participation_square": ((tx, one), (-2.0, x), (1.0, pn)),
        "coupling": ((tx + tn * tp, one), (-2.0, x), (2.0, pn), (-tn, p), (-tp, n)),
    }


def linear_rows(
    head: TiltedHead, measure: AbstractMeasure, length: Array, known: Array
) -> MomentRows:
    """Return the exact moments of a linear head over L random tokens and k known tokens.

    The rows of `known` are the known tokens f, with the values Y_f. The weight of every token is
    1 / (L + k), and

        E T_L - T = sum_f (Y_f - T) / (L + k),    Cov T_L = L Cov Y / (L + k)^2.
    """
    read_mean, read_cov = read_moments(measure, head.tilt)
    limit, cov = head.value @ read_mean, head.value @ read_cov @ head.value.T
    spread, share = _linear_shares(length, known)
    outputs = (known @ head.value.T) * (known @ head.tilt)[:, None]
    bias = share[:, None] * (outputs - limit).sum(axis=0)
    return MomentRows(
        limit=limit,
        bias=bias,
        cov=spread[:, None, None] * (0.5 * (cov + cov.T)),
        mse=spread * np.trace(cov) + np.sum(bias**2, axis=1),
        participation=share,
        error=np.zeros_like(length),
        fixed_weights=np.repeat(share[:, None], len(known), axis=1),
    )


def _linear_shares(length: Array, known: Array) -> tuple[Array, Array]:
    """Return L / (L + k)^2 and 1 / (L + k), the factors of covariances and of sums."""
    share = 1.0 / (length + len(known))
    return share * (1.0 - len(known) * share), share


def linear_spread_error(
    measure: AbstractMeasure, left: Array, value: Array, length: Array, known: Array
) -> Array:
    r"""Return $E\|K(\hat S-S)V^\top\|_F^2$ with $S=E\,zz^\top$ and K = `left`.

    $\hat S$ is the mean of $zz^\top$ over L random tokens and k known tokens, the rows of
    `known`.
    """
    one_token = outer_product_spread(measure, left, value)
    spread, share = _linear_shares(length, known)
    if not len(known):
        return spread * one_token
    expected = left @ second_moment(measure) @ value.T
    moved = (known @ left.T).T @ (known @ value.T) - len(known) * expected
    return spread * one_token + share**2 * np.sum(moved**2)


def second_moment(measure: AbstractMeasure) -> Array:
    r"""Return $E\,zz^\top$ of a token z."""
    return np.stack([read_moments(measure, column)[0] for column in np.eye(measure.dim)], axis=1)


@dataclasses.dataclass(frozen=True)
class _Leading:
    r"""Leading order in 1/L for softmax over any measure (delta method).

    To leading order, $T_L-T$ is the mean over the tokens of
    $\psi(z)=V(z-\nabla\Lambda(t))e^{\langle t,z\rangle-\Lambda(t)}$. Means of squares of $\psi$ are
    $F=e^{\Lambda(2t)-2\Lambda(t)}$ times means over the law tilted by $2t$.

    Attributes:
        once: $\Lambda$ and its derivatives at $t$.
        pull: $w=\nabla\Lambda(2t)-\nabla\Lambda(t)$.
        second: $\nabla^2\Lambda(2t)+ww'$.
        share: $F/L$, [n].
    """

    once: TiltedMoments
    pull: Array
    second: Array
    share: Array

    @staticmethod
    def of(tilt: Array, measure: AbstractMeasure, length: Array) -> "_Leading":
        once, twice = (tilted_moments(measure, factor * tilt) for factor in (1.0, 2.0))
        w = twice.mean - once.mean
        with np.errstate(over="ignore"):
            share = np.exp(twice.log_laplace - 2.0 * once.log_laplace - np.log(length))
        return _Leading(once, w, twice.cov + np.outer(w, w), share)


def leading_of_law(head: TiltedHead, measure: AbstractMeasure) -> Leading:
    r"""Return the leading order of a softmax head over independent tokens.

    With $F=e^{\Lambda(2t)-2\Lambda(t)}$ and $w=\nabla\Lambda(2t)-\nabla\Lambda(t)$,

        L Cov T_L -> F V [Hess Lambda(2t) + ww'] V',   L (E T_L - T) -> -F V w,   L E S_2 -> F.
    """
    order = _Leading.of(head.tilt, measure, np.ones(1))
    share = float(order.share[0])
    cov = share * (head.value @ order.second @ head.value.T)
    return Leading(-share * (head.value @ order.pull), cov, share)


def asymptotic_rows(
    head: TiltedHead, measure: AbstractMeasure, length: Array, known: KnownPart, leading: Leading
) -> MomentRows:
    r"""Return the leading order of every moment of a softmax head.

    `leading` contains the constants for the random tokens. A known token or sink f with value $v_f$
    adds $e^{s_f-\Lambda(t)}(v_f-T)$ to L times the bias, with $s_f$ its score minus `known.offset`.
    """
    once = tilted_moments(measure, head.tilt)
    limit = head.value @ once.mean
    scores = np.concatenate([known.tokens @ head.tilt, known.sinks]) - known.offset
    sunk = np.zeros((known.sinks.size, limit.size))
    outputs = np.concatenate([known.tokens @ head.value.T, sunk])
    with np.errstate(over="ignore"):
        weights = np.exp(scores - once.log_laplace)
    bias = leading.bias + weights @ (outputs - limit)
    cov = 0.5 * (leading.cov + leading.cov.T)
    return MomentRows(
        limit=limit,
        bias=bias / length[:, None],
        cov=cov / length[:, None, None],
        mse=np.trace(cov) / length,
        participation=leading.participation / length,
        error=leading_error(length),
        fixed_weights=weights / length[:, None],
    )


def asymptotic_spread_error(
    head: TiltedHead, measure: AbstractMeasure, left: Array, length: Array
) -> Array:
    r"""Return the leading order of $E\|K(\hat C-C)V^\top\|_F^2$ with K = `left`.

    Let $C=\nabla^2\Lambda(t)$, $M=\nabla^2\Lambda(2t)+ww'$ and $y=z-\nabla\Lambda(t)$, with F and w
    of `leading_of_law`. L times the result tends to
    $F\{E_{2t}|Ky|^2|Vy|^2-2\,\mathrm{tr}(MV'VCK'K)+\|KCV'\|_F^2\}$, where $E_{2t}$ is the mean over
    the law tilted by 2t.
    """
    leading = _Leading.of(head.tilt, measure, length)
    quartic = squares_product(measure, 2.0 * head.tilt, leading.once.mean, left, head.value)
    expected = left @ leading.once.cov @ head.value.T
    mixed = np.sum((left @ leading.second @ head.value.T) * expected)
    return leading.share * (quartic - 2.0 * mixed + np.sum(expected**2))
