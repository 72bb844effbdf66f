"""What a flow descends: the risk of an attention, as a function of the attention itself."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from promptlimit.attention import AbstractAttention, Factored, LinearAttention, SoftmaxAttention
from promptlimit.measures import AbstractMeasure, Empirical
from promptlimit.tasks import AbstractTask, LinearRegression, risk_function
from promptlimit.tasks._heads import merged_head
from promptlimit.tasks._polynomials import averages
from promptlimit.tasks._softmax_risk import SoftmaxRisk

SHARPNESS_RANGES = (16.0, 40.0)
"""How far weight statistics are tabulated: as a rule, and when that is not enough."""

_LARGEST = 2**31  # bytes of simulated tokens


class PolynomialObjective(eqx.Module):
    r"""The risk of linear attention on Gaussian regression; of softmax attention at $L=\infty$ too.

    The same polynomial as `LinearRisk`, with $1/L$ an array: one program for all lengths.
    """

    task: LinearRegression
    inverse_length: Float[Array, ""]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $R_L=\frac12\{s^2+E(c-y)^2+\frac1L(E\,c^2+E\,v^\top\Gamma_wv\,\sigma^2)\}$."""
        _, key_query, value = merged_head(attention)
        found = averages(self.task, key_query, value[-1])
        finite = self.inverse_length * (found.square + found.product)
        return 0.5 * (self.task.noise_variance + found.misfit + finite)


class SoftmaxObjective(eqx.Module):
    r"""The exact risk of softmax attention on Gaussian regression over a finite prompt.

    With the symbols of `SoftmaxRisk` and bars for means over its points,

    $$2R_L=E(c-y)^2+s^2+\overline{fP+c^2\varrho}+\bar P\,(Ef-\bar f)
    +\bar\varrho\,(Ec^2-\overline{c^2}),$$

    every E in closed form. `SoftmaxRisk` goes on to correct by lines in $\sigma^2$: closer at given
    parameters, but with few points it falls without bound far out, and a flow finds that out.
    """

    risk: SoftmaxRisk

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $R_L(U, v)$, NaN where the sharpness leaves the tables."""
        _, key_query, value = merged_head(attention)
        task = self.risk.task
        exact = averages(task, key_query, value[-1])
        means = self.risk.means(key_query, value[-1])
        factor = exact.value - 2 * (exact.square - exact.cross) - means.factor
        finite = means.finite + means.participation * factor
        finite = finite + means.excess * (exact.square - means.square)
        return 0.5 * (exact.misfit + task.noise_variance + finite)


class SimulatedObjective(eqx.Module):
    """The mean loss over fixed prompts: common random numbers make it a function of parameters.

    Attributes:
        task: whose loss.
        prompts: the prompts, stacked along the first axis of every array.
        tokens: what each prompt is asked about, [samples, token_dim].
    """

    task: AbstractTask
    prompts: AbstractMeasure
    tokens: Float[Array, "samples token_dim"]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return $\frac1n\sum_i\ell(T[\mu_i](\text{masked }z_i), z_i)$."""

        def loss(prompt: AbstractMeasure, token: Array) -> Array:
            return self.task.loss(attention._attend(prompt, self.task.masked(token)), token)

        return jnp.mean(eqx.filter_vmap(loss)(self.prompts, self.tokens))


Objective = PolynomialObjective | SoftmaxObjective | SimulatedObjective


def regression_objective(
    task: LinearRegression,
    kernel: str,
    length: float,
    *,
    points: int,
    replicate: int,
    max_sharpness: float,
) -> PolynomialObjective | SoftmaxObjective:
    """Return the exact risk of one head; only arrays tell the lengths apart."""
    if kernel == "linear" or math.isinf(length):
        return PolynomialObjective(task, jnp.asarray(1.0 / length))
    found = risk_function(
        task, length, points=points, replicate=replicate, max_sharpness=max_sharpness
    )
    if not isinstance(found, SoftmaxRisk):
        raise AssertionError("softmax attention over a finite prompt has no polynomial risk")
    return SoftmaxObjective(found.of_any_length())


def simulated_objective(
    task: AbstractTask, length: float, *, samples: int, key: PRNGKeyArray
) -> SimulatedObjective:
    """Return the mean loss over prompts drawn once from `key`."""
    if math.isfinite(length) and 8 * length * samples * task.token_dim > _LARGEST:
        most = int(_LARGEST // (8 * samples * task.token_dim))
        raise ValueError(
            f"`length` must be at most {most} with {samples} simulated prompts, got {length:g}. "
            "Ask for fewer samples."
        )

    def one(each: PRNGKeyArray) -> tuple[AbstractMeasure, Array]:
        law_key, tokens_key, query_key = jax.random.split(each, 3)
        law, queries = task.draw(key=law_key)
        token = queries.sample(1, key=query_key)[0]
        if math.isinf(length):
            return law, token
        return Empirical(law.sample(int(length), key=tokens_key)), token

    prompts, tokens = eqx.filter_vmap(one)(jax.random.split(key, samples))
    return SimulatedObjective(task, prompts, tokens)


def mover(objective: Objective, start: AbstractAttention) -> AbstractAttention:
    """Return what moves: a polynomial does not ask for the kernel, so one program serves both."""
    if isinstance(objective, PolynomialObjective):
        if isinstance(start, SoftmaxAttention):
            return LinearAttention(start.key_query, start.value)
        if isinstance(start, Factored):
            factors = start.key_weight, start.query_weight, start.value_weight
            return Factored("linear", *factors, start.output, scale=start.scale)
    return start


def largest_sharpness(objective: Objective, attention: AbstractAttention) -> float:
    """Return the largest sharpness the tables of weight statistics are asked for, 0 without."""
    if not isinstance(objective, SoftmaxObjective):
        return 0.0
    return float(objective.risk.sharpness(merged_head(attention)[1]))
