"""A problem: one attention, one prompt, one query, from named arrays or from an example."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import numpy as np

from promptlimit._inputs import require_choice
from promptlimit.attention import Factored, LinearAttention, SoftmaxAttention
from promptlimit.measures import (
    AbstractMeasure,
    Empirical,
    Gaussian,
    Mixture,
    Rademacher,
    UniformCube,
    UniformSphere,
)
from promptlimit.results import Limits

Arrays = Mapping[str, np.ndarray | str]

PROMPT_NAMES = {
    "gaussian": ("mean", "cov"),
    "tokens": ("tokens", "weights"),
    "rademacher": ("half_widths",),
    "cube": ("half_widths",),
    "sphere": ("radius",),
}
ATTENTION_NAMES = ("key_query", "value")
FACTOR_NAMES = ("key_weight", "query_weight", "value_weight", "output", "scale")
_VECTORS = {"mean", "weights", "half_widths", "query", "query_mean"}
_NUMBERS = {"scale", "radius"}


@dataclass(frozen=True)
class Problem:
    """What attention is asked: softmax parameters, a prompt, a query."""

    attention: SoftmaxAttention
    prompt: AbstractMeasure
    query: np.ndarray


def limits(problem: Problem) -> Limits:
    """Return what softmax and linear attention make of the problem, in double precision."""
    with jax.enable_x64(True):
        softmax = problem.attention
        linear = LinearAttention(softmax.key_query, softmax.value)
        outputs = [np.asarray(head(problem.prompt, problem.query)) for head in (softmax, linear)]
        if not np.isfinite(outputs).all():
            raise ValueError(
                "the outputs must be finite, got numbers beyond double precision. "
                "Rescale the parameters, the prompt or the query."
            )
        return Limits(
            softmax=outputs[0],
            linear=outputs[1],
            kind="exact" if isinstance(problem.prompt, Empirical) else "limit",
            error=0.0,
        )


def problem_from_arrays(given: Arrays) -> Problem:
    """Return the problem that named arrays describe.

    Args:
        given: `query`; the parameters, merged (`key_query`, `value`) or in factors (`key_weight`,
            `query_weight`, `value_weight`, and optionally `output`, `scale`); and the prompt:
            `tokens` and optionally `weights`, or `mean` and `cov`, or `half_widths` with `prompt`
            "rademacher" or "cube", or `radius` with `prompt` "sphere".
    """
    shaped = known_arrays(given, {"query"})
    with jax.enable_x64(True):
        head = attention_from(shaped)
        merged = head.heads_read()[0]
        attention = SoftmaxAttention(merged.key_query, merged.value)
        prompt = prompt_from(shaped, attention.token_dim)
        query = needed(shaped, "query", "the problem")
    return Problem(attention, prompt, query)


def known_arrays(given: Arrays, others: set[str]) -> Arrays:
    """Return the arrays in their natural shapes, or refuse a name that is not known.

    Args:
        given: the arrays by name.
        others: names allowed besides those of parameters and prompts.
    """
    known = {"prompt", *others, *ATTENTION_NAMES, *FACTOR_NAMES}
    known |= {name for names in PROMPT_NAMES.values() for name in names}
    for name in given:
        require_choice("array", name, sorted(known))
    return {name: _shaped(name, value) for name, value in given.items()}


def _shaped(name: str, value: np.ndarray | str) -> np.ndarray | str:
    """A table file has rows and columns: flatten what must be a vector or a number."""
    if isinstance(value, str):
        return value
    if name in _VECTORS and value.ndim == 2 and 1 in value.shape:
        return value.ravel()
    if name in _NUMBERS and value.size == 1:
        return value.reshape(())
    return value


def needed(given: Arrays, name: str, owner: str) -> np.ndarray:
    """Return an array that must be there."""
    if name not in given:
        raise ValueError(f"`{name}` must be given for {owner}, got {_listing(given)}.")
    value = given[name]
    if isinstance(value, str):
        raise ValueError(f"`{name}` must be an array, got the text '{value}'.")
    return value


def _number(value: np.ndarray) -> float:
    if value.ndim != 0:
        raise ValueError(f"`scale` must be a number, got shape {value.shape}.")
    return float(value)


def _listing(given: Arrays) -> str:
    return "only " + ", ".join(f"`{name}`" for name in given) if given else "nothing"


def attention_from(given: Arrays) -> SoftmaxAttention | Factored:
    """Return the softmax head that merged matrices or factors describe."""
    if not any(name in given for name in FACTOR_NAMES):
        return SoftmaxAttention(*(needed(given, name, "the attention") for name in ATTENTION_NAMES))
    if both := [name for name in ATTENTION_NAMES if name in given]:
        raise ValueError(
            f"`{both[0]}` must not be given together with factors such as `key_weight`. "
            "Pass either the merged matrices or the factors."
        )
    key, query, value = (needed(given, name, "the factored attention") for name in FACTOR_NAMES[:3])
    output = needed(given, "output", "the head") if "output" in given else None
    scale = _number(needed(given, "scale", "the head")) if "scale" in given else 1.0
    return Factored("softmax", key, query, value, output, scale=scale)


def prompt_from(given: Arrays, dim: int) -> AbstractMeasure:
    """Return the prompt that the arrays describe."""
    kind = _prompt_kind(given)
    others = {name for names in PROMPT_NAMES.values() for name in names} - {*PROMPT_NAMES[kind]}
    if stray := sorted(others & set(given)):
        raise ValueError(
            f"`{stray[0]}` must not be given for a prompt of kind '{kind}'. "
            "Leave it out, or name another prompt."
        )
    if kind == "tokens":
        weights = needed(given, "weights", "tokens") if "weights" in given else None
        return Empirical(needed(given, "tokens", "the prompt"), weights)
    if kind == "gaussian":
        mean = needed(given, "mean", "the prompt") if "mean" in given else np.zeros(dim)
        return Gaussian(mean, needed(given, "cov", "a Gaussian prompt"))
    if kind == "sphere":
        return UniformSphere(dim, needed(given, "radius", "a spherical prompt"))
    half_widths = needed(given, "half_widths", "the prompt")
    return Rademacher(half_widths) if kind == "rademacher" else UniformCube(half_widths)


def _prompt_kind(given: Arrays) -> str:
    said = given.get("prompt")
    if said is not None:
        kind = str(said)
        require_choice("prompt", kind, PROMPT_NAMES)
        return kind
    if "tokens" in given:
        return "tokens"
    if "cov" in given:
        return "gaussian"
    raise ValueError(
        "`prompt` must be described by `cov` (with `mean`) or by `tokens`, or named as one of "
        f"{', '.join(map(repr, PROMPT_NAMES))}, got {_listing(given)}."
    )


def _example(prompt: Callable[[], AbstractMeasure]) -> Callable[[], Problem]:
    """Return the example whose parameters are fixed and whose prompt is the one given."""

    def build() -> Problem:
        with jax.enable_x64(True):
            attention = SoftmaxAttention([[0.8, 0.3], [-0.2, 0.5]], [[1.0, 0.0], [0.5, 1.0]])
            return Problem(attention, prompt(), np.array([1.0, -0.5]))

    return build


_COV = [[1.0, 0.4], [0.4, 0.5]]

EXAMPLES: dict[str, Callable[[], Problem]] = {
    "gaussian": _example(lambda: Gaussian([0.0, 0.0], _COV)),
    "shifted": _example(lambda: Gaussian([1.0, -0.5], _COV)),
    "tokens": _example(
        lambda: Empirical(Gaussian([0.0, 0.0], _COV).sample(64, key=jax.random.key(0)))
    ),
    "mixture": _example(
        lambda: Mixture([0.5, 0.5], [Gaussian([1.0, 0.0], _COV), Gaussian([-1.0, 0.0], _COV)])
    ),
    "rademacher": _example(lambda: Rademacher([1.0, 1.0])),
    "cube": _example(lambda: UniformCube([1.0, 1.0])),
    "sphere": _example(lambda: UniformSphere(2, 1.0)),
}
"""Problems to try the command line with; the parameters are the same, the prompts are not."""
