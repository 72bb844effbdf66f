r"""A claim on softmax stacks over finite prompts.

A layer $(r,u,v)$ in one dimension maps the query and every token $z$ to $rz+vA_L(z)$, where $A_L$
is softmax attention over $L$ tokens at the tilt $uz$. The output of a stack minus its limit is the
*first order*, which is the mean over the tokens $y$ of their influence $K(y)$, plus a remainder
$R$.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from promptlimit._quadrature import normal_gauss
from promptlimit.depth import (
    GaussianStack,
    InfluenceFunction,
    LayerMatrices,
    fluctuation_bias,
    fluctuation_cov,
    semi_exact_bias,
)
from promptlimit.reporting import CONTRAST, INK, LIMIT
from promptlimit.studies import (
    Check,
    Setting,
    at_most,
    beyond_errors,
    rejected,
    share_at_least,
    within_errors,
)
from promptlimit.studies.depth import STUDY

Array = np.ndarray


def line_stack(*layers: tuple[float, float, float]) -> GaussianStack:
    """Return the stack of layers (r, u, v) over standard normal tokens."""
    matrices = [[np.array([[number]]) for number in layer] for layer in layers]
    return GaussianStack(
        np.zeros(1), np.eye(1), tuple(LayerMatrices(r, ((u, v),)) for r, u, v in matrices)
    )


def outputs(
    stack: GaussianStack, tokens: Array, query: float, *, causal: bool = False
) -> list[Array]:
    """Return the queries after every layer, [n] each, over the prompts `tokens`, [n, L]."""
    queries, length = np.full(len(tokens), query), tokens.shape[1]
    after = []
    for place, layer in enumerate(stack.layers, start=1):
        ((key_query, value),) = layer.heads
        r, u, v = (float(matrix[0, 0]) for matrix in (layer.residual, key_query, value))
        weights = np.exp(u * queries[:, None] * tokens)
        queries = r * queries + v * np.sum(weights * tokens, axis=1) / weights.sum(axis=1)
        after.append(queries)
        if place < len(stack.layers):  # the last layer only changes the query
            scores = u * tokens[:, :, None] * tokens[:, None, :]
            weights = np.exp(scores, out=scores)
            if causal:
                weights *= np.tri(length)
            sums = weights @ np.stack([tokens, np.ones_like(tokens)], axis=2)
            tokens = r * tokens + v * sums[:, :, 0] / sums[:, :, 1]
    return after


def first_orders(stack: GaussianStack, tokens: Array, query: float) -> dict[str, Array]:
    """Return first orders of the prompts `tokens`, [n, L], by name, [n] each.

    A token influences the output directly (p = 0), and through p other tokens, whose values it
    changes and which influence the output in later layers. The first order "whole" is the mean of
    the sum of all influences over tokens; "direct" is the mean of direct influences. For "causal",
    the first order under a causal mask, the influence of token i through p other tokens is
    multiplied by h^p/p! with h = 1/i + ... + 1/L.
    """
    count, length = tokens.shape
    influence = InfluenceFunction.of(stack, np.array([query]))
    parts = [part.reshape(count, length) for part in influence.by_steps(tokens.reshape(-1, 1))]
    later = np.cumsum(1.0 / np.arange(length, 0, -1.0))[::-1]  # sum of 1/j over positions j >= i
    masked = sum(part * later**p / math.factorial(p) for p, part in enumerate(parts))
    columns = {"whole": sum(parts), "direct": parts[0], "causal": masked}
    return {name: np.mean(column, axis=1) for name, column in columns.items()}


def atoms_variance(stack: GaussianStack, query: float, nodes: int = 40) -> float:
    """Return E K^2, from the output of the stack over the nodes of a quadrature rule.

    The influence of a node is the derivative of the output with respect to the node's weight. It is
    computed by an imaginary step, which avoids cancellation.
    """
    points, weights = normal_gauss(nodes)
    moved = weights + 1e-30j * (np.eye(nodes) - weights)
    tokens = np.broadcast_to(points, (nodes, nodes)).astype(complex)
    queries = np.full(nodes, query, dtype=complex)
    for layer in stack.layers:
        ((key_query, value),) = layer.heads
        r, u, v = (matrix[0, 0] for matrix in (layer.residual, key_query, value))
        scores = np.exp(u * tokens[:, :, None] * tokens[:, None, :]) * moved[:, None]
        row = np.exp(u * queries[:, None] * tokens) * moved
        queries = r * queries + v * np.sum(row * tokens, axis=1) / row.sum(axis=1)
        tokens = r * tokens + v * np.einsum("nij,nj->ni", scores, tokens) / scores.sum(axis=2)
    return float(weights @ (np.imag(queries) / 1e-30) ** 2)


def masked_variance(stack: GaussianStack, query: float, nodes: int = 40) -> float:
    r"""Return $\sum_{pq}\binom{p+q}pE\,K_pK_q$, with $K_p$ the influence through p other tokens."""
    points, weights = normal_gauss(nodes)
    parts = InfluenceFunction.of(stack, np.array([query])).by_steps(points[:, None])
    columns = [np.ravel(part) for part in parts]
    return sum(
        math.comb(p + q, p) * float(weights @ (first * second))
        for p, first in enumerate(columns)
        for q, second in enumerate(columns)
    )


_STACK = line_stack((1.0, 0.12, 0.6), (1.0, 0.1, 0.5), (0.8, 0.12, 0.7))
_QUERY = 1.0
_CHUNK = 2**22
"""The largest number of scores in memory."""
_PROMPTS = 20_000
"""The number of prompts at each length.

With this number, the levels of checks hold up to a skewness of 6. The skewness of L R is about 3.
"""
_FALL = 0.8
"""A bound on the ratio of √L |R| at a length 4L to √L |R| at the length L.

The typical ratio tends to 1/2 for the right first order and to 1 for a wrong first order.
"""
_CLOSER = 2 / 3
"""The share of prompts whose output must be closer to the right first order than to a wrong one.

The share tends to 1 for long prompts. It is 1/2 if two first orders are equally wrong.
"""


def left_over(length: int, prompts: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return L (output - limit - first order) in simulated prompts, by name, [prompts] each.

    The name states whether the output has a causal mask, and which first order is subtracted.
    """
    limit = _STACK.output(np.array([_QUERY]))[0]
    chunk = max(1, _CHUNK // length**2)
    columns: dict[str, list[np.ndarray]] = {}
    for start in range(0, prompts, chunk):
        tokens = rng.normal(size=(min(chunk, prompts - start), length))
        first = first_orders(_STACK, tokens, _QUERY)
        plain = outputs(_STACK, tokens, _QUERY)[-1] - limit
        masked = outputs(_STACK, tokens, _QUERY, causal=True)[-1] - limit
        differences = {
            "plain": plain - first["whole"],
            "without passing on": plain - first["direct"],
            "plain, as if masked": plain - first["causal"],
            "masked": masked - first["causal"],
            "masked, as if not": masked - first["whole"],
        }
        for name, column in differences.items():
            columns.setdefault(name, []).append(length * column)
    return {name: np.concatenate(column) for name, column in columns.items()}


@STUDY.claim(10, reference="derived here")
def finite_stacks(setting: Setting) -> Iterator[Check]:
    r"""To leading order, the output of a softmax stack over $L$ Gaussian tokens has the covariance
    $C/L$ and the bias $b/L$, with $C$ and $b$ in closed form. Here $C$ is a sum over pairs of paths
    through layers, along which a token influences the output through $p$ and $q$ other tokens.
    Under a causal mask, the term of such a pair is multiplied by $\binom{p+q}{p}$. Tested for one
    stack of three layers in one dimension.
    """
    # The output is the limit, plus a first order F with L Var F = C, plus a remainder R. √L R falls
    # like 1/√L, so it halves if the length is multiplied by four. If F is wrong, R is of the same
    # order as F. Under a mask, R falls more slowly by powers of ln L, because the first tokens
    # attend to few others. In this case, the check compares F with the first order without a mask.
    rng, query = np.random.default_rng([setting.seed, 10]), np.array([_QUERY])
    variance = float(fluctuation_cov(_STACK, query)[0, 0])
    masked = float(fluctuation_cov(_STACK, query, causal=True)[0, 0])
    lengths = (10, 40) if setting.quick else (20, 80)
    setting.report(f"stacks over prompts of {lengths[0]} and {lengths[1]} tokens")
    short, long = (left_over(length, _PROMPTS, rng) for length in lengths)
    # L E R = b + c/L + O(1/L²): Richardson extrapolation from two lengths eliminates c
    ends = 4.0 * long["plain"] / 3.0, short["plain"] / 3.0
    bias, closed = float(ends[0].mean() - ends[1].mean()), fluctuation_bias(_STACK, query)[0]
    error = math.sqrt(sum(float(column.var()) / column.size for column in ends))
    falls = (
        rf"simulated prompts with $\sqrt{{L}}\,{{|R|}}$ at {lengths[1]} tokens below {_FALL} "
        f"of that at {lengths[0]} tokens, where $R$ is the remainder after the first order"
    )
    closer = f"prompts of {lengths[1]} tokens whose output is closer to the first order"
    yield at_most(
        "$L$ times the variance compared with a numerical derivative in the weights of quadrature "
        "nodes: relative difference",
        abs(variance / atoms_variance(_STACK, _QUERY) - 1.0),
        1e-9,
        basis="quadrature of 40 nodes, and rounding error of $10^{-13}$; margin $10^4$",
    )
    yield at_most(
        "$L$ times the variance under a mask compared with quadrature over pairs of paths: "
        "relative difference",
        abs(masked / masked_variance(_STACK, _QUERY) - 1.0),
        1e-9,
        basis="as above",
    )
    yield within_errors(
        "$L$ times the bias, extrapolated from both lengths, compared with the closed form",
        [(bias - closed) / error],
    )
    yield _share(falls, _FALL * np.abs(short["plain"]), np.abs(long["plain"]) / 2.0, 0.5)
    yield _share(
        f"under a causal mask: {closer} with the mask than to that without",
        np.abs(long["masked, as if not"]),
        np.abs(long["masked"]),
        _CLOSER,
    )
    yield beyond_errors(
        "$L$ times the bias compared with 0 instead of the closed form", abs(bias) / error
    )
    yield rejected(
        _share(
            f"first order of direct influences only: {falls}",
            _FALL * np.abs(short["without passing on"]),
            np.abs(long["without passing on"]) / 2.0,
            0.5,
        )
    )
    yield rejected(
        _share(
            f"without a mask: {closer} with a mask than to that without",
            np.abs(long["plain"]),
            np.abs(long["plain, as if masked"]),
            _CLOSER,
        )
    )


def _share(name: str, larger: np.ndarray, smaller: np.ndarray, share: float) -> Check:
    """Return a check that `smaller` is below `larger` with a probability of at least `share`."""
    return share_at_least(name, smaller < larger, share)


_DEPTH = 5
_LAYER = (1.0, 0.15, 0.4)
_LENGTH = 200
_SLOW = line_stack((1.0, 0.6, 0.5), (1.0, 0.3, 0.5))


def _spread(setting: Setting) -> dict[str, np.ndarray]:
    """Return L times the variance after each layer, in closed form and simulated."""
    whole = line_stack(*[_LAYER] * _DEPTH)
    query, depths = np.array([_QUERY]), np.arange(1, _DEPTH + 1)
    stacks = [GaussianStack(whole.mean, whole.cov, whole.layers[:depth]) for depth in depths]
    points, weights = normal_gauss(60)
    direct = [
        weights @ InfluenceFunction.of(stack, query).by_steps(points[:, None])[0][:, 0] ** 2
        for stack in stacks
    ]
    closed = {
        "spread": [fluctuation_cov(stack, query)[0, 0] for stack in stacks],
        "masked_spread": [fluctuation_cov(stack, query, causal=True)[0, 0] for stack in stacks],
        "direct_spread": np.array(direct),
    }
    rng = np.random.default_rng([setting.seed, 1])
    prompts = 100 if setting.quick else 600
    draws = {"simulated": [], "masked_simulated": []}
    for _ in range(prompts // 100):
        tokens = rng.normal(size=(100, _LENGTH))
        for name, causal in (("simulated", False), ("masked_simulated", True)):
            draws[name].append(outputs(whole, tokens, _QUERY, causal=causal))
    simulated = {
        name: _LENGTH * np.concatenate(parts, axis=1).var(axis=1, ddof=1)
        for name, parts in draws.items()
    }
    numbers = {"depths": depths, "spread_error": np.array(np.sqrt(2.0 / prompts))}
    return numbers | simulated | {name: np.array(values) for name, values in closed.items()}


def _bias(setting: Setting) -> dict[str, np.ndarray]:
    """Return L times the bias of the stack `_SLOW` at several lengths, simulated and computed."""
    query, rng = np.array([_QUERY]), np.random.default_rng([setting.seed, 2])
    lengths = np.array([10, 30, 100]) if setting.quick else np.array([10, 30, 100, 300])
    means, errors = [], []
    for length in lengths:
        prompts = max(100, 40_000 // int(length))
        left = []
        for _ in range(prompts // 50):
            tokens = rng.normal(size=(50, length))
            moved = outputs(_SLOW, tokens, _QUERY)[-1] - _SLOW.output(query)[0]
            left.append(length * (moved - first_orders(_SLOW, tokens, _QUERY)["whole"]))
        column = np.concatenate(left)
        means.append(column.mean())
        errors.append(column.std(ddof=1) / np.sqrt(column.size))
    fine = np.round(np.geomspace(5.0, 1e9, 6 if setting.quick else 25))
    return {
        "lengths": lengths.astype(np.float64),
        "bias": np.array(means),
        "bias_error": np.array(errors),
        "fine_lengths": fine,
        "semi_exact": np.array([semi_exact_bias(_SLOW, query, length)[0] for length in fine]),
        "leading": fluctuation_bias(_SLOW, query),
    }


@STUDY.figure("A softmax stack at finite length", reference="derived here", name="finite_stacks")
def finite_stack_curves(setting: Setting) -> dict[str, np.ndarray]:
    r"""Left: $L$ times the variance of the output after each layer of a stack over $L$ Gaussian
    tokens. Lines: the closed form, with and without a causal mask. Circles: stacks simulated at $L
    = 200$. Most of the variance is due to influences of tokens on one another in earlier layers;
    the dotted line omits these. Right: $L$ times the bias of two layers in which a token has a
    large weight in its own output (scores $0.6\,zy$ in the first layer). The leading order in $1/L$
    (dashed) has the wrong sign at every realistic length. For the solid line, the error of each
    token as a query of its prompt is exact. This line agrees with the simulated stacks.
    """
    setting.report("stacks at finite length")
    return _spread(setting) | _bias(setting)


@finite_stack_curves.drawing
def draw_finite_stacks(data: Mapping[str, np.ndarray]) -> Figure:
    """Return the figure."""
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    spread, bias = figure.subplots(1, 2)
    depths = data["depths"]
    for name, simulated, colour, label in (
        ("spread", "simulated", LIMIT, "no mask"),
        ("masked_spread", "masked_simulated", CONTRAST, "causal mask"),
    ):
        spread.plot(depths, data[name], color=colour, label=label)
        error = data["spread_error"] * data[simulated]
        spread.errorbar(depths, data[simulated], error, fmt="o", color=colour, markersize=4)
    spread.plot(depths, data["direct_spread"], ":", color=INK, label="direct influence only")
    spread.set(yscale="log", xticks=depths)
    spread.set_xlabel("layers")
    spread.set_ylabel("$L$ × variance")
    spread.legend(loc="upper left")
    bias.plot(data["fine_lengths"], data["semi_exact"], color=LIMIT, label="errors of tokens exact")
    level = float(data["leading"][0])
    bias.axhline(level, color=INK, dashes=(4, 2), linewidth=0.9, label="leading order")
    bias.errorbar(
        *(data[name] for name in ("lengths", "bias", "bias_error")),
        fmt="o",
        color=CONTRAST,
        markersize=4,
        label="simulated",
    )
    bias.set(xscale="log")
    bias.set_xlabel("length $L$")
    bias.set_ylabel("$L$ × bias")
    bias.legend(loc="center left")
    return figure
