r"""Single-location regression: one token of the prompt has the answer, and its score is larger.

With $x=e^{s+u}$, $\varphi=E\,e^{-x}$ and $F_k=E[x^ke^{-x}]$ of the scores of other tokens, and
$\varphi_0$ of the informative one,

    E(1 - p_0)^2 + E sum_{l>0} p_l^2 = int phi_0 {2(L-1) F_2 phi^{L-2} + (L-1)(L-2) F_1^2 phi^{L-3}} du
    1 - E p_0                        = int phi_0 (L-1) F_1 phi^{L-2} du.
"""  # noqa: E501  # a formula stays on one line

import math

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit._arrays import Array as HostArray
from promptlimit._arrays import numpy_only
from promptlimit.errors import ArgumentError
from promptlimit.results import Risk
from promptlimit.tasks._objectives import Estimate
from promptlimit.tasks._problem import Lengths, kind_of, require_lengths, risk_at_lengths
from promptlimit.weights import EPSILON, STEP, GaussianScore, nodes_of, rule_error, score_window

_LARGEST = 40.0


class SingleLocation(eqx.Module):
    r"""One of L tokens has the label as its value, and its score is shifted by the signal.

    Scores are $\beta(\sqrt\nu+g_0)$ of the informative token and $\beta g_l$ of the others, g
    standard normal; values are independent standard normal, and the label is the value of the
    informative token. A softmax head returns $\sum_lp_lv_l$, and its mean squared error is
    $E(1-p_0)^2+E\sum_{l>0}p_l^2$. At $\beta=\sqrt\nu$ the head is the posterior mean.

    Args:
        signal: $\nu$, positive: the squared distance of the informative score.

    >>> task = SingleLocation(9.0)
    >>> print(task.risk(1.5, [10, 100]).mse.round(6), task.bayes_risk([10, 100]).mse.round(6))
    [0.182537 0.5816  ] [0.142649 0.437694]
    """

    signal: float

    def __init__(self, signal: float):
        self.signal = float(signal)
        if not 0.0 < self.signal <= _LARGEST**2:
            raise ArgumentError(
                "signal", f"must be positive and at most {_LARGEST**2:g}, got {signal}."
            )

    @numpy_only("Call it outside the compiled function and pass its result.")
    def risk(self, inverse_temperature: float, lengths: Lengths) -> Risk:
        r"""Return the risk of the head, half its mean squared error, exactly.

        Args:
            inverse_temperature: $\beta$, from 0 to 40.
            lengths: L, whole numbers from 1 to 1e30, or `math.inf`; one or many.
        """
        beta = float(inverse_temperature)
        if not 0.0 <= beta <= _LARGEST:
            raise ArgumentError(
                "inverse_temperature", f"must be between 0 and {_LARGEST:g}, got {beta}."
            )
        return self._integrated(beta, require_lengths(lengths), square=True)

    @numpy_only("Call it outside the compiled function and pass its result.")
    def bayes_risk(self, lengths: Lengths) -> Risk:
        r"""Return the smallest risk of any predictor: `mse` is $1-E\,p_0$ at $\beta=\sqrt\nu$."""
        return self._integrated(math.sqrt(self.signal), require_lengths(lengths), square=False)

    def sample(
        self, length: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " length"], Float[Array, " length"]]:
        r"""Return the scores at $\beta=1$ and the values of one prompt, the informative first."""
        score_key, value_key = jax.random.split(key)
        scores = jax.random.normal(score_key, (length,)).at[0].add(math.sqrt(self.signal))
        return scores, jax.random.normal(value_key, (length,))

    def _integrated(self, beta: float, lengths: HostArray, *, square: bool) -> Risk:
        found = [_error(beta, beta * math.sqrt(self.signal), L, square) for L in lengths.ravel()]
        risks = [Estimate(0.5 * value, 0.5 * error, 0) for value, error in found]
        return risk_at_lengths(risks, lengths, kind_of("exact", lengths))


def _error(beta: float, shift: float, length: float, square: bool) -> tuple[float, float]:
    """Return the mean squared error, or 1 - E p_0, and its numerical error."""
    if length == 1.0:
        return 0.0, 0.0
    if math.isinf(length):
        return 1.0, 0.0
    windows = [score_window(0.0, beta, length, max(length - 2.0, 0.5))]
    windows.append(score_window(shift, beta, 1.0, 0.5))
    u = nodes_of([(windows[0][0], max(high for _, high in windows))])
    other, informative = GaussianScore(0.0, beta, u), GaussianScore(shift, beta, u)
    first, second = other.moments((1, 2), 0, 0.0)[:, 0]

    def power(missing: float) -> HostArray:
        return np.exp((length - missing) * other.log_phi)

    others = length - 1.0
    integrand = others * first * power(2.0)
    if square:
        pairs = first**2 * power(3.0) if length > 2.0 else 0.0
        integrand = 2.0 * others * second * power(2.0) + others * (length - 2.0) * pairs
    terms = STEP * integrand * informative.phi_and_complement[0]
    rules = 2.0 * np.array([[terms[::2].sum()], [terms[1::2].sum()]])
    value = rules.mean(axis=0)
    error = rule_error(rules, value) + 32.0 * EPSILON * value
    return float(value[0]), float(error[0])
