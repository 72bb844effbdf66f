"""Spread and bias of softmax stacks at finite length, closed and simulated."""

import numpy as np

from promptlimit._quadrature import normal_gauss
from promptlimit.depth import (
    GaussianStack,
    StackKernel,
    fluctuation_bias,
    fluctuation_cov,
    semi_exact_bias,
)
from promptlimit.studies import Figure, Setting
from promptlimit.studies.depth._finite_stacks import first_orders, line_stack, outputs

_DEPTH = 5
_LAYER = (1.0, 0.15, 0.4)
_LENGTH = 200
_SLOW = line_stack((1.0, 0.6, 0.5), (1.0, 0.3, 0.5))
_QUERY = 1.0


def _spread(setting: Setting) -> dict[str, np.ndarray]:
    """Return L Var after every layer: whole, without passing on, masked; closed and simulated."""
    whole = line_stack(*[_LAYER] * _DEPTH)
    query, depths = np.array([_QUERY]), np.arange(1, _DEPTH + 1)
    stacks = [GaussianStack(whole.mean, whole.cov, whole.layers[:depth]) for depth in depths]
    points, weights = normal_gauss(60)
    direct = [
        weights @ StackKernel.of(stack, query).by_steps(points[:, None])[0][:, 0] ** 2
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
    """Return L times the bias of a stack whose tokens attend to themselves, by length."""
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


def compute(setting: Setting) -> dict[str, np.ndarray]:
    """Return both panels."""
    setting.tell("stacks at finite length")
    return _spread(setting) | _bias(setting)


FIGURE = Figure(
    name="finite_stacks",
    title="A softmax stack at finite length",
    reference="derived here",
    caption="Left: $L$ times the variance of the output after each layer of a stack over $L$ "
    "Gaussian tokens. Lines: the closed form, with and without a causal mask. Circles: stacks "
    f"simulated at $L = {_LENGTH}$. Most of the variance comes from errors that tokens pass on "
    "to one another from layer to layer; the dotted line omits them. Right: $L$ times the bias "
    "of two layers whose tokens attend to themselves ($w = 0.6$). The leading order in $1/L$ "
    "(dashed) has the wrong sign at every realistic length. The line computes the error of each "
    "token within its own prompt exactly, and follows the simulated stacks.",
    compute=compute,
)
