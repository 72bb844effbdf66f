"""What does an exact risk with its gradient cost, at short and long prompts, and against sampling?

Contenders take turns within one run. Prints a small table; nothing is asserted.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl

DIM, POINTS, PROMPTS = 5, 4096, 1024


def medians(actions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each action, all taking turns, after one to warm up."""
    seconds = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(repeats):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def finished(function: Callable[..., object], *given: object) -> object:
    """Return what a function returns, computed."""
    return jax.block_until_ready(function(*given))


def simulated(task: pl.LinearRegression, length: int, prompts: int) -> Callable[..., tuple]:
    """Return the gradient of the mean loss over simulated prompts, written by hand."""
    root = np.linalg.cholesky(task.covariance)

    def loss(parameters: tuple[jax.Array, jax.Array], key: jax.Array) -> jax.Array:
        key_query, row = parameters
        keys = jax.random.split(key, 4)
        w = task.prior_variance**0.5 * jax.random.normal(keys[0], (DIM,))
        x = jax.random.normal(keys[1], (length, DIM)) @ root.T
        y = x @ w + task.noise_variance**0.5 * jax.random.normal(keys[2], (length,))
        query = root @ jax.random.normal(keys[3], (DIM,))
        tokens = jnp.concatenate([x, y[:, None]], axis=1)
        weights = jax.nn.softmax(tokens @ (key_query[:, :DIM] @ query))
        return 0.5 * (weights @ (tokens @ row) - w @ query) ** 2 + 0.5 * task.noise_variance

    def mean(parameters: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple:
        keys = jax.random.split(key, prompts)
        values, slopes = jax.vmap(jax.value_and_grad(loss), (None, 0))(parameters, keys)
        return jnp.mean(values), jnp.std(values), jax.tree.map(lambda a: jnp.mean(a, 0), slopes)

    return jax.jit(mean)


def main(smallest: bool = False) -> None:
    """Time softmax at 10 and 1e9 tokens, linear attention, and simulated prompts of 10 tokens."""
    points, prompts, repeats = (64, 16, 2) if smallest else (POINTS, PROMPTS, 200)
    rho = 0.5 ** np.abs(np.subtract.outer(np.arange(DIM), np.arange(DIM)))
    task = pl.LinearRegression(rho, noise_variance=0.1, prior_variance=0.2)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        U = jnp.asarray(0.15 * rng.normal(size=(DIM + 1, DIM + 1)))
        v = jnp.asarray(0.3 * rng.normal(size=DIM + 1))
        functions = {
            "softmax, L = 10": pl.tasks.risk_function(task, 10, points=points, max_sharpness=8.0),
            "linear, L = 10": pl.tasks.risk_function(task, 10, kernel="linear"),
        }
        if not smallest:
            long = pl.tasks.risk_function(task, 1e9, points=points, max_sharpness=8.0)
            functions["softmax, L = 1e9"] = long
        compiled = {
            name: jax.jit(jax.value_and_grad(function, argnums=(0, 1)))
            for name, function in functions.items()
        }
        actions: dict[str, Callable[[], object]] = {
            name: partial(finished, function, U, v) for name, function in compiled.items()
        }
        sample = simulated(task, 10, prompts)
        name = f"{prompts} simulated prompts, L = 10"
        actions[name] = partial(finished, sample, (U, v), jax.random.key(0))
        for label, seconds in medians(actions, repeats).items():
            print(f"{label:<40} {seconds * 1e3:8.2f} ms")
        each = medians({name: actions[name]}, max(repeats // 10, 1))[name] / prompts
        replicates = [
            float(
                pl.tasks.risk_function(task, 10, points=points, replicate=n, max_sharpness=8.0)(
                    U, v
                )
            )
            for n in range(2 if smallest else 8)
        ]
        error = float(np.std(replicates, ddof=1))
        mean, spread, _ = sample((U, v), jax.random.key(1))
        needed = (float(spread) / error) ** 2
        print(f"{'error of one risk, relative':<40} {error / float(mean):8.1e}")
        print(
            f"{'the same by simulated prompts':<40} {needed * each:8.1f} s   {needed:.1e} prompts"
        )


if __name__ == "__main__":
    main("--smallest" in sys.argv)
