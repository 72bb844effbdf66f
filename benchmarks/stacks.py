"""What does the closed covariance of a stack cost, against simulation to the same accuracy?

Prints a small table; nothing is asserted. A simulation must run the network on whole prompts, of
400 tokens here. An accuracy of 1e-3 takes 2e6 prompts, since n prompts determine a variance to a
relative sqrt(2/n); the time is extrapolated from a few. A plain simulation cannot resolve the bias;
the table shows the time with the influence as a control variate.
"""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np

import promptlimit as pl
from promptlimit.depth import (
    GaussianStack,
    InfluenceFunction,
    LayerMatrices,
    fluctuation_bias,
    fluctuation_cov,
    influence,
)

Result = TypeVar("Result")
LENGTH = 400
PROMPTS = 64
WANTED = 1e-3


def random_stack(dim: int, depth: int, heads: int) -> GaussianStack:
    """Return random layers over standard normal tokens, none of them sharp."""
    rng = np.random.default_rng(dim)

    def matrix(size: float) -> np.ndarray:
        return size / np.sqrt(dim) * rng.normal(size=(dim, dim))

    layers = [
        LayerMatrices(np.eye(dim), tuple((matrix(0.1), matrix(0.4)) for _ in range(heads)))
        for _ in range(depth)
    ]
    return GaussianStack(np.zeros(dim), np.eye(dim), tuple(layers))


def as_attention(stack: GaussianStack) -> pl.Stack:
    """Return the same layers as a network."""
    layers = [
        pl.Layer([pl.SoftmaxAttention(u, v) for u, v in layer.heads], layer.residual)
        for layer in stack.layers
    ]
    return pl.Stack(layers)


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Return what a function computes, and its seconds of CPU."""
    used = time.process_time()
    value = work()
    return value, time.process_time() - used


def main(smallest: bool = False) -> None:
    """Time covariance, bias, influences of one prompt and simulated prompts of some stacks."""
    length, prompts = (10, 4) if smallest else (LENGTH, PROMPTS)
    stacks = ((16, 2, 1), (16, 2, 4), (4, 4, 1), (2, 6, 1))
    print(f"{'stack':34s} {'cov':>9s} {'bias':>9s} {'jackknife':>10s} {'simulated to 1e-3':>18s}")
    for dim, depth, heads in ((2, 2, 1),) if smallest else stacks:
        stack, query = random_stack(dim, depth, heads), np.ones(dim)
        cov, cov_time = timed(lambda: fluctuation_cov(stack, query))  # noqa: B023
        bias_time = timed(lambda: fluctuation_bias(stack, query))[1]  # noqa: B023
        with jax.enable_x64(True):
            network, law = as_attention(stack), pl.Gaussian(stack.mean, stack.cov)
            drawn = pl.Empirical(law.sample(20 if smallest else 1000, key=jax.random.key(0)))
            influence(network, drawn, query)
            tokens = timed(lambda: influence(network, drawn, query))  # noqa: B023
            run = jax.jit(
                jax.vmap(lambda key: network(pl.Empirical(law.sample(length, key=key)), query))  # noqa: B023
            )
            keys = jax.random.split(jax.random.key(1), prompts)
            jax.block_until_ready(run(keys))
            one = timed(lambda: jax.block_until_ready(run(keys)))[1] / prompts  # noqa: B023
        what = f"{depth} layers, d = {dim}, {heads} head{'s' * (heads > 1)}"
        simulated = one * 2.0 / WANTED**2
        apart = np.abs(tokens[0].cov - cov).max() / np.abs(cov).max()
        print(
            f"{what:34s} {cov_time:8.3f}s {bias_time:8.3f}s {tokens[1]:9.2f}s {simulated:16.0f} s"
            f"   ratio {simulated / cov_time:.1e}, jackknife off by {apart:.0%}"
        )
    stack, query = random_stack(4, 3, 1), np.ones(4)
    control = InfluenceFunction.of(stack, query)
    sample = np.random.default_rng(0).normal(size=(100 if smallest else 100_000, 4))
    _, seconds = timed(lambda: control(sample))
    print(f"influence at {len(sample):,} tokens, 3 layers, d = 4: {seconds:.3f} s of CPU")


if __name__ == "__main__":
    main("--smallest" in sys.argv)
