r"""Single-location regression: the label is the value of one token, whose mean score is larger.

The relevant token is token 0 with the softmax weight $p_0$. The L - 1 other tokens have the weights
$p_l$. For a token with the score s and a real number u, let $x=e^{\beta s+u}$ with the inverse
temperature $\beta$. Let $\varphi_0=E\,e^{-x}$ for the relevant token. For any other token, let
$\varphi=E\,e^{-x}$ and $F_k=E[x^ke^{-x}]$. Then

    E(1 - p_0)^2 + E sum_{l>0} p_l^2 = int phi_0 {2(L-1) F_2 phi^{L-2} + (L-1)(L-2) F_1^2 phi^{L-3}} du
    1 - E p_0                        = int phi_0 (L-1) F_1 phi^{L-2} du.
"""  # noqa: E501  # a formula stays on one line

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from promptlimit._arrays import Array as HostArray
from promptlimit._arrays import Number, real_number
from promptlimit.attention import SoftmaxAttention
from promptlimit.errors import ArgumentError
from promptlimit.measures import Empirical, Gaussian
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._abstract import AbstractTask, drawn
from promptlimit.tasks._objectives import Estimate
from promptlimit.tasks._problem import BAYES_RISK, RISK, BayesProblem, RiskProblem, on
from promptlimit.weights import EPSILON, STEP, GaussianScore, nodes_of, rule_error, score_window

_LARGEST = 40.0


class SingleLocation(AbstractTask):
    r"""One of L tokens, the relevant one, has the label as its value and a larger mean score.

    A token is $(s_l,v_l)$, a score and a value. Both are independent standard normals, but
    $\sqrt\nu$ is added to the score of the relevant token, token 0. The label is $v_0$, and the
    query is the number 1. The head `head(beta)` returns $\sum_lp_lv_l$ with weights $p_l$
    proportional to $e^{\beta s_l}$. Its mean squared error is $E(1-p_0)^2+E\sum_{l>0}p_l^2$. At
    $\beta=\sqrt\nu$ its output is the posterior mean.

    Args:
        signal: the positive number $\nu$, the squared mean of the score of the relevant token.

    >>> import promptlimit as pl
    >>> task = SingleLocation(9.0)
    >>> print(pl.risk(task.head(1.5), task, [10, 100]).mse.round(6))
    [0.182537 0.5816  ]
    >>> print(pl.bayes_risk(task, [10, 100]).mse.round(6))
    [0.142649 0.437694]
    """

    signal: float

    def __init__(self, signal: float):
        self.signal = real_number("signal", signal)
        if not 0.0 < self.signal <= _LARGEST**2:
            raise ArgumentError(
                "signal", f"must be positive and at most {_LARGEST**2:g}, got {signal}."
            )

    @property
    def token_dim(self) -> int:
        """The dimension of a token: a score and a value."""
        return 2

    def head(self, inverse_temperature: Number) -> SoftmaxAttention:
        r"""Return the softmax head with scores $\beta s_l$ and values $v_l$.

        Args:
            inverse_temperature: the inverse temperature $\beta$.
        """
        beta = real_number("inverse_temperature", inverse_temperature)
        return SoftmaxAttention([[beta], [0.0]], [[0.0, 1.0]])

    def draw(self, *, key: PRNGKeyArray) -> tuple[Gaussian, Gaussian]:  # noqa: ARG002  # one law
        """Return the law of a token that is not relevant, and the law of the relevant token."""
        return (
            Gaussian(np.zeros(2), np.eye(2)),
            Gaussian(np.array([math.sqrt(self.signal), 0.0]), np.eye(2)),
        )

    def draw_prompt(
        self, length: int, *, keys: Key[Array, " 3"]
    ) -> tuple[Empirical, Float[Array, " 2"]]:
        """Return the tokens of one prompt, the relevant one first, and the relevant token."""
        law, relevant = drawn(self, keys[0])
        token = relevant.sample(1, key=keys[1])
        others = law.sample(length, key=keys[2])[1:]
        return Empirical(jnp.concatenate([token, others])), token[0]

    def query_of(self, token: Float[Array, " 2"]) -> Float[Array, " 1"]:
        """Return the query, which is 1 for every token."""
        return jnp.ones_like(token[:1])

    def loss(self, output: Float[Array, " 1"], token: Float[Array, " 2"]) -> Float[Array, ""]:
        """Return half the squared distance from the value of the relevant token."""
        return 0.5 * (output[-1] - token[1]) ** 2


def _temperature_and_gain(problem: RiskProblem) -> tuple[float, float]:
    r"""Return $\beta$ and b for a head that returns $b\sum_lp_lv_l$."""
    head = unwrap(problem.head)
    return float(head.key_query[0, 0]), float(head.value[-1, 1])


def _other_head(problem: RiskProblem) -> str | None:
    head = problem.head
    if head is None or head.kernel != "softmax":
        return "the attention is not one softmax head"
    if float(head.key_query[1, 0]) != 0.0 or float(head.value[-1, 0]) != 0.0:
        return "scores depend on values, or outputs on scores"
    beta, _ = _temperature_and_gain(problem)
    if not 0.0 <= beta <= _LARGEST:
        return f"the inverse temperature is not between 0 and {_LARGEST:g}"
    return None


@RISK.rule(
    kind="exact",
    scope="`SingleLocation`, a softmax head that weights by scores and averages values",
    method="one integral for the error, one for the weight of the relevant token",
    obstacle=on(SingleLocation, obstacle=_other_head),
)
def _risks(problem: RiskProblem, _effort: Effort) -> list[Estimate]:
    r"""Return $\frac12E(b\sum_lp_lv_l-v_0)^2=\frac12((b-1)^2-2b(b-1)E(1-p_0)+b^2e)$.

    Here e is the mean squared error at b = 1.
    """
    (beta, b), signal, risks = _temperature_and_gain(problem), problem.task.signal, []
    for length in problem.lengths.tolist():
        value, error = _error(beta, beta * math.sqrt(signal), length, square=True)
        value, error = b**2 * value, b**2 * error
        if b != 1.0:
            missed, uncertainty = _error(beta, beta * math.sqrt(signal), length, square=False)
            value += (b - 1.0) ** 2 - 2.0 * b * (b - 1.0) * missed
            error += abs(2.0 * b * (b - 1.0)) * uncertainty
        risks.append(Estimate(0.5 * value, 0.5 * error, 0))
    return risks


@BAYES_RISK.rule(
    kind="exact",
    scope="`SingleLocation`",
    method=r"$\frac12(1-E\,p_0)$ at $\beta=\sqrt\nu$, one integral",
    obstacle=on(SingleLocation),
)
def _bayes_risks(problem: BayesProblem, _effort: Effort) -> list[Estimate]:
    signal = problem.task.signal
    found = (_error(math.sqrt(signal), signal, L, square=False) for L in problem.lengths.tolist())
    return [Estimate(0.5 * value, 0.5 * error, 0) for value, error in found]


def _error(beta: float, shift: float, length: float, *, square: bool) -> tuple[float, float]:
    """Return the mean squared error if `square`, else 1 - E p_0, and the numerical error."""
    if length == 1.0:
        return 0.0, 0.0
    if math.isinf(length):
        return 1.0, 0.0
    windows = [score_window(0.0, beta, length, max(length - 2.0, 0.5))]
    windows.append(score_window(shift, beta, 1.0, 0.5))
    u = nodes_of([(windows[0][0], max(high for _, high in windows))])
    other, relevant = GaussianScore(0.0, beta, u), GaussianScore(shift, beta, u)
    first, second = other.moments((1, 2), 0, 0.0)[:, 0]

    def power(missing: float) -> HostArray:
        return np.exp((length - missing) * other.log_phi)

    others = length - 1.0
    integrand = others * first * power(2.0)
    if square:
        pairs = first**2 * power(3.0) if length > 2.0 else 0.0
        integrand = 2.0 * others * second * power(2.0) + others * (length - 2.0) * pairs
    terms = STEP * integrand * relevant.phi_and_complement[0]
    rules = 2.0 * np.array([[terms[::2].sum()], [terms[1::2].sum()]])
    value = rules.mean(axis=0)
    error = rule_error(rules, value) + 32.0 * EPSILON * value
    return float(value[0]), float(error[0])
