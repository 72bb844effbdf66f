"""Prompts whose tokens follow a Markov chain with finitely many states."""

import dataclasses
from functools import cached_property
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Float, PRNGKeyArray
from scipy.sparse.csgraph import connected_components

from promptlimit._arrays import Array, ArrayLike, as_float64
from promptlimit._inputs import (
    float_array,
    float_arrays,
    require_finite,
    require_rank,
    require_shape,
    require_weights,
)
from promptlimit.errors import ArgumentError
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.prompts._abstract import AbstractPrompt, Leading, Readout
from promptlimit.prompts._transfer import ENTRIES_AT_ONCE, Chain, Jet, Walk
from promptlimit.weights import Cumulants


class MarkovChain(AbstractPrompt):
    r"""Tokens along a Markov chain of states $i_1,i_2,\dots$ with transition matrix P.

    Token $z_l$ belongs to the state $i_l$, or to the transition $i_{l-1}\to i_l$. In the limit a
    token has the stationary law, even if the chain is periodic: probability $\pi_i$ per state, or
    $\pi_iP_{ij}$ per transition. Moments are exact at every length. Their cost does not depend on
    the length if it exceeds the mixing time.

    Args:
        tokens: one token for each state, shape `[n, d]`, or for each transition, `[n, n, d]`.
        transitions: $P$, shape `[n, n]`, with rows that sum to one.
        start: the first state, or its probabilities `[n]`; the stationary law when None. If tokens
            belong to transitions, the first state has no token.
        end: the last state, on which prompts are conditioned; None for no condition.

    >>> import promptlimit as pl
    >>> chain = pl.MarkovChain([[0.0], [1.0]], [[0.9, 0.1], [0.3, 0.7]])
    >>> head = pl.SoftmaxAttention([[1.0]], [[1.0]])
    >>> moments = pl.prompt_moments(head, chain, [1.0], [10, 1e6])
    >>> print(moments.kind, (moments.lengths * moments.mse).round(4))
    exact [1.0476 1.3269]
    """

    tokens: Float[JaxArray, "..."]
    transitions: Float[JaxArray, "n n"]
    start: Float[JaxArray, " n"] | int | None
    end: int | None

    def __init__(
        self,
        tokens: ArrayLike,
        transitions: ArrayLike,
        *,
        start: ArrayLike | int | None = None,
        end: int | None = None,
    ):
        points, matrix = float_arrays(tokens=tokens, transitions=transitions)
        require_rank("transitions", matrix, 2)
        size = len(matrix)
        require_shape("transitions", matrix, (size, size), "a square matrix")
        if points.ndim not in (2, 3) or points.shape[:-1] != (size,) * (points.ndim - 1):
            raise ArgumentError(
                "tokens",
                f"must have shape [{size}, d] or [{size}, {size}, d] (one token for each state or "
                f"for each transition), got {points.shape}.",
            )
        require_finite("tokens", points)
        require_finite("transitions", matrix)
        self.tokens, self.transitions = points, matrix
        _require_stochastic(matrix)
        self.start = _as_start(start, size)
        self.end = None if end is None else _as_state("end", end, size)
        _ = self._states

    @property
    def dim(self) -> int:
        """The dimension of a token."""
        return self.tokens.shape[-1]

    @property
    def is_on_transitions(self) -> bool:
        """Whether tokens belong to transitions instead of states."""
        return self.tokens.ndim == 3

    @property
    def is_nested(self) -> bool:
        """Whether the first tokens of a prompt are a shorter prompt of the same law."""
        return self.end is None

    @property
    def _states(self) -> "_States":
        return _States.of(self)

    @property
    def token_law(self) -> AbstractMeasure:
        r"""The law of a token: probability $\pi_i$ per state, or $\pi_iP_{ij}$ per transition."""
        states = self._states
        weights = states.stationary
        if self.is_on_transitions:
            weights = weights[:, None] * states.transitions
        present = weights > 0.0
        return Empirical(states.tokens[present], weights[present] / weights[present].sum())

    def sample(self, length: int, *, key: PRNGKeyArray) -> Float[JaxArray, "length d"]:
        """Return the tokens of one prompt; states are drawn from the last one back to the first."""
        matrix = self.transitions / self.transitions.sum(axis=1, keepdims=True)
        count = length + 1 if self.is_on_transitions else length
        law = self._traced_law(matrix)
        _, laws = jax.lax.scan(lambda p, _: (p @ matrix, p), law, None, length=count)
        logs, steps = jnp.log(laws), jnp.log(matrix)
        last_key, key = jax.random.split(key)
        last = jax.random.categorical(last_key, logs[-1])
        if self.end is not None:
            last = jnp.full_like(last, self.end)

        def before(state: JaxArray, given: tuple[JaxArray, JaxArray]) -> tuple[JaxArray, JaxArray]:
            log, own = given
            found = jax.random.categorical(own, log + steps[:, state])
            return found, found

        keys = jax.random.split(key, count - 1)
        _, earlier = jax.lax.scan(before, last, (logs[:-1], keys), reverse=True)
        states = jnp.concatenate([earlier, last[None]])
        if self.is_on_transitions:
            return self.tokens[states[:-1], states[1:]]
        return self.tokens[states]

    def _traced_law(self, matrix: JaxArray) -> JaxArray:
        """Return the probabilities of the first state, [n], in code that jax can trace."""
        size = len(matrix)
        if self.start is None:  # the chain is irreducible
            slopes = jnp.eye(size, dtype=matrix.dtype) - matrix + jnp.ones_like(matrix)
            law = jnp.maximum(jnp.linalg.solve(slopes.T, jnp.ones(size, matrix.dtype)), 0.0)
        elif isinstance(self.start, int):
            law = jnp.zeros(size, matrix.dtype).at[self.start].set(1.0)
        else:
            law = self.start
        return law / law.sum()

    def score_range(self, head: Readout) -> tuple[float, float]:
        """Return the smallest and the largest score of a token, minus the origin."""
        scores = head.scores(self._states.tokens)
        return float(scores.min()), float(scores.max())

    def cumulants(self, head: Readout, u: Array, lengths: Array) -> Cumulants:
        """Return the cumulants, from powers of the transfer matrix."""
        states, features = self._states, len(head.limit) + 2
        entries = (1 + features + features**2) * states.stationary.size**2
        block = max(1, ENTRIES_AT_ONCE // entries)
        parts = [u[start : start + block] for start in range(0, u.size, block)]
        return Cumulants.joined([self._cumulants(states, head, part, lengths) for part in parts])

    def _cumulants(self, states: "_States", head: Readout, u: Array, lengths: Array) -> Cumulants:
        x = head.exponentials(states.tokens, u)
        y = head.features(states.tokens, x)
        row, steps = None, lengths
        if states.first is not None:
            row = Jet.constant(np.tile(states.first, (u.size, 1, 1)), len(y))
        if not self.is_on_transitions:
            if states.first is not None:  # no transition leads to the token of the first state
                law, pairs = states.first * np.exp(-x), y[:-1, None] * y[None, :-1]
                rows = law, law * x * y, law * x**2 * pairs
                row, steps = Jet(*(each[..., None, :] for each in rows)), lengths - 1.0
            size = states.stationary.size  # the other tokens belong to the ends of transitions
            x, y = np.repeat(x[:, None], size, axis=1), np.repeat(y[:, :, None], size, axis=2)
        columns = states.columns(steps)
        return Walk(states.chain, x, y, row, columns, steps).cumulants()

    def leading(self, head: Readout) -> Leading:
        r"""Return the leading order in 1/L.

        Let $G=(I-P+1\pi')^{-1}-1\pi'$. For functions f and g of the state, one of which has mean
        zero under $\pi$,
        $K(f,g)=f'\mathrm{diag}(\pi)Gg+(g'\mathrm{diag}(\pi)Gf)'-f'\mathrm{diag}(\pi)g$ is the sum
        of their covariances over all lags. Let s be the scores of the states, y their values minus
        the limit, $w=e^s/(\pi'e^s)$ and $\psi=wy$. L times the covariance of the output tends to
        $K(\psi,\psi)$, and L times the bias to $-K(\psi,w)$. A first state of law $\nu$ adds
        $\nu'G\psi$ to the limit of L times the bias, and a condition on the last state adds the
        same term of the reversed chain. If tokens belong to transitions, the chain of transitions
        replaces the chain of states.
        """
        states = self._states.on_pairs() if self.is_on_transitions else self._states
        law, matrix = states.stationary, states.transitions
        scores = head.scores(states.tokens)
        tilted = np.exp(scores - scores.max())
        w = tilted / (law @ tilted)
        psi = w[:, None] * (states.tokens @ head.value.T - head.limit)
        ones = np.outer(np.ones(law.size), law)
        green = np.linalg.inv(np.eye(law.size) - matrix + ones) - ones

        def summed(f: Array, g: Array) -> Array:
            flow = law[:, None] * green
            return f.T @ flow @ g + (g.T @ flow @ f).T - f.T @ (law[:, None] * g)

        bias = -summed(psi, w[:, None])[:, 0]
        if states.first is not None:
            bias = bias + states.first @ green @ psi
        if states.last is not None:
            chances = np.where(law > 0.0, law, 1.0)
            backwards = (law[:, None] * green).T / chances[:, None]
            bias = bias + states.last @ backwards @ psi
        return Leading(bias, summed(psi, psi), float(law @ w**2))


@dataclasses.dataclass(frozen=True)
class _States:
    """The states that a chain can reach from its start, in double precision.

    Attributes:
        tokens: the tokens, [n, d] or [n, n, d].
        transitions: the transition matrix, [n, n].
        stationary: the stationary probabilities, [n].
        first: the probabilities of the first state, [n]; None for the stationary law.
        last: the probabilities of the last state under the condition, [n]; None without condition.
    """

    tokens: Array
    transitions: Array
    stationary: Array
    first: Array | None
    last: Array | None

    @staticmethod
    def of(chain: MarkovChain) -> "_States":
        matrix, tokens = _host(chain.transitions), as_float64(chain.tokens)
        classes = connected_components(matrix > 0.0, connection="strong")[0]
        if chain.start is None:
            if classes > 1:
                raise ArgumentError(
                    "start",
                    f"must be given for a chain that is reducible, got None for {classes} classes "
                    "of states. Pass a state or the probabilities of the first state.",
                )
            reached, first = np.arange(len(matrix)), None
        else:
            whole = chain.start
            first = np.eye(len(matrix))[whole] if isinstance(whole, int) else as_float64(whole)
            first = first / first.sum()
            reached = _reached(matrix, first)
            first = first[reached]
        matrix = matrix[np.ix_(reached, reached)]
        tokens = tokens[np.ix_(reached, reached)] if tokens.ndim == 3 else tokens[reached]
        last = None if chain.end is None else (reached == chain.end).astype(np.float64)
        if last is not None and not last.any():
            raise ArgumentError(
                "end", f"must be a state that the chain reaches from `start`, got {chain.end}."
            )
        return _States(tokens, matrix, _stationary(matrix), first, last)

    @cached_property
    def chain(self) -> Chain:
        """The transition matrix in a basis that separates the stationary law."""
        return Chain(self.transitions, self.stationary)

    def columns(self, steps: Array) -> Array | None:
        """Return the indicator of the last state divided by its probability after m steps.

        The result has a row for each m in `steps`, [k, n]; it is None without a condition.
        """
        if self.last is None:
            return None
        first = self.stationary if self.first is None else self.first
        chances = np.array([self.chain.chance(first, self.last, count) for count in steps])
        if not (chances > 1e-13).all():
            raise ArgumentError(
                "lengths",
                "must be lengths at which the chain can be in the state `end`, got a length at "
                "which it cannot.",
            )
        return self.last / chances[:, None]

    def on_pairs(self) -> "_States":
        """Return the chain whose states are the transitions of this chain."""
        matrix = self.transitions
        starts, ends = np.nonzero(matrix > 0.0)
        moves = np.where(ends[:, None] == starts[None, :], matrix[starts, ends][None, :], 0.0)
        chances = matrix[starts, ends]
        first = None if self.first is None else self.first[starts] * chances
        last = None
        if self.last is not None:  # the last transition, given its end
            weights = self.stationary[starts] * chances * self.last[ends]
            last = weights / weights.sum()
        law = self.stationary[starts] * chances
        return _States(self.tokens[starts, ends], moves, law, first, last)


def _host(matrix: JaxArray) -> Array:
    rows = as_float64(matrix)
    return rows / rows.sum(axis=1, keepdims=True)


def _stationary(matrix: Array) -> Array:
    r"""Return $\pi=\pi P$, [n]; raise an error unless there is exactly one closed class."""
    size = len(matrix)
    count, labels = connected_components(matrix > 0.0, connection="strong")
    leaves = np.array([matrix[labels == c][:, labels != c].any() for c in range(count)])
    if np.count_nonzero(~leaves) != 1:
        raise ArgumentError(
            "transitions",
            "must have exactly one closed class of states (otherwise there is no limit), got "
            f"{np.count_nonzero(~leaves)}. Choose a `start` that reaches only one of them.",
        )
    recurrent = ~leaves[labels]
    inner = matrix[np.ix_(recurrent, recurrent)]
    ones = np.ones_like(inner)
    law = np.zeros(size)
    law[recurrent] = np.linalg.solve((np.eye(len(inner)) - inner + ones).T, np.ones(len(inner)))
    return law / law.sum()


def _reached(matrix: Array, first: Array) -> np.ndarray:
    """Return the states that the chain can reach from its first states."""
    reached = first > 0.0
    while True:
        more = reached | (matrix[reached] > 0.0).any(axis=0)
        if (more == reached).all():
            return np.flatnonzero(reached)
        reached = more


def _require_stochastic(matrix: JaxArray) -> None:
    host = as_float64(matrix)
    if (host < 0.0).any():
        i, j = np.argwhere(host < 0.0)[0]
        raise ArgumentError(
            "transitions", f"must not be negative, got {host[i, j]:.6g} at index {i}, {j}."
        )
    sums = host.sum(axis=1)
    tolerance = 1e-10 if matrix.dtype == jnp.float64 else 1e-5
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) > tolerance:
        raise ArgumentError(
            "transitions",
            f"must have rows that sum to one, got a sum of {sums[worst]:.10g} in row {worst}.",
        )


def _as_start(start: ArrayLike | int | None, size: int) -> JaxArray | int | None:
    if start is None:
        return None
    if isinstance(start, Integral):
        return _as_state("start", start, size)
    law = float_array("start", start, rank=1)
    require_shape("start", law, (size,), "one probability for each state")
    require_weights("start", law)
    return law


def _as_state(name: str, state: object, size: int) -> int:
    whole = isinstance(state, Integral) and not isinstance(state, bool)
    if not (whole and 0 <= int(state) < size):
        raise ArgumentError(
            name, f"must be a state, a whole number from 0 to {size - 1}, got {state!r}."
        )
    return int(state)
