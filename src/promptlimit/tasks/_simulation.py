"""Monte Carlo estimates of risks, gradients and gaps for any task and any attention.

Each sample is a prompt and its target token. These rules apply if no exact rule applies, and for
kind="estimate".
"""

import math
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._quadrature import student_factor
from promptlimit._random import row_keys
from promptlimit.attention import AbstractAttention
from promptlimit.concentration import TASK_GAPS, GapValues, TaskGapProblem
from promptlimit.errors import ArgumentError, OutsideDomainError
from promptlimit.measures import AbstractMeasure
from promptlimit.parallel import Program, in_chunks
from promptlimit.rules import Effort, unwrap
from promptlimit.tasks._abstract import AbstractTask, drawn, loss_of
from promptlimit.tasks._objectives import AbstractObjective, ArrayMoments, Estimate, Objectives
from promptlimit.tasks._problem import OBJECTIVE, RISK, RISK_GRADIENT, USUAL_POINTS, RiskProblem

_DEFAULT_SAMPLES = 2**14
_MEMORY_BUDGET = 2**26  # bytes of the prompts that are simulated at a time
_LARGEST_PROMPT = 2**30  # bytes of one prompt and its copies
_COPIES = 4  # arrays of the size of a prompt that a program needs
_MOST_AT_ONCE = 1024  # prompts
_LARGEST = 2**31  # bytes of the tokens of an objective


class RiskSimulation(eqx.Module):
    """An attention, a task and a prompt length, as one argument of compiled programs."""

    attention: AbstractAttention
    task: AbstractTask
    length: float = eqx.field(static=True)


@RISK.rule(kind="estimate", scope="every problem", method="simulated prompts")
def _risks(problem: RiskProblem, effort: Effort) -> list[Estimate]:
    found = (_over_prompts(_losses, problem, length, effort) for length in problem.lengths.tolist())
    return [Estimate(float(means[0]), float(errors[0]), count) for (means, errors), count in found]


@RISK_GRADIENT.rule(kind="estimate", scope="every problem", method="simulated prompts")
def _risk_gradients(problem: RiskProblem, effort: Effort) -> list[tuple[ArrayMoments, int]]:
    return [
        _over_prompts(_gradients, problem, length, effort) for length in problem.lengths.tolist()
    ]


@TASK_GAPS.rule(kind="estimate", scope="every task", method="simulated prompts")
def _gaps(problem: TaskGapProblem, effort: Effort) -> GapValues:
    """Return the gap of the outputs, or of their derivative in the array `problem.wrt`."""
    if problem.wrt is not None and not hasattr(problem.attention, problem.wrt):
        raise ArgumentError(
            "wrt",
            f"must name an array of {type(problem.attention).__name__}, got {problem.wrt!r}.",
        )
    program = partial(_squared_gaps, problem.wrt)
    with jax.enable_x64(True):
        found = [_over_prompts(program, problem, one, effort) for one in problem.lengths.tolist()]
    means, errors = (np.array([moments[i] for moments, _ in found]) for i in (0, 1))
    samples = found[-1][1]
    return GapValues(means[:, 0], errors[:, 0], limit_square=float(means[-1, 1]), samples=samples)


def _squared_gaps(
    wrt: str | None, simulation: RiskSimulation, keys: Key[Array, "prompts 3"]
) -> list[Array]:
    r"""Return $|T_L-T|^2$ and $|T|^2$ for each prompt, with T the limit of $T_L$.

    $T_L$ is the output over a prompt of length L, or its derivative in the array named `wrt`.
    """
    attention, task = simulation.attention, simulation.task

    def output(array: Array | None, prompt: AbstractMeasure, query: Array) -> Array:
        moved = attention
        if wrt is not None:
            moved = eqx.tree_at(lambda one: getattr(one, wrt), attention, array)
        return moved(prompt, query)

    def read(prompt: AbstractMeasure, query: Array) -> Array:
        if wrt is None:
            return output(None, prompt, query)
        return jax.jacobian(output)(getattr(attention, wrt), prompt, query)

    def one(own: Key[Array, " 3"]) -> tuple[Array, Array]:
        law, _ = _draw(task, math.inf, own)
        prompt, token = _draw(task, simulation.length, own)
        query = task.query_of(token)
        limit = read(law, query)
        return jnp.sum((read(prompt, query) - limit) ** 2), jnp.sum(limit**2)

    return list(jax.vmap(one)(keys))


def _over_prompts(
    program: Program, problem: RiskProblem | TaskGapProblem, length: float, effort: Effort
) -> tuple[ArrayMoments, int]:
    """Return the means of a program's outputs over prompts, their errors and the prompt count.

    Prompt i is drawn with the keys `split(fold_in(key, i), 3)`, whatever the size of the chunks.
    """
    samples = _DEFAULT_SAMPLES if effort.samples is None else int(effort.samples)
    simulation = RiskSimulation(problem.attention, problem.task, length)
    chunk = _chunk(simulation, samples)
    origin: list[NDArray[np.float64]] = []
    sums, squares = [0.0], [0.0]
    chunks = in_chunks(program, simulation, chunk, key=unwrap(effort.key), draws=3)
    for start, arrays in zip(range(0, samples, chunk), chunks, strict=False):
        columns = [array[: samples - start] for array in arrays]
        if not origin:  # sums of differences from the means of the first chunk lose few digits
            origin = [np.asarray(column.mean(axis=0)) for column in columns]
            sums, squares = [0.0] * len(columns), [0.0] * len(columns)
        for i, column in enumerate(columns):
            sums[i] = sums[i] + (column - origin[i]).sum(axis=0)
            squares[i] = squares[i] + ((column - origin[i]) ** 2).sum(axis=0)
    means = [np.asarray(a + total / samples) for a, total in zip(origin, sums, strict=True)]
    if not all(np.isfinite(mean).all() for mean in means):
        name = type(problem.task).__name__
        if math.isinf(length):
            raise OutsideDomainError(
                "attention",
                "must produce tilts inside the domain of the log-Laplace transform of every prompt "
                f"of {name}, got a loss that is not finite. Scale its key-query matrix down, pass "
                f"finite lengths, or check `draw` and `loss` of {name}.",
            )
        raise ArgumentError(
            "task",
            f"must give finite losses and outputs, got NaN or infinity from {name} over prompts "
            f"of {length:g} tokens. Check its methods `draw` and `loss`.",
        )
    widened = student_factor(samples) / math.sqrt(samples)
    errors = [
        np.asarray(widened * np.sqrt(np.maximum(square - total**2 / samples, 0.0) / (samples - 1)))
        for square, total in zip(squares, sums, strict=True)
    ]
    return (means, errors), samples


def _chunk(simulation: RiskSimulation, samples: int) -> int:
    """Return the number of prompts to simulate at a time, a power of two, or raise an error."""
    length, dim = simulation.length, simulation.task.token_dim
    most = _LARGEST_PROMPT // (8 * dim * _COPIES)
    count = 1 if math.isinf(length) else length
    if count > most:
        raise ArgumentError(
            "lengths",
            f"must be at most {most} to simulate prompts of dimension {dim}, "
            f"got {length:g}. Pass math.inf for the limit.",
        )
    entries = count * dim * _COPIES + simulation.attention.scratch_size(int(count))
    fitting = max(1, int(_MEMORY_BUDGET // (8 * entries)))
    return min(_MOST_AT_ONCE, 2 ** int(math.log2(fitting)), 2 ** math.ceil(math.log2(samples)))


def _loss(
    attention: AbstractAttention, simulation: RiskSimulation, keys: Key[Array, " 3"]
) -> Array:
    """Return the loss on one prompt; `keys` are those of `AbstractTask.draw_prompt`."""
    task = simulation.task
    prompt, token = _draw(task, simulation.length, keys)
    return loss_of(task, attention(prompt, task.query_of(token)), token)


def _draw(
    task: AbstractTask, length: float, keys: Key[Array, " 3"]
) -> tuple[AbstractMeasure, Array]:
    """Return a prompt and its target token; at infinite length the prompt is the law of tokens."""
    if math.isfinite(length):
        return task.draw_prompt(int(length), keys=keys)
    law, queries = drawn(task, keys[0])
    return law, queries.sample(1, key=keys[1])[0]


def _losses(simulation: RiskSimulation, keys: Key[Array, "prompts 3"]) -> list[Array]:
    return [jax.vmap(lambda own: _loss(simulation.attention, simulation, own))(keys)]


def _gradients(simulation: RiskSimulation, keys: Key[Array, "prompts 3"]) -> list[Array]:
    def one(own: Key[Array, " 3"]) -> list[Array]:
        return jax.tree.leaves(eqx.filter_grad(_loss)(simulation.attention, simulation, own))

    return jax.vmap(one)(keys)


class SimulatedObjective(AbstractObjective):
    """The mean loss over fixed prompts, as a function of the attention.

    Attributes:
        task: the task that defines the loss.
        prompts: the prompts, stacked along the first axis of every array.
        tokens: the target token of each prompt, [samples, token_dim].
    """

    task: AbstractTask
    prompts: AbstractMeasure
    tokens: Float[Array, "samples token_dim"]

    def __call__(self, attention: AbstractAttention) -> Float[Array, ""]:
        r"""Return the mean of $\ell(T[\mu](\mathrm{query}(z)), z)$ over the prompts."""

        def loss(prompt: AbstractMeasure, token: Array) -> Array:
            output = attention.attend(prompt, self.task.query_of(token))
            return loss_of(self.task, output, token)

        return jnp.mean(eqx.filter_vmap(loss)(self.prompts, self.tokens))


@OBJECTIVE.rule(
    kind="estimate", scope="every problem", method="prompts that are simulated once and then kept"
)
def simulated_objectives(problem: RiskProblem, effort: Effort) -> list[Objectives]:
    """Return the mean loss over fixed prompts at each length; replicates have different prompts."""
    samples = USUAL_POINTS if effort.samples is None else effort.samples

    def make(length: float, _sharpness: float, replicate: int) -> AbstractObjective:
        key = jax.random.fold_in(unwrap(effort.key), replicate)
        return simulated_objective(problem.task, length, samples=samples, key=key)

    return [Objectives(partial(make, length)) for length in problem.lengths.tolist()]


def simulated_objective(
    task: AbstractTask, length: float, *, samples: int, key: PRNGKeyArray
) -> SimulatedObjective:
    """Return the mean loss over `samples` prompts that are drawn once."""
    if math.isfinite(length) and 8 * length * samples * task.token_dim > _LARGEST:
        most = int(_LARGEST // (8 * samples * task.token_dim))
        raise ArgumentError(
            "lengths",
            f"must be at most {most} with {samples} simulated prompts, got {length:g}. "
            "Pass fewer samples.",
        )
    return SimulatedObjective(task, *_prompts(task, length, row_keys(key, 0, samples, 3)))


@eqx.filter_jit
def _prompts(
    task: AbstractTask, length: float, keys: Key[Array, "samples 3"]
) -> tuple[AbstractMeasure, Float[Array, "samples token_dim"]]:
    """Return prompts of a task and their target tokens."""
    return eqx.filter_vmap(lambda own: _draw(task, length, own))(keys)
