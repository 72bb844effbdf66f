r"""Moments of stacks over finite prompts, and limits of stacks that have no closed form.

The limit of a stack over Gaussian or listed tokens is a closed form. Otherwise atoms (points with
weights) replace the law of a token: the nodes of a quadrature rule for a mixture of Gaussians in
one or two dimensions, and random particles for other laws.

Over Gaussian tokens, linear layers depend on the tokens only through Wishart matrices. To leading
order in 1/L, the output of softmax layers has the covariance C / L and the bias b / L
(`promptlimit.depth`). L times the bias may be far from b even for long prompts
(`promptlimit.depth.leading_order_ratio`). In this case the bias is NaN, and a warning is issued. An
exception is a stack of two layers of which the first has one head, for which
`promptlimit.depth.semi_exact_bias` is used. Under a causal mask the bias of K layers falls as
$(\ln L)^{K-1}/L$ with a constant that depends on the first tokens, and is set to NaN. Derived in
docs/depth-theory.md.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array as JaxArray
from jaxtyping import Key, PRNGKeyArray
from numpy.typing import NDArray

from promptlimit._arrays import Array, as_float64
from promptlimit._quadrature import standard_error
from promptlimit.attention import AbstractAttention
from promptlimit.depth import (
    LEAST_RATIO,
    MOST_NODES,
    GaussianStack,
    InfluenceFunction,
    LayerMatrices,
    LinearStack,
    fluctuation_bias,
    fluctuation_cov,
    leading_order_length,
    leading_order_ratio,
    semi_exact_bias,
    too_many_terms,
    unsupported_layer,
)
from promptlimit.errors import AccuracyError, KindUnavailableError, SlowExpansionWarning
from promptlimit.finite._head_moments import MomentRows, leading_error
from promptlimit.finite._problem import Problem, first_obstacle
from promptlimit.finite._simulation import (
    PromptSimulation,
    chunk_of_prompts,
    numbers_of_prompt,
    output_errors,
    outputs_and_tokens,
    prompt_chunks,
    rows_until_accurate,
    simulated_chunks,
    simulated_lengths,
    warn_when_unreliable,
)
from promptlimit.measures import Empirical, GaussianParts, sqrtm_psd
from promptlimit.rules import Effort, OutOfScope, unwrap

_NOT_A_STACK = OutOfScope("it is not a stack of several layers")
_PARTICLES = 1024
"""The number N of particles; the bias of the limit over particles is O(1/N^2)."""

_REPLICAS = 64
"""The default number of sets of particles, and the largest number if prompts are simulated too."""

_FIRST_NODES = {1: 64, 2: 16}
"""The first number of quadrature nodes per axis of each Gaussian part, by dimension."""

_MOST_ATOMS = 8192
"""The largest number of atoms; scores are computed for all pairs of atoms."""

_MOST_TERMS = 64
"""The largest number of terms of an influence for which a control variate saves time."""

_CLOSE = 1e-10
"""The number of nodes is doubled until the relative change of the limit is at most this."""

_FAR = 1e-4
"""An error is raised if the last doubling changes the limit by a larger relative amount."""


def closed_limit_obstacle(problem: Problem) -> str | None:
    """Return why the limit has no closed form; None if it has one."""
    if problem.layers is None or problem.wrt is not None:
        return None
    parts = problem.parts
    if parts is not None and (parts.is_gaussian or parts.covs is None):
        return None
    return (
        f"the law of {type(problem.measure).__name__} tokens after one layer has no closed form "
        "(particles approximate it)"
    )


def atoms_obstacle(problem: Problem) -> str | None:
    """Return why quadrature nodes cannot replace the law of a token in a stack, or None."""
    if closed_limit_obstacle(problem) is None:
        return "it has a closed limit"
    parts = problem.parts
    return first_obstacle(
        (parts is None, "the tokens are not a mixture of Gaussians"),
        (problem.measure.dim > 2, "the quadrature of a stack is limited to two dimensions"),
        (
            parts is not None
            and _atom_count(parts, _FIRST_NODES.get(problem.measure.dim, 1)) * 4 > _MOST_ATOMS,
            "the mixture has too many parts for a quadrature",
        ),
    )


def atoms_limit(problem: Problem, _effort: Effort) -> MomentRows:
    """Return the limit over quadrature nodes; its error is the change in the last doubling."""
    limit, error = _limit_by_atoms(problem)
    rows = MomentRows.at_infinity(limit, problem.lengths.size)
    return dataclasses.replace(rows, limit_error=error)


def _limit_by_atoms(problem: Problem) -> tuple[Array, Array]:
    parts, nodes = unwrap(problem.parts), _FIRST_NODES[problem.measure.dim]
    before = _over_atoms(problem, parts, nodes)
    while True:
        nodes *= 2
        limit = _over_atoms(problem, parts, nodes)
        error = np.abs(limit - before)
        relative = float(np.linalg.norm(error) / max(np.linalg.norm(limit), 1e-300))
        if relative <= _CLOSE:
            return limit, error
        if _atom_count(parts, 2 * nodes) > _MOST_ATOMS:
            break
        before = limit
    if relative > _FAR:
        raise AccuracyError(
            f"For {problem.subject}, the last doubling of the quadrature nodes changes the limit "
            f"by a relative {relative:.2g}: the nodes do not cover the tilted law. Pass "
            "kind='estimate' and a key."
        )
    return limit, error


def _atom_count(parts: GaussianParts, nodes: int) -> int:
    return int(sum(nodes ** np.linalg.matrix_rank(cov) for cov in parts.all_covs()))


def _over_atoms(problem: Problem, parts: GaussianParts, nodes: int) -> Array:
    r"""Return the output over atoms, n = `nodes` per axis of every Gaussian part.

    Standardised atoms x are $\sqrt{2\pi/n}$ apart and have weights proportional to $e^{-x^2/2}$.
    They form a trapezoidal rule, whose error falls geometrically in n because layers are smooth.
    They extend to about $\pm\sqrt{\pi n/2}$, because tilted means depend on the tails.
    """
    points, shares = [], []
    normals = math.sqrt(2.0 * math.pi / nodes) * (np.arange(nodes) - 0.5 * (nodes - 1))
    weights = np.exp(-0.5 * normals**2)
    for share, mean, cov in zip(parts.weights, parts.means, parts.all_covs(), strict=True):
        root = sqrtm_psd(cov)
        axes = np.linalg.svd(root)[0][:, : np.linalg.matrix_rank(cov)]
        grid = np.array(list(itertools.product(normals, repeat=axes.shape[1])))
        points.append(mean + grid @ (root @ axes).T)
        products = itertools.product(weights / weights.sum(), repeat=axes.shape[1])
        shares.append(share * np.array([math.prod(row) for row in products]))
    with jax.enable_x64(True):
        atoms = Empirical(np.concatenate(points), np.concatenate(shares))
        return as_float64(problem.attention(atoms, problem.query))


def particles_obstacle(problem: Problem) -> str | None:
    """Return why the limit of a stack needs neither atoms nor particles, or None."""
    return None if closed_limit_obstacle(problem) else "it has a closed limit"


def particle_moments(problem: Problem, effort: Effort) -> MomentRows:
    """Return the moments of simulated prompts about a limit over atoms or particles.

    `error` includes the effect of the error of the limit.
    """
    key, prompt_key = jax.random.split(unwrap(effort.key))
    if atoms_obstacle(problem) is None:
        limit, limit_error = _limit_by_atoms(problem)
    else:
        limit, limit_error = _limit_by_particles(problem, key, effort)
    effort = dataclasses.replace(effort, key=prompt_key)
    rows = simulated_moments(problem, effort, limit)
    doubt = float(np.linalg.norm(limit_error))
    pull = 2.0 * np.linalg.norm(rows.bias, axis=1) * doubt
    error = np.where(np.isinf(problem.lengths), 0.0, np.hypot(rows.error, pull + doubt**2))
    return dataclasses.replace(rows, error=error, limit_error=limit_error)


def _limit_by_particles(problem: Problem, key: PRNGKeyArray, effort: Effort) -> tuple[Array, Array]:
    r"""Return the limit as a mean over independent sets of N particles, and its standard error.

    The output over one set is $2T_N-\frac12(T_{N/2}+T'_{N/2})$, which has no bias of order 1/N.
    $T_N$ is the output over all particles, and $T_{N/2}$ and $T'_{N/2}$ are those over the halves.
    """
    replicas = _REPLICAS if effort.samples is None else int(effort.samples)
    if np.isfinite(problem.lengths).any():
        replicas = min(replicas, _REPLICAS)
    chunk = chunk_of_prompts(numbers_of_prompt(problem, 2 * _PARTICLES, 4), replicas)
    with jax.enable_x64(True):
        simulation = PromptSimulation.of(dataclasses.replace(problem, causal=False))
        chunks = simulated_chunks(_replica_outputs, simulation, chunk, key)
        rows = list(itertools.islice(chunks, -(-replicas // chunk)))
    outputs = np.concatenate(rows)[:replicas]
    return outputs.mean(axis=0), standard_error(outputs)


def _replica_outputs(simulation: PromptSimulation, keys: Key[JaxArray, "prompts 2"]) -> JaxArray:
    def one(own: Key[JaxArray, " 2"]) -> JaxArray:
        query, tokens = simulation.draw(_PARTICLES, own)
        halves = tokens[: _PARTICLES // 2], tokens[_PARTICLES // 2 :]
        whole, *parts = (simulation.read(Empirical(some), query) for some in (tokens, *halves))
        return 2.0 * whole - 0.5 * (parts[0] + parts[1])

    return jax.vmap(one)(keys)


def simulated_moments(problem: Problem, effort: Effort, limit: Array) -> MomentRows:
    """Return the moments of simulated prompts about a limit."""
    head = problem.head
    tilt = head.tilt if head is not None and head.kernel == "softmax" else None
    rows = _rows_to_fill(problem, limit)
    simulated = simulated_lengths(problem, effort, output_errors, limit, tilt)
    for place, (squares, deviation, parts, weights) in simulated:
        _put_draws(rows, place, squares, deviation, _covariance(deviation), parts.mean())
        rows.fixed_weights[place] = weights.mean(axis=0) if tilt is not None else np.nan
    if head is not None and head.kernel == "linear":
        rows.participation[:] = 1.0 / (problem.lengths + problem.known.size)
        rows.fixed_weights[:] = rows.participation[:, None]
    return rows


def _rows_to_fill(problem: Problem, limit: Array) -> MomentRows:
    """Return rows that are complete at infinite lengths; `_put_draws` sets finite lengths."""
    rows = MomentRows.at_infinity(limit, problem.lengths.size, problem.known.size)
    samples = np.zeros(problem.lengths.size, dtype=np.int64)
    return dataclasses.replace(rows, samples=samples, bias_error=np.zeros_like(rows.bias))


def _put_draws(  # noqa: PLR0917  # the moments of a row, in their order
    rows: MomentRows,
    place: int,
    squares: Array,
    draws: Array,
    cov: Array,
    participation: float = np.nan,
) -> None:
    """Set the moments at one length; the mean of the rows of `draws` is the bias."""
    error = float(standard_error(squares))
    rows.put(place, draws.mean(axis=0), cov, squares.mean(), participation, error)
    unwrap(rows.samples)[place] = draws.shape[0]
    unwrap(rows.bias_error)[place] = standard_error(draws)


def _covariance(deviation: Array) -> Array:
    centred = deviation - deviation.mean(axis=0)
    return centred.T @ centred / (deviation.shape[0] - 1)


def controlled_obstacle(problem: Problem) -> str | None:
    """Return why `controlled_moments` does not apply; None if it does."""
    if problem.layers is None:
        return _NOT_A_STACK
    obstacle = expansion_obstacle(problem)
    if obstacle is not None:
        return obstacle
    terms = sum(part.constant.size for part in _influence_function(problem).parts)
    return f"its influences have {terms} terms, too many" if terms > _MOST_TERMS else None


def _influence_function(problem: Problem) -> InfluenceFunction:
    return InfluenceFunction.of(gaussian_stack(problem), problem.query)


def controlled_moments(problem: Problem, effort: Effort) -> MomentRows:
    r"""Return the moments of simulated prompts, with their first order k as a control variate.

    The first order k of $T_L-T$ is the mean of the influences of the tokens on the output. Over
    prompts, k has mean zero and covariance $C/L$. So the bias is the mean of $T_L-T-k$, and the
    mean squared error is $\mathrm{tr}\,C/L$ plus the mean of $|T_L-T|^2-|k|^2$. Subtracting k and
    $|k|^2$ reduces the noise by a factor of order $L^{1/2}$.

    Under a causal mask, the influence of token i through p other tokens is multiplied by
    $\frac1{p!}(\sum_{j\ge i}1/j)^p$. Then the mean of k is still zero, but its covariance is not
    $C/L$, and only the bias uses k.
    """
    limit, influence = problem.limit(), _influence_function(problem)
    try:
        cov = fluctuation_cov(gaussian_stack(problem), problem.query)
    except KindUnavailableError:  # influences of infinite variance cannot serve as a control
        return simulated_moments(problem, effort, limit)
    rows = _rows_to_fill(problem, limit)
    for place in np.flatnonzero(np.isfinite(problem.lengths)):
        length = float(problem.lengths[place])
        with jax.enable_x64(True):
            chunks, chunk = prompt_chunks(problem, length, effort, outputs_and_tokens, limit)
            controlled = (
                _controlled(influence, cov / length, problem.causal, *drawn) for drawn in chunks
            )
            squares, deviation, control = rows_until_accurate(controlled, chunk, effort)
        warn_when_unreliable(squares, effort)
        spread = _covariance(deviation)
        if not problem.causal:
            spread = spread - _covariance(control) + cov / length
        _put_draws(rows, int(place), squares, deviation - control, spread)
    return rows


def _controlled(
    influence: InfluenceFunction, cov: Array, causal: bool, deviation: Array, tokens: Array
) -> tuple[Array, Array, Array]:
    r"""Return squared errors, deviations $T_L-T$ and first orders k, one row per prompt.

    Without a causal mask, `cov` is $C/L$, and $\mathrm{tr}\,C/L-|k|^2$ is added to the squared
    errors $|T_L-T|^2$.
    """
    count, length, dim = tokens.shape
    by_steps = np.stack(influence.by_steps(tokens.reshape(-1, dim)))
    by_steps = by_steps.reshape(by_steps.shape[0], count, length, -1)
    reach = np.ones((by_steps.shape[0], length))
    if causal:
        later = np.cumsum(1.0 / np.arange(length, 0, -1))[::-1]
        reach = np.stack([later**p / math.factorial(p) for p in range(by_steps.shape[0])])
    control = np.einsum("pl,pnle->ne", reach, by_steps) / length
    squares = np.sum(deviation**2, axis=1)
    if not causal:
        squares = squares - np.sum(control**2, axis=1) + np.trace(cov)
    return squares, deviation, control


def linear_stack_obstacle(problem: Problem) -> str | None:
    """Return why a problem is not a stack of linear layers over Gaussian tokens, or None."""
    layers = problem.layers
    if layers is None:
        return _NOT_A_STACK
    return first_obstacle(
        (problem.gaussian is None, "the tokens are not Gaussian"),
        (problem.causal, "under a causal mask each token has a second moment of its own"),
        (problem.including_query, "the query is a token"),
        (not all(map(_is_linear, layers)), "its layers are not all linear"),
    )


def exact_linear_stack_obstacle(problem: Problem) -> str | None:
    """Return why Gauss rules for Wishart matrices do not apply to a stack, or None."""
    obstacle = linear_stack_obstacle(problem)
    if obstacle is not None:
        return obstacle
    finite = problem.lengths[np.isfinite(problem.lengths)]
    stack = _linear_stack(problem)
    nodes = max((stack.node_count(float(length)) for length in finite), default=0.0)
    beyond = f"{len(stack.layers)} linear layers in {stack.root.shape[1]} dimensions"
    words = f"{beyond} take {nodes:.2g} nodes, more than {MOST_NODES}"
    return words if nodes > MOST_NODES else None


def exact_linear_stack(problem: Problem, _effort: Effort) -> MomentRows:
    """Return the moments of a linear stack by Gauss rules, which are exact for polynomials."""
    stack = _linear_stack(problem)
    rows = MomentRows.at_infinity(stack.limit, problem.lengths.size)
    for place in np.flatnonzero(np.isfinite(problem.lengths)):
        rows.put(int(place), *stack.exact_moments(float(problem.lengths[place])), np.nan, 0.0)
    return rows


def drawn_linear_stack(problem: Problem, effort: Effort) -> MomentRows:
    """Return the moments of a linear stack over prompts that are drawn as Wishart matrices.

    One part of the deviation is linear in the error of the second moment of the tokens. Its mean
    is zero, so it is omitted from the bias.
    """
    stack = _linear_stack(problem)
    rows = _rows_to_fill(problem, stack.limit)
    words = np.asarray(jax.random.key_data(unwrap(effort.key))).ravel()
    for place in np.flatnonzero(np.isfinite(problem.lengths)):
        rng = np.random.default_rng([*map(int, words)])
        chunk = chunk_of_prompts(8 * problem.measure.dim**2, effort.most_samples)
        chunks = _linear_draws(stack, float(problem.lengths[place]), chunk, rng)
        squares, first, rest = rows_until_accurate(chunks, chunk, effort)
        warn_when_unreliable(squares, effort)
        _put_draws(rows, int(place), squares, rest, _covariance(first + rest))
    return rows


def _linear_draws(
    stack: LinearStack, length: float, chunk: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Array, Array]]:
    """Yield chunks: squared errors, the linear part of deviations, and the remaining part."""
    while True:
        first, rest = stack.drawn_deviations(length, chunk, rng)
        yield np.sum((first + rest) ** 2, axis=1), first, rest


def _is_linear(layer: AbstractAttention) -> bool:
    heads = layer.as_heads()
    return heads is not None and all(head.kernel == "linear" for head in heads)


def _linear_stack(problem: Problem) -> LinearStack:
    """Return the layers as matrices, with a root of the token covariance of full column rank."""
    gaussian, layers = unwrap(problem.gaussian), []
    with jax.enable_x64(True):
        for layer in unwrap(problem.layers):
            residual = layer.residual_matrix()
            shape = (layer.output_dim, layer.query_dim)
            heads = unwrap(layer.as_heads())
            layers.append(
                LayerMatrices(
                    np.zeros(shape) if residual is None else as_float64(residual),
                    tuple((as_float64(head.key_query), as_float64(head.value)) for head in heads),
                )
            )
    variances, axes = np.linalg.eigh(gaussian.all_covs()[0])
    kept = variances > 1e-14 * variances.max()
    root = axes[:, kept] * np.sqrt(variances[kept])
    return LinearStack(tuple(layers), gaussian.means[0], root, problem.query)


# ---------------------------------------------------------------- the leading order in 1/L


def expansion_obstacle(problem: Problem) -> str | None:
    """Return why softmax layers have no leading order in 1/L; None if they have one."""
    layers = problem.layers or (problem.attention,)
    if problem.layers is None and (problem.heads is None or problem.gaussian is None):
        return problem.no_head_reason
    obstacle = first_obstacle(
        (problem.wrt is not None, "a gradient is compared"),
        (problem.gaussian is None, "the tokens are not Gaussian"),
        (problem.including_query, "the query is a token"),
    )
    if obstacle is None:
        obstacle = unsupported_layer(layers)
    if obstacle is None:
        stack = gaussian_stack(problem)
        obstacle = stack.sharp_layer() or too_many_terms(stack)
    return obstacle


def gaussian_stack(problem: Problem) -> GaussianStack:
    """Return the layers of a problem over its Gaussian tokens."""
    gaussian = unwrap(problem.gaussian)
    layers = problem.layers or (problem.attention,)
    return GaussianStack.of(layers, gaussian.means[0], gaussian.all_covs()[0])


def expansion_rows(problem: Problem, _effort: Effort) -> MomentRows:
    """Return the leading order of every moment of softmax layers."""
    stack, lengths = gaussian_stack(problem), problem.lengths
    cov = fluctuation_cov(stack, problem.query, causal=problem.causal)
    shares = 1.0 / lengths
    bias = _bias_constants(stack, problem)
    return MomentRows(
        limit=stack.output(problem.query),
        bias=np.where(np.isinf(lengths)[:, None], 0.0, bias) * shares[:, None],
        cov=shares[:, None, None] * cov,
        mse=shares * np.trace(cov),
        participation=np.where(np.isinf(lengths), 0.0, np.nan),
        error=leading_error(lengths),
    )


def _bias_constants(stack: GaussianStack, problem: Problem) -> Array:
    """Return L times the bias at every length, [n, e]; NaN if it is not available."""
    constants = np.full((problem.lengths.size, stack.layers[-1].residual.shape[0]), np.nan)
    if problem.causal and stack.depth > 1:
        return constants
    reached = np.zeros(problem.lengths.size, dtype=bool)
    if stack.slow_layer() is None:
        reached = leading_order_ratio(stack, problem.query, problem.lengths) >= LEAST_RATIO
        if reached.any():
            constants[reached] = fluctuation_bias(stack, problem.query)
    missing = np.flatnonzero(np.isfinite(problem.lengths) & ~reached)
    if stack.depth == 2 and len(stack.layers[0].heads) == 1:
        for place in missing:
            length = float(problem.lengths[place])
            constants[place] = semi_exact_bias(stack, problem.query, length)
    elif missing.size:
        _warn_of_slow_bias(stack, problem, missing)
    return constants


def _warn_of_slow_bias(stack: GaussianStack, problem: Problem, missing: NDArray[np.int64]) -> None:
    reason = stack.slow_layer()
    if reason is None:
        length = leading_order_length(stack, problem.query)
        sharpest = max(stack.squared_tau(level) for level in range(stack.depth - 1))
        start = f"from L = {length:.2g} on" if np.isfinite(length) else "at no length up to 1e30"
        largest = f"the largest tau^2 below the last layer is {sharpest:.3g}"
        reason = f"its leading order is trusted {start} ({largest})"
    shortest = problem.lengths[missing].min()
    warnings.warn(
        f"The bias of {problem.subject} is NaN at L = {shortest:g}: {reason}. Simulate prompts: "
        "kind='estimate'.",
        SlowExpansionWarning,
        stacklevel=5,
    )
