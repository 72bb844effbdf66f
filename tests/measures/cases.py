"""Every measure, and its log-Laplace transform written independently with 50 digits."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np

import promptlimit as pl

mp.mp.dps = 50

# mpmath types a logarithm as real or complex; ours are real at a real tilt.
Oracle = Callable[[Sequence[Any]], Any]


class Case(NamedTuple):
    """A measure built in the dtype in force, its exact log-Laplace transform, and its scale."""

    build: Callable[[], pl.AbstractMeasure]
    oracle: Oracle
    scale: float  # a typical length of a token


class OneHot(pl.AbstractMeasure):
    """A user's own measure, exactly as the tutorial of `AbstractMeasure` writes it."""

    probabilities: jax.Array

    @property
    def dim(self):
        return self.probabilities.shape[0]

    def log_laplace(self, tilt):
        return jax.nn.logsumexp(tilt, b=self.probabilities)

    def sample(self, length, *, key):
        words = jax.random.choice(key, self.dim, (length,), p=self.probabilities)
        return jax.nn.one_hot(words, self.dim, dtype=self.probabilities.dtype)


def _dot(a: Sequence, b: Sequence[mp.mpf]) -> Any:
    return mp.fsum(mp.mpmathify(x) * y for x, y in zip(a, b, strict=True))


def _log_mean_exp(weights: Sequence, exponents: Sequence[mp.mpf]) -> Any:
    pairs = zip(weights, exponents, strict=True)
    return mp.log(mp.fsum(mp.mpf(w) * mp.exp(s) for w, s in pairs))


def _gaussian(mean: list[float], cov: list[list[float]]) -> Oracle:
    return lambda t: _dot(mean, t) + _dot([_dot(row, t) for row in cov], t) / 2


def _tokens(tokens: list[list[float]], weights: list[float]) -> Oracle:
    return lambda t: _log_mean_exp(weights, [_dot(z, t) for z in tokens])


def _sphere(dim: int, radius: float) -> Oracle:
    return lambda t: mp.log(mp.hyp0f1(mp.mpf(dim) / 2, mp.mpf(radius) ** 2 * _dot(t, t) / 4))


def _cube(half_widths: list[float]) -> Oracle:
    def oracle(t: Sequence[mp.mpf]) -> Any:
        xs = [mp.mpf(a) * ti for a, ti in zip(half_widths, t, strict=True)]
        return mp.fsum(mp.log(mp.sinh(x) / x) for x in xs if x != 0)

    return oracle


def _rademacher(half_widths: list[float]) -> Oracle:
    return lambda t: mp.fsum(
        mp.log(mp.cosh(mp.mpf(a) * ti)) for a, ti in zip(half_widths, t, strict=True)
    )


# Numbers that single precision holds exactly, so that both precisions have one oracle.
MEAN = [0.5, -1.25, 2.0]
COV = [[2.0, 0.5, -0.25], [0.5, 1.0, 0.125], [-0.25, 0.125, 0.75]]
SINGULAR = [[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 0.0]]
TOKENS = [[1.0, 0.5, -0.25], [-0.75, 2.0, 1.5], [0.25, -1.5, 0.5], [-1.0, 0.125, -2.0]]
WEIGHTS = [0.5, 0.25, 0.125, 0.125]
UNIFORM = [0.25] * 4
WIDTHS = [1.0, 0.5, 2.0]
MATRIX = [[1.0, -0.5], [0.25, 2.0], [0.75, 1.5]]
SHIFT = [0.25, -0.5, 1.0]
SKEWED = [[1.0, 0.5], [-0.75, 2.0]]


def _mixture_oracle(t: Sequence[mp.mpf]) -> Any:
    parts = [_gaussian(MEAN, COV)(t), _tokens(TOKENS, WEIGHTS)(t), _rademacher(WIDTHS)(t)]
    return _log_mean_exp([0.5, 0.25, 0.25], parts)


def _affine_oracle(t: Sequence[mp.mpf]) -> Any:
    back = [_dot([row[j] for row in MATRIX], t) for j in range(2)]
    return _dot(SHIFT, t) + _tokens(SKEWED, [0.75, 0.25])(back)


MIXED_SPHERE = Case(
    lambda: pl.Mixture([0.5, 0.5], [pl.Gaussian(MEAN, COV), pl.UniformSphere(3, 1.5)]),
    lambda t: _log_mean_exp([0.5, 0.5], [_gaussian(MEAN, COV)(t), _sphere(3, 1.5)(t)]),
    3.0,
)

CASES: dict[str, Case] = {
    "gaussian": Case(lambda: pl.Gaussian(MEAN, COV), _gaussian(MEAN, COV), 3.0),
    "singular gaussian": Case(lambda: pl.Gaussian(MEAN, SINGULAR), _gaussian(MEAN, SINGULAR), 3.0),
    "point": Case(
        lambda: pl.Gaussian([1.0, 2.0, -0.5], np.zeros((3, 3))),
        _gaussian([1.0, 2.0, -0.5], [[0.0] * 3] * 3),
        2.0,
    ),
    "tokens": Case(lambda: pl.Empirical(TOKENS), _tokens(TOKENS, UNIFORM), 2.0),
    "weighted tokens": Case(lambda: pl.Empirical(TOKENS, WEIGHTS), _tokens(TOKENS, WEIGHTS), 2.0),
    "tokens of weight zero": Case(
        lambda: pl.Empirical(TOKENS, [0.5, 0.0, 0.5, 0.0]),
        _tokens([TOKENS[0], TOKENS[2]], [0.5, 0.5]),
        2.0,
    ),
    "mixture": Case(
        lambda: pl.Mixture(
            [0.5, 0.25, 0.25],
            [pl.Gaussian(MEAN, COV), pl.Empirical(TOKENS, WEIGHTS), pl.Rademacher(WIDTHS)],
        ),
        _mixture_oracle,
        3.0,
    ),
    "product": Case(
        lambda: pl.Product(
            [pl.Gaussian([0.5], [[2.0]]), pl.Gaussian([-0.25], [[0.5]]), pl.UniformCube([1.0])]
        ),
        lambda t: _gaussian([0.5, -0.25], [[2.0, 0.0], [0.0, 0.5]])(t[:2]) + _cube([1.0])(t[2:]),
        2.0,
    ),
    "affine": Case(
        lambda: pl.Affine(pl.Empirical(SKEWED, [0.75, 0.25]), MATRIX, SHIFT), _affine_oracle, 4.0
    ),
    "rademacher": Case(lambda: pl.Rademacher(WIDTHS), _rademacher(WIDTHS), 2.0),
    "cube": Case(lambda: pl.UniformCube(WIDTHS), _cube(WIDTHS), 2.0),
    "sphere in one dimension": Case(lambda: pl.UniformSphere(1, 0.5), _sphere(1, 0.5), 0.5),
    "sphere": Case(lambda: pl.UniformSphere(3, 1.5), _sphere(3, 1.5), 1.5),
    "sphere in many dimensions": Case(lambda: pl.UniformSphere(20, 2.0), _sphere(20, 2.0), 2.0),
    "one of the user's own": Case(
        lambda: OneHot(jnp.array([0.5, 0.25, 0.25])),
        lambda t: _log_mean_exp([0.5, 0.25, 0.25], t),
        1.0,
    ),
    "mixture with one of the user's own": Case(
        lambda: pl.Mixture([0.5, 0.5], [OneHot(jnp.array(WIDTHS) / 3.5), pl.Rademacher(WIDTHS)]),
        lambda t: _log_mean_exp(
            [0.5, 0.5],
            [_log_mean_exp([mp.mpf(w) / mp.mpf(3.5) for w in WIDTHS], t), _rademacher(WIDTHS)(t)],
        ),
        2.0,
    ),
}


def tilt_of(norm: float, dim: int, seed: int = 0) -> np.ndarray:
    """A tilt of that norm which single precision holds exactly, so that one oracle serves both."""
    direction = np.random.default_rng(seed).normal(size=dim)
    return (norm * direction / np.linalg.norm(direction)).astype("float32")


class Truth(NamedTuple):
    value: mp.mpf
    gradient: np.ndarray  # the first three coordinates
    hessian: np.ndarray  # the first three rows and columns


@functools.cache
def truth(case: Case, norm: float, dim: int) -> Truth:
    """The oracle and its central differences: 50 digits in, at least 17 out."""
    tilt = [mp.mpf(float(x)) for x in tilt_of(norm, dim)]
    step = mp.mpf(10) ** -10
    oracle = case.oracle

    def moved(*changes: tuple[int, int]) -> mp.mpf:
        point = list(tilt)
        for index, sign in changes:
            point[index] += sign * step
        return oracle(point)

    def second(i: int, j: int) -> mp.mpf:
        corners = [(a, b, moved((i, a), (j, b))) for a in (-1, 1) for b in (-1, 1)]
        return mp.fsum(a * b * value for a, b, value in corners) / (4 * step**2)

    axes = range(min(dim, 3))
    gradient = [(moved((i, 1)) - moved((i, -1))) / (2 * step) for i in axes]
    hessian = {(i, j): second(i, j) for i in axes for j in axes if i <= j}
    rows = [[float(hessian[min(i, j), max(i, j)]) for j in axes] for i in axes]
    return Truth(oracle(tilt), np.array(gradient, float), np.array(rows))
