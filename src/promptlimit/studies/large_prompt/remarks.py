r"""Claims on remarks: the query in the prompt, queries of another law, labels in $\mathbb R^m$."""

import math
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from promptlimit.attention import LinearAttention, SoftmaxAttention
from promptlimit.dynamics import block_limit, block_start, gradient_flow, imbalance
from promptlimit.finite import gradient_moments
from promptlimit.measures import Affine, Gaussian, Rademacher, ar1_covariance
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    beyond_errors,
    control_at_least,
    within_errors,
)
from promptlimit.studies.large_prompt import STUDY
from promptlimit.studies.large_prompt._ensembles import generic_problem, local_slopes
from promptlimit.studies.large_prompt.gaps import (
    FEW_PROMPTS,
    PROMPTS,
    SHARPNESS,
    Simulated,
    slopes_over_queries,
)
from promptlimit.tasks import (
    CovariateRegression,
    LinearRegression,
    bayes_risk,
    linear_optimum,
    risk,
    risk_gradient,
)

_FAR = np.array([1e5, 1e6])
_SHORT = Simulated(20_000, (2,))
_EXACT = 1e-10
_GRADIENTS = {"value": "gradient in $V$", "key_query": "gradient in $U$"}


# ---------------------------------------------------------------- Remark 3.2


def _gaps_of_gradients(wrt: str) -> tuple[np.ndarray, np.ndarray]:
    """Return exact gaps of gradients at `_FAR`, without and with the query in the prompt."""
    problem = generic_problem(SHARPNESS)
    outside, inside = (
        gradient_moments(*problem, _FAR, wrt=wrt, including_query=own).value
        for own in (False, True)
    )
    return outside, inside


def _simulated_distances(
    seed: int, wrt: str, prompts: Simulated, *, inside: bool = True
) -> np.ndarray:
    """Return the distances of exact from simulated gaps, in standard errors.

    Simulated prompts include the query. `inside` specifies whether the prompts of the exact gap
    also include it.
    """
    problem = (*generic_problem(SHARPNESS), prompts.lengths)
    exact = gradient_moments(*problem, wrt=wrt, including_query=inside, kind="exact")
    drawn = gradient_moments(
        *problem,
        wrt=wrt,
        including_query=True,
        kind="estimate",
        key=jax.random.key(seed),
        samples=prompts.samples,
    )
    return (exact.value - drawn.value) / drawn.error


def _averaged_slopes(key_query: float, variance: float, nodes: int) -> tuple[float, float]:
    """Return the slopes of the gap of the gradient in U without and with the query in the prompt.

    The gap is averaged over standard normal queries.
    """
    attention, law = SoftmaxAttention([[key_query]], [[1.0]]), Gaussian([0.0], [[variance]])

    def gap(query: float, inside: bool) -> np.ndarray:
        return gradient_moments(
            attention, law, [query], _FAR, wrt="key_query", including_query=inside
        ).value

    return slopes_over_queries(gap, _FAR, nodes)


@STUDY.claim(25, reference="Remark 3.2 for Proposition 3.4")
def gradients_with_the_query_in_the_prompt(setting: Setting) -> Iterator[Check]:
    r"""If queries have the law of the tokens, including the query among the tokens of its prompt
    does not change the rates at which the gradients in $V$ and in $U$ converge: at a fixed query
    the gap changes by a term of order $L^{-2}$. Tested for Gaussian tokens, and averaged over
    queries in one dimension for the gradient in $U$.
    """
    prompts = FEW_PROMPTS if setting.quick else PROMPTS
    for wrt, name in _GRADIENTS.items():
        outside, inside = _gaps_of_gradients(wrt)
        yield within_errors(
            f"{name}, query in the prompt: exact gap compared with simulated prompts",
            _simulated_distances(setting.seed, wrt, prompts),
        )
        yield at_most(
            f"{name}: change of the gap if the query is in the prompt, distance of its slope from "
            "$-2$, $L$ from $10^5$ to $10^6$",
            abs(float(local_slopes(np.abs(inside - outside), _FAR)[0]) + 2.0),
            0.01,
            basis="theory: corrections are of relative order $1/L = 10^{-5}$; margin",
        )
        yield beyond_errors(
            f"{name}, $L = 2$: exact gap without the query in the prompt compared with simulated "
            "prompts that include it",
            abs(float(_simulated_distances(setting.seed, wrt, _SHORT, inside=False)[0])),
        )
    nodes = 28 if setting.quick else 56
    outside_slope, inside_slope = _averaged_slopes(0.5, 1.0, nodes)
    yield at_most(
        "gradient in $U$ over normal queries: difference between the slopes with and without the "
        "query in the prompt",
        abs(inside_slope - outside_slope),
        0.01,
        basis="theory: the query adds terms of relative order $1/L = 10^{-5}$; margin",
    )
    outside_slope, inside_slope = _averaged_slopes(5.0, 0.01, nodes)
    yield control_at_least(
        "queries ten times broader than the tokens, gradient in $U$: slope with the query in "
        "the prompt minus slope without",
        inside_slope - outside_slope,
        0.3,
        basis="thirty times the tolerance of the statement; theory: the query has most of the "
        r"weight with a probability of about $L^{-0.1}$",
    )


# ---------------------------------------------------------------- Remark 4.1


_DIM, _NOISE, _PRIOR = 5, 0.1, 0.2
_COVARIANCE = ar1_covariance(_DIM, 0.5)
_QUERY_LENGTHS = (40.0, 1e3, 1e6)


def _regression(query: np.ndarray, prompt: np.ndarray = _COVARIANCE) -> LinearRegression:
    return LinearRegression(
        prompt, noise_variance=_NOISE, prior_variance=_PRIOR, query_covariance=query
    )


def _shrinkage(length: float) -> np.ndarray:
    r"""Return $I-\Sigma\Gamma_L^{-1}$ with the matrix $\Gamma_L$ of Remark 5.3.

    $\Gamma_L=(1+\frac1L)\Sigma+\frac1L(\mathrm{tr}\,\Sigma+s^2/\tau^2)I$ for weights of variance
    $\tau^2$ and label noise of variance $s^2$.
    """
    ridge = (np.trace(_COVARIANCE) + _NOISE / _PRIOR) / length
    gamma = (1.0 + 1.0 / length) * _COVARIANCE + ridge * np.eye(_DIM)
    return np.eye(_DIM) - _COVARIANCE @ np.linalg.inv(gamma)


def _trained(length: float) -> LinearAttention:
    attention = linear_optimum(_regression(_COVARIANCE), length).attention
    if not isinstance(attention, LinearAttention):
        raise TypeError("one layer is one head")
    return attention


def _other_queries() -> dict[str, np.ndarray]:
    return {"identity": np.eye(_DIM), "spread": np.diag([3.0, 1.0, 1.0, 1.0, 0.2])}


def _two_valued_distances(seed: int, samples: int) -> list[float]:
    r"""Return the distances of two formulas from the simulated excess, in standard errors.

    Queries are two-valued. The first formula contains their second moment $H$; the second formula
    contains $\Sigma$ in place of $H$.
    """
    covariance = _other_queries()["spread"]
    task = CovariateRegression(
        Gaussian(np.zeros(_DIM), _COVARIANCE),
        noise_variance=_NOISE,
        prior_variance=_PRIOR,
        query_covariates=Affine(Rademacher(np.ones(_DIM)), np.sqrt(covariance)),
    )
    found = risk(_trained(40.0), task, 40, key=jax.random.key(seed), samples=samples)
    shrinkage = _shrinkage(40.0)
    formulas = [_PRIOR * float(np.trace(H @ shrinkage)) for H in (covariance, _COVARIANCE)]
    return [float(found.mse - _NOISE - formula) / (2 * found.error) for formula in formulas]


@STUDY.claim(26, reference="Remark 4.1")
def queries_of_another_law(setting: Setting) -> Iterator[Check]:
    r"""Queries of another law than the tokens add a bias to the risk. For the best linear
    attention over $L$ tokens, the mean squared error minus the noise variance is
    $\tau^2\mathrm{tr}(H(I-\Sigma\Gamma_L^{-1}))$ for every law of the query $x_q$, with
    $H=\mathbb{E}x_qx_q^\top$, the matrix $\Gamma_L$ of Remark 5.3, and the covariance $\Sigma$ of
    the covariates in the prompt. The bias $\tau^2\mathrm{tr}((H-\Sigma)(I-\Sigma\Gamma_L^{-1}))$ is
    of order $1/L$ and vanishes over an infinite prompt, and the best head does not depend on $H$.
    Tested for two Gaussian laws and one two-valued law of the query.
    """
    errors, slopes = [], []
    for length in _QUERY_LENGTHS:
        head = _trained(length)
        for query in _other_queries().values():
            task = _regression(query)
            excess = float(risk(head, task, length).mse) - _NOISE
            formula = _PRIOR * float(np.trace(query @ _shrinkage(length)))
            errors.append(abs(excess - formula) / (_NOISE + formula))
            gradient = risk_gradient(head, task, length).value
            slopes.append(max(float(np.abs(part).max()) for part in gradient.values()))
    yield at_most(
        "excess of the best linear attention at queries of another law compared with the formula, "
        "largest relative difference",
        max(errors),
        _EXACT,
        basis="rounding error, with a margin of $10^6$",
    )
    yield at_most(
        "largest entry of the gradient of the risk at queries of another law, for the head that is "
        "best at queries with the law of the tokens",
        max(slopes),
        _EXACT,
        basis="rounding error, with a margin of $10^6$",
    )
    right, wrong = _two_valued_distances(setting.seed, 20_000 if setting.quick else 100_000)
    yield within_errors(
        "two-valued queries, $L = 40$: simulated excess compared with the formula", [right]
    )
    yield beyond_errors(r"the same excess compared with the formula for $H = \Sigma$", abs(wrong))
    change = {name: query - _COVARIANCE for name, query in _other_queries().items()}
    long = 1e6
    slope = (_COVARIANCE + (np.trace(_COVARIANCE) + _NOISE / _PRIOR) * np.eye(_DIM)) @ (
        np.linalg.inv(_COVARIANCE)
    )
    biases = [
        (long * np.trace(one @ _shrinkage(long)), np.trace(one @ slope)) for one in change.values()
    ]
    yield at_most(
        "$L$ times the bias at $L = 10^6$ compared with its limit, largest relative difference",
        max(abs(found / limit - 1.0) for found, limit in biases),
        1e-3,
        basis="theory: corrections are of order $1/L$, times the condition number; margin",
    )
    untrained = LinearAttention(
        np.pad(0.5 * np.linalg.inv(_COVARIANCE), (0, 1)), np.diag([0.0] * _DIM + [1.0])
    )
    spread = _other_queries()["spread"]
    kept = [risk(untrained, _regression(one), math.inf).mse for one in (spread, _COVARIANCE)]
    left = 0.25 * _PRIOR * float(np.trace(change["spread"]))
    yield control_at_least(
        "a head with half the best weights, over an infinite prompt: bias at queries of another "
        "law",
        float(kept[0] - kept[1]),
        0.5 * left,
        basis=r"half of $\tau^2\mathrm{tr}((b\Sigma A-I)^\top(b\Sigma A-I)(H-\Sigma))$, where $A$ "
        "and $b$ are the blocks of the head",
    )
    shifted = _regression(_COVARIANCE, prompt=np.eye(_DIM))
    missed = np.linalg.inv(_COVARIANCE) - np.eye(_DIM)
    yield control_at_least(
        "prompts of another law, over an infinite prompt: excess of the trained head",
        float(risk(_trained(math.inf), shifted, math.inf).mse) - _NOISE,
        0.5 * _PRIOR * float(np.trace(missed @ _COVARIANCE @ missed.T)),
        basis=r"half of $\tau^2\mathrm{tr}(MHM^\top)$, $M=\Sigma'\Sigma^{-1}-I$, $\Sigma'$ the "
        "covariance of the prompts",
    )


# ---------------------------------------------------------------- labels in R^m


_LABELS, _SIZE = 3, 0.4


def _labelled(covariance: np.ndarray, labels: int) -> LinearRegression:
    return LinearRegression(
        covariance, noise_variance=_NOISE, prior_variance=_PRIOR, label_dim=labels
    )


def _block(kernel: type, a: float, value: np.ndarray) -> SoftmaxAttention | LinearAttention:
    """Return the head with U = diag(aI, 0) and V = diag(0, B), where B is `value`."""
    key_query = np.pad(a * np.eye(_DIM), (0, len(value)))
    whole = np.zeros_like(key_query)
    whole[_DIM:, _DIM:] = value
    return kernel(key_query, whole)


def _ratios() -> dict[str, float]:
    """Return the relative distance of each risk for m labels from m times the risk for m = 1."""
    one, several = (_labelled(np.eye(_DIM), labels) for labels in (1, _LABELS))
    lengths = [10, 1000, math.inf]
    pairs = {
        f"{name} attention": [
            risk(_block(kernel, 0.5, 1.5 * np.eye(task.label_dim)), task, lengths).value
            for task in (one, several)
        ]
        for name, kernel in (("softmax", SoftmaxAttention), ("linear", LinearAttention))
    }
    pairs["Bayes risk"] = [bayes_risk(task, lengths, points=256).value for task in (one, several)]
    pairs["best linear attention"] = [
        np.asarray(linear_optimum(task, lengths).value) for task in (one, several)
    ]
    return {
        name: float(np.abs(many / (_LABELS * single) - 1.0).max())
        for name, (single, many) in pairs.items()
    }


def _generic_distances(seed: int, samples: int, lengths: Sequence[float]) -> np.ndarray:
    """Return the distances of exact risks from the simulated risk at L = 10, [kernel, length].

    Distances are in standard errors. Heads are generic, without the blocks of Assumption 5.1.
    """
    task = _labelled(np.eye(2), 2)
    rng = np.random.default_rng(17)
    matrices = 0.4 * rng.normal(size=(2, 4, 4))
    distances = []
    for kernel in (SoftmaxAttention, LinearAttention):
        head = kernel(*matrices)
        exact = risk(head, task, lengths)
        drawn = risk(head, task, 10, kind="estimate", key=jax.random.key(seed), samples=samples)
        distances.append((exact.value - drawn.value) / np.hypot(exact.error, drawn.error))
    return np.array(distances)


@STUDY.claim(27, reference="Section 5, for labels with several dimensions")
def labels_of_several_dimensions(setting: Setting) -> Iterator[Check]:
    r"""For labels $y = Wx + \text{noise}$ in $\mathbb{R}^m$, the risk is $m$ times the risk for
    $m = 1$, at every length: for softmax and linear attention with $U = \mathrm{diag}(aI, 0)$ and
    $V = \mathrm{diag}(0, bI)$, for the Bayes predictor, and for the best linear attention. From a
    block start of size $\alpha$ the infinite-prompt flow ends at
    $b^2=(q+\sqrt{q^2+4m\,\mathrm{tr}\,\Sigma^{-2}})/2m$, $q=(m-1)\alpha^2$. Tested for $m = 3$.
    """
    for name, error in _ratios().items():
        yield at_most(
            f"{name}: risk for labels in {_LABELS} dimensions compared with {_LABELS} times the "
            "risk in one, relative difference",
            error,
            _EXACT,
            basis="rounding error, with a margin of $10^6$",
        )
    samples = 20_000 if setting.quick else 100_000
    distances = _generic_distances(setting.seed, samples, [10.0, 1.0])
    yield within_errors(
        "heads without blocks, labels in two dimensions: exact risk compared with simulated "
        "prompts",
        distances[:, 0],
    )
    yield beyond_errors(
        "the same risk of linear attention compared with the exact risk over one token",
        abs(float(distances[1, 1])),
    )
    task = _labelled(_COVARIANCE, _LABELS)
    flow = gradient_flow(block_start(task, _SIZE), task, math.inf, [0.0, 1.0, math.inf])
    _, value = flow.merged()
    ends = value[-1][_DIM:, _DIM:]
    predicted = np.asarray(block_limit(task, _SIZE).value)[_DIM:, _DIM:]
    yield at_most(
        r"end of the infinite-prompt flow, $V = \mathrm{diag}(0, B)$: relative distance of $B$ "
        "from its closed form",
        float(np.linalg.norm(ends - predicted) / np.linalg.norm(predicted)),
        1e-5,
        basis="the tolerance of the solver, with a margin",
    )
    kept = imbalance(flow, label_dim=_LABELS)
    yield at_most(
        r"largest change of $\|A\|^2-\|B\|^2$ along this flow",
        float(np.abs(kept - kept[0]).max()),
        1e-5,
        basis="the tolerance of the solver, with a margin",
    )
    balanced = math.sqrt(math.sqrt(float(np.sum(np.linalg.inv(_COVARIANCE) ** 2))))
    yield control_at_least(
        "end of the same flow compared with the end of the flow for $m = 1$: distance of $b$",
        abs(float(ends[0, 0]) - balanced),
        0.5 * abs(float(predicted[0, 0]) - balanced),
        basis="half of the distance between the two closed forms",
    )
    mixing = 0.2 * (np.ones((_LABELS, _LABELS)) - np.eye(_LABELS))
    isotropic = _labelled(np.eye(_DIM), _LABELS)
    risks = [
        risk(_block(LinearAttention, 0.5, B), isotropic, math.inf).value
        for B in (1.5 * np.eye(_LABELS) + mixing, 1.5 * np.eye(_LABELS))
    ]
    yield control_at_least(
        "a head with $B$ not diagonal, over an infinite prompt: risk minus that of the head with "
        "the diagonal of $B$",
        float(risks[0] - risks[1]),
        0.5 * 0.5 * _PRIOR * _DIM * 0.25 * float(np.sum(mixing**2)),
        basis=r"half of $\frac12\tau^2\|E\|^2\mathrm{tr}(\Sigma A\Sigma A^\top\Sigma)$, where "
        "$E$ consists of the entries of $B$ off the diagonal",
    )
