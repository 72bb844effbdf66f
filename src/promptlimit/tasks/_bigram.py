r"""In-context bigrams: a chain whose transitions are drawn for each prompt, and an induction head.

The last symbol q of a prompt is the query. The head gives the score $\beta$ to the symbols that
follow an earlier q, the score 0 to the others, and returns the weighted frequencies of symbols.
With $x_{ij}=e^{u+\beta[i=q]}$, $y_{ij}=e_j-P_q$ and
$M_{ij}=P_{ij}e^{-x_{ij}(1-\langle a,y_{ij}\rangle)}$,

    E|T - P_q|^2 = sum_q int tr d^2/da^2  nu' M^{L-1} e_q  du     at a = 0,

exactly, for given P. A sink of weight $\kappa$ relative to a match, with the uniform distribution
as its value, multiplies the functional by $e^{-x_s(1-\langle a,y_s\rangle)}$; at infinite $\beta$
and $\kappa=n\alpha$ the head is the posterior mean for Dirichlet($\alpha$) rows.
"""

import functools
import math
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.special import gammaincinv, roots_jacobi

from promptlimit._arrays import Array as HostArray
from promptlimit._arrays import ArrayLike, as_float64, numpy_only
from promptlimit._quadrature import sobol_sets, standard_error
from promptlimit.errors import ArgumentError
from promptlimit.results import Risk
from promptlimit.tasks._objectives import Estimate
from promptlimit.tasks._problem import Lengths, require_lengths, require_points, risk_at_lengths
from promptlimit.weights import EPSILON, NEGLIGIBLE, STEP, nodes_of

_MOST_EXACT = 256
"""The longest prompt of two symbols whose average over P is a sum over Gauss points."""

_LONGEST = 1e6
_REPLICATES = 8
_ENTRIES_AT_ONCE = 2**19

_MOST_COUNTED = 1024
"""The longest prompt whose matches are counted one by one at infinite beta."""


class InContextBigram(eqx.Module):
    r"""Prompts from a Markov chain whose rows are Dirichlet, new for each prompt.

    The first symbol is uniform. The risk is half of $E|T-P_q|^2$, P_q the law of the symbol after
    the query q.

    Args:
        symbols: n, at least 2.
        concentration: $\alpha$ of the Dirichlet law, positive.

    >>> import math
    >>> task = InContextBigram(2, 1.0)
    >>> print(task.bayes_risk([8, 50]).mse.round(8), task.risk([8], sink=0.5).mse.round(8))
    [0.05858166 0.01233503] [0.07312559]
    """

    symbols: int
    concentration: float

    def __init__(self, symbols: int, concentration: float = 1.0):
        whole = isinstance(symbols, int | np.integer) and not isinstance(symbols, bool)
        if not (whole and symbols >= 2):
            raise ArgumentError(
                "symbols", f"must be a whole number of at least 2, got {symbols!r}."
            )
        self.symbols, self.concentration = int(symbols), float(concentration)
        if not 0.0 < self.concentration < math.inf:
            raise ArgumentError(
                "concentration", f"must be positive and finite, got {concentration}."
            )

    @property
    def bayes_sink(self) -> float:
        r"""$n\alpha$: the weight of the sink that makes the head the posterior mean."""
        return self.symbols * self.concentration

    @numpy_only("Call it outside the compiled function and pass its result.")
    def risk(
        self,
        lengths: Lengths,
        *,
        inverse_temperature: float = math.inf,
        sink: float | None = None,
        transitions: ArrayLike | None = None,
        points: int = 256,
    ) -> Risk:
        r"""Return the risk of the induction head over prompts of L symbols.

        Exact for two symbols up to 256 symbols long, and for given transitions; otherwise averaged
        over Sobol' points for P, in eight replicates whose spread is the error.

        Args:
            lengths: L, whole numbers from 2 to 1e6; one or many.
            inverse_temperature: $\beta$, positive; infinite by default: only matches count.
            sink: $\kappa$, the weight of a sink relative to a match; `bayes_sink` when None at
                infinite $\beta$, no sink when None at a finite one.
            transitions: P, shape `[n, n]`; averaged over when None.
            points: a power of two, in each replicate.
        """
        beta = float(inverse_temperature)
        if not beta > 0.0:
            raise ArgumentError("inverse_temperature", f"must be positive, got {beta}.")
        weight = (self.bayes_sink if math.isinf(beta) else 0.0) if sink is None else float(sink)
        if not (0.0 <= weight < math.inf) or (weight == 0.0 and math.isinf(beta)):
            raise ArgumentError(
                "sink",
                f"must be finite and at least 0, and positive at infinite "
                f"`inverse_temperature`, got {sink}. A prompt may have no match.",
            )
        tokens = require_lengths(lengths)
        wrong = tokens[~((tokens >= 2.0) & (tokens <= _LONGEST))]
        if wrong.size:
            raise ArgumentError(
                "lengths", f"must be between 2 and {_LONGEST:g}, got {wrong.flat[0]:g}."
            )
        count = require_points(points)
        given = None if transitions is None else self._checked(transitions)
        risks = [self._risk(int(L), beta, weight, given, count) for L in tokens.ravel()]
        return risk_at_lengths(risks, tokens, "exact")

    @numpy_only("Call it outside the compiled function and pass its result.")
    def bayes_risk(self, lengths: Lengths, *, points: int = 256) -> Risk:
        """Return the smallest risk of any predictor: the head with the sink `bayes_sink`."""
        return self.risk(lengths, sink=self.bayes_sink, points=points)

    def sample(
        self, length: int, *, key: PRNGKeyArray
    ) -> tuple[Int[Array, " length"], Float[Array, "n n"]]:
        """Return the symbols of one prompt, and its transitions."""
        row_key, first_key, step_key = jax.random.split(key, 3)
        weights = jax.random.gamma(row_key, self.concentration, (self.symbols, self.symbols))
        transitions = weights / weights.sum(axis=1, keepdims=True)
        first = jax.random.randint(first_key, (), 0, self.symbols)

        def step(state: Array, own: Array) -> tuple[Array, Array]:
            found = jax.random.categorical(own, jnp.log(transitions[state]))
            return found.astype(state.dtype), found.astype(state.dtype)

        _, others = jax.lax.scan(step, first, jax.random.split(step_key, length - 1))
        return jnp.concatenate([first[None], others]), transitions

    def _checked(self, transitions: ArrayLike) -> HostArray:
        matrix = as_float64(transitions)
        if matrix.shape != (self.symbols, self.symbols):
            raise ArgumentError(
                "transitions",
                f"must have shape [{self.symbols}, {self.symbols}], got {matrix.shape}.",
            )
        if (matrix < 0.0).any() or np.abs(matrix.sum(axis=1) - 1.0).max() > 1e-6:
            raise ArgumentError("transitions", "must have rows of probabilities that sum to one.")
        return matrix / matrix.sum(axis=1, keepdims=True)

    def _risk(
        self, length: int, beta: float, sink: float, given: HostArray | None, points: int
    ) -> Estimate:
        if given is not None:
            ends = range(self.symbols)
            value = sum(float(_errors(given[None], q, length, beta, sink)[0]) for q in ends)
            return Estimate(0.5 * value, length * EPSILON * value, 0)
        means = []
        if self.symbols == 2 and length <= _MOST_EXACT:
            sets = iter([_gauss_rows(length // 2 + 1, self.concentration)])
        else:
            sets = _sobol_rows(self.symbols, self.concentration, points)
        for matrices, weights in sets:  # all ends have the same average
            means.append(self.symbols * weights @ _errors(matrices, 0, length, beta, sink))
        values = 0.5 * np.array(means)
        if len(means) == 1:
            return Estimate(float(values[0]), float(length * EPSILON * values[0]), 0)
        return Estimate(float(values.mean()), float(standard_error(values)), points * len(means))


def _gauss_rows(count: int, alpha: float) -> tuple[HostArray, HostArray]:
    """Return Gauss points for two independent Dirichlet rows of two symbols, and their weights."""
    nodes, weights = roots_jacobi(count, alpha - 1.0, alpha - 1.0)
    p, w = 0.5 * (1.0 + nodes), weights / weights.sum()
    first, second = (grid.ravel() for grid in np.meshgrid(p, p, indexing="ij"))
    matrices = np.stack([first, 1.0 - first, second, 1.0 - second], axis=1).reshape(-1, 2, 2)
    return matrices, np.outer(w, w).ravel()


def _sobol_rows(symbols: int, alpha: float, points: int) -> Iterator[tuple[HostArray, HostArray]]:
    """Yield point sets for Dirichlet rows, as ratios of gamma quantiles."""
    sets = sobol_sets(symbols**2, points, 42)
    for _, uniform in zip(range(_REPLICATES), sets, strict=False):
        gammas = np.maximum(gammaincinv(alpha, uniform), 1e-300).reshape(-1, symbols, symbols)
        yield gammas / gammas.sum(axis=2, keepdims=True), np.full(points, 1.0 / points)


def _errors(matrices: HostArray, end: int, length: int, beta: float, sink: float) -> HostArray:
    r"""Return $E[|T-P_q|^2;x_L=q]$ for many transitions, [b, n, n] to [b], and one q."""
    symbols = matrices.shape[1]
    if math.isinf(beta) and length <= _MOST_COUNTED:
        block = max(1, _ENTRIES_AT_ONCE // (length * symbols))
        parts = [matrices[start : start + block] for start in range(0, len(matrices), block)]
        return np.concatenate([_counted_errors(part, end, length, sink) for part in parts])
    top = max(0.0, math.log(sink)) if sink else 0.0
    low = -NEGLIGIBLE - math.log(length) - top
    high = math.log(NEGLIGIBLE) + 0.5 - (math.log(sink) if sink else -beta)
    u = nodes_of([(low, high)])
    block = max(1, _ENTRIES_AT_ONCE // (u.size * symbols**2))
    parts = [matrices[start : start + block] for start in range(0, len(matrices), block)]
    return np.concatenate([_integrated_errors(part, end, length, u, beta, sink) for part in parts])


def _counted_errors(matrices: HostArray, end: int, length: int, sink: float) -> HostArray:
    r"""Return the errors at infinite $\beta$, step by step along the chain.

    The head has counted m matches, and for one output the sum S of their y. Arrays hold the
    probabilities of the state and m with the moments 1, S and $S^2$, [3, state, m, b], and
    $T-P_q=(S+\kappa y_s)/(m+\kappa)$.
    """
    symbols, count = matrices.shape[1], len(matrices)
    matches = np.arange(float(length))[:, None]
    total = np.zeros(count)
    for output in range(symbols):
        chance = matrices[:, end, output]
        moments = np.zeros((3, symbols, length, count))
        moments[0, :, 0] = 1.0 / symbols
        for _ in range(length - 1):
            moved = np.zeros_like(moments)
            for i in range(symbols):
                zeroth, first, second = moments[:, i]
                for j in range(symbols):
                    step = matrices[:, i, j]
                    if i != end:
                        moved[:, j] += step * moments[:, i]
                        continue
                    y = float(j == output) - chance
                    rows = zeroth, first + y * zeroth, second + 2.0 * y * first + y**2 * zeroth
                    for order, row in enumerate(rows):
                        moved[order, j, 1:] += step * row[:-1]
            moments = moved
        zeroth, first, second = moments[:, end]
        own = sink * (1.0 / symbols - chance)
        squares = second + 2.0 * own * first + own**2 * zeroth
        total += (squares / (matches + sink) ** 2).sum(axis=0)
    return total


def _integrated_errors(  # noqa: PLR0917
    matrices: HostArray, end: int, length: int, u: HostArray, beta: float, sink: float
) -> HostArray:
    """Return the errors at any beta, by the integral over u of the functional."""
    symbols, count = matrices.shape[1], len(matrices)
    scores = np.where(np.arange(symbols) == end, 0.0, -beta)
    x = np.exp(u + scores[:, None])[:, None, None]  # [i, 1, 1, u]
    base = matrices.transpose(1, 2, 0)[..., None] * np.exp(-x)  # [i, j, b, u]
    row = np.full((1, symbols, count, u.size), 1.0 / symbols)
    total = np.zeros((count, u.size))
    for output in range(symbols):
        chance = matrices[:, end, output, None]
        y = (np.arange(symbols) == output)[:, None, None] - chance
        steps = base, base * x * y, base * (x * y) ** 2
        powered = _powered((row, 0.0 * row, 0.0 * row), steps, length - 1)
        value, first, second = (each[0, end] for each in powered)
        if sink:
            x_sink = sink * np.exp(u)
            slope = x_sink * (1.0 / symbols - chance)
            second = np.exp(-x_sink) * (second + 2.0 * slope * first + slope**2 * value)
        total += second
    return STEP * total.sum(axis=1)


_Jet = tuple[HostArray, HostArray, HostArray]
"""A function of one number a at a = 0 with its first two derivatives: matrices [i, j, b, u]."""


def _times(left: _Jet, right: _Jet) -> _Jet:
    a, b, c = left
    d, e, f = right
    return (
        _product(a, d),
        _product(a, e) + _product(b, d),
        _product(a, f) + 2.0 * _product(b, e) + _product(c, d),
    )


def _product(left: HostArray, right: HostArray) -> HostArray:
    """Return the product of many small matrices, [i, k, b, u] and [k, j, b, u]."""
    return functools.reduce(np.add, [left[:, k, None] * right[None, k] for k in range(len(right))])


def _powered(row: _Jet, matrix: _Jet, count: int) -> _Jet:
    """Return the row times a power of the matrix, step by step or by squaring."""
    size = len(matrix[0])
    if count <= 2 * size * math.log2(count + 1):
        for _ in range(count):
            row = _times(row, matrix)
        return row
    for bit in range(count.bit_length()):
        if count >> bit & 1:
            row = _times(row, matrix)
        if bit < count.bit_length() - 1:
            matrix = _times(matrix, matrix)
    return row
