r"""In-context bigrams: the risk of an induction head on Markov chains over n symbols.

Each prompt is a Markov chain of L symbols with a new transition matrix P, whose rows have the law
Dirichlet($\alpha$). The last symbol q of a prompt is the query. The output T of an induction head
contains weighted frequencies of the symbols, which estimate the row $P_q$ of P. A pair of
neighbours (i, j) is a match if $i=q$. A match has the weight 1, and any other pair has the weight
$e^{-\beta}$.

For a real number u and a vector a, let $x_{ij}=e^u$ for a match and $x_{ij}=e^{u-\beta}$ otherwise.
Let $y_{ij}=e_j-P_q$ with the j-th unit vector $e_j$, and
$M_{ij}=P_{ij}e^{-x_{ij}(1-\langle a,y_{ij}\rangle)}$. Let $\nu$ be the uniform law of the first
symbol. For given P, exactly,

    E|T - P_q|^2 = sum_q int tr d^2/da^2  nu' M^{L-1} e_q  du     at a = 0.

A sink of weight $\kappa$ multiplies the integrand, before differentiation, by
$e^{-x_s(1-\langle a,y_s\rangle)}$ with $x_s=\kappa e^u$ and $y_s$ the uniform distribution minus
$P_q$.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray
from scipy.special import gammaincinv, roots_jacobi

from promptlimit._arrays import Array as HostArray
from promptlimit._arrays import ArrayLike, Number, as_float64, real_number
from promptlimit._inputs import to_device
from promptlimit._quadrature import sobol_sets, standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.rules import Effort
from promptlimit.tasks._abstract import AbstractTask
from promptlimit.tasks._objectives import Estimate, to_tolerance
from promptlimit.tasks._problem import BAYES_RISK, RISK, BayesProblem, RiskProblem, on
from promptlimit.weights import EPSILON, NEGLIGIBLE, STEP, nodes_of

_MOST_EXACT = 256
"""The longest prompt, for two symbols, whose average over P is a sum over Gauss points."""

_LONGEST = 1e6  # symbols
_REPLICATES = 8
_FEWEST_POINTS, _MOST_POINTS = 256, 1024
_ENTRIES_AT_ONCE = 2**19

_MOST_COUNTED = 1024
"""The longest prompt for which the risk at infinite beta is a sum over numbers of matches."""


class InductionHead(AbstractAttention):
    r"""The weighted mean of the next symbols, with large weights after copies of the query.

    A token $(e_i,e_j)$ is a symbol i and the next symbol j. Its value is $e_j$, and its weight
    before normalisation is 1 if i is the query and $e^{-\beta}$ otherwise. The sink is a further
    token with the weight $\kappa$, whose value is the uniform distribution. The prompt must be an
    `Empirical`. If the measure has weights, it represents an infinite prompt with these frequencies
    of tokens, and the sink has no effect.

    Args:
        symbols: the number n of symbols.
        inverse_temperature: the inverse temperature $\beta$, positive, possibly infinite.
        sink: the weight $\kappa$ of the sink, at least 0, and positive if $\beta$ is infinite.
    """

    symbols: int = eqx.field(static=True)
    inverse_temperature: Float[Array | np.ndarray, ""]
    sink: Float[Array | np.ndarray, ""]

    def __init__(self, symbols: int, inverse_temperature: ArrayLike, sink: ArrayLike):
        beta = real_number("inverse_temperature", inverse_temperature)
        weight = real_number("sink", sink)
        if not beta > 0.0:
            raise ArgumentError("inverse_temperature", f"must be positive, got {beta}.")
        if not (0.0 <= weight < math.inf) or (weight == 0.0 and math.isinf(beta)):
            raise ArgumentError(
                "sink",
                f"must be finite and at least 0, and positive at infinite "
                f"`inverse_temperature`, got {sink}. A prompt may have no match.",
            )
        self.symbols = symbols
        self.inverse_temperature, self.sink = np.asarray(beta), np.asarray(weight)

    @property
    def token_dim(self) -> int:
        """The dimension of a token: two symbols."""
        return 2 * self.symbols

    @property
    def query_dim(self) -> int:
        """The number of symbols."""
        return self.symbols

    @property
    def output_dim(self) -> int:
        """The number of symbols."""
        return self.symbols

    def attend(
        self, prompt: AbstractMeasure, query: Float[Array, " query_dim"]
    ) -> Float[Array, " output_dim"]:
        """Return the weighted mean of the next symbols and the sink."""
        if not isinstance(prompt, Empirical):
            raise ArgumentError("prompt", f"must be an Empirical, got {type(prompt).__name__}.")
        matches, sink = prompt.tokens[:, : self.symbols] @ query, self.sink
        weights = matches + (1.0 - matches) * jnp.exp(-self.inverse_temperature)
        if prompt.weights is not None:
            weights, sink = weights * prompt.weights, 0.0 * sink
        total = weights @ prompt.tokens[:, self.symbols :] + sink / self.symbols
        return total / (weights.sum() + sink)


class InContextBigram(AbstractTask):
    r"""Prediction of the next symbol of a Markov chain with a new transition matrix per prompt.

    The rows of the transition matrix P have the law Dirichlet($\alpha$), and the first symbol is
    uniform. A prompt of L symbols has L - 1 tokens $(e_i,e_j)$, each of which consists of a symbol
    and the next symbol. The query is the last symbol q. The loss of an output T is
    $\frac12|T-P_q|^2$, where the row $P_q$ is the law of the symbol after q. The output of the
    induction head with $\beta=\infty$ and the sink weight $n\alpha$ is the posterior mean of $P_q$.

    Args:
        symbols: the number n of symbols, at least 2.
        concentration: the parameter $\alpha$ of the Dirichlet law, positive.
        transitions: the matrix P, shape `[n, n]`, of all prompts; if None, each prompt has a new
            random P.

    >>> import promptlimit as pl
    >>> task = InContextBigram(2, 1.0)
    >>> print(pl.bayes_risk(task, [8, 50]).mse.round(8))
    [0.05858166 0.01233503]
    >>> print(pl.risk(task.head(sink=0.5), task, [8]).mse.round(8))
    [0.07312559]
    """

    symbols: int
    concentration: float
    transitions: Float[np.ndarray, "n n"] | None

    def __init__(
        self, symbols: int, concentration: float = 1.0, transitions: ArrayLike | None = None
    ):
        whole = isinstance(symbols, int | np.integer) and not isinstance(symbols, bool)
        if not (whole and symbols >= 2):
            raise ArgumentError(
                "symbols", f"must be a whole number of at least 2, got {symbols!r}."
            )
        self.symbols = int(symbols)
        self.concentration = real_number("concentration", concentration)
        if not 0.0 < self.concentration < math.inf:
            raise ArgumentError(
                "concentration", f"must be positive and finite, got {concentration}."
            )
        self.transitions = None if transitions is None else self._checked(transitions)

    @property
    def token_dim(self) -> int:
        """The dimension of a token: two symbols."""
        return 2 * self.symbols

    @property
    def min_output_dim(self) -> int:
        """The number of symbols."""
        return self.symbols

    @property
    def bayes_sink(self) -> float:
        r"""The sink weight $n\alpha$ for which the head at $\beta=\infty$ is the posterior mean."""
        return self.symbols * self.concentration

    def head(
        self, inverse_temperature: Number = math.inf, *, sink: Number | None = None
    ) -> InductionHead:
        r"""Return an induction head.

        Args:
            inverse_temperature: $\beta$, positive. If it is infinite, only the sink and tokens that
                match the query have a positive weight.
            sink: the weight $\kappa$ of the sink relative to a match. None means `bayes_sink` if
                $\beta$ is infinite, and no sink otherwise.
        """
        beta = real_number("inverse_temperature", inverse_temperature)
        if sink is None:
            sink = self.bayes_sink if math.isinf(beta) else 0.0
        return InductionHead(self.symbols, beta, sink)

    def draw(self, *, key: PRNGKeyArray) -> tuple[Empirical, Empirical]:
        """Return the law of a token of an infinite prompt, and the law of the target token."""
        transitions = self._rows(key)
        system = jnp.concatenate(
            [transitions.T - jnp.eye(self.symbols), jnp.ones_like(transitions)]
        )
        right = jnp.concatenate([jnp.zeros(self.symbols), jnp.ones(self.symbols)])
        share = jnp.maximum(jnp.linalg.lstsq(system, right)[0], 0.0)
        share /= share.sum()
        symbols = jnp.eye(self.symbols)
        first, second = (
            jnp.repeat(symbols, self.symbols, axis=0),
            jnp.tile(symbols, (self.symbols, 1)),
        )
        pairs = jnp.concatenate([first, second], axis=1)
        targets = jnp.concatenate([symbols, transitions], axis=1)
        return (
            Empirical(pairs, (share[:, None] * transitions).ravel()),
            Empirical(targets, share),
        )

    def draw_prompt(
        self, length: int, *, keys: Key[Array, " 3"]
    ) -> tuple[Empirical, Float[Array, " pair"]]:
        """Return the pairs of neighbours in a chain of L symbols, and the token $(e_q,P_q)$."""
        if length < 2:
            raise ArgumentError(
                "lengths", f"must be at least 2, got {length}: L symbols form L - 1 tokens."
            )
        transitions = self._rows(keys[0])
        first = jax.random.randint(keys[1], (), 0, self.symbols)

        def step(state: Array, own: Array) -> tuple[Array, Array]:
            found = jax.random.categorical(own, jnp.log(transitions[state])).astype(state.dtype)
            return found, found

        last, others = jax.lax.scan(step, first, jax.random.split(keys[2], length - 1))
        path = jnp.eye(self.symbols)[jnp.concatenate([first[None], others])]
        target = jnp.concatenate([path[-1], transitions[last]])
        return Empirical(jnp.concatenate([path[:-1], path[1:]], axis=1)), target

    def query_of(self, token: Float[Array, " pair"]) -> Float[Array, " n"]:
        """Return the last symbol of the prompt, which is the first half of the target token."""
        return token[: self.symbols]

    def loss(self, output: Float[Array, " n"], token: Float[Array, " pair"]) -> Float[Array, ""]:
        """Return half the squared distance from the law of the next symbol."""
        return 0.5 * jnp.sum((output[-self.symbols :] - token[self.symbols :]) ** 2)

    def _rows(self, key: PRNGKeyArray) -> Array:
        if self.transitions is not None:
            return to_device(self.transitions, jnp.result_type(float))
        weights = jax.random.gamma(key, self.concentration, (self.symbols, self.symbols))
        return weights / weights.sum(axis=1, keepdims=True)

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


def _obstacle_of_lengths(problem: RiskProblem | BayesProblem) -> str | None:
    outside = (problem.lengths < 2.0) | (problem.lengths > _LONGEST)
    return f"a length is not between 2 and {_LONGEST:g}" if outside.any() else None


def _other_head(problem: RiskProblem) -> str | None:
    if not isinstance(problem.attention, InductionHead):
        return "the attention is not an induction head, `task.head(...)`"
    return _obstacle_of_lengths(problem)


_METHOD = (
    "for one given P, without an average; for two symbols and prompts of at most 256, a sum over "
    "Gauss points for P; otherwise an average over Sobol' points"
)


@RISK.rule(
    kind="exact",
    scope="`InContextBigram`, an induction head",
    method=_METHOD,
    obstacle=on(InContextBigram, obstacle=_other_head),
)
def _risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    head = cast(InductionHead, problem.attention)
    return [_risk(problem.task, head, int(L), effort) for L in problem.lengths]


def _known_rows(problem: BayesProblem) -> str | None:
    if problem.task.transitions is not None:
        return "the transitions are given, so that the Bayes risk is 0"
    return _obstacle_of_lengths(problem)


@BAYES_RISK.rule(
    kind="exact",
    scope="`InContextBigram`",
    method="the risk of the induction head with the sink `bayes_sink`",
    obstacle=on(InContextBigram, obstacle=_known_rows),
)
def _bayes_risks(problem: BayesProblem, effort: Effort) -> list[Estimate]:
    task = problem.task
    head = task.head(sink=task.bayes_sink)
    return [_risk(task, head, int(L), effort) for L in problem.lengths]


def _risk(task: InContextBigram, head: InductionHead, length: int, effort: Effort) -> Estimate:
    """Return the risk at one length, for given transitions or averaged over random ones."""
    beta, sink, symbols = float(head.inverse_temperature), float(head.sink), task.symbols
    if task.transitions is not None:
        rows = np.asarray(task.transitions)[None]
        value = sum(float(_errors(rows, q, length, beta, sink)[0]) for q in range(symbols))
        return Estimate(0.5 * value, length * EPSILON * value, 0)

    def mean(sets: Iterable[tuple[HostArray, HostArray]]) -> HostArray:
        # The average over P is equal for all last symbols q.
        return np.array(
            [
                0.5 * symbols * weights @ _errors(rows, 0, length, beta, sink)
                for rows, weights in sets
            ]
        )

    if symbols == 2 and length <= _MOST_EXACT:
        value = float(mean([_gauss_rows(length // 2 + 1, task.concentration)])[0])
        return Estimate(value, length * EPSILON * value, 0)

    def over_points(points: int) -> Estimate:
        values = mean(_sobol_rows(symbols, task.concentration, points))
        return Estimate(float(values.mean()), float(standard_error(values)), points * len(values))

    return to_tolerance(over_points, effort, _FEWEST_POINTS, _MOST_POINTS)


def _gauss_rows(count: int, alpha: float) -> tuple[HostArray, HostArray]:
    """Return Gauss points for P with two independent Dirichlet rows, and their weights."""
    nodes, weights = roots_jacobi(count, alpha - 1.0, alpha - 1.0)
    p, w = 0.5 * (1.0 + nodes), weights / weights.sum()
    first, second = (grid.ravel() for grid in np.meshgrid(p, p, indexing="ij"))
    matrices = np.stack([first, 1.0 - first, second, 1.0 - second], axis=1).reshape(-1, 2, 2)
    return matrices, np.outer(w, w).ravel()


def _sobol_rows(symbols: int, alpha: float, points: int) -> Iterator[tuple[HostArray, HostArray]]:
    """Yield sets of matrices with Dirichlet rows from Sobol' points, and their weights."""
    sets = sobol_sets(symbols**2, points, 42)
    for _, uniform in zip(range(_REPLICATES), sets, strict=False):
        gammas = np.maximum(gammaincinv(alpha, uniform), 1e-300).reshape(-1, symbols, symbols)
        yield gammas / gammas.sum(axis=2, keepdims=True), np.full(points, 1.0 / points)


def _errors(matrices: HostArray, end: int, length: int, beta: float, sink: float) -> HostArray:
    r"""Return the mean of $|T-P_q|^2$ over prompts that end in q, times their probability.

    Here q is `end`. The result has one entry for each of the b transition matrices, [b, n, n].
    """
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
    r"""Return the result of `_errors` at infinite $\beta$, by recursion along the chain.

    Consider one output coordinate. Let m be the number of matches so far, and S the sum of this
    coordinate of $y_{qj}$ over the matches. The array `moments`, [3, n, m, b], contains the
    expectations of 1, S and $S^2$ on the event that the current symbol and m have given values. At
    the end of the chain this coordinate of $T-P_q$ is $(S+\kappa y_s)/(m+\kappa)$.
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
    """Return the result of `_errors` at any beta, by the integral of the module docstring."""
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
"""The value and the first two derivatives, at a = 0, of a matrix that depends on one coordinate
of a; [i, j, b, u] each."""


def _times(left: _Jet, right: _Jet) -> _Jet:
    a, b, c = left
    d, e, f = right
    return (
        _product(a, d),
        _product(a, e) + _product(b, d),
        _product(a, f) + 2.0 * _product(b, e) + _product(c, d),
    )


def _product(left: HostArray, right: HostArray) -> HostArray:
    """Return the products of many pairs of small matrices, [i, k, b, u] and [k, j, b, u]."""
    return functools.reduce(np.add, [left[:, k, None] * right[None, k] for k in range(len(right))])


def _powered(row: _Jet, matrix: _Jet, count: int) -> _Jet:
    """Return the row times the matrix to the power `count`, by the faster of two methods."""
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
