"""Problems that named arrays, examples or two numbers describe, built with jax."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from promptlimit._inputs import require_choice
from promptlimit.attention import Factored, Layer, LinearAttention, SoftmaxAttention, Stack
from promptlimit.cli._inputs import (
    ARRAY_NAMES,
    FACTORS,
    MERGED,
    OF_PROMPTS,
    PROMPTS,
    QUERIES,
    STACK_NAMES,
)
from promptlimit.errors import ArgumentError
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
Queries = AbstractMeasure | np.ndarray

_VECTORS = {"mean", "weights", "half_widths", "query", "query_mean"}
_NUMBERS = {"scale", "radius"}
_COV = [[1.0, 0.4], [0.4, 0.5]]
_EXAMPLES: dict[str, Callable[[], AbstractMeasure]] = {
    "gaussian": lambda: Gaussian([0.0, 0.0], _COV),
    "shifted": lambda: Gaussian([1.0, -0.5], _COV),
    "tokens": lambda: Empirical(Gaussian([0.0, 0.0], _COV).sample(64, key=jax.random.key(0))),
    "mixture": lambda: Mixture(
        [0.5, 0.5], [Gaussian([1.0, 0.0], _COV), Gaussian([-1.0, 0.0], _COV)]
    ),
    "rademacher": lambda: Rademacher([1.0, 1.0]),
    "cube": lambda: UniformCube([1.0, 1.0]),
    "sphere": lambda: UniformSphere(2, 1.0),
}


@dataclass(frozen=True)
class ProblemSpec:
    """What attention is asked.

    Attributes:
        attention: a softmax head.
        law: of its tokens; None where they come from elsewhere.
        queries: their law, or one a row.
    """

    attention: SoftmaxAttention | Factored
    law: AbstractMeasure | None
    queries: Queries

    @property
    def parts(self) -> tuple[SoftmaxAttention | Factored, AbstractMeasure, Queries]:
        """Head, law and queries, as gaps and lengths take them."""
        if self.law is None:
            raise ArgumentError("prompt", "must be described for this command.")
        return self.attention, self.law, self.queries


def limits(problem: ProblemSpec) -> Limits:
    """Return what softmax and linear attention make of the first query, in double precision."""
    with jax.enable_x64(True):
        attention, law, queries = problem.parts
        head, query = attention.as_heads()[0], np.asarray(queries)[0]
        kernels = (SoftmaxAttention, LinearAttention)
        attentions = [kernel(head.key_query, head.value) for kernel in kernels]
        outputs = [np.asarray(one(law, query)) for one in attentions]
        if not np.isfinite(outputs).all():
            raise ValueError(
                "the outputs must be finite, got numbers beyond double precision. "
                "Rescale the parameters, the prompt or the query."
            )
        return Limits(
            softmax=outputs[0],
            linear=outputs[1],
            kind="exact" if isinstance(law, Empirical) else "limit",
            error=0.0,
        )


def example(name: str) -> ProblemSpec:
    """Return a built-in problem: of all of them parameters and query are the same."""
    with jax.enable_x64(True):
        attention = SoftmaxAttention([[0.8, 0.3], [-0.2, 0.5]], [[1.0, 0.0], [0.5, 1.0]])
        return ProblemSpec(attention, _EXAMPLES[name](), np.array([[1.0, -0.5]]))


def standard_case(dim: int, sharpness: float) -> ProblemSpec:
    r"""Return tokens and queries $N(0,I_d)$, $U=\tau I$, $V=I$: every query direction alike."""
    with jax.enable_x64(True):
        normal = Gaussian(np.zeros(dim), np.eye(dim))
        return ProblemSpec(SoftmaxAttention(sharpness * np.eye(dim), np.eye(dim)), normal, normal)


def from_arrays(arrays: Arrays, *, one_query: bool = False, with_law: bool = True) -> ProblemSpec:
    """Return the problem that named arrays describe.

    Args:
        arrays: the parameters, merged (`key_query`, `value`) or in factors (`key_weight`,
            `query_weight`, `value_weight`, and optionally `output`, `scale`); the prompt: `tokens`
            and optionally `weights`, or `mean` and `cov`, or `half_widths` with `prompt`
            "rademacher" or "cube", or `radius` with `prompt` "sphere"; and the queries: `query`, or
            `queries` one a row, or `query_cov` and optionally `query_mean` for Gaussian ones.
        one_query: whether only `query` will do.
        with_law: whether a prompt must be described.
    """
    known = {*ARRAY_NAMES} - QUERIES
    known |= {"query"} if one_query else QUERIES
    for name in arrays:
        require_choice("array", name, sorted(known))
    shaped = {name: _shaped(name, value) for name, value in arrays.items()}
    with jax.enable_x64(True):
        attention = _attention(shaped)
        law = _law(shaped, attention.token_dim) if with_law else None
        if one_query:
            return ProblemSpec(attention, law, _needed(shaped, "query", "the problem")[None])
        return ProblemSpec(attention, law, _queries(shaped, attention.query_dim))


def _shaped(name: str, value: np.ndarray | str) -> np.ndarray | str:
    """A table file has rows and columns: flatten what must be a vector or a number."""
    if isinstance(value, str):
        return value
    if name in _VECTORS and value.ndim == 2 and 1 in value.shape:
        return value.ravel()
    if name in _NUMBERS and value.size == 1:
        return value.reshape(())
    return value


def _needed(arrays: Arrays, name: str, owner: str) -> np.ndarray:
    """Return an array that must be there."""
    if name not in arrays:
        raise ArgumentError(name, f"must be given for {owner}, got {_listing(arrays)}.")
    value = arrays[name]
    if isinstance(value, str):
        raise ArgumentError(name, f"must be an array, got the text '{value}'.")
    return value


def _listing(arrays: Arrays) -> str:
    return "only " + ", ".join(f"`{name}`" for name in arrays) if arrays else "nothing"


def _attention(arrays: Arrays) -> SoftmaxAttention | Factored:
    """Return the softmax head that merged matrices or factors describe."""
    if not any(name in arrays for name in FACTORS):
        return SoftmaxAttention(*(_needed(arrays, name, "the attention") for name in MERGED))
    if both := [name for name in MERGED if name in arrays]:
        raise ArgumentError(
            both[0],
            "must not be given together with factors such as `key_weight`. "
            "Pass either the merged matrices or the factors.",
        )
    key, query, value = (_needed(arrays, name, "the factored attention") for name in FACTORS[:3])
    output = _needed(arrays, "output", "the head") if "output" in arrays else None
    scale = _needed(arrays, "scale", "the head") if "scale" in arrays else np.ones(())
    if scale.ndim != 0:
        raise ArgumentError("scale", f"must be a number, got shape {scale.shape}.")
    return Factored("softmax", key, query, value, output, scale=float(scale))


def _law(arrays: Arrays, dim: int) -> AbstractMeasure:
    """Return the prompt that the arrays describe."""
    kind = _prompt_kind(arrays)
    if stray := sorted((OF_PROMPTS - {*PROMPTS[kind]}) & set(arrays)):
        raise ArgumentError(
            stray[0],
            f"must not be given for a prompt of kind '{kind}'. "
            "Leave it out, or name another prompt.",
        )
    if kind == "tokens":
        weights = _needed(arrays, "weights", "tokens") if "weights" in arrays else None
        return Empirical(_needed(arrays, "tokens", "the prompt"), weights)
    if kind == "gaussian":
        mean = _needed(arrays, "mean", "the prompt") if "mean" in arrays else np.zeros(dim)
        return Gaussian(mean, _needed(arrays, "cov", "a Gaussian prompt"))
    if kind == "sphere":
        return UniformSphere(dim, _needed(arrays, "radius", "a spherical prompt"))
    half_widths = _needed(arrays, "half_widths", "the prompt")
    return Rademacher(half_widths) if kind == "rademacher" else UniformCube(half_widths)


def _prompt_kind(arrays: Arrays) -> str:
    if "prompt" in arrays:
        kind = str(arrays["prompt"])
        require_choice("prompt", kind, PROMPTS)
        return kind
    if "tokens" in arrays:
        return "tokens"
    if "cov" in arrays:
        return "gaussian"
    raise ArgumentError(
        "prompt",
        "must be described by `cov` (with `mean`) or by `tokens`, or named as one of "
        f"{', '.join(map(repr, PROMPTS))}, got {_listing(arrays)}.",
    )


def _queries(arrays: Arrays, dim: int) -> Queries:
    """Return the queries that named arrays describe: a law, or an array with one a row."""
    ways = [name for name in ("query", "queries", "query_cov") if name in arrays]
    if len(ways) != 1:
        names = " and ".join(f"`{name}`" for name in ways) if ways else "none of them"
        raise ArgumentError(
            "query",
            "must be given, or `queries` or `query_cov`, and only one of them, "
            f"got {names}. `query_cov` makes Gaussian queries.",
        )
    if "query_mean" in arrays and ways != ["query_cov"]:
        raise ArgumentError("query_mean", "must be given with `query_cov` only.")
    if ways == ["query_cov"]:
        mean = _needed(arrays, "query_mean", "queries") if "query_mean" in arrays else np.zeros(dim)
        cov = _needed(arrays, "query_cov", "Gaussian queries")
        try:
            return Gaussian(mean, cov)
        except ArgumentError as refusal:
            raise refusal.renamed(mean="query_mean", cov="query_cov") from None
    array = _needed(arrays, ways[0], "the problem")
    return array[None] if ways == ["query"] else array


@dataclass(frozen=True)
class StackSpec:
    """What a stack is asked.

    Attributes:
        stack: the layers.
        law: of their tokens.
        query: one.
    """

    stack: Stack
    law: AbstractMeasure
    query: np.ndarray


_KERNELS = {"softmax": SoftmaxAttention, "linear": LinearAttention}
_SCORES = np.array([[[0.2, 0.1], [-0.1, 0.1]], [[-0.1, 0.1], [0.0, 0.1]]])
_VALUES = np.array([[[0.4, 0.0], [0.1, 0.3]], [[0.2, -0.2], [0.1, 0.2]]])
"""Of the examples: two heads, the same in every layer."""


def stack_example(name: str) -> StackSpec:
    """Return a built-in stack of three layers with two heads each."""
    law = {"linear": "gaussian", "mixture": "mixture"}.get(name, "shifted")
    sharper = 5.0 if name == "sharp" else 1.0
    kernel = "linear" if name == "linear" else "softmax"
    with jax.enable_x64(True):
        stack = _stack_of(kernel, [sharper * _SCORES] * 3, [_VALUES] * 3, None)
        return StackSpec(stack, _EXAMPLES[law](), np.array([1.0, -0.5]))


def stack_from_arrays(arrays: Arrays) -> StackSpec:
    """Return the stack that named arrays describe.

    Args:
        arrays: `key_query` and `value`, [layers, d, d] or [layers, heads, d, d]; optionally
            `residual`, [layers, d, d], and `kernel`, "softmax" or "linear"; the prompt as for
            `from_arrays`; and `query`.
    """
    for name in arrays:
        require_choice("array", name, sorted(STACK_NAMES))
    kernel = str(arrays.get("kernel", "softmax"))
    require_choice("kernel", kernel, _KERNELS)
    scores, values = (_of_heads(arrays, name) for name in MERGED)
    if scores.shape[:2] != values.shape[:2]:
        raise ArgumentError(
            "value",
            f"must have as many layers and heads as `key_query`, {scores.shape[:2]}, got "
            f"{values.shape[:2]}.",
        )
    residual = _needed(arrays, "residual", "the stack") if "residual" in arrays else None
    if residual is not None and (residual.ndim != 3 or len(residual) != len(scores)):
        raise ArgumentError(
            "residual",
            f"must have shape [layers, d, d] with {len(scores)} layers, got {residual.shape}.",
        )
    shaped = {name: _shaped(name, value) for name, value in arrays.items()}
    with jax.enable_x64(True):
        stack = _stack_of(kernel, scores, values, residual)
        law = _law(shaped, stack.token_dim)
        return StackSpec(stack, law, _needed(shaped, "query", "the problem"))


def _of_heads(arrays: Arrays, name: str) -> np.ndarray:
    """Return matrices as [layers, heads, rows, columns]."""
    matrices = _needed(arrays, name, "the stack")
    if matrices.ndim not in (3, 4):
        raise ArgumentError(
            name, f"must have shape [layers, d, d] or [layers, heads, d, d], got {matrices.shape}."
        )
    return matrices if matrices.ndim == 4 else matrices[:, None]


def _stack_of(
    kernel: str,
    scores: Sequence[np.ndarray] | np.ndarray,
    values: Sequence[np.ndarray] | np.ndarray,
    residual: np.ndarray | None,
) -> Stack:
    residuals = [None] * len(scores) if residual is None else list(residual)
    head = _KERNELS[kernel]
    layers = []
    for of_layer, values_of_layer, matrix in zip(scores, values, residuals, strict=True):
        heads = [head(u, v) for u, v in zip(of_layer, values_of_layer, strict=True)]
        layers.append(Layer(heads, matrix))
    return Stack(layers)
