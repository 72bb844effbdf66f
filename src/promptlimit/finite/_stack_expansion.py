r"""Moments of softmax layers over Gaussian tokens to leading order in 1/L.

    Cov T_L ~ C / L,    E T_L - T ~ b / L

with C and b in closed form (`promptlimit.depth`; derived in docs/depth-theory.md). Where tokens
attend to themselves so much that b is not reached at any practical length, the bias of two layers
includes the exact errors of the tokens at that length, and that of more layers is NaN. The same
holds at lengths where a sharp layer keeps b from being reached (`promptlimit.depth.reached_share`),
and a warning names the length from which it is reached. Under a causal mask the bias falls as
$(\ln L)^{K-1}/L$ with a constant that the first tokens decide: NaN too.
"""

import warnings

import numpy as np
from numpy.typing import NDArray

from promptlimit._arrays import Array
from promptlimit.depth import (
    REACHED,
    GaussianStack,
    fluctuation_bias,
    fluctuation_cov,
    reached_length,
    reached_share,
    semi_exact_bias,
    too_many_terms,
    unread_layer,
)
from promptlimit.errors import SlowExpansionWarning
from promptlimit.finite._head_moments import MomentRows, leading_error
from promptlimit.finite._problem import Problem, first_obstacle
from promptlimit.rules import Effort, unwrap


def expansion_obstacle(problem: Problem) -> str | None:
    """Return why softmax layers have no leading order in 1/L."""
    layers = problem.layers or (problem.attention,)
    if problem.layers is None and (problem.heads is None or problem.gaussian is None):
        return problem.no_head_reason
    obstacle = first_obstacle(
        (problem.wrt is not None, "a gradient is compared"),
        (problem.gaussian is None, "the tokens are not Gaussian"),
        (problem.including_query, "the query is a token"),
    )
    if obstacle is None:
        obstacle = unread_layer(layers)
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
    """Return the leading order of every moment."""
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
    """Return L times the bias at every length, [n, e]."""
    constants = np.full((problem.lengths.size, stack.layers[-1].residual.shape[0]), np.nan)
    if problem.causal and stack.depth > 1:
        return constants
    reached = np.zeros(problem.lengths.size, dtype=bool)
    if stack.slow_layer() is None:
        reached = reached_share(stack, problem.query, problem.lengths) >= REACHED
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
        length = reached_length(stack, problem.query)
        sharpest = max(stack.squared_tau(level) for level in range(stack.depth - 1))
        start = f"from L = {length:.2g} on" if np.isfinite(length) else "at no length up to 1e30"
        reason = f"its leading order is trusted {start} (tau^2 = {sharpest:.3g} below the last)"
    shortest = problem.lengths[missing].min()
    warnings.warn(
        f"The bias of {problem.subject} is NaN at L = {shortest:g}: {reason}. Simulate prompts: "
        "kind='estimate'.",
        SlowExpansionWarning,
        stacklevel=5,
    )
